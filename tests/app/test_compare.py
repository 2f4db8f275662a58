"""Compare: cells equal the summary, paired differences equal their definition, filters and deep links hold."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from driftscope.runs import read_run
from driftscope.summary import Summary
from tests.app.conftest import OpenApp, chart, charts, checked, condition, texts
from tests.app.varied_run import varied_info, varied_records
from tests.synthetic_run import write_run


def cells(spec: dict[str, Any]) -> dict[tuple[str, str, int], tuple[float, float, float]]:
    """(drafter, system prompt, context tokens) -> value, low, high of a heat map."""
    [trace] = spec["data"]
    found = {}
    for key, *numbers in trace["customdata"]:
        _, drafter, system_prompt, _, context = json.loads(key)
        found[drafter, system_prompt, context] = tuple(numbers)
    return found


def test_every_cell_is_the_summary_s_walk(open_app: OpenApp, summary: Summary) -> None:
    at = open_app("compare")
    for drafter in ("eagle3", "eagle3.1"):
        found = cells(chart(at, f"Heat map of tokens per round (incl. bonus), walk of {drafter},"))
        expected = {
            (c.drafter, c.system_prompt, c.context_tokens): (c.walk.tokens_per_round, c.walk.low, c.walk.high)
            for c in summary.conditions
            if c.drafter == drafter
        }
        assert found == expected


def test_dense_is_another_basis(open_app: OpenApp, summary: Summary) -> None:
    at = open_app("compare", basis="dense")
    found = cells(chart(at, "Heat map of tokens per round (incl. bonus), dense of eagle3,"))
    assert found["eagle3", "persona", 512][0] == condition(summary, "eagle3", "persona", 512).dense.tokens_per_round


def test_maps_that_stand_side_by_side_share_their_colours(open_app: OpenApp) -> None:
    at = open_app("compare")
    color_of: dict[float, str] = {}
    for spec in charts(at).values():
        [trace] = spec["data"]
        for (_, value, *_), color in zip(trace["customdata"], trace["marker"]["color"], strict=True):
            assert color_of.setdefault(value, color) == color
    values = sorted(color_of)
    assert color_of[values[0]] == "#F1F6FB"
    assert color_of[values[-1]] == "#0A3D70"


def walk_tokens(run: Path, drafter: str, system_prompt: str, context: int) -> dict[str, tuple[int, int]]:
    """prompt -> (tokens, rounds) of the walk, looping prompts left out; straight from the files."""
    stored = read_run(run)
    looping = {
        (p["system_prompt"], p["context_tokens"], p["prompt_id"])
        for p in stored.prompts().to_pylist()
        if p["is_degenerate"]
    }
    sums: dict[str, tuple[int, int]] = {}
    for row in stored.rounds().to_pylist():
        if (row["drafter"], row["system_prompt"], row["context_tokens"]) != (drafter, system_prompt, context):
            continue
        if row["on_walk"] and (system_prompt, context, row["prompt_id"]) not in looping:
            tokens, rounds = sums.get(row["prompt_id"], (0, 0))
            sums[row["prompt_id"]] = (tokens + row["accepted_drafts"] + 1, rounds + 1)
    return sums


def pooled_difference(first: dict[str, tuple[int, int]], second: dict[str, tuple[int, int]]) -> float:
    """Pooled tokens per round over the common prompts, first minus second."""
    common = first.keys() & second.keys()
    rates = [sum(s[p][0] for p in common) / sum(s[p][1] for p in common) for s in (first, second)]
    return rates[0] - rates[1]


@pytest.mark.parametrize(
    ("by", "baseline", "cell", "other"),
    [
        ("drafter", "eagle3", ("eagle3.1", "policy", 512), ("eagle3", "policy", 512)),
        ("system_prompt", "default", ("eagle3", "policy", 1536), ("eagle3", "default", 1536)),
        ("context_tokens", "0", ("eagle3.1", "none", 1536), ("eagle3.1", "none", 0)),
    ],
)
def test_a_difference_is_paired_over_the_common_prompts(
    open_app: OpenApp,
    runs: Path,
    by: str,
    baseline: str,
    cell: tuple[str, str, int],
    other: tuple[str, str, int],
) -> None:
    at = open_app("compare", by=by, baseline=baseline)
    found = cells(
        chart(at, f"Heat map of the difference in tokens per round (walk) to {_words(by)} {baseline} of {cell[0]},")
    )
    run = runs / "demo.drift"
    value, low, high = found[cell]
    first, second = walk_tokens(run, *cell), walk_tokens(run, *other)
    assert value == pytest.approx(pooled_difference(first, second))
    assert low < value < high


def test_a_difference_says_from_which_baseline_and_over_how_many_prompts(
    open_app: OpenApp, runs: Path, tmp_path: Path
) -> None:
    """One prompt of `policy` is missing, so that the baseline's own mean is not what the difference was taken from."""
    records = [
        record
        for record in varied_records(drafters=("eagle3",), system_prompts=("default", "policy"), contexts=(0,))
        if record.system_prompt == "default" or record.prompt_id != "p5"
    ]
    run = write_run(tmp_path / "demo.drift", records, varied_info())
    first, second = (walk_tokens(run, "eagle3", name, 0) for name in ("policy", "default"))
    common = first.keys() & second.keys()
    assert len(common) == len(second) - 1
    baseline = sum(second[p][0] for p in common) / sum(second[p][1] for p in common)
    own = sum(s[0] for s in second.values()) / sum(s[1] for s in second.values())
    assert f"{own:.2f}" != f"{baseline:.2f}"
    at = open_app("compare", folder=tmp_path, by="system_prompt", baseline="default")
    [(alt, spec)] = charts(at).items()
    [trace] = spec["data"]
    texts_of = {json.loads(data[0])[2]: text for data, text in zip(trace["customdata"], trace["text"], strict=True)}
    hovers = {json.loads(data[0])[2]: text for data, text in zip(trace["customdata"], trace["hovertext"], strict=True)}
    assert f"from {baseline:.2f}, n = {len(common)}" in texts_of["policy"]
    assert f"⚑ {own:.2f}" in texts_of["default"]
    assert f"n = {len(second)}" in texts_of["default"]
    assert (
        f"{baseline + pooled_difference(first, second):.2f} - {baseline:.2f}, over the same prompts" in hovers["policy"]
    )
    assert f"{own:.2f} over all of its prompts" in hovers["default"]
    assert f"from {baseline:.2f} over {len(common)} common prompts" in alt
    row = at.dataframe[0].value.set_index("system prompt").loc["policy"]
    assert (row["from baseline"], row["common prompts"]) == (pytest.approx(baseline), len(common))
    assert row["tokens per round (walk)"] == pytest.approx(
        sum(s[0] for s in first.values()) / sum(s[1] for s in first.values())
    )


