"""The differences of matched conditions: metric by metric, over the pairs of prompts that have data on both sides.

Decides nothing. A prompt whose response is degenerate on either side leaves both, where the metric leaves such out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from driftscope.compare.comparison import MetricDifference
from driftscope.compare.metrics import Metric
from driftscope.compare.pairing import Pairs, PromptName, PromptSums, pair, paired_sums
from driftscope.compare.sides import Side
from driftscope.stats.acceptance import ratios
from driftscope.stats.paired import NO_DIFFERENCE, Difference, holm, paired_difference


@dataclass(frozen=True, kw_only=True, eq=False)
class PairedSides:
    """Two conditions, and which of their prompts are the same."""

    candidate: Side
    baseline: Side
    pairs: Pairs
    kept: list[tuple[PromptName, PromptName]]  # of these, not degenerate on either side

    @classmethod
    def of(cls, candidate: Side, baseline: Side) -> PairedSides:
        """Pairs the prompts."""
        pairs = pair(candidate.names, baseline.names)
        loops = [
            {name for name, is_loop in zip(side.names, side.is_degenerate, strict=True) if is_loop}
            for side in (candidate, baseline)
        ]
        kept = [(a, b) for a, b in pairs.pairs if a not in loops[0] and b not in loops[1]]
        return cls(candidate=candidate, baseline=baseline, pairs=pairs, kept=kept)

    def sums(self, metric: Metric) -> np.ndarray:
        """[4, prompt] for `paired_difference`."""
        pairs = self.pairs.pairs if metric.has_degenerate else self.kept
        return paired_sums(pairs, _prompt_sums(self.candidate, metric), _prompt_sums(self.baseline, metric))

    def why_without(self, metric: Metric) -> str | None:
        """Why there are no sums of the metric on one side, or not of the same rounds on both."""
        if metric.basis == "depths" and self.candidate.depth_basis != self.baseline.depth_basis:
            return "dense against walk: never compared"
        for side in (self.candidate, self.baseline):
            if metric.basis == "walk" and not side.has_walk:
                return f"{side.run_name} has no walk here: the text was not written by its target"
            if metric.basis == "dense" and side.depth_basis != "dense":
                return f"{side.run_name} has no dense rounds: engine {side.run.info.engine}"
        return None


def metric_differences(cells: Sequence[PairedSides], metric: Metric) -> list[MetricDifference]:
    """One for each cell, with Holm's correction over them."""
    reasons = [cell.why_without(metric) for cell in cells]
    sums = [np.zeros((4, 0)) if reason else cell.sums(metric) for cell, reason in zip(cells, reasons, strict=True)]
    found = [paired_difference(*s) for s in sums]
    are_sure = holm([one.p_value for one in found])
    return [
        _metric_difference(cell, metric, s, reason, one, is_sure)
        for cell, s, reason, one, is_sure in zip(cells, sums, reasons, found, are_sure, strict=True)
    ]


def difference_from(cell: PairedSides, metric: Metric, *, is_relative: bool, null: float) -> Difference:
    """One difference with the p-value of `null`; NO_DIFFERENCE where the metric is missing."""
    if cell.why_without(metric):
        return NO_DIFFERENCE
    return paired_difference(*cell.sums(metric), is_relative=is_relative, null=null)


def _metric_difference(
    cell: PairedSides, metric: Metric, sums: np.ndarray, reason: str | None, found: Difference, is_sure: bool
) -> MetricDifference:
    total = sums[:, (sums[1] > 0) & (sums[3] > 0)].sum(axis=1)
    [candidate, baseline] = ratios(total[[0, 2]], total[[1, 3]])
    relative = paired_difference(*sums, is_relative=True)
    if found.estimate is None and reason is None:
        reason = "no prompt has it on both sides"
    return MetricDifference(
        metric=metric.name,
        basis=cell.candidate.depth_basis if metric.basis == "depths" else metric.basis,
        num_prompts=found.num_prompts,
        baseline=baseline,
        candidate=candidate,
        difference=found.estimate,
        low=found.low,
        high=found.high,
        interval_method=found.interval_method,
        relative_difference=relative.estimate,
        relative_low=relative.low,
        relative_high=relative.high,
        p_value=found.p_value,
        is_sure=is_sure,
        reason=reason,
    )


def _prompt_sums(side: Side, metric: Metric) -> dict[PromptName, PromptSums]:
    numerator, denominator = metric.sums(side)
    rows = zip(side.names, numerator.tolist(), denominator.tolist(), strict=True)
    return {name: PromptSums(n, d) for name, n, d in rows}
