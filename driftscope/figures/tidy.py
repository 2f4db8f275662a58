"""What a figure is made of: small frozen rows. None stands for "not measured" everywhere.

Knows no run folder: whoever calls fills these from a summary or a query. `drafter` is the drafter's place in the whole
list of drafters, so that the same drafter has the same colour in every figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A number, its 95 % interval and what it stands on."""

    value: float | None
    low: float | None = None
    high: float | None = None
    num_prompts: int | None = None
    num_rounds: int | None = None

    @property
    def holds_zero(self) -> bool | None:
        """For a difference: the interval holds 0. None without an interval."""
        return None if self.low is None or self.high is None else self.low <= 0 <= self.high


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Both sides of a paired difference, each over the prompts that both have: neither is the side's own mean over all
    of its prompts."""

    value: float
    baseline: float


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of a heat map; `key` comes back when it is clicked."""

    row: str
    column: str
    estimate: Estimate
    key: str = ""
    is_baseline: bool = False
    pair: Pair | None = None  # of a difference: what was subtracted from what


@dataclass(frozen=True, kw_only=True)
class Point:
    """One drafter under one condition."""

    label: str  # drafter, and run where there are several
    condition: str
    estimate: Estimate
    drafter: int = 0
    variant: int = 0  # 0, 1, ...: which of the series that share the drafter's colour
    key: str = ""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One series over `x` (depths, context lengths), an estimate at each."""

    label: str
    x: Sequence[float]
    estimates: Sequence[Estimate]
    drafter: int = 0
    variant: int = 0


@dataclass(frozen=True, kw_only=True)
class RegionMasses:
    """Head-mean attention probability by region: `mass[region][depth - 1]`, 0..1."""

    label: str
    mass: Mapping[str, Sequence[float | None]]


@dataclass(frozen=True, kw_only=True)
class HeadMasses:
    """One quantity by head and depth: `values[head][depth - 1]`."""

    label: str
    values: Sequence[Sequence[float | None]]
    num_rounds: int | None = None


@dataclass(frozen=True, kw_only=True)
class Losses:
    """An average round: what it yields, and the lost tokens by cause; together K + 1."""

    label: str
    tokens_per_round: float
    parts: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Share:
    """One part of the fused state: `part` is the aux layer's boundary id, or "bias"."""

    label: str
    part: str
    estimate: Estimate
    drafter: int = 0
    variant: int = 0
