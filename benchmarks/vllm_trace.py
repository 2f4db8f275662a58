"""Where a round's time goes on the device: a profiler's trace of one batch, taken in the engine's process.

Functions for `collective_rpc`, used by `benchmarks.vllm_overhead --trace`.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

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


def start_clock(worker: Any) -> None:
    """From now on, notes when the engine's thread was where in each step: `take_steps`."""
    runner = worker.model_runner
    execute_model, sample_tokens = runner.execute_model, runner.sample_tokens
    steps: list[tuple[float, ...]] = []
    worker.benchmark_steps = steps

    def timed_execute(output: Any, *args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        result = execute_model(output, *args, **kwargs)
        if output.total_num_scheduled_tokens:
            steps.append(
                (output.total_num_scheduled_tokens, len(output.num_scheduled_tokens), begin, time.perf_counter())
            )
        return result

    def timed_sample(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        result = sample_tokens(*args, **kwargs)
        if steps and len(steps[-1]) == 4:  # a step without tokens samples too
            steps[-1] += (begin, time.perf_counter())
        return result

    runner.execute_model, runner.sample_tokens = timed_execute, timed_sample


def take_steps(worker: Any) -> list[tuple[float, ...]]:
    """Since the last call: tokens, requests, seconds at the begin and end of `execute_model`, and of `sample_tokens`."""
    steps = list(worker.benchmark_steps)
    worker.benchmark_steps.clear()
    return steps


def summarise(events: list[dict[str, Any]]) -> dict[str, Any]:
    """`busy_us`: while at least one kernel or copy ran; `kernels_us`: the sum of all of them; `recorder_us` and
    `num_recorder`: of the recorder's own, by name; `largest_us`: the other kernels that took longest, by name.
    """
    work = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    spans = sorted((float(e["ts"]), float(e["ts"]) + float(e["dur"])) for e in work)
    busy, end = 0.0, float("-inf")
    for low, high in spans:
        busy += max(0.0, high - max(low, end))
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
        "kernels_us": sum(high - low for low, high in spans),
        "num_kernels": len(spans),
        "recorder_us": dict(own),
        "num_recorder": dict(count),
        "largest_us": {name[:120]: us for name, us in others.most_common(12)},
    }
