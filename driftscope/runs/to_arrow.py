"""Records of `probes.record` -> Arrow tables. Vectorised: no Python loop over rounds.

Knows no files and no runs. A record whose arrays disagree in shape is a bug of the part that measured it: ValueError.
"""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pyarrow as pa

from driftscope.runs.schema import (
    AUX_COLUMNS,
    CANDIDATE_COLUMNS,
    DEPTH_COLUMNS,
    DEPTH_LIST_COLUMNS,
    DEPTH_SCHEMA,
    HEAD_COLUMNS,
    LAYER_COLUMNS,
    MASS_COLUMNS,
    NULLABLE_INTS,
    OPTIONAL_ROUND_COLUMNS,
    PROMPT_SCHEMA,
    ROUND_COLUMNS,
    ROUND_SCHEMA,
    TEXT_COLUMNS,
    BatchKey,
    PromptKey,
)
from driftscope.stats.degenerate import is_degenerate
from probes.record import REGIONS, PromptRecord, RejectionReason, RoundBatch

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
    row = {
        **prompt_key(record)._asdict(),
        "category": record.category,
        "messages": messages if has_text else None,
        "messages_sha256": hashlib.sha256(messages.encode()).hexdigest(),
        "token_ids": tokens if has_text else None,
        "token_ids_sha256": hashlib.sha256(tokens.astype("<i4").tobytes()).hexdigest(),
        "region": record.region,
        "num_prompt_tokens": record.num_prompt_tokens,
        "num_response_tokens": record.num_response_tokens,
        "num_continuation_tokens": record.num_continuation_tokens,
        "finish_reason": record.finish_reason,
        "is_forced": record.is_forced,
        "is_degenerate": _is_degenerate(record, tokens),
        "text_agreement": _null_if_nan(record.text_agreement),
        "mean_logprob": _null_if_nan(record.mean_logprob),
        "notes": list(record.notes),
    }
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
    for name in (*ROUND_COLUMNS, *OPTIONAL_ROUND_COLUMNS):
        columns[name] = _column(name, _shaped(batch, name, (num_rounds,)), num_rounds)
    for name in AUX_COLUMNS:
        columns[name] = _lists(_shaped(batch, name, (num_rounds, None)), num_rounds)
    return pa.table({f.name: columns[f.name].cast(f.type) for f in ROUND_SCHEMA}, ROUND_SCHEMA)


def depth_table(batch: RoundBatch, first_round_id: int, *, has_text: bool) -> pa.Table:
    """One row per round, depth and layer, in that order, `DEPTH_SCHEMA`."""
    num_rounds, num_depths, num_layers = len(batch.start), batch.depth, _num_layers(batch)
    unknown = set(batch.mass) - set(REGIONS)
    if unknown:
        raise ValueError(f"{batch.drafter}, prompt {batch.prompt_id}: unknown regions {sorted(unknown)}")
    num_rows = num_rounds * num_depths * num_layers
    by_round = (num_rounds,)
    by_depth = (num_rounds, num_depths)
    by_layer = (num_rounds, num_depths, num_layers)
    columns: dict[str, pa.Array] = {
        "round_id": pa.array(
            np.repeat(np.arange(first_round_id, first_round_id + num_rounds), num_depths * num_layers)
        ),
        **_constants({**batch_key(batch)._asdict(), "engine": batch.engine}, num_rows),
        "depth": pa.array(np.tile(np.repeat(np.arange(1, num_depths + 1), num_layers), num_rounds)),
        "layer": pa.array(np.tile(np.arange(num_layers), num_rounds * num_depths)),
    }
    for name in ROUND_COLUMNS:
        columns[name] = _column(name, _shaped(batch, name, by_round), num_rows, repeats=num_depths * num_layers)
    for name in DEPTH_COLUMNS:
        values = None if name in TEXT_COLUMNS and not has_text else _shaped(batch, name, by_depth)
        if name == "rejection_reason" and values is not None:
            columns[name] = _REASON_NAMES.take(pa.array(np.repeat(values.ravel(), num_layers)))
        else:
            columns[name] = _column(name, values, num_rows, repeats=num_layers)
    for name in (*DEPTH_LIST_COLUMNS, *CANDIDATE_COLUMNS):
        values = None if name in TEXT_COLUMNS and not has_text else _shaped(batch, name, (*by_depth, None))
        repeated = None if values is None else np.repeat(values.reshape(-1, values.shape[-1]), num_layers, axis=0)
        columns[name] = _lists(repeated, num_rows)
    for name in LAYER_COLUMNS:
        columns[name] = _column(name, _shaped(batch, name, by_layer), num_rows)
    for name, region in zip(MASS_COLUMNS, REGIONS, strict=True):
        columns[name] = _lists(_checked(batch, name, batch.mass.get(region), (*by_layer, None)), num_rows)
    for name in HEAD_COLUMNS:
        columns[name] = _lists(_shaped(batch, name, (*by_layer, None)), num_rows)
    return pa.table({f.name: columns[f.name].cast(f.type) for f in DEPTH_SCHEMA}, DEPTH_SCHEMA)


