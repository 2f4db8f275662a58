"""What interventions gained: from counts by prompt and depth to gains with intervals, corrected for their number.

Knows no verdicts. Prompts whose text loops, or whose rewritten text does, are left out.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from driftscope.runs import BatchKey
from driftscope.runs.schema import CONDITION
from driftscope.stats.paired import NO_DIFFERENCE, Difference, holm, paired_difference
from driftscope.stats.thresholds import COUNTED_MIN_GAIN_TOKENS, VERDICT_MIN_TOKENS
from probes.interventions.base import PROOF_KINDS
from probes.interventions.registry import BASELINE

ConditionKey = tuple[str, str, str, int]


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
    first_difference: float | None  # of the acceptance at depth 1 alone
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
    """Of a run's interventions table, in the order in which they were run."""
    columns = {name: table[name].to_pylist() for name in table.column_names}
    groups: dict[tuple[ConditionKey, str, str], dict[str, list[tuple[int, int, int, int]]]] = {}
    for i in range(table.num_rows):
        condition: ConditionKey = tuple(columns[name][i] for name in CONDITION)
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


def gains(counts: list[Counts]) -> list[Gain]:
    """Every intervention of one condition but the baseline, the largest gain first; Holm over the kinds that prove."""
    baseline = next((c for c in counts if c.id == BASELINE), None)
    found = [_gain(c, baseline) for c in counts if c.id != BASELINE]
    proofs = [g for g in found if g.kind in PROOF_KINDS]
    holds = dict(zip((g.id for g in proofs), holm([g.difference.p_value for g in proofs]), strict=True))
    found = [
        replace(
            g,
            is_counted=holds.get(g.id, False)
            and (g.difference.estimate or 0.0) >= COUNTED_MIN_GAIN_TOKENS
            and g.difference.is_above_zero,
        )
        for g in found
    ]
    return sorted(found, key=lambda g: -(g.difference.estimate if g.difference.estimate is not None else -np.inf))


def _gain(counts: Counts, baseline: Counts | None) -> Gain:
    if counts.kind == "path":
        num = counts.num_starts[:, 0]
        difference = paired_difference(counts.accepted.sum(axis=1), num, counts.baseline_accepted.sum(axis=1), num)
        return Gain(counts.id, counts.kind, difference, 0.0)
    if baseline is None:
        return Gain(counts.id, counts.kind, NO_DIFFERENCE, None)
    index = {p: i for i, p in enumerate(baseline.prompt_ids)}
    rows = [(i, index[p]) for i, p in enumerate(counts.prompt_ids) if p in index]
    if not rows:
        return Gain(counts.id, counts.kind, NO_DIFFERENCE, None)
    own, base = (np.array(r) for r in zip(*rows, strict=True))
    num, base_num = counts.num_starts[own, 0], baseline.num_starts[base, 0]
    difference = paired_difference(counts.accepted[own].sum(axis=1), num, baseline.accepted[base].sum(axis=1), base_num)
    is_used = (num > 0) & (base_num > 0)
    first = None
    if is_used.any():
        first = float(
            counts.accepted[own, 0][is_used].sum() / num[is_used].sum()
            - baseline.accepted[base, 0][is_used].sum() / base_num[is_used].sum()
        )
    return Gain(counts.id, counts.kind, difference, first)
