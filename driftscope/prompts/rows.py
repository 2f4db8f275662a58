"""A file's objects, one after the other: JSON Lines, a JSON array, one JSON object, CSV or Parquet.

Knows no format of prompts. Everything that cannot be read is an InputError that names the file and the line.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from driftscope.prompts.line import Line, bad_line
from probes.errors import InputError
from probes.nested_json import read_json
from probes.regular_file import check_regular, open_regular, read_regular

MAX_FILE_BYTES = 1 << 30
DELIMITERS = {".csv": ",", ".tsv": "\t"}
PARQUET_MAGIC = b"PAR1"
GZIP_MAGIC = b"\x1f\x8b"


def read_lines(path: Path) -> Iterator[Line]:
    """Every object of the file, whichever way it holds them (told by its first bytes and its name)."""
    with open_regular(path) as file:
        magic = file.read(4)
    if magic == PARQUET_MAGIC:
        from driftscope.prompts.parquet_rows import parquet_rows  # here: no other kind of file needs pyarrow

        return parquet_rows(path)
    if magic.startswith(GZIP_MAGIC):
        raise InputError("the file is compressed", code="compressed_file", where=str(path), remedy="Unpack it first.")
    text = read_text(path)
    delimiter = DELIMITERS.get(path.suffix.lower())
    if delimiter is not None:
        return _csv_rows(path, text, delimiter=delimiter)
    return _json_items(path, text)


def check_file(path: Path, *, what: str, option: str) -> None:
    """Raises InputError where there is no such file, or where it is too large to be read whole."""
    try:
        check_regular(path)
    except (OSError, ValueError) as error:  # too long for a file's name; a null byte
        raise InputError(
            f"there is no such {what}", code="file_not_found", where=str(path), remedy=f"Check {option}."
        ) from error
    if path.stat().st_size > MAX_FILE_BYTES:
        raise InputError(
            f"the file has more than {MAX_FILE_BYTES >> 20} MiB",
            code="file_too_large",
            where=str(path),
            remedy="Take a sample of it.",
        )


def read_text(path: Path, what: str = "file", *, max_bytes: int = MAX_FILE_BYTES) -> str:
    """A UTF-8 text file, line ends as they are. Raises InputError naming the file, and the line that is not UTF-8."""
    try:
        return read_regular(path, max_bytes=max_bytes).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise InputError(
            f"line {line} of the {what} is not UTF-8 (byte {error.start})",
            code="file_not_utf8",
            where=f"{path}:{line}",
            remedy=f"Convert the {what} to UTF-8.",
        ) from error
    except (OSError, ValueError, InputError) as error:  # a null byte in the path; a pipe, a giant
        reason = error.message if isinstance(error, InputError) else getattr(error, "strerror", None) or error
        raise InputError(
            f"the {what} cannot be read: {reason}", code="file_not_readable", where=str(path), remedy="Check the path."
        ) from error


def _json_items(path: Path, text: str) -> Iterator[Line]:
    start = text.lstrip()[:1]
    if start == "[":
        yield from _json_array(path, text)
        return
    lines = text.split("\n")
    first = next((number for number, raw in enumerate(lines, start=1) if raw.strip()), 0)
    if start == "{" and _is_open_object(lines[first - 1]):
        try:
            whole = read_json(text)
        except ValueError:
            whole = None  # JSON Lines after all, with a broken first line: named below
        if whole is not None:
            yield _line(path, first, whole, "item")
            return
    for number, raw in enumerate(lines, start=1):
        if raw.strip():
            yield _line(path, number, _parsed(path, number, raw, "line"), "line")


def _is_open_object(first_line: str) -> bool:
    """True if the first line only begins an object that spans several lines."""
    try:
        read_json(first_line)
    except json.JSONDecodeError as error:
        return error.pos >= len(first_line.rstrip())  # it went well up to the end of the line
    except ValueError:
        return False
    return False


def _json_array(path: Path, text: str) -> Iterator[Line]:
    items = _parsed(path, 1, text, "item")
    if not isinstance(items, list):
        raise bad_line(path, 1, f"is a {type(items).__name__}, not an array", kind="item")
    for number, item in enumerate(items, start=1):
        yield _line(path, number, item, "item")


def _parsed(path: Path, number: int, raw: str, kind: str) -> Any:
    try:
        return read_json(raw)
    except json.JSONDecodeError as error:
        at = number if kind == "line" else error.lineno
        raise bad_line(path, at, f"is not valid JSON: {error.msg} (column {error.colno})") from error
    except ValueError as error:
        raise bad_line(path, number, f"is JSON that cannot be read: {error}", kind=kind) from error


def _line(path: Path, number: int, item: object, kind: str) -> Line:
    if not isinstance(item, dict):
        raise bad_line(path, number, f"is a {type(item).__name__}, not an object", kind=kind)
    return Line(path=path, number=number, item=item, kind=kind)


def _csv_rows(path: Path, text: str, *, delimiter: str) -> Iterator[Line]:
    """One object per row, its empty cells left out; the number is that of the row's last line."""
    csv.field_size_limit(MAX_FILE_BYTES)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] = []
    try:
        for cells in reader:
            if not header:
                header = cells
                if len(set(header)) < len(header) or not any(header):
                    raise bad_line(path, reader.line_num, "is not a header of distinct column names")
            elif len(cells) > len(header):
                raise bad_line(path, reader.line_num, f"has {len(cells)} cells, the header {len(header)}")
            elif any(cells):
                item = {name: cell for name, cell in zip(header, cells, strict=False) if cell}
                yield Line(path=path, number=reader.line_num, item=item)
    except csv.Error as error:
        raise bad_line(path, reader.line_num, f"is not valid CSV: {error}") from error
