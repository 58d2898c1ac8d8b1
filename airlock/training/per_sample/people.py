"""People with several rows: which rows of a chunk belong to whom, and sums over a person's rows.

What is protected may be a person instead of a record. Her gradient is the mean g_p = (1/k) Σ_r g_r over her k rows in
the lot, and it is clipped once: adding or removing all of her rows moves the sum by at most C. The network still
computes row by row, exactly as for records; what changes is how rows are combined.

In a chunk a person's rows are adjacent, and people come in order of size, the largest first. So people with equally
many rows form a rectangle, and those who have more than `lag` rows are the first `reach(lag)` rows of the chunk.

Guarantee: g_p and its norm are functions of the person's own rows, bit for bit, like a record's gradient in `engine`:

* rows that are formed are added up element by element in the person's own order (`add_up`): an addition rounds in one
way, whatever the shape of the tensor and whoever is next to her. What is measured, clipped and summed is the result;
* rows that are never formed need ⟨g_r, g_s⟩ for every pair of her rows (`cross_terms`). All pairs at one distance are
computed together, in blocks of one public shape, and those of two people are discarded (`torch.where`: a number that is
not finite reaches nobody else).

Rounding is bounded as in `sums`, with the sum over all positions of all of the person's rows in place of that over the
positions of a record. Let A_r ≥ Σ_t ‖a_t‖ ‖b_t‖ for one row, A = (1/k) Σ_r A_r, and S the square that is used:
max(0, Σ_r,s ⟨g_r, g_s⟩)/k² + (A/2^8)². All of it is computed in float64, so the first term is off by far less than
2^-16 A². If ‖g_p‖² ≤ 2^-16 A², then S ≥ (1 − 2^-16) ‖g_p‖² by its second term alone; otherwise the first loses less
than the second adds. So the norm is within 2^-17, as `clip_factors` needs it, and f A ≤ 2^8 C. In the sum, row r has
the factor f/k: the sizes of all terms of a person add up to f A, and the bound of `sums` holds for n people in chunks
of B rows.

A row on which the network fails, or whose gradient is not finite, takes the whole person with it: she contributes zero.
To leave out only that row would be as private, but her mean would be over rows that were chosen by their values.

On a GPU, launching the work costs more than doing it, unless a CUDA graph repeats it, and a graph has fixed shapes.
`FixedPeople` therefore computes with the whole chunk, whoever is in it: kernels work person by person and in the same
order (`people_kernels`), and elsewhere every pair of rows that could be one person's has its place. Over several
positions a kernel forms g_p tile by tile, once for its norm and once for the sum: it is then a row of numbers, as in
the first case, and only their squares are float32; what is added for those that vanish is in `sums`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

TRITON = importlib.util.find_spec("triton") is not None
_BLOCK = 256  # rows whose pairs are computed at a time
_MANY = 8  # with more rows of one person than this, most pairs that could be one person's are not

Products = Callable[[list[Tensor], list[Tensor]], Tensor]


class People:
    """Who owns the rows of one chunk.

    Args:
        sizes: How many rows each person has, the largest first. What is left of the chunk are rows of their own.
        rows: The rows of the chunk.
        most: The public bound on a person's rows.
        device: Where the rows are.
    """

    fixed = False  # whether shapes are the same for everybody, and kernels form what is a person's

    def __init__(self, sizes: Sequence[int] | NDArray[np.int64], rows: int, most: int, device: torch.device) -> None:
        counts = _counts(sizes, rows, most)
        if (np.diff(counts) > 0).any():
            raise ValueError("the largest first")
        starts = np.cumsum(counts) - counts
        self.rows, self.most = rows, most
        self.longest = int(counts.max(initial=1))
        self._counts, self._starts = counts, starts
        table = torch.from_numpy(_table(counts)).to(device)
        self.head, self.rest = table[0], table[1]  # where the person of a row begins; rows of the same person behind it
        self._heads = torch.from_numpy(starts).to(device)
        self._classes = list(self._rectangles())

    @cached_property
    def first(self) -> Tensor:
        """Whether a row is its person's first."""
        return self.head == torch.arange(self.rows, device=self.head.device)

    @cached_property
    def _size(self) -> Tensor:
        return torch.arange(1, self.rows + 1, device=self.head.device) - self.head + self.rest

    @cached_property
    def several(self) -> Tensor:
        """Whether a row's person has others."""
        return self._size > 1

    @cached_property
    def share(self) -> Tensor:
        """Of a row in its person's mean."""
        return self._size.double().reciprocal()

    @cached_property
    def length(self) -> Tensor:
        """How many rows begin here."""
        return torch.where(self.first, self._size, 0)

    def _rectangles(self) -> Iterator[tuple[int, int, int]]:
        """Where the people with equally many rows, and more than one, begin; how many they are; and their size."""
        for size in np.unique(self._counts[self._counts > 1]):
            where = np.flatnonzero(self._counts == size)
            yield int(self._starts[where[0]]), len(where), int(size)

    def reach(self, lag: int) -> int:
        """How many rows belong to people with more than `lag` rows."""
        return int(self._counts[self._counts > lag].sum())

    def add_up(self, rows: Tensor) -> Tensor:
        """In place: at a person's first row the sum over her rows; the other rows are not to be used any more."""
        rows = rows if rows.is_contiguous() else rows.contiguous()
        for start, people, size in self._classes:
            own = rows[start : start + people * size].view(people, size, *rows.shape[1:])
            for place in range(1, size):
                own[:, 0].add_(own[:, place])
        return rows

    def one_each(self, rows: Tensor) -> Tensor:
        """Only the first row of everybody: a copy, which needs less memory, unless all have one row."""
        return rows if self.longest == 1 else rows.index_select(0, self._heads)

    def spread(self, values: Tensor) -> Tensor:
        """From a person's first row to all of her rows."""
        return values[self.head]

    def cross_terms(self, sides: Sequence[Tensor], products: Products) -> Tensor:
        """Σ_s ⟨g_r, g_s⟩ over the rows s of the same person behind r, for every row r, in float64.

        Args:
            sides: What the gradients are made of, row by row.
            products: ⟨g_r, g_s⟩ for the rows r and s of two equally long pieces of the sides, in float64.
        """
        step = min(_BLOCK, self.rows)
        rest = torch.nn.functional.pad(self.rest, (0, step))
        found = torch.zeros(len(rest), dtype=torch.float64, device=rest.device)
        wide = [_room(side, step + self.longest) for side in sides]  # small, because fresh memory is slow
        for start in range(0, self.reach(1), step):
            for room, side in zip(wide, sides, strict=True):
                piece = side[start : start + len(room)]
                room[: len(piece)] = piece
                room[len(piece) :] = 0
            here = slice(start, start + step)
            for lag in (lag for lag in range(1, self.longest) if start < self.reach(lag)):
                pairs = products([room[:step] for room in wide], [room[lag : lag + step] for room in wide])
                found[here] += torch.where(rest[here] >= lag, pairs, 0.0)
        return found[: self.rows]

    def squares(
        self, own: Tensor, sizes: Tensor, cross_terms: Callable[[], Tensor], floor: float, alone: bool
    ) -> Tensor:
        """‖Σ_r g_r‖² at every person's first row, plus the margin for cancellation.

        Args:
            own: ‖g_r‖² of every row, in float64.
            sizes: A_r of every row.
            cross_terms: What `cross_terms` says of the rows; only called if somebody may have several.
            floor: What is added, times A².
            alone: Whether a person with a single row gets that margin too: if its own terms may cancel.
        """
        if self.longest == 1:
            return own + floor * sizes.square() if alone else own
        gram = self.add_up(own + 2.0 * cross_terms()).clamp_min_(0)
        margin = floor * self.add_up(sizes.clone()).square()
        return gram + (margin if alone else torch.where(self.several, margin, 0.0))


