"""The summary as one long table, `summary.parquet`: a row for each condition, metric and depth, for other tools."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from driftscope.quantities import OVER_DEPTH
from driftscope.runs import Run
from driftscope.runs.files import SUMMARY
from driftscope.runs.lock import RunLock
from driftscope.runs.parquet import write_table
from driftscope.runs.schema import CONDITION, ROUND_SCHEMA
from driftscope.summary.run_summary import ConditionSummary, Summary
from probes.errors import RunError

SUMMARY_SCHEMA = pa.schema(
    [
        *(ROUND_SCHEMA.field(name) for name in CONDITION),
        pa.field("metric", pa.string(), nullable=False),  # as in `show --json`; masses as mass_REGION
        pa.field("basis", pa.string()),  # dense | walk | dense_all | walk_all; null for counts and shares of prompts
        pa.field("depth", pa.int32()),  # 1..K; null for a metric without depths
        pa.field("aux_layer_id", pa.int32()),  # of fusion_share
        pa.field("value", pa.float64()),
        pa.field("low", pa.float64()),
        pa.field("high", pa.float64()),
        pa.field("interval_method", pa.string()),
    ]
)

_SCALARS = (
    "num_prompts",
    "num_degenerate",
    "num_prompts_without_rounds",
    "num_rounds_without_labels",
    "degenerate_share",
    "text_agreement",
)


def summary_table(summary: Summary) -> pa.Table:
    """`SUMMARY_SCHEMA`, in the order of the summary."""
    return pa.Table.from_pylist([row for c in summary.conditions for row in _rows(c)], SUMMARY_SCHEMA)


def write_summary(run: Run, summary: Summary) -> None:
    """Store summary.parquet in the run's folder, in one step; left to the writer that goes on with the run meanwhile."""
    try:
        with RunLock(run.path):
            write_table(run.path / SUMMARY, summary_table(summary))
    except RunError as error:
        if error.code != "run_is_being_written":
            raise


def _rows(condition: ConditionSummary) -> list[dict[str, Any]]:
    key = condition.key._asdict()
    rows: list[dict[str, Any]] = []
    for basis in ("dense", "walk", "dense_all", "walk_all"):
        tokens = getattr(condition, basis)
        if tokens is None:
            continue
        interval = tokens.model_dump(include={"low", "high", "interval_method"})
        rows.append({"metric": "tokens_per_round", "basis": basis, "value": tokens.tokens_per_round, **interval})
        for metric in ("tokens_per_round_prompt_mean", "num_rounds"):
            rows.append({"metric": metric, "basis": basis, "value": getattr(tokens, metric)})
        rows.append({"metric": "num_prompts_with_rounds", "basis": basis, "value": tokens.num_prompts})
    for metric in OVER_DEPTH:
        intervals = condition.depth_intervals.get(metric)
        for k, value in enumerate(condition.over_depth(metric)):
            row = {"metric": metric, "basis": condition.depth_basis, "depth": k + 1, "value": value}
            if intervals is not None:
                row |= {name: getattr(intervals, name)[k] for name in ("low", "high", "interval_method")}
            rows.append(row)
    fusion = condition.fusion_share
    for layer_id, share in zip(fusion.layer_ids, fusion.share or [], strict=False):
        row = {"metric": "fusion_share", "aux_layer_id": layer_id, "value": share}
        rows.append(row | {"basis": condition.depth_basis})
    rows.append({"metric": "fusion_share_bias", "basis": condition.depth_basis, "value": fusion.bias})
    vocab = condition.out_of_draft_vocab_share
    rows.append({"metric": "out_of_draft_vocab_share", "basis": condition.depth_basis, "value": vocab})
    rows += [{"metric": metric, "value": getattr(condition, metric)} for metric in _SCALARS]
    return [{**key, **row} for row in rows]
