"""What the overhead benchmark makes of its measurements; an engine that recorded nothing has no cost."""

from __future__ import annotations

from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.vllm_overhead import (
    DEPTH,
    GOALS,
    LEAST_PAIRS,
    LOADS,
    Batch,
    Load,
    compare,
    comparisons,
    median_interval,
    table,
)
from benchmarks.vllm_trace import start_clock, summarise, take_clock

LOAD = Load(concurrency=2, prompt_tokens=8, max_tokens=8)
RECORDED = {"failure": None, "num_written": 3}


def answer(step_seconds: float, status: dict[str, Any] | None = None) -> dict[str, Any]:
    """A batch whose second request comes a step late: one step with one request, one that mixes, four full ones, one with
    the last request alone.
    """
    full = 2 * (DEPTH + 1)
    shapes = [(8, 1), (DEPTH + 9, 2), *[(full, 2)] * 4, (DEPTH + 1, 1)]
    begins = 10 + np.arange(len(shapes)) * step_seconds
    steps = [
        (*shape, b, b + 0.1 * step_seconds, b + 0.1 * step_seconds, b + 0.3 * step_seconds)
        for shape, b in zip(shapes, begins, strict=True)
    ]
    waits = [(b + 0.5 * step_seconds, 0.4 * step_seconds) for b in begins]
    seconds = 1 + len(shapes) * step_seconds
    return {"seconds": seconds, "begin": 9.0, "rounds": 5.0, "steps": steps, "waits": waits, "status": status}


class Worker:
    """Its n-th measurement has steps of n-th `seconds`."""

    def __init__(self, name: str, seconds: list[float], status: dict[str, Any] | None = None) -> None:
        self.name, self.variant = name, name.split()[0]
        self._seconds, self._status = [1.0, *seconds], status  # the first fills the prefix cache

    def measure(self, load: Load) -> dict[str, Any]:
        return answer(self._seconds.pop(0), self._status)


def compared(*workers: Worker, num_pairs: int = 2, deadline: float = np.inf) -> list[dict[str, Any]]:
    return compare(workers, LOAD, num_pairs=num_pairs, deadline=deadline)  # type: ignore[arg-type]


def test_a_batch_is_told_apart_from_its_rounds() -> None:
    found = Batch.of(answer(0.5), LOAD)
    assert found.round_us == pytest.approx(500_000)
    assert found.launch_us == pytest.approx(150_000)
    assert found.wait_us == pytest.approx(200_000)
    assert found.batch_us == pytest.approx(900_000)
    assert found.parts_ms == pytest.approx((2000, 1500, 1000))


def test_cost_is_the_median_of_the_pairs_ratios() -> None:
    [found] = compared(Worker("stock", [2.0, 4.0]), Worker("default", [2.2, 4.2], RECORDED))
    assert found["round_us"]["percent"] == pytest.approx(7.5)
    assert found["round_us"]["stock"] == pytest.approx(3e6)
    assert found["batch_us"]["percent"] == pytest.approx((1.4 / 15 + 1.4 / 29) / 2 * 100)
    assert found["wait_us"] == pytest.approx(0.4 * 3.2e6)
    assert found["recorder"] == RECORDED
    assert "+7.50 (+5.00 .. +10.00, not resolved) | +7.08" in table([found])


def test_several_engines_of_a_variant() -> None:
    """A second stock engine is compared with the first, a level's with both."""
    found = compared(
        Worker("stock", [2.0, 4.0]),
        Worker("stock 2", [2.2, 4.4]),
        Worker("default", [2.1, 4.2], RECORDED),
        Worker("default 2", [4.2, 8.4], RECORDED),
    )
    costs = {row["variant"]: row["round_us"]["percent"] for row in found}
    assert costs == pytest.approx({"stock 2": 10.0, "default": 0.0, "default 2": 100.0}, abs=1e-9)
    load = next(load for level, load in GOALS if level == "default")
    rows = table([row | {"load": asdict(load)} for row in found]).splitlines()[2:]
    assert ["goal" if "<= 2" in row else "" for row in rows] == ["", "goal", "goal"]


