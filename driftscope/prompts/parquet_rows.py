"""The rows of a Parquet file of prompts, once it is known what they hold.

A few hundred bytes can stand for gigabytes: one value that every row refers to, runs of a billion equal numbers. Texts
are therefore read as references to their values, their sizes summed, and only then is anything made from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from driftscope.prompts.line import Line, bad_line, label
from probes.errors import InputError

MAX_TEXT_BYTES = 1 << 30
"""Limit for all rows: that of a text file of prompts."""
MAX_PACKED_BYTES = 1 << 30
"""Limit for the pages of all columns, unpacked."""
MAX_VALUES = 100_000_000
"""Limit for all columns, such as token ids: some gigabytes as Python's objects."""
ROWS_AT_ONCE = 1_000
TEXT_BYTES_AT_ONCE = 64 << 20


def parquet_rows(path: Path) -> Iterator[Line]:
    """Raises InputError `file_too_large`, and `bad_prompt_line` where the file is damaged."""
    number = 0
    try:
        with pq.ParquetFile(path) as file:
            _check_declared(path, file.metadata)
            texts = [
                file.metadata.schema.column(i).path
                for i in range(file.metadata.num_columns)
                if file.metadata.schema.column(i).physical_type == "BYTE_ARRAY"
            ]
        with pq.ParquetFile(path, read_dictionary=texts) as file:
            num_bytes = 0
            for batch in file.iter_batches(batch_size=ROWS_AT_ONCE):
                num_bytes += sum(_text_bytes(column) for column in batch.columns)
                if num_bytes > MAX_TEXT_BYTES:
                    raise _too_large(path, f"{MAX_TEXT_BYTES >> 20:,} MiB of text")
            for batch in file.iter_batches(batch_size=ROWS_AT_ONCE):
                share = sum(_text_bytes(column) for column in batch.columns) / max(batch.num_rows, 1)
                step = max(1, min(ROWS_AT_ONCE, int(TEXT_BYTES_AT_ONCE / max(share, 1))))
                for start in range(0, batch.num_rows, step):
                    for item in batch.slice(start, step).to_pylist(maps_as_pydicts="lossy"):
                        number += 1
                        yield Line(path=path, number=number, item=item, kind="row")
    except (pa.ArrowException, OSError, ValueError, RecursionError) as error:
        said = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise bad_line(
            path, number + 1, "cannot be read", quote=label(said), kind="row", remedy="Write the file again."
        ) from error


def _check_declared(path: Path, metadata: pq.FileMetaData) -> None:
    num_values = packed = 0
    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        packed += group.total_byte_size
        num_values += sum(group.column(j).num_values for j in range(group.num_columns))
    if num_values > MAX_VALUES:
        raise _too_large(path, f"{MAX_VALUES:,} values")
    if packed > MAX_PACKED_BYTES:
        raise _too_large(path, f"{MAX_PACKED_BYTES >> 20:,} MiB, unpacked")


def _text_bytes(array: pa.Array) -> int:
    """Size of all texts of an array, one that several rows refer to counted for each."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        if not (pa.types.is_string(kind.value_type) or pa.types.is_binary(kind.value_type)):
            return _text_bytes(array.dictionary_decode())
        lengths = pc.cast(pc.binary_length(array.dictionary), pa.int64())
        return pc.sum(lengths.take(array.indices)).as_py() or 0
    if pa.types.is_struct(kind):
        return sum(_text_bytes(field) for field in array.flatten())
    if pa.types.is_map(kind):
        return _text_bytes(array.keys) + _text_bytes(array.items)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _text_bytes(array.flatten())
    return int(array.nbytes)


def _too_large(path: Path, what: str) -> InputError:
    return InputError(
        f"the file has more than {what}", code="file_too_large", where=str(path), remedy="Take a sample of it."
    )
