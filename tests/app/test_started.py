"""What a runs folder says of processes is never the reason for a signal: only what this user's app started gets one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.app.conftest import OpenApp, checked, texts
from tests.synthetic_run import make_info, make_records, write_run

REAL_KILL = os.kill
SLEEP = "import time\ntime.sleep(600)"
Signals = list[tuple[str, int, int]]


def process_start(pid: int) -> int | None:
    from driftscope_app import started  # on the path when the app's tests run

    return started.process_start(pid)


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> Signals:
    """Every signal that anything here sends, in place of sending it."""
    sent: Signals = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(("kill", pid, number)))
    monkeypatch.setattr(os, "killpg", lambda pid, number: sent.append(("killpg", pid, number)))
    return sent


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process of this user that leads a session of its own, as the app's do, and that the app did not start."""
    process = subprocess.Popen([sys.executable, "-c", SLEEP], start_new_session=True)
    yield process
    REAL_KILL(process.pid, signal.SIGKILL)
    process.wait()


def plant(runs: Path, **record: Any) -> None:
    folder = runs / ".probes" / "x"
    folder.mkdir(parents=True)
    planted = {
        "command": "driftscope probe",
        "out": "x.drift",
        "pid": 2,
        "process_start": None,
        "started_at": 0,
    } | record
    (folder / "process.json").write_text(json.dumps(planted))


def cancel_all(runs: Path) -> None:
    from driftscope_app import probe_process

    for process in probe_process.list_processes(runs):
        probe_process.cancel(process)


PIDS: list[Any] = [-1, 0, 1, -2, True, 2.0, "2", "1", 1e300, 10**30, 2**31, 2**63, None, [], {}]


@pytest.mark.parametrize("start", ["right", None, 0], ids=["right start", "no start", "start 0"])
@pytest.mark.parametrize("pid", PIDS, ids=str)
def test_a_planted_number_gets_no_signal(
    open_app: OpenApp, tmp_path: Path, signals: Signals, pid: Any, start: Any
) -> None:
    if start == "right":
        is_number = type(pid) is int and 0 < pid < 2**31
        start = process_start(pid) if is_number else 1
    plant(tmp_path, pid=pid, process_start=start)
    at = open_app("probe", folder=tmp_path)
    assert not [b for b in at.button if b.label == "Cancel"]
    cancel_all(tmp_path)
    assert signals == []


@pytest.mark.parametrize("kind", ["probe", "interventions"])
def test_a_planted_process_of_the_same_user_gets_no_signal(
    open_app: OpenApp, tmp_path: Path, bystander: subprocess.Popen[bytes], signals: Signals, kind: str
) -> None:
    plant(tmp_path, pid=bystander.pid, process_start=process_start(bystander.pid), kind=kind)
    from driftscope_app import probe_process

    [planted] = probe_process.list_processes(tmp_path, probe_process.ProcessKind(kind))
    probe_process.cancel(planted)
    assert signals == []
    assert not (planted.folder / "cancelled").exists()
    if kind == "probe":
        at = open_app("probe", folder=tmp_path)
        assert "It cannot be cancelled here" in texts(at)
        next(b for b in at.button if b.label == "Dismiss").click()
        checked(at.run())
        assert not planted.folder.exists()
    assert bystander.poll() is None


def test_a_planted_process_keeps_nobody_from_running_the_interventions(
    open_app: OpenApp, tmp_path: Path, bystander: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    from driftscope_app import probe_process

    plan = {"target": "demo", "drafter": {"eagle3": "demo:eagle3", "eagle3.1": "demo:eagle3.1"}}
    info = make_info().model_copy(update={"plan": plan})
    run = write_run(tmp_path / "mine.drift", make_records(num_prompts=5, system_prompts=("default",)), info)
    alive = {"pid": bystander.pid, "process_start": process_start(bystander.pid)}
    plant(tmp_path, kind="interventions", out="mine.drift", **alive)
    (tmp_path / ".probes" / "mine.interventions").mkdir()
    (tmp_path / ".probes" / "mine.interventions" / "process.json").write_text("{")
    monkeypatch.setattr(probe_process, "_CODE", SLEEP)
    at = open_app("overview", folder=tmp_path)
    assert not [b for b in at.button if b.label == "Cancel"]
    next(b for b in at.button if b.label == "Run the interventions").click()
    checked(at.run())
    process = probe_process.interventions_of(tmp_path, run)
    assert process is not None
    assert process.name == "mine.interventions-2"
    assert probe_process.state(process).may_be_cancelled
    probe_process.cancel(process)
    wait(lambda: probe_process.state(process).status == "cancelled")
    assert bystander.poll() is None


def test_the_app_and_its_own_group_get_no_signal(tmp_path: Path, signals: Signals) -> None:
    plant(tmp_path, pid=os.getpid(), process_start=process_start(os.getpid()))
    cancel_all(tmp_path)
    assert signals == []


def in_another_app(code: str, *arguments: object) -> str:
    """What a later start of the app prints: a process of its own that has this one's state folder."""
    head = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2] / 'app')!r})\nfrom pathlib import Path\n"
    head += "from driftscope_app import probe_process\n[p] = probe_process.list_processes(Path(sys.argv[1]))\n"
    result = subprocess.run(
        [sys.executable, "-c", head + code, *map(str, arguments)], check=True, capture_output=True, text=True
    )
    return result.stdout.strip()


