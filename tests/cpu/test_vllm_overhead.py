"""What the overhead benchmark makes of its measurements."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.vllm_overhead import GOALS, LOADS, comparisons, median_interval
from benchmarks.vllm_trace import summarise


def test_the_interval_covers_the_median_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    for n in (6, 20, 24):
        intervals = [median_interval(generator.exponential(size=n)) for _ in range(4000)]
        covered = np.mean([low <= np.log(2) <= high for low, high in intervals])
        assert 0.945 < covered < 0.99
    assert median_interval(np.arange(20.0)) == (5.0, 14.0)


def test_what_has_a_goal_is_measured_first_and_slow_variants_on_short_prompts_alone() -> None:
    found = comparisons(["stock", "counts", "default", "heads", "dump"])
    assert set(found[: len(GOALS)]) == set(GOALS)
    assert len(found) == 3 * 3 + 2
    assert ("dump", LOADS[2]) not in found


def test_time_on_the_device_counts_overlapping_kernels_once() -> None:
    def event(name: str, ts: float, dur: float, cat: str = "kernel") -> dict:
        return {"name": name, "ts": ts, "dur": dur, "cat": cat}

    found = summarise(
        [
            event("gemm", 0, 10),
            event("_partial", 4, 3),  # beside it
            event("_merge", 9, 4),  # ends after it
            event("copy", 20, 1, "gpu_memcpy"),
            event("cudaLaunchKernel", 0, 50, "cuda_runtime"),
        ]
    )
    assert found["busy_us"] == 14
    assert found["kernels_us"] == 18
    assert found["span_us"] == 21
    assert found["recorder_us"] == {"_partial": 3, "_merge": 4}
    assert found["largest_us"] == pytest.approx({"gemm": 10, "copy": 1})
