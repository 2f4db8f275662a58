"""Paired differences of tokens_per_round: the same prompts under two conditions.

Shows nothing; the statistics are `driftscope.stats.paired`. Only prompts that both sides have, with the same messages, and
whose response is degenerate on neither side take part. A difference is kept once computed: a filter change recomputes
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from driftscope.figures import Estimate
from driftscope.stats.paired import Difference, paired_difference


class PromptTokens(NamedTuple):
    """What one prompt adds under one condition."""

    num_tokens: int
    num_rounds: int


Prompts = Mapping[tuple[str, str], PromptTokens]
"""(prompt_id, sha256 of its messages) -> tokens and rounds."""

ConditionKey = tuple[str, str, str, int]


class Compared(NamedTuple):
    """A difference as it is drawn, and its p-value for a correction over several."""

    estimate: Estimate
    p_value: float | None


def prompts_by_condition(sums: pa.Table, basis: str) -> dict[ConditionKey, dict[tuple[str, str], PromptTokens]]:
    """From `aggregates.prompt_sums`: (drafter, system_prompt, template, context_tokens) -> its prompts."""
    names = ("drafter", "system_prompt", "template", "context_tokens", "prompt_id", "sha256", "is_degenerate")
    columns = [sums[name].to_pylist() for name in (*names, f"{basis}_tokens", f"{basis}_rounds")]
    conditions: dict[ConditionKey, dict[tuple[str, str], PromptTokens]] = {}
    for drafter, system, template, context, prompt, sha256, is_degenerate, tokens, rounds in zip(*columns, strict=True):
        prompts = conditions.setdefault((drafter, system, template, context), {})
        if rounds and not is_degenerate:
            prompts[prompt, sha256] = PromptTokens(tokens, rounds)
    return conditions


def difference(first: Prompts, second: Prompts) -> Compared:
    """tokens_per_round of the first minus that of the second. num_rounds is that of the first; the value is None
    without a common prompt."""
    common = sorted(first.keys() & second.keys())
    found = _difference(tuple((*first[key], *second[key]) for key in common))
    estimate = Estimate(
        value=found.estimate,
        low=found.low,
        high=found.high,
        num_prompts=found.num_prompts,
        num_rounds=sum(first[key].num_rounds for key in common),
    )
    return Compared(estimate, found.p_value)


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
    return difference(*sums).estimate


@lru_cache(maxsize=8_192)
def _difference(rows: tuple[tuple[int, int, int, int], ...]) -> Difference:
    sums = np.array(rows, dtype=np.float64).reshape(-1, 4)
    return paired_difference(*sums.T)
