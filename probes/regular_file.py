"""Opens what somebody else may have put there: never waits, never reads without an end.

A path can name a pipe (whose opening blocks), a device (`/dev/zero` has no end) or a file of any size. Everything that
is handed to driftscope from outside (runs, prompts, checkpoints' texts, the app's notes of its processes) is opened here.
Knows no format.
"""

from __future__ import annotations

import os
import stat
from io import BufferedReader
from pathlib import Path

from probes.errors import InputError


def open_regular(path: str | Path) -> BufferedReader:
    """The file, opened for reading. Raises InputError `not_a_file` for a folder, pipe, socket or device; OSErrors pass."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # the opening of a pipe does not block
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise _not_a_file(path, mode)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: str | Path, *, max_bytes: int) -> bytes:
    """The whole file. Raises InputError `not_a_file`, and `too_large` for one of more than `max_bytes`; OSErrors pass."""
    with open_regular(path) as file:
        expected = min(os.fstat(file.fileno()).st_size, max_bytes) + 1  # not `max_bytes`: as much memory is set aside
        content = file.read(expected)
        if len(content) == expected:  # it has grown, or its file system says 0 of everything
            content += file.read(max_bytes + 1 - expected)
    if len(content) > max_bytes:
        raise InputError(
            f"this file has more than {max_bytes:,} bytes",
            code="too_large",
            where=str(path),
            remedy="This is not what driftscope writes; is it the right file?",
        )
    return content


def check_regular(path: str | Path) -> None:
    """Raises InputError `not_a_file` where a library is to open `path` itself; FileNotFoundError and its like pass."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        raise _not_a_file(path, mode)


def _not_a_file(path: str | Path, mode: int) -> InputError:
    kinds = (
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
    )
    kind = next((name for is_kind, name in kinds if is_kind(mode)), "no regular file")
    return InputError(
        f"this is {kind}, a file is needed here", code="not_a_file", where=str(path), remedy="Give a regular file."
    )
