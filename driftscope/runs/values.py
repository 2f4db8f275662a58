"""What the numbers of a run may be, whoever wrote them: checked batch by batch, before arrays are sized or indexed by them.

Knows no files and no SQL. run.json says how many depths, layers, heads and aux layers there are, and what it says is
bounded itself (`driftscope.runs.info`). The same rules hold for every reader and for `runs verify`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from driftscope.runs.info import MAX_AUX_LAYERS, MAX_DEPTH, MAX_HEADS, MAX_LAYERS, RunInfo
from probes.record import COLUMNS, TEXT_REGIONS

MAX_CANDIDATES = 64  # of a distribution's most probable tokens
MAX_NAME_BYTES = 2**17  # of a drafter, condition, prompt id; long texts stand in `messages` and `notes`
MAX_COUNT = 2**53  # what sums as float64 keep exactly


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The largest value and the longest list that a run's tables may hold."""

    depth: int = MAX_DEPTH
    layers: int = MAX_LAYERS
    heads: int = MAX_HEADS
    aux_layers: int = MAX_AUX_LAYERS

    @classmethod
    def of(cls, info: RunInfo) -> Limits:
        """What run.json says; where it says nothing, the fixed limits."""

        def largest(counts: Sequence[int | None], limit: int) -> int:
            return max((n for n in counts if n is not None), default=limit) if counts and all(counts) else limit

        drafters = info.drafters
        return cls(
            depth=info.depth or MAX_DEPTH,
            layers=largest([d.num_layers for d in drafters], MAX_LAYERS),
            heads=largest([d.num_heads for d in drafters], MAX_HEADS),
            aux_layers=largest([len(d.aux_layer_ids) for d in drafters], MAX_AUX_LAYERS),
        )


MAX_NAME_BYTES_IN_ALL, MAX_NAME_BYTES_A_ROW = 2**26, 256


class Names:
    """How long the names of a table are together: queries keep those of every row, a file only the different ones."""

    def __init__(self) -> None:
        self._num_rows = 0
        self._num_bytes = 0

    def find_fault(self, batch: pa.RecordBatch) -> Fault | None:
        """The last row of a batch with which they are too long on average."""
        self._num_rows += batch.num_rows
        for field in batch.schema:
            if pa.types.is_string(field.type) and field.name != "messages":
                self._num_bytes += pc.sum(pc.binary_length(batch.column(field.name)).cast(pa.int64())).as_py() or 0
        if self._num_bytes <= MAX_NAME_BYTES_IN_ALL + MAX_NAME_BYTES_A_ROW * self._num_rows:
            return None
        return Fault(batch.num_rows - 1, f"the names of {self._num_rows:,} rows are {self._num_bytes:,} bytes")


class Fault(NamedTuple):
    """The first value that cannot be."""

    row: int  # in the batch
    what: str


def find_fault(batch: pa.RecordBatch, limits: Limits) -> Fault | None:
    """The first fault of a batch of any table; a rule about columns that are not in the batch is passed over."""
    for field in batch.schema:
        fault = _of_column(field, batch.column(field.name), limits)
        if fault is not None:
            return fault
    for rule in _ROW_RULES:
        if all(name in batch.schema.names for name in rule.columns):
            wrong = rule.is_wrong(*(batch.column(name) for name in rule.columns))
            row = _first(wrong)
            if row is not None:
                said = ", ".join(f"{name} {batch.column(name)[row]}" for name in rule.columns if name in _SHOWN)
                return Fault(row, f"{rule.statement} does not hold" + (f" ({said})" if said else ""))
    return None


def rule_columns(schema: pa.Schema) -> list[str]:
    """Columns that the rules about whole rows need; they are read with whatever else is asked for."""
    wanted = {name for rule in _ROW_RULES if set(rule.columns) <= set(schema.names) for name in rule.columns}
    return [name for name in schema.names if name in wanted and name in _SHOWN]


