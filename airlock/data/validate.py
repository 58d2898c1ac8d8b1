"""What every load must pass, whatever it was read from: raw arrays in, `Records` out or a `DataError`.

An error here names rows by number (the first record is row 1), files and declared classes. It never shows a value.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from airlock.data.split import Array, Facts, Records, Split
from airlock.errors import DataError

Raw = tuple[Array, Array]
"""Inputs and labels as they were read, not checked yet."""
MAX_MAGNITUDE = 1e6
_STEP = 2**16


def check_records(facts: Facts, raw: Raw, where: str) -> Records:
    """Make records of raw arrays that fit the public facts; `where` says in an error what was read."""
    x, y = raw
    if len(x) != len(y.reshape(-1)):
        raise DataError(
            f"as many inputs as labels in {where}",
            "more inputs" if len(x) > y.size else "more labels",
            "They come in pairs.",
            "Save both from the same records.",
        )
    if not len(x):
        raise DataError(f"at least one record in {where}", "none", "Nothing can be trained or measured without.")
    if x.shape[1:] != facts.shape:
        raise DataError(f"records of shape {facts.shape} in {where}", f"{x.shape[1:]}", "All records share one shape.")
    if x.dtype != np.uint8 or x.ndim != 4:
        x = _check_numbers(x.astype(np.float32, copy=False), where)
    return Records(x, _labels(y.reshape(-1), len(facts.classes), where))


def check_classes(classes: tuple[str, ...]) -> tuple[str, ...]:
    """At least two class names, each one once."""
    if len(classes) < 2:
        raise DataError(
            "at least two classes",
            f"{len(classes)}",
            "With a single class there is nothing to learn, and a model's answers would say nothing.",
            "Give all class names in data.classes.",
        )
    if len(set(classes)) < len(classes):
        raise DataError("every class name once in data.classes", "one of them twice", do="Remove the second one.")
    return classes


def check_pool(facts: Facts, pool: Records, where: str) -> None:
    """At least two classes must occur."""
    if len(np.unique(pool.y)) < 2:
        raise DataError(
            f"records of at least two classes in {where}",
            "only one class",
            "With a single class there is nothing to learn.",
            "Check the labels and data.classes.",
        )


def check_private(split: Split) -> None:
    """No declared class may be without private records."""
    counts = np.bincount(split.private.y, minlength=len(split.facts.classes))
    empty = [name for name, count in zip(split.facts.classes, counts, strict=True) if not count]
    if empty:
        shown = ", ".join(f"'{name}'" for name in empty[:5]) + (f" and {len(empty) - 5} more" if len(empty) > 5 else "")
        raise DataError(
            "private records of every declared class",
            f"none of {shown}",
            "A class without records cannot be learnt, and its absence would show in what is released.",
            "Give more records, make the other parts in [split] smaller, or leave the class out of data.classes.",
        )


def _check_numbers(x: NDArray[np.float32], where: str) -> NDArray[np.float32]:
    for start in range(0, len(x), _STEP):
        rows = x[start : start + _STEP].reshape(len(x[start : start + _STEP]), -1)
        with np.errstate(invalid="ignore"):
            bad = ~(np.abs(rows) <= MAX_MAGNITUDE).all(axis=1)
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise DataError(
                f"finite numbers between -{MAX_MAGNITUDE:.0e} and {MAX_MAGNITUDE:.0e} in {where}",
                f"{'one outside' if np.isfinite(rows[row]).all() else 'NaN or infinity'} in row {start + row + 1}",
                "One such number spoils every gradient it meets.",
                "Fill in missing values and scale by public constants beforehand.",
            )
    return x


def _labels(y: Array, classes: int, where: str) -> NDArray[np.int64]:
    if y.dtype.kind not in "iub":
        raise DataError(
            f"whole numbers as labels in {where}",
            f"type {y.dtype}",
            "A label is a class's position, counted from 0.",
            "Convert them, such as y.astype('int64').",
        )
    bad = ~np.isin(y, np.arange(classes)) if y.dtype.kind != "b" else np.zeros(len(y), bool)
    if bad.any():
        raise DataError(
            f"labels from 0 to {classes - 1} in {where}",
            f"another one in row {int(np.flatnonzero(bad)[0]) + 1}",
            f"{classes} classes are declared.",
            "Correct the labels or data.classes.",
        )
    return y.astype(np.int64)
