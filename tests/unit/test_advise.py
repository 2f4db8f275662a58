"""Which depth: walks at a smaller K by hand, costs by hand, and when speculation should be off."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from driftscope.advise import Advice, Recommendation, advise, given_costs
from driftscope.advise.costs import GivenCosts, TimedRounds, round_costs, timed_rounds
from driftscope.advise.walks import condition_walks, walks_of
from driftscope.cli import main
from driftscope.runs import read_run
from driftscope.runs.info import Cost, write_info
from driftscope.summary import summarise
from probes.errors import InputError, RunError
from tests.synthetic_run import make_batch, make_info, make_prompt, make_records, write_run


def constant_run(path: Path, accepted: int, *, depth: int = 4, num_prompts: int = 6, engine: str = "replay") -> Path:
    """Every start accepts the same number of drafts."""
    records: list[object] = []
    for number in range(num_prompts):
        prompt = make_prompt(f"p{number}", num_response_tokens=62, seed=number)
        starts = 61 if engine == "replay" else 20
        batch = make_batch(prompt, depth=depth, engine=engine, accepted_drafts=np.full(starts, accepted))
        records += [prompt, batch]
    return write_run(path, records, make_info(engine=engine, depth=depth))  # type: ignore[arg-type]


def test_a_smaller_depth_is_walked_again() -> None:
    accepted = np.array([3, 0, 2, 1, 0, 3, 0, 0])
    on_walk = np.array([1, 0, 0, 0, 1, 1, 0, 0], dtype=bool)  # 0 -> 4 -> 5 -> past the end
    walks = walks_of(np.full(8, 3), accepted, on_walk, depth=3, is_dense=True)
    # K' = 1: min(a, 1) = 1 0 1 1 0 1 0 0: starts 0, 2, 4, 5, 7; K' = 2: 0, 3, 5; K' = 3: 0, 4, 5
    assert walks.num_rounds.tolist() == [5, 3, 3]
    assert walks.num_tokens.tolist() == [2 + 2 + 1 + 2 + 1, 3 + 2 + 3, 4 + 1 + 4]
    assert walks.is_exact
    cut = walks_of(np.full(8, 3), accepted, on_walk, depth=3, is_dense=False)
    assert cut.num_rounds.tolist() == [3, 3, 3]
    assert cut.num_tokens.tolist() == [2 + 1 + 2, 3 + 1 + 3, 4 + 1 + 4]
    assert cut.num_accepted_at.tolist() == walks.num_accepted_at.tolist() == [2, 2, 2]
    assert not cut.is_exact


def test_walked_again_at_the_recorded_depth_it_is_the_stored_walk(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a.drift", make_records(num_loops=1)))
    summaries = {c.drafter + c.system_prompt: c for c in summarise(run).conditions}
    for condition in condition_walks(run):
        summary = summaries[condition.key[0] + condition.key[1]]
        assert summary.walk is not None
        assert condition.num_degenerate == summary.num_degenerate == 1
        num_rounds = sum(p.num_rounds[-1] for p in condition.prompts.values())
        num_tokens = sum(p.num_tokens[-1] for p in condition.prompts.values())
        assert num_rounds == summary.walk.num_rounds
        assert num_tokens / num_rounds == pytest.approx(summary.walk.tokens_per_round, abs=1e-12)


def test_a_live_run_at_the_smaller_depth_agrees_with_the_replay_walked_again(tmp_path: Path) -> None:
    """What replay says of K' = 2 is what an engine that drafts 2 does: the same starts, made as a run of its own."""
    prompt = make_prompt(num_response_tokens=80)
    accepted = np.random.default_rng(3).integers(0, 5, 79)
    replay = read_run(write_run(tmp_path / "r.drift", [prompt, make_batch(prompt, depth=4, accepted_drafts=accepted)]))
    small = make_batch(prompt, depth=2, accepted_drafts=np.minimum(accepted, 2))
    shallow = read_run(write_run(tmp_path / "s.drift", [prompt, small], make_info(depth=2)))
    [again], [own] = condition_walks(replay), condition_walks(shallow)
    [walked], [engine] = again.prompts.values(), own.prompts.values()
    assert walked.num_rounds[:2].tolist() == engine.num_rounds.tolist()
    assert walked.num_tokens[:2].tolist() == engine.num_tokens.tolist()


