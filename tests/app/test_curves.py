"""Depth, Context, Heads and Fusion: what is drawn equals the run's numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from driftscope.quantities import DEPTH_CHARTS, OVER_DEPTH
from driftscope.runs import read_run
from driftscope.stats.intervals import ratio_intervals
from driftscope.summary import Summary
from tests.app.conftest import OpenApp, chart, charts, checked, condition, lines, texts


def test_every_depth_chart_is_the_summary_s_array_with_its_interval(open_app: OpenApp, summary: Summary) -> None:
    at = open_app("depth", place="policy · 512")
    for quantity in (q for quantities in DEPTH_CHARTS.values() for q in quantities):
        name = quantity.name
        drawn = lines(chart(at, f"Line chart, {quantity.title} against depth k"))
        for drafter in ("eagle3", "eagle3.1"):
            c = condition(summary, drafter, "policy", 512)
            expected = [(k + 1, v) for k, v in enumerate(c.over_depth(name)) if v is not None]
            assert list(zip(drawn[drafter]["x"], drawn[drafter]["y"], strict=True)) == expected
            interval = c.depth_intervals[name]  # every curve has one
            ends = [[low, high] for low, high in zip(interval.low, interval.high, strict=True)]
            assert drawn[drafter]["customdata"] == ends[: len(expected)]
            if not name.startswith(("acceptance", "chain")):  # deep down these have too few prompts
                assert all(low is not None for low, _ in ends), name


def test_a_drafter_has_the_same_colour_and_marker_in_every_chart(open_app: OpenApp) -> None:
    styles: dict[str, set[tuple[str, str]]] = {}
    for page in ("depth", "context"):
        for spec in charts(open_app(page)).values():
            for name, trace in lines(spec).items():
                styles.setdefault(name, set()).add((trace["line"]["color"], trace["marker"]["symbol"]))
    dots = lines(chart(open_app("overview"), "Dot chart"))
    for name, trace in dots.items():
        styles[name].add((trace["marker"]["color"], trace["marker"]["symbol"]))
    assert {name: len(found) for name, found in styles.items()} == {"eagle3": 1, "eagle3.1": 1}
    assert not styles["eagle3"] & styles["eagle3.1"]


def test_conditions_of_one_drafter_differ_by_dash(open_app: OpenApp) -> None:
    at = open_app("depth", place=["default · 0", "policy · 0"])
    drawn = lines(chart(at, "Line chart, Conditional acceptance"))
    dashes = {trace["line"]["dash"] for name, trace in drawn.items() if name.startswith("eagle3,")}
    assert len(dashes) == 2


def test_context_curves_are_the_summary(open_app: OpenApp, summary: Summary) -> None:
    at = open_app("context", row="persona", depth="2")
    drawn = lines(chart(at, "Line chart, tokens per round (walk) against context length"))
    deep = lines(chart(at, "Line chart, Conditional acceptance at depth 2"))
    for quantity in (q for q in OVER_DEPTH.values() if q.is_over_context):
        drawn_at_2 = lines(chart(at, f"Line chart, {quantity.title} at depth 2"))["eagle3"]["y"]
        values = [condition(summary, "eagle3", "persona", c).over_depth(quantity.name)[1] for c in (0, 512, 1536)]
        assert drawn_at_2 == values
    for drafter in ("eagle3", "eagle3.1"):
        at_context = [condition(summary, drafter, "persona", c) for c in (0, 512, 1536)]
        assert drawn[drafter]["x"] == [0, 512, 1536]
        assert drawn[drafter]["y"] == [c.walk.tokens_per_round for c in at_context]
        assert drawn[drafter]["customdata"] == [[c.walk.low, c.walk.high] for c in at_context]
        assert deep[drafter]["y"] == [c.acceptance_conditional[1] for c in at_context]


def test_one_context_length_is_explained(open_app: OpenApp) -> None:
    at = open_app("context", context_tokens=["512"])
    assert "Only one context length (512 tokens)" in str(at.info[0].value)
    assert not charts(at)


def test_heads_are_means_over_the_dense_rounds(open_app: OpenApp, runs: Path) -> None:
    at = open_app("heads", head_place="none · 512", head_metric="sink_deficit")
    found = chart(at, "Heat map of Sink deficit of eagle3 by head")["data"][0]["z"]
    run = read_run(runs / "demo.drift")
    looping = {p["prompt_id"] for p in run.prompts().to_pylist() if p["is_degenerate"]}
    sums: dict[int, list[np.ndarray]] = {}
    for row in run.depths().to_pylist():
        key = (row["drafter"], row["system_prompt"], row["context_tokens"])
        if key == ("eagle3", "none", 512) and row["has_all_labels"] and row["prompt_id"] not in looping:
            sums.setdefault(row["depth"], []).append(np.array(row["sink_deficit"], dtype=np.float64))
    expected = np.stack([np.mean(sums[k], axis=0) for k in sorted(sums)], axis=1)  # [head, depth]
    np.testing.assert_allclose(np.array(found, dtype=float), expected, rtol=1e-9)


def test_region_bars_are_the_summary_and_sum_to_one(open_app: OpenApp, summary: Summary) -> None:
    at = open_app("heads")
    bars = chart(at, "Stacked bars of the attention probability of eagle3.1")["data"]
    masses = condition(summary, "eagle3.1").mass
    for trace in bars:
        assert trace["y"] == masses[trace["name"]]
    np.testing.assert_allclose(np.sum([trace["y"] for trace in bars], axis=0), 1.0, atol=1e-3)
    assert "tools" not in {trace["name"] for trace in bars}  # always 0 in this run


def test_another_quantity_by_head(open_app: OpenApp) -> None:
    at = open_app("heads")
    at.selectbox(key="pick_head_metric").set_value("mass_sink")
    checked(at.run())
    assert chart(at, "Heat map of Sink mass of eagle3 by head")
    assert at.query_params["head_metric"] == "mass_sink"


def test_fusion_bars_are_the_run_s_shares_with_intervals(open_app: OpenApp, runs: Path, summary: Summary) -> None:
    at = open_app("fusion", place="persona · 1,536")
    specs = [s for alt, s in charts(at).items() if alt.startswith("Bars of the signed share")]
    [trace] = specs[0]["data"]
    c = condition(summary, "eagle3", "persona", 1536)
    assert trace["x"] == ["2", "15", "27"]
    assert trace["y"] == pytest.approx(c.fusion_share.share)
    run = read_run(runs / "demo.drift")
    looping = {p["prompt_id"] for p in run.prompts().to_pylist() if p["is_degenerate"]}
    total: dict[str, np.ndarray] = {}
    count: dict[str, int] = {}
    for row in run.rounds().to_pylist():
        key = (row["drafter"], row["system_prompt"], row["context_tokens"])
        if key == ("eagle3", "persona", 1536) and row["has_all_labels"] and row["prompt_id"] not in looping:
            total[row["prompt_id"]] = total.get(row["prompt_id"], 0) + np.array(row["fusion_share"])
            count[row["prompt_id"]] = count.get(row["prompt_id"], 0) + 1
    prompts = sorted(total)
    intervals = ratio_intervals(
        np.stack([total[p] for p in prompts], axis=1), np.tile([count[p] for p in prompts], (3, 1))
    )
    assert [low for low, _ in trace["customdata"]] == pytest.approx([i.low for i in intervals])


def test_fusion_energy_and_norm_are_other_columns(open_app: OpenApp) -> None:
    at = open_app("fusion", fusion="aux_norm")
    [first, *_] = [spec for alt, spec in charts(at).items() if "L2 norm of g_i" in alt]
    assert all(10 <= y <= 20 for y in first["data"][0]["y"])


def test_nothing_matches_is_said(open_app: OpenApp, runs: Path) -> None:
    at = open_app("depth", run=["demo", "older"], system_prompt=["policy"], drafter=["eagle3"])
    assert charts(at)
    at.sidebar.multiselect(key="pick_run").set_value(["older"])
    checked(at.run())
    assert "looping responses are left out" in texts(at)  # policy is unknown there: the filter is dropped, not the page
