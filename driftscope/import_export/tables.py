"""A run's rounds and depths as two flat tables, Parquet or CSV, for tools that want no lists in a cell.

Lists over heads become their mean, lists over aux layers a column each, numbered from 1 in ascending layer id (run.json's
`aux_layer_ids`; the last of target_divergence is `_mean`), and so do lists of candidates,
the best first. duckdb writes them part by part: no table is held in memory.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from driftscope.import_export.condition import Selection
from driftscope.runs import Run
from driftscope.runs.schema import DEPTH_SCHEMA, ROUND_SCHEMA
from probes.errors import InputError
from probes.record import COLUMNS

OPTIONS = {"parquet": "format parquet, compression zstd", "csv": "format csv, header true"}


def write_tables(run: Run, folder: Path, *, format: str, selection: Selection) -> dict[str, int]:
    """Writes rounds and depths into `folder` (there already) -> rows by file name.

    Raises RunError for a part that cannot be read, InputError when the files cannot be written.
    """
    import duckdb

    written: dict[str, int] = {}
    try:
        with run.database() as database:
            for name, schema, order in (
                ("rounds", ROUND_SCHEMA, "round_id"),
                ("depths", DEPTH_SCHEMA, "round_id, depth, layer"),
            ):
                columns = [c for field in schema for c in _flat(database, name, field)]
                file = folder / f"{name}.{format}"
                target = str(file).replace("'", "''")
                database.execute(
                    f"copy (select {', '.join(columns)} from {name} where {selection.where()} order by {order}) "
                    f"to '{target}' ({OPTIONS[format]})"
                )
                [[written[file.name]]] = database.execute(
                    f"select count(*) from {name} where {selection.where()}"
                ).fetchall()
    except duckdb.Error as error:  # a part's fault is a RunError already
        raise InputError(
            f"the tables cannot be written: {str(error).splitlines()[0]}",
            code="not_writable",
            where=str(folder),
            remedy="choose another place for --out",
        ) from error
    return written


def _flat(database: object, table: str, field: pa.Field) -> list[str]:
    """SQL for the columns that one column becomes."""
    name = field.name
    if name not in COLUMNS or not COLUMNS[name].is_list:
        return [name]
    axis = COLUMNS[name].axes.split()[-1]
    if axis == "head":
        return [f"list_avg({name})::float as {name}"]
    [[width]] = database.execute(f"select coalesce(max(len({name})), 0) from {table}").fetchall()  # type: ignore[attr-defined]
    if axis != "aux_and_mean":
        return [f"{name}[{i}] as {name}_{i}" for i in range(1, width + 1)]
    layers = [f"{name}[{i}] as {name}_{i}" for i in range(1, width)]
    return [*layers, f"{name}[-1] as {name}_mean"] if width else []
