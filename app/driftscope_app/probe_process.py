"""A `driftscope probe`, `demo` or `diagnose` started from the app: a process of its own, known by its files. Knows no
Streamlit.

What was asked (process.json and the typed prompts) and what it prints (output.json, log.txt) lie in `RUNS/.probes/NAME/`.
So a page reload, another browser or a restarted app sees the same processes, and none of them runs in the app's threads.
The outcome is the command's own one JSON object. Whether it may be signalled does not stand there: `started` knows.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, count
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from driftscope_app import started
from probes.errors import InputError
from probes.regular_file import open_regular, read_regular

PROBES = ".probes"
RECORD, OUTPUT, LOG, CANCELLED = "process.json", "output.json", "log.txt", "cancelled"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
PROCESS_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
SECONDS_TO_STOP = 20.0  # for a flush; then the process is killed
LOG_TAIL_BYTES = 4_000
MAX_RECORD_BYTES = 1_000_000  # a command of many prompts
MAX_OUTPUT_BYTES = 64_000_000  # a diagnosis of a large run
MAX_SAID = 2_000  # characters of an error
NOT_RUN = "interventions were not run:"
"""How `diagnose` begins its reason."""

_INTERRUPTIBLE = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
"""An app that a script started in the background ignores interrupts: what it starts would too, and not be cancelled."""

_CODE = "import sys; from driftscope.cli import main; sys.exit(main())"
_PROGRESS = re.compile(r"^(\d{1,9})/(\d{1,9}) (.*)$", re.MULTILINE)


class ProcessKind(StrEnum):
    """What was started: something that makes a run, or the interventions on one that is there."""

    probe = "probe"
    interventions = "interventions"


class ProbeStatus(StrEnum):
    """How a process stands."""

    running = "running"
    complete = "complete"
    failed = "failed"
    cancelled = "cancelled"


@dataclass(frozen=True)
class ProbeProcess:
    """What was started."""

    name: str
    folder: Path
    command: str  # as a person would type it
    out: Path  # the run
    pid: int
    process_start: int | None  # tells it from a later process of the same id; None where there is no /proc
    started_at: float  # seconds since the epoch
    kind: ProcessKind


@dataclass(frozen=True)
class Unusable:
    """What stands among the processes and cannot be read as one."""

    name: str
    folder: Path
    reason: str


class _Record(BaseModel):
    """process.json, which may be anybody's."""

    model_config = ConfigDict(strict=True)

    command: str
    out: str
    pid: int = Field(gt=1, le=started.MAX_PID)
    process_start: int | None = None
    started_at: float = Field(ge=0, lt=1e11)
    kind: str = ProcessKind.probe


@dataclass(frozen=True)
class ProbeState:
    """How far it got. `error` is what the command says."""

    status: ProbeStatus
    may_be_cancelled: bool
    num_done: int
    num_units: int | None
    condition: str
    log: str
    error: str | None = None


def check_name(runs: Path, name: str) -> str | None:
    """Why a run cannot be called so; None when it can."""
    if not NAME.fullmatch(name):
        return "Use letters, digits, dot, dash and underscore only, at most 64, starting with a letter or digit."
    if os.path.lexists(runs / f"{name}.drift") or os.path.lexists(runs / PROBES / name):
        return f"There is a run or a probe called {name} already."
    return None


def typed_file(runs: Path, name: str, file: str) -> Path:
    """Where a file that was typed or uploaded for the probe `name` will lie."""
    return runs / PROBES / name / file


def command_line(runs: Path, name: str, arguments: Sequence[str]) -> str:
    """The command that `start` runs, for a shell. It is started with --json besides, to have its outcome as data."""
    return shlex.join(["driftscope", *arguments, "--out", str(runs / f"{name}.drift")])


def start(runs: Path, name: str, arguments: Sequence[str], files: Mapping[str, str | bytes]) -> ProbeProcess:
    """Start `driftscope ARGUMENTS --out RUNS/NAME.drift`; `files` (file name -> content) are written first.

    Raises InputError `bad_run_name` when the name is taken or no name.
    """
    reason = check_name(runs, name)
    if reason is not None:
        raise InputError(reason, code="bad_run_name", where=name, remedy="Choose another name.")
    out = runs / f"{name}.drift"
    words = [*arguments, "--out", str(out)]
    return _launch(runs, name, words, files, out=out, kind=ProcessKind.probe)


