"""Writing a run: parts, refusals, how it ends, and going on with one that was stopped."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from driftscope.runs import BatchKey, RunStatus, RunWriter, read_run, verify
from probes.errors import RunError
from probes.record import RoundBatch
from tests.synthetic_run import make_batch, make_info, make_prompt, make_records, write_run

STARTS = 29  # of a synthetic response of 30 tokens: P-1 .. L-3


def test_parts_are_flushed_by_rounds_and_a_batch_is_never_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("driftscope.runs.writer.FLUSH_ROUNDS", 50)
    monkeypatch.setattr("driftscope.runs.writer.FLUSH_COST_RATIO", 0)
    path = write_run(tmp_path / "a.drift")
    sizes = [pq.read_metadata(file).num_rows for file in sorted((path / "rounds").iterdir())]
    assert len(sizes) == 12
    assert all(size == 2 * STARTS for size in sizes)
    verification = verify(path)
    assert verification.is_sound
    assert next(c for c in verification.checks if c.name == "batches_whole").num_checked == 24
    ids = read_run(path).rounds(["round_id"])["round_id"].to_pylist()
    assert ids == list(range(24 * STARTS))


def test_existing_run_is_not_overwritten_unless_asked(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a.drift")
    with pytest.raises(RunError) as caught:
        RunWriter(path, make_info())
    assert caught.value.code == "run_exists"
    assert str(path) in caught.value.where
    with RunWriter(path, make_info(), overwrite=True):
        pass
    assert read_run(path).rounds().num_rows == 0

    (tmp_path / "precious.drift").mkdir()
    (tmp_path / "precious.drift" / "thesis.txt").write_text("all of it")
    with pytest.raises(RunError) as caught:
        RunWriter(tmp_path / "precious.drift", make_info(), overwrite=True)
    assert caught.value.code == "not_a_run"
    assert (tmp_path / "precious.drift" / "thesis.txt").exists()
    with pytest.raises(RunError) as caught:
        RunWriter(tmp_path / "no_suffix", make_info())
    assert caught.value.code == "bad_run_name"


def test_rounds_need_their_prompt_and_come_once(tmp_path: Path) -> None:
    prompt = make_prompt()
    with RunWriter(tmp_path / "a.drift", make_info()) as writer:
        with pytest.raises(RunError) as caught:
            writer.write_batch(make_batch(prompt))
        assert caught.value.code == "unknown_prompt"
        writer.write_batch(prompt)
        writer.write_batch(prompt)  # the same again changes nothing
        writer.write_batch(make_batch(prompt))
        with pytest.raises(RunError) as caught:
            writer.write_batch(make_batch(prompt))
        assert caught.value.code == "batch_exists"
        with pytest.raises(RunError) as caught:
            writer.write_batch(make_prompt(seed=1))
        assert caught.value.code == "prompt_changed"
    assert read_run(tmp_path / "a.drift").prompts().num_rows == 1
    assert verify(tmp_path / "a.drift").is_sound


def test_a_prompt_without_rounds_may_change(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "a.drift", make_info()) as writer:
        for record in (make_prompt(), make_prompt("p1"), make_prompt(seed=1)):
            writer.write_batch(record)
    prompts = read_run(tmp_path / "a.drift").prompts()
    assert sorted(prompts["prompt_id"].to_pylist()) == ["p0", "p1"]
    assert make_prompt(seed=1).token_ids.tolist() in prompts["token_ids"].to_pylist()


def test_resume_goes_on_without_doubles(tmp_path: Path) -> None:
    path = tmp_path / "a.drift"
    records = list(make_records())
    with pytest.raises(KeyboardInterrupt):
        write_run(path, records[:10], error=KeyboardInterrupt())
    assert read_run(path).status is RunStatus.incomplete

    writer = RunWriter.resume(path, plan=make_info().plan)
    done = {BatchKey("eagle3", "default", "default", 0, "p0"), BatchKey("eagle3.1", "default", "default", 0, "p2")}
    assert done <= writer.complete_batches
    assert len(writer.complete_batches) == 6
    with writer:
        for record in records:
            if isinstance(record, RoundBatch) and _key(record) in writer.complete_batches:
                continue
            writer.write_batch(record)
    verification = verify(path)
    assert verification.is_sound
    assert verification.status is RunStatus.complete
    in_one_go = read_run(write_run(tmp_path / "b.drift", iter(records)))
    resumed = read_run(path)
    assert resumed.info.counts.num_batches == in_one_go.info.counts.num_batches == 24
    assert resumed.depths().equals(in_one_go.depths())
    assert resumed.prompts().equals(in_one_go.prompts())


def _key(batch: RoundBatch) -> BatchKey:
    return BatchKey(batch.drafter, batch.system_prompt, batch.template, batch.context_tokens, batch.prompt_id)


def test_resume_with_another_plan_is_refused(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a.drift")
    with pytest.raises(RunError) as caught:
        RunWriter.resume(path, plan={"target": "synthetic", "depth": 5})
    assert caught.value.code == "plan_differs"
    assert "depth" in caught.value.message
    assert read_run(path).status is RunStatus.complete


def test_failed_run_says_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        write_run(tmp_path / "a.drift", make_records(num_prompts=1), error=RuntimeError("out of memory"))
    run = read_run(tmp_path / "a.drift")
    assert (run.status, run.info.error) == (RunStatus.failed, "out of memory")
    assert run.rounds().num_rows == 4 * STARTS


def test_zero_rounds(tmp_path: Path) -> None:
    """A response of one token has no start: no rows, no error."""
    prompt = make_prompt(num_response_tokens=1)
    path = write_run(tmp_path / "a.drift", iter([prompt, make_batch(prompt)]))
    assert read_run(path).rounds().num_rows == 0
    assert read_run(path).prompts().num_rows == 1
    assert verify(path).is_sound


# --- overwriting ---


def _num_rounds(path: Path) -> int:
    return read_run(path).rounds().num_rows


def test_the_old_run_stays_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a.drift")
    (path / "my notes.txt").write_text("of the first")
    before, prompt = _num_rounds(path), make_prompt()
    with RunWriter(path, make_info(), overwrite=True) as writer:
        writer.write_batch(prompt)
        writer.write_batch(make_batch(prompt))
        writer.flush()
        assert writer.path == tmp_path / "a.new.drift"
        assert (_num_rounds(path), _num_rounds(writer.path)) == (before, STARTS)
        assert read_run(writer.path).status is RunStatus.running
        for attempt in (RunWriter.resume, lambda p: RunWriter(p, make_info(), overwrite=True)):
            with pytest.raises(RunError, match="being written"):
                attempt(path)
    assert writer.path == path
    assert _num_rounds(path) == STARTS
    assert read_run(path).info.replaces is None
    assert verify(path).is_sound
    assert (path / "my notes.txt").read_text() == "of the first"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.drift"]
    with RunWriter.resume(path):  # nobody holds its lock
        pass


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("out of memory")])
def test_an_overwriting_that_is_stopped_leaves_both_and_may_begin_again(tmp_path: Path, error: BaseException) -> None:
    path = write_run(tmp_path / "a.drift")
    before = _num_rounds(path)
    for _ in range(2):  # the second takes the place of what the first has left
        with pytest.raises(type(error)), RunWriter(path, make_info(), overwrite=True) as writer:  # noqa: PT012
            writer.write_batch(make_prompt())
            raise error
        assert _num_rounds(path) == before
        assert read_run(path).status is RunStatus.complete
        assert read_run(tmp_path / "a.new.drift").status in (RunStatus.incomplete, RunStatus.failed)
    with RunWriter.resume(tmp_path / "a.new.drift"):  # a run like any other
        pass
    assert _num_rounds(path) == before
    with pytest.raises(RunError) as caught:  # somebody went on with it, so nothing that may be removed
        RunWriter(path, make_info(), overwrite=True)
    assert (caught.value.code, caught.value.where) == ("run_exists", str(tmp_path / "a.new.drift"))


def test_what_overwriting_would_need_is_never_removed_when_it_is_somebody_elses(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a.drift")
    before = _num_rounds(path)
    new = tmp_path / "a.new.drift"
    with pytest.raises(RuntimeError):
        write_run(new, error=RuntimeError("of another experiment"))
    with pytest.raises(RunError) as caught:
        RunWriter(path, make_info(), overwrite=True)
    assert (caught.value.code, caught.value.where) == ("run_exists", str(new))
    new.rename(tmp_path / "kept.drift")
    (tmp_path / "b.drift").symlink_to(path)
    with pytest.raises(RunError) as caught:
        RunWriter(tmp_path / "b.drift", make_info(), overwrite=True)
    assert caught.value.code == "is_a_link"
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("all of it")
    (tmp_path / ".c.drift.new").symlink_to(tmp_path / "precious")
    with pytest.raises(RunError) as caught:
        RunWriter(tmp_path / "c.drift", make_info())
    assert caught.value.code == "run_exists"
    assert os.listdir(tmp_path / "precious") == ["thesis.txt"]
    assert _num_rounds(path) == before
    with RunWriter(path, make_info(), overwrite=True):  # refusing left nothing locked
        pass


@pytest.mark.parametrize("step", ["old one moved", "new one in place", "files moved", "old one half gone"])
def test_a_kill_while_names_change_is_set_right_by_the_next_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    import driftscope.runs.replace as module

    class Killed(BaseException):
        pass

    path = write_run(tmp_path / "a.drift")
    (path / "my notes.txt").write_text("of the first")
    rename, rmtree, calls = Path.rename, module.shutil.rmtree, []

    def killed_rename(self: Path, target: Path) -> Path:
        calls.append(self.name)
        if step == "new one in place" and self.name == "my notes.txt":
            raise Killed
        if step == "old one moved" and self.name == "a.new.drift":
            raise Killed
        return rename(self, target)

    def killed_rmtree(folder: Path) -> None:
        if step == "old one half gone":
            rmtree(folder / "rounds")
        raise Killed

    with pytest.raises(Killed), RunWriter(path, make_info(), overwrite=True) as writer:  # noqa: PT012
        writer.write_batch(make_prompt())
        writer.write_batch(make_batch(make_prompt()))
        monkeypatch.setattr(Path, "rename", killed_rename)
        monkeypatch.setattr(module.shutil, "rmtree", killed_rmtree)
    monkeypatch.undo()
    assert "a.new.drift" in calls
    with pytest.raises(RunError) as caught:
        RunWriter(path, make_info())
    assert caught.value.code == "run_exists"
    assert _num_rounds(path) == STARTS
    assert (path / "my notes.txt").read_text() == "of the first"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.drift"]


# --- what the disk does ---


def _full_once(monkeypatch: pytest.MonkeyPatch, *, times: int) -> None:
    """The disk is full for the next `times` tables."""
    import driftscope.runs.writer as module

    write, left = module.write_table, [times]

    def write_table(path: Path, table: object) -> None:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write(path, table)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "write_table", write_table)


def test_what_a_full_disk_refused_is_written_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = make_prompt()
    with RunWriter(tmp_path / "a.drift", make_info()) as writer:
        writer.write_batch(prompt)
        writer.write_batch(make_batch(prompt))
        _full_once(monkeypatch, times=2)
        for _ in range(2):
            with pytest.raises(OSError, match="No space left"):
                writer.flush()
    assert _num_rounds(tmp_path / "a.drift") == STARTS
    assert verify(tmp_path / "a.drift").is_sound


def test_a_writer_that_could_not_write_its_last_rounds_says_so_in_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = make_prompt()
    _full_once(monkeypatch, times=1)
    with pytest.raises(OSError, match="No space left"), RunWriter(tmp_path / "a.drift", make_info()) as writer:  # noqa: PT012
        writer.write_batch(prompt)
        writer.write_batch(make_batch(prompt))
    run = read_run(tmp_path / "a.drift")
    assert run.status is RunStatus.failed
    assert "No space left on device" in str(run.info.error)
    assert run.info.notes[-1].startswith(f"{STARTS} rounds could not be written: ")
    with RunWriter.resume(tmp_path / "a.drift") as writer:  # the lock is free, and the rest can be measured again
        writer.write_batch(prompt)
        writer.write_batch(make_batch(prompt))
    assert _num_rounds(tmp_path / "a.drift") == STARTS


@pytest.mark.parametrize("folder", ["rounds", "depths"])
def test_a_part_that_is_removed_meanwhile_is_an_error_at_once(tmp_path: Path, folder: str) -> None:
    path = tmp_path / "a.drift"
    first, second = make_prompt("p"), make_prompt("q", seed=1)
    with pytest.raises(RunError) as caught, RunWriter(path, make_info()) as writer:  # noqa: PT012
        for prompt in (first, second):
            writer.write_batch(prompt)
            writer.write_batch(make_batch(prompt))
            writer.flush()
            (path / folder / "part-000000.parquet").unlink(missing_ok=True)
    assert caught.value.code == "part_missing"
    assert caught.value.where == str(path / folder / "part-000000.parquet")
    assert read_run(path).status is RunStatus.failed
    with RunWriter.resume(path) as writer:
        assert [key.prompt_id for key in writer.complete_batches] == ["q"]  # what was given before the error is kept
        writer.write_batch(first)
        writer.write_batch(make_batch(first))
    assert _num_rounds(path) == 2 * STARTS
    assert verify(path).is_sound


def test_prompts_that_are_removed_meanwhile_are_written_again(tmp_path: Path) -> None:
    path = tmp_path / "a.drift"
    prompt = make_prompt()
    with RunWriter(path, make_info()) as writer:
        writer.write_batch(prompt)
        writer.flush()
        (path / "prompts.parquet").unlink()
        writer.write_batch(make_batch(prompt))
    assert verify(path).is_sound
    assert read_run(path).prompts().num_rows == 1


def test_a_folder_that_is_removed_meanwhile_is_named(tmp_path: Path) -> None:
    prompt = make_prompt()
    with pytest.raises(FileNotFoundError, match=r"a\.drift"), RunWriter(tmp_path / "a.drift", make_info()) as writer:  # noqa: PT012
        writer.write_batch(prompt)
        (tmp_path / "a.drift").rename(tmp_path / "moved.drift")
    assert read_run(tmp_path / "moved.drift").status is RunStatus.incomplete