class FixedPeople(People):
    """The same in shapes that do not depend on who is in the chunk; people may come in any order.

    Args:
        table: For every row where its person begins, and how many rows of the same person are behind it: (2, rows).
        most: The public bound on a person's rows.
    """

    fixed = True

    def __init__(self, table: Tensor, most: int) -> None:
        self.table, self.most, self.rows = table, most, table.shape[1]
        self.head, self.rest = table[0], table[1]
        self.longest = min(most, self.rows)

    @classmethod
    def of(cls, sizes: Sequence[int] | NDArray[np.int64], rows: int, most: int, device: torch.device) -> FixedPeople:
        """The same arguments as those of `People`, in any order."""
        table = _table(_counts(sizes, rows, most))
        return cls(torch.from_numpy(table).to(device), most)

    def add_up(self, rows: Tensor) -> Tensor:
        """In place, in the person's own order: by a kernel, or without one row by row for the whole chunk."""
        rows = rows if rows.is_contiguous() else rows.contiguous()
        if rows.is_cuda:
            from airlock.training.per_sample import people_kernels

            people_kernels.add_up(rows.view(self.rows, -1), self.length)
            return rows
        shape = (-1,) + (1,) * (rows.dim() - 1)
        for lag in range(1, self.longest):
            has = (self.length[:-lag] > lag).view(shape)
            rows[:-lag] += torch.where(has, rows[lag:], 0)
        return rows

    def one_each(self, rows: Tensor) -> Tensor:
        """All rows: those of everybody but the first of each person have the factor 0."""
        return rows

    def cross_terms(self, sides: Sequence[Tensor], products: Products) -> Tensor:
        """See `People.cross_terms`: for every row and every distance, whoever the rows belong to."""
        found = torch.zeros(self.rows, dtype=torch.float64, device=self.rest.device)
        wide = [torch.cat([side, side.new_zeros(self.longest - 1, *side.shape[1:])]) for side in sides]
        wide = [side.double() if side.is_floating_point() else side for side in wide]
        for lag in range(1, self.longest):
            pairs = products([side[: self.rows] for side in wide], [side[lag : lag + self.rows] for side in wide])
            found += torch.where(self.rest >= lag, pairs, 0.0)
        return found


