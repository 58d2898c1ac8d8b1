"""The public schema at work: cells in, numbers out, nothing fitted on the records.

A number is clamped to its declared [min, max] and scaled to [0, 1]; a category becomes one-hot by its declared values.
The same cell always gives the same numbers, whatever the other records are: that keeps encoding out of the privacy
budget. Errors name column and row (the first record is row 1), never what stands there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from airlock.config import Column
from airlock.errors import DataError

Cells = Sequence[str | None] | NDArray[np.float64]
"""One column of some rows: text with None where it is missing, or numbers with none missing."""


def width(columns: Mapping[str, Column]) -> int:
    """How many features the columns make."""
    return sum(1 if c.categories is None else len(c.categories) + c.other for c in columns.values())


def encode(columns: Mapping[str, Column], cells: Mapping[str, Cells], first_row: int = 1) -> NDArray[np.float32]:
    """One block of rows as features, in the order of the schema."""
    count = len(next(iter(cells.values())))
    block = np.zeros((count, width(columns)), np.float32)
    at = 0
    for name, column in columns.items():
        if column.categories is None:
            block[:, at] = _scale(numbers(name, cells[name], first_row), column)
            at += 1
        else:
            places = _places(name, cells[name], column.categories, column.other, first_row)
            block[np.arange(count), at + places] = 1
            at += len(column.categories) + column.other
    return block


def labels(name: str, cells: Cells, classes: tuple[str, ...], first_row: int = 1) -> NDArray[np.int64]:
    """Class names as positions."""
    return _places(name, cells, classes, False, first_row, "a declared class", "Correct the cell or data.classes.")


def numbers(name: str, cells: Cells, first_row: int = 1) -> NDArray[np.float64]:
    """The cells as finite numbers."""
    if isinstance(cells, np.ndarray):
        values = cells
    else:
        values = np.empty(len(cells), np.float64)
        for i, cell in enumerate(cells):
            if cell is None or not cell.strip():
                raise missing(name, first_row + i)
            try:
                values[i] = float(cell if "_" not in cell else "")
            except ValueError:
                raise _wrong(name, first_row + i, "a number", "Correct the cell, or declare categories.") from None
    if not np.isfinite(values).all():
        row = first_row + int(np.flatnonzero(~np.isfinite(values))[0])
        raise _wrong(name, row, "a finite number", "Fill in missing values beforehand.", "NaN or infinity")
    return values


def missing(name: str, row: int) -> DataError:
    """The error for an empty cell."""
    return DataError(
        f"a value in column '{name}', row {row}",
        "an empty cell",
        "What to fill in must not be guessed from the records.",
        "Fill it with a public constant beforehand, or for a category set other = true.",
    )


def _scale(values: NDArray[np.float64], column: Column) -> NDArray[np.float64]:
    low, high = column.min or 0.0, column.max or 0.0
    return (np.clip(values, low, high) - low) / (high - low)


def _places(
    name: str,
    cells: Cells,
    known: tuple[str, ...],
    other: bool,
    first_row: int,
    expected: str = "a declared category",
    remedy: str = "Declare the category, or set other = true.",
) -> NDArray[np.int64]:
    index = {value: place for place, value in enumerate(known)}
    places = np.empty(len(cells), np.int64)
    for i, cell in enumerate(cells):
        text = "" if cell is None else str(cell)
        place = index.get(text, index.get(text.strip(), len(known) if other else None))
        if place is None:
            raise _wrong(name, first_row + i, expected, remedy) if text.strip() else missing(name, first_row + i)
        places[i] = place
    return places


def _wrong(name: str, row: int, expected: str, remedy: str, found: str = "something else") -> DataError:
    why = "The value is not shown, because it may be private."
    return DataError(f"{expected} in column '{name}', row {row}", found, why, remedy)
