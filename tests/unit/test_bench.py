"""Rates and ratios from times, and how they are printed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import pytest

from driftscope.bench import run
from driftscope.bench.bench_result import BenchOptions, BenchResult, Machine, Variant
from driftscope.bench.results import Sample, rows_of, unresolved
from driftscope.cli import main
from driftscope.cli.bench_text import as_markdown
from driftscope.plan import make_plan
from probes.errors import InputError

DRAFTER, RECORDED = Variant(drafter="mine"), Variant(drafter="mine", recording="default")
NUM_PROMPTS = 6


def sample(variant: Variant, repetition: int, *, speed: float, noise: float = 0.0) -> Sample:
    """Each prompt has 20 + i tokens; `speed` tokens a second for a user."""
    tokens = [20 + i for i in range(NUM_PROMPTS)]
    factor = 1 + noise * (-1) ** repetition
    return Sample(
        variant=variant,
        concurrency=2,
        wall_seconds=sum(tokens) / speed / 2 * factor,
        seconds=[n / speed * factor for n in tokens],
        tokens=tokens,
        digests=["a"] * NUM_PROMPTS if variant != RECORDED else ["a"] * (NUM_PROMPTS - 1) + ["b"],
        num_drafts=0 if variant == Variant() else 50,
        num_accepted=0 if variant == Variant() else 60,
    )


def samples(noise: float = 0.0) -> list[Sample]:
    return [
        sample(variant, repetition, speed=speed, noise=noise if variant == RECORDED else 0.0)
        for repetition in range(6)
        for variant, speed in ((Variant(), 10.0), (DRAFTER, 20.0), (RECORDED, 19.0))
    ]


def test_rates_and_ratios() -> None:
    plain, drafted, recorded = rows_of(samples())
    assert plain.user_tokens_per_s.estimate == pytest.approx(10)
    assert plain.total_tokens_per_s.estimate == pytest.approx(20)
    assert plain.user_speedup is None
    assert plain.tokens_per_round is None
    assert drafted.user_speedup.estimate == pytest.approx(2)
    assert drafted.total_speedup.estimate == pytest.approx(2)
    assert drafted.user_speedup.num_units == NUM_PROMPTS
    assert drafted.user_recording is None
    assert drafted.tokens_per_round == pytest.approx(2.2)
    assert recorded.total_recording.estimate == pytest.approx(0.95)
    assert recorded.total_recording.baseline == "mine"
    assert (drafted.num_texts_equal, recorded.num_texts_equal) == (6, 5)
    assert unresolved([plain, drafted, recorded]) == 0


def test_wide_intervals_are_not_resolved() -> None:
    *_, recorded = rows_of(samples(noise=0.3))
    assert recorded.total_recording.low < 0.95 < recorded.total_recording.high
    assert not recorded.total_recording.resolved
    few = rows_of(samples()[:6])  # two repetitions: no interval
    assert few[1].total_speedup.low is None
    assert not few[1].total_speedup.resolved
    assert unresolved(few) == 3


def test_markdown_names_machine_and_warnings() -> None:
    result = BenchResult(
        machine=Machine(cpu="a cpu", num_cores=2, load_before=0.1, platform="p", packages={"vllm": "1"}),
        plan={"depth": 4, "dtype": "float32", "temperature": 0.0},
        options=BenchOptions(),
        num_prompts=NUM_PROMPTS,
        rows=rows_of(samples(noise=0.3)),
        warnings=["the machine was busy"],
    )
    page = as_markdown(result)
    assert "a cpu (2 cores, load before 0.10 a core), vllm 1" in page
    assert "| mine, recording default | 2 |" in page
    assert "2.000 2.000..2.000" in page
    assert "not resolved" in page
    assert "- **the machine was busy**" in page


class FakeWorker:
    """Answers at once, until the answers that all of them share are used up."""

    said: ClassVar = {"prompt_ids": ["a", "b"], "machine": {"gpu": None, "packages": {"vllm": "1"}}}

    def __init__(self, variant: Variant, left: list[BaseException | None]) -> None:
        self.variant, self._left = variant, left

    def ask(self, load: dict[str, int]) -> dict[str, object]:
        answer = self._left.pop()
        if answer is not None:
            raise answer
        of = sample(self.variant, load["repetition"], speed=10.0)
        return {name: value for name, value in vars(of).items() if name not in ("variant", "concurrency")}


def ended_after(num_answers: int, why: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bench whose engines give so many answers."""
    left = [why, *[None] * num_answers]

    @contextmanager
    def workers(variants: list[Variant], *given: object) -> Iterator[list[FakeWorker]]:
        yield [FakeWorker(variant, left) for variant in variants]

    monkeypatch.setattr(run, "_workers", workers)


ENGINE_ENDED = InputError("the engine ended: out of memory", code="engine_ended", where="mine", remedy="a smaller one")


@pytest.mark.parametrize(
    ("why", "says"), [(KeyboardInterrupt(), "interrupted"), (ENGINE_ENDED, "mine: the engine ended: out of memory")]
)
def test_what_was_measured_stands_when_it_ends_early(
    why: BaseException, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """3 engines, 3 + 1 repetitions: all at concurrency 1; at 4 the last one is missing; at 16 nothing to compare with."""
    arguments = ["--target", "demo", "--drafter", "mine=demo:eagle3", "--repetitions", "3", "--json"]
    at_1, at_4 = ([(n, str(v), units) for v in (Variant(), DRAFTER, RECORDED)] for n, units in ((1, 3), (4, 2)))
    for concurrency, num_answers, expected in (("1,4", 12 + 11, at_1 + at_4), ("1,16", 12 + 3 + 2, at_1)):
        ended_after(num_answers, why, monkeypatch)
        assert main(["bench", *arguments, "--concurrency", concurrency]) == 1
        result = BenchResult.model_validate_json(capsys.readouterr().out)
        assert says in str(result.ended_early)
        assert [(r.concurrency, str(r.variant), r.total_tokens_per_s.num_units) for r in result.rows] == expected
        assert f"ended early, some repetitions are missing: {result.ended_early}" in as_markdown(result)


def test_one_that_ends_before_a_repetition_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan({"target": "demo", "drafter": {"mine": "demo:eagle3"}, "engine": "vllm"}, where="test")
    for why in (KeyboardInterrupt(), ENGINE_ENDED):
        ended_after(3, why, monkeypatch)
        with pytest.raises(type(why)):
            run.bench(plan, BenchOptions())


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (["--target", "demo"], "driftscope bench"),
        (["--target", "demo", "--drafter", "x"], "--drafter"),
        (["--target", "demo", "--drafter", "a=demo:eagle3", "--concurrency", "1,x"], "--concurrency"),
        (["--target", "demo", "--drafter", "a=demo:eagle3", "--concurrency", "0"], "--concurrency"),
        (["--target", "/no/model", "--drafter", "a=demo:eagle3"], "/no/model"),
    ],
)
def test_mistakes_are_named(arguments: list[str], where: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["where"] == where
