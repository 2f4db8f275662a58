"""Kills, cuts and flipped bits: what was committed stays, what is damaged is named, and resuming goes on."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from driftscope.runs import RunStatus, RunWriter, list_runs, read_run, recover, verify
from driftscope.runs.files import temporary_files
from driftscope.runs.lock import is_being_written
from driftscope.summary import summarise
from probes.errors import RunError
from probes.record import PromptRecord
from tests.synthetic_run import make_batch, make_info, make_prompt, make_records, write_run

WRITER = """
import sys, driftscope.runs.writer as w
from driftscope.runs import RunWriter
from tests.synthetic_run import make_info, make_records
w.FLUSH_ROUNDS, w.FLUSH_COST_RATIO = 30, 0
with RunWriter(sys.argv[1], make_info()) as writer:
    print("ready", flush=True)
    for record in make_records(num_prompts=400):
        writer.write_batch(record)
"""


def _killed_run(path: Path, after_seconds: float) -> None:
    """A run whose writer is killed some time after it began."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, env=environment)
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"ready\n"
    time.sleep(after_seconds)
    assert writer.poll() is None, "it finished before it was killed"
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()


@pytest.mark.parametrize("seed", range(4))
def test_sigkill_at_a_random_moment(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "killed.drift"
    _killed_run(path, random.Random(seed).uniform(0.0, 0.4))
    # as it lies there: it lists, reads and shows, whole batches only
    [entry] = list_runs(tmp_path).runs
    assert (entry.error, entry.status) == (None, RunStatus.incomplete)
    run = read_run(path)
    before = run.rounds()
    summarise(run)
    assert verify(path).is_sound

    recovery = recover(path)
    assert recovery.status is RunStatus.incomplete
    assert temporary_files(path) == []
    assert recovery.counts.num_rounds == before.num_rows
    assert all(file.reason.startswith("there is no rounds/") for file in recovery.set_aside)
    assert read_run(path).rounds().equals(before)
    assert summarise(read_run(path)).run.status == "incomplete"

    with RunWriter.resume(path) as writer:
        prompt = make_prompt("one more")
        writer.write_batch(prompt)
        writer.write_batch(make_batch(prompt))
    assert verify(path).is_sound
    after = read_run(path)
    assert after.status is RunStatus.complete
    assert after.rounds().num_rows == before.num_rows + 29


def test_a_run_being_written_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.drift"
    with RunWriter(path, make_info()):
        assert is_being_written(path)
        assert read_run(path).status is RunStatus.running
        for attempt in (recover, RunWriter.resume, lambda p: RunWriter(p, make_info(), overwrite=True)):
            with pytest.raises(RunError) as caught:
                attempt(path)
            assert caught.value.code == "run_is_being_written"
    assert not is_being_written(path)
    assert recover(path).status is RunStatus.complete


def _two_parts(path: Path) -> Path:
    """Part 0 holds the system prompt "default", part 1 "none"."""
    with RunWriter(path, make_info()) as writer:
        for record in make_records():
            if isinstance(record, PromptRecord) and (record.system_prompt, record.prompt_id) == ("none", "p0"):
                writer.flush()
            writer.write_batch(record)
    return path


@pytest.mark.parametrize(
    ("folder", "damage"),
    [
        *itertools.product(["rounds", "depths"], ["truncated", "empty", "foreign"]),
        ("depths", "missing"),  # a depths part alone was never committed: see test_uncommitted_depths_are_ignored
    ],
)
def test_damaged_part(tmp_path: Path, folder: str, damage: str) -> None:
    path = _two_parts(tmp_path / "a.drift")
    part = path / folder / "part-000001.parquet"
    whole = part.read_bytes()
    if damage == "truncated":
        part.write_bytes(whole[: len(whole) * 2 // 3])
    elif damage == "empty":
        part.write_bytes(b"")
    elif damage == "foreign":
        pq.write_table(pa.table({"x": [1]}), part)
    else:
        part.unlink()
    run = read_run(path)
    for read in (run.rounds if folder == "rounds" else run.depths, lambda: summarise(run)):
        with pytest.raises(RunError) as caught:
            read()
        assert caught.value.code == "unreadable_part"
        assert caught.value.where == str(part)
        assert f"driftscope runs recover {path}" in caught.value.remedy
    verification = verify(path)
    assert [(check.name, check.num_failed) for check in verification.checks] == [("parts_readable", 1)]
    assert not verification.is_sound

    recovery = recover(path)
    assert recovery.status is RunStatus.incomplete
    assert len(recovery.set_aside) == (1 if damage == "missing" else 2)  # the part and its other half
    assert all(Path(file.file).exists() for file in recovery.set_aside)
    assert {c.system_prompt for c in summarise(read_run(path)).conditions} == {"default"}  # the earlier part
    assert verify(path).is_sound
    notes = read_run(path).info.notes
    assert [note.split(": ")[0] for note in notes] == [str(Path(f.file).relative_to(path)) for f in recovery.set_aside]

    with RunWriter.resume(path) as writer:
        for record in make_records():
            if isinstance(record, PromptRecord) or record.system_prompt == "none":
                writer.write_batch(record)
    assert verify(path).is_sound
    assert read_run(path).info.counts.num_batches == 24


def test_flipped_bit_is_found(tmp_path: Path) -> None:
    path = _two_parts(tmp_path / "a.drift")
    part = path / "depths" / "part-000000.parquet"
    content = bytearray(part.read_bytes())
    content[len(content) // 3] ^= 0x10
    part.write_bytes(content)
    verification = verify(path)
    assert not verification.is_sound
    assert str(part) in verification.checks[0].examples[0]
    assert len(recover(path).set_aside) == 2


def test_damaged_prompts(tmp_path: Path) -> None:
    path = _two_parts(tmp_path / "a.drift")
    (path / "prompts.parquet").write_bytes(b"PAR1 not any more")
    with pytest.raises(RunError) as caught:
        read_run(path).prompts()
    assert caught.value.where == str(path / "prompts.parquet")
    [aside] = recover(path).set_aside
    assert Path(aside.file).read_bytes() == b"PAR1 not any more"
    assert [c.num_prompts for c in summarise(read_run(path)).conditions] == [6] * 4  # the rounds still say
    with RunWriter.resume(path) as writer:
        for record in make_records():
            if isinstance(record, PromptRecord):
                writer.write_batch(record)
    assert verify(path).is_sound


def test_uncommitted_depths_are_ignored_and_their_number_is_not_reused(tmp_path: Path) -> None:
    path = _two_parts(tmp_path / "a.drift")
    (path / "rounds" / "part-000001.parquet").unlink()  # killed between depths/ and rounds/
    before = read_run(path)
    assert before.depths().num_rows == 4 * before.rounds().num_rows
    with RunWriter.resume(path) as writer:
        assert writer.recovery is not None
        assert [Path(file.file).name for file in writer.recovery.set_aside] == ["part-000001.parquet.set_aside"]
        assert {key.system_prompt for key in writer.complete_batches} == {"default"}
        for record in make_records():
            if isinstance(record, PromptRecord) or record.system_prompt == "none":
                writer.write_batch(record)
    assert sorted(file.name for file in (path / "rounds").iterdir()) == ["part-000000.parquet", "part-000002.parquet"]
    assert verify(path).is_sound


def test_recover_twice_keeps_both(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a.drift")
    copy = tmp_path / "copy.parquet"
    shutil.copy(path / "prompts.parquet", copy)
    for content in (b"first", b"second"):
        (path / "prompts.parquet").write_bytes(content)
        recover(path)
    assert {file.read_bytes() for file in path.glob("prompts.parquet.set_aside*")} == {b"first", b"second"}


def test_interrupted_flush_is_repeated_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C between a part's depths and rounds: the same part is written again whole when the writer is left."""
    import driftscope.runs.writer as module

    original, calls = module.write_table, []

    def interrupted(path: Path, table: pa.Table) -> None:
        original(path, table)
        calls.append(path.parent.name)
        if calls.count("depths") == 1 and path.parent.name == "depths":
            raise KeyboardInterrupt

    monkeypatch.setattr(module, "write_table", interrupted)
    monkeypatch.setattr(module, "FLUSH_ROUNDS", 50)
    monkeypatch.setattr(module, "FLUSH_COST_RATIO", 0)
    path = tmp_path / "a.drift"
    with pytest.raises(KeyboardInterrupt):
        write_run(path, make_records(num_prompts=2))
    assert read_run(path).status is RunStatus.incomplete
    assert calls.count("depths") == 2
    assert read_run(path).info.counts.num_rounds == read_run(path).rounds().num_rows == 2 * 29
    assert verify(path).is_sound


def test_what_stands_where_a_folder_belongs_is_set_aside(tmp_path: Path) -> None:
    path = _two_parts(tmp_path / "a.drift")
    shutil.rmtree(path / "rounds")
    (path / "rounds").write_text("no folder")
    (path / ".x.tmp").mkdir()  # no temporary file
    recovery = recover(path)
    assert recovery.counts.num_rounds == 0
    assert (path / "rounds.set_aside").read_text() == "no folder"
    assert (path / ".x.tmp").is_dir()
    assert [note.split(": ")[0] for note in read_run(path).info.notes][:1] == ["rounds.set_aside"]
    assert recover(path).set_aside == []
