"""Safetensors headers and small tensors, read by hand: base installs have no safetensors, and a header is all we need.

Format: 8 bytes little-endian header length, that many bytes of JSON {name: {dtype, shape, data_offsets}}, then the data
without holes (https://github.com/huggingface/safetensors, "Format"). Everything is checked against the file's length
before anything is read, so a broken file costs an error and no memory. Where the bytes lie (a disk, the Hub) is the
`WeightFile`'s affair.
"""

from __future__ import annotations

import errno
import json
import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from probes.errors import CheckpointError, InputError
from probes.regular_file import open_regular

MAX_HEADER_BYTES = 16 * 2**20  # a drafter's header is a few kB, a shard of the largest targets' under 2 MB
MAX_DIMENSIONS = 8
MAX_DIMENSION = 2**48
LFS_POINTER = b"version https://git-lfs.github.com/spec/"

DTYPE_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
FLOAT_DTYPES = frozenset({"F16", "BF16", "F32", "F64"})
INTEGER_DTYPES = frozenset({"U8", "I8", "U16", "I16", "U32", "I32", "I64"})
NUMPY_DTYPES = {
    "BOOL": "?",
    "U8": "<u1",
    "I8": "<i1",
    "U16": "<u2",
    "I16": "<i2",
    "U32": "<u4",
    "I32": "<i4",
    "I64": "<i8",
    "F16": "<f2",
    "BF16": "<u2",
    "F32": "<f4",
    "F64": "<f8",
}


class Bytes(Protocol):
    """Something that bytes can be read from: a file here, one on the Hub, a tensor that torch has mapped."""

    def read(self, start: int, num_bytes: int) -> bytes:
        """Exactly these bytes, fewer at the end. Raises OSError, or CheckpointError from the Hub."""
        ...


class WeightFile(Bytes, Protocol):
    """A whole file: `path` names it in messages, `size` is its length in bytes."""

    @property
    def path(self) -> Path: ...

    @property
    def size(self) -> int: ...


def open_file(path: Path) -> BufferedReader:
    """A checkpoint's file. Raises OSError also for a pipe, whose opening would block, a device or a folder."""
    try:
        return open_regular(path)
    except InputError as error:
        raise OSError(errno.EINVAL, error.message, str(path)) from error


@dataclass(frozen=True)
class LocalFile:
    path: Path

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    def read(self, start: int, num_bytes: int) -> bytes:
        with open_file(self.path) as file:
            file.seek(start)
            return file.read(num_bytes)


@dataclass(frozen=True, kw_only=True)
class TensorEntry:
    """One tensor as its file's header describes it. `start` counts bytes from the beginning of `data`."""

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    num_bytes: int
    data: Bytes


def refuse_lfs_pointer(path: Path, first_bytes: bytes) -> None:
    """Raise if this file is what git leaves when Git LFS did not fetch the real one."""
    if first_bytes.startswith(LFS_POINTER):
        raise CheckpointError(
            "this is a Git LFS pointer, not the file itself",
            code="git_lfs_pointer",
            where=str(path),
            remedy="Run `git lfs pull` in that folder, or download the checkpoint from the Hub",
        )


def read_header(file: WeightFile) -> dict[str, TensorEntry]:
    """The tensors of one safetensors file by name, checked against the file's length; no tensor data is read.

    Raises CheckpointError: not readable, a Git LFS pointer, not safetensors, truncated, inconsistent offsets.
    """
    path = file.path
    try:
        size = file.size
        first = file.read(0, max(8, len(LFS_POINTER)))
        refuse_lfs_pointer(path, first)
        if len(first) < 8:
            raise _broken(path, f"the file ends after {len(first)} bytes", "truncated")
        length = int.from_bytes(first[:8], "little")
        if length > MAX_HEADER_BYTES:
            raise _broken(
                path,
                f"its first 8 bytes give a header of {length} bytes (largest accepted: {MAX_HEADER_BYTES})",
                "not_safetensors",
            )
        if 8 + length > size:
            raise _broken(path, f"the header needs {8 + length} bytes, the file has {size}", "truncated")
        text = file.read(8, length)
    except OSError as error:
        raise unreadable(path, error) from error
    return _parse_header(file, text, data_start=8 + length, size=size)


