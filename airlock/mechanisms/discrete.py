"""Discrete Gaussian and discrete Laplace noise, sampled exactly (Canonne, Kamath and Steinke 2020), on a public grid.

A floating-point sampler only approximates its distribution, and its low-order bits can reveal the value (Mironov 2012).
Here every random choice compares integers that were drawn uniformly from the secret stream: the output has *exactly*
the stated distribution and is always on the grid.

Proof of the sampler. (1) A uniform whole number below b: a 64-bit word w modulo b, drawn again if w ≥ 2^64 − (2^64 mod
b). (2) A coin that shows 1 with probability exp(−a/b), 0 ≤ a ≤ b: for k = 1, 2, … toss a coin of probability a/(b k)
until it fails; Σ over odd k of (γ^(k−1)/(k−1)! − γ^k/k!) = e^−γ with γ = a/b, so the answer is whether k is odd. (3)
Every whole number y ≥ 0 is k·s + u with one k ≥ 0 and one u in 0 … s−1, and for whole s

    exp(−y/s)       = exp(−k) · exp(−u/s),
    exp(−y²/(2s²))  = exp(−k/2) · exp(−k(k−1)/2) · exp(−k u/s) · exp(−u²/(2s²)).

So k is the number of coins of probability e^−1 (of e^−1/2 in the second case) before the first failure, u is uniform,
and the pair is kept with the probability of the other factors, each a product of coins of kind (2). A fair coin gives
the sign; a negative zero is rejected, or 0 would count twice. What is kept has the weights on the left, over all whole
numbers: the discrete Laplace and the discrete Gaussian distribution of scale s.

How long a draw takes depends on the noise (Jin et al. 2022), not on the value; an observer who can time single draws
learns about the noise. Vectors are drawn together, so only the total time of many draws is observable.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import dp_accounting as dpa
import numpy as np
from dp_accounting.dp_event import DiscreteLaplaceDpEvent
from numpy.typing import NDArray

from airlock.mechanisms.randomness import Stream

Kind = Literal["gaussian", "laplace"]
Whole = NDArray[np.int64]
Mask = NDArray[np.bool_]

LARGEST_SCALE = 2**30  # in steps of the grid: 2s² and k·s stay far below 2^63
_GRID_BITS = 20  # grid steps in one scale of noise, as a power of two: rounding adds a millionth
_FARTHEST = 2.0**51  # steps from zero at which a value is clamped: value plus noise stay exact in float64
_FIRST, _BLOCK = 1 << 9, 1 << 15  # the fewest words drawn at once: at first, and later


class Coins:
    """Exact uniform integers and coins, from the children of one stream, which can be used once."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._opened = stream, 0
        self._words = np.empty(0, np.uint64)

    def below(self, bound: int, count: int) -> Whole:
        """Uniform on 0 … bound − 1; `bound` is from 1 to 2^63."""
        limit = np.uint64(2**64 - 1 - 2**64 % bound)  # the largest word that is kept
        kept: list[Whole] = []
        missing = count
        while missing:
            words = self._take(missing)
            words = words[words <= limit]
            kept.append((words % np.uint64(bound)).astype(np.int64))
            missing -= len(words)
        return np.concatenate(kept) if kept else np.empty(0, np.int64)

    def exponential(self, numerator: Whole, denominator: int) -> Mask:
        """One coin per numerator a, each 1 with probability exp(−a/denominator); 0 ≤ a ≤ denominator."""
        tosses = np.ones(len(numerator), np.int64)
        going = np.arange(len(numerator))
        for k in range(1, 2**31):
            up = self.below(denominator, len(going)) < numerator[going]
            up &= self.below(k, len(going)) == 0  # the two coins a/b and 1/k together are one of a/(b k)
            going = going[up]
            if not len(going):
                break
            tosses[going] += 1
        odd: Mask = tosses % 2 == 1
        return odd

    def powers(self, numerator: Whole, denominator: int, times: Whole) -> Mask:
        """One coin per entry, each 1 with probability exp(−a/denominator) to the power of `times`."""
        alive, left = np.ones(len(times), np.bool_), times.copy()
        while len(going := np.flatnonzero(alive & (left > 0))):
            alive[going] = self.exponential(numerator[going], denominator)
            left[going] -= 1
        return alive

    def runs(self, numerator: int, denominator: int, count: int) -> Whole:
        """How many coins of probability exp(−numerator/denominator) show 1 before the first 0."""
        runs, going = np.zeros(count, np.int64), np.arange(count)
        while len(going):
            going = going[self.exponential(np.full(len(going), numerator), denominator)]
            runs[going] += 1
        return runs

    def _take(self, count: int) -> NDArray[np.uint64]:
        """Words that have never been used."""
        if len(self._words) < count:
            size = max(count, min(_BLOCK, _FIRST << (2 * self._opened)))
            more = self._stream.child("discrete", self._opened).key_stream(8 * size).view(np.uint64)
            self._words, self._opened = np.concatenate([self._words, more]), self._opened + 1
        taken, self._words = self._words[:count], self._words[count:]
        return taken


