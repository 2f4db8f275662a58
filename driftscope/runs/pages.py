"""Are the pages of a Parquet file as large as its footer says? Looked at before a library makes room for them.

A page's header has sizes of its own, which Arrow and others believe: one changed byte in it can ask for gigabytes. Knows
the headers only (Thrift's compact protocol, `PageHeader` of parquet.thrift), nothing of what pages hold.
"""

from __future__ import annotations

from typing import Any, BinaryIO

_HEADER_BYTES = (
    512,
    1 << 16,
    1 << 24,
)  # tried one after the other: a header holds the page's smallest and largest value
_DATA_PAGES = {0: 5, 3: 8}  # page type -> field of PageHeader with its own header: data page, data page v2
_DICTIONARY_PAGE, _DICTIONARY_HEADER = 2, 7
_MIN_VALUE_BYTES = 4  # of a value in a dictionary: a number, or the length of a text
_MAX_NESTING = 8


def fault_of_pages(file: BinaryIO, column: Any) -> str | None:
    """What contradicts the footer in one column chunk (`pyarrow.parquet.ColumnChunkMetaData`); None: nothing."""
    at = column.data_page_offset
    if column.dictionary_page_offset is not None:
        at = min(at, column.dictionary_page_offset)
    end = at + column.total_compressed_size
    num_values, num_bytes = 0, 0
    while at < end and num_values < column.num_values:
        try:
            header, length = _header(file, at)
            kind, uncompressed, compressed = header[1], header[2], header[3]
            if kind == _DICTIONARY_PAGE and header[_DICTIONARY_HEADER][1] * _MIN_VALUE_BYTES > uncompressed:
                return "a dictionary claims more values than it has bytes"
            if kind in _DATA_PAGES:
                in_page = header[_DATA_PAGES[kind]][1]
                if in_page < 0:
                    return "a page has a negative number of values"
                num_values += in_page
        except (LookupError, TypeError, ValueError, OSError):
            return "a page's header cannot be read"
        if uncompressed < 0 or compressed < 0:
            return "a page has a negative size"
        num_bytes += length + uncompressed
        at += length + compressed
    if at > end or num_values != column.num_values or num_bytes > column.total_uncompressed_size:
        return "its pages are not as large as its footer says"
    return None


def _header(file: BinaryIO, at: int) -> tuple[dict[int, Any], int]:
    """The fields of the header that starts there, and how many bytes it takes. IndexError where it does not end."""
    for size in _HEADER_BYTES:
        file.seek(at)
        data = file.read(size)
        try:
            return _struct(data, 0, _MAX_NESTING)
        except IndexError:
            if len(data) < size:
                raise
    raise IndexError


def _struct(data: bytes, at: int, depth: int) -> tuple[dict[int, Any], int]:
    if not depth:
        raise ValueError
    fields: dict[int, Any] = {}
    field = 0
    while (head := data[at]) != 0:
        at += 1
        if head >> 4:
            field += head >> 4
        else:
            field, at = _integer(data, at)
        fields[field], at = _value(data, at, head & 15, depth)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (1, 2):  # true, false
        return kind == 1, at
    if kind == 3:  # a byte
        return data[at], at + 1
    if kind in (4, 5, 6):
        return _integer(data, at)
    if kind == 8:  # bytes, which nothing here needs
        length, at = _varint(data, at)
        if at + length > len(data):
            raise IndexError
        return None, at + length
    if kind == 12:
        return _struct(data, at, depth - 1)
    raise ValueError  # doubles, lists, sets and maps are in no page header


def _integer(data: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError
