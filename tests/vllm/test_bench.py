"""`driftscope bench` with real engines: without speculation and with a recorded drafter."""

from __future__ import annotations

import pytest

pytest.importorskip("vllm.v1", reason="vLLM is installed in .venv-vllm only: `make test-vllm`", exc_type=ImportError)

from driftscope.bench.bench_result import BenchOptions, Variant
from driftscope.bench.run import bench
from driftscope.plan import make_plan


def test_engines_take_turns() -> None:
    options = {"target": "demo", "drafter": {"mine": "demo:eagle3.1"}, "engine": "vllm", "depth": 3}
    plan = make_plan(options | {"num_prompts": 3, "max_new_tokens": 12}, where="test")
    said: list[str] = []
    result = bench(plan, BenchOptions(concurrency=[2], repetitions=2, recording=["default"]), on_status=said.append)
    recorded = Variant(drafter="mine", recording="default")
    assert [row.variant for row in result.rows] == [Variant(), recorded]
    plain, drafted = result.rows
    assert result.num_prompts == drafted.num_texts == drafted.num_texts_equal == 3  # float32: the same tokens
    assert plain.tokens_per_round is None
    assert 1 < drafted.tokens_per_round <= 4
    assert drafted.user_speedup.num_units == 3
    assert drafted.total_speedup.num_units == 2
    assert not drafted.total_speedup.resolved  # two repetitions have no interval
    assert drafted.total_recording is None  # nothing to compare with was asked for
    assert any("CPU" in warning for warning in result.warnings)
    assert result.machine.packages["vllm"] == "0.32.0"
    turns = [text.split(": ")[1] for text in said if text.startswith("concurrency")]
    assert turns == ["none", str(recorded), str(recorded), "none", "none", str(recorded)]
