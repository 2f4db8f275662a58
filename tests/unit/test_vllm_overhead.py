"""The vLLM overhead benchmark: what a round costs more, and no figure from an engine that recorded nothing."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.vllm_overhead import Load, compare

LOAD = Load(concurrency=1, prompt_tokens=8, max_tokens=8)
RECORDED = {"failure": None, "num_written": 3}


class Worker:
    """Its n-th measurement takes n-th `seconds`, for ten rounds."""

    def __init__(self, variant: str, seconds: list[float], status: dict[str, Any] | None) -> None:
        self.variant, self._seconds, self._status = variant, [1.0, *seconds], status  # the first fills the prefix cache

    def measure(self, load: Load) -> dict[str, Any]:
        return {"seconds": self._seconds.pop(0), "rounds": 10.0, "status": self._status}


def compared(status: dict[str, Any] | None) -> dict[str, Any]:
    stock, variant = Worker("stock", [2.0, 4.0], None), Worker("default", [2.2, 4.2], status)
    return compare(stock, variant, LOAD, num_pairs=2)  # type: ignore[arg-type]


def test_cost_is_the_mean_of_the_pairs_ratios() -> None:
    found = compared(RECORDED)
    assert found["cost_percent"] == pytest.approx(7.5)
    assert found["stock_round_us"] == pytest.approx(300_000)
    assert found["recorder"] == RECORDED


@pytest.mark.parametrize("status", [RECORDED | {"failure": "lost"}, RECORDED | {"num_written": 0}])
def test_an_engine_that_recorded_nothing_has_no_cost(status: dict[str, Any]) -> None:
    with pytest.raises(RuntimeError, match="default did not record"):
        compared(status)
