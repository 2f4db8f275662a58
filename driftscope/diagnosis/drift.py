"""What drift verdicts rest on: the excess of chain decay over a reference, its growth with depth, and its carrier."""

from __future__ import annotations

import numpy as np

from driftscope.diagnosis.facts import ConditionFacts
from driftscope.diagnosis.gains import Counts
from driftscope.diagnosis.measures import common_prompts
from driftscope.diagnosis.waterfall import PARTS
from driftscope.stats.intervals import sum_intervals
from driftscope.stats.paired import NO_DIFFERENCE, Difference, paired_difference
from driftscope.stats.thresholds import DRIFT_MIN_RECOVERED_SHARE

MIN_SHARE = DRIFT_MIN_RECOVERED_SHARE
_DECAY, _UNKNOWN = PARTS.index("chain_decay"), PARTS.index("hard_token_or_chain_decay")


def chain_decay_excess(facts: ConditionFacts, reference: ConditionFacts) -> Difference | None:
    """The waterfall's chain_decay less the reference's, tokens per round of the walk, paired by prompt.

    None where either has no walk or no fresh pass.
    """
    ours, theirs = facts.waterfall, reference.waterfall
    if ours is None or theirs is None or ours.loss[:, _UNKNOWN].any() or theirs.loss[:, _UNKNOWN].any():
        return None
    a, b = common_prompts(facts, reference)
    if not len(a):
        return NO_DIFFERENCE
    return paired_difference(ours.loss[a, _DECAY], ours.num_rounds[a], theirs.loss[b, _DECAY], theirs.num_rounds[b])


def gap_growth(facts: ConditionFacts) -> Difference:
    """chain_gap over the depths from 3 on, less that at depth 2."""
    if facts.gap.shape[1] < 3:
        return NO_DIFFERENCE
    sums = np.stack(
        [facts.gap[:, 2:].sum(axis=1), facts.num_gap[:, 2:].sum(axis=1), facts.gap[:, 1], facts.num_gap[:, 1]]
    )
    has_data = (facts.num_gap[:, 1] > 0)[None, :]
    total = sums.sum(axis=-1)
    if not total[1] or not total[3]:
        return NO_DIFFERENCE

    def statistic(s: np.ndarray) -> np.ndarray:
        deep = s[0] / np.where(s[1] > 0, s[1], 1.0)
        growth: np.ndarray = deep - s[2] / np.where(s[3] > 0, s[3], 1.0)
        return growth

    [interval] = sum_intervals(sums[:, None, :], statistic, has_data)
    return Difference(float(statistic(total)), *interval, None, int(has_data.sum()))


def recovered_share(facts: ConditionFacts, reference: ConditionFacts, patch: str) -> float | None:
    """The share of the excess of fresh over the chain, in drafts per start, that this patch gives back.

    None without path patches in both, or where fresh has no excess.
    """
    fresh, carried = _excess(facts, reference, "fresh"), _excess(facts, reference, patch)
    if fresh is None or carried is None or fresh <= 0:
        return None
    return carried / fresh


def _excess(facts: ConditionFacts, reference: ConditionFacts, id: str) -> float | None:
    ours, theirs = (next((c for c in f.counts if c.id == id), None) for f in (facts, reference))
    if ours is None or theirs is None:
        return None
    shared = sorted(set(ours.prompt_ids) & set(theirs.prompt_ids))
    if not shared:
        return None
    return _one_step_gain(ours, shared) - _one_step_gain(theirs, shared)


def _one_step_gain(counts: Counts, prompts: list[str]) -> float:
    rows = [counts.prompt_ids.index(prompt) for prompt in prompts]
    gained = (counts.accepted[rows] - counts.baseline_accepted[rows]).sum()
    return float(gained / max(1, counts.num_starts[rows, 0].sum()))
