"""Raw rows of whoever received a bundle, checked and encoded by the declared schema.

In: a frame, dicts, arrays, texts or a file, and the `InputSchema`. Out: blocks of float32 rows as the network takes
them, and `RowNote`s: which rows are refused and why, and which have a value that counts as the nearest end of its
range. The rows are the user's own, so the notes name them; the encoding is the one that the records were trained with
(`data.tables`, `data.text`).

A row is judged by itself: an answer for one row never depends on the others.
"""

from __future__ import annotations

import difflib
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from airlock.bundle.receiving.input_schema import InputSchema, TextColumn
from airlock.config import Column
from airlock.data import dataset_files, memory, tables
from airlock.data.limits import check_bytes, reading
from airlock.data.remarks import Faults
from airlock.data.text import Tokenizer
from airlock.data.validate import MAX_MAGNITUDE
from airlock.errors import DataError

BLOCK = 8192
SCHEMA_SAYS = "The model's schema declares it."
_GIVEN = Path("the rows")
_SHOWN = 10  # rows that a sentence names
_LARGEST_PIXEL = 255
_ANY = Column(categories=(), other=True)  # a column whose cells are text

Floats = NDArray[np.float32]
Kept = NDArray[np.bool_]


@dataclass(frozen=True)
class RowNote:
    """What is said of some rows.

    Args:
        what: What it is, such as "an empty cell in column 'age'".
        rows: Which rows, counted from 1; a header is not counted.
    """

    what: str
    rows: tuple[int, ...]

    def __str__(self) -> str:
        named = ", ".join(f"{row:,}" for row in self.rows[:_SHOWN])
        more = f" and {len(self.rows) - _SHOWN:,} more" if len(self.rows) > _SHOWN else ""
        return f"{self.what} ({'row' if len(self.rows) == 1 else 'rows'} {named}{more})"


@dataclass(frozen=True)
class EncodedRows:
    """One block of rows.

    Args:
        x: One row each, as the network takes it; without meaning where the row is refused.
        kept: Which rows can be answered.
        refused: Why the others cannot.
        clamped: Which of those that can have a value that was moved into its range.
    """

    x: Floats
    kept: Kept
    refused: tuple[RowNote, ...]
    clamped: tuple[RowNote, ...]


def encode(schema: InputSchema, rows: object, tokenizer: Tokenizer | None = None) -> Iterator[EncodedRows]:
    """Rows in memory, block by block.

    Args:
        schema: The model's.
        rows: For a table a frame, a list of dicts, a dict of columns, or a two-dimensional array with the columns in
            their declared order. For images and vectors, an array with one row each. For texts a list of them, or what
            has them in the declared column. Or the path of a file (`read`); of one text, give a list of one.
        tokenizer: The bundle's, for texts.

    Raises:
        DataError: They are none of these, or a declared column is not there.
    """
    if isinstance(rows, str | Path):
        yield from read(schema, Path(rows), tokenizer)
    elif schema.text is not None:
        yield from _encode_texts(schema.text, _texts(schema.text, rows), Faults(), tokenizer)
    elif schema.kind == "table":
        yield from encode_cells(schema, _cells(schema.by_name, rows), Faults())
    else:
        yield from _encode_array(schema, _array(rows))


def encode_cells(
    schema: InputSchema, blocks: Iterable[Mapping[str, tables.Cells]], misshapen: Faults
) -> Iterator[EncodedRows]:
    """Cells by column, block by block, encoded as the records were.

    Args:
        schema: Of a table.
        blocks: The cells.
        misshapen: What their reader found wrong with single rows; it is read after each block.
    """
    first = 0
    for cells in blocks:
        count, broken, faults, clamped = len(next(iter(cells.values()))), Faults(), Faults(), Faults()
        for fault, places in misshapen.taken().items():
            broken.add(fault, [place - first for place in places])
        x = tables.encode(schema.by_name, cells, faults, 0, clamped)
        whole = broken.kept(count)  # of a row that is not, nothing is said of its cells
        kept = faults.kept(count) & whole
        yield EncodedRows(
            x, kept, _notes(broken, first, ~whole) + _notes(faults, first, whole), _notes(clamped, first, kept)
        )
        first += count


def _encode_texts(
    column: TextColumn, blocks: Iterable[Mapping[str, tables.Cells]], misshapen: Faults, tokenizer: Tokenizer | None
) -> Iterator[EncodedRows]:
    """Texts, block by block, encoded as the records were."""
    if tokenizer is None:
        raise DataError("the bundle's tokenizer for texts", "none", do="Open the bundle with airlock.load.")
    first = 0
    for cells in blocks:
        texts, broken, faults = cells[column.name], Faults(), Faults()
        for fault, places in misshapen.taken().items():
            broken.add(fault, [place - first for place in places])
        x = tokenizer.encode(column.name, texts, faults)  # type: ignore[arg-type]  # a column of text has no numbers
        whole = broken.kept(len(texts))
        kept = faults.kept(len(texts)) & whole
        yield EncodedRows(x, kept, _notes(broken, first, ~whole) + _notes(faults, first, whole), ())
        first += len(texts)


