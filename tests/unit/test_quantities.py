"""One table of quantities: every reader has every row, and its acceptance is that of counting round by round."""

from __future__ import annotations

import io
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest
from rich.console import Console

from driftscope.cli.show_text import print_summary
from driftscope.compare.compare import compare
from driftscope.compare.metrics import METRIC_HELP
from driftscope.quantities import (
    DEPTH_CHARTS,
    HEAD_QUANTITIES,
    OVER_DEPTH,
    QUANTITIES,
    DepthQuantity,
    quantities_document,
)
from driftscope.report.charts import HEAD_MAPS, depth_charts
from driftscope.report.contents import read_contents
from driftscope.runs import Run, read_run
from driftscope.summary import ConditionSummary, summarise, summary_table
from driftscope.summary.run_summary import DepthArray
from driftscope.summary.sums import batch_sums
from probes.record import COLUMNS, REGIONS
from tests.acceptance_oracle import acceptance_counts
from tests.synthetic_run import make_batch, make_prompt, make_records, write_run

every_quantity = pytest.mark.parametrize("quantity", OVER_DEPTH.values(), ids=list(OVER_DEPTH))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("quantities")
    return read_run(write_run(folder / "all.drift", make_records(num_prompts=6, system_prompts=("default",))))


def test_the_summary_declares_the_arrays_of_the_table() -> None:
    declared = {name for name, kind in get_type_hints(ConditionSummary).items() if kind == DepthArray}
    assert declared | {f"mass_{region}" for region in REGIONS} == set(OVER_DEPTH)


@every_quantity
def test_a_quantity_is_summed_and_stands_in_json_and_table(run: Run, quantity: DepthQuantity) -> None:
    summary = summarise(run)
    assert quantity.name in batch_sums(run).means
    rows = [row for row in summary_table(summary).to_pylist() if row["metric"] == quantity.name]
    values = [value for c in summary.conditions for value in c.over_depth(quantity.name)]
    assert [row["value"] for row in rows] == values
    assert any(value is not None for value in values)
    for condition in summary.conditions:
        assert (quantity.name in condition.depth_intervals) == quantity.has_interval
    assert all((row["low"] is not None) == quantity.has_interval for row in rows if row["depth"] == 1)


@every_quantity
def test_a_quantity_is_compared(run: Run, quantity: DepthQuantity) -> None:
    name = quantity.name.replace("mass_", "mass.")
    assert (name in METRIC_HELP.replace(",", " ").split()) != quantity.is_relative
    if quantity.is_relative:  # a mean over another one
        return
    [cell] = compare([run], by="drafter", metrics=[f"{name}@2"]).cells
    first, second = summarise(run).conditions
    assert cell.differences[0].baseline == pytest.approx(first.over_depth(quantity.name)[1], abs=1e-12)
    assert cell.differences[0].candidate == pytest.approx(second.over_depth(quantity.name)[1], abs=1e-12)


@every_quantity
def test_a_quantity_with_a_section_is_shown_and_drawn(run: Run, quantity: DepthQuantity) -> None:
    out = io.StringIO()
    print_summary(Console(file=out, width=100), run, summarise(run))
    labels = {line[2:24].strip() for line in out.getvalue().splitlines() if line.startswith("  ")}
    is_drawn = bool(quantity.section)
    assert (quantity.name.replace("mass_", "mass ") in labels) == (is_drawn and not quantity.is_relative)
    charts = {section: [c.heading for c in found] for section, found in depth_charts(read_contents([run.path])).items()}
    assert any(quantity.title in headings for headings in charts.values()) == is_drawn
    if is_drawn:
        assert quantity.title in charts[quantity.section]
        assert quantity in DEPTH_CHARTS[quantity.section]


def test_every_quantity_says_what_it_is() -> None:
    for quantity in (*QUANTITIES.values(), *OVER_DEPTH.values(), *HEAD_QUANTITIES.values()):
        assert quantity.title
        assert quantity.axis
        assert quantity.definition.endswith(".")
        assert not (quantity.is_share and quantity.is_signed)
    assert set(HEAD_MAPS) <= set(HEAD_QUANTITIES)
    titles = [quantity.title for quantity in {**OVER_DEPTH, **QUANTITIES}.values()]
    assert len(set(titles)) == len(titles)


def test_acceptance_is_that_of_counting_round_by_round(tmp_path: Path) -> None:
    """Also where a round drafts less than K, which vLLM and an import know."""
    rng = np.random.default_rng(7)
    prompt = make_prompt(num_response_tokens=120)
    num_drafts = rng.integers(0, 5, 119)
    accepted = np.minimum(rng.integers(0, 5, 119), num_drafts)
    batch = make_batch(prompt, depth=4, num_drafts=num_drafts, accepted_drafts=accepted)
    counts = acceptance_counts(batch.num_drafts, batch.accepted_drafts, depth=4)
    means = batch_sums(read_run(write_run(tmp_path / "a.drift", [prompt, batch]))).means
    assert means["acceptance_marginal"].total[0].tolist() == counts.accepted.tolist()
    assert means["acceptance_marginal"].count[0].tolist() == counts.drafted.tolist()
    assert means["acceptance_conditional"].total[0].tolist() == counts.accepted.tolist()
    assert means["acceptance_conditional"].count[0].tolist() == counts.reached.tolist()


def test_the_document_is_that_of_the_table() -> None:
    page = Path(__file__).parents[2] / "docs" / "quantities.md"
    assert page.read_text() == quantities_document(), (
        "stale: run `python -m driftscope.quantities > docs/quantities.md`"
    )
    for name in (*COLUMNS, *QUANTITIES):
        assert name.startswith("mass_") or f"`{name}" in page.read_text()
