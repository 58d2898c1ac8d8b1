"""Tables: CSV (RFC 4180, UTF-8, a header line) and Parquet, encoded by the public schema.

In: a path and the `DataConfig` with label, classes and columns. Out: float32 features and labels. Columns of the file
that the schema does not name are not used; in a Parquet file they are not even read. Rows are processed in blocks, so
that the text of a large file is never in memory as a whole.

A header that lacks a declared column, or a column of another type, is refused. A single row that does not fit the
schema is left out (`Faults`): one with the wrong number of cells, with unbalanced quotes, or with bytes that are not
UTF-8.

Encoding by the public schema: cells in, numbers out; nothing is fitted to the records.

A number is clamped to its declared [min, max] and scaled to [0, 1], linearly or by its logarithm; a date is a number of
days; a category becomes one-hot by its declared values. An empty cell becomes what the schema declares, or leaves its
row out. The same cell always gives the same numbers, whatever the other records are, so encoding
costs no privacy budget. A row with a cell that does not fit the schema is added to the `Faults` and left out; the
holder is told its number and the column, never the cell's content.
"""

from __future__ import annotations

import csv
import difflib
import functools
import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from airlock.config import STEPS, Column, DataConfig, TargetRange, as_number
from airlock.data.limits import MEMORY, Storage, check_bytes, check_ratio, reading
from airlock.data.parquet_pages import largest_page
from airlock.data.remarks import Fault, Faults
from airlock.data.text import TOKENS, open_tokenizer
from airlock.data.validate import Raw
from airlock.errors import ConfigError, DataError, FormatError

# Encoding by the schema.

_POINT = re.compile(r"([+-]?[0-9]+)\.0+")

Cells = Sequence[str | None] | NDArray[np.float64]
"""One column of a block of rows: text, with None for missing cells, or numbers, with NaN for missing cells."""


def width(columns: Mapping[str, Column]) -> int:
    """How many features the columns are encoded as."""
    return sum(column.width for column in columns.values())


def encode(
    columns: Mapping[str, Column],
    cells: Mapping[str, Cells],
    faults: Faults,
    first: int = 0,
    clamped: Faults | None = None,
) -> NDArray[np.float32]:
    """One block of rows as features, in the order of the schema.

    Args:
        columns: The schema.
        cells: The cells of each column.
        faults: Collects the rows that do not fit; what is returned for them has no meaning.
        first: The position of the first row in the file.
        clamped: Collects the rows with a value that was clamped to its range, if anyone asks.
    """
    count = len(next(iter(cells.values())))
    block = np.zeros((count, width(columns)), np.float32)
    at = 0
    for name, column in columns.items():
        if column.categories is None:
            found, empty = _filled(name, cells[name], column, faults, first)
            _outside(name, found, column, faults if column.outside == "refuse" else clamped, first)
            block[:, at] = _scale(found, column)
            if column.flagged:
                block[:, at + 1] = empty
        else:
            places = _places(name, cells[name], column, faults, first)
            block[np.arange(count), at + places] = 1
        at += column.width
    return block


def labels(name: str, cells: Cells, classes: tuple[str, ...], faults: Faults, first: int = 0) -> NDArray[np.int64]:
    """Class names as positions."""
    known = Fault(f"not a declared class in column '{name}'", "Correct the cells or data.classes.")
    return _places(name, cells, Column(categories=classes), faults, first, known)


def targets(name: str, cells: Cells, target: TargetRange, faults: Faults, first: int = 0) -> NDArray[np.int64]:
    """Numbers to predict, as whole steps of their declared range: clamped to it, or their records left out."""
    column = Column(min=target.min, max=target.max, outside=target.outside)
    nothing = Fault(f"an empty cell in column '{name}'", "A record without its target cannot be learnt from.")
    found, _ = _filled(name, cells, column, faults, first, nothing)
    _outside(name, found, column, faults if target.outside == "refuse" else None, first)
    return np.rint(STEPS * _scale(found, column)).astype(np.int64)


