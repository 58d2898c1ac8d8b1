"""What a method brings to court: two neighbouring data sets, a way to run the real mechanism on both, and the claim.

The court (`audit.trial`) knows no channel, so everything that is particular to one is in its cases: the data sets are
public and made up, small enough that a run takes a millisecond, and chosen to be hard to hide: the one record that
differs is as large as it may be, the others are as quiet as they can be.

A `Case` is many short runs with one record more or less. `Canaries` are one whole release with many records more or
less, each by a coin of its own: for training that is too dear to repeat, and for what only shows over all its steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import dp_accounting as dpa
import numpy as np
from numpy.typing import NDArray

from airlock.accounting import Claim
from airlock.accounting.spend import deltas
from airlock.mechanisms import Stream

Scores = NDArray[np.float64]  # one row a run, one column a statistic
Runs = Callable[[bool, int, Stream], Scores]
Coins = NDArray[np.bool_]  # which canaries are in the data set

_SHARES = (0.0, 0.25, 0.5, 0.75)  # of the claimed ε: where else the curve of a proof is tested


@dataclass(frozen=True)
class Case:
    """One claim and what it takes to test it.

    Args:
        claim: The ε and δ that are stated of exactly what `run` runs, and by which theorem.
        pair: The two data sets, in one sentence.
        statistics: What the columns of the scores are, in words.
        run: Whether with the record, how many independent runs, and their randomness; gives the scores.
        curve: Other (ε, δ) that the same theorem claims of the same runs.
    """

    claim: Claim
    pair: str
    statistics: tuple[str, ...]
    run: Runs
    curve: tuple[tuple[float, float], ...] = ()

    @property
    def points(self) -> tuple[tuple[float, float], ...]:
        """Everything that is claimed; the claim itself first."""
        return ((self.claim.epsilon, self.claim.delta), *self.curve)


@dataclass(frozen=True)
class Canaries:
    """One claim and records of which a coin decides whether they are in the data set.

    Args:
        claim: The ε and δ that are stated of exactly what `run` runs, under add-remove, and by which theorem.
        count: How many canaries there are.
        what: The canaries and the run, in one sentence.
        statistic: What a score is, in words; computed from what is accounted for, and from nothing else.
        run: The coins, which nothing but the data set may depend on, and the randomness of the one run; gives a score a
            canary, high for one that seems to be in.
    """

    claim: Claim
    count: int
    what: str
    statistic: str
    run: Callable[[Coins, Stream], Scores]


def curve_of(event: dpa.DpEvent, epsilon: float) -> tuple[tuple[float, float], ...]:
    """Further points of the curve that accounting for the event claims, at and below its ε.

    Noise that is too small shows at a small ε within hundreds of runs, at a small δ within many thousands.
    """
    epsilons = [share * epsilon for share in _SHARES]
    return tuple(zip(epsilons, deltas(event, epsilons), strict=True))
