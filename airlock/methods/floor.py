"""Public records alone as a floor: what the private records add to them is measured, paid for, and decides what leaves.

A method that has labelled public records starts from the model that they give (`public_start`). When it has learnt from
the private records too, a noisy count says by how much more of them the result classifies correctly than the model of
the public records alone. Unless it exceeds what the noise alone exceeds once in twenty times, what leaves is that
model: so a model that is worse on these records leaves with a probability below 5%. Either way the count is on the
card, and the plan says what it takes (`gain_needed`): with few records at a small ε it may be more than there can be.

Proof. Both models are fixed when the count is taken: the first by public records, the second by what was released
before. A record adds −1, 0 or 1 to the count, by both models' predictions for it, which depend on no other record
(`training.outcomes`); a person adds the mean over her records. So adding or removing one moves the count by at most 1,
and noise N(0, z²) on it is `GaussianDpEvent(z)`, composed with what the training costs. Which model leaves, and the
figure on the card, are functions of the noisy count and of both models, the first of which is public and the second
paid for.

The count takes 2% of the budget in terms of 1/z². At ε = 1 and δ = 1e-5 its noise is 26 records, whatever their number.
The private records were trained on, so that the count flatters the second model by as much as it has memorised, which
under noise is little.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import dp_accounting as dpa
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from airlock.accounting import gaussian_multiplier
from airlock.config import DataConfig, ReleaseConfig
from airlock.data import Facts, Records, Split, digest
from airlock.mechanisms import GaussianNoise, Stream
from airlock.methods.contract import Details
from airlock.nets.frontend import Framed
from airlock.training import Run
from airlock.training.front_ends.features import compute
from airlock.training.front_ends.public import SPLIT, FrontSettings, planned_sentence
from airlock.training.outcomes import predict

SHARE = 0.02  # of the budget
_ONCE_IN_TWENTY, _IN_THE_MIDDLE = 1.645, 1.96  # standard deviations of a normal number


@dataclass(frozen=True)
class Gain:
    """How many more private records, or people, are right, with noise; how many it takes; and what it cost."""

    count: float
    needed: float
    event: dpa.DpEvent

    @property
    def there(self) -> bool:
        """Whether the private records add anything."""
        return self.count > self.needed


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

    @classmethod
    def where_public(cls, config: ReleaseConfig, facts: Facts, units: int) -> Floor | None:
        """The same where there is a public part of the split, and classes; otherwise None."""
        there = config.split.public > 0 and facts.task == "classification"
        return cls.of(config, units) if there else None

    @property
    def event(self) -> dpa.DpEvent:
        """What it is planned to cost."""
        return self.noise.event

    @property
    def details(self) -> Details:
        """For plan and card."""
        return {
            "noise_multiplier_of_the_floor": self.noise_multiplier,
            "gain_needed": float(f"{self.needed / self.units:.4g}"),
        }

    @property
    def needed(self) -> float:
        """The count from which on the other model leaves."""
        return _ONCE_IN_TWENTY * self.noise_multiplier

    @property
    def assumptions(self) -> tuple[str, ...]:
        """That the public part is public."""
        return planned_sentence(FrontSettings(public=DataConfig(source=SPLIT)))

    def measure(self, before: NDArray[np.bool_], after: NDArray[np.bool_], records: Records, stream: Stream) -> Gain:
        """The noisy count.

        Args:
            before: Which records the model of the public ones alone classifies correctly.
            after: Which the other does.
            records: The private records.
            stream: For the noise.
        """
        if records.person is None:
            found = float(int(after.sum()) - int(before.sum()))  # of records in a file there may be very many
        else:
            found = float(((after.astype(np.int64) - before) * records.weights).sum())
        return Gain(float(self.noise.add(np.array([found]), stream)[0]), self.needed, self.noise.event)

    @property
    def unknown(self) -> Gain:
        """What a process knows that does not draw the noise."""
        return Gain(0.0, self.needed, self.event)

    def told(self, gain: Gain, split: Split) -> Details:
        """For the card: by how much the private records help, as a share of their public number."""
        share = float(f"{gain.count / self.units:.4g}")
        spread = float(f"{_IN_THE_MIDDLE * self.noise_multiplier / self.units:.2g}")
        leaves = "the model of public and private records" if gain.there else "the model of the public records alone"
        found: Details = {"gain_over_public_alone": share, "gain_within": spread, "after_the_comparison": leaves}
        return {**found, "public_records": len(split.public), "public_sha256": digest(split.public)}


def compare_heads(
    floor: Floor, net: Framed, public: Tensor, private: Tensor, records: Records, stream: Stream, run: Run
) -> Gain:
    """Of two heads on the same features, the noisy count; the one that it prefers is in the network afterwards.

    Args:
        floor: The comparison.
        net: Front end and head.
        public: The weights that public records alone give.
        private: Those that leave unless they are worse.
        records: The private records.
        stream: For the noise.
        run: Where to compute.
    """
    sides = [nn.Sequential(net.centre, nn.Linear(public.shape[1], len(public), bias=False)) for _ in range(2)]
    for side, weight in zip(sides, (public, private), strict=True):
        side[1].weight = nn.Parameter(weight.clone(), requires_grad=False)
    found = [np.zeros(len(records), np.bool_) for _ in sides]
    for place, block in compute(net.front, records, run, "features for the comparison"):
        own = Records(block.float().cpu().numpy(), records.y[place])
        for side, into in zip(sides, found, strict=True):
            into[place] = right(side.to(run.device), own)
    gain = floor.measure(found[0], found[1], records, stream)
    with torch.no_grad():
        net.head.weight.copy_(private if gain.there else public)
    return gain


def right(net: nn.Module, records: Records) -> NDArray[np.bool_]:
    """Which records the network classifies correctly."""
    return np.asarray(predict(net, records).argmax(1).numpy() == records.y)
