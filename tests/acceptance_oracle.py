"""Acceptance counted round by round in numpy: what the SQL of `driftscope.quantities` must agree with.

Rounds come in as `num_drafts` and `accepted_drafts` (0..K, without the bonus token). Index 0 of a depth axis is depth 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from driftscope.stats.acceptance import ratios


@dataclass(frozen=True, kw_only=True)
class AcceptanceCounts:
    """Rounds counted by depth, each int64 [depth], or [prompt, depth] when counted by prompt."""

    drafted: np.ndarray  # rounds with num_drafts >= k
    reached: np.ndarray  # of these, accepted through k-1
    accepted: np.ndarray  # of these, accepted at k

    def marginal(self) -> list[float | None]:
        """Share of the rounds with num_drafts >= k in which depth k was accepted, over all prompts [depth].

        vLLM's "per-position acceptance rate" divides by all rounds instead: the same where every round drafts K.
        """
        return ratios(_pooled(self.accepted), _pooled(self.drafted))

    def conditional(self) -> list[float | None]:
        """Accepted at k / rounds with num_drafts >= k that were accepted through k-1, over all prompts [depth].

        At depth 1 it is the marginal; it equals marginal[k] / marginal[k-1] when num_drafts = K everywhere.
        """
        return ratios(_pooled(self.accepted), _pooled(self.reached))


def acceptance_counts(
    num_drafts: np.ndarray,
    accepted_drafts: np.ndarray,
    *,
    depth: int,
    num_rounds: np.ndarray | None = None,
    prompt: np.ndarray | None = None,
    num_prompts: int = 0,
) -> AcceptanceCounts:
    """Count rounds by depth 1..`depth`.

    `num_drafts`, `accepted_drafts` [round]: drafted and accepted tokens of each round. `num_rounds` [round]: how many
    equal rounds each entry stands for (1 when None), so that a histogram can be passed instead of single rounds.
    `prompt` [round], 0..num_prompts-1: count by prompt.
    """
    weight = np.ones(len(num_drafts)) if num_rounds is None else num_rounds

    def count(is_counted: np.ndarray) -> np.ndarray:  # [round, depth] -> [depth] or [prompt, depth]
        weighted = is_counted * weight[:, None]
        if prompt is None:
            counts = weighted.sum(axis=0)
        else:
            counts = np.zeros((num_prompts, depth))
            np.add.at(counts, prompt, weighted)
        whole: np.ndarray = counts.astype(np.int64)
        return whole

    depths = np.arange(1, depth + 1)
    is_drafted = num_drafts[:, None] >= depths  # [round, depth]
    return AcceptanceCounts(
        drafted=count(is_drafted),
        reached=count(is_drafted & (accepted_drafts[:, None] >= depths - 1)),
        accepted=count(is_drafted & (accepted_drafts[:, None] >= depths)),
    )


def tokens_per_round(accepted_drafts: np.ndarray) -> float | None:
    """Pooled mean over rounds of accepted_drafts + 1 (the bonus token counts). None without rounds."""
    return float(np.mean(accepted_drafts)) + 1.0 if len(accepted_drafts) else None


def tokens_per_round_prompt_mean(accepted_drafts: np.ndarray, prompt: np.ndarray) -> float | None:
    """Mean over prompts of each prompt's own tokens_per_round: every prompt weighs the same, however many rounds it has.

    `prompt` [round] names the prompt of each round (any values that compare equal within a prompt).
    """
    if not len(accepted_drafts):
        return None
    _, index = np.unique(prompt, return_inverse=True)
    accepted_by_prompt = np.bincount(index, weights=accepted_drafts)
    return float(np.mean(accepted_by_prompt / np.bincount(index))) + 1.0


def _pooled(counts: np.ndarray) -> np.ndarray:
    pooled: np.ndarray = counts.sum(axis=0) if counts.ndim == 2 else counts
    return pooled
