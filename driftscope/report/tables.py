"""A table of the report: strings, ready to be shown. Knows no data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Table:
    """The first `num_labels` columns are words, the others are numbers; the first column names its row."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    num_labels: int = 1


def number(value: float | None, decimals: int = 2, *, is_signed: bool = False) -> str:
    """Empty when it was not measured."""
    return "" if value is None else f"{value:{'+' if is_signed else ''},.{decimals}f}"


def interval(low: float | None, high: float | None, decimals: int = 2, *, is_signed: bool = False) -> str:
    """`low to high`; empty without one."""
    if low is None or high is None:
        return ""
    return f"{number(low, decimals, is_signed=is_signed)} to {number(high, decimals, is_signed=is_signed)}"