def fixes(most: int, device: torch.device) -> bool:
    """Whether `people_of` gives fixed shapes, for people in any order."""
    return device.type == "cuda" and TRITON and most <= _MANY


def people_of(sizes: Sequence[int] | NDArray[np.int64], rows: int, most: int, device: torch.device) -> People:
    """Who owns the rows of a chunk, in the form that is fastest on this device."""
    if fixes(most, device):
        return FixedPeople.of(sizes, rows, most, device)
    return People(sizes, rows, most, device)


def _counts(sizes: Sequence[int] | NDArray[np.int64], rows: int, most: int) -> NDArray[np.int64]:
    """How many rows everybody has; what is left of the chunk are rows of their own."""
    own = np.asarray(sizes, np.int64).reshape(-1)
    if own.size and (own.min() < 1 or own.max() > most):
        raise ValueError(f"people with 1 to {most} rows")
    return np.concatenate([own, np.ones(rows - int(own.sum()), np.int64)])


def _table(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """For every row where its person begins, and how many rows of the same person are behind it."""
    starts = np.cumsum(counts) - counts
    head, size = np.repeat(starts, counts), np.repeat(counts, counts)
    return np.stack([head, head + size - 1 - np.arange(len(head))])


def _room(side: Tensor, rows: int) -> Tensor:
    """Memory for so many rows: numbers in float64, indices as they are."""
    return side.new_empty((rows, *side.shape[1:]), dtype=torch.float64 if side.is_floating_point() else side.dtype)


def sizes_of(owners: Tensor, labels: int, most: int | None) -> NDArray[np.int64]:
    """How many rows each person has.

    Args:
        owners: The person of every row: 0, ..., 0, 1, ..., 1, 2, ....
        labels: The number of rows.
        most: The public bound, if there is one.

    Raises:
        ValueError: They are something else; a defect of the caller.
    """
    own = owners.cpu().numpy()
    steps = np.diff(own, prepend=-1)
    if own.shape != (labels,) or (labels and (own[0] != 0 or steps[1:].min(initial=0) < 0 or steps.max() > 1)):
        raise ValueError("one owner per label, numbered from 0 without gaps and in order")
    sizes = np.bincount(own).astype(np.int64) if labels else np.zeros(0, np.int64)
    if most is not None and sizes.max(initial=0) > most:
        raise ValueError(f"at most {most} rows of one person")
    return sizes


def pack(sizes: NDArray[np.int64], room: int) -> Iterator[NDArray[np.int64]]:
    """Whole people in chunks of at most `room` rows, the largest first within each; nobody is in two.

    A chunk takes the largest that are left and still fit, so that the small ones remain to fill the gaps of others.
    """
    order = np.argsort(-sizes, kind="stable")
    if 0 < sizes.sum() <= room:
        yield order
        return
    kinds, starts, counts = np.unique(-sizes[order], return_index=True, return_counts=True)
    left = {int(-size): order[start : start + count] for size, start, count in zip(kinds, starts, counts, strict=True)}
    while left:
        chosen, free = [], room
        for size in list(left):
            take = min(len(left[size]), free // size)
            chosen.append(left[size][:take])
            left[size] = left[size][take:]
            free -= take * size
            if not len(left[size]):
                del left[size]
        yield np.concatenate(chosen)