def _num_layers(batch: RoundBatch) -> int:
    """Drafter layers, from any column that has the axis; 1 when none was measured."""
    columns = [getattr(batch, name) for name in (*LAYER_COLUMNS, *HEAD_COLUMNS)] + list(batch.mass.values())
    return next((int(column.shape[2]) for column in columns if column is not None), 1)


def _shaped(batch: RoundBatch, name: str, shape: tuple[int | None, ...]) -> np.ndarray | None:
    return _checked(batch, name, getattr(batch, name), shape)


def _checked(
    batch: RoundBatch, name: str, values: np.ndarray | None, shape: tuple[int | None, ...]
) -> np.ndarray | None:
    """`values` as given, or ValueError when its shape is not `shape` (None = any length)."""
    if values is None:
        return None
    fits = values.ndim == len(shape) and all(n in (None, m) for n, m in zip(shape, values.shape, strict=True))
    if not fits:
        raise ValueError(f"{batch.drafter}, prompt {batch.prompt_id}: {name} has shape {values.shape}, not {shape}")
    return values


def _constants(values: dict[str, object], length: int) -> dict[str, pa.Array]:
    return {name: pa.nulls(length) if v is None else pa.repeat(pa.scalar(v), length) for name, v in values.items()}


def _column(name: str, values: np.ndarray | None, num_rows: int, repeats: int = 1) -> pa.Array:
    """Flattened and repeated, NaN (and -1 where it means unmeasured) as null."""
    if values is None:
        return pa.nulls(num_rows)
    flat = np.repeat(values.ravel(), repeats) if repeats > 1 else values.ravel()
    if flat.dtype.kind == "f":
        return pa.array(flat, mask=np.isnan(flat))
    if name in NULLABLE_INTS:
        return pa.array(flat, mask=flat == -1)
    if flat.dtype.kind == "i" and (flat < 0).any():
        raise ValueError(f"{name} holds a negative number, which has no meaning there")
    return pa.array(flat)


def _lists(values: np.ndarray | None, num_rows: int) -> pa.Array:
    """The last axis as a list; NaN, and -1 among integers, as null inside a list, a list of nothing else as null."""
    if values is None:
        return pa.nulls(num_rows)
    width = values.shape[-1]
    flat = np.ascontiguousarray(values).reshape(num_rows, width)
    is_missing = flat == -1 if flat.dtype.kind == "i" else np.isnan(flat)
    offsets = pa.array(np.arange(num_rows + 1, dtype=np.int32) * width)
    leaves = pa.array(flat.ravel(), mask=is_missing.ravel())
    return pa.ListArray.from_arrays(offsets, leaves, mask=pa.array(is_missing.all(axis=1)))


def _null_if_nan(value: float) -> float | None:
    return None if np.isnan(value) else value
