"""A page's header is compared with the footer before room is made for the page."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from driftscope.runs.pages import fault_of_pages

SCHEMA = pa.schema([("name", pa.string()), ("number", pa.int32()), ("shares", pa.list_(pa.float32()))])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rows = [{"name": f"n{i % 9}", "number": i, "shares": [0.5] * (i % 4)} for i in range(5_000)]
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.Table.from_pylist(rows, SCHEMA), path, compression="zstd", data_page_size=2_000, row_group_size=2_000
    )
    return path


def faults(path: Path) -> list[str | None]:
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    with path.open("rb") as opened:
        return [fault_of_pages(opened, group.column(i)) for group in groups for i in range(group.num_columns)]


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_whole_files_have_no_fault(file: Path, version: str) -> None:
    assert faults(file) == [None] * 9
    table = pq.read_table(file)
    for compression in ("none", "snappy", "zstd"):
        pq.write_table(
            table,
            file,
            compression=compression,
            data_page_version=version,
            data_page_size=1_000,
            write_page_checksum=True,
            use_dictionary=compression == "zstd",
        )
        assert faults(file) == [None] * 3


def test_a_header_that_claims_more(file: Path) -> None:
    """The sizes of the first page, in the zigzag form of Thrift: each made larger by one."""
    chunk = pq.read_metadata(file).row_group(0).column(1)
    at = chunk.dictionary_page_offset or chunk.data_page_offset
    data = bytearray(file.read_bytes())
    assert data[at] == 0x15  # field 1, an integer: the page's type
    assert data[at + 2] == 0x15  # field 2: its size
    data[at + 3] += 2
    file.write_bytes(data)
    assert faults(file)[1] is not None
    assert faults(file)[0] is None


@pytest.mark.parametrize("num_lost", range(1, 9))
def test_headers_that_are_none(file: Path, num_lost: int) -> None:
    data = file.read_bytes()
    file.write_bytes(data[num_lost:])
    assert None not in faults(file)
