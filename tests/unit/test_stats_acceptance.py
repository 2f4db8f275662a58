"""Acceptance against known answers, its identities, and degenerate text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftscope.stats.acceptance import ratios
from driftscope.stats.degenerate import is_degenerate
from tests.acceptance_oracle import acceptance_counts, tokens_per_round, tokens_per_round_prompt_mean


def test_pooled_and_prompt_mean_differ_when_prompts_have_unequal_rounds() -> None:
    accepted = np.concatenate([np.repeat([0, 1], 50), np.full(5, 3)])  # 100 rounds at 1.5, 5 rounds at 4.0 tokens
    prompt = np.repeat(["long", "short"], [100, 5])
    assert tokens_per_round(accepted) == pytest.approx((100 * 1.5 + 5 * 4.0) / 105)
    assert tokens_per_round(accepted) == pytest.approx(1.619, abs=5e-4)
    assert tokens_per_round_prompt_mean(accepted, prompt) == pytest.approx(2.75)


def test_no_rounds_is_none() -> None:
    nothing = np.array([], dtype=int)
    counts = acceptance_counts(nothing, nothing, depth=2)
    assert tokens_per_round(nothing) is None
    assert tokens_per_round_prompt_mean(nothing, nothing) is None
    assert counts.marginal() == [None, None]
    assert counts.conditional() == [None, None]


def test_acceptance_by_hand_with_fewer_drafts_than_depths() -> None:
    num_drafts = np.array([3, 3, 2, 1, 0])
    accepted = np.array([3, 1, 2, 0, 0])
    counts = acceptance_counts(num_drafts, accepted, depth=3)
    # depth 1: 4 rounds drafted, 3 accepted; depth 2: 3 drafted, 2 accepted of 3 alive; depth 3: 2 drafted, 1 alive
    assert counts.marginal() == pytest.approx([3 / 4, 2 / 3, 1 / 2])
    assert counts.conditional() == pytest.approx([3 / 4, 2 / 3, 1 / 1])


def test_conditional_is_none_where_no_round_is_alive() -> None:
    counts = acceptance_counts(np.array([3, 3]), np.array([1, 0]), depth=3)
    assert counts.marginal() == [0.5, 0.0, 0.0]
    assert counts.conditional() == [0.5, 0.0, None]


rounds = st.lists(
    st.integers(0, 6).flatmap(lambda drafts: st.tuples(st.just(drafts), st.integers(0, drafts))),
    min_size=1,
    max_size=60,
)


@given(rounds)
def test_marginals_add_up_to_tokens_per_round_over_rounds_that_draft_all(pairs: list[tuple[int, int]]) -> None:
    accepted = np.array([a for _, a in pairs])
    marginal = acceptance_counts(np.full(len(pairs), 6), accepted, depth=6).marginal()
    assert 1 + sum(value or 0.0 for value in marginal) == pytest.approx(tokens_per_round(accepted))


@given(rounds)
def test_conditional_times_former_marginal_is_marginal_when_all_depths_are_drafted(
    pairs: list[tuple[int, int]],
) -> None:
    counts = acceptance_counts(np.full(len(pairs), 6), np.array([a for _, a in pairs]), depth=6)
    marginal, conditional = counts.marginal(), counts.conditional()
    assert conditional[0] == marginal[0]
    for k in range(1, 6):
        if marginal[k - 1]:
            assert conditional[k] == pytest.approx((marginal[k] or 0.0) / marginal[k - 1])
        else:
            assert conditional[k] is None


@given(rounds)
def test_order_histogram_and_prompts_change_nothing(pairs: list[tuple[int, int]]) -> None:
    drafts, accepted = (np.array(column) for column in zip(*pairs, strict=True))
    whole = acceptance_counts(drafts, accepted, depth=6)
    order = np.random.default_rng(0).permutation(len(pairs))
    prompt = np.arange(len(pairs)) % 3
    by_prompt = acceptance_counts(drafts[order], accepted[order], depth=6, prompt=prompt, num_prompts=3)
    distinct, times = np.unique(np.array(pairs), axis=0, return_counts=True)
    histogram = acceptance_counts(distinct[:, 0], distinct[:, 1], depth=6, num_rounds=times)
    for name in ("drafted", "reached", "accepted"):
        assert getattr(by_prompt, name).shape == (3, 6)
        assert getattr(by_prompt, name).sum(axis=0).tolist() == getattr(whole, name).tolist()
        assert getattr(histogram, name).tolist() == getattr(whole, name).tolist()
    assert by_prompt.conditional() == whole.conditional()


def test_ratios() -> None:
    assert ratios([1, 0, 3], [2, 0, 3]) == [0.5, None, 1.0]


DISTINCT = list(range(1000, 1060))


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        pytest.param([], False, id="empty"),
        pytest.param([1] * 23, False, id="too short to judge"),
        pytest.param([1] * 24, True, id="one token for ever"),
        pytest.param(DISTINCT, False, id="all distinct"),
        pytest.param(DISTINCT + [1, 2, 3] * 16, True, id="tail of 48 with period 3"),
        pytest.param(DISTINCT + DISTINCT + [1, 2, 3] * 15, False, id="loop of 45 does not fill the tail"),
        pytest.param(DISTINCT * 2 + list(range(16)) * 3, True, id="period 16"),
        pytest.param(DISTINCT * 2 + list(range(17)) * 3, False, id="period 17 is text"),
        pytest.param(list(range(8)) * 3, True, id="24 tokens, period 8 = 24 // 3"),
        pytest.param(list(range(9)) * 2 + list(range(6)), False, id="24 tokens, period 9 > 24 // 3"),
        # 61 tokens: 58 four-grams, a loop ended by a stop token, so that the tail has no period
        pytest.param([*range(20), *[1, 2] * 20, 9], True, id="few distinct four-grams"),
    ],
)
def test_degenerate(tokens: list[int], expected: bool) -> None:
    assert is_degenerate(np.array(tokens, dtype=np.int32)) is expected


@pytest.mark.parametrize(("num_distinct_tokens", "expected"), [(19, False), (18, True)])
def test_share_of_distinct_four_grams_is_compared_strictly(num_distinct_tokens: int, expected: bool) -> None:
    """53 tokens have 50 four-grams; a run of one token gives one of them, each token after the run another: 20 of 50
    is 0.4 and text, 19 of 50 is degenerate."""
    run = [7] * (53 - num_distinct_tokens)
    assert is_degenerate(np.array(run + list(range(100, 100 + num_distinct_tokens)))) is expected
