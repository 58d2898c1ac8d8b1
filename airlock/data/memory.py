"""Records that are in memory: a pandas or polars frame, an Arrow table, or numpy arrays, read as a file would be.

In: the object, held for as long as a call takes (`held`), and the `DataConfig`, whose source is `SOURCE`. Out: cells or
arrays for the readers of `tables` and `npz`, so that a schema is declared and nothing is fitted to the records.

Guarantee: whether and how a record is encoded depends on its own cells and on the declaration alone. Proof. A column's
type in memory may depend on a single record (a missing cell turns whole numbers into fractions, a word turns numbers
into objects), so no type is refused, and a cell has the same text and the same number in every type that holds it: a
whole number is written without a decimal point, a number is converted by `float`, and a truth value is "true" or
"false", or as a number 1 or 0. What is neither a number nor text leaves its own record out. A frame's whole numbers
stay whole where one is missing, and what is missing stays missing (`as_cells`): numpy would round all of them to
fractions, so that two people have one identifier, and takes a missing cell of a dictionary for the last of its words. ∎
Numbers beyond 2^53 are not exact in a column that comes as one of fractions, as pandas makes it: write identifiers of
that length as text.
"""

from __future__ import annotations

import contextlib
import math
import numbers
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from airlock.config import Column, DataConfig
from airlock.data import tables
from airlock.data.npz import arrange, record_shape
from airlock.data.remarks import Faults
from airlock.data.split import Array
from airlock.data.validate import Raw
from airlock.errors import ConfigError, DataError

SOURCE = ":memory:"  # what a config says instead of a path
WORDS = "the data in memory"  # and what errors and remarks call it
_PLACE = Path(WORDS)
_BLOCK = 8192
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
        return Arrays(_as_array(value[0]), *(None if part is None else as_cells(part) for part in value[1:]))  # type: ignore[arg-type]
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


def as_cells(column: Any) -> Array:
    """One column as an array that has every cell as the column has it, whatever the others are.

    Args:
        column: Of a frame or an Arrow table, or a sequence.
    """
    kind = str(getattr(column, "dtype", getattr(column, "type", ""))).lower()
    found = np.asarray(column).reshape(-1)
    rounded = found.dtype.kind == "f" and not kind.startswith(_FRACTIONS)
    listed = getattr(column, "to_pylist", getattr(column, "to_list", None))
    if listed is None and isinstance(column, list | tuple):
        listed = lambda: column  # noqa: E731
    if listed is None or not (rounded or kind.startswith(_DICTIONARY)):
        return found
    return np.fromiter(listed(), object, len(column))


def _as_array(part: object) -> Array:
    try:
        return np.asarray(part)
    except ValueError as error:
        raise DataError(
            f"as many numbers in each row of {WORDS}",
            "rows of different lengths",
            "An array is a rectangle.",
            "Pass a frame, or an array with one row for each record.",
        ) from error


# What is public, and the records.


def shape(path: Path, data: DataConfig) -> tuple[int, ...]:
    """The shape of a record: from the schema or, for arrays without one, from the shape of the array."""
    kept = current()
    if isinstance(kept, Frame):
        return tables.shape(path, data)
    if not data.columns:
        return record_shape(kept.x.shape, np.dtype(float) if _is_mixed(kept.x) else kept.x.dtype, _PLACE)
    if kept.x.ndim != 2 or kept.x.shape[1] != len(data.columns):
        raise DataError(
            f"an array with {len(data.columns)} columns, one for each in data.columns",
            f"one of shape {('N', *kept.x.shape[1:])}",
            "They are taken in the order in which they are declared.",
        )
    return tables.shape(path, data.model_copy(update={"label": _free(data, "label"), "person": None}))


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


