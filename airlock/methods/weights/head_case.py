"""The case of `weights`/`head`: the released mean and one step of the head, on one record against none.

With no other record everything that is released has a known distribution, so the score can be the best one there is:
the logarithm of how much more likely the release is with the record than without it. What comes from the mean and what
comes from the head are scores of their own.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from airlock.accounting import Claim
from airlock.config import ReleaseConfig
from airlock.data import Records
from airlock.mechanisms import Randomness, Stream
from airlock.methods import step_case
from airlock.methods.case import Case, Scores, curve_of, less_noise
from airlock.methods.weights.features import Features
from airlock.nets.frontend import Framed
from airlock.training import Run

if TYPE_CHECKING:
    from airlock.methods.weights.head import Head

PAIR = "no record, and one record whose features have norm 1"
STATISTICS = (
    "how much more likely mean and head are with the record",
    "how much more likely the mean is",
    "how much more likely the head is",
)


def config_for(epsilon: float, delta: float) -> ReleaseConfig:
    """The mean and the head share the budget evenly; every record is in the step."""
    settings = {"steps": 1, "features": "pixels", "centre_share": 0.5, "learning_rate": 1.0}
    return step_case.config_for("head", epsilon, delta, net="auto", settings=settings)


def of_head(channel: Head) -> Case:
    """Both releases of the real method; the claim is the ε of the events that were executed."""
    plan, here = channel.plan(), Run()
    noise = float(plan.details["noise_multiplier"])
    noise_of_mean = float(plan.details["noise_multiplier_of_the_mean"])
    both, others = step_case.neighbours()
    record = both.take(np.arange(len(others), len(both)))
    sides = {
        known: Side(copy.deepcopy(channel.front.ready(None, here)), record.take(np.arange(int(known))), here)
        for known in (True, False)
    }
    features = sides[True].raw[0]

    def run(with_record: bool, count: int, stream: Stream) -> Scores:
        side, scores = sides[with_record], np.empty((count, len(STATISTICS)))
        for i in range(count):
            side.reset()
            executed = channel.train(side.net, side, noise, Randomness(0, stream.child(i)), here)
            if i == 0:
                step_case.check_claimed(plan.guarantee.events, executed)
            mean = _ratio(side.net.centre.mean * channel.records, features, noise_of_mean)
            scale = channel.expected_lot / channel.settings.clip_norm
            head = _ratio(-side.net.head.weight.detach() * scale, _direction(side.net, features), noise)
            scores[i] = mean + head, mean, head
        return scores

    claim = Claim(plan.guarantee.epsilon, plan.guarantee.delta, step_case.ACCOUNTED)
    events = plan.guarantee.events
    return Case(claim, PAIR, STATISTICS, run, curve_of(events, claim.epsilon), less_noise(events, claim.delta))


class Side(Features):
    """One data set and its network, put back to their start before every run."""

    def __init__(self, net: Framed, records: Records, run: Run) -> None:
        super().__init__(net, records, run)
        self.raw = self.x

    def reset(self) -> None:
        """Features as they were before a mean was taken off, mean and head at zero."""
        self.x, self._centred = self.raw, None
        with torch.no_grad():
            self.net.centre.mean.zero_()
            self.net.head.weight.zero_()


def _direction(net: Framed, features: Tensor) -> Tensor:
    """The record's gradient at a head of zeros, over its norm, which is above the clip norm; label 0."""
    classes = net.head.out_features
    slope = torch.full((classes, 1), 1.0 / classes)
    slope[0] -= 1.0
    with torch.no_grad():
        gradient: Tensor = slope * net.centre(features[None])
    return gradient.div_(gradient.norm())


def _ratio(found: Tensor, wanted: Tensor, noise: float) -> float:
    """The logarithm of N(wanted, noise²) over N(0, noise²) at what was found."""
    found, wanted = found.flatten().double(), wanted.flatten().double()
    return float((found - wanted / 2) @ wanted) / noise**2