def _filled(
    name: str, cells: Cells, column: Column, faults: Faults, first: int, nothing: Fault | None = None
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The cells as finite numbers, with what the schema declares in place of missing ones, and which these are."""
    values, empty, wrong = _parsed(cells, column)
    if column.missing is None:
        text = not isinstance(cells, np.ndarray)  # in an array, NaN may also be a number that is none
        faults.add(nothing or missing(name), first + np.flatnonzero(empty & text))
        faults.add(_not_finite(name), first + np.flatnonzero(empty & (not text)))
    what = "a date such as 2024-01-31" if column.sort == "date" else "a number"
    faults.add(Fault(f"not {what} in column '{name}'", "Correct the cells, or declare categories."), first + wrong)
    infinite = ~np.isfinite(values) & ~empty
    faults.add(_not_finite(name), first + np.flatnonzero(infinite))
    values[infinite] = column.low
    values[empty] = column.low if column.missing is None or column.flagged else as_number(column.missing)  # type: ignore[arg-type]
    return values, empty


def _parsed(cells: Cells, column: Column) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.int64]]:
    """Numbers, where a cell is missing, and the positions of cells that are no numbers; 0 there."""
    if isinstance(cells, np.ndarray):
        values = cells.astype(np.float64, copy=True)
        return values, np.isnan(values), np.empty(0, np.int64)
    values, empty, wrong = np.zeros(len(cells), np.float64), np.zeros(len(cells), bool), []
    for i, cell in enumerate(cells):
        if cell is None or not cell.strip():
            empty[i] = True
            continue
        try:
            values[i] = as_days(cell) if column.sort == "date" else float(cell if "_" not in cell else "")
        except (ValueError, OverflowError):
            wrong.append(i)
    if column.missing is not None:  # where an empty cell has a meaning, so has one that says NaN
        empty |= np.isnan(values)
    return values, empty, np.array(wrong, np.int64)


def as_days(cell: str) -> float:
    """A date in ISO form, with or without a time of day, as days since 1970-01-01; in UTC where there is a zone.

    Raises:
        ValueError: It is something else.
        OverflowError: It is before the first day that there is, or after the last.
    """
    moment = datetime.fromisoformat(cell.strip())
    return as_number((moment if moment.tzinfo is None else moment.astimezone(UTC)).date())


def missing(name: str) -> Fault:
    """An empty cell: a fill value must not be derived from the records."""
    return Fault(
        f"an empty cell in column '{name}'",
        'Declare what it stands for, such as missing = 60 or missing = "indicator".',
    )


def _not_finite(name: str) -> Fault:
    return Fault(
        f"NaN or infinity in column '{name}'",
        "Correct the cells, or declare what a missing value stands for, such as missing = 60.",
    )


def _outside(name: str, values: NDArray[np.float64], column: Column, told: Faults | None, first: int) -> None:
    """Tell which values are outside the declared range."""
    if told is not None:
        beyond = np.flatnonzero((values < column.low) | (values > column.high))
        do = "Correct the cells or the range." if column.outside == "refuse" else "They count as the nearest end."
        told.add(Fault(f"a value outside the declared range in column '{name}'", do), first + beyond)


def _scale(values: NDArray[np.float64], column: Column) -> NDArray[np.float64]:
    """On [0, 1]; without a sign of zero, which text may have lost: a record's part follows from every bit of it."""
    above, span = np.clip(values, column.low, column.high) - column.low + 0.0, column.high - column.low
    return np.log1p(above) / np.log1p(span) if column.scale == "log" else above / span


def _places(
    name: str, cells: Cells, column: Column, faults: Faults, first: int, unknown: Fault | None = None
) -> NDArray[np.int64]:
    """The position of each cell among the slots of its column; 0 where a row is at fault."""
    index, rest, none = slots(column)
    places = np.zeros(len(cells), np.int64)
    empty: list[int] = []
    wrong: list[int] = []
    for i, cell in enumerate(cells):
        text = "" if cell is None else str(cell)
        place = index.get(text, index.get(text.strip()))
        if place is None:
            place = index.get(without_point(text), rest if text.strip() else none)
        if place is not None:
            places[i] = place
        else:
            (wrong if text.strip() else empty).append(first + i)
    undeclared = Fault(f"not a declared category in column '{name}'", "Declare the category, or set other = true.")
    faults.add(missing(name), empty)
    faults.add(unknown or undeclared, wrong)
    return places


def without_point(cell: str) -> str:
    """3.0 as 3: programs that write tables give every number a point where one number of the column is missing."""
    found = _POINT.fullmatch(cell.strip())
    return found[1] if found else cell


def whole(value: float) -> str:
    """A number as text; a whole one without a decimal point, in whatever type it came."""
    return str(int(value)) if math.isfinite(value) and value == int(value) else repr(value)


def slots(column: Column) -> tuple[dict[str, int], int | None, int | None]:
    """The slot of each declared category, of one that is not declared, and of an empty cell; None leaves a row out."""
    index = {value: place for place, value in enumerate(column.categories or ())}
    rest = len(index) if column.other else None
    if column.missing is None:
        return index, rest, rest
    return index, rest, column.width - 1 if column.flagged else index[str(column.missing)]


def declared(data: DataConfig, name: str) -> Column | None:
    """What is declared of a column of the file: as a feature, or as the number to predict; None for text."""
    if data.target is not None and name == data.label:
        return Column(min=data.target.min, max=data.target.max, outside=data.target.outside)
    return data.columns.get(name)


# Files.

_BLOCK_ROWS, _BLOCK_BYTES = 8192, 2**28
_CLOSING = '"\n'  # ends a quotation, and with it the row
DECLARED = "The config declares it."  # why a column has to be there
_LARGEST_CELL = 2**31 - 1  # the file size is bounded by `limits`, and with it every cell


def shape(path: Path, data: DataConfig) -> tuple[int, ...]:
    """The shape of a record, from the schema alone."""
    if data.text is None and not data.columns:
        raise ConfigError(
            "a public schema in data.columns",
            "none",
            "Ranges and categories inferred from the records would leak information about them.",
            'For each column, write { min = 0, max = 120 } or ["red", "green"] or name texts in data.text.',
        )
    if data.label is None and not data.documents:
        raise ConfigError("the label column's name in data.label", "none", do="Add a line label = '...'.")
    if data.label in data.columns:
        raise ConfigError(
            "the label column outside data.columns",
            f"'{data.label}' in both",
            "A model that is given the label learns nothing.",
            "Remove it from data.columns.",
        )
    if data.text is not None and data.text == data.label:
        raise ConfigError(
            "the label column and the column of texts to be two",
            f"'{data.label}' as both",
            "A model that is given the label learns nothing.",
            "Correct data.text or data.label.",
        )
    if data.person is not None and data.person in (data.label, data.text, *data.columns):
        raise ConfigError(
            "the column of data.person outside data.columns, data.text and data.label",
            f"'{data.person}' in both",
            "Whose a record is must be neither learnt from nor predicted.",
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
    return (width(data.columns) if data.text is None else data.tokens or TOKENS,)


def column_names(path: Path) -> tuple[str, ...]:
    """The names in the header of a table: no record is read. The holder declares which of them are public."""
    if path.suffix.lower() == ".csv":
        opened = functools.partial(path.open, encoding="utf-8-sig", errors="surrogateescape", newline="")
        with reading(path, "a CSV file in UTF-8"), opened() as stream:
            return _header(stream, path)
    import pyarrow.parquet as pq

    with reading(path, "a Parquet file"), pq.ParquetFile(path) as file:
        return tuple(file.schema_arrow.names)


def read_csv(path: Path, data: DataConfig, classes: tuple[str, ...], storage: Storage = MEMORY) -> Raw:
    """All records of a CSV file."""
    faults = Faults()
    return encode_blocks(csv_blocks(path, wanted(data), faults), path, data, classes, faults, storage)


def read_parquet(path: Path, data: DataConfig, classes: tuple[str, ...], storage: Storage = MEMORY) -> Raw:
    """All records of a Parquet file."""
    faults = Faults()
    return encode_blocks(parquet_blocks(path, wanted(data), faults), path, data, classes, faults, storage)


def encode_blocks(
    blocks: Iterator[dict[str, Cells]],
    path: Path,
    data: DataConfig,
    classes: tuple[str, ...],
    faults: Faults,
    storage: Storage = MEMORY,
) -> Raw:
    """Blocks of cells by column name, encoded by the declared schema; each record by itself."""
    label, features = data.label, shape(path, data)[0]
    tokenizer = None if data.text is None else open_tokenizer(data)
    ys = [np.empty(0, np.int64)]
    ids: list[str | None] = []

    def encoded() -> Iterator[NDArray[np.float32]]:
        first = 0
        for cells in blocks:
            if data.person is not None:
                ids.extend(None if cell is None else str(cell) for cell in cells[data.person])
            if label is None:
                ys.append(np.zeros(len(cells[str(data.text)]), np.int64))
            elif data.target is None:
                ys.append(labels(label, cells[label], classes, faults, first))
            else:
                ys.append(targets(label, cells[label], data.target, faults, first))
            check_bytes(path, 4 * features * (first + len(ys[-1])))
            if tokenizer is None:
                yield encode(data.columns, cells, faults, first)
            else:
                texts = cast("Sequence[str | None]", cells[str(data.text)])
                yield tokenizer.encode(str(data.text), texts, faults, first)
            first += len(ys[-1])

    x = storage.gather(encoded(), np.empty((0, features), np.float32))
    return Raw(x, np.concatenate(ys), faults, person=None if data.person is None else ids)


def wanted(data: DataConfig) -> dict[str, Column | None]:
    """What is read of a table: the label, the schema's columns or the texts, and the people's identifiers."""
    texts = [name for name in (data.text, data.person) if name is not None]
    label = {} if data.label is None else {data.label: declared(data, data.label)}
    return {**label, **data.columns, **dict.fromkeys(texts)}


def csv_blocks(
    path: Path, wanted: Mapping[str, Column | None], faults: Faults, why: str = DECLARED
) -> Iterator[dict[str, Cells]]:
    """The wanted columns of a CSV file, block by block; a row that does not fit the header is at fault."""
    before = csv.field_size_limit(_LARGEST_CELL)
    try:
        with reading(path, "a CSV file in UTF-8"):
            check_bytes(path, path.stat().st_size)
            with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
                yield from stream_blocks(stream, path, wanted, faults, why)
    finally:
        csv.field_size_limit(before)


def stream_blocks(
    stream: Iterator[str], path: Path, wanted: Mapping[str, Column | None], faults: Faults, why: str = DECLARED
) -> Iterator[dict[str, Cells]]:
    """The same of lines of CSV, from `path` or from what it stands for."""
    header = _header(stream, path)
    places = find_columns(header, wanted, path, why)
    misshapen = Fault(f"not {len(header)} cells like the header", "Correct the line and its quotes.")
    rows, first = csv_rows(stream, len(header)), 0
    while block := list(islice(rows, _BLOCK_ROWS)):
        faults.add(misshapen, (first + i for i, row in enumerate(block) if row is None))
        yield {name: [row[place] if row else None for row in block] for name, place in places.items()}
        first += len(block)


def _header(stream: Iterator[str], path: Path) -> tuple[str, ...]:
    """The names in the first line."""
    header = tuple(name.strip() for name in next(csv.reader(stream, strict=True), []))
    if any("\udc80" <= letter <= "\udcff" for name in header for letter in name):
        raise FormatError(f"a header in UTF-8 in {path}", "other bytes", do="Save the file as UTF-8.")
    if len(header) == 1 and ";" in header[0]:
        raise FormatError(f"commas between the columns of {path}", "semicolons", do="Save it with commas.")
    return header


def csv_rows(stream: Iterator[str], cells: int) -> Iterator[list[str] | None]:
    """The rows with `cells` cells in lines of CSV; None for a row that does not have them. Empty lines are skipped.

    A row spans several lines if quotes enclose a line break. If that fails (the quotes are never closed, or the number
    of cells is wrong), only its first line is dropped and reading continues with the second. So a record with a stray
    quote is itself left out, but not the records after it. Well-formed CSV is never split wrongly: all its quotes are
    balanced and all its rows have as many cells as the header, however long a cell is.

    No line is read more than a few times. Where a quotation that begins in one line leads does not depend on that line,
    so a row that failed tells where every quotation leads that comes by the same lines (`_fates`).
    """
    lines = _Lines(stream)
    reader = lines.reader()
    while True:
        lines.begin()
        row, by_quotes = _next_row(reader)
        if not lines.taken:
            return
        if row == []:
            continue
        if lines.cut:
            reader, fate = lines.reader(), lines.fates[0]
            if row is not None and fate is not None and len(row) + fate == cells:
                lines.read_on()
                continue
            row = None
        elif row is None or len(row) != cells:
            lines.put_back(_fates(lines.taken[1:], row) if by_quotes else [])
            row, reader = None, lines.reader()
        yield row


class _Lines:
    """The lines of a stream for a CSV reader, of which some come again.

    Attributes:
        ahead: Those that come again.
        fates: Of the first of them (`_fates`).
        taken: Those of the current row.
        cut: Whether the current row was ended before a line whose fate is known.
    """

    def __init__(self, stream: Iterator[str]) -> None:
        self._stream = stream
        self.ahead: deque[str] = deque()
        self.fates: deque[int | None] = deque()
        self.taken: list[str] = []
        self.cut = False

    def reader(self) -> Iterator[list[str]]:
        """A reader that begins outside of any quotation."""
        return csv.reader(self._lines(), strict=True)

    def _lines(self) -> Iterator[str]:
        while not (self.taken and self.fates):
            line = self.ahead.popleft() if self.ahead else next(self._stream, None)
            if line is None:
                return
            if self.fates:
                self.fates.popleft()
            self.taken.append(line)
            yield line
        self.cut = True
        yield _CLOSING

    def begin(self) -> None:
        """Begin a row."""
        self.taken.clear()
        self.cut = False

    def put_back(self, fates: Sequence[int | None]) -> None:
        """Drop the first line of a row that failed; the others come again, and this is known about them."""
        self.ahead.extendleft(reversed(self.taken[1:]))
        self.fates.extend(fates)

    def read_on(self) -> None:
        """Read a row that was cut again, to its end."""
        self.ahead.appendleft(self.taken[0])
        self.fates.clear()


def _next_row(reader: Iterator[list[str]]) -> tuple[list[str] | None, bool]:
    """The next row, or None; and whether it only depends on its quotes, not on the size of a cell."""
    try:
        return next(reader, None), True
    except csv.Error as error:
        return None, "limit" not in str(error)


def _fates(lines: Sequence[str], row: list[str] | None) -> list[int | None]:
    """How many more cells a row gets that comes to each of these lines within quotes; None if it never ends.

    Args:
        lines: Those after the first one of a row that failed, each of which begins within quotes.
        row: The row, if it failed by its number of cells; otherwise its quotes did, at the last of the lines.
    """
    if row is None:
        return [None] * len(lines)
    found, more = list[int | None](), 0
    for line in reversed(lines):
        more += len(next(csv.reader((f'"{line}', _CLOSING), strict=True))) - 1 if '"' in line else 0
        found.append(more)
    return found[::-1]


def parquet_blocks(
    path: Path, wanted: Mapping[str, Column | None], faults: Faults, why: str = DECLARED
) -> Iterator[dict[str, Cells]]:
    """The wanted columns of a Parquet file, block by block."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with reading(path, "a Parquet file"):
        check_bytes(path, path.stat().st_size)
        with pq.ParquetFile(path) as file:
            names = list(find_columns(file.schema_arrow.names, wanted, path, why))
            for name in names:  # a type that is not read is refused before anything is
                none = pa.nulls(0, file.schema_arrow.field(name).type)
                arrow_cells(name, none, wanted[name], Faults(), 0)
            decoded = 4 * file.metadata.num_rows * sum(column.width for column in wanted.values() if column)
            check_bytes(path, decoded)
            check_ratio(path, path.stat().st_size, decoded)
            rows, first = _rows_at_a_time(largest_page(path, file.metadata, names)), 0
            for batch in file.iter_batches(rows, columns=names, use_threads=False):
                columns = {name: (batch.column(name), wanted[name]) for name in names}
                yield {name: arrow_cells(name, *column, faults, first) for name, column in columns.items()}
                first += batch.num_rows


def _rows_at_a_time(largest: int) -> int:
    """So many rows that a block of them stays small even if every cell refers to a whole page of text."""
    return max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // max(1, largest)))


def arrow_cells(name: str, values: Any, column: Column | None, faults: Faults, first: int) -> Cells:
    """One column of a batch of Arrow: numbers for a declared number, text for a category, the label or a person."""
    import pyarrow as pa

    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    values = values.cast(kind)
    if column is None or column.categories is not None:
        return _text(name, values, kind)
    if column.sort == "date":
        return _dates(name, values, kind)
    if not _is_number(kind) and (_is_text(kind) or pa.types.is_null(kind)):  # one word makes text of all numbers
        return _text(name, values, kind)
    if not _is_number(kind):
        raise DataError(
            f"numbers in column '{name}'", f"type {kind}", do="Convert the column, or declare its categories."
        )
    if values.null_count and column.missing is None:
        faults.add(missing(name), first + np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False)))
    if pa.types.is_boolean(kind):
        values = values.cast(pa.uint8())
    return np.asarray(values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), np.float64)


def _dates(name: str, values: Any, kind: Any) -> list[str | None]:
    """Cells of a column of dates as text; a time of day is cut off, in UTC where there is a zone."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        whole = values.cast(pa.timestamp("s"), safe=False).to_numpy(zero_copy_only=False)
        return [None if np.isnat(cell) else str(cell)[:10] for cell in whole.astype("datetime64[s]")]
    return (
        _text(name, values, kind) if not pa.types.is_date(kind) else _text(name, values.cast(pa.string()), pa.string())
    )


def _text(name: str, values: Any, kind: Any) -> list[str | None]:
    """Cells as text, one by one: bytes that are not UTF-8 match no declared category and do not stop the load."""
    import pyarrow as pa

    if pa.types.is_floating(kind):
        return [None if cell is None or math.isnan(cell) else whole(cell) for cell in values.to_pylist()]
    if not _is_text(kind):
        if not (_is_number(kind) or pa.types.is_null(kind)):
            raise DataError(f"text or numbers in column '{name}'", f"type {kind}", do="Convert the column to text.")
        values = values.cast(pa.string())
    found = values.cast(pa.large_binary()).to_pylist()
    return [None if cell is None else cell.decode("utf-8", "surrogateescape") for cell in found]


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(test(kind) for test in tests)


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean)
    return any(test(kind) for test in tests)


def find_columns(header: Sequence[str], wanted: Iterable[str], path: Path, why: str = DECLARED) -> Mapping[str, int]:
    """The positions of the wanted columns in a file.

    Raises:
        DataError: One is not there, or there are two of its name.
    """
    places = {}
    for name in wanted:
        if header.count(name) != 1:
            near = difflib.get_close_matches(name, header, n=1)
            raise DataError(
                f"one column '{name}' in {path}",
                "two of that name" if name in header else "none",
                why,
                f"Did you mean '{near[0]}'?" if near and name not in header else "Correct the names of the columns.",
            )
        places[name] = list(header).index(name)
    return places
