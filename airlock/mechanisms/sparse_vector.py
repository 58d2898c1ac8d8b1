"""The sparse vector technique (Dwork et al. 2009, in the form of Lyu, Su and Li 2017), with exact discrete noise.

A session is asked, one after the other, whether whole numbers lie above a public threshold. It goes on for free as long
as the noisy answer is yes, and ends with the first no: however many yeses there were, it costs ε once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import dp_accounting as dpa
import numpy as np
from dp_accounting.dp_event import DiscreteLaplaceDpEvent
from numpy.typing import NDArray

from airlock.mechanisms.discrete import GridNoise
from airlock.mechanisms.randomness import Stream


@dataclass(frozen=True)
class AboveThreshold:
    """What a session is made of: exact Laplace noise on the threshold once, and on every number.

    Guarantee: if every number moves by at most 1 between neighbouring inputs, in whichever direction, a whole session
    is ε-DP with ε = ε₁ + ε₂, also if numbers are chosen by earlier answers. The event is the worst of all ε-DP
    mechanisms.

    Proof. Let t be the threshold, r its noise and ν_i that of number v_i. An answer of k yeses and one no has
    probability Σ_r P[r] Π_{i≤k} P[v_i + ν_i ≥ t + r] · P[v_{k+1} + ν < t + r]. Compare every r with r − 1 on the
    neighbour, whose numbers are v'. First, P[r] ≤ e^ε₁ P[r − 1], by the noise for sensitivity 1. Second, v'_i + 1 ≥
    v_i, so v_i + ν ≥ t + r implies v'_i + ν ≥ t + r − 1: no factor of a yes is smaller. Third, v' ≤ v + 1, so what ν
    has to stay below on the neighbour, t + r − 1 − v', is at most 2 less than t + r − v: the factor of the no is
    smaller by at most e^ε₂, by the noise for sensitivity 2. So the sum is at most e^(ε₁ + ε₂) times the neighbour's. A
    session that is broken off before a no lacks the third factor. Numbers, threshold and noise are multiples of powers
    of two, at most 1, and so are all sums: nothing is rounded.

    Args:
        threshold: t, a whole number.
        first: ε₁, for the noise on the threshold.
        second: ε₂, for the noise on the numbers.
    """

    threshold: int
    first: float
    second: float

    def __post_init__(self) -> None:
        if max(self._once.grid, self._each.grid) > 1:
            raise ValueError("epsilons too small for the grid")

    @classmethod
    def above_zero(cls, epsilon: float, sessions: int, numbers: int, probability: float) -> AboveThreshold:
        """A threshold that 0 does not pass: in so many sessions, of so many numbers each, apart from a probability.

        With scales s₁ and s₂ of the noise, t = s₁ ln(2S/p) + s₂ ln(2SN/p). A 0 passes only if r ≤ −s₁ ln(2S/p), which
        has a chance of at most p/(2S) in each of S sessions, or ν ≥ s₂ ln(2SN/p), of at most p/(2SN) for each of SN
        numbers, because discrete Laplace noise of scale s has P[noise ≥ a] ≤ e^(−a/s) for a ≥ 0. ε is divided so that t
        is smallest.
        """
        once, each = math.log(2 * sessions / probability), math.log(2 * sessions * numbers / probability)
        share = math.sqrt(once) / (math.sqrt(once) + math.sqrt(2 * each))
        first = share * epsilon
        plain = cls(0, first, epsilon - first)
        reach = plain._once.scale * plain._once.grid * once + plain._each.scale * plain._each.grid * each
        return cls(math.ceil(reach), first, epsilon - first)

    @property
    def event(self) -> dpa.DpEvent:
        """What one session costs."""
        return DiscreteLaplaceDpEvent(self.first + self.second, 1)

    @property
    def _once(self) -> GridNoise:
        return GridNoise("laplace", 1.0, 1 / self.first)

    @property
    def _each(self) -> GridNoise:
        return GridNoise("laplace", 2.0, 1 / self.second)

    def start(self, stream: Stream) -> float:
        """A noisy threshold, for one session."""
        return float(self.start_many(1, stream)[0])

    def start_many(self, count: int, stream: Stream) -> NDArray[np.float64]:
        """As many, each for a session of its own."""
        return self._once.add_rows(np.full((count, 1), float(self.threshold)), stream)[:, 0]

    def passed(self, level: float, numbers: NDArray[np.int64], stream: Stream) -> int:
        """How many numbers from the first on get a yes before the first no.

        Args:
            level: The session's noisy threshold.
            numbers: In the order in which they are asked about.
            stream: Fresh.
        """
        return int(self.passed_many(np.array([level]), numbers[None], stream)[0])

    def passed_many(self, levels: NDArray[np.float64], numbers: NDArray[np.int64], stream: Stream) -> NDArray[np.int64]:
        """The same for several sessions, a row of numbers each."""
        noisy = self._each.add_rows(numbers.reshape(-1, 1).astype(np.float64), stream).reshape(numbers.shape)
        noes = noisy < levels[:, None]
        return np.asarray(np.where(noes.any(1), noes.argmax(1), numbers.shape[1]))
