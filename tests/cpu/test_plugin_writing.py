"""The plug-in's thread where its disk is full or slow: what is lost is counted, and what failed stands in the run."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from driftscope.runs import RunStatus, read_run, writer
from driftscope.runs.verify import verify
from driftscope.vllm_plugin.config import ProductionConfig
from driftscope.vllm_plugin.sampling import Sampler
from driftscope.vllm_plugin.session import Session
from driftscope.vllm_plugin.workers import SentHeads, TakenHeads
from tests.cpu.test_plugin_session import answered, recorder_status, session

NUM_REQUESTS = 5


class Disk:
    """Stands for `write_table`: `before` is asked for each file before it is written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, before: Callable[[int, Path], None]) -> None:
        self.num_files = 0
        write_table = writer.write_table

        def write(path: Path, table: pa.Table) -> None:
            self.num_files += 1
            before(self.num_files, path)
            write_table(path, table)

        monkeypatch.setattr(writer, "write_table", write)


def no_space(path: Path) -> OSError:
    return OSError(errno.ENOSPC, "No space left on device", str(path))


def answer_all(recorded: Session, *, first: int = 0) -> None:
    for number in range(first, NUM_REQUESTS):
        recorded.write(answered(number))


def notes(path: Path) -> list[str]:
    return list(read_run(path).info.notes)


@pytest.mark.parametrize("error", [no_space(Path("x")), OSError(errno.EIO, "Input/output error"), MemoryError("x")])
@pytest.mark.parametrize("num_failing", [1, 4])
def test_what_failed_is_written_with_the_next_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, num_failing: int
) -> None:
    works_again = threading.Event()

    def before(number: int, path: Path) -> None:
        if number <= num_failing:
            raise error
        works_again.set()

    Disk(monkeypatch, before)
    recorded = session(tmp_path, recorder_status())
    answer_all(recorded)
    assert works_again.wait(600)
    recorded.close(600)
    run = read_run(tmp_path / "a.drift")
    assert run.status is RunStatus.complete
    assert verify(run.path).is_sound
    assert run.info.counts.num_prompts == run.info.counts.num_batches == NUM_REQUESTS
    [said] = [note for note in run.info.notes if note.startswith("WRITING FAILED")]
    assert said == f"WRITING FAILED ({num_failing} times); requests were answered: {type(error).__name__}: {error}"
    assert recorded.num_unsaved == 0


