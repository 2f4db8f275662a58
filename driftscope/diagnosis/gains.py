"""What interventions gained: from counts by prompt and depth to gains with intervals, corrected for their number.

Knows no verdicts. Prompts whose text loops, or whose rewritten text does, are left out.

A gain counts when it is large enough, its interval lies above 0, and its family-wise p-value (`stats.family`) is small
enough. Interventions that were suspects before any acceptance was looked at do not have to compete with all others: there
are three families, named by how the condition differs from the reference, by the files, or by nothing. Those that hold
anything share the level equally, so that together they keep it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from driftscope.runs import BatchKey
from driftscope.runs.schema import CONDITION
from driftscope.stats.family import family_p_values, paired_contributions
from driftscope.stats.paired import NO_DIFFERENCE, Difference, paired_difference
from driftscope.stats.thresholds import (
    COUNTED_MIN_GAIN_TOKENS,
    INTERVAL_CONFIDENCE,
    INTERVAL_MIN_PROMPTS,
    VERDICT_MIN_TOKENS,
)
from probes.interventions.registry import BASELINE, PROOF_KINDS, REPLAYED
from probes.record import ConditionKey

NAMED_BY_CONDITION = ("reference_", REPLAYED)
"""Beginnings of ids that are tried only where something is known to differ from the reference: the system prompt, the
template, the target, the engine."""


@dataclass(frozen=True)
class Counts:
    """One intervention under one condition, int64 [prompt, depth] in the order of `prompt_ids`."""

    id: str
    kind: str
    prompt_ids: tuple[str, ...]
    num_starts: np.ndarray
    accepted: np.ndarray
    baseline_accepted: np.ndarray


@dataclass(frozen=True)
class Gain:
    """`difference` in dense tokens_per_round; for kind path in drafts per start, one step at each depth."""

    id: str
    kind: str
    difference: Difference
    suspected_by: str = ""  # "condition" | "files": named before any acceptance was looked at
    p_value: float | None = None  # one-sided, over its family
    is_counted: bool = False

    @property
    def tokens(self) -> float:
        """The estimate; 0 without one."""
        return self.difference.estimate or 0.0

    @property
    def is_repair(self) -> bool:
        """Counted, and large enough to prove a cause."""
        return self.is_counted and self.tokens >= VERDICT_MIN_TOKENS


def counts_by_condition(table: pa.Table, degenerate: Collection[BatchKey]) -> dict[ConditionKey, list[Counts]]:
    """The gains in a run's interventions table, in the order in which they were run."""
    columns = {name: table[name].to_pylist() for name in table.column_names}
    groups: dict[tuple[ConditionKey, str, str], dict[str, list[tuple[int, int, int, int]]]] = {}
    for i in range(table.num_rows):
        condition = ConditionKey(*(columns[name][i] for name in CONDITION))
        prompt_id = columns["prompt_id"][i]
        if columns["is_degenerate"][i] or BatchKey(*condition, prompt_id) in degenerate:
            continue
        rows = groups.setdefault((condition, columns["id"][i], columns["kind"][i]), {}).setdefault(prompt_id, [])
        counted = (columns[name][i] for name in ("depth", "num_starts", "accepted", "baseline_accepted"))
        rows.append(tuple(counted))
    result: dict[ConditionKey, list[Counts]] = {}
    for (condition, id, kind), prompts in groups.items():
        ids = tuple(sorted(prompts))
        values = np.array([sorted(prompts[p]) for p in ids], dtype=np.int64)  # [prompt, depth, column]
        result.setdefault(condition, []).append(Counts(id, kind, ids, *np.moveaxis(values, -1, 0)[1:]))
    return result


