"""Reads a run into Arrow tables, or lets duckdb query it in place.

Knows no statistics. Only committed parts are read: those with a file in rounds/ and in depths/. A part that cannot be
read, or holds values that cannot be (`driftscope.runs.values`), is a RunError that names it and the remedy; nothing is
skipped. duckdb gets batches that were read and checked here, never the name of a file: its names are patterns.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from driftscope.runs.contradictions import (
    COUNTS_STATEMENT,
    INTERVENTIONS_STATEMENT,
    OPENING_CHECKS,
    VALUES_STATEMENT,
    contradiction,
    wrong_interventions,
)
from driftscope.runs.files import DEPTHS, INTERVENTIONS, PROMPTS, ROUNDS, TARGET_STATES, part_name, part_numbers
from driftscope.runs.info import RunInfo, RunStatus, read_info
from driftscope.runs.lock import is_being_written
from driftscope.runs.parquet import damaged, num_rows, read_batches
from driftscope.runs.schema import (
    DEPTH_SCHEMA,
    INTERVENTION_SCHEMA,
    PROMPT_SCHEMA,
    ROUND_SCHEMA,
    TARGET_STATE_SCHEMA,
    BatchKey,
    PromptKey,
)
from driftscope.runs.values import Limits, Names, find_fault, rule_columns
from driftscope.runs.views import VIEWS
from probes.errors import RunError

if TYPE_CHECKING:
    import duckdb

SCHEMAS = {
    PROMPTS: PROMPT_SCHEMA,
    ROUNDS: ROUND_SCHEMA,
    DEPTHS: DEPTH_SCHEMA,
    INTERVENTIONS: INTERVENTION_SCHEMA,
    TARGET_STATES: TARGET_STATE_SCHEMA,
}
"""Tables of a run by the name of their file or folder."""
MAX_SMALL_TABLE_BYTES, MAX_SMALL_TABLE_RATIO = 64 << 20, 4
PROMPT_FACTS = [f.name for f in PROMPT_SCHEMA if f.name != "messages" and not pa.types.is_list(f.type)]
"""Columns of prompts without its texts, which are long and checked where they are read."""


class Run:
    """A run on disk, as it stood when it was opened; make it with `read_run`."""

    def __init__(self, path: Path, info: RunInfo, *, is_alive: bool) -> None:
        self.path = path
        self.info = info
        self.is_being_written = is_alive
        self._parts = part_numbers(path / ROUNDS)

    @property
    def status(self) -> RunStatus:
        """run.json's, except that a `running` run whose writer is dead is `incomplete`."""
        if self.info.status is RunStatus.running and not self.is_being_written:
            return RunStatus.incomplete
        return self.info.status

    def prompts(self, columns: Sequence[str] | None = None, filter: Any = None) -> pa.Table:
        """One row per prompt, system prompt, template and context length (`PROMPT_SCHEMA`). `filter` is a
        pyarrow.compute expression."""
        return self.table(PROMPTS, columns, filter)

    def rounds(self, columns: Sequence[str] | None = None, filter: Any = None) -> pa.Table:
        """One row per round (`ROUND_SCHEMA`)."""
        return self.table(ROUNDS, columns, filter)

    def depths(self, columns: Sequence[str] | None = None, filter: Any = None) -> pa.Table:
        """One row per round, depth and layer (`DEPTH_SCHEMA`). Columns without a layer axis repeat on every layer's
        row: filter on layer 0 to count them once."""
        return self.table(DEPTHS, columns, filter)

    def interventions(self) -> pa.Table:
        """One row per intervention, prompt and depth; empty when none were made."""
        table = self._small_table(INTERVENTIONS)
        if wrong := wrong_interventions(table):
            raise contradiction(self.path / INTERVENTIONS, INTERVENTIONS_STATEMENT, wrong[0])
        return table

    def target_states(self) -> pa.Table:
        """One row per prompt and target layer: this target beside a reference one; empty without that."""
        return self._small_table(TARGET_STATES)

    def _small_table(self, table: str) -> pa.Table:
        """One that is made into Python objects: whole, with a bound on what a file of its size can stand for."""
        batches, num_bytes = [], 0
        limit = MAX_SMALL_TABLE_BYTES + sum(MAX_SMALL_TABLE_RATIO * file.stat().st_size for file in self.files(table))
        for batch in self.batches(table):
            batches.append(batch)
            num_bytes += batch.nbytes
            if num_bytes > limit:
                raise damaged(self.path / table, f"it stands for more than {limit:,} bytes of data")
        return pa.Table.from_batches(batches, SCHEMAS[table])

    def files(self, table: str) -> list[Path]:
        """The files of one of `SCHEMAS`: committed parts, or the one file where it exists."""
        if table in (ROUNDS, DEPTHS):
            return [self.path / table / part_name(number) for number in self._parts]
        file = self.path / table
        return [file] if os.path.lexists(file) else []

    def num_rows(self, table: str) -> int:
        """Rows of one of `SCHEMAS`, from the footers of its files. Raises RunError for the first that cannot be read."""
        return sum(num_rows(file, SCHEMAS[table]) for file in self.files(table))

    def batches(self, table: str, columns: Sequence[str] | None = None, filter: Any = None) -> Iterator[pa.RecordBatch]:
        """The rows of one of `SCHEMAS` in pieces of some MB, checked; with `filter`, row groups without a match are
        left out. Raises RunError for a file that cannot be read and for a value that cannot be."""
        limits = Limits.of(self.info)
        names = Names()
        for file in self.files(table):
            yield from _checked_batches(file, SCHEMAS[table], limits, names, columns, filter)

    @contextmanager
    def database(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A duckdb connection with the tables `prompts`, `rounds` and `depths` and the views of `driftscope.runs.views`.
        RunError when a part is damaged or the tables contradict each other so that no query over them means anything."""
        self._opened  # noqa: B018
        with self.connection() as connection:
            for name, sql in VIEWS.items():
                connection.execute(f"create temp view {name} as {sql}")
            yield connection

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> pa.Table:
        """The result of one duckdb query over what `database` has, `parameters` for its question marks."""
        with self.database() as connection:
            return connection.sql(sql, params=list(parameters)).to_arrow_table()

    def wrong_counts(self) -> list[str]:
        """Where run.json and the footers of the parts disagree; only a finished writer's counts are promised."""
        counts = self.info.counts
        said = {PROMPTS: counts.num_prompts, ROUNDS: counts.num_rounds, DEPTHS: counts.num_depth_rows}
        return [
            f"{Path(table).stem}: run.json says {count:,}, the parts hold {found:,} rows"
            for table, count in said.items()
            if (found := self.num_rows(table)) != count
        ]

    @contextmanager
    def connection(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """`database` without a look at whether the tables contradict each other."""
        import duckdb

        with duckdb.connect() as connection:
            # after two seconds a progress bar would stand in stdout, in --json too
            connection.execute("set enable_progress_bar = false")
            tables = {name: _Scanned(self, name) for name in (PROMPTS, ROUNDS, DEPTHS)}
            for name, table in tables.items():
                connection.register(Path(name).stem, table)
            try:
                yield connection
            except duckdb.Error as error:
                refused = next((table.error for table in tables.values() if table.error is not None), None)
                if refused is not None:  # a part's fault: duckdb keeps its words only
                    raise refused from error
                raise

    @cached_property
    def _opened(self) -> bool:
        """True once what readers rely on was looked at: raises RunError for the first check that fails."""
        if self.status is RunStatus.complete and (failures := self.wrong_counts()):
            raise contradiction(self.path, COUNTS_STATEMENT, failures[0])
        for table, columns in ((PROMPTS, PROMPT_FACTS), (ROUNDS, None)):  # depths/ are checked as they are queried
            for _ in self.batches(table, columns):
                pass
        with self.connection() as connection:
            for check in OPENING_CHECKS:
                failed = connection.execute(f"{check.failures} limit 1").fetchall()
                if failed:
                    raise contradiction(self.path, check.statement, str(failed[0][0]))
        return True

    def table(self, table: str, columns: Sequence[str] | None = None, filter: Any = None) -> pa.Table:
        """One of `SCHEMAS`, whole; `filter` is a pyarrow.compute expression."""
        return _Scanned(self, table).scanner(columns=columns, filter=filter).to_table()


class _Scanned(ds.InMemoryDataset):  # type: ignore[misc]
    """A table of a run as duckdb and Arrow scan it: batch by batch, each checked, only the columns that are needed."""

    def __init__(self, run: Run, table: str) -> None:
        super().__init__(SCHEMAS[table].empty_table())
        self._run = run
        self._table = table
        self.error: RunError | None = None

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None, **_: Any) -> ds.Scanner:
        """What `ds.Dataset.scanner` gives; duckdb calls it with the columns and the filter of a query."""
        schema = SCHEMAS[self._table]
        needed = set(schema.names if columns is None else columns) | set(rule_columns(schema))
        needed |= {name for name in schema.names if filter is not None and name in str(filter)}
        read = [name for name in schema.names if name in needed]
        return ds.Scanner.from_batches(
            self._batches(read, filter),
            schema=pa.schema([schema.field(name) for name in read]),
            columns=None if columns is None else list(columns),
            filter=filter,
            batch_readahead=1,
        )

    def _batches(self, columns: Sequence[str], filter: Any) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._run.batches(self._table, columns, filter)
        except RunError as error:
            self.error = error
            raise


def _checked_batches(
    file: Path, schema: pa.Schema, limits: Limits, names: Names, columns: Sequence[str] | None, filter: Any
) -> Iterator[pa.RecordBatch]:
    for batch in read_batches(file, schema, columns, filter):
        fault = find_fault(batch, limits) or names.find_fault(batch)
        if fault is not None:
            row = batch.slice(fault.row, 1).select([n for n in _PLACE if n in batch.schema.names]).to_pylist()[0]
            place = ", ".join(f"{name} {value}" for name, value in row.items())
            raise contradiction(file, VALUES_STATEMENT, fault.what + (f" in the row of {place}" if place else ""))
        yield batch


_PLACE = ("round_id", "id", "prompt_id", "depth", "layer")


def read_run(path: str | Path) -> Run:
    """Open the run at `path`. Raises RunError `run_not_found`, `not_a_run`, `bad_run_json`, `newer_schema`."""
    run = Path(path)
    is_alive = is_being_written(run)  # before run.json: a writer that ends in between has then written its end
    return Run(run, read_info(run), is_alive=is_alive)


class BatchesOnDisk(NamedTuple):
    """What the committed parts hold."""

    keys: frozenset[BatchKey]
    last_round_id: int  # -1 without rounds


def batches_on_disk(run: Path) -> BatchesOnDisk:
    """Batches of the committed parts. Raises RunError for a part that cannot be read."""
    keys: set[BatchKey] = set()
    last_round_id = -1
    for number in part_numbers(run / ROUNDS):
        file = run / ROUNDS / part_name(number)
        for batch in read_batches(file, ROUND_SCHEMA, [*BatchKey._fields, "round_id"]):
            keys.update(batch_keys(batch))
            last_round_id = max(last_round_id, pc.max(batch["round_id"]).as_py())
    return BatchesOnDisk(frozenset(keys), last_round_id)


def batch_keys(rounds: pa.RecordBatch) -> set[BatchKey]:
    """The batches that rows of rounds belong to."""
    distinct = pa.Table.from_batches([rounds]).group_by(list(BatchKey._fields)).aggregate([])
    return {BatchKey(*key) for key in zip(*(distinct[n].to_pylist() for n in BatchKey._fields), strict=True)}


def prompt_keys(prompts: pa.Table | pa.RecordBatch) -> list[PromptKey]:
    """The key of each row of a prompts table."""
    columns = (prompts[name].to_pylist() for name in PromptKey._fields)
    return [PromptKey(*key) for key in zip(*columns, strict=True)]