def _words(by: str) -> str:
    return {"drafter": "drafter", "system_prompt": "system prompt", "context_tokens": "context length"}[by]


def test_not_distinguishable_says_so_where_the_interval_holds_zero(open_app: OpenApp) -> None:
    at = open_app("compare", by="system_prompt", baseline="default")
    table = at.dataframe[0].value
    seen = set()
    for row in table.to_dict("records"):
        if row["verdict"] == "baseline":
            assert row["system prompt"] == "default"
            continue
        holds_zero = row["diff. low"] <= 0 <= row["diff. high"]
        expected = "not distinguishable" if holds_zero else "higher" if row["difference"] > 0 else "lower"
        assert row["verdict"] == expected
        seen.add(expected)
    assert "not distinguishable" in seen
    assert "lower" in open_app("compare", by="context_tokens", baseline="0").dataframe[0].value["verdict"].tolist()
    num = (table["verdict"] == "not distinguishable").sum()
    assert f"**{num}** not distinguishable" in texts(at)


def test_filters_narrow_the_maps_and_stand_in_the_url(open_app: OpenApp) -> None:
    at = open_app("compare")
    at.sidebar.button_group(key="pick_system_prompt").set_value(["policy", "none"])
    at.sidebar.button_group(key="pick_context_tokens").set_value(["512"])
    checked(at.run())
    for spec in charts(at).values():
        assert {(s, c) for _, s, c in cells(spec)} == {("policy", 512), ("none", 512)}
    assert at.query_params["system_prompt"] == ["policy", "none"]
    assert at.query_params["context_tokens"] == "512"


