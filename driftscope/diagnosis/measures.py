"""Measures that the rules read off a condition's facts, each with its interval over prompts. Knows no verdict."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from driftscope.diagnosis.facts import ConditionFacts
from driftscope.stats.intervals import sum_intervals
from driftscope.stats.paired import NO_DIFFERENCE, Difference, paired_difference
from driftscope.stats.thresholds import FEEDBACK_MIN_SHARE_OF_FRESH


@dataclass(frozen=True)
class SecondDepth:
    """What drafting from a fed-back state is worth at the first depth that does."""

    conditional: float  # right as drafted, of the positions where depth 1 was accepted
    fresh: float  # right with true features, of the same
    num_positions: int
    shortfall: Difference  # FEEDBACK_MIN_SHARE_OF_FRESH * fresh - conditional


def first_acceptance(facts: ConditionFacts) -> float | None:
    """Share of the first drafts that are accepted where the emitted token can be drafted at all, over all prompts."""
    reached = facts.reached[:, 0].sum() - facts.out_of_vocab[:, 0].sum()
    return float(facts.accepted[:, 0].sum() / reached) if reached else None


def out_of_vocab_share(facts: ConditionFacts) -> float | None:
    """The tokens emitted at depth 1 that no draft can be: each emitted token once in a dense replay."""
    reached = facts.reached[:, 0].sum()
    return float(facts.out_of_vocab[:, 0].sum() / reached) if reached else None


def second_depth(facts: ConditionFacts) -> SecondDepth | None:
    """None with K = 1, without a fresh pass, or where depth 1 is never accepted."""
    if facts.reached.shape[1] < 2 or not facts.num_gap[:, 1].sum():
        return None
    num, accepted = facts.num_gap[:, 1], facts.accepted[:, 1].astype(np.float64)
    fresh = facts.gap[:, 1] + accepted
    shortfall = paired_difference(FEEDBACK_MIN_SHARE_OF_FRESH * fresh, num, accepted, num)
    total = num.sum()
    return SecondDepth(float(accepted.sum() / total), float(fresh.sum() / total), int(total), shortfall)


def tokens_of(conditional: float) -> float:
    """tokens_per_round of a long chain with this acceptance at every depth; for ordering causes only."""
    return 1 / (1 - min(conditional, 0.9))


def vocabulary_loss(facts: ConditionFacts) -> Difference:
    """tokens_per_round if emitted tokens outside the draft vocabulary were drafted as well as the others, less what is.

    With r_k positions reached, a_k accepted and v_k rejected for the vocabulary, depth k would be accepted with
    a_k / (r_k - v_k) in place of a_k / r_k.
    """
    depth = facts.reached.shape[1]
    sums = np.concatenate([facts.reached.T, facts.accepted.T, facts.out_of_vocab.T]).astype(np.float64)
    has_data = (facts.reached[:, 0] > 0)[None, :]

    def statistic(total: np.ndarray) -> np.ndarray:
        reached, accepted, outside = total[:depth], total[depth : 2 * depth], total[2 * depth :]
        covered = np.where(reached > outside, reached - outside, 1.0)
        as_is = np.cumprod(np.where(reached > 0, accepted / np.where(reached > 0, reached, 1.0), 0.0), axis=0)
        repaired = np.cumprod(np.where(reached > 0, accepted / covered, 0.0), axis=0)
        loss: np.ndarray = (repaired - as_is).sum(axis=0)
        return loss

    num_prompts = int(has_data.sum())
    if not num_prompts:
        return NO_DIFFERENCE
    estimate = float(statistic(sums[:, has_data[0]].sum(axis=-1)))
    [interval] = sum_intervals(sums[:, None, :], statistic, has_data)
    return Difference(estimate, *interval, None, num_prompts)


def dense_difference(candidate: ConditionFacts, baseline: ConditionFacts) -> Difference:
    """tokens_per_round of candidate - baseline, over the prompts that both have."""
    ours, theirs = common_prompts(candidate, baseline)
    if not len(ours):
        return NO_DIFFERENCE
    return paired_difference(
        candidate.num_accepted[ours],
        candidate.num_rounds[ours],
        baseline.num_accepted[theirs],
        baseline.num_rounds[theirs],
    )


def common_prompts(a: ConditionFacts, b: ConditionFacts) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers in a and in b of the prompts that both have, in the same order."""
    index = {prompt: row for row, prompt in enumerate(b.prompt_ids)}
    pairs = [(row, index[prompt]) for row, prompt in enumerate(a.prompt_ids) if prompt in index]
    if not pairs:
        return np.array([], dtype=np.int64), np.array([], dtype=np.int64)
    ours, theirs = zip(*pairs, strict=True)
    return np.array(ours), np.array(theirs)
