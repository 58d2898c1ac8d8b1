"""Who takes part in an attack: as many members as others, and how many is a public figure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from airlock.audit.attacks.signals import Mask
from airlock.config import SplitConfig
from airlock.data import Records, Split, share
from airlock.data.split import Part
from airlock.training.loop import mix

FEWEST = 50
_DEVIATIONS = 3.0  # below the expected size: real sizes vary around it, and the figure must not depend on them


@dataclass(frozen=True)
class Sides:
    """Who scores an attack."""

    members: Records
    others: Records
    rest: Records  # of the private part

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


def draw(split: Split, fractions: SplitConfig, seed: int, most: int) -> Sides | None:
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
    first = np.concatenate([first[usual], first[~usual]])
    return Sides(
        split.private.take(first[:count]), split.holdout.take(second[:count]), split.private.take(first[count:])
    )


def _usual(split: Split, fractions: SplitConfig, order: NDArray[np.int64], seed: int) -> Mask:
    """Who may be a member, of the private records in this order: of classes that are never public a share by chance."""
    own = share("private", fractions, split.facts.test_records is not None)
    kept_out = np.isin(split.private.y[order], split.facts.without(fractions))
    chance = np.random.default_rng(mix(seed, 1)).random(len(order))
    return np.asarray(~kept_out | (chance < own / (own + fractions.public)))


def joined(first: Records, second: Records) -> Records:
    """One after the other."""
    return Records(np.concatenate([first.x, second.x]), np.concatenate([first.y, second.y]))
