"""Which records take part in an attack: equally many members and non-members, and the number is public.

The bound on ε needs fair and independent coins (`one_run_audit`), but independent coins would not give equal numbers of
both sides. So a `Game` is drawn among these records, record by record. A record is private with probability p and in
the holdout with probability h, by a keyed hash. Given that it is one of the two, it stays in the game
with probability t/p or t/h respectively, for one t: then each record that stays is a member with probability 1/2,
independently of the others. Equivalently, the first K of a random order stay, with K binomial; in the rare case that K
exceeds the number of records taking part, none stays and there is no bound. Equal records have a coin each, because the
hash counts them (`data.split.positions`). Another hash, of the content alone, assigns each record to a half of the
game: that must not depend on the coins, and a number among the equal members would.

Where the unit is a person, people take part in place of records, with at most `records_per_person` records each: a
person has one coin, by the hash of the identifier, and one score, the mean over those records. Where people stay
together in the split although the unit is a record, the coins of records are not independent, and nobody is in the
game.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from airlock.auditing.attacks.signals import Mask
from airlock.auditing.bounds import Floats
from airlock.auditing.one_run_audit import Game
from airlock.auditing.result import Scores
from airlock.config import SplitConfig
from airlock.data import Facts, Records, Split, at_most, joined, limited, person_digests, share
from airlock.data.split import Part, each_content_digest
from airlock.training.loop import mix

FEWEST = 50
PARTS: tuple[Part, ...] = ("private", "holdout")
TOO_FEW = (
    "Membership inference: it takes {fewest} {counted} of the private part and as many of the holdout, after room for "
    "chance, and the declared number leaves {found}. {remedy}"
)
GROUPED = "Whether a person as a whole was in the data: attacks look at single records, and people here have several."
_DEVIATIONS = 3.0  # below the expected size: actual sizes vary around it, and the figure must not depend on them
_SPARE = 3.0  # standard deviations by which the expected number that stays is below the number that takes part

Order = NDArray[np.int64]


@dataclass(frozen=True)
class AttackSet:
    """The records that an attack is scored on; those of a person are adjacent."""

    members: Records
    others: Records
    private: Records  # the whole part
    left: Order  # where in it the records are that are no members
    game: Game  # which members and others count for the bound on ε

    @property
    def rest(self) -> Records:
        """The private records that are no members."""
        return self.private.take(self.left)

    def pooled(self, scores: Scores) -> Scores:
        """One score for each person, the mean over the records; the class is that of the first."""
        if self.members.person is None:
            return scores
        mine, theirs = self.members, self.others

        def again(repeats: Floats | None, side: Records) -> Floats | None:
            return None if repeats is None else np.stack([by_person(row, side) for row in repeats])

        return replace(
            scores,
            members=by_person(scores.members, mine),
            others=by_person(scores.others, theirs),
            member_classes=scores.member_classes[_firsts(mine)],
            other_classes=scores.other_classes[_firsts(theirs)],
            member_repeats=again(scores.member_repeats, mine),
            other_repeats=again(scores.other_repeats, theirs),
        )

    def limited(self, most: int, seed: int) -> AttackSet:
        """The same with at most so many records of each person."""
        members, others = (at_most(side, most, seed) for side in (self.members, self.others))
        return replace(self, members=members, others=others)

    @property
    def pool(self) -> Records:
        """Members, then others."""
        return joined(self.members, self.others)

    @property
    def member(self) -> Mask:
        """Which records of the pool are members."""
        return np.arange(len(self.pool)) < len(self.members)


def by_person(scores: Floats, records: Records) -> Floats:
    """The mean score of each person, from that person's records alone, bit for bit; the smallest if one is not finite.

    Args:
        scores: One for each record.
        records: Whose they are.
    """
    if records.person is None:
        return np.asarray(scores)
    groups = records.groups()
    found = []
    for start, end in itertools.pairwise(groups.starts.tolist()):
        own = np.asarray(scores)[groups.rows[start:end]].tolist()
        finite = all(map(math.isfinite, own))
        found.append(math.fsum(own) / len(own) if finite else -math.inf if any(map(math.isnan, own)) else min(own))
    return np.array(found, np.float64)


def units_of(records: Records) -> Order:
    """For each record, the number of its person in the order of appearance; or of the record itself."""
    groups = records.groups()
    found = np.empty(len(records), np.int64)
    found[groups.rows] = np.repeat(np.arange(len(groups.starts) - 1), np.diff(groups.starts))
    return found


def left_out(split: Split) -> tuple[str, ...]:
    """What no attack looks at, in words: a person as a whole, where people have several records and the unit is one."""
    return (GROUPED,) if split.facts.grouped else ()


def _firsts(records: Records) -> Order:
    """The position of the first record of each person, or of each record."""
    groups = records.groups()
    return groups.rows[groups.starts[:-1]]


def _of(records: Records, units: Order) -> Records:
    """The records of these people, in this order; or these records."""
    if records.person is None:
        return records.take(units)
    groups = records.groups()
    own = [groups.rows[groups.starts[i] : groups.starts[i + 1]] for i in units]
    return records.take(np.concatenate([np.empty(0, np.int64), *own]))


def public_count(facts: Facts, part: Part, fractions: SplitConfig, most: int) -> int:
    """How many records, or people, of a part may take part: derived from public figures, never from the actual size."""
    expected = facts.expected(part, fractions)
    return min(int(expected - _DEVIATIONS * math.sqrt(expected)), most)


def too_few(facts: Facts, fractions: SplitConfig) -> str | None:
    """Why no attack on membership can be made, and what to change; None if one can. From public figures alone."""
    plain = fractions.model_copy(update={"public_without": ()})
    counts = {part: public_count(facts, part, plain, FEWEST) for part in PARTS}
    small = [part for part in PARTS if counts[part] < FEWEST]
    if not small:
        return None
    found = " and ".join(f"about {max(0, counts[part])} {part}" for part in small)
    return TOO_FEW.format(fewest=FEWEST, counted=facts.counted, found=found, remedy=_remedy(facts, fractions, small))


def _remedy(facts: Facts, fractions: SplitConfig, small: list[Part]) -> str:
    """The smallest holdout, in whole percent, that leaves enough on both sides; or that there is none."""
    percents = range(math.ceil(100 * fractions.holdout), 100) if small == ["holdout"] else range(0)
    for percent in percents:
        if fractions.public + fractions.test + percent / 100 >= 1:
            break
        tried = fractions.model_copy(update={"holdout": percent / 100, "public_without": ()})
        if min(public_count(facts, part, tried, FEWEST) for part in PARTS) >= FEWEST:
            return f"Make the release with split.holdout = {percent / 100:g}."
    return "With so few records no split leaves enough for both: a release of them cannot be attacked here."


def draw(split: Split, fractions: SplitConfig, seed: int, most: int) -> AttackSet | None:
    """Equally many members and others, a public number; None if it is too small or there are too few records.

    Where classes are excluded from the public part, the private part has more of them than the holdout. Members of
    these classes are then subsampled to the share that the fractions alone would give, so that class does not reveal
    membership.
    """
    plain = fractions.model_copy(update={"public_without": ()})
    count = min(public_count(split.facts, part, plain, most) for part in PARTS)
    whole = split  # records may be many more than memory holds: until they are chosen, only their places are
    private, holdout = (_places(part, split.facts.records_per_person, seed) for part in (split.private, split.holdout))
    split = replace(split, private=private, holdout=holdout)
    first, second = (np.random.default_rng(seed).permutation(part.units) for part in (private, holdout))
    usual = _usual(split, fractions, first, seed)
    if count < FEWEST or count > min(int(usual.sum()), len(second)):
        return None
    orders = first[usual], second
    apart = not split.facts.grouped
    game = _game(whole, split, fractions, orders, count, seed) if apart else Game.of_nobody(count, count)
    first = np.concatenate([first[usual], first[~usual]])
    members, left, others = _of(private, first[:count]), _of(private, first[count:]), _of(holdout, second[:count])
    drawn = whole.private.take(members.x), whole.holdout.take(others.x)
    return AttackSet(*drawn, whole.private, left.x.astype(np.int64), game)


def _places(records: Records, most: int, seed: int) -> Records:
    """At most so many records of each person, with their places in place of their inputs."""
    own = limited(records, most, seed)
    return Records(own, records.y[own], None if records.person is None else records.person[own])


def _game(
    whole: Split, split: Split, fractions: SplitConfig, orders: tuple[Order, Order], count: int, seed: int
) -> Game:
    """Which of the first `count` private and holdout records in these orders stay, each side at the same rate t.

    Args:
        whole: The records.
        split: The places of those that may take part (`_places`).
        fractions: Of the split.
        orders: Of the private and the holdout records.
        count: Of each side.
        seed: Of the attacks.
    """
    parts = (whole.private, split.private), (whole.holdout, split.holdout)
    lots = [_lots(*both, seed)[order] for both, order in zip(parts, orders, strict=True)]
    has_test = split.facts.test_records is not None
    shares = np.array([share(part, fractions, has_test) for part in ("private", "holdout")])
    shares /= shares.sum()
    expected = int((math.sqrt(_SPARE**2 + 4 * count) - _SPARE) ** 2 / 4)  # expected + spare · its root = count
    rate = min(expected / sum(map(len, lots)), *shares)
    chance = np.random.default_rng(mix(seed, 2))
    stay = [chance.binomial(len(own), rate / own_share) for own, own_share in zip(lots, shares, strict=True)]
    if max(stay) > count:
        stay = [0, 0]
    members, others = (np.where(np.arange(count) < most, own[:count], 0) for own, most in zip(lots, stay, strict=True))
    return Game(members.astype(np.int8), others.astype(np.int8), expected)


def _lots(whole: Records, places: Records, seed: int) -> NDArray[np.int8]:
    """1 or 2 by a hash of the content, or of the person."""
    key = seed.to_bytes(8, "big")
    if places.person is None:
        each = (1 + digest[0] % 2 for digest in each_content_digest(whole, key, b"audit"))
        return np.fromiter(each, np.int8, len(whole))
    digests = person_digests(places, key, b"audit")
    return np.array([1 + digests[place][0] % 2 for place in _firsts(places)], np.int8)


def _usual(split: Split, fractions: SplitConfig, order: Order, seed: int) -> Mask:
    """Which private records, in this order, may be members: of never-public classes only a random share.

    Of people, those with a record of such a class.
    """
    own = share("private", fractions, split.facts.test_records is not None)
    of_class = np.isin(split.private.y, split.facts.without(fractions))
    if split.private.person is not None:
        of_class = np.isin(split.private.person, split.private.person[of_class])
    kept_out = of_class[_firsts(split.private)][order]
    chance = np.random.default_rng(mix(seed, 1)).random(len(order))
    return np.asarray(~kept_out | (chance < own / (own + fractions.public)))
