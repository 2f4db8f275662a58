"""Figures' words: which n and which baseline a paired difference shows, and why an interval is missing."""

from __future__ import annotations

import pytest

from driftscope.figures import Cell, Estimate, Pair, alt_text, difference_map
from driftscope.figures.layout import interval


def drawn(cell: Cell) -> tuple[str, str, str]:
    figure = difference_map("eagle3", [cell], column_title="context tokens", largest=1.0, what="the difference")
    [trace] = figure.data
    return trace.text[0], trace.hovertext[0], alt_text(figure)


def test_a_paired_difference_shows_its_n_and_its_baseline() -> None:
    estimate = Estimate(value=-0.55, low=-1.19, high=0.09, num_prompts=7, num_rounds=329)
    text, hover, words = drawn(
        Cell(row="german", column="0", estimate=estimate, pair=Pair(value=1.923, baseline=2.473))
    )
    assert "≈ -0.55" in text
    assert ">-1.19 to +0.09<" in text
    assert ">from 2.47, n = 7<" in text
    assert "1.92 - 2.47, over the same prompts<br>" in hover
    assert hover.endswith("n = 7 prompts, 329 rounds in both")
    assert "from 2.47 over 7 common prompts, not distinguishable" in words


def test_a_difference_without_a_known_baseline_still_shows_n() -> None:
    text, hover, _ = drawn(Cell(row="german", column="0", estimate=Estimate(value=0.5, num_prompts=3)))
    assert text.count(">n = 3<") == 1
    assert "no interval (fewer than 5 prompts)" in hover
    assert "over the same prompts" not in hover


@pytest.mark.parametrize(
    ("estimate", "said"),
    [
        (Estimate(value=2.0, low=1.5, high=2.5, num_prompts=4), "[1.50, 2.50]"),
        (Estimate(value=2.0, num_prompts=4), "no interval (fewer than 5 prompts)"),
        (Estimate(value=2.0, num_prompts=5), "no interval"),
        (Estimate(value=2.0), "no interval"),
    ],
)
def test_a_missing_interval_says_why(estimate: Estimate, said: str) -> None:
    assert interval(estimate) == said
