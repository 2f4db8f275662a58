"""Run folders that somebody else made: hostile values in every table, in run.json, and whatever may stand in a folder.

Every command that reads a run gives a result or a DriftscopeError, in bounded time and memory.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftscope.runs.reader import SCHEMAS
from driftscope.runs.schema import INTERVENTION_SCHEMA, TARGET_STATE_SCHEMA
from tests.fuzz.conftest import Reader
from tests.fuzz.hostile import damaged, damaged_bytes, json_text
from tests.fuzz.reader import RUN_COMMANDS
from tests.fuzz.test_checkpoint_files import ANY_SPEED
from tests.synthetic_run import AUX_LAYER_IDS, DRAFTERS, make_info, make_records, write_run

FEWER = settings(ANY_SPEED, max_examples=max(10, settings.default.max_examples // 5))  # type: ignore[union-attr]
PART = "part-000000.parquet"
FILES = {name: name if name.endswith(".parquet") else f"{name}/{PART}" for name in SCHEMAS}
commands = st.sampled_from(RUN_COMMANDS)


def write_small(path: Path) -> Path:
    """A run with something in each of its tables."""
    write_run(path, make_records(num_prompts=2, system_prompts=("default",), num_response_tokens=8), make_info())
    key = {"system_prompt": "default", "template": "default", "context_tokens": 0}
    counted = {"num_starts": 9, "accepted": 5, "baseline_accepted": 4, "is_degenerate": None}
    interventions = [
        {"id": id, "kind": kind, **key, "drafter": drafter, "prompt_id": f"p{number}", "depth": depth, **counted}
        for id, kind in (("baseline", "baseline"), ("norm_output_off", "checkpoint"))
        for drafter in DRAFTERS
        for number in range(2)
        for depth in range(1, 5)
    ]
    states = [
        {**key, "prompt_id": "p0", "aux_layer_id": layer, "num_positions": 5}
        | {"cosine": 0.9, "norm_ratio": 1.0, "gram_similarity": 0.9}
        for layer in AUX_LAYER_IDS
    ]
    pq.write_table(pa.Table.from_pylist(interventions, INTERVENTION_SCHEMA), path / "interventions.parquet")
    pq.write_table(pa.Table.from_pylist(states, TARGET_STATE_SCHEMA), path / "target_states.parquet")
    return path


with tempfile.TemporaryDirectory() as _name:
    _run = write_small(Path(_name) / "a.drift")
    RUN_JSON = json.loads((_run / "run.json").read_text())
    TABLES = {name: pq.read_table(_run / file) for name, file in FILES.items()}
    BYTES = {name: (_run / file).read_bytes() for name, file in FILES.items()}


@contextmanager
def small_run() -> Iterator[Path]:
    """A fresh copy of the run, alone in its folder."""
    with tempfile.TemporaryDirectory() as name:
        run = Path(name) / "a.drift"
        (run / "rounds").mkdir(parents=True)
        (run / "depths").mkdir()
        (run / "run.json").write_text(json.dumps(RUN_JSON))
        for table, file in FILES.items():
            (run / file).write_bytes(BYTES[table])
        yield run


def values_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Any value that a column of this type can hold."""
    if pa.types.is_list(kind):
        return st.lists(values_of(kind.value_type), max_size=5) | values_of(kind.value_type).map(lambda v: [v] * 3_000)
    if pa.types.is_string(kind):
        return st.none() | st.text(max_size=5) | st.sampled_from(["", "p1", "eagle3", "none", "a" * 200_000, "["])
    if pa.types.is_boolean(kind):
        return st.none() | st.booleans()
    if pa.types.is_floating(kind):
        return st.none() | st.floats(width=32)
    bits = kind.bit_width - (not str(kind).startswith("u"))
    low = 0 if str(kind).startswith("u") else -(2**bits)
    return st.none() | st.sampled_from([low, 2**bits - 1, 2 ** (bits - 1)]) | st.integers(max(low, -2), 70)


