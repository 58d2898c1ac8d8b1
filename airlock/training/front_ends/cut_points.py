"""Where a table's numbers are cut: how many values are in each cell of a fixed grid, and cut points from such counts.

In: encoded records, whose numbers lie in [0, 1]. The cells are public: some of equal width, the first of which is
halved again and again, since amounts crowd at the low end of a range that was declared generously. Out: counts, which
must not leave without noise; and from counts with noise, cut points between which about equally many records lie. A
value that many records share has a cell to itself.

Guarantee: adding or removing one record with c numbers moves `count` by √c in L2. Proof. It is in exactly one cell of
each number's row, and no other record's cell depends on it. Where records have weights that add up to one for each
person, a person moves each row by a vector of norm at most 1, being a mean of unit vectors, and all rows by √c. ∎
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_FEW, _MANY = 64, 256  # cells of equal width
_ENOUGH = 60.0  # records over the noise on a count, for many cells
_HALVINGS = 12
_FAINT, _BLOCKS = 2.0, (1, 4, 16, 64)  # standard deviations of the noise; cells that are looked at together


@cache
def edges(cells: int) -> NDArray[np.float32]:
    """Where cells begin, and last 1; `cells` is how many of equal width there are, a power of two."""
    finest = round(math.log2(cells))
    halved = 2.0 ** -np.arange(finest + _HALVINGS, finest, -1)
    return np.concatenate([[0.0], halved, np.arange(1, cells + 1) / cells]).astype(np.float32)


def choose_cells(units: int, noise: float) -> int:
    """How many cells of equal width suit so many records, or people, at this noise on a count."""
    return _MANY if units >= _ENOUGH * noise else _FEW


def sensitivity(numbers: int) -> float:
    """How far one record moves the counts of so many numbers."""
    return math.sqrt(numbers)


def count(values: NDArray[np.float32], cells: int, weights: Floats | None = None) -> Floats:
    """How many records are in each cell, one row for each number.

    Args:
        values: (records, numbers).
        cells: How many of equal width there are.
        weights: Of the records; one each when left out.
    """
    borders = edges(cells)
    total = len(borders) - 1
    found = np.clip(np.searchsorted(borders, values, side="right") - 1, 0, total - 1)
    rows = [np.bincount(found[:, i], weights, minlength=total) for i in range(values.shape[1])]
    return np.array(rows, np.float64).reshape(values.shape[1], total)


def cut_points(counts: Floats, cells: int, cuts: int, noise: float) -> NDArray[np.float32]:
    """So many cut points for each number, in ascending order; some may be equal.

    Args:
        counts: With noise: one row for each number.
        cells: How many of equal width there are.
        cuts: How many.
        noise: The standard deviation of the noise on a count.
    """
    found = [_cut(_seen(row, noise), edges(cells), cuts) for row in counts]
    return np.array(found, np.float32).reshape(len(counts), cuts)


def _seen(row: Floats, noise: float) -> Floats:
    """The counts where there is more than noise: in a cell, or in a block of cells around it."""
    there = np.zeros(len(row), bool)
    for size in _BLOCKS:
        blocks = np.pad(row, (0, -len(row) % size)).reshape(-1, size).sum(1)
        there |= np.repeat(blocks > _FAINT * noise * math.sqrt(size), size)[: len(row)]
    return np.where(there, np.maximum(row, 0.0), 0.0)


def _cut(row: Floats, borders: NDArray[np.float32], cuts: int) -> NDArray[np.float32]:
    """Cut points of one number: around every cell with more than its share, and evenly among the others."""
    heavy = _heavy(row, cuts + 1)
    places = {place for cell in np.flatnonzero(heavy) for place in (cell, cell + 1)}
    rest = np.cumsum(np.where(heavy, 0.0, row))
    left = cuts + 1 - int(heavy.sum())
    if rest[-1] > 0 and left > 1:
        wanted = rest[-1] * np.arange(1, left) / left
        places |= set((np.searchsorted(rest, wanted) + 1).tolist())
    inside = sorted(place for place in places if 0 < place < len(row))
    if not inside:
        return (np.arange(1, cuts + 1) / (cuts + 1)).astype(np.float32)
    return np.sort(borders[np.resize(inside, cuts)])


def _heavy(row: Floats, bins: int) -> NDArray[np.bool_]:
    """Cells with more than an even share of what other cells leave."""
    heavy = np.zeros(len(row), bool)
    while True:
        left = bins - int(heavy.sum())
        more = ~heavy & (row > row[~heavy].sum() / max(1, left)) & (row > 0)
        if left <= 1 or not more.any():
            return heavy
        heavy |= more
