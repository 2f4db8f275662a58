"""Looks into a few rows of large tensors: are they alive, and are they the target's? numpy only.

Reads some kB of each tensor, from the disk or by ranges from the Hub. Knows no check.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from probes.checkpoint.safetensors_file import FLOAT_DTYPES, TensorEntry, read_array

Rows = np.ndarray[Any, np.dtype[np.float32]]

PLACES = 8  # where a tensor is looked at; one place for tensors on the Hub, as each is a request
ROWS_AT_PLACE = 8
SMALL_BYTES = 1 << 20  # read whole


@dataclass(frozen=True, kw_only=True)
class Likeness:
    """How like two tensors are, row by row. `cosine` is the mean over rows that are not zero in both."""

    num_rows: int
    is_equal: bool  # up to bfloat16's rounding
    cosine: float


def is_float(entry: TensorEntry) -> bool:
    return entry.dtype in FLOAT_DTYPES


def sample(entry: TensorEntry, num_places: int = PLACES) -> Rows:
    """Some rows of a float tensor as float32 [row, column]; a small or one-axis tensor whole (as one row)."""
    if len(entry.shape) < 2 or (entry.num_bytes <= SMALL_BYTES and num_places > 1):
        return read_array(entry).astype(np.float32).reshape(-1, entry.shape[-1] if entry.shape else 1)
    return np.concatenate([_rows(entry, start, count) for start, count in _places(entry.shape[0], num_places)])


def sample_same(a: TensorEntry, b: TensorEntry, num_places: int = PLACES) -> tuple[Rows, Rows]:
    """The same rows of two tensors with two axes; the shorter one says how many there are."""
    places = list(_places(min(a.shape[0], b.shape[0]), num_places))
    return (
        np.concatenate([_rows(a, start, count) for start, count in places]),
        np.concatenate([_rows(b, start, count) for start, count in places]),
    )


def pick(entry: TensorEntry, rows: Sequence[int]) -> Rows:
    """These rows as float32 [row, column]."""
    return np.concatenate([_rows(entry, int(row), 1) for row in rows])


def likeness(a: Rows, b: Rows) -> Likeness:
    norms = np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1)
    used = (norms[0] > 0) | (norms[1] > 0)  # rows of padding are zero in both
    dots = np.einsum("rc,rc->r", a[used], b[used])
    cosines = dots / np.maximum(norms[0][used] * norms[1][used], np.finfo(np.float32).tiny)
    is_equal = bool(np.allclose(a, b, rtol=2**-7, atol=1e-6))
    return Likeness(num_rows=len(a), is_equal=is_equal, cosine=float(cosines.mean()) if used.any() else 1.0)


def dead(rows: Rows) -> str:
    """What is wrong with these values: "" when nothing is."""
    if not np.isfinite(rows).all():
        return "holds NaN or infinity"
    return "" if rows.any() else "is zero in every row looked at"


def _rows(entry: TensorEntry, start: int, count: int) -> Rows:
    width = math.prod(entry.shape[1:])
    row_bytes = entry.num_bytes // entry.shape[0]
    part = replace(entry, shape=(count, width), start=entry.start + start * row_bytes, num_bytes=count * row_bytes)
    return read_array(part).astype(np.float32)


def _places(num_rows: int, num_places: int) -> list[tuple[int, int]]:
    """(first row, rows), spread evenly; the middle when there is one place."""
    count = min(ROWS_AT_PLACE, num_rows)
    if num_places == 1:
        return [((num_rows - count) // 2, count)]
    starts = np.linspace(0, num_rows - count, num_places).astype(int)
    return [(int(start), count) for start in sorted(set(starts.tolist()))]
