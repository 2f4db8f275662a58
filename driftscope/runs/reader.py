"""Reads a run into Arrow tables, or lets duckdb query it in place.

Knows no statistics. Only committed parts are read: those with a file in rounds/ and in depths/. A part that cannot be
read is a RunError that names it and the remedy; nothing is skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds

from driftscope.runs.files import DEPTHS, INTERVENTIONS, PROMPTS, ROUNDS, TARGET_STATES, part_name, part_numbers
from driftscope.runs.info import RunInfo, RunStatus, read_info
from driftscope.runs.lock import is_being_written
from driftscope.runs.parquet import num_rows, read_table
from driftscope.runs.schema import (
    DEPTH_SCHEMA,
    INTERVENTION_SCHEMA,
    PROMPT_SCHEMA,
    ROUND_SCHEMA,
    TARGET_STATE_SCHEMA,
    BatchKey,
    PromptKey,
)
from probes.errors import RunError

if TYPE_CHECKING:
    import duckdb


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

    def prompts(self) -> pa.Table:
        """One row per prompt, system prompt, template and context length (`PROMPT_SCHEMA`)."""
        file = self.path / PROMPTS
        return (
            _completed(read_table(file, PROMPT_SCHEMA), PROMPT_SCHEMA) if file.exists() else PROMPT_SCHEMA.empty_table()
        )

    def rounds(self, columns: Sequence[str] | None = None, filter: Any = None) -> pa.Table:
        """One row per round (`ROUND_SCHEMA`). `filter` is a pyarrow.compute expression."""
        return self._table(ROUNDS, ROUND_SCHEMA, columns, filter)

    def depths(self, columns: Sequence[str] | None = None, filter: Any = None) -> pa.Table:
        """One row per round, depth and layer (`DEPTH_SCHEMA`). Columns without a layer axis repeat on every layer's
        row: filter on layer 0 to count them once. `filter` is a pyarrow.compute expression."""
        return self._table(DEPTHS, DEPTH_SCHEMA, columns, filter)

    def interventions(self) -> pa.Table:
        """One row per intervention, prompt and depth; empty when none were made."""
        return self._small_table(INTERVENTIONS, INTERVENTION_SCHEMA)

    def target_states(self) -> pa.Table:
        """One row per prompt and target layer: this target beside a reference one; empty without that."""
        return self._small_table(TARGET_STATES, TARGET_STATE_SCHEMA)

    def _small_table(self, name: str, schema: pa.Schema) -> pa.Table:
        file = self.path / name
        return _completed(read_table(file, schema), schema) if file.exists() else schema.empty_table()

    def part_files(self, folder: str, schema: pa.Schema) -> list[Path]:
        """Committed parts of `rounds` or `depths`. Raises RunError for the first that cannot be read."""
        files = [self.path / folder / part_name(number) for number in self._parts]
        for file in files:
            num_rows(file, schema)
        return files

    def database(self) -> duckdb.DuckDBPyConnection:
        """A duckdb connection with the views `prompts`, `rounds` and `depths` over the files."""
        import duckdb

        connection = duckdb.connect()
        # after two seconds a progress bar would stand in stdout, in --json too
        connection.execute("set enable_progress_bar = false")
        connection.register("prompts", self.prompts())
        for name, schema in ((ROUNDS, ROUND_SCHEMA), (DEPTHS, DEPTH_SCHEMA)):
            files = self.part_files(name, schema)
            connection.register(f"no_{name}", schema.empty_table())  # gives every column, also to older files
            union = f"from no_{name}"
            if files:
                names = ", ".join("'" + str(file).replace("'", "''") + "'" for file in files)
                union += f" union all by name from read_parquet([{names}], union_by_name=true, hive_partitioning=false)"
            connection.execute(f"create view {name} as {union}")
        return connection

    def query(self, sql: str) -> pa.Table:
        """The result of one duckdb query over `prompts`, `rounds` and `depths`. RunError when a part's pages are
        damaged."""
        import duckdb

        try:
            with self.database() as connection:
                return connection.sql(sql).to_arrow_table()
        except (duckdb.BinderException, duckdb.CatalogException, duckdb.ParserException):
            raise  # the query's fault, no file's
        except duckdb.Error as error:  # which kind damaged pages give depends on duckdb's version
            for name, schema in ((ROUNDS, ROUND_SCHEMA), (DEPTHS, DEPTH_SCHEMA)):
                for file in self.part_files(name, schema):
                    read_table(file, schema)  # raises with the name of the part at fault
            raise RunError(
                f"the run cannot be queried: {str(error).splitlines()[0]}", code="unreadable_part", where=str(self.path)
            ) from error

    def _table(self, folder: str, schema: pa.Schema, columns: Sequence[str] | None, filter: Any) -> pa.Table:
        files = self.part_files(folder, schema)
        dataset = ds.dataset([str(file) for file in files], schema=schema, format="parquet")
        try:
            return dataset.to_table(columns=list(columns) if columns is not None else None, filter=filter)
        except (pa.ArrowException, OSError):
            for file in files:
                read_table(file, schema)  # raises with the name of the part at fault
            raise


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
        table = read_table(run / ROUNDS / part_name(number), ROUND_SCHEMA)
        distinct = table.group_by(list(BatchKey._fields)).aggregate([("round_id", "max")])
        rows = zip(*(distinct[name].to_pylist() for name in (*BatchKey._fields, "round_id_max")), strict=True)
        for *key, round_id in rows:
            keys.add(BatchKey(*key))
            last_round_id = max(last_round_id, round_id)
    return BatchesOnDisk(frozenset(keys), last_round_id)


def prompt_keys(prompts: pa.Table) -> list[PromptKey]:
    """The key of each row of a prompts table."""
    columns = (prompts[name].to_pylist() for name in PromptKey._fields)
    return [PromptKey(*key) for key in zip(*columns, strict=True)]


def _completed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Columns in the order of `schema`, null where an older version did not write them."""
    columns = [table[f.name] if f.name in table.column_names else pa.nulls(table.num_rows, f.type) for f in schema]
    return pa.table(columns, schema=schema)
