"""Records that are in memory: a pandas or polars frame, an Arrow table, or numpy arrays, read as a file would be.

In: the object, held for as long as a call takes (`held`), and the `DataConfig`, whose source is `SOURCE`. Out: cells or
arrays for the readers of `tables` and `npz`, so that a schema is declared and nothing is fitted to the records.

Guarantee: whether and how a record is encoded depends on its own cells and on the declaration alone. Proof. A column's
type in memory may depend on a single record (a missing cell turns whole numbers into fractions, a word turns numbers
into objects), so no type is refused, and a cell has the same text and the same number in every type that holds it: a
whole number is written without a decimal point, a number is converted by `float`, a truth value is "true" or "false",
or as a number 1 or 0, and a date, of whatever type, is read as text. A list has no type, so each of its cells keeps its
own (`as_array`), and so does one of a frame whose column numpy would round or misread for another cell (`values_of`).
What is neither a number nor text leaves its own record out, whatever it raises. A column of fractions does not hold
whole numbers from 2^53 on exactly, so a record with such a number is left out wherever cells are compared as text, in
every type: two people whose identifiers are rounded to one would otherwise become one person. ∎
"""

from __future__ import annotations

import contextlib
import datetime
import math
import numbers
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from airlock.config import Column, DataConfig
from airlock.data import tables
from airlock.data.limits import MEMORY, Array, Storage
from airlock.data.npz import arrange, record_shape
from airlock.data.remarks import Fault, Faults
from airlock.data.validate import Raw
from airlock.errors import ConfigError, DataError

SOURCE = ":memory:"  # what a config says instead of a path
WORDS = "the data in memory"  # and what errors and remarks call it
_PLACE = Path(WORDS)
_BLOCK = 8192
_ROWS = (list, tuple, np.ndarray)
_EXACT = 2**53  # a fraction holds every whole number below it
_FRACTIONS = ("float", "double", "halffloat")  # how frames and Arrow call them
_DICTIONARY = "dictionary"  # of Arrow: numbers of words, of which numpy's are wrong where one is missing


@dataclass(frozen=True)
class Frame:
    """A table with named columns.

    Args:
        names: Of its columns, in order.
        columns: By name, each with one cell per record; any object that numpy can turn into an array.
    """

    names: tuple[str, ...]
    columns: dict[str, Any]


@dataclass(frozen=True)
class Arrays:
    """Inputs and labels, and whose each record is.

    Args:
        x: (N, F) numbers, or images as in an npz file.
        y: One label per record.
        person: One identifier per record, if it is known whose they are.
        faults: What was found wrong with single records before; they are left out.
    """

    x: Array
    y: Array
    person: Array | None = None
    faults: Faults = field(default_factory=Faults)


_HELD: ContextVar[Frame | Arrays | None] = ContextVar("airlock_held", default=None)


def is_records(value: object) -> bool:
    """Whether a value is a frame or arrays, and not a config's text or table."""
    return isinstance(value, Frame | Arrays | tuple | list | np.ndarray) or hasattr(value, "columns")


@contextlib.contextmanager
def held(value: object) -> Iterator[None]:
    """Make records in memory those of `SOURCE` until the block ends.

    Raises:
        DataError: They are none of the kinds that can be read.
    """
    token = _HELD.set(value if isinstance(value, Frame | Arrays) else _as_records(value))
    try:
        yield
    finally:
        _HELD.reset(token)


def current() -> Frame | Arrays:
    """The records that are held.

    Raises:
        ConfigError: There are none, as when a config file names `SOURCE`.
    """
    found = _HELD.get()
    if found is None:
        raise ConfigError(
            f"records in memory, as data.source = '{SOURCE}' says",
            "none",
            "They were there in the Python session that made the release, and no file has them.",
            "Pass them in Python: airlock.release(config, data=FRAME); or name a file as data.source.",
        )
    return found


def _as_records(value: object) -> Frame | Arrays:
    if isinstance(value, tuple | list) and len(value) in (2, 3) and not hasattr(value, "columns"):
        return Arrays(*(None if part is None else as_array(part) for part in value))  # type: ignore[arg-type]
    frame = as_frame(value)
    if frame is None:
        raise DataError(
            "a pandas or polars frame, an Arrow table, or (x, y) or (x, y, person) as arrays",
            type(value).__name__,
            "The label has to be there too.",
            "Pass a frame that holds the label's column, or the arrays as a tuple.",
        )
    return frame


def as_frame(value: object) -> Frame | None:
    """A pandas or polars frame or an Arrow table by its columns; None for anything else."""
    names = getattr(value, "column_names", None)
    names = getattr(value, "columns", None) if names is None else names
    if names is None:
        return None
    shown = tuple(str(name) for name in names)
    whole: Any = value
    columns = {text: whole[name] for name, text in zip(names, shown, strict=True) if shown.count(text) == 1}
    return Frame(shown, columns)


