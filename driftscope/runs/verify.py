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

from driftscope.runs.contradictions import (
    COUNTS_STATEMENT,
    FURTHER_CHECKS,
    INTERVENTIONS_STATEMENT,
    OPENING_CHECKS,
    VALUES_STATEMENT,
    wrong_interventions,
)
from driftscope.runs.files import DEPTHS, INTERVENTIONS, ROUNDS
from driftscope.runs.info import RunStatus
from driftscope.runs.parquet import read_batches
from driftscope.runs.reader import SCHEMAS, Run, batch_keys, read_run
from driftscope.runs.schema import MASS_COLUMNS, ROUND_SCHEMA, BatchKey
from driftscope.stats.thresholds import FUSION_SUM_TOLERANCE, MASS_SUM_TOLERANCE
from probes.errors import RunError


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
        checks.append(_values(run))
    if checks[-1].num_failed == 0:
        checks += [
            *_sql_checks(run),
            _interventions(run),
            _batches_whole(run),
            _masses(run),
            _fusion_shares(run),
            *_counts(run),
        ]
    is_sound = not any(check.num_failed for check in checks)
    return Verification(path=str(run.path), status=run.status, is_sound=is_sound, checks=checks)


def _readable(run: Run) -> Check:
    files = [(file, schema) for table, schema in SCHEMAS.items() for file in run.files(table)]
    failures = []
    for file, schema in files:
        try:
            for _ in read_batches(file, schema):
                pass
        except RunError as error:
            failures.append(str(error))
    return _check("parts_readable", "every file can be read, page checksums match", len(files), failures)


def _values(run: Run) -> Check:
    """The first failure of each table."""
    num_checked, failures = 0, []
    for table in SCHEMAS:
        num_checked += run.num_rows(table)
        try:
            for _ in run.batches(table):
                pass
        except RunError as error:
            failures.append(str(error))
    return _check("values_possible", VALUES_STATEMENT, num_checked, failures)


def _sql_checks(run: Run) -> Iterator[Check]:
    with run.connection() as database:
        for check in (*OPENING_CHECKS, *FURTHER_CHECKS):
            [[num_checked]] = database.execute(check.num_items).fetchall()
            failures = database.execute(check.failures)
            examples, num_failed = [row[0] for row in failures.fetchmany(5)], 0
            while more := failures.fetchmany(10_000):
                num_failed += len(more)
            yield Check(
                name=check.name,
                statement=check.statement,
                num_checked=num_checked,
                num_failed=num_failed + len(examples),
                examples=examples,
            )


def _interventions(run: Run) -> Check:
    table = run.table(INTERVENTIONS)
    return _check("interventions_whole", INTERVENTIONS_STATEMENT, table.num_rows, wrong_interventions(table))


def _batches_whole(run: Run) -> Check:
    parts_of: Counter[BatchKey] = Counter()
    for file in run.files(ROUNDS):
        keys: set[BatchKey] = set()
        for batch in read_batches(file, ROUND_SCHEMA, BatchKey._fields):
            keys.update(batch_keys(batch))
        parts_of.update(keys)
    failures = [" / ".join(map(str, key)) for key, count in parts_of.items() if count > 1]
    return _check("batches_whole", "a batch lies whole in one part", len(parts_of), failures)


def _masses(run: Run) -> Check:
    """Where some regions are unmeasured (null), the others must not exceed 1."""
    num_checked, failures = 0, []
    for table in run.batches(DEPTHS, ["round_id", "depth", "layer", *MASS_COLUMNS]):
        lists = [table[name] for name in MASS_COLUMNS]
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
    for batch in run.batches(ROUNDS, ["round_id", "fusion_share_bias", "fusion_share"]):
        table = batch.filter(pc.is_valid(batch["fusion_share"]))
        shares = table["fusion_share"]
        row = np.repeat(np.arange(len(shares)), _widths(shares))
        values = shares.flatten().to_numpy(zero_copy_only=False).astype(np.float64)
        bias = np.nan_to_num(
            table["fusion_share_bias"].to_numpy(zero_copy_only=False).astype(np.float64)
        )  # null: no bias
        total = np.bincount(row, values, len(shares)) + bias
        scale = np.bincount(row, np.abs(values), len(shares)) + np.abs(bias)
        is_wrong = ~(np.abs(total - 1) <= FUSION_SUM_TOLERANCE * scale)  # NaN is wrong too
        failures += [f"round_id {round_id}" for round_id in table["round_id"].to_numpy()[is_wrong]]
        num_checked += len(shares)
    statement = f"fusion shares and the bias' share sum to 1 within {FUSION_SUM_TOLERANCE:g} of their absolute sum"
    return _check("fusion_shares_sum_to_1", statement, num_checked, failures)


def _counts(run: Run) -> list[Check]:
    if run.status is not RunStatus.complete:
        return []
    return [_check("counts_match", COUNTS_STATEMENT, 3, run.wrong_counts())]


def _widths(lists: pa.ListArray) -> np.ndarray:
    widths: np.ndarray = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return widths


def _check(name: str, statement: str, num_checked: int, failures: list[str]) -> Check:
    return Check(
        name=name, statement=statement, num_checked=num_checked, num_failed=len(failures), examples=failures[:5]
    )
