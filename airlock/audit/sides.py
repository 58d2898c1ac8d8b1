"""Who takes part in an attack: as many members as others, and how many is a public figure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from airlock.audit.attacks.signals import Mask
from airlock.config import SplitConfig
from airlock.data import Records, Split
from airlock.data.split import Part

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
    """As many members as others, a public number of them; None if that is too small or there are fewer."""
    count = min(public_count(split, part, fractions, most) for part in ("private", "holdout"))
    if count < FEWEST or count > min(len(split.private), len(split.holdout)):
        return None
    first, second = (np.random.default_rng(seed).permutation(len(part)) for part in (split.private, split.holdout))
    return Sides(
        split.private.take(first[:count]), split.holdout.take(second[:count]), split.private.take(first[count:])
    )


def joined(first: Records, second: Records) -> Records:
    """One after the other."""
    return Records(np.concatenate([first.x, second.x]), np.concatenate([first.y, second.y]))
