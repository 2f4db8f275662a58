"""From times to rates and ratios with intervals. Knows no engine.

A user's rate is resampled over prompts, each the sum of its repetitions; the total rate over repetitions, in which the
engines took turns, so that a pair of them saw the same machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from driftscope.bench.bench_result import Estimate, Ratio, Row, Variant
from driftscope.stats.intervals import ratio_intervals
from driftscope.stats.paired import paired_difference


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One repetition of one variant. Lists are over prompts, in the same order everywhere."""

    variant: Variant
    concurrency: int
    wall_seconds: float
    seconds: Sequence[float]
    tokens: Sequence[int]
    digests: Sequence[str]  # of each response's token ids
    num_drafts: int
    num_accepted: int


@dataclass(frozen=True)
class _Cell:
    """All repetitions of one variant at one concurrency."""

    samples: Sequence[Sample]

    @property
    def by_prompt(self) -> tuple[np.ndarray, np.ndarray]:
        """-> (tokens, seconds), each [prompt]."""
        return np.sum([s.tokens for s in self.samples], axis=0), np.sum([s.seconds for s in self.samples], axis=0)

    @property
    def by_repetition(self) -> tuple[np.ndarray, np.ndarray]:
        """-> (tokens, wall seconds), each [repetition]."""
        return np.array([sum(s.tokens) for s in self.samples]), np.array([s.wall_seconds for s in self.samples])

    @property
    def tokens_per_round(self) -> float | None:
        num_drafts = sum(s.num_drafts for s in self.samples)
        return 1 + sum(s.num_accepted for s in self.samples) / num_drafts if num_drafts else None


def rows_of(samples: Sequence[Sample]) -> list[Row]:
    """In the order in which variants and concurrencies first appear."""
    cells: dict[tuple[int, Variant], list[Sample]] = {}
    for sample in samples:
        cells.setdefault((sample.concurrency, sample.variant), []).append(sample)
    return [_row(concurrency, variant, cells) for concurrency, variant in cells]


def whole_repetitions(samples: Sequence[Sample]) -> list[Sample]:
    """A bench that ended early: at each concurrency as many repetitions of every engine as all have that have one,
    and none where there is nothing without speculation to compare with."""
    cells: dict[int, dict[Variant, list[Sample]]] = {}
    for sample in samples:
        cells.setdefault(sample.concurrency, {}).setdefault(sample.variant, []).append(sample)
    whole = []
    for of in cells.values():
        shortest = min(map(len, of.values())) if Variant() in of else 0
        whole += [sample for cell in of.values() for sample in cell[:shortest]]
    return whole


def unresolved(rows: Sequence[Row]) -> int:
    """How many ratios are."""
    return sum(
        ratio is not None and not ratio.resolved
        for row in rows
        for ratio in (row.user_speedup, row.total_speedup, row.user_recording, row.total_recording)
    )


def _row(concurrency: int, variant: Variant, cells: dict[tuple[int, Variant], list[Sample]]) -> Row:
    cell, plain = _Cell(cells[concurrency, variant]), _Cell(cells[concurrency, Variant()])
    row = Row(
        variant=variant,
        concurrency=concurrency,
        user_tokens_per_s=_rate(*cell.by_prompt),
        total_tokens_per_s=_rate(*cell.by_repetition),
        tokens_per_round=cell.tokens_per_round,
        num_texts=len(cell.samples[0].digests),
    )
    if variant != Variant():
        row.user_speedup = _ratio(cell.by_prompt, plain.by_prompt, Variant())
        row.total_speedup = _ratio(cell.by_repetition, plain.by_repetition, Variant())
        pairs = zip(cell.samples[0].digests, plain.samples[0].digests, strict=True)
        row.num_texts_equal = sum(ours == theirs for ours, theirs in pairs)
    stock = Variant(drafter=variant.drafter)
    if variant != stock and (concurrency, stock) in cells:
        base = _Cell(cells[concurrency, stock])
        row.user_recording = _ratio(cell.by_prompt, base.by_prompt, stock)
        row.total_recording = _ratio(cell.by_repetition, base.by_repetition, stock)
    return row


def _rate(tokens: np.ndarray, seconds: np.ndarray) -> Estimate:
    [interval] = ratio_intervals(tokens[None], seconds[None])
    estimate = float(tokens.sum() / seconds.sum()) if seconds.sum() > 0 else None
    return Estimate(estimate=estimate, low=interval.low, high=interval.high, num_units=len(tokens))


def _ratio(ours: tuple[np.ndarray, np.ndarray], base: tuple[np.ndarray, np.ndarray], baseline: Variant) -> Ratio:
    found = paired_difference(*ours, *base, is_relative=True)
    low, high = (None if x is None else 1 + x for x in (found.low, found.high))
    estimate = None if found.estimate is None else 1 + found.estimate
    one = Estimate(estimate=estimate, low=low, high=high, num_units=found.num_prompts)
    return Ratio(**one.model_dump(), baseline=str(baseline), resolved=one.is_resolved)