def read(path: Path, data: DataConfig, classes: tuple[str, ...]) -> Raw:
    """All records, encoded as those of a file are."""
    kept, faults = current(), Faults()
    if isinstance(kept, Frame):
        tables.find_columns(kept.names, tables.wanted(data), _PLACE)
        return tables.encode_blocks(_blocks(kept.columns, data), _PLACE, data, classes, faults)
    if data.columns:
        label, person = _free(data, "label"), _free(data, "person")
        named = {name: kept.x[:, place] for place, name in enumerate(data.columns)}
        named |= {label: kept.y} | ({} if kept.person is None else {person: kept.person})
        own = data.model_copy(update={"label": label, "person": person if data.person is not None else None})
        return tables.encode_blocks(_blocks(named, own), _PLACE, own, classes, faults)
    faults = kept.faults.copy()
    y = tables.labels("y", text(kept.y.reshape(-1)), classes, faults)
    whose = None if data.person is None or kept.person is None else text(kept.person)
    x = _numbers(kept.x) if _is_mixed(kept.x) else kept.x
    return Raw(arrange(x, _PLACE), y, faults, person=whose)


def _is_mixed(x: Array) -> bool:
    """Whether rows of numbers have become objects or text, for which one cell is enough."""
    return x.ndim == 2 and x.dtype.kind in "OUS"


def _numbers(x: Array) -> Array:
    """Each cell by itself as a number; NaN, which leaves its record out, where it is none."""
    return np.array([_number(cell) for cell in x.reshape(-1).tolist()], np.float64).reshape(x.shape)


def _number(cell: Any) -> float:
    try:
        return float(cell)
    except Exception:  # noqa: BLE001 - an object of the user's own may raise anything
        return math.nan


def _free(data: DataConfig, name: str) -> str:
    """A name that no column has."""
    while name in data.columns:
        name += "_"
    return name


def _blocks(columns: dict[str, Any], data: DataConfig) -> Iterator[dict[str, tables.Cells]]:
    wanted = (str(data.label), *data.columns, *([] if data.person is None else [data.person]))
    values = {name: as_cells(columns[name]) for name in wanted}
    counts = {len(cells) for cells in values.values()}
    if len(counts) > 1:
        raise DataError(
            f"as many labels and identifiers as inputs in {WORDS}",
            "another number",
            "They come together, one of each for a record.",
            "Take all from the same records.",
        )
    for first in range(0, max(counts), _BLOCK):
        yield {
            name: cells_of(cells[first : first + _BLOCK], tables.declared(data, name)) for name, cells in values.items()
        }


def cells_of(values: Array, column: Column | None) -> tables.Cells:
    """Numbers for a declared number, text otherwise; each cell by itself."""
    number = column is not None and column.categories is None
    if number and values.dtype.kind in "fiub":
        return values.astype(np.float64)
    return text(values, ("0", "1") if number else ("false", "true"))


def text(values: Array, truth: tuple[str, str] = ("false", "true")) -> list[str | None]:
    """Values as cells of text, with None for missing ones; classes and categories are compared with these."""
    if values.dtype.kind == "M":
        values = values.astype("datetime64[us]").astype(object)
    return [_written(cell, truth) for cell in values.reshape(-1).tolist()]


def _written(cell: object, truth: tuple[str, str]) -> str | None:
    """One cell as text; None if it is missing. Equal values of different types are written alike."""
    if isinstance(cell, bool | np.bool_):
        return truth[bool(cell)]
    if isinstance(cell, str):
        return cell
    if isinstance(cell, bytes):
        return cell.decode("utf-8", "surrogateescape")
    if isinstance(cell, numbers.Integral):
        return str(int(cell))
    if isinstance(cell, numbers.Real):
        value = float(cell)
        if math.isnan(value):
            return None
        return tables.whole(value)
    return None if cell is None or type(cell).__name__ in ("NAType", "NaTType") else _other(cell)


def _other(cell: object) -> str | None:
    """Whatever else: decimals and dates as they write themselves; nothing that a cell raises ends a release."""
    try:
        return str(cell)
    except Exception:  # noqa: BLE001 - an object of the user's own may raise anything
        return None
