"""Private k-means: Lloyd's algorithm with noisy counts and sums (Su, Cao, Li, Bertino and Jin 2016, improved DPLloyd).

Data-independent starting points and few iterations, each with the noisy number and the noisy sum of the points of every
cluster; a centroid is their quotient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import dp_accounting as dpa
import numpy as np
from numpy.typing import NDArray

from airlock.errors import ConfigError, DataError
from airlock.mechanisms.laplace import LaplaceNoise
from airlock.mechanisms.randomness import Stream

Points = NDArray[np.float64]

_RHO = 0.225  # average distance of centroids from the middle of the domain (Su et al., section 4)
_FEWEST, _MOST = 2, 7  # iterations
_DARTS = 100  # a packing is abandoned after this many misses in a row
_HALVINGS = 20


@dataclass(frozen=True)
class PrivateKMeans:
    """k centroids of points in a public box.

    Guarantee: `event`, hence ε-DP, under adding or removing one point, if the bounds, the number of points that the
    iterations are planned for, k and ε are public. Proof: one point is in one cluster of each iteration. It moves that
    cluster's count by 1 and its sum, of points scaled to [-1, 1]^d, by at most d in L1, and nothing else. Counts get
    Laplace noise of scale 1/ε_count and sums of scale 1/ε_dim, so an iteration costs ε_count + d ε_dim = ε/T, composed
    adaptively over T iterations. The starting points are drawn without the data, T follows from public figures; the
    rest is post-processing.

    Args:
        clusters: k.
        epsilon: The total ε of all iterations.
        expected_points: About how many points there are; a public figure, not counted from private points.
        lower: The box's lower end in every dimension; public. Points outside are moved to its border.
        upper: Its upper end.
        dimensions: d.
    """

    clusters: int
    epsilon: float
    expected_points: int
    lower: float = -1.0
    upper: float = 1.0
    dimensions: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.clusters <= self.expected_points:
            raise ConfigError(
                f"1 to {self.expected_points} clusters, at most as many as points",
                f"{self.clusters}",
                do="Lower the number of clusters, or give it more points.",
            )
        if not 0 < self.epsilon < math.inf:
            raise ConfigError(
                "an ε above 0 for k-means", f"{self.epsilon}", "Without a budget, no amount of noise is enough."
            )
        if not -math.inf < self.lower < self.upper < math.inf or self.dimensions < 1:
            raise ConfigError("a box of at least one dimension with lower < upper", f"{self.lower} to {self.upper}")

    @property
    def iterations(self) -> int:
        """T = ε/ε_m between 2 and 7, with ε_m the least ε at which one iteration is worth its noise."""
        d, k, n = self.dimensions, self.clusters, self.expected_points
        least = math.sqrt(500.0 * k**3 / n**2 * (d + _count_share(d)) ** 3)
        return int(min(max(self.epsilon / least, _FEWEST), _MOST))

    @property
    def count_noise(self) -> LaplaceNoise:
        """The noise on the numbers of points in one iteration: sensitivity 1."""
        return LaplaceNoise(1.0, 1.0 / (self._unit * _count_share(self.dimensions)))

    @property
    def sum_noise(self) -> LaplaceNoise:
        """The noise on the sums of points in [-1, 1]^d in one iteration: sensitivity d in L1."""
        return LaplaceNoise(float(self.dimensions), 1.0 / (self._unit * self.dimensions))

    @property
    def _unit(self) -> float:
        """ε_dim: ε of one dimension in one iteration."""
        return self.epsilon / self.iterations / (self.dimensions + _count_share(self.dimensions))

    @property
    def event(self) -> dpa.DpEvent:
        """What `fit` costs: its two kinds of noise, in every iteration."""
        one = dpa.ComposedDpEvent([self.count_noise.event, self.sum_noise.event])
        return dpa.SelfComposedDpEvent(one, self.iterations)

    def fit(self, points: Points, stream: Stream, seed: int = 0) -> Points:
        """The centroids (clusters, dimensions), in the points' own units.

        Args:
            points: Private: (points, dimensions), or flat with one dimension.
            stream: Secret; its children are read once.
            seed: Public; for the starting points.

        Raises:
            DataError: There are no points, or they have another dimension or are not numbers.
        """
        inside = self._scaled(points)
        centroids = pack(self.clusters, self.dimensions, seed)
        for iteration in range(self.iterations):
            nearest = assign_nearest(inside, centroids)
            counts: Points = np.bincount(nearest, minlength=self.clusters).astype(np.float64)
            sums: Points = np.stack([np.bincount(nearest, x, self.clusters) for x in inside.T], 1)
            counts = self.count_noise.add(counts, stream.child("counts", iteration))
            sums = self.sum_noise.add(sums, stream.child("sums", iteration))
            some = counts >= 1.0  # if a cluster looks empty, its sum is only noise, so it does not move
            centroids[some] = np.clip(sums[some] / counts[some, None], -1.0, 1.0)
        return (centroids + 1.0) / 2.0 * (self.upper - self.lower) + self.lower

    def _scaled(self, points: Points) -> Points:
        points = np.asarray(points, np.float64)
        points = points[:, None] if points.ndim == 1 else points
        if points.ndim != 2 or points.shape[1] != self.dimensions or not len(points):
            raise DataError(f"at least one point of {self.dimensions} dimensions", f"an array {points.shape}")
        if np.isnan(points).any():
            raise DataError("points that are numbers", "NaN", "A point without coordinates belongs to no cluster.")
        return (np.clip(points, self.lower, self.upper) - self.lower) / (self.upper - self.lower) * 2.0 - 1.0


def _count_share(dimensions: int) -> float:
    """ε_count over ε_dim: ∛(4dρ²), which makes the expected error of a centroid smallest."""
    return float(np.cbrt(4.0 * dimensions * _RHO**2))


def assign_nearest(points: Points, centroids: Points) -> NDArray[np.int64]:
    """The nearest centroid of every point; in one dimension by sorting, so that a million points are fast."""
    if points.shape[1] == 1:
        order = np.argsort(centroids[:, 0], kind="stable")
        line = centroids[order, 0]
        place = np.searchsorted((line[1:] + line[:-1]) / 2.0, points[:, 0])
        return order[place].astype(np.int64)
    found = [
        ((part[:, None] - centroids) ** 2).sum(2).argmin(1) for part in np.array_split(points, len(points) // 4096 + 1)
    ]
    return np.concatenate(found).astype(np.int64)


def pack(count: int, dimensions: int, seed: int) -> Points:
    """Starting points in [-1, 1]^d, as far from each other and from the border as random sphere packing gets them.

    It searches for the largest radius r for which dart throwing finds `count` points at least r from the border and 2r
    from each other. In one dimension the answer is known: the midpoints of equal parts.
    """
    if dimensions == 1:
        return ((2.0 * np.arange(count) + 1.0) / count - 1.0)[:, None]
    rng = np.random.default_rng(seed)
    low, high, best = 0.0, 1.0, rng.uniform(-1.0, 1.0, (count, dimensions))
    for _ in range(_HALVINGS):
        radius = (low + high) / 2.0
        found = _throw(count, dimensions, radius, rng)
        if found is None:
            high = radius
        else:
            low, best = radius, found
    return best


def _throw(count: int, dimensions: int, radius: float, rng: np.random.Generator) -> Points | None:
    found: list[Points] = []
    misses = 0
    while len(found) < count and misses < _DARTS:
        dart = rng.uniform(radius - 1.0, 1.0 - radius, dimensions)
        if all(float(((dart - other) ** 2).sum()) >= 4.0 * radius**2 for other in found):
            found.append(dart)
            misses = 0
        else:
            misses += 1
    return np.array(found) if len(found) == count else None
