"""The user's own tables: CSV (RFC 4180, UTF-8, a header line) and Parquet, encoded by the public schema.

In: a path and the `DataConfig` with label, classes and columns. Out: float32 features and labels. Columns of the file
that the schema does not name are not used; of a Parquet file they are not even read. Rows are taken in blocks, so that
the text of a large file is never in memory as a whole.
"""

from __future__ import annotations

import csv
import difflib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from airlock.config import Column, DataConfig
from airlock.data.limits import check_bytes, damaged, reading
from airlock.data.schema import Cells, encode, labels, missing, width
from airlock.data.validate import Raw
from airlock.errors import ConfigError, DataError, FormatError

_BLOCK_ROWS = 8192


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
    if not width(data.columns):
        raise ConfigError("at least one category in data.columns", "none", do="List the categories.")
    return (width(data.columns),)


def read_csv(path: Path, data: DataConfig, classes: tuple[str, ...]) -> Raw:
    """All records of a CSV file."""
    return _encode(_csv_blocks(path, data), path, data, classes)


def read_parquet(path: Path, data: DataConfig, classes: tuple[str, ...]) -> Raw:
    """All records of a Parquet file."""
    return _encode(_parquet_blocks(path, data), path, data, classes)


def _encode(blocks: Iterator[dict[str, Cells]], path: Path, data: DataConfig, classes: tuple[str, ...]) -> Raw:
    label, features = str(data.label), width(data.columns)
    xs, ys, row = [np.empty((0, features), np.float32)], [np.empty(0, np.int64)], 1
    for cells in blocks:
        ys.append(labels(label, cells[label], classes, row))
        row += len(ys[-1])
        check_bytes(path, 4 * features * (row - 1))
        xs.append(encode(data.columns, cells, row - len(ys[-1])))
    return np.concatenate(xs), np.concatenate(ys)


def _csv_blocks(path: Path, data: DataConfig) -> Iterator[dict[str, Cells]]:
    with reading(path, "a CSV file in UTF-8"):
        check_bytes(path, path.stat().st_size)
        with path.open(encoding="utf-8-sig", newline="") as stream:
            rows = csv.reader(stream, strict=True)
            header = [name.strip() for name in next(rows, [])]
            if len(header) == 1 and ";" in header[0]:
                raise FormatError(f"commas between the columns of {path}", "semicolons", do="Save it with commas.")
            places = _find_columns(header, data, path)
            numbered = enumerate((row for row in rows if row), 1)
            while block := list(islice(numbered, _BLOCK_ROWS)):
                for number, row in block:
                    if len(row) != len(header):
                        raise damaged(path, f"{len(header)} cells in row {number}", f"{len(row)}")
                yield {name: [row[place] for _, row in block] for name, place in places.items()}


def _parquet_blocks(path: Path, data: DataConfig) -> Iterator[dict[str, Cells]]:
    import pyarrow.parquet as pq

    with reading(path, "a Parquet file"):
        check_bytes(path, path.stat().st_size)
        with pq.ParquetFile(path) as file:
            names = list(_find_columns(file.schema_arrow.names, data, path))
            groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
            check_bytes(path, sum(group.total_byte_size for group in groups))
            check_bytes(path, 4 * width(data.columns) * file.metadata.num_rows)
            row = 1
            for batch in file.iter_batches(_BLOCK_ROWS, columns=names, use_threads=False):
                yield {name: _cells(name, batch.column(name), data.columns.get(name), row) for name in names}
                row += batch.num_rows


def _cells(name: str, values: Any, column: Column | None, first_row: int) -> Cells:
    """One column of a Parquet batch: numbers for a declared number, text for a category or the label."""
    import pyarrow as pa

    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    values = values.cast(kind)
    if column is None or column.categories is not None:
        cells: list[str | None] = values.cast(pa.string()).to_pylist()
        return cells
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean)
    if not any(test(kind) for test in tests):
        raise DataError(
            f"numbers in column '{name}'", f"type {kind}", do="Convert the column, or declare its categories."
        )
    if values.null_count:
        raise missing(name, first_row + int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0]))
    if pa.types.is_boolean(kind):
        values = values.cast(pa.uint8())
    return np.asarray(values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), np.float64)


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
