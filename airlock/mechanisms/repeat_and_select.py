"""The best of a secret random number of runs: choosing settings by their result, paid for.

Running a mechanism K times and keeping the best result costs up to K times as much, if everybody knows K. If K is
random and secret, it costs a few times as much whatever its mean (Liu and Talwar 2019).

K has the truncated negative binomial distribution with shape η ≥ 0 and 0 < γ < 1, on 1, 2, 3, …:

    P[K = k]  ∝  (1 − γ)^k · Π over ℓ = 0 … k − 1 of (ℓ + η)/(ℓ + 1),      η = 0: P[K = k] ∝ (1 − γ)^k/k.

η = 1 is the geometric distribution. There is at least one run; γ is given by the mean.

Theorem (Papernot and Steinke 2022, "Hyperparameter tuning with Rényi differential privacy", theorem 2). Let Q have
totally ordered outputs, and Rényi divergence at most ε at order λ > 1 and at most ε̂ at order λ̂ ≥ 1, between any two
neighbouring data sets. Then the largest of K independent outputs of Q has, at order λ, at most

    ε + (1 + η)(1 − 1/λ̂) ε̂ + (1 + η) log(1/γ)/λ̂ + log(E[K])/(λ − 1).

dp-accounting takes the best λ̂ (`RepeatAndSelectDpEvent`, by RDP alone). If Q is ε-DP, all orders at once give (2 + η)ε.

How it applies. One run returns a value y and a whole number as its score. Guarantee: `select` costs no more than its
`event` of the event of one run, if the runs are alike and independent: run i may use its number for nothing but to
find its own files. Only the value that wins may leave, and neither K nor how long it took.

Proof. (1) Ties. Give every run a number u from (0, 1), uniform and independent of everything else: Q' = (score, u, y)
is post-processing of Q, and its outputs are totally ordered by (score, u), since no two u are equal almost surely. The
theorem holds for the largest of K outputs of Q', of which y is a function. `select` keeps the *first* of the best
scores instead. Given the outputs without u, the runs of the best score are equally likely to have the largest u; given
the set of outputs, every order of the runs is equally likely: so in both cases the value is a uniform pick among those
with the best score, and has the same distribution. (2) The number of runs. γ is rounded up to a multiple of 2^−32, and
both log(1/γ) and E[K] fall as γ grows, so the bound for the mean that is stated holds. (3) `draw` is exact. ∎
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TypeVar

import dp_accounting as dpa
import numpy as np
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from numpy.typing import NDArray

from airlock.mechanisms.discrete import Coins
from airlock.mechanisms.randomness import Stream

T = TypeVar("T")
_PARTS = 1 << 32  # γ is a whole number of these parts, rounded up
_FINEST = 10_000  # the largest denominator of a shape
MOST_MEAN, MOST_SHAPE = 1000.0, 10.0


@dataclass(frozen=True)
class RepeatAndSelect:
    """Runs something a random number of times and keeps the best.

    Args:
        mean: The expected number of runs, above 1 and at most 1000.
        shape: η, from 0 to 10, a fraction with a denominator of at most 10,000. Below 1, fewer or many more runs; above
            1, closer to the mean and more expensive.
    """

    mean: float
    shape: float = 1.0

    def __post_init__(self) -> None:
        if not (1.0 < self.mean <= MOST_MEAN and 0.0 <= self.shape <= MOST_SHAPE):
            raise ValueError(f"a mean above 1 and at most {MOST_MEAN:g}, and a shape from 0 to {MOST_SHAPE:g}")
        if float(self._shape) != self.shape:
            raise ValueError(f"a shape with a denominator of at most {_FINEST}")

    def event(self, run: dpa.DpEvent) -> dpa.DpEvent:
        """What the whole costs, from the event of one run."""
        return RepeatAndSelectDpEvent(run, self.mean, self.shape)

    def select(self, run: Callable[[int, Stream], tuple[int, T]], stream: Stream) -> T:
        """The value of the first run with the best score; the guarantee is stated at the top of the module.

        Args:
            run: From the number of a run and its own randomness to a score and a value.
            stream: Secret.
        """
        runs = self.draw(stream.child("runs"))
        best, value = run(0, stream.child("run", 0))
        for number in range(1, runs):
            score, other = run(number, stream.child("run", number))
            if score > best:
                best, value = score, other
        return value

    def draw(self, stream: Stream) -> int:
        """K, which must stay secret.

        Proof of the sampler. Let m be η rounded up, at least 1. The number of failures before the m-th success of
        coins with probability γ is k with probability ∝ (1 − γ)^k Π (ℓ + m)/(ℓ + 1) over ℓ < k; a 0 is drawn again. It
        is kept if coins of probability (ℓ + η)/(ℓ + m) succeed for every ℓ = 1 … k − 1, else all is drawn again. So k
        has probability ∝ (1 − γ)^k Π (ℓ + η)/(ℓ + 1); the factor of ℓ = 0 is the same for all k. Every choice compares
        whole numbers.
        """
        coins, successes = Coins(stream), max(1, math.ceil(self._shape))
        while True:
            failed = sum(self._failures(coins) for _ in range(successes))
            if failed and all(self._kept(coins, place, successes) for place in range(1, failed)):
                return failed

    def _failures(self, coins: Coins) -> int:
        """How many coins of probability γ fail before the first success."""
        failed = 0
        while coins.below(_PARTS, 1)[0] >= self._parts:
            failed += 1
        return failed

    def _kept(self, coins: Coins, place: int, successes: int) -> bool:
        above, below = place + self._shape, Fraction(place + successes)
        share = above / below
        return share == 1 or int(coins.below(share.denominator, 1)[0]) < share.numerator

    @cached_property
    def _shape(self) -> Fraction:
        return Fraction(self.shape).limit_denominator(_FINEST)

    @cached_property
    def _parts(self) -> int:
        """γ in parts: rounded up, and one more where it is not computed exactly."""
        if self.shape == 1:
            return math.ceil(_PARTS / Fraction(self.mean))
        low, high = 0.0, 1.0
        for _ in range(200):
            middle = (low + high) / 2.0
            low, high = (middle, high) if _mean(middle, self.shape) > self.mean else (low, middle)
        return min(_PARTS, math.ceil(high * _PARTS) + 1)

    def probabilities(self, most: int) -> NDArray[np.float64]:
        """Of 1, 2, …, `most` runs."""
        gamma, places = self._parts / _PARTS, np.arange(1, most)
        first = -1.0 / math.log(gamma) if not self.shape else self.shape / math.expm1(-self.shape * math.log(gamma))
        factors = (1.0 - gamma) * np.concatenate([[1.0], (places + self.shape) / (places + 1.0)])
        return np.asarray(first * np.cumprod(factors))


def _mean(gamma: float, shape: float) -> float:
    """E[K], from γ."""
    if not 0.0 < gamma < 1.0:
        return math.inf if gamma <= 0.0 else 1.0
    if not shape:
        return (1.0 - gamma) / (gamma * -math.log(gamma))
    return shape * (1.0 - gamma) / (gamma * -math.expm1(shape * math.log(gamma)))