def test_the_best_depth_by_hand(tmp_path: Path) -> None:
    """Two drafts are accepted at every start: tokens 2, 3, 3, 3. With d = 10, v = p = 100: rounds 110, 120, 130, 140."""
    run = read_run(constant_run(tmp_path / "a.drift", accepted=2))
    [one] = advise(run, given_costs("10", "100", None)).conditions
    assert [d.tokens_per_round for d in one.depths] == [2, 3, 3, 3]
    assert [d.round_us for d in one.depths] == [110, 120, 130, 140]
    assert [d.speedup for d in one.depths] == pytest.approx([200 / 110, 300 / 120, 300 / 130, 300 / 140])
    assert (one.best_depth, one.as_good_depths, one.recommendation) == (2, [2], Recommendation.on)
    assert one.is_exact
    best = one.depths[1]
    assert (best.speedup_low, best.speedup_high) == pytest.approx((2.5, 2.5))  # every prompt says the same
    assert [d.added_tokens for d in one.depths] == [1, 1, 0, 0]
    assert one.acceptance_marginal == [1, 1, 0, 0]
    assert best.break_even_tokens_per_round == pytest.approx(1.2)
    assert best.break_even_added_tokens == pytest.approx(2 * 10 / 110)  # tokens of K = 1, times what depth 2 adds
    assert one.depths[0].break_even_added_tokens == pytest.approx(1 * 10 / 100)
    assert [d.break_even_draft_share for d in one.depths] == pytest.approx([1, 1, 2 / 3, 2 / 4])
    assert one.depths[2].break_even_draft_share_added == 0


