"""Columns are declared once, in `probes.record`: the run's tables, as they are stored, and vLLM's rows follow."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from driftscope.runs.schema import DEPTH_SCHEMA, MASS_COLUMNS, ROUND_SCHEMA
from probes.record import COLUMNS, LIST_AXES

STORED = Path(__file__).parents[1] / "fixtures" / "runs" / "schema_1_import.drift"


@pytest.mark.parametrize("table", ["rounds", "depths"])
def test_the_tables_are_those_of_a_stored_run(table: str) -> None:
    """Names, order, types and what may be null: a change of any of them is a new schema version. A new column may be null:
    older runs do not have it."""
    stored = pq.read_schema(STORED / table / "part-000000.parquet").remove_metadata()
    now = {"rounds": ROUND_SCHEMA, "depths": DEPTH_SCHEMA}[table]
    assert pa.schema([field for field in now if field.name in stored.names]).equals(stored)
    assert all(field.nullable for field in now if field.name not in stored.names)


def test_every_column_is_in_a_table_with_its_axes() -> None:
    assert set(MASS_COLUMNS) <= set(COLUMNS)
    for name, column in COLUMNS.items():
        axes = column.axes.split()
        assert axes[0] == "round"
        assert (name in DEPTH_SCHEMA.names) == ("depth" in axes or (axes == ["round"] and column.is_required)), name
        assert (name in ROUND_SCHEMA.names) == ("depth" not in axes), name
        assert not set(axes[:-1]) & set(LIST_AXES)
        assert not column.is_text or column.missing == -1
