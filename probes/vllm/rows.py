"""What one engine step leaves behind of each request: one row of 4-byte words, the same on the device and in numpy.

A numpy dtype describes the row; tensor views of the same words are what hooks and kernels write, inside CUDA graphs too
(their addresses never change). Knows nothing of vLLM.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from probes.record import COLUMNS, REGIONS, Column

LEVELS = ("counts", "default", "heads")
"""counts: accepted counts, drafts, times. default: + norms, fusion shares, head-mean masses. heads: all regions by head."""


COUNTED = ("start", "draft_token")
"""At every level; `start` is slot t of the round drafted in this step."""
MEASURED = (
    "hidden_in_norm",  # layer 0's; later layers' only where eager
    "hidden_out_norm",  # the last layer's
    "hidden_feedback_norm",
    "fusion_share",
    "fusion_energy",
    "aux_norm",
    "mass",
    "attention_entropy",
)
"""From level `default` on."""
HOOKED = ("branch_norm_attn", "branch_norm_mlp", "input_share_embed")
"""From there on where the drafter runs eagerly: they need hooks that compiled code never calls."""


def column_of(name: str) -> Column:
    """How `RoundBatch` declares a column of a row; one field has the masses of all regions."""
    return COLUMNS["mass_own" if name == "mass" else name]


@dataclass(frozen=True, kw_only=True)
class RowLayout:
    """The columns of one row. K depths, A aux layers, Y drafter layers, H heads of this worker (1 at level default: their
    mean)."""

    level: str
    depth: int
    num_aux: int
    num_layers: int
    num_heads: int
    num_ranks: int = 1  # tensor parallel workers; each has `num_heads` of the heads
    is_eager: bool = False

    @functools.cached_property
    def columns(self) -> tuple[str, ...]:
        """What a row holds of `RoundBatch`'s columns."""
        if self.level == "counts":
            return COUNTED
        return (*COUNTED, *MEASURED, *(HOOKED if self.is_eager else ()))

    @functools.cached_property
    def dtype(self) -> np.dtype:
        fields: list[tuple[Any, ...]] = [
            ("serial", "<i4"),  # of the step, see transport
            ("num_sampled", "<i4"),  # tokens that this step emitted; 0 for an unfinished prefill
            ("emitted", "<i4", (self.depth + 1,)),
            *map(self._field, self.columns),
        ]
        if "input_share_embed" in self.columns:  # of this worker's rows of q, k and v
            fields.append(("input_energy", "<f4", (self.depth,)))  # their square, by which workers' shares are weighted
        return np.dtype(fields)

    def _field(self, name: str) -> tuple[Any, ...]:
        """As `record.COLUMNS` has it, of one round; the masses of all regions are one field."""
        sizes = {
            "depth": self.depth,
            "layer": self.num_layers,
            "head": self.num_heads if self.level == "heads" else 1,
            "aux": self.num_aux,
        }
        column = column_of(name)
        shape = tuple(sizes[axis] for axis in column.axes.split()[1:])
        kind = {"float32": "<f4", "int32": "<i4"}[column.stored]
        return (name, kind, (*shape, len(REGIONS)) if name == "mass" else shape)


class Rows:
    """The rows of a whole batch on the device, and a view of each column: [row, ...]."""

    def __init__(self, layout: RowLayout, num_rows: int, device: torch.device) -> None:
        self.layout = layout
        self.words = torch.zeros(num_rows, layout.dtype.itemsize // 4, dtype=torch.int32, device=device)
        floats = self.words.view(torch.float32)
        self.columns: dict[str, Tensor] = {}
        self._first: dict[tuple[str, int], Tensor] = {}
        for name, (kind, offset) in _fields(layout.dtype).items():
            first, count = offset // 4, kind.itemsize // 4
            whole = floats if kind.base.kind == "f" else self.words
            self.columns[name] = whole[:, first : first + count].view(num_rows, *kind.shape)

    def __getitem__(self, name: str) -> Tensor:
        return self.columns[name]

    def first(self, name: str, num_rows: int) -> Tensor:
        """A column of the first rows; the view is kept, as making one costs as much as a small launch."""
        view = self._first.get((name, num_rows))
        if view is None:
            view = self._first[name, num_rows] = self.columns[name][:num_rows]
        return view

    def first_word(self, name: str) -> int:
        """Where a column begins in its row, in words."""
        return _fields(self.layout.dtype)[name][1] // 4

    def __contains__(self, name: str) -> bool:
        return name in self.columns


def as_records(words: np.ndarray, layout: RowLayout) -> np.ndarray:
    """int32 [row, word] -> structured [row]."""
    return np.ascontiguousarray(words).view(layout.dtype)[:, 0]


def _fields(dtype: np.dtype) -> Mapping[str, tuple[np.dtype, int]]:
    return {name: (kind, offset) for name, (kind, offset, *_) in (dtype.fields or {}).items()}
