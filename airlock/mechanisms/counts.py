"""Counts with two-sided geometric noise (Ghosh, Roughgarden and Sundararajan 2009), sampled exactly.

Proof of the sampler. Let a and b be integers. By `discrete`, u uniform below b and kept with probability exp(−u/b), and
k coins of probability e^−1 before the first failure, give y = k b + u with P(y) proportional to exp(−y/b). Then ⌊y/a⌋ =
n with probability proportional to Σ over i < a of exp(−(n a + i)/b), which is exp(−n a/b) times a constant: a geometric
number with q = exp(−a/b) (Canonne, Kamath and Steinke 2020). The difference of two such numbers is x with probability Σ
over n of (1 − q)² q^(n + n + |x|) = (1 − q)/(1 + q) · q^|x|. Every choice compares whole numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import dp_accounting as dpa
import numpy as np
from dp_accounting.dp_event import DiscreteLaplaceDpEvent
from numpy.typing import NDArray

from airlock.mechanisms.discrete import Coins
from airlock.mechanisms.randomness import Stream

Whole = NDArray[np.int64]

_PARTS = 1 << 32  # ε is a whole number of these parts, rounded down
_LEAST, _MOST = 1e-7, 1e4


@dataclass(frozen=True)
class NoisyCounts:
    """Adds noise x with P(x) proportional to exp(−ε|x|) to every cell of a table of counts.

    Guarantee: if adding or removing one record moves one cell by one, one call is ε-DP under add-remove.

    Proof. Let c and c' be the two tables, which differ by one in one cell. For every table t, the noise that produces
    it is t − c or t − c', identical in all other cells; so the ratio of the two probabilities is that of one cell,
    exp(−ε(|t_i − c_i| − |t_i − c'_i|)), and lies in [e^−ε, e^ε] because |c_i − c'_i| = 1. The sampler is exact and uses
    an ε that is rounded down. ∎

    If a record may be replaced by another, two cells move, and the same call is 2ε-DP.

    Args:
        epsilon: ε of one call, from 1e-7 to 1e4.
    """

    epsilon: float

    def __post_init__(self) -> None:
        if not _LEAST <= self.epsilon <= _MOST:
            raise ValueError("the ε of a table of counts must lie between 1e-7 and 1e4")

    @property
    def event(self) -> dpa.DpEvent:
        """What one call costs: the event of the worst ε-DP mechanism, which bounds this one."""
        return DiscreteLaplaceDpEvent(self.epsilon, 1)

    @property
    def variance(self) -> float:
        """The variance of the noise on one cell: 2q/(1 − q)² with q = e^−ε."""
        return 0.5 / math.sinh(self.epsilon / 2.0) ** 2

    def add(self, counts: Whole, stream: Stream) -> Whole:
        """The table with noise; cells may become negative.

        Args:
            counts: An array of any shape.
            stream: Secret; read once.
        """
        return np.asarray(np.asarray(counts, np.int64) + self._noise(counts.size, stream).reshape(counts.shape))

    def _noise(self, cells: int, stream: Stream) -> Whole:
        numerator, coins = math.floor(self.epsilon * _PARTS), Coins(stream)
        kept, missing = [np.empty(0, np.int64)], 2 * cells
        while missing > 0:
            rest = coins.below(_PARTS, 2 * missing + 16)
            rest = rest[coins.exponential(rest, _PARTS)]
            kept.append((coins.runs(1, 1, len(rest)) * _PARTS + rest) // numerator)
            missing -= len(rest)
        stream.note_drawn("cpu")
        first, second = np.concatenate(kept)[: 2 * cells].reshape(2, cells)
        return np.asarray(first - second)