@st.composite
def damaged_tables(draw: st.DrawFn) -> dict[str, pa.Table]:
    """One or two columns of one or two tables with other values at some or at all rows."""
    changed = dict[str, pa.Table]()
    for name in draw(st.lists(st.sampled_from(list(TABLES)), min_size=1, max_size=2, unique=True)):
        table = TABLES[name]
        for field in draw(st.lists(st.sampled_from(list(SCHEMAS[name])), min_size=1, max_size=2, unique=True)):
            values = table[field.name].to_pylist()
            new = draw(values_of(field.type))
            at = draw(st.just(range(len(values))) | st.lists(st.integers(0, len(values) - 1), min_size=1, max_size=3))
            for row in at:
                values[row] = new
            place = table.schema.get_field_index(field.name)
            table = table.set_column(place, field.with_nullable(True), pa.array(values, field.type))
        order = draw(st.sampled_from(["as it is", "as it is", "twice", "reversed", "none"]))
        if order == "twice":
            table = pa.concat_tables([table, table])
        elif order != "as it is":
            table = table.take(list(reversed(range(table.num_rows)))) if order == "reversed" else table.slice(0, 0)
        changed[name] = table
    return changed


@FEWER
@given(tables=damaged_tables(), is_complete=st.booleans(), command=commands)
def test_values_of_any_kind(reader: Reader, tables: dict[str, pa.Table], is_complete: bool, command: str) -> None:
    with small_run() as run:
        for name, table in tables.items():
            pq.write_table(table, run / FILES[name])
        if not is_complete:  # the counts need not be those of the parts
            (run / "run.json").write_text(json.dumps(RUN_JSON | {"status": "incomplete"}))
        reader("run", run, command=command)


@FEWER
@given(table=st.sampled_from(list(TABLES)), data=st.data(), command=commands)
def test_damaged_parts(reader: Reader, table: str, data: st.DataObject, command: str) -> None:
    with small_run() as run:
        (run / FILES[table]).write_bytes(data.draw(damaged_bytes([BYTES[table]])))
        reader("run", run, command=command)


@FEWER
@given(document=damaged([RUN_JSON]), command=commands)
def test_run_json_of_any_kind(reader: Reader, document: Any, command: str) -> None:
    with small_run() as run:
        (run / "run.json").write_text(json_text(document), encoding="utf-8", errors="surrogatepass")
        reader("run", run, command=command)


PLACES = ("run.json", "writer.json", "writer.lock", "rounds", "depths", *FILES.values(), "summary.parquet", "rounds/x")
PLACES = (*PLACES, "rounds/part-000001.parquet", "depths/part-999999999999999999999999.parquet", ".x.tmp")
KINDS = ("pipe", "folder", "empty", "text", "device", "nowhere", "loop", "out", "giant", "deep json", "absent")


def put(kind: str, place: Path) -> None:
    """Something that no driftscope wrote, in place of what is there."""
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    elif kind in ("device", "nowhere", "loop", "out"):
        target = {"device": "/dev/zero", "nowhere": "nothing", "loop": place.name, "out": "/etc/passwd"}[kind]
        place.symlink_to(target)
    elif kind == "giant":
        with place.open("wb") as file:
            file.truncate(3 << 30)
    elif kind != "absent":
        place.write_text({"empty": "", "text": "no run\n", "deep json": "[" * 100_000}[kind])


@FEWER
@given(kinds=st.dictionaries(st.sampled_from(PLACES), st.sampled_from(KINDS), min_size=1, max_size=2), command=commands)
def test_stray_files(reader: Reader, kinds: dict[str, str], command: str) -> None:
    with small_run() as run:
        for place, kind in kinds.items():
            if (run / place).parent.is_dir():
                put(kind, run / place)
        reader("run", run, command=command)


NUM_LONG = 40_000_000  # values of one list: 160 MB in memory, some kB in the file


def many_rows(file: Path, table: pa.Table) -> None:
    """Four million rows alike, of which Parquet stores one and a count."""
    required = table.select([field.name for field in table.schema if not field.nullable])
    million = required.slice(0, 1).take(pa.array([0] * 1_000_000, pa.int32()))
    with pq.ParquetWriter(file, million.schema, compression="zstd") as writer:
        for _ in range(4):
            writer.write_table(million)


