"""The user's own tables: CSV (RFC 4180, UTF-8, a header line) and Parquet, encoded by the public schema.

In: a path and the `DataConfig` with label, classes and columns. Out: float32 features and labels. Columns of the file
that the schema does not name are not used; of a Parquet file they are not even read. Rows are taken in blocks, so that
the text of a large file is never in memory as a whole.

A header without a declared column, or a column of another type, is refused. A row that does not fit the schema is left
out by itself (`Faults`): one with another number of cells, with quotes that do not pair, with bytes that are no UTF-8.
"""

from __future__ import annotations

import csv
import difflib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from airlock.config import Column, DataConfig
from airlock.data.limits import check_bytes, reading
from airlock.data.remarks import Fault, Faults
from airlock.data.schema import Cells, encode, labels, missing, width
from airlock.data.validate import Raw
from airlock.errors import ConfigError, DataError, FormatError

_BLOCK_ROWS = 8192
_LARGEST_CELL = 2**31 - 1  # a file may not be larger than `limits` says, and so no cell


def shape(path: Path, data: DataConfig) -> tuple[int, ...]:
    """The shape of a record, from the schema alone."""
    if not data.columns:
        raise ConfigError(
            "a public schema in data.columns",
            "none",
            "Ranges and categories taken from the records would leak them.",
            'For each column say { min = 0, max = 120 } or ["red", "green"].',
        )
    if data.label is None:
        raise ConfigError("the label column's name in data.label", "none", do="Add a line label = '...'.")
    if data.label in data.columns:
        raise ConfigError(
            "the label column outside data.columns",
            f"'{data.label}' in both",
            "A model that sees the label learns nothing.",
            "Remove it from data.columns.",
        )
    empty = next((name for name, column in data.columns.items() if column.categories == () and not column.other), None)
    if empty is not None:
        raise ConfigError(
            f"at least one category in data.columns for '{empty}'",
            "none",
            "Every record would be left out.",
            "List the categories, or set other = true.",
        )
    return (width(data.columns),)


def read_csv(path: Path, data: DataConfig, classes: tuple[str, ...]) -> Raw:
    """All records of a CSV file."""
    faults, before = Faults(), csv.field_size_limit(_LARGEST_CELL)
    try:
        return _encode(_csv_blocks(path, data, faults), path, data, classes, faults)
    finally:
        csv.field_size_limit(before)


def read_parquet(path: Path, data: DataConfig, classes: tuple[str, ...]) -> Raw:
    """All records of a Parquet file."""
    faults = Faults()
    return _encode(_parquet_blocks(path, data, faults), path, data, classes, faults)


def _encode(
    blocks: Iterator[dict[str, Cells]], path: Path, data: DataConfig, classes: tuple[str, ...], faults: Faults
) -> Raw:
    label, features = str(data.label), width(data.columns)
    xs, ys, first = [np.empty((0, features), np.float32)], [np.empty(0, np.int64)], 0
    for cells in blocks:
        ys.append(labels(label, cells[label], classes, faults, first))
        check_bytes(path, 4 * features * (first + len(ys[-1])))
        xs.append(encode(data.columns, cells, faults, first))
        first += len(ys[-1])
    return Raw(np.concatenate(xs), np.concatenate(ys), faults)


def _csv_blocks(path: Path, data: DataConfig, faults: Faults) -> Iterator[dict[str, Cells]]:
    with reading(path, "a CSV file in UTF-8"):
        check_bytes(path, path.stat().st_size)
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
            header = [name.strip() for name in next(csv.reader(stream, strict=True), [])]
            if any("\udc80" <= letter <= "\udcff" for name in header for letter in name):
                raise FormatError(f"a header in UTF-8 in {path}", "other bytes", do="Save the file as UTF-8.")
            if len(header) == 1 and ";" in header[0]:
                raise FormatError(f"commas between the columns of {path}", "semicolons", do="Save it with commas.")
            places = _find_columns(header, data, path)
            misshapen = Fault(f"not {len(header)} cells, as the header has", "Correct the line and its quotes.")
            rows, first = csv_rows(stream, len(header)), 0
            while block := list(islice(rows, _BLOCK_ROWS)):
                faults.add(misshapen, (first + i for i, row in enumerate(block) if row is None))
                yield {name: [row[place] if row else None for row in block] for name, place in places.items()}
                first += len(block)


