"""The Laplace mechanism on a grid (Dwork, McSherry, Nissim and Smith 2006), with discrete noise.

Noise in floating point leaks through low-order bits (Mironov 2012), and the inverse of a distribution function leaves
holes in its tails, where no pure ε holds. So here value and noise are integer multiples of one public grid: the value
is rounded to it, the noise is a difference of two geometric numbers (Ghosh, Roughgarden and Sundararajan 2009), drawn
bit by bit, because the bits of a geometric number are independent. Their sum is exact in float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import dp_accounting as dpa
import numpy as np
from numpy.typing import NDArray

from airlock.errors import AccountingError
from airlock.mechanisms.randomness import Stream

_GRID_BITS = 26  # grid steps in one scale of the noise, as a power of two
_TAIL_BITS = 6  # extra bits: noise stays within 2^33 steps, or 64 to 128 scales; more has a probability below e^-64
_LARGEST = 2.0**52  # steps; larger values are clamped, so that sums are exact
_BLOCK = 1 << 13  # numbers at a time: 4 MB of the stream


@dataclass(frozen=True)
class LaplaceNoise:
    """Adds Laplace noise of scale noise_multiplier · sensitivity to every coordinate, on a grid.

    Guarantee: if neighbouring inputs are at most `sensitivity` apart in L1, one call is
    `LaplaceDpEvent(noise_multiplier)`, and in particular 1/noise_multiplier-DP, up to a factor of 1 + 2^-45 and a
    probability of 2^-58 per coordinate.

    Proof. Let g be the grid, D the dimension and b = noise_multiplier · (sensitivity + (D + 1) g) the scale that is
    used. Rounding moves each coordinate of two neighbours apart by at most g, so they are s ≤ sensitivity/g + D steps
    apart, and discrete noise with P(x) ∝ exp(-|x| g/b) has a privacy loss of at most s g/b < 1/noise_multiplier.
    For the whole curve: going from one neighbour to the other coordinate by coordinate, the trade-off functions of
    location shifts of one log-concave noise compose to that of the sum of the shifts (Dong, Roth and Su 2022, group
    privacy), so one coordinate that moves by s is the worst case. There, with a = g/b, δ at ε = a(s - 2x) is
    1 - e^(-a x) for whole x, as for the continuous mechanism, and linear in e^ε between, above the continuous one by at
    most a²; the extra step in b raises the continuous δ by about a/2 · e^(-a x), which is more. The probabilities of
    the bits are multiples of 2^-64: for the bits of noise within 8 scales this is a relative error below 2^-52 each,
    for the few beyond an absolute error below 2^-64, which gives the probability stated above.

    Args:
        sensitivity: The L1 sensitivity of the value, under the guarantee's relation.
        noise_multiplier: Scale over sensitivity: 1/ε.
    """

    sensitivity: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        for name, value in (("sensitivity", self.sensitivity), ("noise multiplier", self.noise_multiplier)):
            if not 0 < value < math.inf:
                raise AccountingError(f"a {name} above 0", f"{value}", "Laplace noise needs a finite scale above 0.")

    @property
    def event(self) -> dpa.DpEvent:
        """What one call costs."""
        return dpa.LaplaceDpEvent(self.noise_multiplier)

    @property
    def grid(self) -> float:
        """The public spacing of the outputs: a power of two, about scale / 2^26."""
        return 2.0 ** (math.floor(math.log2(self.noise_multiplier * self.sensitivity)) - _GRID_BITS)

    def scale(self, dimension: int) -> float:
        """The scale actually used: it includes the effect of rounding on the sensitivity, and one step."""
        return self.noise_multiplier * (self.sensitivity + self.grid * (dimension + 1))

    def add(self, value: NDArray[np.floating], stream: Stream) -> NDArray[np.float64]:
        """The value on the grid plus noise on the grid; exact in float64.

        Raises:
            AccountingError: A value is NaN, so its distance to a neighbour is not bounded.
        """
        if np.isnan(value).any():
            raise AccountingError("numbers to add noise to", "NaN", "Noise would not hide it.")
        steps = np.rint(np.clip(np.asarray(value, np.float64) / self.grid, -_LARGEST, _LARGEST))
        noise = discrete(steps.size, self.scale(steps.size) / self.grid, stream)
        noisy: NDArray[np.float64] = (steps + noise.reshape(steps.shape)) * self.grid
        return noisy


def discrete(count: int, scale: float, stream: Stream) -> NDArray[np.float64]:
    """Integers with P(x) ∝ exp(-|x| / scale); a fixed amount of the stream is read, once.

    Args:
        count: How many.
        scale: Up to 2^27.
        stream: Secret.
    """
    bits = _GRID_BITS + 1 + _TAIL_BITS
    limits, weights = _limits(scale, bits), np.exp2(np.arange(bits))
    found = np.empty(count)
    for start in range(0, count, _BLOCK):
        size = min(_BLOCK, count - start)
        words = stream.child("block", start).key_stream(16 * bits * size).view(np.uint64)
        numbers = (words.reshape(size, 2, bits) < limits) @ weights
        found[start : start + size] = numbers[:, 0] - numbers[:, 1]
    stream.note_drawn("cpu")
    return found


def _limits(scale: float, bits: int) -> NDArray[np.uint64]:
    """Bit i of a geometric number is 1 with probability 1/(1 + exp(2^i / scale)), as a fraction of 2^64."""
    chances = [1.0 / (1.0 + math.exp(min(2.0**i / scale, 700.0))) for i in range(bits)]
    return np.array([round(chance * 2**64) for chance in chances], np.uint64)
