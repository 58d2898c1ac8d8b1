"""The values of this package: `Facts` (what is public), `Records`, and `Split` (which record is in which part).

A record's part is decided by a keyed hash of its own content, not by its position: adding or removing one record moves
no other, and equal records of one file are always in the same part. Part sizes follow the fractions up to random
variation, and a part may be empty.

Classes may be kept out of the public part (`split.public_without`): records that would have been public are private
instead. This depends only on the record's own label, so all of the above still holds.

Shards: private records in M disjoint parts, for models that are trained on one shard each. Guarantee: a record's shard
follows from a keyed hash of its own content, so every record is in exactly one shard, and adding or removing a record
changes one shard and no other. Equal records share a shard. A record that is *replaced* may leave one shard and enter
another, so two shards may change. A shard orders its records by their digests, not by their positions, so what is
computed from it does not depend on the records of other shards. It may be empty.
"""

from __future__ import annotations

import difflib
import hashlib
import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from airlock.config import SplitConfig
from airlock.errors import ConfigError

Part = Literal["private", "public", "test", "holdout"]
Array = NDArray[np.generic]
_LAST = 1.0 - 2.0**-53  # the largest position: private
_SHOWN = 20  # class names in an error


@dataclass(frozen=True)
class Facts:
    """What is public about a data set, known before a record is read.

    Args:
        name: What the card calls it.
        shape: The shape of one record: (features,) or (channels, height, width).
        classes: The class names, in the order of the labels.
        records: The public number of records from which the private part is taken; it need not be exact.
        test_records: The size of the official test set; None if the test records are split off from `records`.
        origin: One sentence for the card: where the data and its sizes come from.
        people: The public number of people whom the records belong to; it need not be exact. None if each record is
            protected by itself.
        records_per_person: The declared bound on how many of a person's records are used at a time.
    """

    name: str
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    records: int
    test_records: int | None
    origin: str
    people: int | None = None
    records_per_person: int = 1

    @property
    def unit(self) -> Literal["person", "record"]:
        """Whose presence is protected."""
        return "record" if self.people is None else "person"

    def expected(self, part: Part, fractions: SplitConfig) -> int:
        """The public size of a part according to the fractions (at least 1 for the private one); never counted.

        It counts people where their number is declared, and records otherwise.

        The number of records per class is not public. If classes are kept out of the public part, all classes are
        assumed to be equally frequent, and the private and public sizes may be off by as much as that is wrong.
        Sampling probabilities and divisors follow from this figure whatever the records are, so accuracy may suffer but
        the guarantee does not.
        """
        if part == "test" and self.test_records is not None:
            return self.test_records
        own = share(part, fractions, self.test_records is not None)
        moved = fractions.public * len(fractions.public_without) / len(self.classes)
        own += {"private": moved, "public": -moved}.get(part, 0.0)
        units = self.records if self.people is None else self.people
        return max(round(units * own), part == "private")

    def without(self, fractions: SplitConfig) -> tuple[int, ...]:
        """The labels of the classes that are kept out of the public part.

        Raises:
            ConfigError: It names a class that does not exist, or all of them.
        """
        unknown = next((name for name in fractions.public_without if name not in self.classes), None)
        if unknown is not None:
            near = difflib.get_close_matches(unknown, self.classes, n=1)
            known = ", ".join(self.classes[:_SHOWN]) + (", ..." if len(self.classes) > _SHOWN else "")
            hint = f"Did you mean '{near[0]}'?" if near else f"Known classes: {known}."
            raise ConfigError("names of classes in split.public_without", f"'{unknown}'", do=hint)
        if len(fractions.public_without) == len(self.classes):
            raise ConfigError(
                "at least one class outside split.public_without",
                "all of them",
                "No public record would be left.",
                "Leave some out, or set split.public = 0.",
            )
        return tuple(self.classes.index(name) for name in fractions.public_without)


def share(part: Part, fractions: SplitConfig, has_test: bool) -> float:
    """The fraction of the pool that goes to `part`; with an official test set, no test part is split off."""
    test = 0.0 if has_test else fractions.test
    rest = {"public": fractions.public, "test": test, "holdout": fractions.holdout}
    return rest[part] if part in rest else 1.0 - sum(rest.values())


@dataclass(frozen=True)
class Groups:
    """Which records belong to whom.

    Args:
        rows: The positions of all records, those of one person adjacent and in their order; people in the order in
            which they first appear.
        starts: Where each person's positions begin in `rows`, and at the end their number.
    """

    rows: NDArray[np.int64]
    starts: NDArray[np.int64]


@dataclass(frozen=True)
class Records:
    """Inputs and labels of equal length: uint8 images (scaled by 1/255 when used) or float32, and int64 labels.

    Args:
        x: The inputs.
        y: The labels.
        person: Whose record it is: equal numbers are the same person. None: every record is a person of its own.
    """

    x: Array
    y: NDArray[np.int64]
    person: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: Array) -> Records:
        """The records at these positions."""
        return Records(self.x[index], self.y[index], None if self.person is None else self.person[index])

    @property
    def units(self) -> int:
        """How many people there are; without `person`, how many records."""
        return len(self) if self.person is None else len(np.unique(self.person))

    @property
    def weights(self) -> NDArray[np.float64]:
        """1/k for every record of a person with k records."""
        if self.person is None:
            return np.ones(len(self))
        _, place, count = np.unique(self.person, return_inverse=True, return_counts=True)
        return np.asarray(1.0 / count[place])

    def groups(self) -> Groups:
        """Which records belong to whom."""
        if self.person is None:
            every = np.arange(len(self) + 1, dtype=np.int64)
            return Groups(every[:-1], every)
        _, first, place, count = np.unique(self.person, return_index=True, return_inverse=True, return_counts=True)
        order = np.argsort(first, kind="stable")  # people by their first appearance
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        starts = np.concatenate([[0], np.cumsum(count[order])]).astype(np.int64)
        return Groups(np.argsort(rank[place], kind="stable").astype(np.int64), starts)

    def __repr__(self) -> str:
        return "Records(not shown)"


