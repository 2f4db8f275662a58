"""What each batch (one prompt with one drafter) adds to every mean: computed by duckdb over the parts, in place.

Knows no intervals and no conditions. All arrays are [batch] or [batch, depth]; a mean over any set of prompts is a sum
of `total` over a sum of `count`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from driftscope.quantities import OUT_OF_DRAFT_VOCAB, OVER_DEPTH
from driftscope.runs import BatchKey, Run
from driftscope.runs.views import BATCH_KEY
from probes.record import ConditionKey

MAX_RUNS_KEPT = 8  # a report compares a few runs and asks for each one's sums several times


@dataclass(frozen=True)
class MeanParts:
    """float64 [batch, depth] each; mean = sum(total) / sum(count)."""

    total: np.ndarray
    count: np.ndarray

    def take(self, rows: np.ndarray | slice, depth: int | None = None) -> MeanParts:
        """Those of some batches, up to a depth."""
        return MeanParts(self.total[rows, :depth], self.count[rows, :depth])


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
    means: dict[str, MeanParts]  # of `quantities.OVER_DEPTH` and OUT_OF_DRAFT_VOCAB, over the depth basis
    fusion_share: MeanParts  # [batch, aux layer]
    fusion_share_bias: MeanParts  # [batch, 1]

    def rows_by_condition(self) -> dict[ConditionKey, list[int]]:
        """The batches of each condition, one for each prompt."""
        rows: dict[ConditionKey, list[int]] = {}
        for row, key in enumerate(self.keys):
            rows.setdefault(key.condition, []).append(row)
        return rows


@lru_cache(maxsize=MAX_RUNS_KEPT)
def batch_sums(run: Run) -> BatchSums:
    """Aggregate the whole run, once for each opened one: an opened run stays as it stood. Read the arrays, never change
    them. Raises RunError for a part that cannot be read.
    """
    batches = _columns(run, "select * from batches order by first_round_id")
    keys = _keys(batches)
    index = {key: number for number, key in enumerate(keys)}
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
        means=_depth_means(run, index, int(max(batches["num_depths"], default=0))),
        fusion_share=_fusion_share(run, index),
        fusion_share_bias=_fusion_share_bias(run, index),
    )


def _depth_means(run: Run, index: dict[BatchKey, int], depth: int) -> dict[str, MeanParts]:
    quantities = (*OVER_DEPTH.values(), OUT_OF_DRAFT_VOCAB)
    selected = ", ".join(
        f"coalesce(sum({q.sql}) filter ({q.where}), 0)::double as total_{q.name}, "
        f"count({q.sql}) filter ({q.where}) as count_{q.name}"
        for q in quantities
    )
    found = _columns(
        run,
        "with layers as (select drafter, max(layer) as last_layer from depths group by drafter) "
        f"select {BATCH_KEY}, depth, {selected} from basis_depths join layers using (drafter) "
        f"group by {BATCH_KEY}, depth",
    )
    place = (_index(found, index), found["depth"].astype(np.int64) - 1)
    return {q.name: _scatter(found, q.name, place, (len(index), depth)) for q in quantities}


def _fusion_share(run: Run, index: dict[BatchKey, int]) -> MeanParts:
    found = _columns(
        run,
        f"with shares as (select {BATCH_KEY}, unnest(fusion_share) as share, "
        f"generate_subscripts(fusion_share, 1) as position from basis_rounds) "
        f"select {BATCH_KEY}, position, sum(share)::double as total_share, count(share) as count_share "
        f"from shares group by {BATCH_KEY}, position",
    )
    place = (_index(found, index), found["position"].astype(np.int64) - 1)
    return _scatter(found, "share", place, (len(index), int(max(found["position"], default=0))))


def _fusion_share_bias(run: Run, index: dict[BatchKey, int]) -> MeanParts:
    found = _columns(
        run,
        f"select {BATCH_KEY}, coalesce(sum(fusion_share_bias), 0)::double as total_bias, "
        f"count(fusion_share_bias) as count_bias from basis_rounds group by {BATCH_KEY}",
    )
    place = (_index(found, index), np.zeros(len(found["drafter"]), dtype=np.int64))
    return _scatter(found, "bias", place, (len(index), 1))


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
