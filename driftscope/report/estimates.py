"""A condition's summary -> what figures draw: numbers with their interval and n. Shared with the app."""

from __future__ import annotations

from collections.abc import Mapping

from driftscope.figures import Estimate, Losses
from driftscope.summary import ConditionSummary, TokensPerRound


def tokens_of(summary: ConditionSummary, basis: str) -> TokensPerRound | None:
    """`basis`: walk or dense."""
    return summary.walk if basis == "walk" else summary.dense


def tokens_estimate(summary: ConditionSummary, basis: str) -> Estimate:
    """tokens_per_round; n is the prompts that it is over."""
    tokens = tokens_of(summary, basis)
    if tokens is None:
        return Estimate(value=None, num_prompts=0)
    return Estimate(
        value=tokens.tokens_per_round,
        low=tokens.low,
        high=tokens.high,
        num_prompts=tokens.num_prompts,
        num_rounds=tokens.num_rounds,
    )


def losses_of(label: str, summary: ConditionSummary, parts: Mapping[str, float]) -> Losses:
    """The parts of a waterfall; they add up to K + 1 - tokens_per_round of the same rounds."""
    num_depths = len(summary.acceptance_marginal)
    return Losses(label=label, tokens_per_round=num_depths + 1 - sum(parts.values()), parts=parts)


def depth_estimates(summary: ConditionSummary, name: str) -> list[Estimate]:
    """A depth array of the summary (`quantities.OVER_DEPTH`) with its intervals, n at each depth."""
    intervals = summary.depth_intervals.get(name)
    tokens = tokens_of(summary, summary.depth_basis)
    return [
        Estimate(
            value=value,
            low=intervals.low[k] if intervals else None,
            high=intervals.high[k] if intervals else None,
            num_prompts=intervals.num_prompts[k] if intervals else tokens.num_prompts if tokens else 0,
            num_rounds=tokens.num_rounds if tokens else None,
        )
        for k, value in enumerate(summary.over_depth(name))
    ]
