"""Two noisy tables about the test part: what figures about numbers and about texts have in common.

Each record adds `UNIT` to either table, divided between two cells. Guarantee: `noisy` is ε-DP under add-remove for
whoever adds up to UNIT to each table, in cells that are never negative. Proof. Adding or removing such a record changes
a table by UNIT in L1. Noise that makes a table ε_t/UNIT-DP for a change of one in one cell (`mechanisms.counts`) has a
density whose logarithm changes by at most ε_t/UNIT per unit of L1 distance, hence by ε_t in all. The shares add up to
one, so both tables compose to ε. ∎
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from airlock import mechanisms
from airlock.auditing.evaluation import CONFIDENCE, LEAST, MOST, SHARES_OF_LABELS, UNINFORMATIVE
from airlock.auditing.usefulness import State
from airlock.config import Frozen

if TYPE_CHECKING:
    from airlock.mechanisms import NoisyCounts, Stream

UNIT = 64  # what each record divides between two cells of a table
FEWEST = 3.0  # standard deviations of the noise on the number of records, below which nothing can be said

Whole = NDArray[np.int64]
Cells = tuple[int, ...]


@cache
def z() -> float:
    """How many standard deviations an interval reaches to either side."""
    from scipy.stats import norm

    return float(norm.ppf(0.5 + CONFIDENCE / 2.0))


class TwoTables(Frozen):
    """What both tables cost a test record; a subclass has the tables."""

    epsilon: Annotated[float, Field(ge=LEAST, le=MOST)]

    @property
    def noises(self) -> tuple[NoisyCounts, NoisyCounts]:
        """What was added to each table."""
        return noises(self.epsilon)


def noises(epsilon: float) -> tuple[NoisyCounts, NoisyCounts]:
    """What is added to the cells of each table."""
    first, second = (mechanisms.NoisyCounts(share * epsilon / UNIT) for share in SHARES_OF_LABELS)
    return first, second


def noisy(tables: Iterable[Whole], epsilon: float, stream: Stream) -> tuple[Cells, Cells]:
    """Both tables with noise; the guarantee is stated at the top of the module.

    Args:
        tables: The exact counts; secret.
        epsilon: To spend on the test part.
        stream: Secret; read once.
    """
    first, second = (
        tuple(noise.add(table, stream.child("table", place)).tolist())
        for place, (noise, table) in enumerate(zip(noises(epsilon), tables, strict=True))
    )
    return first, second


def state_of(gain: float, least: float, most: float, asked: float) -> State:
    """How a gain compares with the blind guess, which gains nothing.

    Args:
        gain: An estimate.
        least: The lower end of its interval.
        most: The upper end.
        asked: The smallest gain that counts as a use.
    """
    if least > 0.0 and gain >= asked:
        return "better"
    if most - least >= UNINFORMATIVE and most > asked:
        return "unknown"
    if gain >= asked:
        return "unclear"
    return "hardly" if least > 0.0 else "useless"
