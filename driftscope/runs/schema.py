"""Arrow schemas of a run's tables: the columns of `probes.record`, one row per prompt, per round, per depth and layer.

Knows nothing of files. Null means unmeasured: NaN and None of a record, and what a column of integers declares as missing;
a list with nothing measured is null.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from probes.record import COLUMNS, REGIONS, ConditionKey


class PromptKey(NamedTuple):
    """One prompt under one system prompt, template and context length."""

    system_prompt: str
    template: str
    context_tokens: int
    prompt_id: str


class BatchKey(NamedTuple):
    """One prompt with one drafter: what is measured, written and resumed as a whole."""

    drafter: str
    system_prompt: str
    template: str
    context_tokens: int
    prompt_id: str

    @property
    def condition(self) -> ConditionKey:
        """The condition that this batch belongs to."""
        return ConditionKey(*self[:4])

    @property
    def prompt(self) -> PromptKey:
        """The prompt that this batch needs."""
        return PromptKey(*self[1:])


CONDITION = ConditionKey._fields

_PROMPT_KEY = [
    pa.field("system_prompt", pa.string(), nullable=False),
    pa.field("template", pa.string(), nullable=False),
    pa.field("context_tokens", pa.int32(), nullable=False),
    pa.field("prompt_id", pa.string(), nullable=False),
]
_BATCH_KEY = [pa.field("drafter", pa.string(), nullable=False), *_PROMPT_KEY]

PROMPT_SCHEMA = pa.schema(
    [
        *_PROMPT_KEY,
        pa.field("category", pa.string()),
        pa.field("messages", pa.string()),  # JSON; null with --no-text
        pa.field("messages_sha256", pa.string(), nullable=False),
        pa.field("token_ids", pa.list_(pa.int32())),  # prompt, response, continuation; null with --no-text
        pa.field("token_ids_sha256", pa.string(), nullable=False),
        pa.field("region", pa.list_(pa.uint8()), nullable=False),  # per token: index into record.TEXT_REGIONS
        pa.field("num_prompt_tokens", pa.int32()),  # null: the metrics of an imported run do not say
        pa.field("num_response_tokens", pa.int32()),
        pa.field("num_continuation_tokens", pa.int32(), nullable=False),
        pa.field("finish_reason", pa.string(), nullable=False),
        pa.field("is_forced", pa.bool_(), nullable=False),
        pa.field("is_degenerate", pa.bool_()),  # decided when written, since --no-text keeps no tokens
        pa.field("text_agreement", pa.float32()),
        pa.field("mean_logprob", pa.float32()),
        pa.field("notes", pa.list_(pa.string()), nullable=False),
    ]
)


def _fields(*axes: str) -> list[pa.Field]:
    """The columns of `record.COLUMNS` with these axes, as a table's row holds them."""
    fields = []
    for axis in axes:
        for name, column in COLUMNS.items():
            if column.axes == axis:
                kind = pa.type_for_alias(column.stored)
                is_nullable = axis != "round" or not column.is_required
                fields.append(pa.field(name, pa.list_(kind) if column.is_list else kind, is_nullable))
    return fields


_OF_EVERY_ROUND = [field for field in _fields("round") if not field.nullable]
MASS_COLUMNS = tuple(f"mass_{region}" for region in REGIONS)

ROUND_SCHEMA = pa.schema(
    [
        pa.field("round_id", pa.int64(), nullable=False),  # unique in a run
        *_BATCH_KEY,
        pa.field("engine", pa.string(), nullable=False),
        pa.field("num_depths", pa.int32(), nullable=False),  # K of this batch
        *_OF_EVERY_ROUND,
        pa.field("num_trimmed_tokens", pa.int32()),  # of the whole batch, on each of its rounds; null without a walk
        pa.field("num_ties", pa.int32(), nullable=False),  # of the whole batch
        *(field for field in _fields("round") if field.nullable),
        *_fields("round aux"),
    ]
)

DEPTH_SCHEMA = pa.schema(
    [
        pa.field("round_id", pa.int64(), nullable=False),
        *_BATCH_KEY,
        pa.field("engine", pa.string(), nullable=False),
        # of the round, repeated so that a curve over depth needs no join
        *_OF_EVERY_ROUND,
        pa.field("depth", pa.int32(), nullable=False),  # 1..K
        pa.field("layer", pa.int32(), nullable=False),  # 0..; columns without a layer axis repeat on each layer's row
        *_fields("round depth", "round depth aux_and_mean", "round depth candidate"),
        *_fields("round depth layer", "round depth layer head"),
    ]
)

INTERVENTION_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        *_BATCH_KEY,
        pa.field("depth", pa.int32(), nullable=False),
        pa.field("num_starts", pa.int64(), nullable=False),
        pa.field("accepted", pa.int64(), nullable=False),
        pa.field("baseline_accepted", pa.int64(), nullable=False),
        pa.field("is_degenerate", pa.bool_()),  # of a text that replaced the prompt's own; null where it stayed
    ]
)

TARGET_STATE_SCHEMA = pa.schema(
    [
        *_PROMPT_KEY,
        pa.field("aux_layer_id", pa.int32(), nullable=False),
        pa.field("num_positions", pa.int32(), nullable=False),
        pa.field("cosine", pa.float32(), nullable=False),
        pa.field("norm_ratio", pa.float32(), nullable=False),
        pa.field("gram_similarity", pa.float32(), nullable=False),
    ]
)
"""This run's target beside a reference target, on the same texts (`record.TargetStates`)."""

UNIQUE_STRINGS = ("messages", "messages_sha256", "token_ids_sha256")
"""String columns whose values hardly repeat; all others get Parquet's dictionary encoding, numbers never do."""
