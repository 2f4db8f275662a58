"""Which of several gains, measured on the same prompts, are real: one-sided p-values that hold for all of them together.

Knows no interventions: each candidate comes as what every prompt contributes to its gain. If a change does nothing, a
prompt's contribution is as likely to have the other sign; so all sign patterns are equally likely, and the largest
statistic over all candidates under them is what chance can do. Candidates are flipped together, prompt by prompt, so
their correlation is kept: two dozen rewirings of one drafter, most of which hurt on every prompt, cost far less power
than Holm's correction of as many separate tests. Westfall & Young (1993), step-down maxT; the statistic is self-normalised
and does not change with a candidate's scale.

Assumed under the null: contributions symmetric about 0. Means of 0 with skew keep the level in simulation
(docs/statistics.md), least well with very few prompts.
"""

from __future__ import annotations

import numpy as np

from driftscope.stats.thresholds import SIGN_FLIP_DRAWS, SIGN_FLIP_MAX_ENUMERATED, SIGN_FLIP_SEED

_TIE = 1e-9
"""Statistics closer than this are equal: the observed pattern is one of those counted."""


def paired_contributions(
    numerator: np.ndarray, denominator: np.ndarray, base_numerator: np.ndarray, base_denominator: np.ndarray
) -> np.ndarray:
    """What each prompt adds to sum(numerator) / sum(denominator) - sum(base_numerator) / sum(base_denominator) [prompt].

    The differences of each prompt from the common ratio, linearised; they sum to the difference exactly. Swapping a
    prompt's two sides flips its sign. Prompts without rounds on either side add 0.
    """
    is_used = (denominator > 0) & (base_denominator > 0)
    a, n, b, m = (
        np.where(is_used, x, 0).astype(np.float64) for x in (numerator, denominator, base_numerator, base_denominator)
    )
    if not is_used.any():
        return np.zeros(len(is_used))
    common = (a.sum() + b.sum()) / (n.sum() + m.sum())
    contributions: np.ndarray = (a - common * n) / n.sum() - (b - common * m) / m.sum()
    return contributions


def family_p_values(contributions: np.ndarray) -> np.ndarray:
    """One-sided p-values of "this gain is above 0" [candidate], corrected for the whole family, from [candidate, prompt].

    The chance that, without any effect, some candidate of the family looks as good. With n prompts none is below 2^-n.
    Candidates that change nothing have 1.
    """
    size = np.sqrt((contributions**2).sum(axis=1))
    p_values = np.ones(len(contributions))
    moved = np.flatnonzero(size > 0)
    if not len(moved):
        return p_values
    scaled = contributions[moved] / size[moved, None]  # [candidate, prompt]
    order = np.argsort(-scaled.sum(axis=1), kind="stable")
    observed = scaled[order].sum(axis=1)
    flipped = _signs(contributions.shape[1]) @ scaled[order].T  # [pattern, candidate]
    # step-down: a candidate competes with those that look worse than it, and cannot be surer than one that looks better
    largest = np.maximum.accumulate(flipped[:, ::-1], axis=1)[:, ::-1]
    p = (largest >= observed - _TIE).mean(axis=0)
    p_values[moved[order]] = np.maximum.accumulate(p)
    return p_values


def _signs(num_prompts: int) -> np.ndarray:
    """Every pattern of signs, or a seeded sample of them with the observed one [pattern, prompt]."""
    if num_prompts <= SIGN_FLIP_MAX_ENUMERATED:
        bits = np.arange(2**num_prompts)[:, None] >> np.arange(num_prompts) & 1
        return np.where(bits, -1.0, 1.0)
    rng = np.random.default_rng(SIGN_FLIP_SEED)
    drawn = rng.integers(0, 2, (SIGN_FLIP_DRAWS, num_prompts)) * 2.0 - 1.0
    return np.concatenate([np.ones((1, num_prompts)), drawn])
