"""A confidence interval for a proportion whose count and total are noisy; valid at every sample size.

A ~ Binomial(N, p) records of N have a property. Observed are A + U and N + M, where U and M are noise with a known
distribution, independent of the records. The interval [low, high] for p accounts for both sampling and noise.

Guarantee: P(low ≤ p ≤ high) ≥ the stated confidence, for every N and p.

Proof. Let c be the observed ratio, count over total, clipped to [0, 1], where the total is positive; elsewhere the
interval is [0, 1]. (1) For one N, an outcome has a ratio of at least c only if A − cN + V ≥ 0, where V = U − cM. As P(V
≥ s) falls in s, the probability π(p, N) of that rises in p (replace a record without the property by one with it: A
grows by one). It bounds the p-value of "a ratio at least this large", so P(π(p, N) ≤ a) ≤ a for the true p and N,
whatever a. (2) N lies in C = {the observed total ± q} unless |M| > q, which has probability at most b. So with `low` at
most the smallest p for which π(p, n) > a for some n in C (Berger and Boos 1994), p < low only if π(p, N) ≤ a or N is
not in C; the same holds for `high`, with small ratios. Together that is 2a + b, the error. (3) Everything computed is
an upper bound on π, which only widens the interval: the distribution of V is discretised in blocks, each moved to its
far end; sizes n to n + m − 1 are grouped, with the m − 1 extra records each contributing the most they could. ∎

Without noise this is Clopper and Pearson's interval (1934).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]

_SIZE_ERROR = 0.04  # the share of the error that the size may take
_TAIL = 1e-6  # tail mass of the noise that is cut off; it is added to every probability
_FINE = 0.05  # of the noise's scale: the block size in which its distribution is discretised
_STEP = 1.0 / 16.0
_OUTSIDE = 1e-12  # counts further than ten deviations away, and rounding
_CERTAIN = 50.0  # of the noise's scale: what lies further away than this has a probability below 1e-18
_TOGETHER = 0.1  # of the noise's scale: how many sizes are grouped


@dataclass(frozen=True)
class CountNoise:
    """The distribution of the sum of one or two cells' two-sided geometric noise.

    Args:
        epsilon: P(x) of a cell is in proportion to exp(−ε|x|).
        cells: 1 or 2.
    """

    epsilon: float
    cells: int

    @property
    def variance(self) -> float:
        """Of the sum."""
        return self.cells * 0.5 / math.sinh(self.epsilon / 2.0) ** 2

    def at_least(self, values: Floats) -> Floats:
        """P(noise ≥ value), for each."""
        first = np.ceil(np.asarray(values, np.float64) - 1e-9)
        beyond = self._beyond(np.where(first > 0, first, 1.0 - first))
        return np.asarray(np.where(first > 0, beyond, 1.0 - beyond))

    def reach(self, error: float) -> int:
        """The smallest q with P(|noise| > q) ≤ error."""
        high = 1
        while 2.0 * self._beyond(np.array([high + 1.0]))[0] > error:
            high *= 2
        candidates = np.arange(high + 1)
        return int(candidates[2.0 * self._beyond(candidates + 1.0) <= error][0])

    def _beyond(self, first: Floats) -> Floats:
        """P(noise ≥ m) for whole m ≥ 1: of one cell q^m/(1 + q), of two the sum of the convolution."""
        q = math.exp(-self.epsilon)
        power = np.exp(-self.epsilon * first)
        if self.cells == 1:
            return np.asarray(power / (1.0 + q))
        both, outside = math.tanh(self.epsilon / 2.0) ** 2, 2.0 * q * q / -math.expm1(-2.0 * self.epsilon)
        gap = -math.expm1(-self.epsilon)
        return np.asarray(both * power * ((first + 1.0 + outside) / gap + q / gap**2))


@lru_cache(maxsize=4096)  # whoever checks a card computes again what its maker did
def noisy_interval(
    count: int,
    total: int,
    parts: tuple[tuple[CountNoise, float, float], ...],
    size: CountNoise,
    confidence: float = 0.95,
) -> tuple[float, float]:
    """The interval for p.

    Args:
        count: As observed, with noise.
        total: As observed, with noise.
        parts: The noise on count and total as at most two independent parts, each with its coefficient in the count and
            in the total.
        size: The noise on the total.
        confidence: The coverage probability.
    """
    if total <= 0:
        return 0.0, 1.0
    ratio = max(0.0, min(1.0, count / total))
    error = 1.0 - confidence
    away = size.reach(_SIZE_ERROR * error)
    law = _Law(tuple((noise, abs(in_count - ratio * in_total)) for noise, in_count, in_total in parts))
    sizes = _Sizes(ratio, max(0, total - away), total + away, law)
    each = (1.0 - _SIZE_ERROR) * error / 2.0
    return min(ratio, sizes.lowest(each)), max(ratio, 1.0 - sizes.mirrored().lowest(each))


class _Law:
    """Upper bounds on P(V ≥ s) for V = Σ weight · noise, from a table of s."""

    def __init__(self, parts: tuple[tuple[CountNoise, float], ...]) -> None:
        used = [(noise, weight) for noise, weight in parts if weight > 1e-12]
        self.scale = max((weight / noise.epsilon for noise, weight in used), default=0.0)
        self.step = max(_STEP, _FINE * self.scale)
        most = sum(weight * (noise.reach(_TAIL) + 1) for noise, weight in used) + 2 * self.step
        self._first = -math.ceil(most / self.step)
        places = np.arange(self._first, -self._first + 1) * self.step
        self._table = np.minimum(1.0, self._above(places, used) + (_TAIL if used else 0.0))

    def at_least(self, values: Floats) -> Floats:
        """Rounded down to the next table entry; 1 before the table, and the last entry beyond it."""
        places = np.floor(values / self.step + 1e-9).astype(np.int64) - self._first
        found = self._table[np.clip(places, 0, len(self._table) - 1)]
        return np.asarray(np.where(places < 0, 1.0, found))

    @staticmethod
    def _above(places: Floats, used: list[tuple[CountNoise, float]]) -> Floats:
        if not used:
            return (places <= 0).astype(np.float64)
        if len(used) == 1:
            return used[0][0].at_least(places / used[0][1])
        (first, one), (second, two) = used
        far, width = first.reach(_TAIL), max(1, int(_FINE / first.epsilon))
        edges = np.arange(-far, far + 1 + width, width, dtype=np.float64)
        tails = first.at_least(edges)
        masses = -np.diff(np.append(1.0, tails))  # of what lies before the first edge, and between neighbouring edges
        away = np.subtract.outer(places / two - 1e-9, (one / two) * (edges - 1.0))
        most = math.ceil(_CERTAIN / second.epsilon)  # from here on either way the chances are 0 and 1, but for rounding
        chances = second.at_least(np.arange(-most, most + 1.0))
        rounded = np.ceil(np.clip(away, -most, most, out=away), out=away)
        return np.asarray(chances[rounded.astype(np.intp) + most] @ masses + tails[-1])


@dataclass(frozen=True)
class _Sizes:
    """All values that the true total may have, and what each implies about p."""

    ratio: float
    least: int
    most: int
    law: _Law

    def mirrored(self) -> _Sizes:
        """For the records without the property."""
        return _Sizes(1.0 - self.ratio, self.least, self.most, self.law)

    def lowest(self, error: float) -> float:
        """A lower bound on the smallest p at which some size makes a ratio this large more likely than `error`."""
        together = max(1, int(_TOGETHER * self.law.scale))
        starts = np.arange(self.least, self.most + 1, together)
        low, worst = 1.0, starts[:1]
        for _ in range(8):
            low = self._bisect(worst, together, error, low)
            chances = self._chances(low, starts, together)
            place = int(chances.argmax())
            if low == 0.0 or chances[place] <= error:
                return low
            worst = starts[place : place + 1]
        return self._bisect(starts, together, error, low)

    def _bisect(self, starts: NDArray[np.int64], together: int, error: float, high: float) -> float:
        """The largest p below `high`, to 1e-6, at which no size in these groups gives more than this probability."""
        if self._chances(high, starts, together).max() <= error:
            return high
        low = 0.0
        if self._chances(low, starts, together).max() > error:
            return 0.0
        while high - low > 1e-6:
            middle = (low + high) / 2.0
            above = self._chances(middle, starts, together).max() > error
            low, high = (low, middle) if above else (middle, high)
        return low

    def _chances(self, p: float, starts: NDArray[np.int64], together: int) -> Floats:
        """An upper bound on π(p, n) for each group of sizes."""
        spread = 10.0 * math.sqrt(p * (1.0 - p) * int(starts[-1])) + 10.0
        window = np.arange(-math.ceil(spread), math.ceil(spread) + 1)
        counts = np.rint(starts[:, None] * p) + window[None, :]
        counts = np.where((counts < 0) | (counts > starts[:, None]), -1.0, counts)
        ahead = (together - 1) * (1.0 - self.ratio)
        needed = self.ratio * starts[:, None] - counts - ahead
        return np.asarray(np.sum(_binomial(counts, starts[:, None], p) * self.law.at_least(needed), axis=1) + _OUTSIDE)


def _binomial(counts: Floats, sizes: NDArray[np.int64], p: float) -> Floats:
    """P(Binomial(size, p) = count); 0 for a count below 0."""
    from scipy.special import gammaln

    there = counts >= 0
    k = np.where(there, counts, 0.0)
    logs = gammaln(sizes + 1.0) - gammaln(k + 1.0) - gammaln(sizes - k + 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs += np.where(k > 0, k * np.log(p), 0.0) + np.where(sizes > k, (sizes - k) * np.log1p(-p), 0.0)
    return np.where(there, np.exp(logs), 0.0)