def _texts(column: TextColumn, rows: object) -> Iterator[dict[str, tables.Cells]]:
    """The texts of a frame, dicts, or a sequence of them, block by block."""
    plain = isinstance(rows, Sequence | np.ndarray) and not isinstance(rows, str | bytes)
    if plain and not (len(rows) and isinstance(rows[0], Mapping)):  # type: ignore[arg-type,index]
        values = _objects(list(rows))  # type: ignore[call-overload]
    else:
        values = np.asarray(_by_column({column.name: _ANY}, rows)[column.name]).reshape(-1)
    for first in range(0, len(values), BLOCK):
        yield {column.name: memory.text(values[first : first + BLOCK])}


def read(schema: InputSchema, path: Path, tokenizer: Tokenizer | None = None) -> Iterator[EncodedRows]:
    """Rows of a file, block by block.

    Args:
        schema: The model's.
        path: For a table, CSV or Parquet with the schema's columns among its own; for texts also a file .txt with one
            in each line; else a numpy array (.npy).
        tokenizer: The bundle's, for texts.

    Raises:
        DataError: It is none of these, cannot be read, or a declared column is not there.
    """
    suffix, faults = path.suffix.lower(), Faults()
    if schema.text is not None:
        yield from _encode_texts(schema.text, _text_blocks(path, schema.text.name, faults), faults, tokenizer)
        return
    if schema.kind != "table":
        if suffix != ".npy":
            raise DataError("a numpy array as a file (.npy)", path.name, do="Save it with numpy.save.")
        with reading(path, "a numpy array"):
            check_bytes(path, path.stat().st_size)
            array = np.load(path, allow_pickle=False)
        yield from _encode_array(schema, array)
        return
    blocks = tables.parquet_blocks if suffix in (".parquet", ".pq") else tables.csv_blocks
    yield from encode_cells(schema, blocks(path, schema.by_name, faults, SCHEMA_SAYS), faults)


def _text_blocks(path: Path, name: str, faults: Faults) -> Iterator[dict[str, tables.Cells]]:
    """The texts of a file, by its suffix."""
    if path.suffix.lower() == ".txt":
        return dataset_files.line_blocks(path, name)
    reader = dataset_files.READERS.get(dataset_files.suffix_of(path), tables.csv_blocks)
    return reader(path, {name: None}, faults, SCHEMA_SAYS)


def read_stream(
    schema: InputSchema, stream: IO[bytes], name: str, tokenizer: Tokenizer | None = None
) -> Iterator[EncodedRows]:
    """Rows of a table as lines of CSV, or texts, one in each line, which `name` stands for in errors.

    Raises:
        DataError: The model takes no table, this is no CSV, or a declared column is not there.
    """
    if schema.text is not None:
        texts = dataset_files.stream_lines(stream, schema.text.name)
        with reading(Path(name), "lines of text"):
            yield from _encode_texts(schema.text, texts, Faults(), tokenizer)
        return
    if schema.kind != "table":
        raise DataError("the path of a numpy array (.npy)", name, "Only rows of a table are read as lines.")
    place, faults = Path(name), Faults()
    lines = io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape", newline="")
    with reading(place, "CSV in UTF-8"):
        blocks = tables.stream_blocks(lines, place, schema.by_name, faults, SCHEMA_SAYS)
        yield from encode_cells(schema, blocks, faults)


def _notes(faults: Faults, first: int, of: Kept) -> tuple[RowNote, ...]:
    """A note for everything that is said of one of these rows."""
    found = {fault.what: [place for place in places if of[place]] for fault, places in faults.taken().items()}
    return tuple(RowNote(what, tuple(first + one + 1 for one in places)) for what, places in found.items() if places)


def merged(notes: Iterable[RowNote]) -> tuple[RowNote, ...]:
    """One note for each thing that is said."""
    rows: dict[str, list[int]] = {}
    for note in notes:
        rows.setdefault(note.what, []).extend(note.rows)
    return tuple(RowNote(what, tuple(sorted(places))) for what, places in rows.items())


# Tables in memory.


def _cells(columns: Mapping[str, Column], rows: object) -> Iterator[dict[str, tables.Cells]]:
    """The cells of each declared column, block by block."""
    values = {name: np.asarray(column).reshape(-1) for name, column in _by_column(columns, rows).items()}
    counts = {len(column) for column in values.values()}
    if len(counts) > 1:
        raise DataError("as many cells in every column", "different numbers of them", "A row has one cell of each.")
    for first in range(0, max(counts), BLOCK):
        yield {name: memory.cells_of(column[first : first + BLOCK], columns[name]) for name, column in values.items()}


