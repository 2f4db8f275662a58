"""Files that are none: nothing waits for them, and every refusal is one short message."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from probes.errors import MAX_MESSAGE, MAX_WHERE, DriftscopeError, InputError, file_error
from probes.regular_file import check_regular, open_regular, read_regular


def test_a_regular_file_is_read_whole_through_a_link_too(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(b"12345")
    (tmp_path / "link").symlink_to(file)
    assert read_regular(file, max_bytes=5) == b"12345"
    assert read_regular(tmp_path / "link", max_bytes=5) == b"12345"
    check_regular(tmp_path / "link")


def test_a_file_over_the_limit_is_refused_without_reading_it(tmp_path: Path) -> None:
    file = tmp_path / "giant"
    with file.open("wb") as opened:
        opened.truncate(1 << 40)  # sparse
    with pytest.raises(InputError, match="more than 1,000 bytes") as caught:
        read_regular(file, max_bytes=1_000)
    assert caught.value.code == "too_large"


@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "link to a device"])
def test_what_is_no_file_is_named_for_what_it_is(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "link to a device":
        path.symlink_to("/dev/zero")
    else:
        path = Path("/dev/zero")
    for read in (open_regular, check_regular, lambda p: read_regular(p, max_bytes=10)):
        with pytest.raises(InputError, match=kind.split()[-1]) as caught:
            read(path)
        assert caught.value.code == "not_a_file"


def test_what_is_missing_stays_a_file_not_found_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "missing", max_bytes=1)


def test_a_message_has_a_bounded_length_and_can_be_printed() -> None:
    error = DriftscopeError("x" * 10_000_000, code="c", where="/runs/bad\udcff" + "y" * 5_000, remedy="\ud800")
    assert len(error.message) <= MAX_MESSAGE
    assert "[9,998,030 characters]" in error.message
    assert len(error.where) <= MAX_WHERE + len("\\udcff")
    assert "\\udcff" in error.where
    str(error).encode("utf-8")


def test_what_the_operating_system_refuses_names_the_file_and_the_way_out() -> None:
    error = file_error(OSError(errno.ENOSPC, "No space left on device", "/runs/a.drift/run.json"))
    assert (error.code, error.where, error.exit_code) == ("file_error", "/runs/a.drift/run.json", 2)
    assert str(error) == (
        "/runs/a.drift/run.json: No space left on device. Free some space, then go on: what was written before is kept."
    )
