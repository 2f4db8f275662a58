"""Records of `probes.record` -> Arrow tables. Vectorised: no Python loop over rounds.

Knows no files and no runs. A record whose arrays disagree in shape is a bug of the part that measured it: ValueError.
"""

from __future__ import annotations

import hashlib
import json
import math

import numpy as np
import pyarrow as pa

from driftscope.runs.schema import DEPTH_SCHEMA, PROMPT_SCHEMA, ROUND_SCHEMA, BatchKey, PromptKey
from driftscope.stats.degenerate import is_degenerate
from probes.record import COLUMNS, REGIONS, Column, PromptRecord, RejectionReason, RoundBatch

_REASON_NAMES = pa.array([reason.name for reason in RejectionReason])


def prompt_key(record: PromptRecord) -> PromptKey:
    """What a prompt is known by in a run."""
    return PromptKey(record.system_prompt, record.template, record.context_tokens, record.prompt_id)


def batch_key(batch: RoundBatch) -> BatchKey:
    """What a batch is known by in a run."""
    return BatchKey(batch.drafter, batch.system_prompt, batch.template, batch.context_tokens, batch.prompt_id)


def prompt_table(record: PromptRecord, *, has_text: bool) -> pa.Table:
    """One row. Without text: hashes in place of messages and token ids (a tokenizer turns ids back into text)."""
    tokens = np.ascontiguousarray(record.token_ids, dtype=np.int32)
    if len(tokens) != len(record.region):
        raise ValueError(f"prompt {record.prompt_id}: {len(tokens)} tokens, {len(record.region)} regions")
    messages = json.dumps(record.messages, ensure_ascii=False, sort_keys=True)
    made = {
        "messages": messages if has_text else None,
        "messages_sha256": hashlib.sha256(messages.encode()).hexdigest(),
        "token_ids": tokens if has_text else None,
        "token_ids_sha256": hashlib.sha256(tokens.astype("<i4").tobytes()).hexdigest(),
        "is_degenerate": _is_degenerate(record, tokens),
        "text_agreement": _null_if_nan(record.text_agreement),
        "mean_logprob": _null_if_nan(record.mean_logprob),
        "notes": list(record.notes),
    }
    row = {name: made[name] if name in made else getattr(record, name) for name in PROMPT_SCHEMA.names}
    return pa.table({field.name: pa.array([row[field.name]], field.type) for field in PROMPT_SCHEMA}, PROMPT_SCHEMA)


def _is_degenerate(record: PromptRecord, tokens: np.ndarray) -> bool | None:
    """None where an engine gives no token ids."""
    if not len(tokens) or record.num_prompt_tokens is None or record.num_response_tokens is None:
        return None
    return is_degenerate(tokens[record.num_prompt_tokens :][: record.num_response_tokens])


def round_table(batch: RoundBatch, first_round_id: int) -> pa.Table:
    """One row per round, `ROUND_SCHEMA`; round ids count up from `first_round_id`."""
    num_rounds = len(batch.start)
    columns: dict[str, pa.Array] = {
        "round_id": pa.array(np.arange(first_round_id, first_round_id + num_rounds)),
        **_constants(batch_key(batch)._asdict(), num_rounds),
        **_constants(
            {
                "engine": batch.engine,
                "num_depths": batch.depth,
                "num_trimmed_tokens": batch.num_trimmed_tokens,
                "num_ties": batch.num_ties,
            },
            num_rounds,
        ),
    }
    columns |= _cells(batch, ROUND_SCHEMA, {"round": num_rounds})
    return pa.table({f.name: columns[f.name].cast(f.type) for f in ROUND_SCHEMA}, ROUND_SCHEMA)