def csv_rows(stream: Iterator[str], cells: int) -> Iterator[list[str] | None]:
    """The rows of so many cells in lines of CSV; None for one that is something else. Empty lines are no rows.

    A row goes on over several lines where quotes enclose a line break. Where that comes to nothing (the quotes never
    pair, or the cells are not so many), its first line alone is given up and reading goes on with the second. So a
    record with a stray quote leaves itself out, and not the records behind it. What a correct writer wrote is never
    taken apart: all its quotes pair and all its rows have as many cells as the header, however long a cell is.
    """
    ahead: deque[str] = deque()
    taken: list[str] = []

    def lines() -> Iterator[str]:
        while (line := ahead.popleft() if ahead else next(stream, None)) is not None:
            taken.append(line)
            yield line

    reader = csv.reader(lines(), strict=True)
    while True:
        taken.clear()
        try:
            row: list[str] | None = next(reader, None)
        except csv.Error:
            row = None
        if not taken:
            return
        if row == []:
            continue
        if row is None or len(row) != cells:
            ahead.extendleft(reversed(taken[1:]))
            row, reader = None, csv.reader(lines(), strict=True)
        yield row


def _parquet_blocks(path: Path, data: DataConfig, faults: Faults) -> Iterator[dict[str, Cells]]:
    import pyarrow.parquet as pq

    with reading(path, "a Parquet file"):
        check_bytes(path, path.stat().st_size)
        with pq.ParquetFile(path) as file:
            names = list(_find_columns(file.schema_arrow.names, data, path))
            groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
            check_bytes(path, sum(group.total_byte_size for group in groups))
            check_bytes(path, 4 * width(data.columns) * file.metadata.num_rows)
            first = 0
            for batch in file.iter_batches(_BLOCK_ROWS, columns=names, use_threads=False):
                columns = {name: (batch.column(name), data.columns.get(name)) for name in names}
                yield {name: _cells(name, *column, faults, first) for name, column in columns.items()}
                first += batch.num_rows


def _cells(name: str, values: Any, column: Column | None, faults: Faults, first: int) -> Cells:
    """One column of a Parquet batch: numbers for a declared number, text for a category or the label."""
    import pyarrow as pa

    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    values = values.cast(kind)
    if column is None or column.categories is not None:
        return _text(name, values, kind)
    if not _is_number(kind):
        raise DataError(
            f"numbers in column '{name}'", f"type {kind}", do="Convert the column, or declare its categories."
        )
    if values.null_count:
        faults.add(missing(name), first + np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False)))
    if pa.types.is_boolean(kind):
        values = values.cast(pa.uint8())
    return np.asarray(values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), np.float64)


def _text(name: str, values: Any, kind: Any) -> list[str | None]:
    """Cells as text, one by one: bytes that are no UTF-8 are no declared category, and end nothing."""
    import pyarrow as pa

    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    if not any(test(kind) for test in tests):
        if not (_is_number(kind) or pa.types.is_null(kind)):
            raise DataError(f"text or numbers in column '{name}'", f"type {kind}", do="Convert the column to text.")
        values = values.cast(pa.string())
    found = values.cast(pa.large_binary()).to_pylist()
    return [None if cell is None else cell.decode("utf-8", "surrogateescape") for cell in found]


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean)
    return any(test(kind) for test in tests)


def _find_columns(header: Sequence[str], data: DataConfig, path: Path) -> Mapping[str, int]:
    """Where the label and the columns of the schema stand in the file."""
    places = {}
    for name in (str(data.label), *data.columns):
        if header.count(name) != 1:
            near = difflib.get_close_matches(name, header, n=1)
            raise DataError(
                f"one column '{name}' in {path}",
                "two of that name" if name in header else "none",
                "The config declares it.",
                f"Did you mean '{near[0]}'?" if near and name not in header else "Correct the config or the file.",
            )
        places[name] = list(header).index(name)
    return places