def test_break_even_is_where_two_depths_are_as_fast(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a.drift", make_records(num_response_tokens=200, accept_share=0.7)))
    for depth in (1, 2, 3, 4):
        [one, *_] = advise(run).drafters
        share = one.depths[depth - 1].break_even_draft_share_added
        assert share is not None
        at = advise(run, GivenCosts(draft_us=(share,), verify_us=(1.0,))).drafters[0].depths
        before = at[depth - 2].speedup if depth > 1 else 1.0
        assert at[depth - 1].speedup == pytest.approx(before, rel=1e-9)
        off = one.depths[depth - 1].break_even_draft_share
        at = advise(run, GivenCosts(draft_us=(off,), verify_us=(1.0,))).drafters[0].depths
        assert at[depth - 1].speedup == pytest.approx(1.0, rel=1e-9)


def test_costs_by_depth_and_a_verify_that_grows(tmp_path: Path) -> None:
    """Tokens 2, 3, 4, 5 (all accepted); steps 20, 10, 10, 10; verify 100, 150, 250, 400; plain 90."""
    run = read_run(constant_run(tmp_path / "a.drift", accepted=4))
    [one] = advise(run, given_costs("20,10,10,10", "100,150,250,400", 90)).conditions
    rounds = [120, 180, 290, 450]
    assert [d.round_us for d in one.depths] == rounds
    assert [d.speedup for d in one.depths] == pytest.approx(
        [t * 90 / r for t, r in zip((2, 3, 4, 5), rounds, strict=True)]
    )
    assert one.best_depth == 1  # 1.5, 1.5, 1.24, 1.0: the smaller of two that are as fast
    assert one.as_good_depths == [1, 2]
    assert one.costs is not None
    assert one.costs.assumptions == []


def test_costs_for_fewer_depths_than_were_recorded(tmp_path: Path) -> None:
    run = read_run(constant_run(tmp_path / "a.drift", accepted=4))
    [one] = advise(run, given_costs("10,10", "100", None)).conditions
    assert [d.speedup is None for d in one.depths] == [False, False, True, True]
    assert one.best_depth == 2


def test_a_useless_drafter_is_turned_off(tmp_path: Path) -> None:
    run = read_run(constant_run(tmp_path / "a.drift", accepted=0))
    [one] = advise(run, given_costs("10", "100", None)).conditions
    assert one.recommendation is Recommendation.off
    assert one.statement.startswith("Turn speculation off")
    assert [d.speedup for d in one.depths] == pytest.approx([100 / 110, 100 / 120, 100 / 130, 100 / 140])
    assert [d.break_even_draft_share for d in one.depths] == [0, 0, 0, 0]


def test_a_drafter_that_is_right_but_too_slow_is_turned_off(tmp_path: Path) -> None:
    run = read_run(constant_run(tmp_path / "a.drift", accepted=1))
    [one] = advise(run, given_costs("120", "100", None)).conditions  # 2 tokens in 220
    assert one.recommendation is Recommendation.off
    assert one.best_depth == 1
    [one] = advise(run, given_costs("90", "100", None)).conditions  # 2 tokens in 190
    assert one.recommendation is Recommendation.on


def test_too_few_prompts_are_uncertain(tmp_path: Path) -> None:
    run = read_run(constant_run(tmp_path / "a.drift", accepted=3, num_prompts=4))
    [one] = advise(run, given_costs("10", "100", None)).conditions
    assert one.recommendation is Recommendation.uncertain
    assert one.depths[2].speedup_low is None
    assert "fewer than 5 prompts" in one.statement


def test_the_best_depth_may_be_less_certain_than_another(tmp_path: Path) -> None:
    """Half of the prompts accept one draft, half three: more depth means more on average, and more spread."""
    records: list[object] = []
    for number in range(6):
        prompt = make_prompt(f"p{number}", num_response_tokens=62, seed=number)
        records += [prompt, make_batch(prompt, depth=3, accepted_drafts=np.full(61, 1 + 2 * (number % 2)))]
    run = read_run(write_run(tmp_path / "a.drift", records, make_info(depth=3)))  # type: ignore[arg-type]
    [one] = advise(run, given_costs("10", "100", 70)).conditions
    assert one.best_depth == 3
    assert [d.speedup_low is not None and d.speedup_low > 1 for d in one.depths] == [True, True, False]
    assert one.recommendation is Recommendation.on
    assert "Certain to beat plain decoding: K = 1, 2." in one.statement


def test_without_costs_it_says_what_a_draft_may_cost(tmp_path: Path) -> None:
    run = read_run(constant_run(tmp_path / "a.drift", accepted=2))
    [one] = advise(run).conditions
    assert one.recommendation is Recommendation.needs_costs
    assert one.best_depth is None
    assert one.costs is None
    assert "less than 1.00 of it" in one.statement


def test_a_drafter_over_all_conditions_resamples_prompts(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a.drift", make_records(num_prompts=6)))
    advice = advise(run)
    assert [d.drafter for d in advice.drafters] == ["eagle3", "eagle3.1"]
    own = [c for c in advice.conditions if c.drafter == "eagle3"]
    assert len(own) == 2
    assert advice.drafters[0].num_prompts == 6
    walks = [c for c in condition_walks(run) if c.key[0] == "eagle3"]
    tokens, rounds = (
        sum(getattr(p, name)[1] for c in walks for p in c.prompts.values()) for name in ("num_tokens", "num_rounds")
    )
    assert advice.drafters[0].depths[1].tokens_per_round == pytest.approx(tokens / rounds)


def test_live_runs_are_cut_and_their_own_times_used(tmp_path: Path) -> None:
    run = read_run(constant_run(tmp_path / "a.drift", accepted=2, engine="live"))
    advice = advise(run)
    [one] = advice.conditions
    assert not one.is_exact
    assert any("approximation" in text for text in advice.assumptions)
    assert any("engine live" in text for text in advice.assumptions)
    assert one.costs is not None
    assert one.costs.source == "measured"
    [timed] = timed_rounds(run).values()
    assert timed.num_rounds == one.costs.num_timed_rounds == 6 * 19  # the first of each conversation is left out
    columns = run.rounds(["draft_us", "verify_us", "prompt_id"]).to_pylist()
    kept = [row for row, before in zip(columns[1:], columns, strict=False) if row["prompt_id"] == before["prompt_id"]]
    assert timed.draft_us == pytest.approx(np.median([row["draft_us"] for row in kept]))
    assert timed.verify_us == pytest.approx(np.median([row["verify_us"] for row in kept]))
    assert one.costs.draft_us == pytest.approx([timed.draft_us / 4] * 4)
    assert one.costs.plain_us == pytest.approx(timed.verify_us)


def test_what_is_given_wins_over_what_was_measured() -> None:
    timed = TimedRounds(depth=4, num_rounds=50, draft_us=400, verify_us=1000)
    costs = round_costs(GivenCosts(verify_us=(700.0,), plain_us=650.0), timed, depth=4)
    assert costs is not None
    assert (costs.draft_us, costs.verify_us, costs.plain_us) == ((100,) * 4, (700,) * 4, 650)
    assert costs.source == "measured and given"
    assert costs.round_us(0) == 650
    assert costs.round_us(3) == 1000
    assert round_costs(GivenCosts(draft_us=(1.0,)), None, depth=4) is None


def test_forced_text_has_no_walk(tmp_path: Path) -> None:
    prompt = make_prompt(is_forced=True, text_agreement=0.5)
    run = read_run(write_run(tmp_path / "a.drift", [prompt, make_batch(prompt)]))
    [one] = advise(run, given_costs("10", "100", None)).conditions
    assert one.recommendation is Recommendation.no_walk
    assert one.depths == []


def test_a_run_without_rounds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no rounds"):
        advise(read_run(write_run(tmp_path / "a.drift", [])))


@pytest.mark.parametrize("text", ["", "fast", "0", "-3", "10,,20", "nan", "inf"])
def test_times_that_are_none(text: str) -> None:
    with pytest.raises(InputError, match="is not a time"):
        given_costs(text, None, None)
    with pytest.raises(InputError, match="is not a time"):
        given_costs(None, None, -1.0)


@pytest.mark.parametrize("options", [[], ["--draft-us", "10", "--verify-us", "100", "--plain-us", "90"]])
def test_json_is_as_its_schema_says(options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "a.drift")
    assert main(["advise", str(run), "--json", *options]) == 0
    printed = json.loads(capsys.readouterr().out)
    jsonschema.validate(printed, Advice.model_json_schema(mode="serialization"))
    assert printed["schema_version"] == 1
    assert len(printed["conditions"]) == 4
    assert (printed["conditions"][0]["costs"] is None) == (not options)


def test_the_text_names_the_best_depth_and_the_assumptions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = constant_run(tmp_path / "a.drift", accepted=2)
    assert main(["advise", str(run), "--draft-us", "10", "--verify-us", "100"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Use K = 2: 2.50 times the speed of plain decoding" in printed
    assert "a plain step costs what a verify does" in printed
    assert main(["advise", str(run), "--draft-us", "x"]) == 2
    assert "--draft-us" in capsys.readouterr().err


def test_measured_costs_give_a_speed_for_every_batch_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two drafts accepted at every start: tokens 2, 3, 3, 3. A larger batch makes a verify dearer than a plain step."""
    path = constant_run(tmp_path / "a.drift", accepted=2)
    run = read_run(path)
    name = run.info.drafters[0].name

    def cost(batch_size: int, context_tokens: int, verify_us: list[float], drafter: str = name) -> Cost:
        return Cost(
            drafter=drafter,
            batch_size=batch_size,
            context_tokens=context_tokens,
            draft_us=[20, 10, 10, 10],
            verify_us=verify_us,
            plain_us=100,
            num_repeats=5,
        )

    flat, steep = [100.0] * 4, [200.0, 320.0, 400.0, 500.0]
    costs = [cost(64, 512, steep), cost(1, 512, flat), cost(1, 9000, steep), cost(1, 512, steep, "another")]
    write_info(path, run.info.model_copy(update={"costs": costs}))
    run = read_run(path)
    [one] = advise(run).conditions
    assert [(b.batch_size, b.context_tokens) for b in one.batches] == [(1, 512), (64, 512)]
    assert one.batches[0].speedup == pytest.approx([200 / 120, 300 / 130, 300 / 140, 300 / 150])
    assert one.batches[1].speedup == pytest.approx([200 / 220, 300 / 350, 300 / 440, 300 / 550])
    assert [b.best_depth for b in one.batches] == [2, 1]
    assert [b.recommendation for b in one.batches] == [Recommendation.on, Recommendation.off]
    # without times given, the smallest batch's costs are those of the main table, a plain step's included
    assert [d.speedup for d in one.depths] == one.batches[0].speedup
    assert one.costs is not None
    assert (one.costs.source, one.costs.plain_us, one.costs.num_timed_rounds) == ("measured", 100, None)
    assert "costs what a verify does" not in one.statement
    [given] = advise(run, given_costs("10", "100", None)).conditions
    assert given.depths[1].round_us == 120
    assert given.batches == one.batches
    assert main(["advise", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "Speed-up by batch, 512 tokens of context" in shown
    assert "one request with 512 tokens of context" in shown