STATE = "state = probe_process.state(p)\nprint(state.status, state.may_be_cancelled)"


def test_a_later_app_of_the_same_user_cancels_what_the_former_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state_folder: Path
) -> None:
    from driftscope_app import probe_process

    monkeypatch.setattr(probe_process, "_CODE", SLEEP)
    probe = probe_process.start(tmp_path, "long", ["probe"], {})
    [file] = (state_folder / "driftscope" / "processes").iterdir()
    assert file.stat().st_mode & 0o077 == 0
    assert file.parent.stat().st_mode & 0o077 == 0
    assert in_another_app(STATE, tmp_path) == "running True"
    copy = tmp_path / "copy"  # the same folder at another place is another one's
    copy.mkdir()
    subprocess.run(["cp", "-r", tmp_path / ".probes", copy], check=True)
    assert in_another_app(STATE, copy) == "running False"
    in_another_app("probe_process.cancel(p)", copy)
    assert probe_process.state(probe).status == "running"
    in_another_app("probe_process.cancel(p)", tmp_path)
    wait(lambda: probe_process.state(probe).status == "cancelled")


@pytest.mark.parametrize("home", ["", "/proc/nowhere", "/dev/null"])
def test_without_a_home_this_app_cancels_and_a_later_one_only_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    from driftscope_app import probe_process

    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", home)
    monkeypatch.setattr(probe_process, "_CODE", SLEEP)
    probe = probe_process.start(tmp_path, "long", ["probe"], {})
    assert in_another_app(STATE, tmp_path) == "running False"
    assert probe_process.state(probe).may_be_cancelled
    probe_process.cancel(probe)
    wait(lambda: probe_process.state(probe).status == "cancelled")


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "[" * 100_000, '{"pid": -1, "start": 1}', '{"pid": true, "start": true}']
)
def test_a_damaged_record_of_the_user_s_own_gets_no_signal(
    tmp_path: Path, state_folder: Path, signals: Signals, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    from driftscope_app import started

    folder = tmp_path / ".probes" / "x"
    state = state_folder / "driftscope" / "processes"
    state.mkdir(parents=True, mode=0o700)
    (state / started._name(folder)).write_text(content)
    started.send(folder, signal.SIGINT)
    assert not started.is_running(folder)
    assert signals == []


def test_a_state_folder_that_others_can_write_is_not_believed(
    tmp_path: Path, state_folder: Path, bystander: subprocess.Popen[bytes], signals: Signals
) -> None:
    from driftscope_app import started

    folder = tmp_path / ".probes" / "x"
    state = state_folder / "driftscope" / "processes"
    state.mkdir(parents=True, mode=0o700)
    record = {"pid": bystander.pid, "start": process_start(bystander.pid)}
    (state / started._name(folder)).write_text(json.dumps(record))
    assert started.is_running(folder)  # as if the app had started it
    state.chmod(0o777)
    assert not started.is_running(folder)
    state.chmod(0o700)
    (state / started._name(folder)).write_text(json.dumps(record | {"start": record["start"] + 1}))
    assert not started.is_running(folder)
    assert signals == []


def test_what_leads_no_group_of_its_own_gets_no_signal(tmp_path: Path, state_folder: Path, signals: Signals) -> None:
    from driftscope_app import started

    folder = tmp_path / ".probes" / "x"
    state = state_folder / "driftscope" / "processes"
    state.mkdir(parents=True, mode=0o700)
    with subprocess.Popen([sys.executable, "-c", SLEEP]) as follower:  # in this test's group
        record = {"pid": follower.pid, "start": process_start(follower.pid)}
        (state / started._name(folder)).write_text(json.dumps(record))
        started.send(folder, signal.SIGKILL, to_group=True)
        assert signals == []
        REAL_KILL(follower.pid, signal.SIGKILL)


def wait(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120  # bounds a hang
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.1)
