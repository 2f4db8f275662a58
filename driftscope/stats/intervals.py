"""95 % intervals of ratios of sums, by resampling prompts.

Knows no rounds: each prompt comes as its sums. Rounds of one prompt depend on each other, so the prompt is the unit; a
prompt with more rounds weighs more in a pooled mean, and a ratio of sums over resampled prompts keeps exactly that.

Fewer than 5 prompts: no interval. 5 to 19: jackknife standard error with Student's t. 20 and more: scipy's BCa
bootstrap with 9,999 seeded resamples; where BCa is undefined (the estimate lies at the edge of its own bootstrap
distribution) the percentile interval of the same resamples. The method is always returned.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import stats

from driftscope.stats.thresholds import (
    BOOTSTRAP_MIN_PROMPTS,
    BOOTSTRAP_RESAMPLES,
    BOOTSTRAP_SEED,
    INTERVAL_CONFIDENCE,
    INTERVAL_MIN_PROMPTS,
)

_BATCH_ELEMENTS = 4_000_000  # bounds the memory of one batch of resamples to tens of MB


class Interval(NamedTuple):
    """`interval_method`: "jackknife_t" | "bca" | "percentile"; all None where there are too few prompts."""

    low: float | None
    high: float | None
    interval_method: str | None


NO_INTERVAL = Interval(None, None, None)

Statistic = Callable[[np.ndarray], np.ndarray]
"""Sums over prompts [sum, ...] -> the statistic [...]."""


def ratio_intervals(numerator: np.ndarray, denominator: np.ndarray, *, seed: int = BOOTSTRAP_SEED) -> list[Interval]:
    """Interval of sum(numerator) / sum(denominator) for each row. Both [row, prompt]; prompts with denominator 0 carry
    no information on their row and are left out of it."""
    sums = np.stack([numerator, denominator]).astype(np.float64)  # [2, row, prompt]
    return sum_intervals(sums, _ratio, denominator != 0, seed=seed)


def growth_intervals(numerator: np.ndarray, denominator: np.ndarray, *, seed: int = BOOTSTRAP_SEED) -> list[Interval]:
    """Interval of row r's ratio of sums divided by row 0's (growth since depth 1). Both [row, prompt]."""
    first = np.zeros_like(numerator, dtype=np.float64)
    sums = np.stack([numerator, denominator, first + numerator[:1], first + denominator[:1]]).astype(np.float64)
    has_data = (denominator != 0) & (denominator[:1] != 0)
    return sum_intervals(sums, _ratio_of_ratios, has_data, seed=seed)


def sum_intervals(
    sums: np.ndarray, statistic: Statistic, has_data: np.ndarray, *, seed: int = BOOTSTRAP_SEED
) -> list[Interval]:
    """Interval of any function of sums over prompts, one for each row.

    `sums` float64 [sum, row, prompt]: what each prompt adds. `statistic` takes the summed [sum, ...] and gives [...].
    `has_data` bool [row, prompt]: the prompts that take part in a row; their number decides the method.
    """
    intervals = [NO_INTERVAL] * sums.shape[1]
    patterns, pattern_of_row = np.unique(has_data, axis=0, return_inverse=True)
    for pattern_index, prompts in enumerate(patterns):  # rows with the same prompts share their resamples
        rows = np.flatnonzero(pattern_of_row.ravel() == pattern_index)
        for row, interval in zip(rows, _same_prompts(sums[:, rows][:, :, prompts], statistic, seed), strict=True):
            intervals[row] = interval
    return intervals


def _same_prompts(sums: np.ndarray, statistic: Statistic, seed: int) -> list[Interval]:
    """`sums` [sum, row, prompt], every prompt in every row."""
    _, num_rows, num_prompts = sums.shape
    if num_prompts < INTERVAL_MIN_PROMPTS:
        return [NO_INTERVAL] * num_rows
    total = sums.sum(axis=-1)  # [sum, row]
    estimate = statistic(total)  # [row]
    left_out = statistic(total[..., None] - sums)  # [row, prompt]
    spread = np.ptp(left_out, axis=-1)
    is_constant = spread <= 1e-12 * np.maximum(1.0, np.abs(estimate))  # nothing to resample: every prompt says the same

    if num_prompts < BOOTSTRAP_MIN_PROMPTS:
        centred = left_out - left_out.mean(axis=-1, keepdims=True)
        standard_error = np.sqrt((num_prompts - 1) / num_prompts * np.sum(centred**2, axis=-1))
        half_width = stats.t.ppf(0.5 + INTERVAL_CONFIDENCE / 2, num_prompts - 1) * standard_error
        low, high = estimate - half_width, estimate + half_width
        is_bca = np.zeros(num_rows, dtype=bool)
        fallback = "jackknife_t"
    else:
        low, high, is_bca = _bootstrap(sums, statistic, seed)
        fallback = "percentile"
    low, high = np.where(is_constant, estimate, low), np.where(is_constant, estimate, high)
    is_bca |= is_constant & (num_prompts >= BOOTSTRAP_MIN_PROMPTS)
    return [Interval(float(a), float(b), "bca" if c else fallback) for a, b, c in zip(low, high, is_bca, strict=True)]


def _bootstrap(sums: np.ndarray, statistic: Statistic, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """low, high, is_bca, each [row]. Resamples prompt indices, as scipy does for paired data, so that all rows share
    them; a resample is the count of each prompt, and its sums are one matrix product."""
    num_sums, num_rows, num_prompts = sums.shape
    by_prompt = sums.reshape(num_sums * num_rows, num_prompts).T  # [prompt, sum * row]

    def of_prompts(index: np.ndarray, axis: int) -> np.ndarray:
        shape = index.shape[:-1]  # scipy puts the resample axis first, the prompt axis last
        flat = index.reshape(-1, index.shape[-1])  # [resample, draw]
        offset = np.arange(len(flat))[:, None] * num_prompts
        counts = np.bincount((flat + offset).ravel(), minlength=len(flat) * num_prompts)
        resampled = counts.reshape(len(flat), num_prompts).astype(np.float64) @ by_prompt  # [resample, sum * row]
        return statistic(resampled.T.reshape(num_sums, num_rows, *shape))  # [row, resample]

    with warnings.catch_warnings(), np.errstate(invalid="ignore", divide="ignore"):
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)  # answered below by the percentile interval
        result = stats.bootstrap(
            (np.arange(num_prompts),),
            of_prompts,
            vectorized=True,
            n_resamples=BOOTSTRAP_RESAMPLES,
            batch=max(1, _BATCH_ELEMENTS // max(num_prompts, num_sums * num_rows)),
            confidence_level=INTERVAL_CONFIDENCE,
            method="BCa",
            rng=np.random.default_rng(seed),
        )
    low, high = result.confidence_interval
    is_bca = np.isfinite(low) & np.isfinite(high)
    tail = (1 - INTERVAL_CONFIDENCE) / 2
    percentile = np.quantile(result.bootstrap_distribution, [tail, 1 - tail], axis=-1)  # [2, row]
    return np.where(is_bca, low, percentile[0]), np.where(is_bca, high, percentile[1]), is_bca


def _ratio(sums: np.ndarray) -> np.ndarray:
    ratio: np.ndarray = sums[0] / sums[1]
    return ratio


def _ratio_of_ratios(sums: np.ndarray) -> np.ndarray:
    ratio: np.ndarray = (sums[0] / sums[1]) / (sums[2] / sums[3])
    return ratio
