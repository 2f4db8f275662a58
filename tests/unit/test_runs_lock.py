"""One writer: whoever comes second is told so, and nothing of the first is lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from driftscope.runs import RunWriter, read_run, recover, verify
from driftscope.runs.lock import WRITER_LOCK, RunLock, is_being_written
from probes.errors import DriftscopeError, RunError
from tests.synthetic_run import make_batch, make_info, make_prompt, write_run

REPOSITORY = Path(__file__).parents[2]
STARTS = 29  # rounds of a synthetic response of 30 tokens
HOLD = """
import sys, time
from pathlib import Path
from driftscope.runs.lock import RunLock
lock = RunLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


def _holder(run: Path, code: str = HOLD) -> subprocess.Popen[bytes]:
    """Another process that holds the run's lock."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    process = subprocess.Popen([sys.executable, "-c", code, str(run)], stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def _refused(run: Path) -> RunError:
    with pytest.raises(RunError) as caught:
        RunLock(run)
    assert caught.value.code == "run_is_being_written"
    return caught.value


def test_the_lock_is_taken_when_the_writer_is_made(tmp_path: Path) -> None:
    """Two `resume` before either begins to write: the second is refused, and no round of the first is lost."""
    path = write_run(tmp_path / "a.drift", iter([make_prompt("p")]))
    first = RunWriter.resume(path)
    with pytest.raises(RunError) as caught:
        RunWriter.resume(path)
    assert caught.value.code == "run_is_being_written"
    assert f"process {os.getpid()}" in caught.value.message
    with first:
        first.write_batch(make_batch(make_prompt("p")))
    with RunWriter.resume(path) as second:
        second.write_batch(make_prompt("q", seed=1))
        second.write_batch(make_batch(make_prompt("q", seed=1)))
    assert read_run(path).rounds().num_rows == 2 * STARTS
    assert verify(path).is_sound


def test_another_process_is_named_and_its_death_is_enough(tmp_path: Path) -> None:
    process = _holder(tmp_path)
    try:
        assert is_being_written(tmp_path)
        assert f"process {process.pid} on" in _refused(tmp_path).message
        process.send_signal(signal.SIGSTOP)  # a stopped writer is one still
        assert is_being_written(tmp_path)
    finally:
        _end(process)
    assert not is_being_written(tmp_path)
    RunLock(tmp_path).release()


def test_a_writer_in_another_pid_namespace_is_seen(tmp_path: Path) -> None:
    """Containers on one volume with one host name: process ids say nothing there."""
    path = write_run(tmp_path / "a.drift")
    unshare = shutil.which("unshare")
    command = [str(unshare), "-r", "-p", "-f", "--kill-child", "--mount-proc", sys.executable, "-c"]
    if unshare is None or subprocess.run([*command, ""], capture_output=True).returncode:
        pytest.skip("this machine makes no PID namespaces (`unshare -r -p` fails)")
    with RunWriter.resume(path):
        code = "import sys; from driftscope.cli import main; sys.exit(main(['runs', 'recover', sys.argv[1]]))"
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        tried = subprocess.run([*command, code, str(path)], capture_output=True, text=True, env=environment)
        assert tried.returncode == 2
        assert "the run is being written" in tried.stderr
        assert is_being_written(path)


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    code = HOLD.replace("import sys, time", "import os, sys, time").replace(
        'print("held", flush=True)', 'child = os.fork()\nprint("held", flush=True) if child else None'
    )
    process = _holder(tmp_path, code)
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        child = int(children.read_text()) if children.exists() else None
    finally:
        _end(process)
    assert not is_being_written(tmp_path)
    if child is not None:
        os.kill(child, signal.SIGKILL)


def test_the_lock_of_a_folder_that_was_renamed_is_not_taken_for_this_ones(tmp_path: Path) -> None:
    run = tmp_path / "a.drift"
    run.mkdir()
    held = RunLock(run)
    run.rename(tmp_path / "b.drift")
    run.mkdir()
    with RunLock(run):  # another folder now
        assert is_being_written(run)
        assert is_being_written(tmp_path / "b.drift")
    held.release()
    held.release()
    assert not is_being_written(tmp_path / "b.drift")


@pytest.mark.parametrize("kind", ["folder", "pipe", "link", "dangling"])
def test_a_planted_lock_file_is_named_and_never_written_through(tmp_path: Path, kind: str) -> None:
    path = write_run(tmp_path / "a.drift")
    victim, lock = tmp_path / "victim", path / WRITER_LOCK
    victim.write_text("mine")
    lock.unlink()
    if kind == "folder":
        lock.mkdir()
    elif kind == "pipe":
        os.mkfifo(lock)
    else:
        lock.symlink_to(victim if kind == "link" else tmp_path / "nothing")
    for attempt in (recover, RunWriter.resume, lambda p: RunWriter(p, make_info(), overwrite=True)):
        with pytest.raises((DriftscopeError, OSError)) as caught:
            attempt(path)
        assert WRITER_LOCK in str(caught.value)
    assert victim.read_text() == "mine"
    assert not (tmp_path / "nothing").exists()


def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno
    import fcntl

    def flock(descriptor: object, operation: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(RunError) as caught:
        RunLock(tmp_path)
    assert caught.value.code == "no_locks"
    assert not is_being_written(tmp_path)
