"""What each batch (one prompt with one drafter) adds to every mean: computed by duckdb over the parts, in place.

Knows no intervals and no conditions. All arrays are [batch] or [batch, depth]; a mean over any set of prompts is a sum
of `total` over a sum of `count`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from driftscope.runs import BatchKey, Run
from driftscope.runs.schema import MASS_COLUMNS
from driftscope.stats.acceptance import AcceptanceCounts, acceptance_counts

MAX_RUNS_KEPT = 8  # a report compares a few runs and asks for each one's sums several times
_KEY = ", ".join(BatchKey._fields)
_BASIS = "case when engine = 'replay' then has_all_labels else on_walk end"
"""The rounds that arrays over depth are means of: dense in a replay, the walk elsewhere."""

# array over depth -> (SQL value, condition on the row). Columns without a layer axis repeat on every layer's row.
_DEPTH_MEANS = {
    "hidden_in_norm": ("hidden_in_norm", "layer = 0"),
    "hidden_out_norm": ("hidden_out_norm", "layer = last_layer"),
    "hidden_feedback_norm": ("hidden_feedback_norm", "layer = 0"),
    "own_excess": ("list_avg(own_excess)", "true"),
    "sink_deficit": ("list_avg(sink_deficit)", "true"),
    # At the first depth the drafter has true features anyway: the gap is 0 by definition, also for sampled drafts.
    "chain_gap": (
        "case when depth = 1 then 0 else fresh_right - accepted end",
        "layer = 0 and num_drafts >= depth and accepted is not null and fresh_right is not null",
    ),
    "out_of_draft_vocab": (
        "(rejection_reason = 'out_of_draft_vocab')::int",
        "layer = 0 and num_drafts >= depth and accepted is not null",
    ),
    **{name: (f"list_avg({name})", "true") for name in MASS_COLUMNS},
}


@dataclass(frozen=True)
class MeanParts:
    """float64 [batch, depth] each; mean = sum(total) / sum(count)."""

    total: np.ndarray
    count: np.ndarray


@dataclass(frozen=True, kw_only=True)
class BatchSums:
    """Sums of every batch that has rounds, in the order in which they were measured."""

    keys: list[BatchKey]
    is_replay: np.ndarray  # bool [batch]
    num_depths: np.ndarray  # int [batch], K
    is_degenerate: np.ndarray  # bool [batch]
    num_rounds: np.ndarray  # int [batch]
    num_dense_rounds: np.ndarray  # of these, with all K labels
    num_dense_tokens: np.ndarray  # sum of accepted_drafts + 1
    num_walk_rounds: np.ndarray
    num_walk_tokens: np.ndarray
    text_agreement: np.ndarray  # float [batch], NaN where unmeasured
    num_response_tokens: np.ndarray
    acceptance: AcceptanceCounts  # [batch, depth], over the depth basis
    means: dict[str, MeanParts]
    fusion_share: MeanParts  # [batch, aux layer]
    fusion_share_bias: MeanParts  # [batch, 1]


@lru_cache(maxsize=MAX_RUNS_KEPT)
def batch_sums(run: Run) -> BatchSums:
    """Aggregate the whole run, once for each opened one: an opened run stays as it stood. Read the arrays, never change
    them. Raises RunError for a part that cannot be read.
    """
    batches = _columns(
        run,
        f"select {_KEY}, any_value(engine) as engine, max(num_depths) as num_depths, "
        "coalesce(any_value(is_degenerate), false) as is_degenerate, "
        "any_value(text_agreement) as text_agreement, any_value(num_response_tokens) as num_response_tokens, "
        "count(*) as num_rounds, "
        "count(*) filter (has_all_labels) as num_dense_rounds, count(*) filter (on_walk) as num_walk_rounds, "
        "coalesce(sum(accepted_drafts + 1) filter (has_all_labels), 0)::bigint as num_dense_tokens, "
        "coalesce(sum(accepted_drafts + 1) filter (on_walk), 0)::bigint as num_walk_tokens "
        "from rounds left join prompts using (system_prompt, template, context_tokens, prompt_id) "
        f"group by {_KEY} order by min(round_id)",
    )
    keys = _keys(batches)
    index = {key: number for number, key in enumerate(keys)}
    depth = int(max(batches["num_depths"], default=0))

    histogram = _columns(
        run,
        f"select {_KEY}, num_drafts, accepted_drafts, count(*) as num_rounds from rounds where {_BASIS} "
        f"group by {_KEY}, num_drafts, accepted_drafts",
    )
    acceptance = acceptance_counts(
        histogram["num_drafts"],
        histogram["accepted_drafts"],
        depth=depth,
        num_rounds=histogram["num_rounds"],
        prompt=_index(histogram, index),
        num_prompts=len(keys),
    )

    selected = ", ".join(
        f"coalesce(sum({value}) filter ({condition}), 0)::double as total_{name}, "
        f"count({value}) filter ({condition}) as count_{name}"
        for name, (value, condition) in _DEPTH_MEANS.items()
    )
    by_depth = _columns(
        run,
        "with layers as (select drafter, max(layer) as last_layer from depths group by drafter) "
        f"select {_KEY}, depth, {selected} from depths join layers using (drafter) where {_BASIS} "
        f"group by {_KEY}, depth",
    )
    place = (_index(by_depth, index), by_depth["depth"].astype(np.int64) - 1)
    means = {name: _scatter(by_depth, name, place, (len(keys), depth)) for name in _DEPTH_MEANS}

    fusion = _columns(
        run,
        f"with shares as (select {_KEY}, unnest(fusion_share) as share, "
        f"generate_subscripts(fusion_share, 1) as position from rounds where {_BASIS}) "
        f"select {_KEY}, position, sum(share)::double as total_share, count(share) as count_share "
        f"from shares group by {_KEY}, position",
    )
    num_aux = int(max(fusion["position"], default=0))
    fusion_place = (_index(fusion, index), fusion["position"].astype(np.int64) - 1)
    bias = _columns(
        run,
        f"select {_KEY}, coalesce(sum(fusion_share_bias), 0)::double as total_bias, "
        f"count(fusion_share_bias) as count_bias from rounds where {_BASIS} group by {_KEY}",
    )
    bias_place = (_index(bias, index), np.zeros(len(bias["drafter"]), dtype=np.int64))

    return BatchSums(
        keys=keys,
        is_replay=batches["engine"] == "replay",
        num_depths=batches["num_depths"],
        is_degenerate=batches["is_degenerate"].astype(bool),
        num_rounds=batches["num_rounds"],
        num_dense_rounds=batches["num_dense_rounds"],
        num_dense_tokens=batches["num_dense_tokens"],
        num_walk_rounds=batches["num_walk_rounds"],
        num_walk_tokens=batches["num_walk_tokens"],
        text_agreement=batches["text_agreement"].astype(np.float64),
        num_response_tokens=batches["num_response_tokens"],
        acceptance=acceptance,
        means=means,
        fusion_share=_scatter(fusion, "share", fusion_place, (len(keys), num_aux)),
        fusion_share_bias=_scatter(bias, "bias", bias_place, (len(keys), 1)),
    )


def _columns(run: Run, sql: str) -> dict[str, np.ndarray]:
    table = run.query(sql)
    return {name: table[name].to_numpy() for name in table.column_names}


def _keys(columns: dict[str, np.ndarray]) -> list[BatchKey]:
    lists: list[list[Any]] = [columns[name].tolist() for name in BatchKey._fields]
    return [BatchKey(*key) for key in zip(*lists, strict=True)]


def _index(columns: dict[str, np.ndarray], index: dict[BatchKey, int]) -> np.ndarray:
    return np.array([index[key] for key in _keys(columns)], dtype=np.int64)


def _scatter(
    columns: dict[str, np.ndarray], name: str, place: tuple[np.ndarray, np.ndarray], shape: tuple[int, int]
) -> MeanParts:
    parts = MeanParts(np.zeros(shape), np.zeros(shape))
    parts.total[place] = columns[f"total_{name}"]
    parts.count[place] = columns[f"count_{name}"]
    return parts
