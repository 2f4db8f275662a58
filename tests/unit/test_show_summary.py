"""The summary of `show --json`: the contract's names, known answers, what is left out, null instead of NaN."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from driftscope.cli.show_text import print_summary
from driftscope.quantities import OVER_DEPTH
from driftscope.runs import RunWriter, read_run
from driftscope.summary import ConditionSummary, Summary, summarise, summary_table, write_summary
from probes.record import REGIONS, PromptRecord, Record, RoundBatch
from tests.acceptance_oracle import acceptance_counts, tokens_per_round
from tests.synthetic_run import make_batch, make_info, make_prompt, make_records, write_run

CONTRACT = {
    "drafter",
    "system_prompt",
    "template",
    "context_tokens",
    "num_prompts",
    "num_degenerate",
    "dense",
    "walk",
    "dense_all",
    "walk_all",
    "acceptance_marginal",
    "acceptance_conditional",
    "hidden_in_norm",
    "hidden_out_norm",
    "hidden_feedback_norm",
    "mass",
    "own_excess",
    "sink_deficit",
    "chain_gap",
    "fusion_share",
    "out_of_draft_vocab_share",
    "degenerate_share",
    "text_agreement",
    "depth_basis",
}


def _summary(path: Path, records: Iterator[Record] | list[Record], **info: Any) -> Summary:
    return summarise(read_run(write_run(path, iter(records), make_info(**info))))


def _scalars(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _scalars(item)
    else:
        yield value


def test_names_are_the_contract(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a.drift")
    output = json.loads(summarise(read_run(path)).model_dump_json())
    assert output["schema_version"] == 1
    assert output["run"] == {"path": str(path), "status": "complete", "engine": "replay"}
    assert set(output) == {"schema_version", "run", "conditions", "without_rounds"}
    assert len(output["conditions"]) == 4
    for condition in output["conditions"]:
        assert set(condition) >= CONTRACT
        for name in ("dense", "walk", "dense_all", "walk_all"):
            assert set(condition[name]) == {
                "num_rounds",
                "num_prompts",
                "num_prompts_without_rounds",
                "tokens_per_round",
                "tokens_per_round_prompt_mean",
                "low",
                "high",
                "interval_method",
                "why_no_interval",
            }
        assert set(condition["fusion_share"]) == {"layer_ids", "share", "bias"}
        assert condition["fusion_share"]["layer_ids"] == [2, 15, 27]
        assert set(condition["mass"]) == set(REGIONS)
        arrays = [condition[name] for name in CONTRACT if isinstance(condition[name], list)]
        assert {len(array) for array in [*arrays, *condition["mass"].values()]} == {4}


def test_known_answer_of_pooled_and_prompt_means(tmp_path: Path) -> None:
    """100 rounds at 1.5 and 5 rounds at 4.0 tokens: 1.619 pooled, 2.75 as the mean of the prompts."""
    records: list[Record] = []
    for prompt_id, accepted in (("long", np.tile([0, 1], 50)), ("short", np.full(5, 3))):
        prompt = make_prompt(prompt_id, num_response_tokens=int((accepted + 1).sum()) + 1)
        records += [prompt, make_batch(prompt, engine="vllm", accepted_drafts=accepted)]
    [condition] = _summary(tmp_path / "a.drift", records, engine="vllm").conditions
    assert condition.dense is None
    assert condition.dense_all is None
    assert condition.depth_basis == "walk"
    assert condition.walk is not None
    assert condition.walk.num_rounds == 105
    assert condition.walk.tokens_per_round == pytest.approx((150 + 20) / 105)
    assert condition.walk.tokens_per_round_prompt_mean == pytest.approx(2.75)
    assert (condition.walk.low, condition.walk.high, condition.walk.interval_method) == (None, None, None)
    assert condition.acceptance_marginal == pytest.approx([55 / 105, 5 / 105, 5 / 105, 0.0])
    assert condition.acceptance_conditional == pytest.approx([55 / 105, 5 / 55, 1.0, 0.0])


def test_everything_against_numpy(tmp_path: Path) -> None:
    """Two layers, degenerate prompts, starts without labels: each mean again from the records."""
    records = list(
        make_records(num_prompts=7, system_prompts=("default",), num_loops=2, num_layers=2, has_labels_share=0.9)
    )
    conditions = _summary(tmp_path / "a.drift", records).conditions
    assert [c.drafter for c in conditions] == ["eagle3", "eagle3.1"]
    for condition in conditions:
        batches = [b for b in records if isinstance(b, RoundBatch) and b.drafter == condition.drafter]
        assert (condition.num_prompts, condition.num_degenerate) == (7, 2)
        assert condition.degenerate_share == pytest.approx(2 / 7)
        kept = batches[2:]
        assert condition.dense is not None
        assert condition.walk is not None
        assert condition.walk_all is not None
        assert condition.dense_all is not None

        def of(name: str, batches: list[RoundBatch] = kept, where: str = "has_all_labels") -> np.ndarray:
            return np.concatenate([getattr(b, name)[getattr(b, where)] for b in batches])

        accepted = of("accepted_drafts")
        assert condition.dense.num_rounds == len(accepted)
        assert condition.num_rounds_without_labels == 5 * 29 - len(accepted) == 15
        assert condition.dense.tokens_per_round == pytest.approx(tokens_per_round(accepted))
        assert condition.dense_all.tokens_per_round == pytest.approx(tokens_per_round(of("accepted_drafts", batches)))
        assert condition.walk.tokens_per_round == pytest.approx(
            tokens_per_round(of("accepted_drafts", kept, "on_walk"))
        )
        assert condition.walk_all.tokens_per_round == pytest.approx(
            tokens_per_round(of("accepted_drafts", batches, "on_walk"))
        )
        counts = acceptance_counts(of("num_drafts"), accepted, depth=4)
        assert condition.acceptance_marginal == counts.marginal()
        assert condition.acceptance_conditional == counts.conditional()
        assert condition.hidden_in_norm == pytest.approx(of("hidden_in_norm")[:, :, 0].mean(axis=0), rel=1e-5)
        assert condition.hidden_out_norm == pytest.approx(of("hidden_out_norm")[:, :, 1].mean(axis=0), rel=1e-5)
        assert condition.hidden_feedback_norm == pytest.approx(of("hidden_feedback_norm").mean(axis=0), rel=1e-5)
        growth = condition.hidden_in_norm_growth
        assert growth == pytest.approx([n / condition.hidden_in_norm[0] for n in condition.hidden_in_norm])  # type: ignore[operator]
        for name in ("own_excess", "sink_deficit"):
            assert getattr(condition, name) == pytest.approx(of(name).mean(axis=(0, 2, 3)), rel=1e-5)
        for region in REGIONS:
            mass = np.concatenate([b.mass[region][b.has_all_labels] for b in kept])
            assert condition.mass[region] == pytest.approx(mass.mean(axis=(0, 2, 3)), rel=1e-5)
        assert sum(mass[1] or 0.0 for mass in condition.mass.values()) == pytest.approx(1.0, abs=1e-5)
        assert condition.fusion_share.share == pytest.approx(of("fusion_share").mean(axis=0), rel=1e-5)
        assert condition.fusion_share.bias is None
        for k in range(4):
            is_alive = accepted >= k
            right = of("fresh_right")[is_alive, k].mean() - (accepted[is_alive] > k).mean()
            assert condition.chain_gap[k] == pytest.approx(right)
        assert condition.chain_gap[0] == 0.0
        reasons = of("rejection_reason")[:, 0]
        assert condition.out_of_draft_vocab_share == pytest.approx((reasons == 2).mean())
        assert condition.text_agreement is None


def test_each_array_has_intervals_around_it(tmp_path: Path) -> None:
    [condition, _] = _summary(tmp_path / "a.drift", make_records(num_prompts=8, system_prompts=("default",))).conditions
    assert set(condition.depth_intervals) == {q.name for q in OVER_DEPTH.values() if q.has_interval}
    assert len(condition.depth_intervals) > 10
    for name, intervals in condition.depth_intervals.items():
        region = name.removeprefix("mass_")
        for value, low, high, method in zip(
            condition.mass[region] if region != name else getattr(condition, name),
            intervals.low,
            intervals.high,
            intervals.interval_method,
            strict=True,
        ):
            assert method == "jackknife_t"
            assert low <= value <= high, name
    assert condition.depth_intervals["chain_gap"].high[0] == 0.0
    assert condition.depth_intervals["hidden_in_norm_growth"].low[0] == 1.0


def test_chain_gap_uses_the_positions_where_both_are_known(tmp_path: Path) -> None:
    prompt = make_prompt(num_response_tokens=6)
    batch = make_batch(prompt, depth=2, accepted_drafts=np.array([2, 1, 1, 0, 2]))
    fresh = np.array([[1, 1], [1, 1], [1, -1], [0, 1], [1, 0]], dtype=np.int8)
    object.__setattr__(batch, "fresh_right", fresh)
    [condition] = _summary(tmp_path / "a.drift", [prompt, batch]).conditions
    # depth 2, alive: rounds 0, 1, 2, 4; fresh known in 0, 1, 4: right 2 of 3, accepted 2 of 3
    assert condition.chain_gap == pytest.approx([0.0, 2 / 3 - 2 / 3])
    object.__setattr__(batch, "fresh_right", np.where(fresh == 0, 1, fresh).astype(np.int8))
    [condition] = _summary(tmp_path / "b.drift", [prompt, batch]).conditions
    assert condition.chain_gap == pytest.approx([0.0, 1 - 2 / 3])


def test_forced_text_has_no_walk(tmp_path: Path) -> None:
    records: list[Record] = []
    for prompt_id, agreement, num_tokens in (("p0", 0.9, 30), ("p1", 0.5, 10)):
        prompt = make_prompt(prompt_id, is_forced=True, text_agreement=agreement, num_response_tokens=num_tokens)
        records += [prompt, make_batch(prompt)]
    [condition] = _summary(tmp_path / "a.drift", records).conditions
    assert condition.walk is None
    assert condition.walk_all is None
    assert condition.dense is not None
    assert condition.depth_basis == "dense"
    assert condition.text_agreement == pytest.approx((0.9 * 30 + 0.5 * 10) / 40)


def test_live_run_with_some_forced_text_does_not_mix(tmp_path: Path) -> None:
    """Forced text is replayed in a live run too: it has no part in a walk nor in arrays over it."""
    live, forced = make_prompt("p0"), make_prompt("p1", is_forced=True, text_agreement=0.5)
    batch = make_batch(live, engine="live")
    [condition] = _summary(tmp_path / "a.drift", [live, batch, forced, make_batch(forced)], engine="live").conditions
    [alone] = _summary(tmp_path / "b.drift", [live, batch], engine="live").conditions
    assert (condition.num_prompts, condition.dense, condition.depth_basis) == (2, None, "walk")
    assert condition.walk is not None
    assert alone.walk is not None
    counts = ("num_prompts_without_rounds", "why_no_interval")
    assert condition.walk.model_dump(exclude=set(counts)) == alone.walk.model_dump(exclude=set(counts))
    assert [getattr(condition.walk, name) for name in counts] == [
        1,
        "1 prompt has a round (of 2: 1 without a round); an interval needs 5",
    ]
    assert [getattr(alone.walk, name) for name in counts] == [0, "1 prompt has a round; an interval needs 5"]
    for name in ("acceptance_marginal", "acceptance_conditional", "hidden_in_norm", "mass", "chain_gap"):
        assert getattr(condition, name) == getattr(alone, name)
    assert condition.text_agreement == 0.5


def test_walk_counts_each_emitted_token_once_for_the_vocabulary(tmp_path: Path) -> None:
    prompt = make_prompt(num_response_tokens=40)
    batch = make_batch(prompt, engine="live", depth=3)
    [condition] = _summary(tmp_path / "a.drift", [prompt, batch], engine="live").conditions
    compared = np.minimum(batch.accepted_drafts + 1, 3).sum()
    assert condition.out_of_draft_vocab_share == pytest.approx((batch.rejection_reason == 2).sum() / compared)


def test_nothing_measured_is_null_everywhere(tmp_path: Path) -> None:
    prompt = make_prompt()
    batch = make_batch(prompt, has_attention=False, depth=3, accepted_drafts=np.zeros(29, int))
    for name in ("hidden_in_norm", "hidden_out_norm", "hidden_feedback_norm", "fusion_share", "fresh_right"):
        object.__setattr__(batch, name, None)
    summary = _summary(tmp_path / "a.drift", [prompt, batch], depth=3)
    text = summary.model_dump_json()
    [condition] = json.loads(text)["conditions"]
    assert "NaN" not in text
    assert "Infinity" not in text
    for name in (
        "hidden_in_norm",
        "hidden_out_norm",
        "hidden_feedback_norm",
        "own_excess",
        "sink_deficit",
        "chain_gap",
    ):
        assert condition[name] == [None, None, None]
    assert condition["mass"] == {region: [None] * 3 for region in REGIONS}
    assert condition["fusion_share"] == {"layer_ids": [2, 15, 27], "share": None, "bias": None}
    assert condition["acceptance_marginal"] == [0.0, 0.0, 0.0]
    assert condition["acceptance_conditional"] == [0.0, None, None]


def test_n_is_the_prompts_that_have_a_round(tmp_path: Path) -> None:
    """Ten prompts: two are too short for a round, two loop, one has no start with all K labels."""
    records: list[Record] = []
    for number, num_tokens in enumerate((0, 1, 30, 30, 3, 20, 20, 20, 20, 20)):
        prompt = make_prompt(f"p{number}", num_response_tokens=num_tokens, is_loop=number in (2, 3))
        records += [prompt] if num_tokens < 2 else [prompt, make_batch(prompt, has_labels_share=float(number != 4))]
    for number in range(3):
        records.append(make_prompt(f"p{number}", system_prompt="short", num_response_tokens=1))
    summary = _summary(tmp_path / "a.drift", records)
    [condition] = summary.conditions
    assert (condition.num_prompts, condition.num_degenerate, condition.num_prompts_without_rounds) == (10, 2, 2)
    for name, num_prompts, num_without in (("walk", 6, 2), ("dense", 5, 3), ("walk_all", 8, 2), ("dense_all", 7, 3)):
        tokens = getattr(condition, name)
        assert (name, tokens.num_prompts, tokens.num_prompts_without_rounds) == (name, num_prompts, num_without)
        assert (tokens.interval_method, tokens.why_no_interval) == ("jackknife_t", None)
    acceptance = condition.depth_intervals["acceptance_conditional"]
    assert acceptance.num_prompts[0] == 5
    assert sorted(acceptance.num_prompts, reverse=True) == acceptance.num_prompts
    for num_prompts, method in zip(acceptance.num_prompts, acceptance.interval_method, strict=True):
        assert (method is None) == (num_prompts < 5)
    assert [one.model_dump() for one in summary.without_rounds] == [
        {"system_prompt": "short", "template": "default", "context_tokens": 0, "num_prompts": 3}
    ]


def test_why_an_interval_is_missing(tmp_path: Path) -> None:
    """Eight prompts of which three count: the other five are enough for an interval, if one counts them."""
    records: list[Record] = []
    for number in range(8):
        prompt = make_prompt(f"p{number}", num_response_tokens=1 if number < 4 else 30, is_loop=number == 4)
        records += [prompt] if number < 4 else [prompt, make_batch(prompt)]
    path = write_run(tmp_path / "a.drift", iter(records), make_info())
    [condition] = summarise(read_run(path)).conditions
    assert condition.walk is not None
    assert (condition.walk.num_prompts, condition.walk.low) == (3, None)
    why = "3 prompts have a round (of 8: 4 without a round, 1 looping); an interval needs 5"
    assert condition.walk.why_no_interval == why
    out = io.StringIO()
    print_summary(Console(file=out, width=100), read_run(path), summarise(read_run(path)))
    words = " ".join(out.getvalue().split())
    assert re.search(r"default 0 eagle3 3/8 \d\.\d\d - \d\.\d\d", words)
    assert "n/m: n of m prompts; the others loop or have no round." in words
    assert "4 of 8 prompt x drafter batches have no walk round" in words
    assert (
        f"! 1 condition has fewer than 5 prompts: no interval can be given. eagle3, default, context 0: {why}." in words
    )


def test_a_condition_without_any_round_is_named(tmp_path: Path) -> None:
    records = [make_prompt(f"p{number}", num_response_tokens=number % 2) for number in range(4)]
    path = write_run(tmp_path / "a.drift", iter(records), make_info())
    out = io.StringIO()
    print_summary(Console(file=out, width=100), read_run(path), summarise(read_run(path)))
    words = " ".join(out.getvalue().split())
    assert "No rounds are stored yet." in words
    assert "! default, context 0 has no row: none of its 4 prompts has a round." in words


def test_only_degenerate_prompts(tmp_path: Path) -> None:
    [condition, _] = _summary(
        tmp_path / "a.drift", make_records(num_prompts=2, num_loops=2, system_prompts=("default",))
    ).conditions
    assert condition.degenerate_share == 1.0
    assert condition.dense is not None
    assert condition.dense_all is not None
    assert (condition.dense.num_rounds, condition.dense.tokens_per_round) == (0, None)
    assert condition.dense_all.num_rounds == 58
    assert condition.hidden_in_norm == [None] * 4


def test_empty_run(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "a.drift", make_info()):
        pass
    assert summarise(read_run(tmp_path / "a.drift")).conditions == []


def test_drafters_of_different_depth_and_layers(tmp_path: Path) -> None:
    records: list[Record] = []
    for number in range(2):
        prompt = make_prompt(f"p{number}")
        records += [prompt, make_batch(prompt, depth=2), make_batch(prompt, drafter="eagle3.1", depth=5, num_layers=3)]
    first, second = _summary(tmp_path / "a.drift", records, depth=5).conditions
    assert (len(first.hidden_in_norm), len(second.hidden_in_norm)) == (2, 5)
    assert None not in first.hidden_out_norm + second.hidden_out_norm
    assert (first.dense.num_rounds, second.dense.num_rounds) == (58, 58)  # type: ignore[union-attr]


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.permutations(range(6)))
def test_order_of_prompts_changes_nothing(tmp_path: Path, order: list[int]) -> None:
    def numbers(summary: Summary) -> list[float]:
        return [v for v in _scalars(summary.model_dump()["conditions"]) if isinstance(v, float)]

    pairs: list[list[Record]] = []
    for record in make_records(num_prompts=6, system_prompts=("default",), drafters=("eagle3",), num_loops=1):
        if isinstance(record, PromptRecord):
            pairs.append([])
        pairs[-1].append(record)
    results = []
    for run_order in (range(6), order):
        path = tmp_path / "a.drift"
        with RunWriter(path, make_info(), overwrite=path.exists()) as writer:
            for number in run_order:
                for record in pairs[number]:
                    writer.write_batch(record)
        results.append(numbers(summarise(read_run(path))))
    assert results[0] == pytest.approx(results[1], rel=1e-9)


def test_summary_table_holds_every_number(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a.drift"))
    summary = summarise(run)
    write_summary(run, summary)
    table = pq.read_table(run.path / "summary.parquet")
    assert table.num_rows == summary_table(summary).num_rows

    def value(condition: ConditionSummary, metric: str, **where: object) -> dict[str, Any]:
        mask = pc.equal(table["metric"], metric)
        where |= condition.model_dump(include={"drafter", "system_prompt", "template", "context_tokens"})
        for name, wanted in where.items():
            mask = pc.and_(mask, pc.equal(table[name], wanted))
        [row] = table.filter(mask).to_pylist()
        return row

    for condition in summary.conditions:
        assert condition.walk is not None
        row = value(condition, "tokens_per_round", basis="walk")
        assert (row["value"], row["low"]) == (condition.walk.tokens_per_round, condition.walk.low)
        row = value(condition, "chain_gap", depth=2)
        assert row["value"] == condition.chain_gap[1]
        assert row["high"] == condition.depth_intervals["chain_gap"].high[1]
        assert value(condition, "mass_sink", depth=1)["value"] == condition.mass["sink"][0]
        assert value(condition, "fusion_share", aux_layer_id=15)["value"] == condition.fusion_share.share[1]  # type: ignore[index]
        assert value(condition, "num_prompts")["value"] == 6
        assert value(condition, "num_prompts_with_rounds", basis="dense")["value"] == condition.dense.num_prompts  # type: ignore[union-attr]
    assert not any(math.isnan(v) for v in table["value"].to_pylist() if v is not None)
