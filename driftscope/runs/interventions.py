"""interventions.parquet and target_states.parquet: records of `probes.record` -> Arrow, added to what a run holds.

Knows no statistics. Both files are small and rewritten whole, in one step. Who adds, removes or marks holds the run's lock
(`driftscope.runs.lock`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from driftscope.runs.files import INTERVENTIONS, TARGET_STATES
from driftscope.runs.info import read_info, write_info
from driftscope.runs.parquet import write_table
from driftscope.runs.reader import Run, read_run
from driftscope.runs.schema import INTERVENTION_SCHEMA, TARGET_STATE_SCHEMA, BatchKey, PromptKey
from driftscope.stats.degenerate import is_degenerate
from probes.record import InterventionCounts, PromptConditionKey, PromptRecord, TargetStates


class InterventionKey(NamedTuple):
    """What stands once in interventions.parquet, with a row for each depth."""

    id: str
    batch: BatchKey


def intervention_keys(run: Run) -> set[InterventionKey]:
    """What the run has been tried with already."""
    table = run.interventions().select(["id", *BatchKey._fields])
    columns = (table[name].to_pylist() for name in table.column_names)
    return {InterventionKey(id, BatchKey(*key)) for id, *key in zip(*columns, strict=True)}


def add_interventions(path: Path, counts: Sequence[InterventionCounts], states: Sequence[TargetStates]) -> None:
    """Store these beside what is there."""
    run = read_run(path)
    if counts:
        new = pa.Table.from_pylist([row for c in counts for row in _rows(c)], INTERVENTION_SCHEMA)
        write_table(path / INTERVENTIONS, pa.concat_tables([run.interventions(), new]))
    if states:
        rows = [{name: getattr(s, name) for name in TARGET_STATE_SCHEMA.names} for s in states]
        new = pa.Table.from_pylist(rows, TARGET_STATE_SCHEMA)
        write_table(path / TARGET_STATES, pa.concat_tables([run.target_states(), new]))


def remove_interventions(path: Path, ids: Sequence[str]) -> None:
    """Take the rows of these ids out, and with them what was compared with a reference target."""
    table = read_run(path).interventions()
    write_table(path / INTERVENTIONS, table.filter(pc.invert(pc.is_in(table["id"], pa.array(ids)))))
    (path / TARGET_STATES).unlink(missing_ok=True)


def mark_interventions(path: Path, ids: Sequence[str], reference_target: str | None) -> None:
    """Note in run.json that these were run to the end."""
    info = read_info(path)
    update = {"interventions": sorted({*info.interventions, *ids})}
    if reference_target is not None:
        update["reference_target"] = reference_target  # type: ignore[assignment]
    write_info(path, info.model_copy(update=update))


_AS_STORED = (
    *PromptKey._fields,
    *("category", "num_prompt_tokens", "num_response_tokens", "num_continuation_tokens", "finish_reason", "is_forced"),
)


def stored_texts(run: Run) -> dict[PromptConditionKey, list[PromptRecord]]:
    """The texts of each condition, as measuring left them; prompts without text (--no-text) are left out."""
    texts: dict[PromptConditionKey, list[PromptRecord]] = {}
    for row in run.prompts().to_pylist():
        if row["token_ids"] is None:
            continue
        record = PromptRecord(
            **{name: row[name] for name in _AS_STORED},
            token_ids=np.array(row["token_ids"], dtype=np.int32),
            region=np.array(row["region"], dtype=np.uint8),
        )
        texts.setdefault(record.condition, []).append(record)
    return texts


def _rows(c: InterventionCounts) -> list[dict[str, object]]:
    key = BatchKey(c.drafter, c.system_prompt, c.template, c.context_tokens, c.prompt_id)._asdict()
    is_loop = None if c.response_token_ids is None else is_degenerate(c.response_token_ids)
    return [
        {
            "id": c.id,
            "kind": c.kind,
            **key,
            "depth": k + 1,
            "num_starts": int(c.num_starts[k]),
            "accepted": int(c.accepted[k]),
            "baseline_accepted": int(c.baseline_accepted[k]),
            "is_degenerate": is_loop,
        }
        for k in range(len(c.accepted))
    ]