def long_texts(file: Path, table: pa.Table, column: str) -> None:
    """One text of 1 MB (a name: the longest that is allowed), for each of 3,000 rows."""
    indices = pa.array([0] * 3_000, pa.int32())
    text = "x" * 2**17 if column in ("id", "drafter") else json.dumps([{"role": "user", "content": "x" * 2**20}])
    values: pa.Array = pa.DictionaryArray.from_arrays(indices, pa.array([text]))
    if column == "notes":
        values = pa.ListArray.from_arrays(pa.array(range(3_001), pa.int32()), values)
    repeated = table.take(indices)
    place = repeated.schema.get_field_index(column)
    pq.write_table(repeated.set_column(place, column, values), file, compression="zstd", store_schema=False)


def long_list(file: Path, table: pa.Table, column: str) -> None:
    """One row's list holds 40 million equal values."""
    row = table.slice(0, 1)
    field = row.schema.field(column)
    leaves = pa.repeat(pa.scalar(0, field.type.value_type), NUM_LONG)
    values = pa.ListArray.from_arrays(pa.array([0, NUM_LONG], pa.int32()), leaves).cast(field.type)
    pq.write_table(row.set_column(row.schema.get_field_index(column), field, values), file, compression="zstd")


def zeros(file: Path, table: pa.Table, column: str) -> None:
    """One text of 200 MB of the same letter, compressed."""
    row = table.slice(0, 1)
    place = row.schema.get_field_index(column)
    values = pa.array(["x" * 200_000_000])
    pq.write_table(row.set_column(place, column, values), file, compression="zstd", use_dictionary=False)


BOMBS: dict[str, tuple[str, Callable[[Path, pa.Table], None]]] = {
    "rows of rounds": ("rounds", many_rows),
    "rows of depths": ("depths", many_rows),
    "rows of prompts": ("prompts.parquet", many_rows),
    "messages": ("prompts.parquet", partial(long_texts, column="messages")),
    "notes": ("prompts.parquet", partial(long_texts, column="notes")),
    "drafters": ("rounds", partial(long_texts, column="drafter")),
    "reasons": ("depths", partial(long_texts, column="rejection_reason")),
    "ids": ("interventions.parquet", partial(long_texts, column="id")),
    "regions": ("prompts.parquet", partial(long_list, column="region")),
    "shares": ("rounds", partial(long_list, column="fusion_share")),
    "heads": ("depths", partial(long_list, column="mass_own")),
    "zeros": ("prompts.parquet", partial(zeros, column="messages")),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_small_file_that_stands_for_much(reader: Reader, bomb: str) -> None:
    """The reader's memory is bounded in `Reader`; what is needed is refused, what is not needed may stay unread."""
    table, write = BOMBS[bomb]
    with small_run() as run:
        write(run / FILES[table], TABLES[table])
        assert (run / FILES[table]).stat().st_size < 1_000_000
        (run / "run.json").write_text(json.dumps(RUN_JSON | {"status": "incomplete"}))
        outcomes = {command: reader("run", run, command=command) for command in RUN_COMMANDS}
    assert outcomes["list"] == outcomes["verify"] == "read"  # verify names what is wrong
    needed = {"ids": ["diagnose", "report"]}.get(bomb, ["show", "diagnose", "report"])
    if bomb in ("messages", "notes", "regions", "reasons"):
        needed = {"reasons": ["diagnose"]}.get(bomb, [])
    assert {outcomes[command] for command in needed} <= {"refused"}, outcomes


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("num_lost", [1, 2, 3, 4, 7])
def test_pages_where_the_footer_does_not_say(reader: Reader, table: str, num_lost: int) -> None:
    """Bytes read as a page's header ask for gigabytes: they are compared with the footer first."""
    with small_run() as run:
        (run / FILES[table]).write_bytes(BYTES[table][num_lost:])
        for command in ("show", "verify", "diagnose", "compare"):
            reader("run", run, command=command)
