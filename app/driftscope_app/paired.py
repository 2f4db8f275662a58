"""Paired differences of tokens_per_round: the same prompts under two conditions.

Shows nothing. Only prompts that both sides have, with the same messages, and whose response is degenerate on neither
side take part. The interval resamples prompts (`driftscope.stats.intervals`), so it is that of a paired design.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from driftscope.figures import Estimate
from driftscope.stats.intervals import sum_intervals


@dataclass(frozen=True)
class PromptTokens:
    """What one prompt adds under one condition."""

    num_tokens: int
    num_rounds: int


Prompts = Mapping[tuple[str, str], PromptTokens]
"""(prompt_id, sha256 of its messages) -> tokens and rounds."""


def prompts_by_condition(
    sums: pa.Table, basis: str
) -> dict[tuple[str, str, str, int], dict[tuple[str, str], PromptTokens]]:
    """From `aggregates.prompt_sums`: (drafter, system_prompt, template, context_tokens) -> its prompts."""
    names = ("drafter", "system_prompt", "template", "context_tokens", "prompt_id", "sha256", "is_degenerate")
    columns = [sums[name].to_pylist() for name in (*names, f"{basis}_tokens", f"{basis}_rounds")]
    conditions: dict[tuple[str, str, str, int], dict[tuple[str, str], PromptTokens]] = {}
    for drafter, system, template, context, prompt, sha256, is_degenerate, tokens, rounds in zip(*columns, strict=True):
        prompts = conditions.setdefault((drafter, system, template, context), {})
        if rounds and not is_degenerate:
            prompts[prompt, sha256] = PromptTokens(tokens, rounds)
    return conditions


def paired_differences(pairs: Sequence[tuple[Prompts, Prompts]]) -> list[Estimate]:
    """tokens_per_round of the first minus that of the second, over the prompts both have, for each pair.

    num_rounds is that of the first. The value is None without a common prompt.
    """
    common = [sorted(first.keys() & second.keys()) for first, second in pairs]
    width = max((len(keys) for keys in common), default=0)
    sums = np.zeros((4, len(pairs), width))
    has_data = np.zeros((len(pairs), width), dtype=bool)
    for row, ((first, second), keys) in enumerate(zip(pairs, common, strict=True)):
        has_data[row, : len(keys)] = True
        for column, key in enumerate(keys):
            one, other = first[key], second[key]
            sums[:, row, column] = (one.num_tokens, one.num_rounds, other.num_tokens, other.num_rounds)
    if not width:
        return [Estimate(value=None, num_prompts=0) for _ in pairs]
    intervals = sum_intervals(sums, _difference, has_data)
    return [
        Estimate(
            value=float(_difference(sums[:, row].sum(axis=-1))) if keys else None,
            low=intervals[row].low,
            high=intervals[row].high,
            num_prompts=len(keys),
            num_rounds=int(sums[1, row].sum()),
        )
        for row, keys in enumerate(common)
    ]


def pooled_difference(
    first: Mapping[tuple[tuple[str, str, int], str, str], PromptTokens],
    second: Mapping[tuple[tuple[str, str, int], str, str], PromptTokens],
) -> Estimate:
    """Over all conditions that both sides have: (condition without drafter, prompt_id, sha256) -> tokens and rounds.

    The prompt is still what is resampled: it brings its rounds of every condition along.
    """
    sums: tuple[dict[tuple[str, str], PromptTokens], dict[tuple[str, str], PromptTokens]] = ({}, {})
    for key in first.keys() & second.keys():
        for side, tokens in zip(sums, (first[key], second[key]), strict=True):
            so_far = side.get(key[1:], PromptTokens(0, 0))
            side[key[1:]] = PromptTokens(so_far.num_tokens + tokens.num_tokens, so_far.num_rounds + tokens.num_rounds)
    [estimate] = paired_differences([sums])
    return estimate


def _difference(sums: np.ndarray) -> np.ndarray:
    difference: np.ndarray = sums[0] / sums[1] - sums[2] / sums[3]
    return difference
