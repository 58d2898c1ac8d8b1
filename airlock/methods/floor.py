"""Public records alone as a floor: what the private records add to them is measured, paid for, and decides what leaves.

A method that has labelled public records starts from the model that they give (`public_start`). When it has learnt from
the private records too, a noisy count says by how much more of them the result classifies correctly than the model of
the public records alone. If it is not above 0, what leaves is that model. Either way the count is on the card.

Proof. Both models are fixed when the count is taken: the first by public records, the second by what was released
before. A record adds −1, 0 or 1 to the count, by both models' predictions for it, which depend on no other record
(`training.outcomes`); a person adds the mean over her records. So adding or removing one moves the count by at most 1,
and noise N(0, z²) on it is `GaussianDpEvent(z)`, composed with what the training costs. Which model leaves, and the
figure on the card, are functions of the noisy count and of both models, the first of which is public and the second
paid for.

The count takes 2% of the budget in terms of 1/z². At ε = 1 its noise is 26 records, whatever their number. The private
records were trained on, so that the count flatters the second model by as much as it has memorised, which under noise
is little.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import dp_accounting as dpa
import numpy as np
from numpy.typing import NDArray
from torch import nn

from airlock.accounting import gaussian_multiplier
from airlock.config import ReleaseConfig
from airlock.data import Records
from airlock.mechanisms import GaussianNoise, Stream
from airlock.methods.contract import Details
from airlock.training.outcomes import predict

SHARE = 0.02  # of the budget


@dataclass(frozen=True)
class Gain:
    """How many more private records, or people, are right, with noise; and what it cost."""

    count: float
    event: dpa.DpEvent

    @property
    def there(self) -> bool:
        """Whether the private records add anything."""
        return self.count > 0


@dataclass(frozen=True)
class Floor:
    """The comparison, planned before a record is read.

    Args:
        noise_multiplier: z.
        units: The public number of records, or of people.
    """

    noise_multiplier: float
    units: int

    @classmethod
    def of(cls, config: ReleaseConfig, units: int) -> Floor:
        """At its share of the budget of one run."""
        whole = gaussian_multiplier(config.epsilon, config.delta)
        return cls(whole * math.sqrt(config.tuning_runs / SHARE), units)

    @cached_property
    def noise(self) -> GaussianNoise:
        """Of a count that one record, or person, moves by at most 1."""
        return GaussianNoise(1.0, self.noise_multiplier)

    @property
    def event(self) -> dpa.DpEvent:
        """What it is planned to cost."""
        return self.noise.event

    @property
    def details(self) -> Details:
        """For plan and card."""
        return {"noise_multiplier_of_the_floor": self.noise_multiplier}

    def measure(self, before: NDArray[np.bool_], after: NDArray[np.bool_], records: Records, stream: Stream) -> Gain:
        """The noisy count.

        Args:
            before: Which records the model of the public ones alone classifies correctly.
            after: Which the other does.
            records: The private records.
            stream: For the noise.
        """
        found = float(((after.astype(np.int64) - before) * records.weights).sum())
        return Gain(float(self.noise.add(np.array([found]), stream)[0]), self.noise.event)

    def told(self, gain: Gain) -> Details:
        """For the card: by how much the private records help, as a share of their public number."""
        share = float(f"{gain.count / self.units:.4g}")
        spread = float(f"{1.96 * self.noise_multiplier / self.units:.2g}")
        leaves = "the model of public and private records" if gain.there else "the model of the public records alone"
        return {"gain_over_public_alone": share, "gain_within": spread, "after_the_comparison": leaves}


def right(net: nn.Module, records: Records) -> NDArray[np.bool_]:
    """Which records the network classifies correctly."""
    return np.asarray(predict(net, records).argmax(1).numpy() == records.y)
