"""Is somebody writing this run? `writer.json` beside run.json says who, and its modification time says when last.

Knows no run contents. A process that was killed leaves the file behind: on the same host the process itself is looked
up (its start time too, process ids are reused); from another host only the age of the heartbeat can tell.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from driftscope.runs.files import write_bytes_atomically

WRITER_JSON = "writer.json"
BEAT_SECONDS = 10.0
STALE_SECONDS = 120.0  # a shared file system may lag by tens of seconds


class Heartbeat:
    """While it is entered, `run`/writer.json names this process and is touched every ten seconds by a thread."""

    def __init__(self, run: Path) -> None:
        self._file = run / WRITER_JSON
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="driftscope heartbeat", daemon=True)

    def __enter__(self) -> Self:
        pid = os.getpid()
        writer = {"pid": pid, "host": socket.gethostname(), "process_start": process_start(pid)}
        write_bytes_atomically(self._file, json.dumps(writer).encode())
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._file.unlink(missing_ok=True)

    def _beat(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            try:
                os.utime(self._file)
            except FileNotFoundError:  # the run was moved or removed; its writer meets that at the next flush
                return


def is_being_written(run: Path) -> bool:
    """True while the process that writes `run` lives."""
    file = run / WRITER_JSON
    try:
        age = time.time() - file.stat().st_mtime
        writer = json.loads(file.read_text())
        pid, host, recorded_start = int(writer["pid"]), writer["host"], writer["process_start"]
    except FileNotFoundError:
        return False
    except (ValueError, KeyError, TypeError):  # not what a heartbeat writes: only its age can be judged
        return age < STALE_SECONDS
    if host != socket.gethostname():
        return age < STALE_SECONDS
    start = process_start(pid)
    if start is not None or recorded_start is not None:
        return bool(start == recorded_start)
    return _exists(pid) and age < STALE_SECONDS


def process_start(pid: int) -> int | None:
    """Start time in clock ticks since boot, from Linux's /proc; None for no such process, a dead one, or no /proc."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()  # after the command name, which may hold spaces
    return None if fields[0] in "ZX" else int(fields[19])


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it lives and belongs to somebody else
        return True
    return True