def as_array(part: Any) -> Array:
    """An array as it is; of a list, or a list of rows, one of objects, because numpy would give all cells one type.

    Raises:
        DataError: Its rows have different lengths.
    """
    cells, ragged = isinstance(part, list | tuple), False
    if not cells and getattr(part, "ndim", 1) == 1:
        return values_of(part)
    try:
        whole = np.asarray(part, object) if cells else np.asarray(part)
        ragged = cells and whole.ndim == 1 and whole.size > 0 and all(isinstance(row, _ROWS) for row in whole)
        if whole.ndim > 2 and cells:  # images, which are numbers
            return np.asarray(part)
    except ValueError:
        ragged = True
    if ragged:
        raise DataError(
            f"as many numbers in each row of {WORDS}",
            "rows of different lengths",
            "An array is a rectangle.",
            "Pass a frame, or an array with one row for each record.",
        )
    return whole


# What is public, and the records.


def shape(path: Path, data: DataConfig) -> tuple[int, ...]:
    """The shape of a record: from the schema or, for arrays without one, from the shape of the array."""
    kept = current()
    if isinstance(kept, Frame):
        return tables.shape(path, data)
    if data.text is not None:
        if kept.x.ndim != 1:
            raise DataError(
                "one text for each record, as data.text says", f"an array of shape {('N', *kept.x.shape[1:])}"
            )
        return tables.shape(path, _named(data))
    if not data.columns:
        return record_shape(kept.x.shape, np.dtype(float) if is_mixed(kept.x) else kept.x.dtype, _PLACE)
    if kept.x.ndim != 2 or kept.x.shape[1] != len(data.columns):
        raise DataError(
            f"an array with {len(data.columns)} columns, one for each in data.columns",
            f"one of shape {('N', *kept.x.shape[1:])}",
            "They are taken in the order in which they are declared.",
        )
    return tables.shape(path, _named(data))


def check_person(person: str) -> None:
    """Refuse people where the arrays do not say whose each record is; reads no record.

    Raises:
        ConfigError: There is no array of identifiers.
    """
    kept = current()
    if isinstance(kept, Arrays) and kept.person is None:
        raise ConfigError(
            f"an array of identifiers for data.person = '{person}'",
            "inputs and labels alone",
            "Without it nothing says which records are the same person's.",
            "Pass (x, y, person), with one identifier per record.",
        )


def read(path: Path, data: DataConfig, classes: tuple[str, ...], storage: Storage = MEMORY) -> Raw:
    """All records, encoded as those of a file are."""
    kept, faults = current(), Faults()
    if isinstance(kept, Frame):
        tables.find_columns(kept.names, tables.wanted(data), _PLACE)
        return tables.encode_blocks(_blocks(kept.columns, data, faults), _PLACE, data, classes, faults, storage)
    if data.columns or data.text is not None:
        own = _named(data)
        named = {name: kept.x[:, place] for place, name in enumerate(data.columns)}
        named |= {str(own.label): kept.y} | ({} if data.text is None else {data.text: kept.x})
        named |= {} if own.person is None or kept.person is None else {own.person: kept.person}
        return tables.encode_blocks(_blocks(named, own, faults), _PLACE, own, classes, faults, storage)
    faults = kept.faults.copy()
    y = tables.labels("y", _compared("y", kept.y.reshape(-1), faults), classes, faults)
    whose = None
    if data.person is not None and kept.person is not None:
        whose = _compared(data.person, kept.person.reshape(-1), faults)
    x = as_numbers(kept.x) if is_mixed(kept.x) else kept.x
    return Raw(arrange(x, _PLACE), y, faults, person=whose)


def is_mixed(x: Array) -> bool:
    """Whether rows of numbers have become objects, text or complex numbers, for which one cell is enough."""
    return x.ndim == 2 and x.dtype.kind in "OUSc"


def as_numbers(x: Array) -> Array:
    """Each cell by itself as a number; NaN, which leaves its record out, where it is none."""
    return np.array([_number(cell) for cell in x.reshape(-1).tolist()], np.float64).reshape(x.shape)


def _number(cell: Any) -> float:
    try:
        return float(_plain(cell))  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - an object of the user's own may raise anything
        return math.nan


def _compared(name: str, values: Array, faults: Faults, first: int = 0) -> list[str | None]:
    """Cells as text that is compared; a record with a number that not every type holds exactly is at fault."""
    do = "Write such numbers as text."
    faults.add(Fault(f"a number from 2^53 on in column '{name}', which is compared", do), first + _inexact(values))
    return text(values)


def _inexact(values: Array) -> NDArray[np.int64]:
    """The positions of numbers from 2^53 on."""
    if values.dtype.kind in "iufc":
        return np.flatnonzero(np.abs(values.astype(complex)) >= _EXACT)
    cells = enumerate(values.tolist() if values.dtype.kind == "O" else ())
    return np.array([place for place, cell in cells if _is_inexact(cell)], np.int64)


