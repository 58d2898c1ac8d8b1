"""How large the pages of a Parquet file become in memory, from the headers of the pages themselves.

A Parquet file is a list of compressed pages. What its footer says about their sizes is only said: the reader allocates
what each page's own header claims, so a file of a kilobyte can ask for gigabytes. `largest_page` walks the headers,
which are small structs in Thrift's compact protocol, without unpacking a page, and refuses what would grow absurdly.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Any

from airlock.data.limits import check_bytes, check_ratio, damaged

_STOP, _YES, _NO, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 0, 1, 2, 3, 7, 8, 9, 10, 12
_INTEGERS = (4, 5, 6)
_DEEP = 16  # structs within structs


def largest_page(path: Path, metadata: Any, columns: Collection[str], content: bytes | None = None) -> int:
    """The size of the largest page of these columns once unpacked, after checking all of them together.

    Args:
        path: The file.
        metadata: Its footer, as pyarrow reads it.
        columns: The names of the columns that will be read.
        content: What is in the file, if it was read already.

    Raises:
        DataError: They would need too much memory.
        FormatError: A page's header cannot be read.
    """
    largest, total, packed = 0, 0, path.stat().st_size if content is None else len(content)
    with path.open("rb") if content is None else io.BytesIO(content) as stream:
        for group in range(metadata.num_row_groups):
            row_group = metadata.row_group(group)
            for place in range(row_group.num_columns if row_group.num_rows else 0):
                chunk = row_group.column(place)
                if chunk.path_in_schema.split(".")[0] in columns:
                    for size in _pages(stream, chunk, path):
                        largest, total = max(largest, size), total + size
                        check_bytes(path, total)
                        check_ratio(path, packed, total)
    return largest


def _pages(stream: IO[bytes], chunk: Any, path: Path) -> Iterator[int]:
    """The unpacked size of every page of a column chunk."""
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < (chunk.dictionary_page_offset or 0) < start:
        start = chunk.dictionary_page_offset
    at, end = start, start + chunk.total_compressed_size
    while at < end:
        stream.seek(at)
        fields = _struct(stream, path)
        unpacked, packed = fields.get(2, -1), fields.get(3, -1)
        if unpacked < 0 or packed < 0:
            raise _unreadable(path)
        yield unpacked
        at = stream.tell() + packed


def _struct(stream: IO[bytes], path: Path, depth: int = 0) -> dict[int, int]:
    """The whole numbers of a struct by field; everything else in it is passed over."""
    if depth > _DEEP:
        raise _unreadable(path)
    found: dict[int, int] = {}
    field = 0
    while (head := _byte(stream, path)) != _STOP:
        kind = head & 15
        field = field + (head >> 4) if head >> 4 else _zigzag(stream, path)
        if kind in _INTEGERS:
            found[field] = _zigzag(stream, path)
        elif kind not in (_YES, _NO):  # a truth value is its own kind
            _skip(stream, kind, path, depth)
    return found


def _skip(stream: IO[bytes], kind: int, path: Path, depth: int) -> None:
    """Pass over one value that is not needed."""
    if kind in (_BYTE, _YES, _NO):
        _byte(stream, path)
    elif kind in _INTEGERS:
        _varint(stream, path)
    elif kind == _DOUBLE:
        stream.seek(8, 1)
    elif kind == _BINARY:
        stream.seek(_varint(stream, path), 1)
    elif kind == _STRUCT:
        _struct(stream, path, depth + 1)
    elif kind in (_LIST, _SET):
        head = _byte(stream, path)
        for _ in range(head >> 4 if head >> 4 < 15 else _varint(stream, path)):
            _skip(stream, head & 15, path, depth + 1)
    else:  # a map, which no page header has, or no kind at all
        raise _unreadable(path)


def _byte(stream: IO[bytes], path: Path) -> int:
    found = stream.read(1)
    if not found:
        raise _unreadable(path)
    return found[0]


def _varint(stream: IO[bytes], path: Path) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = _byte(stream, path)
        value |= (byte & 127) << shift
        if byte < 128:
            return value
    raise _unreadable(path)


def _zigzag(stream: IO[bytes], path: Path) -> int:
    value = _varint(stream, path)
    return (value >> 1) ^ -(value & 1)


def _unreadable(path: Path) -> Exception:
    return damaged(path, "a Parquet file", "a page without a readable header")
