"""Reading and writing of one Parquet file, with the errors that a reader of a run needs.

Knows no columns' meaning. zstd; dictionary encoding for repeated names only; a checksum on every page, so that
`runs verify` sees a flipped bit. A small file can stand for any amount of data: what its footer promises is checked
against its size before a page is read, and pages are read a bounded number of bytes at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from driftscope.runs.files import RUN_SUFFIX, write_atomically
from driftscope.runs.pages import fault_of_pages
from driftscope.runs.schema import UNIQUE_STRINGS
from probes.errors import InputError, RunError
from probes.regular_file import open_regular

BATCH_ROWS = 16_384
BATCH_BYTES = 16 << 20  # of one batch in memory
ROW_GROUP_BYTES = 32 << 20  # of what is written
MAX_ROWS, MAX_ROWS_PER_BYTE = 1_000_000, 10  # runs with the fewest columns have 1.4 rows a byte
MAX_GROUP_BYTES, MAX_GROUP_RATIO = 128 << 20, 4  # of one row group in memory: this, and this many times the file


def write_table(path: Path, table: pa.Table) -> None:
    """Write `table` to `path` in one step."""
    dictionary = [f.name for f in table.schema if f.type == pa.string() and f.name not in UNIQUE_STRINGS]
    group_rows = max(1, table.num_rows * ROW_GROUP_BYTES // max(table.nbytes, 1))

    def write(file: Any) -> None:
        pq.write_table(
            table,
            file,
            compression="zstd",
            use_dictionary=dictionary or False,
            write_page_checksum=True,
            row_group_size=min(group_rows, 1 << 20),
        )

    write_atomically(path, write)


def num_rows(path: Path, schema: pa.Schema) -> int:
    """Rows of the file, read from its footer. Raises RunError when it is cut short, promises more than such a file can
    hold, or holds other columns than `schema` (a column that an older version did not write is fine, one of another
    type is not)."""
    with _open(path) as file:
        return int(_footer(path, file, schema).num_rows)


def read_table(path: Path, schema: pa.Schema) -> pa.Table:
    """The whole file, as `read_batches` reads it."""
    return pa.Table.from_batches(read_batches(path, schema), schema)


def read_batches(
    path: Path, schema: pa.Schema, columns: Sequence[str] | None = None, filter: pc.Expression | None = None
) -> Iterator[pa.RecordBatch]:
    """`columns` of `schema` (all where None) in the order of `schema`, page checksums verified; null where an older
    version did not write one. With `filter`, row groups that hold no match by their statistics are left out. Raises
    RunError as `num_rows` does, and for damaged pages."""
    wanted = [field for field in schema if columns is None or field.name in columns]
    with _open(path) as file:
        metadata = _footer(path, file, schema)
        leaves = [metadata.schema.column(i) for i in range(metadata.num_columns)]
        present = set(metadata.schema.to_arrow_schema().names)
        try:
            # repeated strings stay a dictionary until it is known how long they are together
            with pq.ParquetFile(
                file,
                metadata=metadata,
                read_dictionary=[leaf.path for leaf in leaves if leaf.logical_type.type == "STRING"],
                pre_buffer=False,
                buffer_size=1 << 20,
                page_checksum_verification=True,
            ) as parquet:
                names = [field.name for field in wanted if field.name in present]
                groups = _groups(file, schema, filter) if filter is not None else range(metadata.num_row_groups)
                _check_pages(path, file, metadata, groups, names)
                for batch in parquet.iter_batches(_batch_rows(metadata), row_groups=groups, columns=names):
                    yield from _decoded(batch, wanted)
        except (pa.ArrowException, OSError) as error:
            raise damaged(path, str(error).split("\n")[0]) from error


def _open(path: Path) -> BinaryIO:
    try:
        return open_regular(path)
    except FileNotFoundError as error:
        raise damaged(path, "it is missing") from error
    except InputError as error:
        raise damaged(path, error.message) from error
    except OSError as error:
        raise damaged(path, error.strerror or str(error)) from error


def _footer(path: Path, file: BinaryIO, schema: pa.Schema) -> pq.FileMetaData:
    """The footer, once it is known to promise what `schema` has and what a file of this size can hold."""
    size = file.seek(0, 2)
    try:
        metadata = pq.read_metadata(file)
        found = metadata.schema.to_arrow_schema()
    except (pa.ArrowException, OSError) as error:
        raise damaged(path, str(error).split("\n")[0]) from error
    unknown = [n for n in schema.names if n in found.names and found.field(n).type != schema.field(n).type]
    required = [f.name for f in schema if not f.nullable and f.name not in found.names]
    if required or unknown or len(set(found.names)) < len(found.names):
        raise damaged(path, f"its columns are not driftscope's (see {', '.join((required + unknown)[:3])})")
    if metadata.num_rows > MAX_ROWS + MAX_ROWS_PER_BYTE * size:
        raise damaged(path, f"{size:,} bytes cannot hold the {metadata.num_rows:,} rows that it claims")
    limit = MAX_GROUP_BYTES + MAX_GROUP_RATIO * size
    for number in range(metadata.num_row_groups):
        claimed = _group_bytes(metadata.row_group(number))
        if claimed > limit:
            raise damaged(path, f"{size:,} bytes stand for {claimed:,} bytes of data; {limit:,} are allowed")
    return metadata


def _check_pages(
    path: Path, file: BinaryIO, metadata: pq.FileMetaData, groups: Iterable[int], names: Sequence[str]
) -> None:
    for group in map(metadata.row_group, groups):
        for column in map(group.column, range(group.num_columns)):
            if column.path_in_schema.split(".")[0] in names and (fault := fault_of_pages(file, column)):
                raise damaged(path, f"{column.path_in_schema}: {fault}")


def _group_bytes(group: Any) -> int:
    """What a row group can take in memory at once: its pages, or its longest list if one row held all values."""
    total = 0
    for number in range(group.num_columns):
        column = group.column(number)
        width = {"INT64": 8, "DOUBLE": 8, "INT96": 12}.get(column.physical_type, 4)
        in_lists = max(0, column.num_values - group.num_rows + 1) * width
        total += max(column.total_uncompressed_size, in_lists)
    return total


def _batch_rows(metadata: pq.FileMetaData) -> int:
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    row_bytes = max((_group_bytes(group) / group.num_rows for group in groups if group.num_rows), default=1.0)
    return max(1, min(BATCH_ROWS, int(BATCH_BYTES / max(row_bytes, 1.0))))


def _groups(file: BinaryIO, schema: pa.Schema, filter: pc.Expression) -> list[int]:
    """Numbers of the row groups in which `filter` may hold."""
    fragment = ds.ParquetFileFormat().make_fragment(file)
    kept = fragment.split_by_row_group(filter, schema=schema)
    return [group.id for part in kept for group in part.row_groups]


def _decoded(batch: pa.RecordBatch, wanted: Sequence[pa.Field]) -> Iterator[pa.RecordBatch]:
    """The batch with these columns, strings as strings, in pieces of about BATCH_BYTES."""
    end_bytes = np.cumsum(sum((_text_bytes(column) for column in batch.columns), np.zeros(batch.num_rows, np.int64)))
    begin = 0
    while begin < batch.num_rows:
        before = end_bytes[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(end_bytes, before + BATCH_BYTES, side="right")))
        piece = batch.slice(begin, end - begin)
        columns = [
            _plain(piece.column(f.name), f.type) if f.name in piece.schema.names else pa.nulls(piece.num_rows, f.type)
            for f in wanted
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=pa.schema(wanted))
        begin = end


def _text_bytes(column: pa.Array) -> np.ndarray:
    """Bytes of the strings of each row, int64 [row]; a string counts as often as it occurs."""
    rows = np.arange(len(column))
    num_rows = len(column)
    if pa.types.is_list(column.type):
        rows, column = pc.list_parent_indices(column).to_numpy(), pc.list_flatten(column)
    if not pa.types.is_dictionary(column.type):
        return np.zeros(num_rows, np.int64)
    lengths = pc.fill_null(pc.binary_length(column.dictionary).take(column.indices), 0).to_numpy(zero_copy_only=False)
    return np.bincount(rows, lengths, num_rows).astype(np.int64)


def _plain(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_list(column.type) and pa.types.is_dictionary(column.type.value_type):
        offsets = pc.subtract(column.offsets, column.offsets[0])
        leaves = pc.list_flatten(column).dictionary_decode()
        column = pa.ListArray.from_arrays(offsets, leaves, mask=pc.is_null(column))
    elif pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.cast(kind)


def damaged(path: Path, what: str) -> RunError:
    """The error of a part that cannot be read."""
    run = path.parent if path.parent.suffix == RUN_SUFFIX else path.parent.parent
    return RunError(
        f"this part of the run cannot be read: {what}",
        code="unreadable_part",
        where=str(path),
        remedy=f"`driftscope runs recover {run}` sets it aside and keeps all the others.",
    )
