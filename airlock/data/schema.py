"""The public schema at work: cells in, numbers out, nothing fitted on the records.

A number is clamped to its declared [min, max] and scaled to [0, 1]; a category becomes one-hot by its declared values.
The same cell always gives the same numbers, whatever the other records are: that keeps encoding out of the privacy
budget. A row with a cell that does not fit the schema is noted among the `Faults`, which leave it out; what is told of
it is its number and the column, never what stands there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from airlock.config import Column
from airlock.data.remarks import Fault, Faults

Cells = Sequence[str | None] | NDArray[np.float64]
"""One column of some rows: text with None where it is missing, or numbers with NaN where they are."""


def width(columns: Mapping[str, Column]) -> int:
    """How many features the columns make."""
    return sum(1 if c.categories is None else len(c.categories) + c.other for c in columns.values())


def encode(
    columns: Mapping[str, Column], cells: Mapping[str, Cells], faults: Faults, first: int = 0
) -> NDArray[np.float32]:
    """One block of rows as features, in the order of the schema.

    Args:
        columns: The schema.
        cells: Of each column.
        faults: Where rows that do not fit are noted; what is returned for them has no meaning.
        first: The place of the first row in the file.
    """
    count = len(next(iter(cells.values())))
    block = np.zeros((count, width(columns)), np.float32)
    at = 0
    for name, column in columns.items():
        if column.categories is None:
            block[:, at] = _scale(numbers(name, cells[name], faults, first), column)
            at += 1
        else:
            places = _places(name, cells[name], column.categories, column.other, faults, first)
            block[np.arange(count), at + places] = 1
            at += len(column.categories) + column.other
    return block


def labels(name: str, cells: Cells, classes: tuple[str, ...], faults: Faults, first: int = 0) -> NDArray[np.int64]:
    """Class names as positions."""
    known = Fault(f"no declared class in column '{name}'", "Correct the cells or data.classes.")
    return _places(name, cells, classes, False, faults, first, known)


def numbers(name: str, cells: Cells, faults: Faults, first: int = 0) -> NDArray[np.float64]:
    """The cells as finite numbers; 0 where a row is at fault."""
    if isinstance(cells, np.ndarray):
        values = cells.astype(np.float64, copy=True)
    else:
        values = np.zeros(len(cells), np.float64)
        empty, wrong = [], []
        for i, cell in enumerate(cells):
            if cell is None or not cell.strip():
                empty.append(first + i)
                continue
            try:
                values[i] = float(cell if "_" not in cell else "")
            except ValueError:
                wrong.append(first + i)
        faults.add(missing(name), empty)
        faults.add(Fault(f"no number in column '{name}'", "Correct the cells, or declare categories."), wrong)
    unbounded = np.flatnonzero(~np.isfinite(values))
    faults.add(Fault(f"NaN or infinity in column '{name}'", "Fill in missing values beforehand."), first + unbounded)
    values[unbounded] = 0.0
    return values


def missing(name: str) -> Fault:
    """An empty cell: what to fill in must not be guessed from the records."""
    return Fault(
        f"an empty cell in column '{name}'",
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
    faults: Faults,
    first: int,
    unknown: Fault | None = None,
) -> NDArray[np.int64]:
    index = {value: place for place, value in enumerate(known)}
    places = np.zeros(len(cells), np.int64)
    empty: list[int] = []
    wrong: list[int] = []
    for i, cell in enumerate(cells):
        text = "" if cell is None else str(cell)
        place = index.get(text, index.get(text.strip(), len(known) if other else None))
        if place is not None:
            places[i] = place
        else:
            (wrong if text.strip() else empty).append(first + i)
    undeclared = Fault(f"no declared category in column '{name}'", "Declare the category, or set other = true.")
    faults.add(missing(name), empty)
    faults.add(unknown or undeclared, wrong)
    return places