def test_after_the_deadline_a_comparison_ends_with_what_it_has() -> None:
    stock, default = (Worker(name, [2.0] * 9, RECORDED) for name in ("stock", "default"))
    [found] = compared(stock, default, num_pairs=9, deadline=0.0)
    assert found["num_pairs"] == LEAST_PAIRS == len(found["batches"]["default"])
    low, high = found["round_us"]["interval_percent"]
    assert low <= 0 <= high


@pytest.mark.parametrize("status", [RECORDED | {"failure": "lost"}, RECORDED | {"num_written": 0}])
def test_an_engine_that_recorded_nothing_has_no_cost(status: dict[str, Any]) -> None:
    with pytest.raises(RuntimeError, match="default did not record"):
        compared(Worker("stock", [2.0, 4.0]), Worker("default", [2.2, 4.2], status))


class _Output:
    """As vLLM's AsyncOutput."""

    copy_event = SimpleNamespace(synchronize=lambda: None)

    def get_output(self) -> str:
        return "tokens"


def test_steps_without_tokens_are_no_steps() -> None:
    runner = SimpleNamespace(execute_model=lambda output: output, sample_tokens=_Output)
    worker = SimpleNamespace(model_runner=runner)
    start_clock(worker)
    for tokens in (3, 0, 6):
        scheduled = {"a": tokens} if tokens else {}
        runner.execute_model(SimpleNamespace(total_num_scheduled_tokens=tokens, num_scheduled_tokens=scheduled))
        assert runner.sample_tokens().get_output() == "tokens"
    taken = take_clock(worker)
    assert [step[:2] for step in taken["steps"]] == [(3, 1), (6, 1)]
    assert all(sorted(step[2:]) == list(step[2:]) and len(step) == 6 for step in taken["steps"])
    assert len(taken["waits"]) == 3
    assert take_clock(worker) == {"steps": [], "waits": []}


def test_the_interval_covers_the_median_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    for n in (6, 20, 24):
        intervals = [median_interval(generator.exponential(size=n)) for _ in range(4000)]
        covered = np.mean([low <= np.log(2) <= high for low, high in intervals])
        assert 0.945 < covered < 0.99
    assert median_interval(np.arange(20.0)) == (5.0, 14.0)


def test_slow_variants_are_measured_last_and_on_short_prompts_alone() -> None:
    engines = [Worker(name, []) for name in ("stock", "dump", "default", "default 2")]
    found = [([e.name for e in who], load, n) for who, load, n in comparisons(engines, 24)]  # type: ignore[arg-type]
    fast, slow = ["stock", "default", "default 2"], ["stock", "dump"]
    assert found == [*((fast, load, 24) for load in LOADS), *((slow, load, 6) for load in LOADS[:2])]
    assert [who for who, _, _ in comparisons(engines[:2], 24)] == [engines[:2]] * 2  # type: ignore[arg-type]


def test_time_on_the_device_counts_overlapping_kernels_once() -> None:
    def event(name: str, ts: float, dur: float, cat: str = "kernel") -> dict:
        return {"name": name, "ts": ts, "dur": dur, "cat": cat}

    found = summarise(
        [
            event("gemm", 0, 10),
            event("_partial", 4, 3),  # beside it
            event("_merge", 9, 4),  # ends after it
            event("copy", 20, 1, "gpu_memcpy"),
            event("copy", 121, 1, "gpu_memcpy"),  # the device waited for the host
            event("cudaLaunchKernel", 0, 50, "cuda_runtime"),
        ]
    )
    assert found["busy_us"] == 15
    assert found["gaps_us"] == 7
    assert found["kernels_us"] == 19
    assert found["span_us"] == 122
    assert found["recorder_us"] == {"_partial": 3, "_merge": 4}
    assert found["largest_us"] == pytest.approx({"gemm": 10, "copy": 2})