def depth_table(batch: RoundBatch, first_round_id: int, *, has_text: bool) -> pa.Table:
    """One row per round, depth and layer, in that order, `DEPTH_SCHEMA`."""
    num_rounds, num_depths, num_layers = len(batch.start), batch.depth, _num_layers(batch)
    unknown = set(batch.mass) - set(REGIONS)
    if unknown:
        raise ValueError(f"{batch.drafter}, prompt {batch.prompt_id}: unknown regions {sorted(unknown)}")
    num_rows = num_rounds * num_depths * num_layers
    columns: dict[str, pa.Array] = {
        "round_id": pa.array(
            np.repeat(np.arange(first_round_id, first_round_id + num_rounds), num_depths * num_layers)
        ),
        **_constants({**batch_key(batch)._asdict(), "engine": batch.engine}, num_rows),
        "depth": pa.array(np.tile(np.repeat(np.arange(1, num_depths + 1), num_layers), num_rounds)),
        "layer": pa.array(np.tile(np.arange(num_layers), num_rounds * num_depths)),
    }
    sizes = {"round": num_rounds, "depth": num_depths, "layer": num_layers}
    columns |= _cells(batch, DEPTH_SCHEMA, sizes, has_text=has_text)
    return pa.table({f.name: columns[f.name].cast(f.type) for f in DEPTH_SCHEMA}, DEPTH_SCHEMA)


def _num_layers(batch: RoundBatch) -> int:
    """Drafter layers, from any column that has the axis; 1 when none was measured."""
    columns = [batch.values(name) for name, column in COLUMNS.items() if "layer" in column.axes]
    return next((int(column.shape[2]) for column in columns if column is not None), 1)


def _cells(
    batch: RoundBatch, schema: pa.Schema, sizes: dict[str, int], *, has_text: bool = True
) -> dict[str, pa.Array]:
    """The columns of `COLUMNS` that a table has. `sizes`: of its axes; a column repeats along those that it lacks.

    Raises ValueError for a column of another shape.
    """
    num_rows = math.prod(sizes.values())
    cells = {}
    for name in schema.names:
        column = COLUMNS.get(name)
        if column is None:
            continue
        axes = column.axes.split()
        values = batch.values(name)
        if values is None or (column.is_text and not has_text):
            cells[name] = pa.nulls(num_rows)
            continue
        shape = tuple(sizes.get(axis) for axis in axes)
        if values.ndim != len(shape) or any(n not in (None, m) for n, m in zip(shape, values.shape, strict=True)):
            raise ValueError(f"{batch.drafter}, prompt {batch.prompt_id}: {name} has shape {values.shape}, not {shape}")
        flat = values.reshape(-1, values.shape[-1]) if column.is_list else values.ravel()
        repeats = math.prod(size for axis, size in sizes.items() if axis not in axes)
        if repeats > 1:
            flat = np.repeat(flat, repeats, axis=0)
        cells[name] = _lists(flat) if column.is_list else _column(name, flat, column)
    return cells


def _constants(values: dict[str, object], length: int) -> dict[str, pa.Array]:
    return {name: pa.nulls(length) if v is None else pa.repeat(pa.scalar(v), length) for name, v in values.items()}


def _column(name: str, values: np.ndarray, column: Column) -> pa.Array:
    """NaN, and what stands for unmeasured among integers, as null."""
    if column.stored == "string":
        return _REASON_NAMES.take(pa.array(values))
    if values.dtype.kind == "f":
        return pa.array(values, mask=np.isnan(values))
    if column.missing is not None:
        return pa.array(values, mask=values == column.missing)
    if values.dtype.kind == "i" and (values < 0).any():
        raise ValueError(f"{name} holds a negative number, which has no meaning there")
    return pa.array(values)


def _lists(values: np.ndarray) -> pa.Array:
    """[row, value]: NaN, and -1 among integers, as null inside a list, a list of nothing else as null."""
    num_rows, width = values.shape
    values = np.ascontiguousarray(values)
    is_missing = values == -1 if values.dtype.kind == "i" else np.isnan(values)
    offsets = pa.array(np.arange(num_rows + 1, dtype=np.int32) * width)
    leaves = pa.array(values.ravel(), mask=is_missing.ravel())
    return pa.ListArray.from_arrays(offsets, leaves, mask=pa.array(is_missing.all(axis=1)))


def _null_if_nan(value: float) -> float | None:
    return None if np.isnan(value) else value
