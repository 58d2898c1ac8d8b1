"""A public set alongside the private one: its records are used without noise and are not protected.

In: the name or path of another set of images. Out: a `Split` whose `beside` holds that set in the private records'
shape. The public set is fixed before any other record is read and never depends on one. If a private, holdout or test
record also appears in it, *that* record is left out of its part, however many there are. This depends only on the
record and the public set, so neighbouring sets stay neighbours (adding a record that is already public changes nothing
at all). Dropping the public copy, or refusing the set, would let private records choose the front end or stop a
release.

The public set may say whose its records are (`person`), by the same identifiers as the private one. Nothing is left out
for that: what is public of a person is unprotected, and the private records are protected given the public ones. The
holder is told how many people are in both.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Set
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from airlock.config import DataConfig, ReleaseConfig, SplitConfig
from airlock.data.limits import Array
from airlock.data.loading import describe, read_all
from airlock.data.remarks import about_shared
from airlock.data.sources import named
from airlock.data.split import PLACED_BY, Facts, Public, Records, Split, joined
from airlock.data.validate import check_records
from airlock.errors import ConfigError

_UNPROTECTED = (
    ", which is public and used without noise: left out here, and not protected. "
    "If this is not intended, use another public set."
)
_IN_BOTH = (
    "{count} also {verb} records in {name}, which is public and used without noise: what is public of them is not "
    "protected, whatever the release does with the others."
)


def describe_public(public: DataConfig, config: ReleaseConfig, facts: Facts, data_dir: Path | None = None) -> Facts:
    """What is known about the public set before a record is read; refused if it is unsuitable.

    Raises:
        ConfigError: It is the private set itself, or the records of either are not images.
    """
    found = describe(_as_release(public, data_dir), data_dir)
    if _place(public.source, data_dir) == _place(config.data.source, data_dir):
        raise ConfigError(
            "a data set other than the private one as settings.public",
            "the same one",
            "Public records are used without noise.",
            'Name another set, or set a part aside with split.public and write public = "split".',
        )
    for what, shape in (("private", facts.shape), ("public", found.shape)):
        if len(shape) != 3 or shape[0] not in (1, 3):
            raise ConfigError(
                f"grey or colour images as {what} records with settings.public",
                f"records of shape {' × '.join(map(str, shape))}",
                "Public images can be resized to the private ones' shape; other records cannot be compared.",
                "Leave settings.public out.",
            )
    return found


def add_public(split: Split, public: DataConfig, data_dir: Path | None = None) -> Split:
    """The split with a public set added: all its records, including its test set.

    Images are converted to the private records' shape. Private, holdout and test records that also appear in the public
    set are left out of their parts, and the remarks say so.
    """
    beside, told = _read_public(public, data_dir, split.facts.shape)
    known = set(_contents(beside.records))
    private, holdout, test = (_without(part, known) for part in (split.private, split.holdout, split.test))
    for name, before, after in (
        ("private", split.private, private),
        ("holdout", split.holdout, holdout),
        ("test", split.test, test),
    ):
        told += about_shared(len(before) - len(after), name, beside.name, _UNPROTECTED)
    remarks = (*split.remarks, *told, *_about_people(split, beside))
    return replace(split, private=private, holdout=holdout, test=test, beside=beside, remarks=remarks)


def _about_people(split: Split, beside: Public) -> tuple[str, ...]:
    """A remark if people have records in both sets, as far as both say whose their records are."""
    parts = (split.private.person, split.test.person, split.holdout.person)
    mine, theirs = [one & PLACED_BY for one in parts if one is not None], beside.records.person
    if theirs is None or not mine:
        return ()
    count = len(np.intersect1d(np.concatenate(mine), theirs & PLACED_BY))
    people, verb = ("1 person", "has") if count == 1 else (f"{count:,} people", "have")
    return (_IN_BOTH.format(count=people, verb=verb, name=beside.name),) if count else ()


def open_public(public: DataConfig, data_dir: Path | None = None, shape: tuple[int, ...] | None = None) -> Public:
    """All records of a set that needs no protection, including its test set; images in `shape` if one is given."""
    return _read_public(public, data_dir, shape)[0]


def _read_public(
    public: DataConfig, data_dir: Path | None, shape: tuple[int, ...] | None
) -> tuple[Public, tuple[str, ...]]:
    facts, *both = read_all(_as_release(public, data_dir), data_dir)
    checked = [check_records(facts, raw, public.source) for raw in both if raw is not None]
    whole = functools.reduce(joined, [part for part, _ in checked])
    records = whole if shape is None else replace(whole, x=fit_shape(whole.x, shape))
    told = tuple(remark for _, remarks in checked for remark in remarks)
    return Public(facts.name, records, len(facts.classes), digest(records)), told


def halve(public: Public, second: bool) -> Public:
    """One half of the classes of a public set, the first or the second, numbered from 0.

    Raises:
        ConfigError: There are fewer than four classes.
    """
    if public.classes < 4:
        raise ConfigError("at least four classes, so that half of them can be learned", f"{public.classes}")
    middle = public.classes // 2
    kept = (public.records.y >= middle) == second
    own = public.records.take(np.flatnonzero(kept))
    records = replace(own, y=own.y - (middle if second else 0))
    name = f"{public.name}, {'second' if second else 'first'} half of the classes"
    return Public(name, records, public.classes - middle if second else middle, digest(records))


def digest(records: Records) -> str:
    """SHA-256 of inputs, labels and their shape: identifies a public set by its content."""
    found = hashlib.sha256(repr((records.x.shape, records.x.dtype.str)).encode())
    found.update(np.ascontiguousarray(records.x).data)
    found.update(np.ascontiguousarray(records.y).data)
    return found.hexdigest()


def fit_shape(x: Array, shape: tuple[int, ...]) -> Array:
    """Images (N, C, H, W) in another shape: channels averaged or repeated, centre-cropped, then resized."""
    colours, height, width = shape
    if x.shape[1:] == shape:
        return x
    if x.shape[1] != colours:
        x = np.broadcast_to(_like(x.mean(1, keepdims=True, dtype=np.float32), x), (len(x), colours, *x.shape[2:]))
    x = _middle(x, height / width)
    rows, columns = _resizing(x.shape[2], height), _resizing(x.shape[3], width)
    blocks = [_like(rows @ x[i : i + 1000].astype(np.float32) @ columns.T, x) for i in range(0, max(1, len(x)), 1000)]
    return np.concatenate(blocks)


def _middle(x: Array, ratio: float) -> Array:
    """The largest centre crop whose height is `ratio` times its width."""
    height, width = x.shape[2:]
    rows, columns = min(height, max(1, round(width * ratio))), min(width, max(1, round(height / ratio)))
    top, left = (height - rows) // 2, (width - columns) // 2
    return x[:, :, top : top + rows, left : left + columns]


def _resizing(found: int, wanted: int) -> NDArray[np.float32]:
    """Linear interpolation along one side; when shrinking, the window is as wide as a new pixel."""
    scale = found / wanted
    centres = (np.arange(wanted) + 0.5) * scale - 0.5
    distance = np.abs(np.arange(found)[None] - centres[:, None]) / max(scale, 1.0)
    weights = np.clip(1.0 - distance, 0.0, None)
    return np.asarray(weights / weights.sum(1, keepdims=True), np.float32)


def _like(values: NDArray[np.float32], x: Array) -> Array:
    return values.round().clip(0, 255).astype(np.uint8) if x.dtype == np.uint8 else values


def _contents(records: Records) -> list[bytes]:
    """A digest of every record's input scaled to [0, 1]: an image has the same digest in bytes and in floats."""
    scale = np.float32(255 if records.x.dtype == np.uint8 else 1)
    return [hashlib.blake2b((x.astype(np.float32) / scale).tobytes(), digest_size=16).digest() for x in records.x]


def _without(records: Records, known: Set[bytes]) -> Records:
    """The records whose input is not in `known`."""
    return records.take(np.flatnonzero([content not in known for content in _contents(records)]))


def _as_release(public: DataConfig, data_dir: Path | None) -> ReleaseConfig:
    """The public set as the data of a config of its own; its sizes are not private and need not be declared."""
    if named(public.source, data_dir) is None:
        public = public.model_copy(update={"records": public.records or 1, "name": public.name or "the public set"})
    fractions = SplitConfig(test=0.0, holdout=0.0)
    return ReleaseConfig(channel="", data=public, epsilon=1.0, delta=0.5, split=fractions, unit="record")


def _place(source: str, data_dir: Path | None) -> str:
    known = named(source, data_dir)
    return known[0].name if known else str(Path(source).resolve())
