"""Intervals over prompts: which method when, known answers, coverage in a small simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from driftscope.stats.intervals import NO_INTERVAL, growth_intervals, ratio_intervals


def _prompts(num_prompts: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """tokens and rounds of each prompt; prompts differ in acceptance and in length."""
    rng = np.random.default_rng(seed)
    rounds = rng.integers(10, 60, num_prompts)
    tokens = rounds + rng.binomial(rounds * 7, rng.beta(4, 16, num_prompts))
    return tokens, rounds


@pytest.mark.parametrize(
    ("num_prompts", "method"), [(1, None), (4, None), (5, "jackknife_t"), (19, "jackknife_t"), (20, "bca"), (60, "bca")]
)
def test_method_by_number_of_prompts(num_prompts: int, method: str | None) -> None:
    tokens, rounds = _prompts(num_prompts)
    [interval] = ratio_intervals(tokens[None], rounds[None])
    assert interval.interval_method == method
    if method is None:
        assert interval == NO_INTERVAL
    else:
        assert interval.low is not None
        assert interval.high is not None
        assert interval.low < tokens.sum() / rounds.sum() < interval.high


def test_prompts_without_rounds_do_not_count() -> None:
    tokens, rounds = _prompts(20)
    padded = (np.append(tokens, [0, 0]), np.append(rounds, [0, 0]))
    assert ratio_intervals(padded[0][None], padded[1][None]) == ratio_intervals(tokens[None], rounds[None])
    [interval] = ratio_intervals(np.append(tokens[:4], 0)[None], np.append(rounds[:4], 0)[None])
    assert interval == NO_INTERVAL


def test_jackknife_of_equal_rounds_is_the_t_interval_of_the_mean() -> None:
    tokens = np.array([12.0, 15.0, 11.0, 19.0, 14.0, 16.0])
    [interval] = ratio_intervals(tokens[None], np.full((1, 6), 10.0))
    expected = stats.t.interval(0.95, 5, loc=tokens.mean() / 10, scale=stats.sem(tokens / 10))
    assert (interval.low, interval.high) == pytest.approx(expected)


def test_bca_is_scipys() -> None:
    """The same resamples (seed) through scipy's own paired form give the same interval."""
    tokens, rounds = _prompts(25)
    [interval] = ratio_intervals(tokens[None], rounds[None], seed=7)
    result = stats.bootstrap(
        (tokens, rounds),
        lambda t, r, axis: t.sum(axis=axis) / r.sum(axis=axis),
        paired=True,
        vectorized=True,
        n_resamples=9_999,
        method="BCa",
        rng=np.random.default_rng(7),
    )
    assert (interval.low, interval.high) == pytest.approx(tuple(result.confidence_interval), rel=1e-9)


def test_rows_share_their_resamples_and_do_not_disturb_each_other() -> None:
    tokens, rounds = _prompts(30)
    sparse = np.where(np.arange(30) < 24, rounds, 0)
    together = ratio_intervals(
        np.stack([tokens, tokens * (sparse > 0), tokens * 2]), np.stack([rounds, sparse, rounds])
    )
    alone = [
        ratio_intervals(tokens[None], rounds[None])[0],
        ratio_intervals(tokens[None, :24], rounds[None, :24])[0],
        ratio_intervals(2 * tokens[None], rounds[None])[0],
    ]
    for got, expected in zip(together, alone, strict=True):
        assert got.interval_method == expected.interval_method == "bca"
        assert got[:2] == pytest.approx(expected[:2])


@pytest.mark.parametrize(("num_prompts", "method"), [(8, "jackknife_t"), (30, "bca")])
def test_prompts_that_all_say_the_same(num_prompts: int, method: str) -> None:
    rounds = np.arange(10, 10 + num_prompts)
    assert ratio_intervals(2 * rounds[None], rounds[None]) == [(2.0, 2.0, method)]


def test_estimate_at_the_edge_falls_back_to_the_percentile_interval() -> None:
    """Rare events: the method says what was done, and the interval is finite."""
    numerator = np.zeros(40)
    numerator[3] = 1.0
    [interval] = ratio_intervals(numerator[None], np.full((1, 40), 50.0))
    assert interval.interval_method in ("bca", "percentile")
    assert interval.low is not None
    assert interval.high is not None
    assert 0 <= interval.low <= 1 / 2000 <= interval.high < 0.01


def test_growth_is_one_at_depth_one_and_tighter_than_the_levels() -> None:
    rng = np.random.default_rng(0)
    level = rng.uniform(50, 150, 12)  # prompts differ in level, hardly in growth
    norms = np.stack([level, level * rng.normal(2.0, 0.01, 12)]) * 30
    first, second = growth_intervals(norms, np.full((2, 12), 30.0))
    assert first == (1.0, 1.0, "jackknife_t")
    assert second.low is not None
    assert second.high is not None
    assert 1.97 < second.low < 2.0 < second.high < 2.03


@settings(max_examples=20, deadline=None)
@given(st.integers(5, 40), st.integers(0, 10_000))
def test_order_of_prompts_does_not_matter_to_the_jackknife_nor_the_seed_to_the_result(n: int, seed: int) -> None:
    tokens, rounds = _prompts(n, seed)
    order = np.random.default_rng(seed).permutation(n)
    [a] = ratio_intervals(tokens[None], rounds[None])
    [again] = ratio_intervals(tokens[None], rounds[None])
    [b] = ratio_intervals(tokens[order][None], rounds[order][None])
    assert a == again
    tolerance = 1e-9 if n < 20 else 0.05 * (a.high - a.low)  # type: ignore[operator]  # Monte Carlo error of the bounds
    assert a.low == pytest.approx(b.low, abs=tolerance)
    assert a.high == pytest.approx(b.high, abs=tolerance)


@pytest.mark.parametrize(("num_prompts", "lowest"), [(8, 0.88), (24, 0.86)])
def test_coverage_in_a_small_simulation(num_prompts: int, lowest: float) -> None:
    """The true ratio of expectations is known; 300 data sets cannot tell 0.93 from 0.95, but they can tell a blunder."""
    truth = 1 + 7 * 4 / 20  # acceptance is drawn apart from the length, so both expectations factor
    covered = 0
    for seed in range(300):
        tokens, rounds = _prompts(num_prompts, seed=1000 + seed)
        [interval] = ratio_intervals(tokens[None], rounds[None])
        covered += interval.low <= truth <= interval.high  # type: ignore[operator]
    assert lowest <= covered / 300 <= 0.99
