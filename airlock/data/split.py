"""The values of this package: `Facts` (what is public), `Records`, and `Split` (which record is in which part).

A record's part is decided by a keyed hash, not by its position: of its content and, where several records of the file
are equal, of its number among them (`positions`). Adding or removing one record moves no other. Equal records fall into
parts independently of each other, as different ones do, so every part is a random sample of the records even if only a
few different rows exist. Part sizes follow the fractions up to random variation, and a part may be empty. A part orders
its records by their digests.

Classes may be kept out of the public part (`split.public_without`): records that would have been public are private
instead. This depends only on the record's own label, so all of the above still holds.

Shards: private records in M disjoint parts, for models that are trained on one shard each. Guarantee: a record's shard
follows from the same kind of hash, so every record is in exactly one shard, and adding or removing a record changes one
shard and no other. A record that is *replaced* may leave one shard and enter another, so two shards may change. A shard
orders its records by their digests, not by their positions, so what is computed from it does not depend on the records
of other shards. It may be empty.

People. Where records say whose they are (`Records.person`), the hash is that of the person's number instead of the
content: all records of a person are in one part and in one shard, and everything above holds for people in place of
records. A number says who it is, not where she stands in the file (`data.people`): adding or removing a person moves no
other.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from airlock.config import Column, ReadOff, SplitConfig, TargetRange
from airlock.data.limits import MEMORY, Array, Storage
from airlock.errors import ConfigError

Part = Literal["private", "public", "test", "holdout"]
Task = Literal["classification", "regression", "language"]
Digests = NDArray[np.uint64]
"""(N, 2): the two halves of a digest of 16 bytes, most significant first; ordered like the digests."""
_LAST = 1.0 - 2.0**-53  # the largest position: private
_SHOWN = 20  # class names in an error
_CHOSEN = b"airlock chosen"
# The bits of a person's number that decide where she is: they follow from her identifier alone. The bits above tell
# apart people whose identifiers have the same hash (`data.people`).
PLACED_BY = 2**53 - 1


@dataclass(frozen=True)
class Facts:
    """What is public about a data set, known before a record is read.

    Args:
        name: What the card calls it.
        shape: The shape of one record: (features,) or (channels, height, width).
        classes: The class names, in the order of the labels; none where a number or the next token is predicted.
        records: The public number of records from which the private part is taken; it need not be exact.
        test_records: The size of the official test set; None if the test records are split off from `records`.
        origin: One sentence for the card: where the data and its sizes come from.
        people: The public number of people whose records these are; None if the protected unit is a record.
        records_per_person: The declared bound K on the records of one person that a step or a release uses.
        grouped: Whether the data say whose a record is although the unit is a record: people stay together in the
            split, and a person with several records is protected less.
        columns: Of a table: its columns by name, in the order in which they are encoded; empty for other data.
        read_off: Which of these declarations the owner read off the records; the guarantee does not cover them.
        target: The range of the number that is predicted; None where records have classes.
        vocabulary: Of texts: how many different numbers a record may hold, which are then whole numbers below it (0:
            nothing; otherwise a token's number plus 1); None for other data.
        tokenizer: Of texts: SHA-256 of the public tokenizer.json that they were encoded by.
    """

    name: str
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    records: int
    test_records: int | None
    origin: str
    people: int | None = None
    records_per_person: int = 1
    grouped: bool = False
    columns: tuple[tuple[str, Column], ...] = ()
    read_off: tuple[ReadOff, ...] = ()
    target: TargetRange | None = None
    vocabulary: int | None = None
    tokenizer: str | None = None

    @property
    def task(self) -> Task:
        """What is learnt: which class a record has, a number, or the next token of a text that has no label."""
        if self.target is not None:
            return "regression"
        return "classification" if self.classes else "language"

    @property
    def outputs(self) -> int:
        """How many outputs a network for it has; 0 for a language model, which has one for each token (`nets`)."""
        return len(self.classes) if self.target is None else 1

    @property
    def unit(self) -> Literal["person", "record"]:
        """Whose presence is protected."""
        return "record" if self.people is None else "person"

    @property
    def counted(self) -> str:
        """What `expected` counts, in words."""
        return "records" if self.people is None else "people"

    def expected(self, part: Part, fractions: SplitConfig) -> int:
        """The public size of a part according to the fractions (at least 1 for the private one); never counted.

        Units are counted: people where the unit is a person, records otherwise.

        The number of records per class is not public. If classes are kept out of the public part, all classes are
        assumed to be equally frequent, and the private and public sizes may be off by as much as that is wrong.
        Sampling probabilities and divisors follow from this figure whatever the records are, so accuracy may suffer but
        the guarantee does not.
        """
        if part == "test" and self.test_records is not None:
            return self.test_records
        own = share(part, fractions, self.test_records is not None)
        moved = fractions.public * len(fractions.public_without) / max(1, len(self.classes))
        own += {"private": moved, "public": -moved}.get(part, 0.0)
        return max(round((self.records if self.people is None else self.people) * own), part == "private")

    def rows(self, units: float) -> float | None:
        """How many records so many people have in a lot, at the public figures; None where records are drawn."""
        if self.people is None:
            return None
        return units * min(self.records_per_person, max(1.0, self.records / self.people))

    @property
    def encoded_bytes(self) -> int:
        """How many bytes the records have once they are encoded, at the public figures."""
        each = math.prod(self.shape) * (1 if len(self.shape) == 3 else 4)
        return each * (self.records + (self.test_records or 0))

    @property
    def most(self) -> int | None:
        """The most records of a person in a lot; None where records are drawn."""
        return None if self.people is None else self.records_per_person

    def expected_records(self, part: Part, fractions: SplitConfig) -> int:
        """The same counted in records, at the public number of records per person."""
        units = self.expected(part, fractions)
        return units if self.people is None else max(units, round(units * self.records / self.people))

    def without(self, fractions: SplitConfig) -> tuple[int, ...]:
        """The labels of the classes that are kept out of the public part.

        Raises:
            ConfigError: It names a class that does not exist, or all of them.
        """
        if not fractions.public_without:
            return ()
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
    """Which records are whose: those of person i are at the positions `rows[starts[i] : starts[i + 1]]`.

    Args:
        rows: Positions ordered by person, in the order of the records; people in the order of first appearance.
        starts: Where each person begins in `rows`, and last its length.
    """

    rows: NDArray[np.int64]
    starts: NDArray[np.int64]


@dataclass(frozen=True)
class Records:
    """Inputs and labels of equal length: uint8 images (scaled by 1/255 when used) or float32, and int64 labels.

    Args:
        x: Inputs.
        y: Labels: places of classes, or targets in steps of their declared range (`config.STEPS`); 0
            where there are none.
        person: Whose each record is: equal numbers are the same person. None: every record is a person of its own.
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
        """How many people there are; records, where nothing says whose they are."""
        return len(self) if self.person is None else len(np.unique(self.person))

    def groups(self) -> Groups:
        """The records of each person."""
        if self.person is None:
            return Groups(np.arange(len(self)), np.arange(len(self) + 1))
        _, first, place = np.unique(self.person, return_index=True, return_inverse=True)
        turn = np.empty(len(first), np.int64)
        turn[np.argsort(first)] = np.arange(len(first))
        whose = turn[place]
        starts = np.concatenate([[0], np.cumsum(np.bincount(whose, minlength=len(first)))])
        return Groups(np.argsort(whose, kind="stable").astype(np.int64), starts.astype(np.int64))

    @property
    def weights(self) -> NDArray[np.float64]:
        """1/k for each record of a person with k of them, so that everybody weighs one."""
        if self.person is None:
            return np.ones(len(self))
        _, place, times = np.unique(self.person, return_inverse=True, return_counts=True)
        return np.asarray(1.0 / times[place])

    def __repr__(self) -> str:
        return "Records(not shown)"


def joined(first: Records, second: Records) -> Records:
    """Both sets, one after the other; whose they are is known if it is known of both."""
    both = [side.person for side in (first, second) if side.person is not None]
    person = np.concatenate(both) if len(both) == 2 else None
    return Records(np.concatenate([first.x, second.x]), np.concatenate([first.y, second.y]), person)


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

    Any part may be empty, and any declared class may be missing in any part. Where the unit is a person, nobody is in
    two parts.

    Args:
        facts: What is public.
        private: The records that the release protects.
        public: Records that the holder declares public; used without noise.
        test: The records that utility is measured on; where the unit is a person, one record of each.
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


def taken(records: Records, index: NDArray[np.int64], storage: Storage) -> Records:
    """The records at these positions, each at most once, held like the others of a release."""
    person = None if records.person is None else records.person[index]
    return Records(storage.take(records.x, index), records.y[index], person)


def taken_apart(records: Records, indices: Sequence[NDArray[np.int64]], storage: Storage) -> Iterator[Records]:
    """The records at each of these lists of positions, none of which is on two of them."""
    if storage.folder is None:
        yield from map(records.take, indices)
        return
    whole = taken(records, np.concatenate(indices), storage)
    for start, end in itertools.pairwise(np.cumsum([0, *map(len, indices)]).tolist()):
        person = None if whole.person is None else whole.person[start:end]
        yield Records(whole.x[start:end], whole.y[start:end], person)


def divide(
    facts: Facts,
    pool: Records,
    test: Records | None,
    fractions: SplitConfig,
    seed: int,
    storage: Storage = MEMORY,
) -> Split:
    """Assign every record of the pool to a part by its hash under `seed`: of content and number, or of its person.

    Public records of classes in `public_without` become private; the other parts do not change. Where records say whose
    they are, a public person with a record of such a class becomes private with all her records. An official test set
    is, as a whole, the test part.

    Guarantee: parts compose in parallel under add-remove. Let M₁, …, M₄ be mechanisms with independent randomness, one
    for each part, each (εᵢ, δᵢ)-DP under add-remove, and each reading only its own part. Then all their outputs
    together are (max εᵢ, max δᵢ)-DP for adding or removing one record of the pool or the test file.

    Proof. Write the pool as the set of its pairs (content, number among the equal records), the numbers counted from 0.
    The set does not depend on the order of the file, and adding one record adds exactly one pair to it, with the next
    free number, wherever in the file the record is put; removing one removes the pair with the last number. The part of
    a pair is a function of that pair, the public seed and the public fractions, and a part is the list of the contents
    of its pairs in the order of their digests. So adding or removing one record adds one content to one part or removes
    it there, and the other three are unchanged, including their order. An official test file is a part by itself. The
    joint output is a product of independent outputs, three of which have the same distribution on both sides;
    conditioned on those, the fourth is that of a mechanism on neighbouring inputs. ∎

    Records are an independent sample of those in the file, for every part, whether rows repeat or not: the digests of
    different pairs are independent. That is what the intervals of `auditing.evaluation` and the coins of
    `auditing.members` rest on.

    This is why records that are both in the pool and in the official test file are not removed from either: the pool
    would then decide who is tested on, or vice versa, and one additional person would move several records.

    The same for people, where the unit is a person: for adding or removing one person with all her records, if each Mᵢ
    is (εᵢ, δᵢ)-DP for that. Proof. There is one file (a separate test file is refused: a person could be in both). The
    part of a record is a function of its person's number, of the labels of that person's own records, of the seed and
    of the fractions. It is the same for all records of a person, and no other person is read to place her. So all her
    records enter or leave exactly one part, the other three are unchanged, and the rest is as above. In the test part
    one record of each person is kept, chosen by a hash of her own records (`at_most`): she adds one record to that
    part, or removes one, and no other person's record changes. ∎
    """
    position, digests = positions(pool, seed)
    order = in_order(digests) if pool.person is None else np.arange(len(pool), dtype=np.int64)
    kept_out = _kept_out(facts, pool, fractions) & (position < fractions.public)
    position = np.where(kept_out, _LAST, position)[order]
    places: dict[Part, NDArray[np.int64]] = {}
    low = 0.0
    names: tuple[Part, ...] = ("public", "test", "holdout", "private")
    for part in names:
        high = low + share(part, fractions, test is not None) if part != "private" else 1.0
        places[part] = order[(position >= low) & (position < high)]
        low = high
    parts = dict(zip(names, taken_apart(pool, [places[part] for part in names], storage), strict=True))
    if test is not None:
        parts["test"] = test
    if facts.unit == "person":
        parts["test"] = at_most(parts["test"], 1, seed, storage)
    else:  # records of one person stayed together, but each is protected, weighed and counted by itself
        parts = {part: replace(records, person=None) for part, records in parts.items()}
    return Split(facts, parts["private"], parts["public"], parts["test"], parts["holdout"])


def _kept_out(facts: Facts, pool: Records, fractions: SplitConfig) -> NDArray[np.bool_]:
    """Which records may not be public: those of a kept-out class, and all others of the same person."""
    found = np.isin(pool.y, facts.without(fractions))
    return found if pool.person is None else np.isin(pool.person, pool.person[found])


def limited(records: Records, most: int, seed: int) -> NDArray[np.int64]:
    """The positions of at most so many records of each person: those with the smallest hashes of content under `seed`.

    Which records of a person are kept follows from her own records alone. Records that nobody is named for stay.
    """
    if records.person is None:
        return np.arange(len(records), dtype=np.int64)
    groups, kept = records.groups(), np.ones(len(records), bool)
    for start, end in itertools.pairwise(groups.starts.tolist()):
        if end - start > most:
            own = groups.rows[start:end]
            digests = content_digests(records.take(own), seed.to_bytes(8, "big"), _CHOSEN)
            kept[own[sorted(range(len(own)), key=digests.__getitem__)[most:]]] = False
    return np.flatnonzero(kept)


def at_most(records: Records, most: int, seed: int, storage: Storage = MEMORY) -> Records:
    """These records (`limited`)."""
    return records if records.person is None else taken(records, limited(records, most, seed), storage)


def positions(records: Records, seed: int, purpose: bytes = b"") -> tuple[NDArray[np.float64], Digests]:
    """A position in [0, 1) for every record and the digest it came from: by its person, else by content and number.

    The number counts equal records in their order, from 0. Which of them has which number makes no difference to
    anything that is computed from the records, since they are equal. Positions for different purposes are independent
    of each other.
    """
    key = seed.to_bytes(8, "big")
    if records.person is not None:
        digests = halves(person_digests(records, key, purpose), len(records))
    else:
        digests = _numbered(halves(each_content_digest(records, key, purpose), len(records)), key, purpose)
    return (digests[:, 0] >> np.uint64(11)).astype(np.float64) * 2.0**-53, digests


def halves(digests: Iterable[bytes], count: int) -> Digests:
    """So many digests as one array: 16 bytes each."""
    return np.fromiter(digests, "V16", count).view(">u8").reshape(count, 2).astype(np.uint64)


def in_order(digests: Digests) -> NDArray[np.int64]:
    """The positions of the smallest digest, the next, ...; of equal ones in their order."""
    return np.lexsort((digests[:, 1], digests[:, 0])).astype(np.int64)


def _numbered(digests: Digests, key: bytes, purpose: bytes) -> Digests:
    """A digest of its own for each of several equal records; the first keeps that of its content."""
    order = in_order(digests)
    sorted_ = digests[order]
    repeated = np.flatnonzero((sorted_[1:] == sorted_[:-1]).all(axis=1)) + 1
    found, number, before = digests.copy(), 0, -1
    for place in repeated.tolist():
        number = number + 1 if place == before + 1 else 1
        before = place
        again = sorted_[place].astype(">u8").tobytes() + number.to_bytes(8, "big")
        again = hashlib.blake2b(again, digest_size=16, key=key, person=purpose).digest()
        found[order[place]] = np.frombuffer(again, ">u8")
    return found


def person_digests(records: Records, key: bytes, purpose: bytes = b"") -> list[bytes]:
    """A keyed hash of whose each record is; a function of that person's identifier alone (`PLACED_BY`).

    Raises:
        ValueError: The records do not say whose they are.
    """
    if records.person is None:
        raise ValueError("records that say whose they are have a person")
    people, place = np.unique(records.person, return_inverse=True)
    digests = [
        hashlib.blake2b(int(one).to_bytes(8, "big"), digest_size=16, key=key, person=purpose).digest()
        for one in people & PLACED_BY
    ]
    return [digests[i] for i in place]


def content_digests(records: Records, key: bytes, purpose: bytes = b"") -> list[bytes]:
    """A keyed hash of every record's input and label; equal records have equal digests."""
    return list(each_content_digest(records, key, purpose))


def each_content_digest(records: Records, key: bytes, purpose: bytes = b"") -> Iterator[bytes]:
    """The same, one after the other."""
    rows = np.ascontiguousarray(records.x).reshape(len(records), math.prod(records.x.shape[1:]))
    for row, label in zip(rows, records.y, strict=True):
        content = row.tobytes() + int(label).to_bytes(8, "big", signed=True)
        yield hashlib.blake2b(content, digest_size=16, key=key, person=purpose).digest()


# Shards.

_SHARDS = b"airlock shards"


def shard(records: Records, count: int, seed: int) -> list[NDArray[np.int64]]:
    """The positions of the records in each shard.

    Guarantee: adding or removing one record, or one person with all her records where those say whose they are, changes
    one shard and no other. Proof. The shard of a record is a function of its content and its number among equal
    records, and adding a record adds the pair with the next free number (as for `divide`); or of its person's number.
    The order within a shard is that of the digests, or of (how many records of the same person come before it in the
    file, digest, number), in which nobody else's records occur: the others keep their order when somebody comes or
    goes. ∎

    The first record of everybody comes before anybody's second one, so that whoever takes the first few records of a
    shard (`even`) meets as many people as possible.

    Args:
        records: The private records.
        count: How many shards.
        seed: The key of the hash; public.
    """
    numbers, digests = positions(records, seed, _SHARDS)
    own = np.minimum((numbers * count).astype(np.int64), count - 1)
    by_digest = in_order(digests) if records.person is None else _by_turns(records, digests)
    ordered = by_digest[np.argsort(own[by_digest], kind="stable")]
    return np.split(ordered, np.searchsorted(own[ordered], np.arange(1, count)))


def _by_turns(records: Records, digests: Digests) -> NDArray[np.int64]:
    """The positions in the order of (records of the same person before it, digest, number of the person)."""
    groups = records.groups()
    turn = np.empty(len(records), np.int64)
    turn[groups.rows] = np.arange(len(records)) - np.repeat(groups.starts[:-1], np.diff(groups.starts))
    return np.lexsort((records.person, digests[:, 1], digests[:, 0], turn)).astype(np.int64)  # type: ignore[arg-type]


def even(own: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Exactly `count` positions: the first ones, or all of them cyclically."""
    return np.resize(own, count)