@dataclass(frozen=True)
class Public:
    """A separate public set: used without noise and not protected.

    Args:
        name: What the card calls it.
        records: In the shape of the private records; the labels are its own.
        classes: The number of its own classes.
        digest: SHA-256 of the records.
    """

    name: str
    records: Records
    classes: int
    digest: str


@dataclass(frozen=True)
class Split:
    """The four parts, and a separate public set if one was requested; a record is never in two of them.

    Any part may be empty, and any declared class may be missing in any part.

    Args:
        facts: What is public.
        private: The records that the release protects.
        public: Records that the holder declares public; used without noise.
        test: The records that utility is measured on.
        holdout: For attacks: drawn like the private records, but never trained on.
        beside: A separate public set.
        remarks: What the holder should know about the records. It depends on them and is not paid for: it is for the
            holder's terminal and the vault, and never leaves.
    """

    facts: Facts
    private: Records
    public: Records
    test: Records
    holdout: Records
    beside: Public | None = None
    remarks: tuple[str, ...] = field(default=(), repr=False)


def divide(facts: Facts, pool: Records, test: Records | None, fractions: SplitConfig, seed: int) -> Split:
    """Assign every record of the pool to a part by the hash of its content under `seed`.

    Public records of classes in `public_without` become private; the other parts do not change. An official test set
    is, as a whole, the test part.

    Guarantee: parts compose in parallel under add-remove. Let M₁, …, M₄ be mechanisms with independent randomness, one
    for each part, each (εᵢ, δᵢ)-DP under add-remove, and each reading only its own part. Then all their outputs
    together are (max εᵢ, max δᵢ)-DP for adding or removing one record of the pool or the test file.

    Proof. The part of a record is a function of the file it is in, its own content, the public seed and the public
    fractions: the code below never reads a second record to place a first (a part is a filter of its file). So adding
    or removing one record adds it to or removes it from exactly one part, and the other three are unchanged, including
    their order. The joint output is a product of independent outputs, three of which have the same distribution on both
    sides; conditioned on those, the fourth is that of a mechanism on neighbouring inputs. ∎

    This is why records that are both in the pool and in the official test file are not removed from either: the pool
    would then decide who is tested on, or vice versa, and one additional person would move several records.
    """
    position = positions(pool, seed)[0]
    parts: dict[Part, Records] = {}
    low = 0.0
    names: tuple[Part, ...] = ("public", "test", "holdout", "private")
    kept_out = np.isin(pool.y, facts.without(fractions)) & (position < fractions.public)
    position = np.where(kept_out, _LAST, position)
    for part in names:
        high = low + share(part, fractions, test is not None) if part != "private" else 1.0
        parts[part] = pool.take(np.flatnonzero((position >= low) & (position < high)))
        low = high
    own_test = test if test is not None else parts["test"]
    return Split(facts, parts["private"], parts["public"], own_test, parts["holdout"])


def positions(records: Records, seed: int, purpose: bytes = b"") -> tuple[NDArray[np.float64], list[bytes]]:
    """A number in [0, 1) for every record from its content and the seed, and the digest it came from.

    Numbers for different purposes are independent of each other.
    """
    digests = content_digests(records, seed.to_bytes(8, "big"), purpose)
    head = np.frombuffer(b"".join(digests), ">u8").reshape(-1, 2)[:, 0]
    return (head >> np.uint64(11)).astype(np.float64) * 2.0**-53, digests


def content_digests(records: Records, key: bytes, purpose: bytes = b"") -> list[bytes]:
    """A keyed hash of every record's input and label; equal records have equal digests."""
    rows = np.ascontiguousarray(records.x).reshape(len(records), math.prod(records.x.shape[1:]))
    return [
        hashlib.blake2b(
            row.tobytes() + int(label).to_bytes(8, "big", signed=True), digest_size=16, key=key, person=purpose
        ).digest()
        for row, label in zip(rows, records.y, strict=True)
    ]


# Shards.

_SHARDS = b"airlock shards"


def shard(records: Records, count: int, seed: int) -> list[NDArray[np.int64]]:
    """The positions of the records in each shard.

    Args:
        records: The private records.
        count: How many shards.
        seed: The key of the hash; public.
    """
    numbers, digests = positions(records, seed, _SHARDS)
    own = np.minimum((numbers * count).astype(np.int64), count - 1)
    by_digest = np.array(sorted(range(len(digests)), key=digests.__getitem__), dtype=np.int64)
    ordered = by_digest[np.argsort(own[by_digest], kind="stable")]
    return np.split(ordered, np.searchsorted(own[ordered], np.arange(1, count)))


def even(own: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Exactly `count` positions: the first ones, or all of them cyclically."""
    return np.resize(own, count)