def _of_column(field: pa.Field, column: pa.Array, limits: Limits) -> Fault | None:
    if not field.nullable and column.null_count:
        row = pc.index(pc.is_null(column), True).as_py()
        return Fault(row, f"{field.name} is null")
    if field.name == "messages":
        row = next((row for row, text in enumerate(column) if not _is_messages(text.as_py())), None)
        return None if row is None else Fault(row, "messages is no JSON list of messages")
    if pa.types.is_string(field.type):
        return _outside(field.name, "a name of", pc.binary_length(column), 0, MAX_NAME_BYTES, " bytes")
    if pa.types.is_list(field.type):
        longest = _longest(field.name, limits)
        if longest is not None:
            fault = _outside(field.name, "a list of", pc.list_value_length(column), 0, longest, " values")
            if fault is not None:
                return fault
        if not pa.types.is_integer(field.type.value_type):
            return None
        low, high = (0, len(TEXT_REGIONS) - 1) if field.name == "region" else (0, 2**31 - 1)
        leaves = pc.list_flatten(column)
        if _outside(field.name, "", leaves, low, high, "") is None:
            return None
        index = _first(_is_outside(leaves, low, high))
        return Fault(pc.list_parent_indices(column)[index].as_py(), f"{field.name} holds {leaves[index]}")
    if pa.types.is_integer(field.type):
        low, high = _range(field, limits)
        return _outside(field.name, "", column, low, high, "")
    return None


@lru_cache(maxsize=4)  # a small file can repeat one long text
def _is_messages(text: str | None) -> bool:
    try:
        messages = [] if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(messages, list) and all(
        isinstance(m, dict) and isinstance(m.get("role", ""), str) for m in messages
    )


def _range(field: pa.Field, limits: Limits) -> tuple[int, int]:
    if field.name in ("depth", "num_depths"):
        return 1, limits.depth
    if field.name in ("accepted", "fresh_right") and field.type == pa.int8():
        return 0, 1
    if field.name == "num_positions":
        return 1, MAX_COUNT
    if field.name == "layer":
        return 0, limits.layers - 1
    return 0, MAX_COUNT


def _longest(name: str, limits: Limits) -> int | None:
    longest = {
        "head": limits.heads,
        "aux": limits.aux_layers,
        "aux_and_mean": limits.aux_layers + 1,
        "candidate": MAX_CANDIDATES,
    }
    return longest[COLUMNS[name].axes.split()[-1]] if name in COLUMNS else None


def _outside(name: str, kind: str, values: pa.Array, low: int, high: int, unit: str) -> Fault | None:
    found = pc.min_max(values)
    if found["min"].as_py() is None or (found["min"].as_py() >= low and found["max"].as_py() <= high):
        return None
    row = _first(_is_outside(values, low, high))
    assert row is not None
    return Fault(row, f"{name} is {kind}{' ' if kind else ''}{values[row]}{unit}, not {low} to {high}")


def _is_outside(values: pa.Array, low: int, high: int) -> pa.Array:
    numbers = values.cast(pa.int64())
    return pc.or_(pc.less(numbers, low), pc.greater(numbers, high))


def _first(is_wrong: pa.Array) -> int | None:
    index = pc.index(is_wrong, True).as_py()
    return index if index >= 0 else None


class _RowRule(NamedTuple):
    """A statement about columns of one row."""

    columns: tuple[str, ...]
    is_wrong: Callable[..., Any]  # the columns -> bool array
    statement: str


def _more_tokens_than_regions(prompt: pa.Array, response: pa.Array, continuation: pa.Array, region: pa.Array) -> Any:
    """An import has no tokens, and so no regions."""
    counted = sum(
        pc.fill_null(column, 0).to_numpy(zero_copy_only=False).astype(np.int64)
        for column in (prompt, response, continuation)
    )
    length = pc.list_value_length(region).to_numpy(zero_copy_only=False)
    return pa.array((length > 0) & (length != counted))


def _other_length(token_ids: pa.Array, region: pa.Array) -> Any:
    return pc.not_equal(pc.list_value_length(token_ids), pc.list_value_length(region))


_SHOWN = ("num_depths", "num_drafts", "accepted_drafts", "num_starts", "accepted")
_ROW_RULES = (
    _RowRule(("num_drafts", "num_depths"), pc.greater, "num_drafts <= num_depths"),
    _RowRule(("accepted_drafts", "num_drafts"), pc.greater, "accepted_drafts <= num_drafts"),
    _RowRule(("accepted", "num_starts"), pc.greater, "accepted <= num_starts"),
    _RowRule(
        ("num_prompt_tokens", "num_response_tokens", "num_continuation_tokens", "region"),
        _more_tokens_than_regions,
        "a region for each token of prompt, response and continuation",
    ),
    _RowRule(("token_ids", "region"), _other_length, "a region for each token id"),
)