def _by_column(columns: Mapping[str, Column], rows: object) -> dict[str, Any]:
    """What was passed, as one sequence of cells for each declared column; whatever else it has is not used."""
    if type(rows).__name__ == "LazyFrame":  # of polars
        rows = rows.collect()  # type: ignore[attr-defined]
    frame = memory.as_frame(rows)
    if frame is not None:
        tables.find_columns(frame.names, columns, _GIVEN, SCHEMA_SAYS)
        return {name: frame.columns[name] for name in columns}
    if isinstance(rows, Mapping):
        tables.find_columns(tuple(map(str, rows)), columns, _GIVEN, SCHEMA_SAYS)
        return {name: _cells_of_one(rows[name]) for name in columns}
    if isinstance(rows, np.ndarray) and rows.dtype.names:
        tables.find_columns(rows.dtype.names, columns, _GIVEN, SCHEMA_SAYS)
        return {name: rows[name] for name in columns}
    if isinstance(rows, Sequence) and not isinstance(rows, str | bytes) and all(isinstance(r, Mapping) for r in rows):
        return {name: _of_dicts(name, rows) for name in columns}
    return _by_place(columns, rows)


def _cells_of_one(value: object) -> Any:
    """A column of a dict: a sequence, or the single cell of its only row."""
    if isinstance(value, list | tuple):
        return _objects(value)  # numpy would turn numbers beside text into text
    single = value is None or isinstance(value, str | bytes) or np.ndim(value) == 0  # type: ignore[arg-type]
    return _objects([value]) if single else value


def _of_dicts(name: str, rows: Sequence[Mapping[str, object]]) -> NDArray[Any]:
    """One column of dicts, which all have to have it: a misspelt name would otherwise pass for a missing value."""
    lacks = next((place for place, row in enumerate(rows) if name not in row), None)
    if lacks is not None:
        near = difflib.get_close_matches(name, list(map(str, rows[lacks])), n=1)
        raise DataError(
            f"'{name}' in every row",
            f"none in row {lacks + 1:,}",
            SCHEMA_SAYS,
            f"Did you mean '{near[0]}'?" if near else "Where there is no value, give None.",
        )
    return _objects([row[name] for row in rows])


def _objects(cells: Sequence[object]) -> NDArray[Any]:
    """Cells as they are, each of its own type."""
    column = np.empty(len(cells), object)
    column[:] = list(cells)
    return column


def _by_place(columns: Mapping[str, Column], rows: object) -> dict[str, Any]:
    """The columns of an array, or of a list of rows, in their declared order."""
    array = rows if isinstance(rows, np.ndarray) else _array(rows, object)
    if array.ndim != 2 or array.shape[1] != len(columns):
        raise DataError(
            f"rows with the {len(columns)} declared columns, which begin with '{next(iter(columns))}'",
            f"an array of shape {array.shape}" if array.ndim else type(rows).__name__,
            "Without names, columns are taken in their declared order, and raw: the model encodes them itself.",
            "Pass a frame, a list of dicts, or an array with one column for each.",
        )
    return {name: array[:, place] for place, name in enumerate(columns)}


# Images and vectors.


def _array(rows: object, kind: Any = None) -> NDArray[Any]:
    """Rows as an array.

    Raises:
        DataError: numpy cannot make one of them.
    """
    try:
        return np.asarray(rows, kind)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError("rows of the same length", "rows that no array can hold", "Each is one record.") from error


def _encode_array(schema: InputSchema, given: NDArray[Any]) -> Iterator[EncodedRows]:
    array, image = _arranged(schema, given), schema.kind == "image"
    pixels = image and array.dtype.kind in "iu"  # whole numbers; a truth value is 0 or 1
    most = 1 if image and not pixels else _LARGEST_PIXEL if pixels else MAX_MAGNITUDE
    said = f"a number that is not from 0 to {most}" if image else f"a number that is NaN, or beyond ±{most:.0e}"
    for first in range(0, len(array), BLOCK):
        block = array[first : first + BLOCK]
        flat = block.reshape(len(block), -1)
        with np.errstate(invalid="ignore", over="ignore"):
            kept = np.asarray(((flat >= (0 if image else -most)) & (flat <= most)).all(axis=1))
            x = block.astype(np.float32)
        bad = tuple(first + place + 1 for place in np.flatnonzero(~kept).tolist())
        notes = (RowNote(said, bad),) if bad else ()
        yield EncodedRows(x / np.float32(_LARGEST_PIXEL) if pixels else x, kept, notes, ())


def _arranged(schema: InputSchema, given: NDArray[Any]) -> NDArray[Any]:
    """The rows with the network's axes.

    Raises:
        DataError: They have another shape, or are no numbers.
    """
    if given.dtype.kind in "fiub" and given.shape[1:] == schema.shape:
        return given
    if given.dtype.kind in "fiub" and schema.kind == "image" and given.ndim in (3, 4):
        moved = given[..., None] if given.ndim == 3 else given
        moved = np.moveaxis(moved, -1, 1)
        if moved.shape[1:] == schema.shape:
            return moved
    wanted = ", ".join(map(str, schema.shape))
    raise DataError(
        f"an array of numbers of shape (rows, {wanted})",
        f"{given.dtype} of shape {given.shape}",
        f"Pixels are {schema.pixels}." if schema.pixels else "The network takes rows of this length.",
        "For one row, add an axis: x[None].",
    )