def read_array(entry: TensorEntry) -> np.ndarray[Any, np.dtype[Any]]:
    """A tensor's data as a numpy array, bf16 widened to float32. Meant for small tensors: d2t, t2d, norms."""
    if entry.dtype not in NUMPY_DTYPES:
        raise CheckpointError(
            f"its dtype {entry.dtype} cannot be read here",
            code="unsupported_dtype",
            where=f"{entry.path}: {entry.name}",
            remedy="Store this tensor as int64, bool, bf16, fp16 or fp32",
        )
    raw = np.frombuffer(_data(entry, 0, entry.num_bytes), NUMPY_DTYPES[entry.dtype]).reshape(entry.shape)
    if entry.dtype == "BF16":
        return (raw.astype(np.uint32) << 16).view(np.float32)
    return raw


def read_rows(entry: TensorEntry, first: int, num_rows: int) -> list[bytes]:
    """The raw bytes of some rows of a two-axis tensor; equal bytes are equal rows in any dtype."""
    row_bytes = entry.num_bytes // entry.shape[0]
    data = _data(entry, first * row_bytes, num_rows * row_bytes)
    return [data[i * row_bytes : (i + 1) * row_bytes] for i in range(num_rows)]


def _data(entry: TensorEntry, offset: int, num_bytes: int) -> bytes:
    try:
        data = entry.data.read(entry.start + offset, num_bytes) if num_bytes else b""
    except OSError as error:
        raise unreadable(entry.path, error) from error
    if len(data) != num_bytes:
        raise _broken(entry.path, f"the data of `{entry.name}` ends early", "truncated")
    return data


def _parse_header(file: WeightFile, text: bytes, *, data_start: int, size: int) -> dict[str, TensorEntry]:
    path = file.path
    try:
        header = json.loads(text, object_pairs_hook=_unique_pairs)
    except (ValueError, RecursionError) as error:
        raise _broken(path, f"its header is not valid JSON ({error})", "not_safetensors") from error
    if not isinstance(header, Mapping):
        raise _broken(path, "its header is not a JSON object", "not_safetensors")
    entries = {
        name: _parse_entry(file, name, item, data_start) for name, item in header.items() if name != "__metadata__"
    }
    end = data_start
    for entry in sorted(entries.values(), key=lambda e: (e.start, e.num_bytes)):
        if entry.start != end:
            raise _broken(path, f"the data of `{entry.name}` overlaps or leaves a hole before it", "not_safetensors")
        end += entry.num_bytes
    if end > size:
        raise _broken(path, f"its tensors need {end} bytes, the file has {size}", "truncated")
    if end < size:
        raise _broken(path, f"its tensors need {end} bytes, the file has {size}: bytes left over", "not_safetensors")
    return entries


def _parse_entry(file: WeightFile, name: str, item: object, data_start: int) -> TensorEntry:
    def bad(what: str) -> CheckpointError:
        return _broken(file.path, f"the header entry of `{name[:80]}` {what}", "not_safetensors")

    if not isinstance(item, Mapping):
        raise bad("is not an object")
    dtype, shape, offsets = item.get("dtype"), item.get("shape"), item.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise bad(f"has an unknown dtype {reprlib.repr(dtype)}")
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS or not all(_is_count(n) for n in shape):
        raise bad("has no valid shape")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_count(n) for n in offsets):
        raise bad("has no valid data_offsets")
    num_bytes = offsets[1] - offsets[0]
    if num_bytes * 8 != math.prod(shape) * DTYPE_BITS[dtype]:
        raise bad(f"gives {num_bytes} bytes to a {dtype} tensor of shape {shape}")
    return TensorEntry(
        name=name,
        path=file.path,
        dtype=dtype,
        shape=tuple(shape),
        start=data_start + offsets[0],
        num_bytes=num_bytes,
        data=file,
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_DIMENSION


def _unique_pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name occurs twice")
    return result


def _broken(path: Path, what: str, code: str) -> CheckpointError:
    if code == "truncated":
        message, remedy = f"the safetensors file is cut off: {what}", "Copy or download it again"
    else:
        message = f"not a valid safetensors file: {what}"
        remedy = "Copy or download it again, or save the weights anew with safetensors"
    return CheckpointError(message, code=code, where=str(path), remedy=remedy)


def unreadable(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"cannot be read: {error.strerror or error}",
        code="file_unreadable",
        where=str(path),
        remedy="Check the file's permissions and the disk",
    )
