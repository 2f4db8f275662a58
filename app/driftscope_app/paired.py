"""Paired differences of tokens_per_round: the same prompts under two conditions.

Shows nothing. Which prompts are the same is `driftscope.compare`'s, the statistics are `driftscope.stats`'. Prompts whose
response is degenerate on either side take no part. A difference is kept once computed: a filter change recomputes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from driftscope.compare.pairing import PromptName, Prompts, PromptSums, pair, paired_sums
from driftscope.figures import Estimate, Pair
from driftscope.stats.paired import Difference, paired_difference
from probes.record import ConditionKey, PromptConditionKey


class Compared(NamedTuple):
    """A difference as it is drawn, both sides of it over the common prompts, and its p-value for a correction over
    several."""

    estimate: Estimate
    pair: Pair | None  # None without a common prompt
    p_value: float | None


def prompts_by_condition(sums: pa.Table, basis: str) -> dict[ConditionKey, dict[PromptName, PromptSums]]:
    """From `aggregates.prompt_sums`: condition -> tokens and rounds."""
    names = (*ConditionKey._fields, "prompt_id", "turns", "is_degenerate")
    columns = [sums[name].to_pylist() for name in (*names, f"num_{basis}_tokens", f"num_{basis}_rounds")]
    conditions: dict[ConditionKey, dict[PromptName, PromptSums]] = {}
    for *condition, prompt, turns, is_degenerate, tokens, rounds in zip(*columns, strict=True):
        prompts = conditions.setdefault(ConditionKey(*condition), {})
        if rounds and not is_degenerate:
            prompts[PromptName(prompt, turns)] = PromptSums(tokens, rounds)
    return conditions


def difference(first: Prompts, second: Prompts) -> Compared:
    """tokens_per_round of the first minus that of the second. num_rounds is that of the first; the value is None
    without a common prompt."""
    return _compared(paired_sums(pair(first, second).pairs, first, second))


def pooled_difference(
    first: Mapping[PromptConditionKey, Prompts], second: Mapping[PromptConditionKey, Prompts]
) -> Estimate:
    """Over all conditions (without drafter) that both sides have.

    The prompt is still what is resampled: it brings its rounds of every condition along.
    """
    of_prompt: dict[PromptName, np.ndarray] = {}  # the four sums, [4]
    for key in sorted(first.keys() & second.keys()):
        pairs = pair(first[key], second[key]).pairs
        for (name, _), sums in zip(pairs, paired_sums(pairs, first[key], second[key]).T, strict=True):
            of_prompt[name] = of_prompt.get(name, np.zeros(4)) + sums
    rows = [of_prompt[name] for name in sorted(of_prompt, key=lambda name: name.prompt_id)]
    return _compared(np.array(rows).reshape(-1, 4).T).estimate


def _compared(sums: np.ndarray) -> Compared:
    """`sums` [4, prompt]."""
    found = _difference(tuple(map(tuple, sums.T.tolist())))
    estimate = Estimate(
        value=found.estimate,
        low=found.low,
        high=found.high,
        num_prompts=found.num_prompts,
        num_rounds=int(sums[1].sum()),
    )
    first_tokens, first_rounds, second_tokens, second_rounds = sums.sum(axis=1).tolist()
    pair = Pair(value=first_tokens / first_rounds, baseline=second_tokens / second_rounds) if first_rounds else None
    return Compared(estimate, pair, found.p_value)


@lru_cache(maxsize=8_192)
def _difference(rows: tuple[tuple[float, ...], ...]) -> Difference:
    return paired_difference(*np.array(rows, dtype=np.float64).reshape(-1, 4).T)
