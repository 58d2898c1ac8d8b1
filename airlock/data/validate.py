"""Checks applied to every load, whatever the source: raw arrays in, `Records` out, and remarks for the holder.

Two kinds of problems are kept apart. A problem with a *file* (its arrays do not match each other, their type or shape
is not the declared one) shows in headers and declarations and is refused with a `DataError`. A problem with a *record*
(a number that is not finite or too large, a label that is not a class) leaves that record out and is reported to the
holder: a refusal would reveal its presence to everybody else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from airlock.config import STEPS
from airlock.data.limits import MEMORY, Array, Storage
from airlock.data.people import Ids, about_people, leave_out_nobody, number
from airlock.data.remarks import Fault, Faults
from airlock.data.split import Facts, Records, taken
from airlock.errors import DataError

MAX_MAGNITUDE = 1e6
_STEP = 2**20  # numbers that are looked at together
_NUMBER = Fault(
    f"a number that is NaN, infinite or beyond ±{MAX_MAGNITUDE:.0e}",
    "One such number ruins every gradient it enters: fill in missing values and scale by public constants beforehand.",
)
_DO = "Correct the labels or data.classes."
_NOTHING_NEXT = Fault("fewer than two tokens, of which the second is to be predicted", "Remove such texts.")


@dataclass(frozen=True)
class Raw:
    """Inputs and labels as read, not yet checked.

    Args:
        x: Inputs, one row per record.
        y: Labels, one per record.
        faults: Problems that the reader found with single records; such a record has a row here and will be left out.
        name: The holder's name for the record at a position; defaults to its row.
        person: The identifier of each record's person, None where it has none; None if nothing says whose they are.
    """

    x: Array
    y: Array
    faults: Faults = field(default_factory=Faults)
    name: Callable[[int], str] | None = None
    person: Ids | None = None


def check_records(facts: Facts, raw: Raw, where: str, storage: Storage = MEMORY) -> tuple[Records, tuple[str, ...]]:
    """Turn raw arrays into records by the public facts; records that do not fit them are left out.

    Guarantee: whether a record is kept depends only on that record and `facts`.

    Args:
        facts: Shape and classes.
        raw: What was read.
        where: What it was read from, for errors and remarks.
        storage: Where the records are held.

    Returns:
        The records that fit, and a remark for every kind of record that does not.
    """
    x, y = raw.x, raw.y.reshape(-1)
    if len(x) != len(y):
        raise DataError(
            f"as many inputs as labels in {where}",
            "more inputs" if len(x) > len(y) else "more labels",
            "They come in pairs.",
            "Save both from the same records.",
        )
    if x.shape[1:] != facts.shape:
        raise DataError(f"records of shape {facts.shape} in {where}", f"{x.shape[1:]}", "All records share one shape.")
    if y.dtype.kind == "f":
        y = _positions(y)
    if y.dtype.kind not in "iub":
        raise DataError(
            f"whole numbers as labels in {where}",
            f"type {y.dtype}",
            "A label is a class's position, counted from 0.",
            "Convert them, such as y.astype('int64').",
        )
    if x.dtype != np.uint8 or x.ndim != 4:
        numbers = x.astype(np.float32, copy=False)
        raw.faults.add(_NUMBER, _unusable(numbers))
        x = numbers
    _check_labels(facts, raw, y.astype(np.int64))
    if raw.person is not None:
        _check_people(raw.person, len(x), where)
        leave_out_nobody(raw.person, raw.faults)
    kept = raw.faults.kept(len(x))
    told = raw.faults.told(where, raw.name)
    person = None if raw.person is None else number(raw.person)
    if raw.person is not None:
        own = [one for one, there in zip(raw.person, kept, strict=True) if there]
        told += about_people(own, facts.records_per_person if facts.unit == "person" else None)
    found = Records(x, y.astype(np.int64), person)
    return found if kept.all() else taken(found, np.flatnonzero(kept), storage), told


def _check_labels(facts: Facts, raw: Raw, y: NDArray[np.integer]) -> None:
    """Find the records whose label is no declared class, or target no step of its range, or without a next token."""
    classes = len(facts.classes)
    if facts.task == "language":
        raw.faults.add(_NOTHING_NEXT, np.flatnonzero(raw.x[:, 1] == 0))
        return
    if facts.target is None:
        unknown, known = Fault(f"a label outside 0 to {classes - 1}, of {classes} declared classes", _DO), classes
    else:
        unknown, known = Fault("a target outside its declared range", "Correct the cells or data.target."), STEPS + 1
    raw.faults.add(unknown, np.flatnonzero((y < 0) | (y >= known)))


def _check_people(person: Ids, count: int, where: str) -> None:
    if len(person) != count:
        raise DataError(
            f"as many identifiers of people as records in {where}",
            "more" if len(person) > count else "fewer",
            "They say whose each record is.",
            "Save both from the same records.",
        )


def check_classes(classes: tuple[str, ...]) -> tuple[str, ...]:
    """Check for at least two distinct class names; they are declared, so this is about the config."""
    if len(classes) < 2:
        raise DataError(
            "at least two classes",
            f"{len(classes)}",
            "With a single class there is nothing to learn, and a model's answers would be meaningless.",
            "Give all class names in data.classes.",
        )
    if len(set(classes)) < len(classes):
        raise DataError("every class name once in data.classes", "a duplicate", do="Remove it.")
    return classes


def _positions(y: Array) -> NDArray[np.int64]:
    """Labels with a decimal point as whole numbers; −1 for one that is none.

    numpy has one type for an array: where one label is missing, all others have a point.
    """
    with np.errstate(invalid="ignore"):
        return np.where((y == np.floor(y)) & (np.abs(y) < 2**31), y, -1).astype(np.int64)


def _unusable(x: NDArray[np.float32]) -> NDArray[np.int64]:
    """The positions of rows with a number that is not finite or too large."""
    found = [np.empty(0, np.int64)]
    step = max(1, _STEP // max(1, math.prod(x.shape[1:])))
    for start in range(0, len(x), step):
        block = x[start : start + step]
        with np.errstate(invalid="ignore"):
            bad = ~(np.abs(block.reshape(len(block), -1)) <= MAX_MAGNITUDE).all(axis=1)
        found.append(start + np.flatnonzero(bad))
    return np.concatenate(found)
