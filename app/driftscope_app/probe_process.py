"""A `driftscope probe`, `demo` or `diagnose` started from the app: a process of its own, known by its files. Knows no
Streamlit.

Everything about it lies in `RUNS/.probes/NAME/`: what was asked (process.json and the typed prompts), what it prints
(output.json, log.txt). So a page reload, another browser or a restarted app sees the same processes, and none of them
runs in the app's threads. The outcome is the command's own one JSON object.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from driftscope.runs.heartbeat import process_start
from probes.errors import InputError

PROBES = ".probes"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
SECONDS_TO_STOP = 20.0  # for a flush; then the process is killed
LOG_TAIL_BYTES = 4_000
NOT_RUN = "interventions were not run:"
"""How `diagnose` begins its reason."""

_INTERRUPTIBLE = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
"""An app that a script started in the background ignores interrupts: what it starts would too, and not be cancelled."""

_CODE = "import sys; from driftscope.cli import main; sys.exit(main())"
_PROGRESS = re.compile(r"^(\d+)/(\d+) (.*)$", re.MULTILINE)


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
class ProbeState:
    """How far it got. `error` is what the command says."""

    status: ProbeStatus
    num_done: int
    num_units: int | None
    condition: str
    log: str
    error: str | None = None


def check_name(runs: Path, name: str) -> str | None:
    """Why a run cannot be called so; None when it can."""
    if not NAME.fullmatch(name):
        return "Use letters, digits, dot, dash and underscore only, at most 64, starting with a letter or digit."
    if (runs / f"{name}.drift").exists() or (runs / PROBES / name).exists():
        return f"There is a run or a probe called {name} already."
    return None


def typed_file(runs: Path, name: str, file: str) -> Path:
    """Where a file that was typed or uploaded for the probe `name` will lie."""
    return runs / PROBES / name / file


def command_line(runs: Path, name: str, arguments: Sequence[str]) -> str:
    """The command that `start` runs, for a shell. It is started with --json besides, to have its outcome as data."""
    return shlex.join(["driftscope", *arguments, "--out", str(runs / f"{name}.drift")])


def start(runs: Path, name: str, arguments: Sequence[str], files: Mapping[str, str]) -> ProbeProcess:
    """Start `driftscope ARGUMENTS --out RUNS/NAME.drift`; `files` (file name -> text) are written first.

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
    """Start `driftscope diagnose RUN`, which first runs what interventions the run lacks. One at a time for each run."""
    former = interventions_of(runs, run)
    if former is not None:
        if state(former).status is ProbeStatus.running:
            return former
        forget(former)
    name = f"{run.stem}.{ProcessKind.interventions}"
    return _launch(runs, name, ["diagnose", str(run)], {}, out=run, kind=ProcessKind.interventions)


def _launch(
    runs: Path, name: str, arguments: Sequence[str], files: Mapping[str, str], *, out: Path, kind: ProcessKind
) -> ProbeProcess:
    """`driftscope ARGUMENTS --json` in a session of its own; `arguments` hold `out`."""
    folder = runs / PROBES / name
    runs.mkdir(parents=True, exist_ok=True)
    (runs / PROBES).mkdir(mode=0o700, exist_ok=True)  # prompts are private
    folder.mkdir(mode=0o700)
    for file, text in files.items():
        (folder / Path(file).name).write_text(text, encoding="utf-8")
    with (folder / "output.json").open("wb") as output, (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", _INTERRUPTIBLE + _CODE, *arguments, "--json"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=log,
            start_new_session=True,  # a stopped app does not take its probes along
        )
    start_ticks = process_start(process.pid)  # before it is reaped
    threading.Thread(target=process.wait, daemon=True, name=f"reaps probe {name}").start()
    command = shlex.join(["driftscope", *arguments])
    started = ProbeProcess(name, folder, command, out, process.pid, start_ticks, time.time(), kind)
    record = {
        "command": command,
        "out": str(out),
        "pid": process.pid,
        "process_start": start_ticks,
        "started_at": started.started_at,
        "kind": kind,
    }
    temporary = folder / ".process.json.tmp"
    temporary.write_text(json.dumps(record), encoding="utf-8")
    temporary.replace(folder / "process.json")
    return started


def list_processes(runs: Path, kind: ProcessKind = ProcessKind.probe) -> list[ProbeProcess]:
    """All of a kind that were started in this folder and not forgotten, newest first."""
    probes = []
    for file in (runs / PROBES).glob("*/process.json"):
        record = json.loads(file.read_text(encoding="utf-8"))
        found = ProcessKind(record.get("kind", ProcessKind.probe))
        if found is kind:
            folder = file.parent
            probes.append(
                ProbeProcess(
                    folder.name,
                    folder,
                    record["command"],
                    Path(record["out"]),
                    record["pid"],
                    record.get("process_start"),
                    record["started_at"],
                    found,
                )
            )
    return sorted(probes, key=lambda probe: -probe.started_at)


def state(probe: ProbeProcess) -> ProbeState:
    """From its files and, while there is no outcome, from the process table."""
    is_alive = _is_alive(probe)  # before the output: what ends in between has then written it
    log = _tail(probe.folder / "log.txt")
    steps = _PROGRESS.findall(log)
    num_done, num_units, condition = (int(steps[-1][0]), int(steps[-1][1]), steps[-1][2]) if steps else (0, None, "")
    output = _output(probe.folder / "output.json")
    if output is None and is_alive:
        return ProbeState(ProbeStatus.running, num_done, num_units, condition, log)
    is_cancelled = (probe.folder / "cancelled").exists()
    if output is not None and "error" not in output:
        return ProbeState(ProbeStatus.complete, num_units or num_done, num_units, condition, log)
    if is_cancelled:
        return ProbeState(ProbeStatus.cancelled, num_done, num_units, condition, log)
    error = output["error"] if output is not None else {}
    said = " ".join(
        part
        for part in (
            f"{error['where']}: {error['message']}" if error.get("where") else error.get("message", ""),
            error.get("remedy") or "",
        )
        if part
    )
    return ProbeState(
        ProbeStatus.failed, num_done, num_units, condition, log, said or "It ended without a word; see its log."
    )


def cancel(probe: ProbeProcess) -> None:
    """Ask it to stop: what is on disk stays. Killed when it has not stopped in time."""
    if not _is_alive(probe):
        return
    (probe.folder / "cancelled").touch()
    os.kill(probe.pid, signal.SIGINT)

    def kill() -> None:
        deadline = time.monotonic() + SECONDS_TO_STOP
        while time.monotonic() < deadline:
            if not _is_alive(probe):
                return
            time.sleep(0.2)
        with contextlib.suppress(ProcessLookupError):
            os.kill(probe.pid, signal.SIGKILL)

    threading.Thread(target=kill, daemon=True, name=f"stops probe {probe.name}").start()


def forget(probe: ProbeProcess) -> None:
    """Remove an ended process from the list, its typed prompts too; its run stays."""
    if state(probe).status is not ProbeStatus.running:
        shutil.rmtree(probe.folder)


def _is_alive(probe: ProbeProcess) -> bool:
    """The process lives and is ours: process ids are used again."""
    try:
        os.kill(probe.pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return process_start(probe.pid) == probe.process_start


def _output(file: Path) -> dict[str, dict[str, str]] | None:
    """The command's JSON object; None while there is none, or half of one."""
    try:
        output = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return output if isinstance(output, dict) else None


def _tail(file: Path) -> str:
    try:
        with file.open("rb") as log:
            log.seek(max(0, file.stat().st_size - LOG_TAIL_BYTES))
            return log.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""
