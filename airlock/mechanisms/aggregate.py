"""Sample and aggregate (Nissim, Raskhodnikova and Smith 2007): one release from the outputs of M disjoint shards.

Every shard gives one vector, which may be computed from the shard's records in any way. A record is in one shard, so
adding or removing it changes one vector. The vectors can be aggregated as their mean with Gaussian noise (`ShardMean`,
or `ShardProbabilities` if they are probabilities); as the number of shards that vote for each class, with Gaussian
noise (`ShardVotes`, and `SureVotes`, which first checks whether enough agree; Papernot et al. 2018); or, coordinate by
coordinate, as a point of a public grid drawn by the exponential mechanism from a kernel density estimate
(`ShardDensity`, the sampler of Mao et al. 2020 with a valid bound).

Replacing a record may change two vectors, because shards are assigned by content: the distance doubles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import dp_accounting as dpa
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from airlock.mechanisms.clipping import clip_factors
from airlock.mechanisms.gaussian import GaussianNoise
from airlock.mechanisms.randomness import Stream

_PIECE, _NUMBERS = 64, 1 << 20  # coordinates at a time, and numbers
_HALF = math.sqrt(0.5)


def bounded(vectors: Tensor, radius: float) -> Tensor:
    """Every row clipped to a ball, in float64; a row with NaN or infinity becomes zero.

    Guarantee: every row of the result has norm at most `radius` · (1 − 2^-17), whatever the input. The remaining margin
    exceeds the rounding error of float64 sums of up to 2^30 rows.
    """
    rows = vectors.double()
    norms = torch.linalg.vector_norm(rows, dim=1)
    kept = rows * clip_factors(norms, radius)[:, None]
    return torch.where(torch.isfinite(norms)[:, None], kept, torch.zeros_like(kept))


@dataclass(frozen=True)
class ShardMean:
    """The mean of M vectors of norm at most R, plus N(0, (zΔ)²) on every coordinate, Δ = 2R/M.

    Guarantee: one vector moves within a ball of radius R, so the mean moves by at most 2R/M, and one call is
    `GaussianDpEvent(z)` under add-remove. An empty shard's vector is zero, which is in the ball too.

    Args:
        radius: R; public.
        shards: M; public.
        noise_multiplier: z.
    """

    radius: float
    shards: int
    noise_multiplier: float

    @property
    def event(self) -> dpa.DpEvent:
        """What one call costs."""
        return self._noise.event

    @property
    def _noise(self) -> GaussianNoise:
        return GaussianNoise(2 * self.radius / self.shards, self.noise_multiplier)

    def release(self, vectors: Tensor, stream: Stream) -> NDArray[np.float64]:
        """The noisy mean of these rows, one per shard."""
        mean = bounded(vectors, self.radius).sum(0) / self.shards
        return self._noise.add(mean.cpu().numpy(), stream)


def probable(vectors: Tensor) -> Tensor:
    """Every row as probabilities, in float64; a row with NaN or infinity, or without a positive one, becomes uniform.

    Guarantee: two rows of the result differ by at most √2 · (1 − 2^-17) in L2, whatever the input: rows p and q of
    probabilities have |p − q|² ≤ max|p_i − q_i| · Σ|p_i − q_i| ≤ 1 · 2, and each is moved towards the uniform row
    by 2^-17 of the distance.
    """
    rows = vectors.double().clamp_min(0.0)
    total = rows.sum(1, keepdim=True)
    even = torch.full_like(rows, 1 / rows.shape[1])
    usable = torch.isfinite(total) & (total > 0) & torch.isfinite(vectors).all(1, keepdim=True)
    return torch.where(usable, rows / total, even).lerp(even, 2.0**-17)


@dataclass(frozen=True)
class ShardProbabilities:
    """The mean of M rows of probabilities, plus N(0, (zΔ)²) on every class, Δ = √2/M.

    Guarantee: one row moves by at most √2 in L2 (`probable`), from certainty in one class to certainty in another, so
    the mean moves by at most √2/M, and one call is `GaussianDpEvent(z)` under add-remove. A shard without records
    must give a row too, by a public rule.

    Args:
        shards: M; public.
        noise_multiplier: z.
    """

    shards: int
    noise_multiplier: float

    @property
    def event(self) -> dpa.DpEvent:
        """What one call costs."""
        return self._noise.event

    @property
    def _noise(self) -> GaussianNoise:
        return GaussianNoise(math.sqrt(2.0) / self.shards, self.noise_multiplier)

    def release(self, vectors: Tensor, stream: Stream) -> NDArray[np.float64]:
        """The noisy mean of these rows, one per shard."""
        mean = probable(vectors).sum(0) / self.shards
        return self._noise.add(mean.cpu().numpy(), stream)


@dataclass(frozen=True)
class ShardVotes:
    """How many of M shards vote for each of C classes, plus N(0, 2z²) on every count.

    Guarantee: a shard casts one vote. If the vote changes, one count falls by 1 and another grows by 1, so the
    histogram moves by at most Δ = √2 in L2, and one call is `GaussianDpEvent(z)` under add-remove. A shard without
    records must vote too, by a public rule, so that no vote is ever added or removed. Post-processing of the noisy
    counts, such as taking the class with the largest one, is free.

    Args:
        classes: C.
        noise_multiplier: z.
    """

    classes: int
    noise_multiplier: float

    @property
    def event(self) -> dpa.DpEvent:
        """What one call costs."""
        return self._noise.event

    @property
    def _noise(self) -> GaussianNoise:
        return GaussianNoise(math.sqrt(2.0), self.noise_multiplier)

    def release(self, votes: Tensor, stream: Stream) -> NDArray[np.float64]:
        """The noisy counts of these votes: one class from 0 to C - 1 per shard."""
        counts = torch.bincount(votes.clamp(0, self.classes - 1), minlength=self.classes).double()
        return self._noise.add(counts.cpu().numpy(), stream)


@dataclass(frozen=True)
class SureVotes:
    """The noisy counts of `ShardVotes` where the largest count, plus N(0, z²), reaches a threshold; else nothing.

    Confident-GNMax of Papernot et al. 2018 with a data-independent bound: both queries are paid for, whatever the
    outcome of the first.

    Guarantee: if a shard's vote changes, every count moves by at most 1, and so does the largest one: the first query
    is `GaussianDpEvent(z)`. The second is that of `ShardVotes`. One call is both, under add-remove.

    Args:
        classes: C.
        threshold: A number of votes; public.
        noise_multiplier: z.
    """

    classes: int
    threshold: float
    noise_multiplier: float

    @property
    def event(self) -> dpa.DpEvent:
        """What one call costs."""
        first = GaussianNoise(1.0, self.noise_multiplier).event
        return dpa.SelfComposedDpEvent(first, 2)

    def release(self, votes: Tensor, stream: Stream) -> NDArray[np.float64]:
        """The noisy counts of these votes, one class from 0 to C - 1 per shard; NaN if too few agree."""
        most = torch.bincount(votes.clamp(0, self.classes - 1), minlength=self.classes).max().double()
        look = GaussianNoise(1.0, self.noise_multiplier)
        sure = look.add(most.cpu().numpy()[None], stream.child("look"))[0] >= self.threshold
        counts = ShardVotes(self.classes, self.noise_multiplier).release(votes, stream.child("votes"))
        return counts if sure else np.full(self.classes, np.nan)


@dataclass(frozen=True)
class ShardDensity:
    """One point of a public grid for every coordinate, by the exponential mechanism over a kernel density estimate.

    With values v_i of M shards in one coordinate, u(t) = mean_i [Φ((t + w/2 − v_i)/b) − Φ((t − w/2 − v_i)/b)], and t is
    drawn with weights exp(ε0 · M · u(t) / 2κ), κ = 2Φ(w/2b) − 1.

    Guarantee: every term of M·u lies in [0, κ], so when one shard's value changes, the exponent moves at each point of
    the grid by something in [−ε0/2, ε0/2]: the logarithm of the ratio of the two probabilities varies by at most ε0
    over the grid, which is bounded range, and a mechanism of bounded range ε0 is ε0²/8-zCDP (Cesar and Rogers 2021,
    lemma 3.4). A change in one shard affects all k coordinates; they compose to `ZCDpEvent(k ε0²/8)` under add-remove.
    Grid, bandwidth and window must be public. (Replacing a record may change two shards: bounded range 2ε0, four times
    ρ.) Points are drawn by inversion from 53-bit uniforms; probabilities below 2^-52 are not distinguished.

    Args:
        reach: The grid spans −reach to reach, and values beyond it are clamped to its ends.
        points: The number of grid points.
        bandwidth: b.
        window: w.
        epsilon: ε0, of one coordinate.
        shards: M.
    """

    reach: float
    points: int
    bandwidth: float
    window: float
    epsilon: float
    shards: int

    @property
    def largest_score(self) -> float:
        """κ: the most that one shard adds to M·u."""
        return math.erf(self.window / (2 * self.bandwidth) * _HALF)

    @property
    def sensitivity(self) -> float:
        """Δu = κ/M."""
        return self.largest_score / self.shards

    @property
    def grid(self) -> Tensor:
        """The points that can be drawn."""
        return torch.linspace(-self.reach, self.reach, self.points, dtype=torch.float64)

    def event(self, coordinates: int) -> dpa.DpEvent:
        """The cost of drawing this many coordinates."""
        return dpa.ZCDpEvent(coordinates * self.epsilon**2 / 8)

    def log_probabilities(self, values: Tensor) -> Tensor:
        """The log-probability of every grid point, one row per coordinate; `values` has one row per shard."""
        found = [self._scores(piece) for piece in torch.split(values.double(), _PIECE, 1)]
        return torch.log_softmax(torch.cat(found) * (self.epsilon / (2 * self.sensitivity)), 1)

    def _scores(self, values: Tensor) -> Tensor:
        """The score u on the grid, one row per coordinate; a few shards at a time, so that memory stays bounded."""
        grid, half = self.grid.to(values.device), self.window / 2
        total = torch.zeros(values.shape[1], self.points, dtype=torch.float64, device=values.device)
        for rows in torch.split(values.clamp(-self.reach, self.reach), max(1, _NUMBERS // total.numel())):
            away = grid - rows[:, :, None]
            upper, lower = (torch.erf((away + side) * (_HALF / self.bandwidth)) for side in (half, -half))
            total += (upper - lower).sum(0) / 2
        return total / self.shards

    def sample(self, log_probabilities: Tensor, stream: Stream) -> NDArray[np.float64]:
        """One point per coordinate, each drawn with one secret uniform number."""
        below = log_probabilities.exp().cumsum(1).cpu()
        chance = torch.from_numpy(stream.uniform(len(below)))[:, None] * below[:, -1:]
        stream.note_drawn("cpu")
        place = torch.searchsorted(below, chance).squeeze(1).clamp_max(self.points - 1)
        return self.grid[place].numpy()
