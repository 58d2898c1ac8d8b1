"""`twin`/`kde-sharded`: the sampler of Mao et al. 2020 on shards, with a public grid and a bound that holds.

As `sharded` up to the vectors; instead of their noisy mean, every coordinate is drawn from a grid by the exponential
mechanism over the kernel density estimate of the shards' values in it. Unlike in the paper, a record lies in one of the
M models and not in all of them; range, grid, bandwidth and window are public; the sensitivity of a score is κ/M; and
all k coordinates are paid for.

Proof. As for `sharded`, one record changes one of M vectors. `mechanisms.aggregate.ShardDensity` draws k coordinates,
each of bounded range ε0, together `ZCDpEvent(k ε0²/8)` under add-remove. Its noise multiplier here is that of the
Gaussian with the same ρ, z = 1/√(2ρ); ε0 = 2/(z√k). Nothing else looks at a record: range, grid, bandwidth, window, M
and R are public, and k is the number of coordinates of a head. So where the records say whose they are, the same holds
for a person with all of her records, who lies in one shard.

It is 10 to 22 points less accurate than `sharded` (docs/results/compare.md), so it is not among the methods that are
compared or advised unless it is asked for by name.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

import dp_accounting as dpa
import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from airlock.config import Frozen, Positive
from airlock.mechanisms import ShardDensity, Stream, bounded
from airlock.methods.case import Case
from airlock.methods.contract import Details
from airlock.methods.twin.sharded import SampleAndAggregate, ShardSettings, case_of, case_vectors, default_shards
from airlock.methods.twin.sharded_case import CASE_RADIUS, CASE_SHARDS

_FEATURES = 60  # directions of a head's features, because every coordinate has a cost


class DensitySettings(ShardSettings):
    """How shards are made, and the public grid.

    Args:
        reach: The grid's end, in units of R/√k, the size of a coordinate when all are alike.
        bandwidth: b, in the same unit.
        window: w, in units of b.
        grid: How many points.
    """

    reach: Positive = 1.5
    bandwidth: Positive = 1.0
    window: Positive = 1.0
    grid: Annotated[int, Field(ge=2, le=65_536)] = 256


class KdeSharded(SampleAndAggregate):
    """Coordinates drawn from the density of the shards' vectors; status proven, unit record or person, add-remove."""

    method: ClassVar[str] = "kde-sharded"
    title: ClassVar[str] = "parameters drawn where models on disjoint shards agree"
    rank: ClassVar[int] = 120
    listed: ClassVar[bool] = False
    leaves: ClassVar[str] = (
        "A model that was never trained: each of its numbers was drawn at random, near where many small models, each "
        "fitted to its own part of the private records, agree."
    )
    settings_model: ClassVar[type[Frozen] | None] = DensitySettings
    settings: DensitySettings

    def in_court(self) -> Case:
        """The drawn coordinates."""
        return _case(self)

    def wanted_dimensions(self, features: int) -> int | None:
        """Few by default."""
        return self.settings.dimensions or min(_FEATURES, features)

    def count_shards(self, noise_multiplier: float) -> int:
        """M: three times as many as for a mean, because a mode needs more values to stand out."""
        return self.settings.shards or default_shards(self.records, 9 * noise_multiplier)

    def mechanism(self, noise_multiplier: float, radius: float, shards: int) -> ShardDensity:
        """The sampler at this cost."""
        settings, unit = self.settings, radius / math.sqrt(self.heads.size)
        bandwidth = settings.bandwidth * unit
        return ShardDensity(
            reach=settings.reach * unit,
            points=settings.grid,
            bandwidth=bandwidth,
            window=settings.window * bandwidth,
            epsilon=self._of_coordinate(noise_multiplier),
            shards=shards,
        )

    def _of_coordinate(self, noise_multiplier: float) -> float:
        return 2.0 / (noise_multiplier * math.sqrt(self.heads.size))

    def event(self, noise_multiplier: float) -> dpa.DpEvent:
        """All coordinates together."""
        return self.mechanism(noise_multiplier, 1.0, 2).event(self.heads.size)

    def more_details(self) -> Details:
        """What one coordinate costs, and how much the agreement of all shards weighs in it."""
        own = self._of_coordinate(self.figures.noise_multiplier)
        return {"epsilon_of_a_coordinate": own, "largest_exponent": own * self.figures.shards / 2}

    def publish(
        self, vectors: Tensor, noise_multiplier: float, radius: float, stream: Stream
    ) -> tuple[NDArray[np.float64], dpa.DpEvent]:
        """One point of the grid per coordinate."""
        mechanism = self.mechanism(noise_multiplier, radius, len(vectors))
        chances = mechanism.log_probabilities(bounded(vectors, radius))
        return mechanism.sample(chances, stream), mechanism.event(vectors.shape[1])


def _case(channel: KdeSharded) -> Case:
    """The drawn coordinates of the real method."""
    mechanism = channel.mechanism(channel.figures.noise_multiplier, CASE_RADIUS, CASE_SHARDS)
    one, other = (
        mechanism.log_probabilities(bounded(case_vectors(channel, known), CASE_RADIUS)).numpy()
        for known in (True, False)
    )
    gain, grid = one - other, mechanism.grid.numpy()

    def ratio(found: NDArray[np.float64]) -> float:
        place = np.abs(grid - found[:, None]).argmin(1)
        return float(gain[np.arange(len(found)), place].sum())

    divergence = float((np.exp(one) * gain).sum())
    return case_of(channel, ratio, math.sqrt(divergence / channel.plan().guarantee.events.rho))
