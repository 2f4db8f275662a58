"""Sign-flip p-values over a family: exact small cases, step-down, power where Holm has none, and their level."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.intervals import beta_prompts, coverage, false_gains
from driftscope.stats.family import family_p_values, paired_contributions
from driftscope.stats.paired import paired_difference


def test_one_candidate_is_the_exact_sign_test() -> None:
    # all five gain alike: only the observed pattern is as good
    assert family_p_values(np.ones((1, 5)))[0] == pytest.approx(1 / 32)
    # one of five loses: the five patterns with one minus and the one without are as good
    assert family_p_values(np.array([[1.0, 1, 1, 1, -1]]))[0] == pytest.approx(6 / 32)
    assert family_p_values(-np.ones((1, 5)))[0] == 1.0


def test_a_candidate_that_changes_nothing_is_nothing_and_costs_nothing() -> None:
    gain = np.linspace(0.5, 1.5, 8)
    alone = family_p_values(gain[None])[0]
    assert family_p_values(np.stack([np.zeros(8), gain])).tolist() == [1.0, pytest.approx(alone)]
    assert family_p_values(np.zeros((2, 8))).tolist() == [1.0, 1.0]


def test_scale_and_order_of_prompts_and_candidates_do_not_matter() -> None:
    rng = np.random.default_rng(0)
    parts = rng.normal(0.2, 1, (6, 9))
    p = family_p_values(parts)
    assert family_p_values(parts * rng.uniform(0.1, 10, (6, 1))) == pytest.approx(p)
    assert family_p_values(parts[:, rng.permutation(9)]) == pytest.approx(p)
    order = rng.permutation(6)
    assert family_p_values(parts[order]) == pytest.approx(p[order])


def test_a_better_candidate_is_never_less_sure_and_a_copy_costs_nothing() -> None:
    rng = np.random.default_rng(1)
    parts = rng.normal(0.4, 1, (5, 10))
    statistic = parts.sum(axis=1) / np.sqrt((parts**2).sum(axis=1))
    p = family_p_values(parts)
    assert (np.diff(p[np.argsort(-statistic)]) >= 0).all()
    assert family_p_values(np.concatenate([parts, parts])) == pytest.approx(np.concatenate([p, p]))  # fully correlated
    assert (p >= [family_p_values(row[None])[0] for row in parts]).all()


def test_many_prompts_are_sampled_with_a_seed() -> None:
    parts = np.random.default_rng(2).normal(0.5, 1, (3, 30))
    p = family_p_values(parts)
    assert p.tolist() == family_p_values(parts).tolist()
    assert p.min() >= 1 / 10_000


def test_contributions_sum_to_the_difference_and_swap_their_sign() -> None:
    rng = np.random.default_rng(3)
    rounds, base_rounds = rng.integers(1, 30, 7), rng.integers(1, 30, 7)
    tokens, base_tokens = rounds * 2, base_rounds + 5
    parts = paired_contributions(tokens, rounds, base_tokens, base_rounds)
    found = paired_difference(tokens, rounds, base_tokens, base_rounds)
    assert parts.sum() == pytest.approx(found.estimate)
    assert paired_contributions(base_tokens, base_rounds, tokens, rounds) == pytest.approx(-parts)
    rounds[2] = 0  # no rounds on one side: left out
    assert paired_contributions(tokens, rounds, base_tokens, base_rounds)[2] == 0
    assert paired_contributions(tokens * 0, rounds * 0, tokens, rounds).tolist() == [0.0] * 7


@pytest.mark.parametrize(("num_prompts", "lowest", "highest"), [(8, 0.90, 0.97), (40, 0.91, 0.98)])
def test_coverage_with_unequal_prompts(num_prompts: int, lowest: float, highest: float) -> None:
    """The short version of docs/statistics.md's table."""
    assert lowest <= coverage(beta_prompts, 1 + 7 * 2 / 5, num_prompts, num_runs=250) <= highest


@pytest.mark.parametrize("num_prompts", [6, 16])
def test_useless_changes_seldom_count(num_prompts: int) -> None:
    assert false_gains(num_prompts, 0, num_runs=200) <= 0.08