def test_a_part_that_failed_between_its_files_is_written_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts and depths are there already, the rounds are not."""
    has_failed = threading.Event()

    def before(number: int, path: Path) -> None:
        if path.parent.name == "rounds" and not has_failed.is_set():
            has_failed.set()
            raise no_space(path)

    Disk(monkeypatch, before)
    recorded = session(tmp_path, recorder_status())
    answer_all(recorded)
    recorded.close(600)
    run = read_run(tmp_path / "a.drift")
    assert has_failed.is_set()
    assert run.status is RunStatus.complete
    assert verify(run.path).is_sound
    assert run.info.counts.num_batches == NUM_REQUESTS
    assert run.query("select count(*) as n from rounds")["n"].to_pylist() == [3 * NUM_REQUESTS]


def test_while_nothing_can_be_written_requests_wait_in_the_queue_and_later_ones_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_full = threading.Event()
    is_full.set()
    has_failed = threading.Event()

    def before(number: int, path: Path) -> None:
        if is_full.is_set():
            has_failed.set()
            raise no_space(path)

    Disk(monkeypatch, before)
    monkeypatch.setattr("driftscope.vllm_plugin.session.MAX_WAITING", 3)
    recorded = session(tmp_path, recorder_status())
    recorded.write(answered(0))
    assert has_failed.wait(600)
    answer_all(recorded, first=1)  # four, of which three have room
    is_full.clear()
    recorded.close(600)
    run = read_run(tmp_path / "a.drift")
    assert run.status is RunStatus.complete
    assert run.info.counts.num_batches == NUM_REQUESTS - 1
    assert "1 requests were not written: the writing thread was behind, or could not write" in run.info.notes


def test_a_disk_that_stays_full_costs_the_rounds_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def before(number: int, path: Path) -> None:
        raise no_space(path)

    Disk(monkeypatch, before)
    recorded = session(tmp_path, recorder_status())
    answer_all(recorded)
    recorded.close(0.5)
    recorded._thread.join()
    said = notes(tmp_path / "a.drift")
    assert any(note.startswith("WRITING FAILED") and "No space left" in note for note in said)
    assert said[-3:-1] == [
        f"when the server ended, up to {NUM_REQUESTS} requests were not on disk: writing failed",
        "recording ended: the server ended",
    ]
    assert "rounds could not be written: " in said[-1]
    assert read_run(tmp_path / "a.drift").status is RunStatus.failed
    assert f"up to {NUM_REQUESTS} requests are not in it" in caplog.text


def test_closing_does_not_wait_for_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hangs, goes_on = threading.Event(), threading.Event()

    def before(number: int, path: Path) -> None:
        hangs.set()
        goes_on.wait()

    Disk(monkeypatch, before)
    recorded = session(tmp_path, recorder_status())
    recorded.write(answered(0))
    assert hangs.wait(600)
    answer_all(recorded, first=1)
    recorded.close(0.1)
    assert recorded._thread.is_alive()
    assert f"up to {NUM_REQUESTS} requests are not in it" in caplog.text
    goes_on.set()  # the process still lives: what was in the writer's hands is written, and the rest is told
    recorded._thread.join()
    run = read_run(tmp_path / "a.drift")
    assert run.status is RunStatus.complete
    assert verify(run.path).is_sound
    assert run.info.counts.num_batches == 1
    late = f"{NUM_REQUESTS - 1} requests were not written: the server ended before the disk took them"
    assert late in run.info.notes


def test_a_record_that_the_writer_refuses_loses_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_batch = writer.RunWriter.write_batch

    def refusing(self: writer.RunWriter, record: Any) -> None:
        if getattr(record, "token_ids", [None] * NUM_REQUESTS)[4] == 1:  # the second request's prompt
            raise ValueError("refused")
        write_batch(self, record)

    monkeypatch.setattr(writer.RunWriter, "write_batch", refusing)
    recorded = session(tmp_path, recorder_status())
    answer_all(recorded)
    recorded.close(600)
    run = read_run(tmp_path / "a.drift")
    assert run.status is RunStatus.complete
    assert run.info.counts.num_batches == NUM_REQUESTS - 1
    assert "WRITING FAILED (1 times); requests were answered: ValueError: refused" in run.info.notes
    assert recorded.num_unsaved == 0


def test_heads_that_the_disk_did_not_take_turn_no_worker_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = SentHeads(folder=tmp_path, rank=1, sampler=Sampler(ProductionConfig(out=tmp_path / "a.drift")))
    save = np.save

    def full(file: Any, rows: np.ndarray, **options: Any) -> None:
        save(file, rows, **options)
        raise no_space(tmp_path)

    with monkeypatch.context() as patch:
        patch.setattr(np, "save", full)
        sent.write(answered(0))
    assert list(tmp_path.iterdir()) == []
    sent.write(answered(1))
    assert (sent.num_failed, sent.sampler.is_open) == (1, True)
    taken = TakenHeads(folder=tmp_path, num_ranks=2)
    monkeypatch.setattr("driftscope.vllm_plugin.workers.PATIENCE_SECONDS", 0.0)
    assert taken.take("r0") == [None]
    assert taken.take("r1")[0]["start"].tolist() == [4, 6, 9]  # type: ignore[index]


def test_labels_that_are_no_text_stand_in_the_run(tmp_path: Path) -> None:
    recorded = session(tmp_path, recorder_status())
    recorded.sampler.num_unusable_labels = 3
    recorded.close()
    assert "3 requests had a label that is not text: they count as unlabelled" in notes(tmp_path / "a.drift")
