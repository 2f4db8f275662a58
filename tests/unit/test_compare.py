"""compare: known differences, matched conditions, paired prompts, and the metrics of show."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from driftscope.cli.compare_markdown import as_markdown
from driftscope.cli.compare_text import print_comparison
from driftscope.cli.compare_words import N_MEANS
from driftscope.compare import Comparison, MetricDifference, compare
from driftscope.compare.pairing import PairedBy, PromptName, PromptSums, pair, paired_sums
from driftscope.runs import Run, RunInfo, read_run
from driftscope.summary import summarise
from probes.errors import InputError
from probes.record import REGIONS
from tests.synthetic_run import make_batch, make_info, make_prompt, make_records, write_run
from tests.unit.compare_runs import noise, run_info, walk_sums, worse_in, write


def only(comparison: Comparison) -> MetricDifference:
    [cell] = comparison.cells
    [difference] = cell.differences
    return difference


def test_equal_runs_differ_by_nothing(tmp_path: Path) -> None:
    runs = [write(tmp_path / name, contexts=(0, 512)) for name in ("old.drift", "new.drift")]
    comparison = compare(runs)
    assert (comparison.by, comparison.baseline) == (None, "old")
    assert len(comparison.cells) == 2
    for cell in comparison.cells:
        [one] = cell.differences
        assert (one.difference, one.low, one.high, one.p_value, one.is_sure) == (0, 0, 0, 1, False)
        assert one.baseline == one.candidate
        assert one.interval_method == "jackknife_t"
        assert (cell.num_paired, cell.paired_by) == (12, "id_and_turns")
    assert comparison.notes == []


@pytest.mark.parametrize(("num_prompts", "method"), [(12, "jackknife_t"), (24, "bca")])
def test_runs_with_the_same_rate_are_not_distinguishable(tmp_path: Path, num_prompts: int, method: str) -> None:
    first = write(tmp_path / "a.drift", prompts=range(num_prompts))
    second = write(tmp_path / "b.drift", lambda _, p: noise(p, seed=1), prompts=range(num_prompts))
    one = only(compare([first, second]))
    assert one.low is not None
    assert one.high is not None
    assert one.low < 0 < one.high
    assert one.interval_method == method
    assert one.p_value is not None
    assert one.p_value > 0.05


def test_the_difference_is_pooled_over_prompts_that_loop_on_neither_side(tmp_path: Path) -> None:
    accepted = worse_in({("eagle3", "default", 0): 0.4})
    first = write(tmp_path / "a.drift", prompts=range(10), loops=[2])
    second = write(tmp_path / "b.drift", accepted, prompts=range(1, 12), loops=[5])
    comparison = compare([first, second], metrics=["walk.tokens_per_round", "walk_all.tokens_per_round"])
    [cell] = comparison.cells
    assert (cell.num_paired, cell.num_degenerate, cell.num_unpaired) == (9, 2, 3)

    def expected(prompts: Sequence[int]) -> float:
        old = np.array([walk_sums(noise(p)) for p in prompts]).sum(axis=0)
        new = np.array([walk_sums(accepted(("eagle3", "default", 0), p)) for p in prompts]).sum(axis=0)
        return float(new[0] / new[1] - old[0] / old[1])

    kept, everything = cell.differences
    assert kept.difference == pytest.approx(expected([1, 3, 4, 6, 7, 8, 9]))
    assert everything.difference == pytest.approx(expected(range(1, 10)))
    assert (kept.num_prompts, everything.num_prompts) == (7, 9)
    assert kept.relative_difference == pytest.approx(kept.candidate / kept.baseline - 1)  # type: ignore[operator]


def test_text_and_markdown_state_n_and_the_baseline_that_was_used(tmp_path: Path) -> None:
    """The baseline of the pairs is not that of `show`, where the sides do not have the same prompts."""
    first = write(tmp_path / "a.drift", prompts=range(10), loops=[2])
    second = write(tmp_path / "b.drift", worse_in({("eagle3", "default", 0): 0.4}), prompts=range(1, 12), loops=[5])
    comparison = compare([first, second])
    one = only(comparison)
    [alone] = summarise(first).conditions
    assert alone.walk is not None
    assert (one.num_prompts, alone.walk.num_prompts) == (7, 9)
    assert one.baseline is not None
    assert abs(one.baseline - alone.walk.tokens_per_round) > 1e-3  # type: ignore[operator]
    numbers = ["7/9", f"{one.baseline:.3f}", f"{one.candidate:.3f}", f"{one.difference:+.3f}"]
    out = io.StringIO()
    print_comparison(Console(file=out, width=100), comparison)
    row = next(line for line in out.getvalue().splitlines() if "eagle3" in line and "7/9" in line)
    assert [word for word in row.split() if word in numbers] == numbers
    markdown = as_markdown(comparison)
    assert f"| {' | '.join(numbers)} |" in markdown
    for page in (out.getvalue(), markdown):
        assert N_MEANS in " ".join(page.split())
        assert "tokens_per_round" in page
        assert "(walk): candidate - baseline" in page


def test_permuting_prompts_changes_nothing(tmp_path: Path) -> None:
    accepted = worse_in({("eagle3", "default", 0): 0.3})
    old, new = write(tmp_path / "a.drift", prompts=range(24)), write(tmp_path / "b.drift", accepted, prompts=range(24))
    order = np.random.default_rng(3).permutation(24).tolist()
    (tmp_path / "shuffled").mkdir()
    shuffled = write(tmp_path / "shuffled" / "b.drift", accepted, prompts=order)
    assert compare([old, new]).cells == compare([old, shuffled]).cells


METRICS = [
    "tokens_per_round",
    *(f"{rounds}.tokens_per_round{mean}" for rounds in ("walk", "dense", "walk_all") for mean in ("", "_prompt_mean")),
    "dense_all.tokens_per_round",
    "out_of_draft_vocab_share",
    "fusion_share.bias",
    "degenerate_share",
    *(f"{array}@{k}" for array in ("acceptance_marginal", "acceptance_conditional", "chain_gap") for k in (1, 2, 4)),
    *(f"{a}@3" for a in ("hidden_in_norm", "hidden_out_norm", "hidden_feedback_norm", "own_excess", "sink_deficit")),
    *(f"mass.{region}@2" for region in REGIONS),
]


def shown(condition: dict[str, Any], metric: str) -> float | None:
    """The value of a metric in `show --json`."""
    path, _, depth = ("walk." + metric if metric == "tokens_per_round" else metric).partition("@")
    value: Any = condition
    for word in path.split("."):
        value = value[word]
    return value[int(depth) - 1] if depth else value  # type: ignore[no-any-return]


@pytest.mark.parametrize("engine", ["replay", "live"])
def test_metrics_are_those_of_show(tmp_path: Path, engine: str) -> None:
    """Where both sides have the same prompts and the same of them loop, nothing but pairing could differ."""
    records = list(make_records(num_prompts=6, num_loops=1, engine=engine, has_fusion_bias=True))
    run = read_run(write_run(tmp_path / "a.drift", records, make_info(engine=engine)))
    metrics = [m for m in METRICS if engine == "replay" or not m.startswith("dense")]
    comparison = compare([run], by="drafter", metrics=metrics)
    conditions = {(c.drafter, c.system_prompt): c.model_dump() for c in summarise(run).conditions}
    for cell in comparison.cells:
        system = cell.candidate.system_prompt
        for one in cell.differences:
            new, old = (shown(conditions[d, system], one.metric) for d in ("eagle3.1", "eagle3"))
            if new is None or old is None:
                assert one.difference is None
                assert one.reason == "no prompt has it on both sides"
                continue
            if one.num_prompts < cell.num_paired - cell.num_degenerate and "degenerate" not in one.metric:
                assert one.metric in ("acceptance_conditional@4", "chain_gap@4")  # some prompt never gets that far
                continue
            assert one.candidate == pytest.approx(new), one.metric
            assert one.baseline == pytest.approx(old), one.metric
            assert one.difference == pytest.approx(new - old), one.metric


def test_text_agreement_is_weighted_by_tokens(tmp_path: Path) -> None:
    runs = []
    for name, share in (("a.drift", 0.5), ("b.drift", 0.75)):
        records = list(make_records(num_prompts=5, system_prompts=("default",), drafters=("eagle3",)))
        records[::2] = [replace(prompt, text_agreement=share) for prompt in records[::2]]  # type: ignore[type-var]
        runs.append(read_run(write_run(tmp_path / name, records)))
    assert only(compare(runs, metrics=["text_agreement"])).difference == pytest.approx(0.25)


@pytest.mark.parametrize(
    "name",
    [
        "num_prompts",
        "walk.low",
        "walk.num_rounds",
        "acceptance_marginal",
        "acceptance_marginal@0",
        "mass.sinks@1",
        "x",
        "",
    ],
)
def test_what_is_no_metric_is_refused_with_those_that_are(tmp_path: Path, name: str) -> None:
    run = write(tmp_path / "a.drift", drafters=("a", "b"))
    with pytest.raises(InputError) as raised:
        compare([run], by="drafter", metrics=[name])
    assert raised.value.code == "unknown_metric"
    assert "tokens_per_round (over the walk)" in raised.value.remedy


# matching


def keys(comparison: Comparison) -> list[tuple[str, str]]:
    def words(c: Any) -> str:
        return f"{c.run}/{c.drafter}/{c.system_prompt}/{c.context_tokens}"

    return [(words(cell.candidate), words(cell.baseline)) for cell in comparison.cells]


def test_two_checkpoints_of_other_names_are_matched_and_it_is_said(tmp_path: Path) -> None:
    old = write(tmp_path / "old.drift", drafters=("step-1000",), contexts=(0, 512))
    new = write(tmp_path / "new.drift", drafters=("step-2000",), contexts=(0, 512))
    comparison = compare([old, new])
    assert keys(comparison) == [
        ("new/step-2000/default/0", "old/step-1000/default/0"),
        ("new/step-2000/default/512", "old/step-1000/default/512"),
    ]
    assert comparison.notes == ["drafter step-1000 of old is compared with step-2000 of new"]


def test_releases_of_a_system_prompt_are_matched_by_its_name(tmp_path: Path) -> None:
    old = write(tmp_path / "old.drift", system_prompts=("support@7", "billing@3", "greeting@1"))
    new = write(tmp_path / "new.drift", system_prompts=("support@8", "billing@3", "farewell@1"))
    comparison = compare([old, new])
    assert keys(comparison) == [
        ("new/eagle3/support@8/0", "old/eagle3/support@7/0"),
        ("new/eagle3/billing@3/0", "old/eagle3/billing@3/0"),
    ]
    assert [(n.candidate is None, n.reason) for n in comparison.not_compared] == [
        (False, "old has no system_prompt farewell@1, but support@7, billing@3, greeting@1"),
        (True, "new has no system_prompt greeting@1, but support@8, billing@3, farewell@1"),
    ]


def test_context_lengths_are_never_taken_for_each_other(tmp_path: Path) -> None:
    old, new = write(tmp_path / "old.drift", contexts=(0,)), write(tmp_path / "new.drift", contexts=(512,))
    with pytest.raises(InputError, match="old has no context_tokens 512, but 0; new has no context_tokens 0, but 512"):
        compare([old, new])


def test_conditions_that_a_run_has_in_other_combinations(tmp_path: Path) -> None:
    old = write(tmp_path / "old.drift", system_prompts=("a", "b"))
    new = read_run(write_run(tmp_path / "new.drift", _records(("a", 0), ("b", 512)), run_info()))
    assert keys(compare([old, new])) == [("new/eagle3/a/0", "old/eagle3/a/0")]
    more = write(tmp_path / "more.drift", system_prompts=("a", "b"), contexts=(0, 512))
    reasons = [one.reason for one in compare([new, more]).not_compared]
    assert reasons == ["new has each of these, but not together"] * 2


def test_by_compares_inside_a_run(tmp_path: Path) -> None:
    run = write(tmp_path / "a.drift", system_prompts=("v7", "v8", "v9"), contexts=(0, 512))
    comparison = compare([run], by="system_prompt")
    assert comparison.baseline == "v7"
    assert len(comparison.cells) == 4
    assert {c.baseline.system_prompt for c in comparison.cells} == {"v7"}
    of_v9 = compare([run], by="system_prompt", baseline="v9")
    assert {c.candidate.system_prompt for c in of_v9.cells} == {"v7", "v8"}
    by_context = compare([run], by="context", baseline="512")
    assert {(c.candidate.context_tokens, c.baseline.context_tokens) for c in by_context.cells} == {(0, 512)}


def test_by_over_several_runs(tmp_path: Path) -> None:
    old = write(tmp_path / "old.drift", system_prompts=("v7",))
    new = write(tmp_path / "new.drift", system_prompts=("v8", "v9"))
    assert keys(compare([old, new], by="system_prompt")) == [
        ("new/eagle3/v8/0", "old/eagle3/v7/0"),
        ("new/eagle3/v9/0", "old/eagle3/v7/0"),
    ]


def test_a_baseline_run_by_name_and_three_runs(tmp_path: Path) -> None:
    runs = [write(tmp_path / f"{name}.drift") for name in ("a", "b", "c")]
    assert [pair[0].split("/")[0] for pair in keys(compare(runs))] == ["b", "c"]
    assert {pair[1].split("/")[0] for pair in keys(compare(runs, baseline="c"))} == {"c"}
    with pytest.raises(InputError, match="no run 'd'") as raised:
        compare(runs, baseline="d")
    assert "a, b, c" in raised.value.remedy


@pytest.mark.parametrize(
    ("by", "baseline", "message", "remedy"),
    [
        (None, None, "one run is nothing to compare", "--by system_prompt or --by context"),
        ("drafter", None, "one drafter only: eagle3", "compare by what differs"),
        ("system_prompt", "v6", "no system_prompt 'v6'", "v7, v8"),
    ],
)
def test_what_cannot_be_compared_in_one_run(
    tmp_path: Path, by: Any, baseline: str | None, message: str, remedy: str
) -> None:
    run = write(tmp_path / "a.drift", system_prompts=("v7", "v8"), contexts=(0, 512), prompts=range(2))
    with pytest.raises(InputError) as raised:
        compare([run], by=by, baseline=baseline)
    assert message in str(raised.value)
    assert remedy in raised.value.remedy


@pytest.mark.parametrize("by", [None, "drafter"])
def test_runs_without_rounds(tmp_path: Path, by: Any) -> None:
    runs = [read_run(write_run(tmp_path / name, [])) for name in ("a.drift", "b.drift")]
    with pytest.raises(InputError, match="nothing could be compared: no run has rounds"):
        compare(runs, by=by)


# what is never compared, and what is said


def with_info(engine: str = "replay", **changes: Any) -> RunInfo:
    return run_info(engine=engine).model_copy(update=changes)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"temperature": 0.7}, "temperature differs: 0.7 against 0"),
        ({"top_k": 40}, "top_k differs: 40 against 0"),
        ({"top_p": 0.9}, "top_p differs: 0.9 against 1"),
        ({"acceptance_rule": "typical"}, "the acceptance rule differs: 'typical' against 'greedy drafts'"),
    ],
)
def test_other_settings_are_not_compared(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    old, new = write(tmp_path / "old.drift"), write(tmp_path / "new.drift", info=with_info(**changes))
    with pytest.raises(InputError) as raised:
        compare([old, new])
    assert raised.value.code == "nothing_to_compare"
    assert reason in raised.value.message


def test_another_k_is_not_compared(tmp_path: Path) -> None:
    old, new = write(tmp_path / "old.drift"), write(tmp_path / "new.drift", depth=5)
    with pytest.raises(InputError, match="K differs: 5 against 4"):
        compare([old, new])


def test_the_rest_is_compared_and_what_is_not_is_listed(tmp_path: Path) -> None:
    def other_prompts(system: str, number: int) -> list[dict[str, str]]:
        return [{"role": "user", "content": f"{'another' if system == 'b' else 'a'} question {number}"}]

    old = write(tmp_path / "old.drift", system_prompts=("a", "b"))
    new = write(tmp_path / "new.drift", system_prompts=("a", "b"), messages=other_prompts)
    old = write(tmp_path / "older.drift", system_prompts=("a", "b"), messages=lambda _, n: other_prompts("a", n))
    comparison = compare([old, new])
    assert [cell.candidate.system_prompt for cell in comparison.cells] == ["a"]
    [left_out] = comparison.not_compared
    assert left_out.candidate is not None
    assert left_out.candidate.system_prompt == "b"
    assert left_out.reason == "the prompts differ: 12 ids are on both sides, with other messages"


def test_engines_targets_files_and_lengths_that_differ_are_said(tmp_path: Path) -> None:
    first, second = run_info(), run_info(engine="live")
    first.plan, second.plan = {"max_new_tokens": 64}, {"max_new_tokens": 128}
    second.target.name = "another-target"
    for info, sha256 in ((first, "0a"), (second, "0b")):
        info.drafters[0].files_sha256 = {"model.safetensors": sha256}
        info.provenance.template_sha256 = {"default": sha256}
        info.provenance.dtype = f"float{len(info.target.name)}"
    old = write(tmp_path / "old.drift", info=first)
    new = write(tmp_path / "new.drift", info=second, engine="live")
    comparison = compare([old, new], metrics=["tokens_per_round", "dense.tokens_per_round", "chain_gap@2"])
    walk, dense, gap = comparison.cells[0].differences
    assert walk.difference is not None
    assert dense.reason == "new has no dense rounds: engine live"
    assert gap.reason == "dense against walk: never compared"
    said = "; ".join(comparison.notes)
    for part in (
        "different engines: live and replay",
        "different targets: another-target and synthetic-target",
        "different dtypes: float14 and float16",
        "max_new_tokens 128 and 64",
        "drafter eagle3 has other files in new than in old",
        "template default is another text in new than in old",
    ):
        assert part in said


def test_forced_text_has_no_walk_to_compare(tmp_path: Path) -> None:
    runs = [write(tmp_path / name, is_forced=True) for name in ("a.drift", "b.drift")]
    with pytest.raises(InputError, match="no walk") as raised:
        compare(runs)
    assert "--metric dense.tokens_per_round" in raised.value.remedy
    assert only(compare(runs, metrics=["dense.tokens_per_round"])).difference == 0


def test_imports_are_paired_by_id_and_what_they_do_not_say_is_said(tmp_path: Path) -> None:
    def imported(name: str, ids: str) -> Run:
        info = with_info(
            "import",
            has_text=False,
            temperature=None,
            acceptance_rule=f"as the server's: not in the file ({name})",
            notes=["the temperature is not known; --temperature says it"],
        )
        return write(tmp_path / f"{name}.drift", ids=ids, messages=lambda *_: (), engine="import", info=info)

    first, second, other = (
        imported("vllm", "request-{}"),
        imported("sglang", "request-{}"),
        imported("c", "chatcmpl-{}"),
    )
    comparison = compare([first, second])
    assert only(comparison).difference == 0
    assert comparison.cells[0].paired_by == "id"
    said = "; ".join(comparison.notes)
    assert "vllm does not say its temperature and acceptance rule: not checked to be the same" in said
    assert "paired by id alone" in said
    with pytest.raises(InputError, match="no prompt id is on both sides"):
        compare([first, other])


# pairing


def test_pairs_by_id_and_turns() -> None:
    first = [PromptName("b", "2"), PromptName("a", "1"), PromptName("c", "3"), PromptName("d", None)]
    second = [PromptName("a", "1"), PromptName("b", "other"), PromptName("d", "4")]
    found = pair(first, second)
    assert found.pairs == [(first[1], second[0]), (first[3], second[2])]
    assert found.paired_by is PairedBy.id
    assert found.num_other_turns == 1
    assert pair(first[:3], second[:2]).paired_by is PairedBy.id_and_turns


def test_pairs_by_turns_only_where_no_id_fits_and_the_turns_occur_once() -> None:
    first = [PromptName("trace-1", "x"), PromptName("trace-2", "y"), PromptName("trace-3", "y")]
    second = [PromptName("trace-8", "y"), PromptName("trace-9", "x")]
    found = pair(first, second)
    assert found.pairs == [(first[0], second[1])]
    assert found.paired_by is PairedBy.turns
    assert pair([PromptName("a", None)], [PromptName("b", None)]).paired_by is None


def test_sums_stand_side_by_side() -> None:
    first = {PromptName("a", "1"): PromptSums(3, 2), PromptName("b", "2"): PromptSums(9, 4)}
    second = {PromptName("b", "2"): PromptSums(8, 4), PromptName("a", "1"): PromptSums(5, 2)}
    sums = paired_sums(pair(first, second).pairs, first, second)
    assert sums.tolist() == [[3, 9], [2, 4], [5, 8], [2, 4]]


def own_system_turn(system: str, number: int) -> Sequence[Mapping[str, str]]:
    return [{"role": "system", "content": f"You are {system}."}, {"role": "user", "content": f"question {number}"}]


def test_a_prompts_own_system_turn_takes_no_part_in_pairing(tmp_path: Path) -> None:
    """Langfuse's releases: the system turn is in the messages, and it is what was edited."""
    run = write(tmp_path / "a.drift", system_prompts=("support@7", "support@8"), messages=own_system_turn)
    comparison = compare([run], by="system_prompt")
    assert (comparison.cells[0].num_paired, comparison.cells[0].paired_by) == (12, "id_and_turns")
    hashed = write(
        tmp_path / "b.drift",
        system_prompts=("support@7", "support@8"),
        messages=own_system_turn,
        info=run_info(has_text=False),
    )
    with pytest.raises(InputError, match="without stored text a prompt's own system turn counts as part of it"):
        compare([hashed], by="system_prompt")


def test_a_run_with_hashes_pairs_with_one_with_text(tmp_path: Path) -> None:
    text, hashes = write(tmp_path / "a.drift"), write(tmp_path / "b.drift", info=run_info(has_text=False))
    [cell] = compare([text, hashes]).cells
    assert (cell.num_paired, cell.paired_by) == (12, "id_and_turns")


def test_a_cell_is_compared_even_where_the_run_is_incomplete(tmp_path: Path) -> None:
    old = write(tmp_path / "old.drift")
    path = tmp_path / "new.drift"
    with pytest.raises(RuntimeError, match="out of memory"):
        write_run(path, _records(("default", 0)), error=RuntimeError("out of memory"))
    comparison = compare([old, read_run(path)])
    assert comparison.cells[0].num_paired == 3
    assert any(note.startswith("new is failed") for note in comparison.notes)


def _records(*conditions: tuple[str, int]) -> list[Any]:
    """Three prompts under each system prompt and context length."""
    records: list[Any] = []
    for system, context in conditions:
        for number in range(3):
            prompt = make_prompt(f"p{number}", system_prompt=system, context_tokens=context, seed=number)
            records += [prompt, make_batch(prompt, accepted_drafts=noise(number))]
    return records
