"""Differences of two pooled ratios over the same prompts, and Holm's correction over several of them.

Knows no rounds: each prompt comes as its sums. Intervals are those of `intervals`; the p-value, needed only to order and
correct several differences, is the jackknife's two-sided t.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import stats

from driftscope.stats.intervals import NO_INTERVAL, Interval, Statistic, sum_intervals
from driftscope.stats.thresholds import INTERVAL_CONFIDENCE, INTERVAL_MIN_PROMPTS


class Difference(NamedTuple):
    """candidate - baseline. `estimate` None without rounds; interval and p_value None below 5 prompts."""

    estimate: float | None
    low: float | None
    high: float | None
    interval_method: str | None
    p_value: float | None
    num_prompts: int

    @property
    def is_above_zero(self) -> bool:
        """The whole interval lies above 0."""
        return self.low is not None and self.low > 0


NO_DIFFERENCE = Difference(None, None, None, None, None, 0)


def paired_difference(
    numerator: np.ndarray,
    denominator: np.ndarray,
    base_numerator: np.ndarray,
    base_denominator: np.ndarray,
    *,
    is_relative: bool = False,
    null: float = 0.0,
) -> Difference:
    """sum(numerator) / sum(denominator) - sum(base_numerator) / sum(base_denominator), each [prompt], same prompts.

    `is_relative`: that over the base's ratio; no estimate where this is not above 0, no interval where it is not with
    any one prompt left out. The p-value is that of a difference of `null`. Prompts without rounds on either side are
    left out.
    """
    sums = np.stack([numerator, denominator, base_numerator, base_denominator]).astype(np.float64)
    sums = sums[:, (sums[1] > 0) & (sums[3] > 0)]
    num_prompts = sums.shape[1]
    if num_prompts == 0:
        return NO_DIFFERENCE
    total = sums.sum(axis=-1)
    if is_relative and total[2] <= 0:
        return Difference(None, None, None, None, None, num_prompts)
    statistic = _relative_difference if is_relative else _difference
    estimate = float(statistic(total))
    interval: Interval = NO_INTERVAL
    p_value = None
    has_left_out = not is_relative or bool(np.all(total[2] - sums[2] > 0))
    if num_prompts >= INTERVAL_MIN_PROMPTS and has_left_out:
        [interval] = sum_intervals(sums[:, None, :], statistic, np.ones((1, num_prompts), dtype=bool))
        p_value = _jackknife_p(sums, statistic, estimate, null)
    if interval.low is not None and not np.isfinite(np.array([interval.low, interval.high], dtype=float)).all():
        interval, p_value = NO_INTERVAL, None  # some resample's base ratio is 0
    return Difference(estimate, *interval, p_value, num_prompts)


def holm(p_values: list[float | None]) -> list[bool]:
    """Which of these hold at 1 - INTERVAL_CONFIDENCE over all of them together (Holm 1979); None never does."""
    alpha = 1 - INTERVAL_CONFIDENCE
    known = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    holds = [False] * len(p_values)
    for rank, (p, index) in enumerate(known):
        if p > alpha / (len(known) - rank):
            break
        holds[index] = True
    return holds


def _difference(sums: np.ndarray) -> np.ndarray:
    difference: np.ndarray = sums[0] / sums[1] - sums[2] / sums[3]
    return difference


def _relative_difference(sums: np.ndarray) -> np.ndarray:
    ratio: np.ndarray = _difference(sums) / (sums[2] / sums[3])
    return ratio


def _jackknife_p(sums: np.ndarray, statistic: Statistic, estimate: float, null: float) -> float:
    num_prompts = sums.shape[1]
    left_out = statistic(sums.sum(axis=-1, keepdims=True) - sums)
    error = np.sqrt((num_prompts - 1) / num_prompts * np.sum((left_out - left_out.mean()) ** 2))
    if error <= 1e-12 * max(1.0, abs(estimate)):  # every prompt says the same
        return 1.0 if abs(estimate - null) <= 1e-12 else 0.0
    return float(2 * stats.t.sf(abs(estimate - null) / error, num_prompts - 1))
