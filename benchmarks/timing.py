"""Times of things done in turn on one device, with what is needed to read them: hardware, versions, n, median, interval."""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

GRAPH_CALLS = 10


def environment() -> dict[str, Any]:
    """The machine and the versions that a figure belongs to."""
    import transformers

    info: dict[str, Any] = {"python": platform.python_version(), "torch": torch.__version__}
    info["transformers"] = transformers.__version__
    if torch.cuda.is_available():
        import triton

        card = torch.cuda.get_device_properties(0)
        info |= {
            "triton": triton.__version__,
            "card": card.name,
            "card_memory_bytes": card.total_memory,
            "multiprocessors": card.multi_processor_count,
            "cuda": torch.version.cuda,
        }
    else:
        from driftscope.bench.run import processor

        info |= {"processor": processor(), "threads": torch.get_num_threads()}
    return info


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def time_in_turn(
    functions: Mapping[str, Callable[[], Any]],
    num_repeats: int,
    *,
    num_warmups: int = 1,
    num_inner: int = 1,
    peaks: dict[str, int] | None = None,
) -> dict[str, list[float]]:
    """Milliseconds of each function, one after the other in every repeat, so that a drift of the clocks hits all alike.

    From before the launch to the end of the device's work, host time included; `num_inner` calls make one sample. `peaks`
    gets the most memory that torch held on the device meanwhile, in bytes, what was held before included.
    """
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for repeat in range(num_warmups + num_repeats):
        for name, function in functions.items():
            synchronize()
            if peaks is not None and torch.cuda.is_available():
                torch.cuda.reset_peak_memory_stats()
            begin = time.perf_counter()
            for _ in range(num_inner):
                function()
            synchronize()
            if repeat >= num_warmups:
                samples[name].append((time.perf_counter() - begin) * 1e3 / num_inner)
                if peaks is not None and torch.cuda.is_available():
                    peaks[name] = torch.cuda.max_memory_allocated()
    return samples


def captured(function: Callable[[], Any]) -> Callable[[], None]:
    """Replays a CUDA graph of GRAPH_CALLS calls: the host's work is done once, when capturing."""
    function()  # compiles outside of the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(GRAPH_CALLS):
            function()
    return graph.replay


def per_call(samples: dict[str, list[float]]) -> dict[str, list[float]]:
    return {name: [sample / GRAPH_CALLS for sample in those] for name, those in samples.items()}


def summary(samples: Sequence[float]) -> dict[str, Any]:
    """n, median and an interval: order statistics that hold the true median with at least 90 %, all samples below n = 5."""
    ordered, n = sorted(samples), len(samples)
    # P(the k-th smallest or fewer lie below the median) from the binomial: n = 5 -> k = 1, 8 -> 2, 11 -> 3
    k = max(1, (n + 1) // 2 - round(0.82 * n**0.5)) if n >= 5 else 1
    return {"n": n, "median": statistics.median(ordered), "low": ordered[k - 1], "high": ordered[n - k]}


def copy_bandwidth(num_bytes: int = 1 << 32) -> float:
    """Bytes a second that a device-to-device copy reads and writes together."""
    source = torch.empty(num_bytes // 2, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    milliseconds = statistics.median(time_in_turn({"copy": lambda: target.copy_(source)}, 10)["copy"])
    return num_bytes / milliseconds * 1e3


def write(path: Path, name: str, rows: Sequence[Mapping[str, Any]], **more: Any) -> None:
    """`rows` and the environment as JSON; the rows as a Markdown table beside it."""
    path.mkdir(parents=True, exist_ok=True)
    whole = {"benchmark": name, "environment": environment(), **more, "rows": list(rows)}
    (path / f"{name}.json").write_text(json.dumps(whole, indent=1) + "\n")
    (path / f"{name}.md").write_text(table(rows))
    print(f"\n{name}: {json.dumps(whole['environment'])} {json.dumps(more)}\n{table(rows)}", flush=True)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown; a summary prints as median [low, high]."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(_cell(row.get(name)) for name in names) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return f"{_cell(value['median'])} [{_cell(value['low'])}, {_cell(value['high'])}], n={value['n']}"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return "" if value is None else str(value)
