"""The canaries of `weights`/`head`: a whole release, of which the mean and the head are scored together."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from airlock.config import ReleaseConfig
from airlock.mechanisms import Stream
from airlock.methods import step_canaries, step_case
from airlock.methods.case import Canaries, Coins, Scores
from airlock.methods.step_canaries import own_direction, toward_own_label
from airlock.nets.frontend import Framed

if TYPE_CHECKING:
    from airlock.methods.weights.head import Head

STATISTIC = "the released mean and the released head on the canary's features, each over its noise"


def config_for_head(epsilon: float, delta: float, count: int) -> ReleaseConfig:
    """The mean and the head share the budget evenly; every record is in every step."""
    settings = {
        "steps": step_canaries.STEPS, "features": "pixels", "centre_share": 0.5, "learning_rate": 1.0, "momentum": 0.0,
        "clip_norm": 0.1,
    }  # fmt: skip
    return step_case.config_for("head", epsilon, delta, net="auto", settings=settings)


def of_head(channel: Head) -> Canaries:
    """The whole release of a head: the mean and the steps, added up as their noise weighs them."""
    every = step_canaries.records(channel.records // step_canaries.STATED)
    plan = channel.plan()
    noise, of_mean = (float(plan.details[f"noise_multiplier{name}"]) for name in ("", "_of_the_mean"))
    scale = channel.expected_lot / channel.settings.clip_norm

    def run(coins: Coins, stream: Stream) -> Scores:
        net = step_canaries.released(channel, every, coins, stream)
        assert isinstance(net, Framed)
        weight = net.head.weight.detach()[:, :-1]  # the last one is the bias
        head = toward_own_label(own_direction(weight[0] - weight[1]) / math.sqrt(2), every) * scale
        return own_direction(net.centre.mean) * channel.records / of_mean**2 + head / noise**2

    what = step_canaries.WHAT.format(steps=channel.settings.steps, count=len(every))
    claim, family = step_canaries.claim_of(plan.guarantee), step_canaries.family_of(plan.guarantee)
    return Canaries(claim, len(every), what, STATISTIC, run, family)
