"""Arrow schemas of a run's tables: the columns of `probes.record`, one row per prompt, per round, per depth and layer.

Knows nothing of files. Null means unmeasured: NaN and None of a record, and -1 in the columns of `NULLABLE_INTS` only.
Lists over heads or aux layers are list<float32>, of candidates' ids list<int32>; one with nothing measured is null.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from probes.record import REGIONS, ConditionKey

FLOATS = pa.list_(pa.float32())
INTS = pa.list_(pa.int32())


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

# Columns of record.RoundBatch by their axes, with the stored type.
ROUND_COLUMNS = {
    "start": pa.int32(),
    "num_drafts": pa.int32(),
    "accepted_drafts": pa.int32(),
    "on_walk": pa.bool_(),
    "has_all_labels": pa.bool_(),
}
OPTIONAL_ROUND_COLUMNS = {"draft_us": pa.float32(), "verify_us": pa.float32(), "fusion_share_bias": pa.float32()}
AUX_COLUMNS = ("fusion_share", "fusion_energy", "aux_norm")
DEPTH_COLUMNS = {
    "draft_token": pa.int32(),
    "draft_prob": pa.float32(),
    "draft_entropy": pa.float32(),
    "target_token": pa.int32(),
    "target_prob_of_draft": pa.float32(),
    "target_rank_of_draft": pa.int32(),
    "overlap": pa.float32(),
    "accepted": pa.int8(),
    "rejection_reason": pa.string(),
    "fresh_token": pa.int32(),
    "fresh_right": pa.int8(),
    "hidden_feedback_norm": pa.float32(),
    "input_share_embed": pa.float32(),
}
DEPTH_LIST_COLUMNS = ("target_divergence",)
"""One list per round and depth: for each aux layer in ascending id, then for the mean of the full-attention layers."""
CANDIDATE_COLUMNS = {
    "draft_top_token": INTS,
    "draft_top_prob": FLOATS,
    "target_top_token": INTS,
    "target_top_prob": FLOATS,
}
"""One list per round and depth, best first."""
LAYER_COLUMNS = ("hidden_in_norm", "hidden_out_norm", "branch_norm_attn", "branch_norm_mlp")
MASS_COLUMNS = tuple(f"mass_{region}" for region in REGIONS)
HEAD_COLUMNS = ("recent_mass", "own_excess", "sink_deficit", "attention_entropy")
NULLABLE_INTS = ("draft_token", "target_token", "target_rank_of_draft", "accepted", "fresh_token", "fresh_right")
"""Integer columns in which -1 means unmeasured (record.py); a negative number in another one is an error."""
TEXT_COLUMNS = ("draft_token", "target_token", "fresh_token", "draft_top_token", "target_top_token")
"""Token ids of depths/ from which a response could be rebuilt: null with --no-text."""

ROUND_SCHEMA = pa.schema(
    [
        pa.field("round_id", pa.int64(), nullable=False),  # unique in a run
        *_BATCH_KEY,
        pa.field("engine", pa.string(), nullable=False),
        pa.field("num_depths", pa.int32(), nullable=False),  # K of this batch
        *(pa.field(name, kind, nullable=False) for name, kind in ROUND_COLUMNS.items()),
        pa.field("num_trimmed_tokens", pa.int32()),  # of the whole batch, on each of its rounds; null without a walk
        pa.field("num_ties", pa.int32(), nullable=False),  # of the whole batch
        *(pa.field(name, kind) for name, kind in OPTIONAL_ROUND_COLUMNS.items()),
        *(pa.field(name, FLOATS) for name in AUX_COLUMNS),
    ]
)

DEPTH_SCHEMA = pa.schema(
    [
        pa.field("round_id", pa.int64(), nullable=False),
        *_BATCH_KEY,
        pa.field("engine", pa.string(), nullable=False),
        # of the round, repeated so that a curve over depth needs no join
        *(pa.field(name, kind, nullable=False) for name, kind in ROUND_COLUMNS.items()),
        pa.field("depth", pa.int32(), nullable=False),  # 1..K
        pa.field("layer", pa.int32(), nullable=False),  # 0..; columns without a layer axis repeat on each layer's row
        *(pa.field(name, kind) for name, kind in DEPTH_COLUMNS.items()),
        *(pa.field(name, FLOATS) for name in DEPTH_LIST_COLUMNS),
        *(pa.field(name, kind) for name, kind in CANDIDATE_COLUMNS.items()),
        *(pa.field(name, pa.float32()) for name in LAYER_COLUMNS),
        *(pa.field(name, FLOATS) for name in (*MASS_COLUMNS, *HEAD_COLUMNS)),
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
