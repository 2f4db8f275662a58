"""Does a stored run contradict itself? `driftscope runs verify`.

Knows how the quantities relate to each other, not whether a drafter is any good. Every check counts what it looked at:
a check that looked at nothing says so, it does not pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, Field

from driftscope.runs.files import DEPTHS, INTERVENTIONS, PROMPTS, ROUNDS, TARGET_STATES, part_name, part_numbers
from driftscope.runs.info import RunStatus
from driftscope.runs.parquet import read_table
from driftscope.runs.reader import Run, read_run
from driftscope.runs.schema import (
    AUX_COLUMNS,
    DEPTH_SCHEMA,
    INTERVENTION_SCHEMA,
    MASS_COLUMNS,
    PROMPT_SCHEMA,
    ROUND_SCHEMA,
    TARGET_STATE_SCHEMA,
    BatchKey,
)
from driftscope.stats.thresholds import FUSION_SUM_TOLERANCE, MASS_SUM_TOLERANCE
from probes.errors import RunError

_KEY = ", ".join(BatchKey._fields)


class Check(BaseModel):
    """One statement about the run. It holds when `num_failed` is 0."""

    name: str
    statement: str
    num_checked: int  # how many items it was tried on; 0 = the run has none
    num_failed: int
    examples: list[str] = Field(default_factory=list)  # the first failures


class Verification(BaseModel):
    """`driftscope runs verify --json`."""

    schema_version: int = 1
    path: str
    status: RunStatus
    is_sound: bool  # every check holds
    checks: list[Check]


def verify(path: str | Path) -> Verification:
    """Read every byte of the run and check it. Parts that cannot be read are a failed check, and the only one then.

    Raises the RunErrors of `read_info`.
    """
    run = read_run(path)
    checks = [_readable(run)]
    if checks[0].num_failed == 0:
        checks += [*_sql_checks(run), _batches_whole(run), _masses(run), _fusion_shares(run), *_counts(run)]
    is_sound = not any(check.num_failed for check in checks)
    return Verification(path=str(run.path), status=run.status, is_sound=is_sound, checks=checks)


def _readable(run: Run) -> Check:
    files = [(run.path / ROUNDS / part_name(n), ROUND_SCHEMA) for n in part_numbers(run.path / ROUNDS)]
    files += [(run.path / DEPTHS / file.name, DEPTH_SCHEMA) for file, _ in files]
    small = ((PROMPTS, PROMPT_SCHEMA), (INTERVENTIONS, INTERVENTION_SCHEMA), (TARGET_STATES, TARGET_STATE_SCHEMA))
    files += [(run.path / name, schema) for name, schema in small if (run.path / name).exists()]
    failures = []
    for file, schema in files:
        try:
            read_table(file, schema)
        except RunError as error:
            failures.append(str(error))
    return _check("parts_readable", "every file can be read, page checksums match", len(files), failures)


# name -> (statement, query for the number of items, query for the failures: one text column)
_SQL_CHECKS = {
    "prompts_unique": (
        "a prompt stands once in prompts",
        "select count(*) from prompts",
        "select concat_ws(' / ', system_prompt, template, context_tokens, prompt_id) from prompts "
        "group by system_prompt, template, context_tokens, prompt_id having count(*) > 1",
    ),
    "prompts_present": (
        "every round's prompt is in prompts",
        "select count(*) from rounds",
        f"select distinct concat_ws(' / ', {_KEY}) from rounds "
        "anti join prompts using (system_prompt, template, context_tokens, prompt_id)",
    ),
    "round_ids_unique": (
        "a round_id stands once in rounds",
        "select count(*) from rounds",
        "select 'round ' || round_id from rounds group by round_id having count(*) > 1",
    ),
    "starts_unique": (
        "a batch has one round for each start",
        "select count(*) from rounds",
        f"select concat_ws(' / ', {_KEY}) || ' start ' || start from rounds group by {_KEY}, start having count(*) > 1",
    ),
    "rounds_join_depths": (
        "every round has num_depths rows per layer in depths, and depths has no others",
        "select count(*) from rounds",
        "with d as (select round_id, count(*) as num_rows, count(distinct depth) as num_depths, "
        "max(depth) as max_depth, count(distinct layer) as num_layers from depths group by round_id) "
        "select 'round ' || coalesce(r.round_id, d.round_id) from rounds r full join d using (round_id) "
        "where r.round_id is null or d.round_id is null or d.num_depths != r.num_depths "
        "or d.max_depth != r.num_depths or d.num_rows != r.num_depths * d.num_layers",
    ),
    "rounds_equal_depths": (
        "what depths repeats of a round is the round's",
        "select count(*) from depths",
        "select distinct 'round ' || r.round_id from rounds r join depths d using (round_id) where "
        + " or ".join(
            f"r.{name} is distinct from d.{name}"
            for name in (
                *BatchKey._fields,
                "engine",
                "start",
                "num_drafts",
                "accepted_drafts",
                "on_walk",
                "has_all_labels",
            )
        ),
    ),
    "accepted_within_drafts": (
        "accepted_drafts <= num_drafts <= K",
        "select count(*) from rounds",
        "select 'round ' || round_id from rounds where accepted_drafts > num_drafts or num_drafts > num_depths",
    ),
    "accepted_is_a_prefix": (
        "the depths accepted are 1..accepted_drafts",
        "select count(*) from rounds",
        "select 'round ' || round_id from depths where layer = 0 group by round_id, accepted_drafts "
        "having count(*) filter (accepted = 1) != accepted_drafts "
        "or coalesce(max(depth) filter (accepted = 1), 0) != accepted_drafts",
    ),
    "walk_identity": (
        "1 + sum(accepted + 1) - trimmed = completion tokens, for every walk",
        f"select count(*) from (select {_KEY} from rounds where num_trimmed_tokens is not null group by all)",
        f"with walks as (select {_KEY}, 1 + coalesce(sum(accepted_drafts + 1) filter (on_walk), 0) "
        "- any_value(num_trimmed_tokens) as num_tokens from rounds where num_trimmed_tokens is not null group by all) "
        f"select concat_ws(' / ', {_KEY}) || ': ' || num_tokens || ' tokens walked, response has ' || num_response_tokens "
        "from walks join prompts using (system_prompt, template, context_tokens, prompt_id) "
        "where num_tokens != num_response_tokens",
    ),
}


def _sql_checks(run: Run) -> Iterator[Check]:
    with run.database() as database:
        for name, (statement, count, failures) in _SQL_CHECKS.items():
            [[num_checked]] = database.execute(count).fetchall()
            failed = [row[0] for row in database.execute(failures).fetchall()]
            yield _check(name, statement, num_checked, failed)


def _batches_whole(run: Run) -> Check:
    parts_of: Counter[BatchKey] = Counter()
    for file in run.part_files(ROUNDS, ROUND_SCHEMA):
        distinct = read_table(file, ROUND_SCHEMA).group_by(list(BatchKey._fields)).aggregate([])
        columns = (distinct[name].to_pylist() for name in BatchKey._fields)
        parts_of.update(BatchKey(*key) for key in zip(*columns, strict=True))
    failures = [" / ".join(map(str, key)) for key, count in parts_of.items() if count > 1]
    return _check("batches_whole", "a batch lies whole in one part", len(parts_of), failures)


def _masses(run: Run) -> Check:
    """Where some regions are unmeasured (null), the others must not exceed 1."""
    num_checked, failures = 0, []
    for file in run.part_files(DEPTHS, DEPTH_SCHEMA):
        table = read_table(file, DEPTH_SCHEMA)
        lists = [table[name].combine_chunks() for name in MASS_COLUMNS]
        widths = np.stack([_widths(column) for column in lists])  # [region, row]; 0 where null
        heads = widths.max(axis=0)  # [row]
        is_ragged = ((widths != heads) & (widths > 0)).any(axis=0)
        total = np.zeros(heads.sum())
        is_whole = np.ones(heads.sum(), dtype=bool)
        for column, width in zip(lists, widths, strict=True):
            if is_ragged.any():
                break
            has_mass = np.repeat(width > 0, heads)
            values = column.flatten().to_numpy(zero_copy_only=False)  # null leaves come as NaN
            is_whole &= has_mass
            is_whole[has_mass] &= ~np.isnan(values)
            total[has_mass] += np.nan_to_num(values)
        is_wrong = (total > 1 + MASS_SUM_TOLERANCE) | (is_whole & (total < 1 - MASS_SUM_TOLERANCE))
        rows = np.unique(np.repeat(np.arange(len(heads)), heads)[is_wrong])
        for row in np.union1d(rows, np.flatnonzero(is_ragged)):
            where = {name: table[name][int(row)].as_py() for name in ("round_id", "depth", "layer")}
            failures.append(", ".join(f"{name} {value}" for name, value in where.items()))
        num_checked += int((heads > 0).sum())
    statement = f"attention masses of all regions sum to 1 within {MASS_SUM_TOLERANCE:g}, for every head"
    return _check("masses_sum_to_1", statement, num_checked, failures)


def _fusion_shares(run: Run) -> Check:
    num_checked, failures = 0, []
    for file in run.part_files(ROUNDS, ROUND_SCHEMA):
        table = read_table(file, ROUND_SCHEMA)
        table = table.filter(pc.is_valid(table[AUX_COLUMNS[0]]))
        shares = table[AUX_COLUMNS[0]].combine_chunks()
        row = np.repeat(np.arange(len(shares)), _widths(shares))
        values = shares.flatten().to_numpy(zero_copy_only=False).astype(np.float64)
        bias = np.nan_to_num(table["fusion_share_bias"].to_numpy().astype(np.float64))  # null: no bias
        total = np.bincount(row, values, len(shares)) + bias
        scale = np.bincount(row, np.abs(values), len(shares)) + np.abs(bias)
        is_wrong = ~(np.abs(total - 1) <= FUSION_SUM_TOLERANCE * scale)  # NaN is wrong too
        failures += [f"round_id {round_id}" for round_id in table["round_id"].to_numpy()[is_wrong]]
        num_checked += len(shares)
    statement = f"fusion shares and the bias' share sum to 1 within {FUSION_SUM_TOLERANCE:g} of their absolute sum"
    return _check("fusion_shares_sum_to_1", statement, num_checked, failures)


def _counts(run: Run) -> list[Check]:
    """Only a finished writer's counts are promised to be current."""
    if run.status is not RunStatus.complete:
        return []
    counts = run.info.counts
    found = {
        "num_prompts": run.prompts().num_rows,
        "num_rounds": run.rounds(["round_id"]).num_rows,
        "num_depth_rows": run.depths(["round_id"]).num_rows,
    }
    failures = [
        f"{name}: run.json says {getattr(counts, name)}, the parts hold {value}"
        for name, value in found.items()
        if getattr(counts, name) != value
    ]
    return [_check("counts_match", "run.json's counts are those of the parts", len(found), failures)]


def _widths(lists: pa.ListArray) -> np.ndarray:
    widths: np.ndarray = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return widths


def _check(name: str, statement: str, num_checked: int, failures: list[str]) -> Check:
    return Check(
        name=name, statement=statement, num_checked=num_checked, num_failed=len(failures), examples=failures[:5]
    )
