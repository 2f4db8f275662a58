"""Which living processes this user's app has started: the only ones that it signals. Knows no Streamlit and no runs.

A runs folder may come from anybody, so what stands in it never says which process to signal. Who was started is kept in
memory and, for the app's next start, in the user's own state folder ($XDG_STATE_HOME or ~/.local/state), by the path of
the process's folder. Where that cannot be written, only the app that started a process can signal it.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

from driftscope.runs.files import write_bytes_atomically
from probes.errors import InputError
from probes.regular_file import read_regular

MAX_BYTES = 4_096
MAX_PID = 2**31 - 1
_HAS_PROC = Path("/proc/self/stat").exists()


@dataclass(frozen=True)
class Started:
    """A process, told from later ones of the same id by its start."""

    pid: int
    start: int  # clock ticks since boot


_of_this_app: dict[Path, subprocess.Popen[bytes]] = {}


def remember(folder: Path, process: subprocess.Popen[bytes]) -> Started | None:
    """`process` was started for `folder`. None where there is no /proc: then nothing outlives this app's memory."""
    _of_this_app[folder] = process
    start = process_start(process.pid)
    if start is None:
        return None
    state = _state_folder()
    if state is not None:
        try:
            state.mkdir(mode=0o700, parents=True, exist_ok=True)
            _remove_ended(state)
            record = {"folder": str(folder), "pid": process.pid, "start": start}
            write_bytes_atomically(state / _name(folder), json.dumps(record).encode())
        except OSError:  # no home that can be written: this app's memory has it
            pass
    return Started(process.pid, start)


def is_running(folder: Path) -> bool:
    """What was started for `folder` lives and may be signalled."""
    return _living(folder) is not None


def send(folder: Path, number: signal.Signals, *, to_group: bool = False) -> None:
    """A signal to the living process of `folder`, or with all that it started; nothing where there is none."""
    pid = _living(folder)
    if pid is None:
        return
    try:
        (os.killpg if to_group else os.kill)(pid, number)  # it leads its group: the group's id is its own
    except (ProcessLookupError, PermissionError):  # it has ended just now
        return


def is_living(pid: int, start: int | None) -> bool:
    """A process of that id and start time lives, whoever's it is. For display: who may be signalled is `is_running`."""
    return start is not None and 1 < pid <= MAX_PID and process_start(pid) == start


def process_start(pid: int) -> int | None:
    """Start time in clock ticks since boot, from Linux's /proc; None for no such process, a dead one, one of another
    user that is hidden, or no /proc."""
    try:
        stat_line = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:  # no such process, or one that may not be looked at (/proc mounted with hidepid)
        return None
    fields = stat_line.rpartition(")")[2].split()  # after the command name, which may hold spaces
    return None if fields[0] in "ZX" else int(fields[19])


def _living(folder: Path) -> int | None:
    child = _of_this_app.get(folder)
    if child is not None and child.returncode is None:
        start = process_start(child.pid)
        is_alive = start is not None if _HAS_PROC else child.poll() is None
        return child.pid if is_alive and _is_own_leader(child.pid) else None
    recorded = _recorded(folder)
    if recorded is None or not is_living(recorded.pid, recorded.start) or not _is_own_leader(recorded.pid):
        return None
    return recorded.pid


def _is_own_leader(pid: int) -> bool:
    """It is no other user's, not this app, and leads a session of its own, as all that the app starts does."""
    try:
        is_leader = os.getsid(pid) == pid == os.getpgid(pid)
        is_own = not _HAS_PROC or os.stat(f"/proc/{pid}").st_uid == os.geteuid()
    except OSError:
        return False
    return is_leader and is_own and pid not in (1, os.getpid())


def _recorded(folder: Path) -> Started | None:
    state = _state_folder()
    if state is None:
        return None
    try:
        status = state.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            return None  # others can write there
        record = json.loads(read_regular(state / _name(folder), max_bytes=MAX_BYTES))
        pid, start = record["pid"], record["start"]
    except (OSError, InputError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return Started(pid, start) if type(pid) is int and type(start) is int else None


def _remove_ended(state: Path) -> None:
    for file in state.glob("*.json"):
        try:
            record = json.loads(read_regular(file, max_bytes=MAX_BYTES))
            is_needed = is_living(int(record["pid"]), int(record["start"]))
        except (OSError, InputError, ValueError, TypeError, KeyError, RecursionError):
            is_needed = False
        if not is_needed:
            file.unlink(missing_ok=True)


def _state_folder() -> Path | None:
    given, home = os.environ.get("XDG_STATE_HOME", ""), os.path.expanduser("~")
    base = given if os.path.isabs(given) else os.path.join(home, ".local", "state")
    is_known = os.path.isabs(given) or (os.path.isabs(home) and os.environ.get("HOME") != "")
    return Path(base) / "driftscope" / "processes" if is_known else None


def _name(folder: Path) -> str:
    return hashlib.sha256(os.fsencode(folder)).hexdigest() + ".json"