def interventions_of(runs: Path, run: Path) -> ProbeProcess | None:
    """The process that was last started to run the interventions on `run`."""
    return next((p for p in list_processes(runs, ProcessKind.interventions) if p.out == run), None)


def start_interventions(runs: Path, run: Path) -> ProbeProcess:
    """Start `driftscope diagnose RUN --interventions`, which loads what the run names and runs what it lacks. One at a
    time for each run."""
    former = interventions_of(runs, run)
    if former is not None:
        if started.is_running(former.folder):
            return former
        forget(former)
    first = f"{run.stem}.{ProcessKind.interventions}"
    if not NAME.fullmatch(first):
        first = f"{hashlib.sha256(os.fsencode(run.stem)).hexdigest()[:16]}.{ProcessKind.interventions}"
    names = chain([first], (f"{first}-{number}" for number in count(2)))
    name = next(
        name for name in names if not os.path.lexists(runs / PROBES / name)
    )  # what is no process keeps its name
    return _launch(runs, name, ["diagnose", str(run), "--interventions"], {}, out=run, kind=ProcessKind.interventions)


def _launch(
    runs: Path, name: str, arguments: Sequence[str], files: Mapping[str, str | bytes], *, out: Path, kind: ProcessKind
) -> ProbeProcess:
    """`driftscope ARGUMENTS --json` in a session of its own; `arguments` hold `out`."""
    folder = runs / PROBES / name
    runs.mkdir(parents=True, exist_ok=True)
    (runs / PROBES).mkdir(mode=0o700, exist_ok=True)  # prompts are private
    if not is_own_folder(runs / PROBES):
        raise InputError(
            "this is a link or not a folder", code="no_folder", where=str(runs / PROBES), remedy="Move it elsewhere."
        )
    folder.mkdir(mode=0o700)
    for file, content in files.items():
        (folder / Path(file).name).write_bytes(content.encode() if isinstance(content, str) else content)
    with (folder / OUTPUT).open("wb") as output, (folder / LOG).open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", _INTERRUPTIBLE + _CODE, *arguments, "--json"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=log,
            start_new_session=True,  # a stopped app does not take its probes along
        )
    known = started.remember(folder, process)  # before it is reaped
    threading.Thread(target=process.wait, daemon=True, name=f"reaps probe {name}").start()
    record = _Record(
        command=shlex.join(["driftscope", *arguments]),
        out=str(out),
        pid=process.pid,
        process_start=known.start if known is not None else None,
        started_at=time.time(),
        kind=kind,
    )
    temporary = folder / f".{RECORD}.tmp"
    temporary.write_text(record.model_dump_json(), encoding="utf-8")
    temporary.replace(folder / RECORD)
    return _process(runs, folder, record)


def list_processes(runs: Path, kind: ProcessKind = ProcessKind.probe) -> list[ProbeProcess]:
    """All of a kind that were started in this folder and not forgotten, newest first."""
    processes = [found for found in _all(runs) if isinstance(found, ProbeProcess) and found.kind is kind]
    return sorted(processes, key=lambda process: -process.started_at)


def unusable(runs: Path) -> list[Unusable]:
    """What stands among the processes and is none, by name."""
    found = [entry for entry in _all(runs) if isinstance(entry, Unusable)]
    return sorted(found, key=lambda entry: entry.name)


def _all(runs: Path) -> list[ProbeProcess | Unusable]:
    """Each folder in `.probes` by itself: one that cannot be read costs no other."""
    probes = runs / PROBES
    if not os.path.lexists(probes):
        return []
    try:
        if not is_own_folder(probes):
            return [Unusable(PROBES, probes, "this is a link or not a folder: processes started here are kept in one")]
        names = sorted(os.listdir(probes))
    except OSError as error:
        return [Unusable(PROBES, probes, error.strerror or type(error).__name__)]
    found = (_read(runs, probes / name) for name in names)
    return [entry for entry in found if entry is not None]


def _read(runs: Path, folder: Path) -> ProbeProcess | Unusable | None:
    """None for a folder without a record: it is just being started."""
    try:
        if not is_own_folder(folder):
            return Unusable(folder.name, folder, "this is a link or not a folder")
        if not os.path.lexists(folder / RECORD):
            return None
        record = _Record.model_validate_json(_content(folder / RECORD, MAX_RECORD_BYTES))
        return _process(runs, folder, record)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return Unusable(folder.name, folder, f"{RECORD} is none of ours: {where + ': ' if where else ''}{first['msg']}")
    except (InputError, OSError, ValueError) as error:
        return Unusable(folder.name, folder, f"{RECORD} cannot be read: {error}")