def _is_inexact(cell: Any) -> bool:
    try:
        plain = _plain(cell)
        return isinstance(plain, numbers.Complex) and bool(abs(plain) >= _EXACT)  # type: ignore[operator]
    except Exception:  # noqa: BLE001 - an object of the user's own may raise anything
        return False


def _named(data: DataConfig) -> DataConfig:
    """The same declaration, with names for labels and identifiers that no other column of an array has."""
    names = {}
    for name in ("label", "person"):
        names[name] = name
        while names[name] in (data.text, *data.columns):
            names[name] += "_"
    return data.model_copy(update=names if data.person is not None else {**names, "person": None})


def _blocks(columns: dict[str, Any], data: DataConfig, faults: Faults) -> Iterator[dict[str, tables.Cells]]:
    values = {name: values_of(columns[name]) for name in tables.wanted(data)}
    counts = {len(cells) for cells in values.values()}
    if len(counts) > 1:
        raise DataError(
            f"as many labels and identifiers as inputs in {WORDS}",
            "another number",
            "They come together, one of each for a record.",
            "Take all from the same records.",
        )
    for first in range(0, max(counts), _BLOCK):
        yield {name: _block(name, cells[first : first + _BLOCK], data, faults, first) for name, cells in values.items()}


def values_of(column: Any) -> Array:
    """A column as an array that has every cell as the column has it, whatever the others are.

    numpy makes fractions of whole numbers where one is missing, and takes a missing cell of a dictionary for the last
    of its words; of some columns it makes no array at all, for which one cell is enough. Those are read cell by cell.
    """
    try:
        found = np.asarray(column).reshape(-1)
    except Exception:  # noqa: BLE001 - libraries have errors of their own
        found = np.empty(len(column), object)
        for place in range(len(column)):
            with contextlib.suppress(Exception):  # such a cell stays empty
                cell = column.iloc[place] if hasattr(column, "iloc") else column[place]
                found[place] = cell.as_py() if hasattr(cell, "as_py") else cell
        return found
    kind = str(getattr(column, "dtype", getattr(column, "type", ""))).lower()
    listed = getattr(column, "to_pylist", getattr(column, "to_list", None))
    rounded = found.dtype.kind == "f" and not kind.startswith(_FRACTIONS)
    return np.fromiter(listed(), object, len(column)) if listed and (rounded or _DICTIONARY in kind) else found


def _block(name: str, values: Array, data: DataConfig, faults: Faults, first: int) -> tables.Cells:
    column = tables.declared(data, name)
    compared = column is None or column.categories is not None
    return _compared(name, values, faults, first) if compared else cells_of(values, column)


def cells_of(values: Array, column: Column | None) -> tables.Cells:
    """Numbers for a declared number, text otherwise; each cell by itself."""
    number = column is not None and column.sort == "number"
    if number and values.dtype.kind in "fiub":
        return values.astype(np.float64)
    return text(values, ("0", "1") if number else ("false", "true"))


def text(values: Array, truth: tuple[str, str] = ("false", "true")) -> list[str | None]:
    """Values as cells of text, with None for missing ones; classes and categories are compared with these."""
    if values.dtype.kind in "mM":
        values = values.astype(f"{values.dtype.kind}8[us]").astype(object)
    return [_written(cell, truth) for cell in values.reshape(-1).tolist()]


def _written(cell: object, truth: tuple[str, str]) -> str | None:
    """One cell as text; None if it is missing. Equal values of different types are written alike.

    Nothing that a cell raises ends a release: a number may be too large to be written, and an object of the user's own
    may raise anything.
    """
    try:
        return _as_text(_plain(cell), truth)
    except Exception:  # noqa: BLE001
        return None


def _plain(cell: Any) -> object:
    """A scalar of numpy or torch as one of Python, and a complex number that is real as its real part."""
    if isinstance(cell, str | int | float):
        return cell
    if isinstance(cell, np.datetime64 | np.timedelta64):
        return cell.astype(f"{cell.dtype.kind}8[us]").item()
    if getattr(cell, "shape", None) == () and not isinstance(cell, np.longdouble):
        cell = cell.item()  # of the others, item gives one of Python
    return cell.real if isinstance(cell, complex) and cell.imag == 0 else cell


def _as_text(cell: object, truth: tuple[str, str]) -> str | None:
    if isinstance(cell, bool):
        return truth[cell]
    if isinstance(cell, str):
        return cell
    if isinstance(cell, bytes):
        return cell.decode("utf-8", "surrogateescape")
    if isinstance(cell, numbers.Integral):
        return str(int(cell))
    if isinstance(cell, numbers.Real):
        value = float(cell)
        return None if math.isnan(value) else tables.whole(value)
    if cell is None or type(cell).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(cell, datetime.datetime):
        return datetime.datetime.isoformat(cell, " ")  # pandas would add billionths of a second
    if isinstance(cell, datetime.timedelta):
        return str(datetime.timedelta(cell.days, cell.seconds, cell.microseconds))
    return str(cell)