def gains(
    counts: list[Counts], *, rounds: Counts | None = None, context_tokens: int = 0, suspects: tuple[str, ...] = ()
) -> list[Gain]:
    """Every intervention of one condition but the baseline, the largest gain first.

    `rounds`: what the run's own engine accepted, where that was no replay. `suspects`: beginnings of the ids that the
    files name; those that the condition names are added.
    """
    baseline = next((c for c in counts if c.id == BASELINE), None)
    pairs = [_paired(c, rounds if c.id == REPLAYED else baseline) for c in counts if c.id != BASELINE]
    by_condition = NAMED_BY_CONDITION + (("rope_", "window_") if context_tokens else ())
    found = [pair.gain() for pair in pairs]
    families: dict[str, list[int]] = {}
    for i, gain in enumerate(found):
        if gain.kind in PROOF_KINDS:
            named = "condition" if gain.id.startswith(by_condition) else "files" if gain.id.startswith(suspects) else ""
            found[i] = replace(gain, suspected_by=named)
            families.setdefault(named, []).append(i)
    level = (1 - INTERVAL_CONFIDENCE) / max(1, len(families))
    for family in families.values():
        for i, p in zip(family, _family_p_values([pairs[i] for i in family]), strict=True):
            gain = found[i]
            is_known = gain.difference.num_prompts >= INTERVAL_MIN_PROMPTS
            found[i] = replace(
                gain,
                p_value=p if is_known else None,
                is_counted=is_known
                and p <= level
                and gain.tokens >= COUNTED_MIN_GAIN_TOKENS
                and gain.difference.is_above_zero,
            )
    return sorted(found, key=lambda g: -(g.difference.estimate if g.difference.estimate is not None else -np.inf))


@dataclass(frozen=True)
class _Pair:
    """An intervention's counts beside those that it is compared with, over the prompts that both have [prompt]."""

    counts: Counts
    prompt_ids: tuple[str, ...]
    accepted: np.ndarray
    num_starts: np.ndarray
    base_accepted: np.ndarray
    base_num_starts: np.ndarray

    def gain(self) -> Gain:
        counts = self.counts
        if not self.prompt_ids:
            return Gain(counts.id, counts.kind, NO_DIFFERENCE)
        sides = (self.accepted, self.num_starts, self.base_accepted, self.base_num_starts)
        return Gain(counts.id, counts.kind, paired_difference(*sides))


def _paired(counts: Counts, baseline: Counts | None) -> _Pair:
    if counts.kind == "path":  # one step at each depth, against the chain at the same positions
        num = counts.num_starts[:, 0]
        own, base = counts.accepted, counts.baseline_accepted
        ids, num_own, num_base = counts.prompt_ids, num, num
    else:
        index = {} if baseline is None else {p: i for i, p in enumerate(baseline.prompt_ids)}
        rows = [(i, index[p]) for i, p in enumerate(counts.prompt_ids) if p in index]
        ours, theirs = (np.array(r, dtype=np.int64) for r in (zip(*rows, strict=True) if rows else ((), ())))
        ids = tuple(counts.prompt_ids[i] for i in ours)
        base_counts = counts if baseline is None else baseline
        own, base = counts.accepted[ours], base_counts.accepted[theirs]
        num_own, num_base = counts.num_starts[ours, 0], base_counts.num_starts[theirs, 0]
    return _Pair(counts, ids, own.sum(axis=1), num_own, base.sum(axis=1), num_base)


def _family_p_values(family: list[_Pair]) -> list[float]:
    """Over all prompts that any of them has; a prompt that one lacks adds nothing to that one."""
    prompts = sorted({prompt for pair in family for prompt in pair.prompt_ids})
    if not prompts:
        return [1.0] * len(family)
    row = {prompt: i for i, prompt in enumerate(prompts)}
    contributions = np.zeros((len(family), len(prompts)))
    for i, pair in enumerate(family):
        contributions[i, [row[p] for p in pair.prompt_ids]] = paired_contributions(
            pair.accepted, pair.num_starts, pair.base_accepted, pair.base_num_starts
        )
    return [float(p) for p in family_p_values(contributions)]
