"""Who takes part in an attack: as many members as others, and how many is a public figure.

For the bound on ε the coins have to be fair and independent (`one_run_audit`), and equal numbers of both sides are not
what independent coins give. So a `Game` is drawn among them, record by record. A record is private with probability p
and in the holdout with probability h, by a keyed hash of its own. Given that it is one of the two, it stays with
probability t/p or t/h, for one t: then among those that stay each is in with probability 1/2, whatever the others are.
Of a random order the first K stay, K binomial, which is the same; where they are more than take part at all, which is
rare, nobody stays and there is no bound. Records with equal content fall together, so they never stay. In which half of
the game a record is, another hash of its content says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from airlock.auditing.attacks.signals import Mask
from airlock.auditing.one_run_audit import Game
from airlock.config import SplitConfig
from airlock.data import Records, Split, share
from airlock.data.split import Part, positions
from airlock.training.loop import mix

FEWEST = 50
_DEVIATIONS = 3.0  # below the expected size: real sizes vary around it, and the figure must not depend on them
_SPARE = 3.0  # deviations by which fewer are expected to stay than take part

Order = NDArray[np.int64]


@dataclass(frozen=True)
class AttackSet:
    """Who scores an attack."""

    members: Records
    others: Records
    rest: Records  # of the private part
    game: Game | None = None  # who of the members and of the others counts for ε

    @property
    def pool(self) -> Records:
        """Members, then others."""
        return joined(self.members, self.others)

    @property
    def member(self) -> Mask:
        """Who of the pool is one."""
        return np.arange(len(self.pool)) < len(self.members)


def public_count(split: Split, part: Part, fractions: SplitConfig, most: int) -> int:
    """How many records of a part may take part: it follows from public figures, never from the real size."""
    expected = split.facts.expected(part, fractions)
    return min(int(expected - _DEVIATIONS * math.sqrt(expected)), most)


def draw(split: Split, fractions: SplitConfig, seed: int, most: int) -> AttackSet | None:
    """As many members as others, a public number of them; None if that is too small or there are fewer.

    Where classes are kept out of the public part, the private one has more of them than the holdout. Members are then
    thinned out to the share that the fractions alone would give, lest a class is taken for membership.
    """
    plain = fractions.model_copy(update={"public_without": ()})
    count = min(public_count(split, part, plain, most) for part in ("private", "holdout"))
    first, second = (np.random.default_rng(seed).permutation(len(part)) for part in (split.private, split.holdout))
    usual = _usual(split, fractions, first, seed)
    if count < FEWEST or count > min(int(usual.sum()), len(second)):
        return None
    game = _game(split, fractions, (first[usual], second), count, seed)
    first = np.concatenate([first[usual], first[~usual]])
    members, others = split.private.take(first[:count]), split.holdout.take(second[:count])
    return AttackSet(members, others, split.private.take(first[count:]), game)


def _game(split: Split, fractions: SplitConfig, orders: tuple[Order, Order], count: int, seed: int) -> Game:
    """Who of the first so many private and holdout records in these orders stays, each side at the same rate t."""
    lots = [_lots(part, seed)[order] for part, order in zip((split.private, split.holdout), orders, strict=True)]
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


def _lots(records: Records, seed: int) -> NDArray[np.int8]:
    """1 or 2 by a hash of the content; 0 for a record whose content another one has."""
    position, digests = positions(records, seed, b"audit")
    _, place, times = np.unique(np.array(digests), return_inverse=True, return_counts=True)
    return np.where(times[place] == 1, 1 + (position < 0.5), 0).astype(np.int8)


def _usual(split: Split, fractions: SplitConfig, order: Order, seed: int) -> Mask:
    """Who may be a member, of the private records in this order: of classes that are never public a share by chance."""
    own = share("private", fractions, split.facts.test_records is not None)
    kept_out = np.isin(split.private.y[order], split.facts.without(fractions))
    chance = np.random.default_rng(mix(seed, 1)).random(len(order))
    return np.asarray(~kept_out | (chance < own / (own + fractions.public)))


def joined(first: Records, second: Records) -> Records:
    """One after the other."""
    return Records(np.concatenate([first.x, second.x]), np.concatenate([first.y, second.y]))
