"""One writer for a run: a lock that the kernel holds for the writer's life and drops when it dies, however it dies.

Knows no run contents. The lock is flock's, on `writer.lock` inside the run: it holds between threads, processes, PID
namespaces and containers that share the folder, and between hosts where the file system passes locks on (NFS does). The
file stays, empty of meaning, when nobody writes; what stands in it only helps to find the writer.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
import weakref
from pathlib import Path
from types import TracebackType
from typing import Self

from probes.errors import InputError, RunError
from probes.regular_file import check_regular, open_regular

WRITER_LOCK = "writer.lock"
_TRIES = 10  # a reader that asks whether somebody writes holds the lock for some microseconds
_SECONDS_BETWEEN_TRIES = 0.02
_HAS_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
_MAX_HOLDER_BYTES = 300

_held: weakref.WeakSet[RunLock] = weakref.WeakSet()


class RunLock:
    """The right to write the run in this folder, from its making until `release` (or the end of a with statement)."""

    _descriptor = -1

    def __init__(self, run: Path) -> None:
        """Take it before looking at anything that a writer changes. Raises RunError `run_is_being_written` where
        somebody else has it, `run_vanished` where there is no such folder (any more), `no_locks` where the file system
        has none; OSErrors pass."""
        self._descriptor = _locked(run)
        _held.add(self)

    def release(self) -> None:
        """Let others write. Doing so twice does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()


def is_being_written(run: Path) -> bool:
    """True while somebody holds the run's lock. Raises InputError where writer.lock is no file."""
    try:
        with open_regular(run / WRITER_LOCK) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no such file: nobody has written it, or an earlier driftscope did; or a file system without locks
        return False
    return False


def _locked(run: Path) -> int:
    """A descriptor that holds the lock of the folder that is `run` now, not of one that was renamed meanwhile."""
    path = run / WRITER_LOCK
    for _ in range(_TRIES):
        if path.exists():
            check_regular(path)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        except FileNotFoundError as error:
            raise RunError(
                "the run was moved, replaced or removed at this moment",
                code="run_vanished",
                where=str(run),
                remedy="See which runs there are, and try again.",
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_still_there(descriptor, path):
                _sign(descriptor)
                return descriptor
        except BlockingIOError:
            time.sleep(_SECONDS_BETWEEN_TRIES)
        except OSError as error:
            os.close(descriptor)
            if error.errno in _HAS_NO_LOCKS:
                raise RunError(
                    "this file system has no locks, so a second writer would not be noticed",
                    code="no_locks",
                    where=str(path),
                    remedy="Write the run to a local folder and move it afterwards.",
                ) from error
            raise
        os.close(descriptor)
    raise RunError(
        f"the run is being written{_holder(path)}",
        code="run_is_being_written",
        where=str(run),
        remedy="Wait for that process or stop it first.",
    )


def _is_still_there(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _sign(descriptor: int) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)


def _holder(path: Path) -> str:
    """` by process 4711 on host`, as the writer signed; empty where it cannot be read."""
    try:
        with open_regular(path) as file:
            signature = file.read(_MAX_HOLDER_BYTES).decode("utf-8", "replace")
    except (OSError, InputError):
        return ""
    return f" by {signature}" if signature.isprintable() and signature else ""


def _release_in_child() -> None:
    """A forked child shares its parent's locks, and would keep them when the parent has died."""
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_release_in_child)