def test_a_link_opens_the_same_view(open_app: OpenApp) -> None:
    at = open_app(
        "compare", run="demo", drafter="eagle3.1", system_prompt=["persona"], by="context_tokens", baseline="512"
    )
    assert at.sidebar.button_group(key="pick_drafter").value == ["eagle3.1"]
    [(alt, spec)] = charts(at).items()
    assert alt.startswith("Heat map of the difference in tokens per round (walk) to context length 512 of eagle3.1")
    assert set(cells(spec)) == {("eagle3.1", "persona", c) for c in (0, 512, 1536)}


def test_a_link_with_unknown_values_falls_back(open_app: OpenApp) -> None:
    at = open_app("compare", run="../../etc", drafter="nobody", by="colour", basis="sideways")
    assert at.sidebar.multiselect(key="pick_run").value == []
    assert len(charts(at)) == 2
    assert at.query_params["basis"] == "walk"


def test_moving_to_another_page_and_back_keeps_the_choice(open_app: OpenApp) -> None:
    at = open_app("compare", by="drafter", baseline="eagle3.1", context_tokens=["0"])
    at.query_params.clear()  # as a click in the navigation does
    at.switch_page("views/depth.py")
    checked(at.run())
    assert at.query_params["context_tokens"] == "0"
    at.query_params.clear()
    at.switch_page("views/compare.py")
    checked(at.run())
    assert at.query_params["baseline"] == "eagle3.1"


def test_two_runs_are_compared_and_different_settings_are_named(open_app: OpenApp) -> None:
    at = open_app("compare", run=["demo", "older"], by="run", baseline="demo")
    series = {alt.split(" of ")[-1].split(",")[0] for alt in charts(at)}
    assert series == {"eagle3 · demo", "eagle3.1 · demo", "eagle3 · older", "eagle3.1 · older"}
    # the older run has other responses to the same user turns: paired by prompt
    assert "not distinguishable" in " ".join(at.dataframe[0].value["verdict"])


def test_runs_of_other_settings_are_not_compared_and_the_reason_is_said(
    open_app: OpenApp, tmp_path: Path, runs: Path
) -> None:
    for name, temperature in (("demo", 0.0), ("warm", 0.7)):
        path = shutil.copytree(runs / "demo.drift", tmp_path / f"{name}.drift") / "run.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"temperature": temperature}))
    at = open_app("compare", folder=tmp_path, run=["demo", "warm"], by="run", baseline="demo")
    [warning] = at.warning
    said = warning.value.replace("\\", "")
    assert said.startswith("warm is not compared with demo: temperature differs: 0.7 against 0.")
    assert not any("difference" in alt for alt in charts(at))
    table = at.dataframe[0].value
    assert set(table["verdict"][table["run"] == "warm"]) == {"not compared"}
    assert table["difference"][table["run"] == "warm"].isna().all()


def test_a_row_of_the_table_leads_to_its_rounds(open_app: OpenApp) -> None:
    at = open_app("compare")
    button = next(b for b in at.button if "row" in b.label)
    assert button.disabled  # nothing chosen yet


def test_the_alt_text_holds_the_numbers(open_app: OpenApp, summary: Summary) -> None:
    at = open_app("compare")
    c = condition(summary, "eagle3", "policy", 1536).walk
    alt = next(alt for alt in charts(at) if "of eagle3," in alt)
    assert f"policy, 1,536: {c.tokens_per_round:.2f} [{c.low:.2f}, {c.high:.2f}]" in alt
