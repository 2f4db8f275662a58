"""Where a round's time goes on the device: a profiler's trace of one batch, taken in the engine's process.

Functions for `collective_rpc`, used by `benchmarks.vllm_overhead --trace`.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probes.vllm.attach import wrap

OF_RECORDER = (
    "_partial",
    "_merge",
    "_put_norms",
    "_residual_norms",
    "_gather_states",
    "_fusion_shares",
    "_begin_round",
    "_keep_rows",
)
"""The recorder's Triton kernels; the product between `_gather_states` and `_fusion_shares` is the library's."""


def start_trace(worker: Any) -> None:
    import torch

    worker.benchmark_trace = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
    worker.benchmark_trace.start()


def stop_trace(worker: Any) -> dict[str, Any]:
    """Microseconds on the device since `start_trace`; see `summarise`."""
    worker.benchmark_trace.stop()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        worker.benchmark_trace.export_chrome_trace(str(path))
        return summarise(json.loads(path.read_text())["traceEvents"])


@dataclass
class _Clock:
    """Where the engine's thread was, in seconds of `time.perf_counter`."""

    steps: list[tuple[float, ...]] = field(default_factory=list)
    waits: list[tuple[float, float]] = field(default_factory=list)  # when a step's tokens were asked for, and how long


def start_clock(worker: Any) -> None:
    """From now on, notes when the engine's thread was where: `take_clock`."""
    clock = worker.benchmark_clock = _Clock()

    def execute_model(original: Any, output: Any, *args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        result = original(output, *args, **kwargs)
        if output.total_num_scheduled_tokens:
            shape = (output.total_num_scheduled_tokens, len(output.num_scheduled_tokens))
            clock.steps.append((*shape, begin, time.perf_counter()))
        return result

    def sample_tokens(original: Any, *args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        result = original(*args, **kwargs)
        if clock.steps and len(clock.steps[-1]) == 4:  # a step without tokens samples too
            clock.steps[-1] += (begin, time.perf_counter())
        if hasattr(result, "get_output"):
            wrap(result, "get_output", get_output)
        return result

    def get_output(original: Any) -> Any:
        asked = time.perf_counter()
        original.__self__.copy_event.synchronize()
        clock.waits.append((asked, time.perf_counter() - asked))
        return original()

    wrap(worker.model_runner, "execute_model", execute_model)
    wrap(worker.model_runner, "sample_tokens", sample_tokens)


def take_clock(worker: Any) -> dict[str, list]:
    """Since the last call. Of each step: tokens, requests, seconds at the begin and end of `execute_model`, and of
    `sample_tokens`. Of each wait for a step's tokens: when it began, how long it was.
    """
    clock = worker.benchmark_clock
    taken = {"steps": list(clock.steps), "waits": list(clock.waits)}
    clock.steps.clear()
    clock.waits.clear()
    return taken


GAP_US = 20
"""A shorter pause lies between kernels that were launched already; in a longer one the device waits for the host."""


def summarise(events: list[dict[str, Any]]) -> dict[str, Any]:
    """`busy_us`: while at least one kernel or copy ran; `gaps_us`: its pauses of less than GAP_US; `kernels_us`: the sum of
    all kernels and copies; `recorder_us` and `num_recorder`: of the recorder's own, by name; `largest_us`: of the others
    those that took longest, by name.
    """
    work = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    spans = sorted((float(e["ts"]), float(e["ts"]) + float(e["dur"])) for e in work)
    busy, gaps, end = 0.0, 0.0, float("-inf")
    for low, high in spans:
        busy += max(0.0, high - max(low, end))
        gaps += low - end if 0 < low - end < GAP_US else 0.0
        end = max(end, high)
    own, count, others = Counter[str](), Counter[str](), Counter[str]()
    for event in work:
        name = event["name"]
        if name in OF_RECORDER:
            own[name] += event["dur"]
            count[name] += 1
        else:
            others[name] += event["dur"]
    return {
        "span_us": end - spans[0][0] if spans else 0.0,
        "busy_us": busy,
        "gaps_us": gaps,
        "kernels_us": sum(high - low for low, high in spans),
        "num_kernels": len(spans),
        "recorder_us": dict(own),
        "num_recorder": dict(count),
        "largest_us": {name[:120]: us for name, us in others.most_common(12)},
    }