def sample(kind: Kind, scale: int, count: int, stream: Stream) -> Whole:
    """Integers y with probability exactly proportional to exp(−y²/(2 scale²)), or to exp(−|y|/scale).

    Args:
        kind: Which of the two.
        scale: A whole number from 1 to 2^30.
        count: How many.
        stream: Read once.
    """
    if not 1 <= scale <= LARGEST_SCALE or int(scale) != scale:
        raise ValueError("the scale of discrete noise is a whole number of grid steps, from 1 to 2^30")
    coins, found, have = Coins(stream), [np.empty(0, np.int64)], 0
    stream.note_drawn("cpu")
    while have < count:
        tries = max(64, int(1.1 * (count - have) / (0.5 if kind == "gaussian" else 0.6)))
        found.append(_attempt(kind, int(scale), tries, coins))
        have += len(found[-1])
    return np.concatenate(found)[:count]


def _attempt(kind: Kind, scale: int, tries: int, coins: Coins) -> Whole:
    """What is kept of `tries` independent attempts; each is kept or not by its own coins alone."""
    rest = coins.below(scale, tries)
    if kind == "laplace":
        blocks = coins.runs(1, 1, tries)
        kept = coins.exponential(rest, scale)
    else:
        blocks = coins.runs(1, 2, tries)
        kept = coins.powers(np.ones(tries, np.int64), 1, blocks * (blocks - 1) // 2)
        kept[kept] = coins.powers(rest[kept], scale, blocks[kept])
        kept[kept] = coins.exponential(rest[kept] ** 2, 2 * scale**2)
    size = blocks[kept] * scale + rest[kept]
    negative = coins.below(2, len(size)) == 1
    once = ~(negative & (size == 0))
    return np.asarray(np.where(negative, -size, size)[once])


@dataclass(frozen=True)
class GridNoise:
    """Rounds a value to multiples of a public grid g and adds g times exact discrete noise.

    Guarantee. Neighbouring values are at most `sensitivity` apart, in L2 for "gaussian", in L1 for "laplace". Rounding
    moves a coordinate by at most g/2, so in steps of the grid the rounded values are at most sensitivity/g + √d (L2) or
    sensitivity/g + d (L1) apart: integers that the noise is scaled to. With noise multiplier z = scale / that distance:

    * gaussian: one call is ρ-zCDP with ρ = 1/(2z²): the Rényi divergence of order α between two discrete Gaussians that
      are a whole number t apart is at most α t²/(2s²) (Canonne, Kamath and Steinke 2020), and coordinates add up. It is
      *not* `GaussianDpEvent(z)`: the discrete (ε, δ) curve oscillates around the continuous one and is above it in
      places.
    * laplace: one call is ε-DP with ε = 1/z, because exp(−|y|/s) changes by at most exp(‖shift‖₁/s). It is *not*
      `LaplaceDpEvent(z)`, which is better than pure ε-DP; at a shift of one step the discrete mechanism is not. The
      event is the discrete Laplace mechanism at sensitivity 1, whose privacy loss is ±ε: the worst of all ε-DP
      mechanisms, also under composition (Kairouz, Oh and Viswanath 2015).

    All outputs are multiples of g, whatever the value. Values beyond 2^51 steps are clamped, which moves no two further
    apart.

    Args:
        kind: Which noise.
        sensitivity: The L2 or L1 sensitivity of the value, under the guarantee's relation.
        noise_multiplier: z.
        dimension: How many coordinates a value has.
    """

    kind: Kind
    sensitivity: float
    noise_multiplier: float
    dimension: int = 1

    def __post_init__(self) -> None:
        for value in (self.sensitivity, self.noise_multiplier, self.dimension):
            if not (math.isfinite(value) and value > 0):
                raise ValueError("sensitivity, noise multiplier and dimension must be finite and positive")

    @property
    def event(self) -> dpa.DpEvent:
        """What one call costs."""
        if self.kind == "gaussian":
            return dpa.ZCDpEvent(0.5 / self.noise_multiplier**2, 0.0)
        return DiscreteLaplaceDpEvent(1.0 / self.noise_multiplier, 1)

    @property
    def grid(self) -> float:
        """The public spacing of the outputs: a power of two, about a millionth of the noise."""
        return 2.0 ** (math.floor(math.log2(self.noise_multiplier * self.sensitivity)) - _GRID_BITS)

    @property
    def reach(self) -> float:
        """How far apart neighbouring values are after rounding, in steps of the grid."""
        stretch = math.sqrt(self.dimension) if self.kind == "gaussian" else self.dimension
        return self.sensitivity / self.grid + stretch

    @property
    def scale(self) -> int:
        """The noise in steps of the grid: rounded up, plus one to cover the rounding of this arithmetic."""
        return math.ceil(self.noise_multiplier * self.reach) + 1

    def add(self, value: NDArray[np.floating], stream: Stream) -> NDArray[np.float64]:
        """The value on the grid plus noise on the grid; exact in float64."""
        if value.size != self.dimension:
            raise ValueError("the sensitivity was computed for another number of coordinates")
        return self._noisy(value, stream)

    def add_rows(self, values: NDArray[np.floating], stream: Stream) -> NDArray[np.float64]:
        """Like `add`, for every row separately: as many calls as rows."""
        if values.ndim != 2 or values.shape[1] != self.dimension:
            raise ValueError("the sensitivity was computed for another number of coordinates")
        return self._noisy(values, stream)

    def _noisy(self, value: NDArray[np.floating], stream: Stream) -> NDArray[np.float64]:
        if not np.isfinite(value).all():
            raise ValueError("a value that is not finite has no bounded sensitivity")
        steps = np.rint(np.clip(value.astype(np.float64) / self.grid, -_FARTHEST, _FARTHEST)).astype(np.int64)
        noise = sample(self.kind, self.scale, value.size, stream).reshape(value.shape)
        return (steps + noise).astype(np.float64) * self.grid