def _process(runs: Path, folder: Path, record: _Record) -> ProbeProcess:
    """Raises ValueError for what the app would not have started."""
    out = runs / Path(record.out).name  # never outside, and right in a folder that was moved
    kind = ProcessKind(record.kind)
    if not PROCESS_NAME.fullmatch(folder.name) or "\0" in record.out:
        raise ValueError("no process of the app has this name")
    return ProbeProcess(
        folder.name, folder, record.command, out, record.pid, record.process_start, record.started_at, kind
    )


def is_own_folder(path: Path) -> bool:
    """A folder, and no link to one. Raises OSError."""
    return stat.S_ISDIR(os.lstat(path).st_mode)


def _content(file: Path, max_bytes: int) -> bytes:
    """Raises InputError for what is no regular file, a link, or larger; OSErrors pass."""
    _refuse_link(file)
    return read_regular(file, max_bytes=max_bytes)


def _refuse_link(file: Path) -> None:
    if file.is_symlink():
        raise InputError("this is a link", code="not_a_file", where=str(file), remedy="The app writes files here.")


def state(probe: ProbeProcess) -> ProbeState:
    """From its files and, while there is no outcome, from the process table."""
    is_ours = started.is_running(probe.folder)
    is_alive = is_ours or started.is_living(probe.pid, probe.process_start)
    log = _tail(probe.folder / LOG)  # after the look at the process: what ended in between has then written it
    steps = _PROGRESS.findall(log)
    num_done, num_units, condition = (int(steps[-1][0]), int(steps[-1][1]), steps[-1][2]) if steps else (0, None, "")
    try:
        output = _output(probe.folder / OUTPUT)
    except (InputError, OSError) as error:
        said = f"Its outcome cannot be read: {error}"
        return ProbeState(ProbeStatus.failed, is_ours, num_done, num_units, condition, log, said)
    if output is None and is_alive:
        return ProbeState(ProbeStatus.running, is_ours, num_done, num_units, condition, log)
    if output is not None and "error" not in output:
        return ProbeState(ProbeStatus.complete, False, num_units or num_done, num_units, condition, log)
    if os.path.lexists(probe.folder / CANCELLED):
        return ProbeState(ProbeStatus.cancelled, False, num_done, num_units, condition, log)
    said = _said(output["error"]) if output is not None else ""
    return ProbeState(
        ProbeStatus.failed,
        False,
        num_done,
        num_units,
        condition,
        log,
        said or "It ended and gave no reason; see its log.",
    )


def _said(error: object) -> str:
    """The command's message, its place and its remedy."""
    if not isinstance(error, dict):
        return ""
    where, message, remedy = (str(error.get(name) or "")[:MAX_SAID] for name in ("where", "message", "remedy"))
    return " ".join(part for part in (f"{where}: {message}" if where else message, remedy) if part)


def cancel(probe: ProbeProcess) -> None:
    """Ask it to stop: what is on disk stays. Killed, with what it started, when it has not stopped in time. Does nothing
    to a process that this user's app did not start."""
    if not started.is_running(probe.folder):
        return
    with contextlib.suppress(OSError):  # a full disk is no reason not to stop
        (probe.folder / CANCELLED).touch()
    started.send(probe.folder, signal.SIGINT)

    def kill() -> None:
        deadline = time.monotonic() + SECONDS_TO_STOP
        while time.monotonic() < deadline:
            if not started.is_running(probe.folder):
                return
            time.sleep(0.2)
        started.send(probe.folder, signal.SIGKILL, to_group=True)

    threading.Thread(target=kill, daemon=True, name=f"stops probe {probe.name}").start()


def forget(probe: ProbeProcess) -> None:
    """Remove what has an outcome, or is not ours, from the list, its typed prompts too; its run stays."""
    if not state(probe).may_be_cancelled:  # one that has said its outcome may take a moment to be gone
        shutil.rmtree(probe.folder)


def _output(file: Path) -> dict[str, object] | None:
    """The command's JSON object; None while there is none, or half of one."""
    try:
        output = json.loads(_content(file, MAX_OUTPUT_BYTES))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    return output if isinstance(output, dict) else None


def _tail(file: Path) -> str:
    try:
        _refuse_link(file)
        with open_regular(file) as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - LOG_TAIL_BYTES))
            return log.read(LOG_TAIL_BYTES).decode("utf-8", errors="replace")
    except (InputError, OSError):
        return ""
