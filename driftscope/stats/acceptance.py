"""Acceptance, by the one set of definitions that every part of driftscope uses.

Knows neither prompts' text nor drafters: rounds come in as `num_drafts` and `accepted_drafts` (0..K, without the bonus
token). Index 0 of a depth axis is depth 1. A ratio whose denominator is 0 is None, never NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class AcceptanceCounts:
    """Rounds counted by depth, each int64 [depth]."""

    drafted: np.ndarray  # rounds with num_drafts >= k
    reached: np.ndarray  # of these, accepted through k-1
    accepted: np.ndarray  # of these, accepted at k

    def marginal(self) -> list[float | None]:
        """Share of the rounds with num_drafts >= k in which depth k was accepted; non-increasing when num_drafts = K.

        vLLM's "per-position acceptance rate" divides by all rounds instead, the same where every round drafts K.
        """
        return ratios(self.accepted, self.drafted)

    def conditional(self) -> list[float | None]:
        """Accepted at k / rounds with num_drafts >= k that were accepted through k-1. At depth 1 the same as marginal."""
        return ratios(self.accepted, self.reached)


def acceptance_counts(
    num_drafts: np.ndarray,
    accepted_drafts: np.ndarray,
    *,
    depth: int,
    num_rounds: np.ndarray | None = None,
) -> AcceptanceCounts:
    """Count rounds by depth 1..`depth`.

    `num_drafts`, `accepted_drafts` [round]: drafted and accepted tokens of each round. `num_rounds` [round]: how many
    equal rounds each entry stands for (1 when None), so that a histogram can be passed instead of single rounds.
    """
    weight = np.ones(len(num_drafts), dtype=np.int64) if num_rounds is None else num_rounds.astype(np.int64)
    depths = np.arange(1, depth + 1)[:, None]  # [depth, 1]
    is_drafted = num_drafts[None, :] >= depths  # [depth, round]
    is_reached = is_drafted & (accepted_drafts[None, :] >= depths - 1)
    is_accepted = is_drafted & (accepted_drafts[None, :] >= depths)
    return AcceptanceCounts(
        drafted=is_drafted @ weight,
        reached=is_reached @ weight,
        accepted=is_accepted @ weight,
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


def ratios(numerator: np.ndarray, denominator: np.ndarray) -> list[float | None]:
    """Elementwise ratio; None where the denominator is 0."""
    return [float(n / d) if d else None for n, d in zip(numerator, denominator, strict=True)]
