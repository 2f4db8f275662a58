"""The comparison that a report makes by itself: each run with the first one, or each drafter of one run with the first.

Matching, pairing and differences are those of `compare`; added is each series over all its conditions. Judges nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from driftscope.compare.comparison import MetricDifference
from driftscope.compare.contract import notes_on, why_not_comparable
from driftscope.compare.differences import PairedSides, metric_differences
from driftscope.compare.metrics import Metric, metric_of
from driftscope.compare.pairing import PromptName
from driftscope.compare.sides import Matching, match_runs, match_values, sides_of
from driftscope.figures import Cell, Estimate
from driftscope.figures import Pair as Sides
from driftscope.figures.heat_map import difference_verdict
from driftscope.report.contents import Condition, Contents
from driftscope.report.tables import Table, interval, number
from driftscope.stats.paired import paired_difference


@dataclass(frozen=True)
class Pair:
    """One condition against its baseline."""

    condition: Condition
    baseline: Condition
    difference: MetricDifference

    @property
    def estimate(self) -> Estimate:
        """For a figure."""
        d = self.difference
        return Estimate(value=d.difference, low=d.low, high=d.high, num_prompts=d.num_prompts)

    @property
    def sides(self) -> Sides | None:
        """Both over the same prompts; None without any."""
        d = self.difference
        return None if d.candidate is None or d.baseline is None else Sides(value=d.candidate, baseline=d.baseline)

    @property
    def verdict(self) -> str:
        """higher, lower, not distinguishable, or why it cannot be said."""
        return self.difference.reason or difference_verdict(Cell(row="", column="", estimate=self.estimate))


@dataclass(frozen=True)
class SeriesComparison:
    """`sentences`: each series over all its pairs. `notes`: what a reader must know, and what was not compared."""

    basis: str  # walk | dense: the rounds that every number is over
    pairs: Sequence[Pair]
    sentences: Sequence[str]
    notes: Sequence[str]

    def of_series(self, name: str) -> list[Pair]:
        """Pairs whose candidate is of that series."""
        return [p for p in self.pairs if p.condition.series == name]

    def table(self) -> Table:
        """Every pair."""
        return Table(
            caption=f"Difference in {self.basis} tokens per round; all numbers of a row are over the same n prompts",
            columns=[
                "drafter",
                "condition",
                "against",
                "n",
                f"{self.basis}, baseline",
                f"{self.basis}, this one",
                "difference",
                "95 % interval",
                "reading",
                "after Holm",
            ],
            rows=[
                [
                    p.condition.series,
                    p.condition.place,
                    p.baseline.series + (f", {p.baseline.place}" if p.baseline.place != p.condition.place else ""),
                    str(p.difference.num_prompts),
                    number(p.difference.baseline, 3),
                    number(p.difference.candidate, 3),
                    number(p.difference.difference, 3, is_signed=True),
                    interval(p.difference.low, p.difference.high, 3, is_signed=True),
                    p.verdict,
                    "holds" if p.difference.is_sure else "",
                ]
                for p in self.pairs
            ],
            num_labels=3,
        )


def compare_series(contents: Contents) -> SeriesComparison | None:
    """None with one series only."""
    if len(contents.series) < 2:
        return None
    of_runs = [sides_of(run.run, run.name) for run in contents.runs]
    matching = (
        match_runs(of_runs, [run.name for run in contents.runs], None)
        if len(of_runs) > 1
        else match_values(of_runs[0], "drafter", None)
    )
    condition_of = {(c.run.name, c.summary.key): c for c in contents.conditions}
    cells, notes = _comparable(matching)
    metric = metric_of("tokens_per_round" if contents.basis == "walk" else "dense.tokens_per_round")
    pairs = [
        Pair(
            condition_of[cell.candidate.run_name, cell.candidate.key],
            condition_of[cell.baseline.run_name, cell.baseline.key],
            difference,
        )
        for cell, difference in zip(cells, metric_differences(cells, metric), strict=True)
    ]
    by_series: dict[tuple[str, str], list[PairedSides]] = {}
    for cell, one in zip(cells, pairs, strict=True):
        by_series.setdefault((one.condition.series, one.baseline.series), []).append(cell)
    sentences = [_sentence(*names, own, metric) for names, own in by_series.items()]
    return SeriesComparison(contents.basis, pairs, sentences, notes)


def _comparable(matching: Matching) -> tuple[list[PairedSides], list[str]]:
    """The matches that may be compared; what is to be said of them, and of the others."""
    cells, notes = [], [*matching.notes]
    for candidate, baseline in matching.matches:
        notes += notes_on(candidate, baseline)
        reason = why_not_comparable(candidate, baseline)
        if reason is not None:
            notes.append(f"not compared: {candidate.run_name} and {baseline.run_name}: {reason}")
            continue
        cells.append(PairedSides.of(candidate, baseline))
    if matching.unmatched:
        reasons = ", ".join(dict.fromkeys(one.reason for one in matching.unmatched))
        notes.append(f"{len(matching.unmatched)} conditions have no counterpart: {reasons}")
    return cells, list(dict.fromkeys(notes))


def _sentence(name: str, baseline: str, cells: Sequence[PairedSides], metric: Metric) -> str:
    """Pooled over the conditions; a prompt brings its rounds of every condition along."""
    sums: dict[PromptName, np.ndarray] = {}
    num_conditions = 0
    for cell in cells:
        columns = np.zeros((4, 0)) if cell.why_without(metric) else cell.sums(metric)
        num_conditions += bool(columns.size)
        for (prompt, _), column in zip(cell.kept, columns.T, strict=False):
            sums[prompt] = sums.get(prompt, np.zeros(4)) + column
    rows = np.array(list(sums.values())).reshape(-1, 4).T
    d = paired_difference(*rows)
    if d.estimate is None:
        return f"{name} and {baseline} have no prompt in common: they cannot be compared."
    plural = "s" if num_conditions > 1 else ""
    where = f"over {num_conditions} condition{plural} and the same {d.num_prompts} prompts"
    total = rows[:, (rows[1] > 0) & (rows[3] > 0)].sum(axis=1)
    unit = f"{metric.basis} tokens per round"
    amount = f"{d.estimate:+.2f} {unit}"
    both = f"{total[0] / total[1]:.2f} against {total[2] / total[3]:.2f}"
    if d.low is None or d.high is None:
        return f"Against {baseline}, {where}, {name} differs by {amount} ({both}); too few prompts to say more."
    ends = f"({both}, 95 % interval {d.low:+.2f} to {d.high:+.2f})"
    if d.low <= 0 <= d.high:
        return f"Against {baseline}, {where}, {name} is not distinguishable: {amount} {ends}."
    more = "more" if d.estimate > 0 else "fewer"
    return f"Against {baseline}, {where}, {name} yields {abs(d.estimate):.2f} {more} {unit} {ends}."
