"""Remarks: what the holder of the records, and nobody else, should know about them.

A record that does not fit the declared schema is left out; a declared class may have no record; a part may be empty.
None of this stops a load: whether a release exists, and what it says, would then depend on single records without any
noise to hide it. Instead it becomes a *remark*: a sentence for the holder's terminal and the vault. No decision depends
on a remark, and none enters a config, a plan, an event, a card or a bundle. A remark names files, rows, columns and
declared classes, never the content of a record.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_SHOWN = 5  # rows, files or classes that a sentence names


class Fault(NamedTuple):
    """What may be wrong with a record, and what the holder can do about it."""

    what: str
    do: str


class Faults:
    """Which records of a file do not match the declaration, and why.

    Code that adds a fault looks at one record and at public declarations, never at other records. So adding or removing
    one record does not change whether any other is kept.
    """

    def __init__(self) -> None:
        self._places: dict[Fault, list[int]] = {}

    def add(self, fault: Fault, places: Iterable[int]) -> None:
        """Record that the records at these positions, counted from 0, have this fault."""
        own = [int(place) for place in places]
        if own:
            self._places.setdefault(fault, []).extend(own)

    def taken(self) -> dict[Fault, list[int]]:
        """The positions of the records with each fault, in order; they are forgotten here."""
        found = {fault: sorted(set(places)) for fault, places in self._places.items()}
        self._places.clear()
        return found

    def copy(self) -> Faults:
        """The same, to be added to."""
        other = Faults()
        other._places = {fault: list(places) for fault, places in self._places.items()}
        return other

    def kept(self, count: int) -> NDArray[np.bool_]:
        """A mask of the records, of `count` in total, that have no fault."""
        kept = np.ones(count, bool)
        for places in self._places.values():
            kept[places] = False
        return kept

    def told(self, where: str, name: Callable[[int], str] | None = None) -> tuple[str, ...]:
        """One remark per fault; a record with several faults is listed under the first one found.

        Args:
            where: What was read.
            name: The holder's name for the record at a position; defaults to its row, counted from 1.
        """
        told, seen = [], set[int]()
        for (what, do), places in self._places.items():
            own = sorted(set(places) - seen)
            seen |= set(own)
            if own:
                shown = _some([name(place) if name else f"{place + 1}" for place in own[:_SHOWN]], len(own))
                rows = shown if name else f"{'row' if len(own) == 1 else 'rows'} {shown}"
                told.append(f"{_count(len(own), 'record')} of {where} left out: {what} ({rows}). {do}")
        return tuple(told)


def about_size(what: str, found: int, declared: int) -> tuple[str, ...]:
    """A remark if there are far more or far fewer records than the public figure says.

    Random variation moves a count by about its square root; rounding may add another tenth.
    """
    if abs(found - declared) <= 0.1 * declared + 4 * math.sqrt(declared):
        return ()
    return (
        f"There are {found:,} {what}, but {declared:,} are declared: the guarantee holds, but the steps and the "
        "sampling rate are set for another number, and accuracy may suffer. Declare a closer public figure.",
    )


def about_classes(labels: NDArray[np.int64], classes: Sequence[str]) -> tuple[str, ...]:
    """A remark if declared classes have no private record."""
    counts = np.bincount(labels, minlength=len(classes))
    empty = [f"'{name}'" for name, count in zip(classes, counts, strict=True) if not count]
    if not empty or not len(labels):
        return ()
    return (
        f"No private record of {_some(empty[:_SHOWN], len(empty))}: a class without records cannot be learned. "
        "Give more records, make the other parts in [split] smaller, or leave the class out of data.classes.",
    )


def about_empty(part: str, do: str) -> str:
    """The remark for a part without records."""
    return f"There is no {part} record: nothing can be learned from or measured on that part. {do}"


def about_shared(count: int, of: str, also: str, consequence: str) -> tuple[str, ...]:
    """A remark if records appear in two places."""
    if not count:
        return ()
    what = f"{of} record" if of else "record"
    return (f"{_count(count, what)} also {'appears' if count == 1 else 'appear'} in {also}{consequence}",)


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _some(shown: Sequence[str], count: int) -> str:
    rest = count - len(shown)
    return ", ".join(shown) + (f" and {rest:,} more" if rest else "")
