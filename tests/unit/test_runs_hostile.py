"""Runs that somebody else made: readers say what `runs verify` says, and one bad folder costs its own row only."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from driftscope.advise import advise
from driftscope.compare import compare
from driftscope.diagnosis.diagnose import diagnose
from driftscope.import_export.condition import Selection
from driftscope.import_export.write import export
from driftscope.report import write_report
from driftscope.runs import Run, RunWriter, list_runs, read_run, recover, verify
from driftscope.runs.reader import SCHEMAS
from driftscope.summary import summarise
from probes.errors import InputError, RunError
from tests.synthetic_run import make_info, make_records, write_run

ROUNDS, DEPTHS, PROMPTS = "rounds/part-000000.parquet", "depths/part-000000.parquet", "prompts.parquet"
READERS: dict[str, Callable[[Run, Path], Any]] = {
    "show": lambda run, out: summarise(run),
    "diagnose": lambda run, out: diagnose(run),
    "advise": lambda run, out: advise(run),
    "compare": lambda run, out: compare([run], by="drafter"),
    "export": lambda run, out: export(run, out / "tables", format="csv", selection=Selection()),
    "report": lambda run, out: write_report([run.path], out / "r.html", with_text=True),
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original")
    return write_run(folder / "a.drift", make_records(num_prompts=2, system_prompts=("default",)))


@pytest.fixture
def run(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "a.drift"))


def put(run: Path, file: str, column: str, value: Any, row: int = 3) -> None:
    table = pq.read_table(run / file)
    values = table[column].to_pylist()
    values[row % len(values)] = value
    field = table.schema.field(column)
    place = table.schema.get_field_index(column)
    pq.write_table(table.set_column(place, field.with_nullable(True), pa.array(values, field.type)), run / file)


@pytest.mark.parametrize(
    ("file", "column", "value", "said"),
    [
        (ROUNDS, "num_depths", 2**30, "num_depths is 1073741824, not 1 to 4"),
        (ROUNDS, "num_depths", 5, "num_depths is 5, not 1 to 4"),  # below 64, more than run.json's K
        (ROUNDS, "num_drafts", -1, "num_drafts is -1, not 0 to"),
        (ROUNDS, "num_drafts", 9, "num_drafts <= num_depths does not hold"),
        (ROUNDS, "drafter", None, "drafter is null"),
        (ROUNDS, "drafter", "another", "what depths repeats of a round is the round's"),
        (ROUNDS, "round_id", 2**63 - 1, "round_id is 9223372036854775807"),
        (ROUNDS, "round_id", 4, "a round_id stands once in rounds (round 4)"),
        (ROUNDS, "prompt_id", "nobody", "what depths repeats of a round is the round's"),
        (ROUNDS, "fusion_share", [0.1] * 4, "fusion_share is a list of 4 values, not 0 to 3"),
        (DEPTHS, "depth", 2**31 - 1, "depth is 2147483647, not 1 to 4"),
        (DEPTHS, "depth", 0, "depth is 0, not 1 to 4"),
        (DEPTHS, "depth", 3, "every round has num_depths rows per layer in depths"),
        (DEPTHS, "layer", 64, "layer is 64, not 0 to 63"),
        (DEPTHS, "prompt_id", "p9", "what depths repeats of a round is the round's"),
        (PROMPTS, "is_forced", None, "is_forced is null"),
        (PROMPTS, "prompt_id", "p0", "a prompt stands once in prompts (default / default / 0 / p0)"),
    ],
)
@pytest.mark.parametrize("reader", READERS)
def test_readers_say_what_verify_says(
    run: Path, tmp_path: Path, file: str, column: str, value: Any, said: str, reader: str
) -> None:
    put(run, file, column, value)
    with pytest.raises(RunError) as caught:
        READERS[reader](read_run(run), tmp_path)
    assert said in str(caught.value)
    assert caught.value.remedy.startswith("Do not use these numbers")
    if file.split("/")[0] in caught.value.where:  # a fault of one value: the row is named
        assert "in the row of" in caught.value.message
    verified = [f"{check.statement} {example}" for check in verify(run).checks for example in check.examples]
    assert any(said.split(" (")[0] in text for text in verified), verified


@pytest.mark.parametrize(
    ("file", "column", "value", "said"),
    [
        (DEPTHS, "mass_own", [0.1] * 2_000, "mass_own is a list of 2000 values, not 0 to 3"),
        (DEPTHS, "draft_top_token", [-7], "draft_top_token holds -7"),
        (DEPTHS, "accepted", 5, "accepted is 5, not 0 to 1"),
        (PROMPTS, "region", [200] * 49, "region holds 200"),
        (PROMPTS, "region", [1], "a region for each token"),
        (PROMPTS, "token_ids", [-1] * 49, "token_ids holds -1"),
        (PROMPTS, "messages", "[" * 100_000, "messages is no JSON list of messages"),
        (PROMPTS, "messages", '[{"role": ["user"]}]', "messages is no JSON list of messages"),
    ],
)
def test_values_that_only_some_readers_need(run: Path, file: str, column: str, value: Any, said: str) -> None:
    put(run, file, column, value)
    table = next(name for name in SCHEMAS if file.startswith(name))
    with pytest.raises(RunError, match="every value is one that can be") as caught:
        read_run(run).table(table)
    assert said in caught.value.message
    [check] = [check for check in verify(run).checks if check.num_failed]
    assert check.name == "values_possible"
    assert said in check.examples[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"depth": 2**40}, "less than or equal to 64"),
        ({"depth": -1}, "greater than or equal to 0"),
        ({"sink_slots": -1}, "greater than or equal to 0"),
        ({"temperature": float("inf")}, "finite number"),
        ({"counts": {"num_rounds": 10**30}}, "9007199254740992"),
        ({"drafters": [{"name": ""}] * 2_000}, "at most 1000 items"),
        ({"drafters": [{"name": "a", "num_heads": 10**9}]}, "less than or equal to 1024"),
        ({"drafters": [{"name": "a", "origins": {"x": [1]}}]}, "should be an object"),
        (
            {"costs": [{"drafter": "a", "batch_size": 1, "context_tokens": 0, "draft_us": [0.0], "verify_us": [1.0]}]},
            "greater than 0",
        ),
        ({"notes": ["x" * (9 << 20)]}, "more than 8,388,608 bytes"),
    ],
)
def test_run_json_is_bounded(run: Path, change: dict[str, Any], said: str) -> None:
    stored = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(stored | change))
    with pytest.raises(RunError, match=said) as caught:
        read_run(run)
    assert caught.value.code == "bad_run_json"
    assert len(str(caught.value)) < 3_000


def test_a_part_that_vanished(run: Path, tmp_path: Path) -> None:
    """Readers see it without reading a page: run.json of a complete run says what there must be."""
    with RunWriter.resume(run) as writer:
        for record in make_records(num_prompts=1, system_prompts=("second",)):
            writer.write_batch(record)
    assert summarise(read_run(run)).conditions[-1].system_prompt == "second"
    for folder in ("rounds", "depths"):
        (run / folder / "part-000001.parquet").unlink()
    for reader in READERS.values():
        with pytest.raises(RunError, match=r"rounds: run\.json says 174, the parts hold 116 rows"):
            reader(read_run(run), tmp_path)


@pytest.mark.parametrize(
    "name", ["run.json", "rounds", "depths", ROUNDS, DEPTHS, PROMPTS, "interventions.parquet", "x"]
)
def test_links_out_of_a_run(run: Path, tmp_path: Path, original: Path, name: str) -> None:
    place = run / name
    outside = tmp_path / "outside"
    if place.exists():
        place.rename(outside)
    else:
        outside.write_text("mine")
    before = {file: file.stat().st_mtime_ns for file in [outside, *outside.rglob("*")]}
    place.symlink_to(outside)
    for attempt in (read_run, verify, recover, RunWriter.resume):
        with pytest.raises(RunError) as caught:
            attempt(run)
        assert (caught.value.code, caught.value.where) == ("link_out", str(place))
    assert {file: file.stat().st_mtime_ns for file in [outside, *outside.rglob("*")]} == before
    [entry] = list_runs(tmp_path).runs
    assert "leads out of the run" in (entry.error or "")


def test_a_link_within_a_run_is_read(run: Path) -> None:
    (run / PROMPTS).rename(run / "real.parquet")
    (run / PROMPTS).symlink_to("real.parquet")
    assert len(summarise(read_run(run)).conditions) == 2


def test_one_bad_folder_costs_its_row(run: Path, tmp_path: Path) -> None:
    """FIFOs, devices, links in a circle, giants, wrong JSON: the others are listed, and nothing blocks."""

    def bad(name: str) -> Path:
        return Path(shutil.copytree(run, tmp_path / f"{name}.drift"))

    os.mkfifo(tmp_path / "pipe.drift")
    (tmp_path / "file.drift").write_text("x")
    (tmp_path / "loop.drift").symlink_to("loop.drift")
    (tmp_path / "gone.drift").symlink_to("nothing")
    (tmp_path / "zero.drift").symlink_to("/dev/zero")
    for name, text in {"deep": "[" * 100_000, "list": "[]", "infinite": '{"depth": Infinity}', "empty": ""}.items():
        (bad(name) / "run.json").write_text(text)
    for name in ("run.json", "rounds"):
        folder = bad(f"a pipe as {name}")
        shutil.rmtree(folder / "rounds")
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)
    with (bad("giant") / "run.json").open("wb") as file:
        file.truncate(3 << 30)
    os.rename(bad("x"), os.fsencode(tmp_path) + b"/bad\xff.drift")
    signal.alarm(60)  # a pipe that is opened would block for ever
    try:
        entries = {entry.name: entry for entry in list_runs(tmp_path).runs}
    finally:
        signal.alarm(0)
    good = entries.pop("a")
    assert (good.error, good.num_rounds) == (None, 116)
    assert len(entries) == 13
    assert all(entry.error and len(entry.error) < 3_000 for entry in entries.values())
    assert "rename it" in (entries["bad\\udcff"].error or "")
    for entry in list_runs(tmp_path).runs:
        entry.model_dump_json()


@pytest.mark.parametrize("file", [ROUNDS, DEPTHS, PROMPTS])
def test_a_pipe_as_a_part(run: Path, tmp_path: Path, file: str) -> None:
    (run / file).unlink()
    os.mkfifo(run / file)
    signal.alarm(60)
    try:
        for reader in READERS.values():
            with pytest.raises(InputError, match="a pipe, a file is needed here"):
                reader(read_run(run), tmp_path)
        assert not verify(run).is_sound
    finally:
        signal.alarm(0)


def test_rows_of_a_parquet_footer_are_bounded_by_its_size(tmp_path: Path) -> None:
    """What a real run has in the fewest bytes is far from the bound: 1.4 rows a byte."""
    path = write_run(tmp_path / "b.drift", make_records(num_prompts=2, has_attention=False), make_info())
    for folder in ("rounds", "depths"):
        [file] = (path / folder).iterdir()
        assert pq.read_metadata(file).num_rows < file.stat().st_size
