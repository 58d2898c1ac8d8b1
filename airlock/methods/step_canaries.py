"""The canaries of private training: one whole run on made-up records, each of them in or out by a coin of its own.

Every canary has two coordinates of the input to itself, so that gradients of different canaries are orthogonal, and is
so large that its gradient is far above the clip norm: what it adds to a step is of that norm and in its own direction
(the gradient-space canary of Nasr et al. 2021 and Steinke et al. 2023, made by a record). Labels alternate, which keeps
what the canaries have in common small. There are no other records.

Scored is the released model alone. With plain SGD its weights are those at the start minus learning rate × the sum of
all noisy gradients, so the projection of their change on a canary's direction is the sum over the steps of the
projections that a white-box attacker adds up: here the intermediate models, which are accounted for too, tell no more.
The learning rate is so small that gradients stay as they are at the start.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from airlock.accounting import Claim, Guarantee
from airlock.config import ReleaseConfig
from airlock.data import Facts, Records, Split
from airlock.mechanisms import Randomness, Stream
from airlock.methods import step_case
from airlock.methods.case import Canaries, Coins, LessNoise, Scores, less_noise
from airlock.training import Run

if TYPE_CHECKING:
    from airlock.methods.contract import Channel
    from airlock.methods.noisy_training import NoisyTraining

Trained = Callable[[Split, Randomness], nn.Module]

STEPS, _CLASSES, _CLIP_NORM = 10, 2, 0.5
_FIRST, _SECOND, _SIZE = 0.05, 0.5, 28.0  # weights of both layers; a gradient is some forty clip norms long
STATED = 100  # times as many records are stated as there are canaries; all that this changes is the unit of a step
WHAT = "one release, {steps} steps, on {count:,} canaries with orthogonal gradients above the clip norm, each in or out"
STATISTIC = "the change of the released weights, projected on the canary's gradient"


def facts(count: int) -> Facts:
    """Two coordinates a canary; the number of records is stated, as everywhere, not counted."""
    return Facts("court", (2 * count,), tuple(map(str, range(_CLASSES))), STATED * count, 1, "made up for the court")


def canary_net(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two linear layers without biases: a canary, whose coordinates cancel out, moves the first alone at the start."""
    first, second = nn.Linear(shape[0], 1, bias=False), nn.Linear(1, classes, bias=False)
    with torch.no_grad():
        first.weight.fill_(_FIRST)
        second.weight.copy_(torch.tensor([-_SECOND, _SECOND])[:, None])
    return nn.Sequential(first, second)


def config_for(
    method: str, epsilon: float, delta: float, count: int, steps: int = STEPS, lot: float = 0.5
) -> ReleaseConfig:
    """Some steps of plain SGD; half of the records in each lot, unless another share is wanted."""
    settings = settings_for(count, steps, lot)
    return step_case.config_for(method, epsilon, delta, net=f"{__name__}:canary_net", settings=settings)


def settings_for(count: int, steps: int = STEPS, lot: float = 0.5) -> dict[str, object]:
    """The settings of that training."""
    return {
        "steps": steps,
        "lot_size": int(lot * STATED * count),
        "learning_rate": 1.0,
        "momentum": 0.0,
        "ema": 0.0,
        "clip_norm": _CLIP_NORM,
    }


def records(count: int) -> Records:
    """All canaries: +1 and −1 times their size in two coordinates of their own."""
    x, i = np.zeros((count, 2 * count), np.float32), np.arange(count)
    x[i, 2 * i], x[i, 2 * i + 1] = _SIZE, -_SIZE
    return Records(x, i % _CLASSES)


def of_training(channel: NoisyTraining, trained: Trained | None = None) -> Canaries:
    """The whole release of a method that trains a network; or what `trained` gives, where that network stays."""
    every = records(channel.facts.shape[0] // 2)
    before = _first(channel.net())

    def run(coins: Coins, stream: Stream) -> Scores:
        after = _first(released(channel, every, coins, stream, trained))
        return toward_own_label(own_direction(before - after), every)

    what = WHAT.format(steps=channel.settings.steps, count=len(every))
    promised = channel.plan().guarantee
    return Canaries(claim_of(promised), len(every), what, STATISTIC, run, family_of(promised))


def claim_of(guarantee: Guarantee) -> Claim:
    """What is claimed of the whole release: by accounting, or by the paper where nothing is proven."""
    return guarantee.claim or Claim(guarantee.epsilon, guarantee.delta, step_case.ACCOUNTED)


def family_of(guarantee: Guarantee, reach: float = 1.0) -> LessNoise | None:
    """The whole release with less noise; of a paper's claim nothing is known."""
    return None if guarantee.claim else less_noise(guarantee.events, guarantee.delta, reach)


def released(
    channel: Channel, every: Records, coins: Coins, stream: Stream, trained: Trained | None = None
) -> nn.Module:
    """The network when these canaries are the private records."""
    private, nobody = every.take(np.flatnonzero(coins)), every.take(np.arange(0))
    split = Split(channel.facts, private, nobody, every.take(np.arange(1)), nobody)
    if trained is not None:
        return trained(split, Randomness(0, stream))
    return channel.release(split, Randomness(0, stream), Run()).network.net


def _first(net: nn.Module) -> Tensor:
    weight: Tensor = next(net.parameters()).detach()
    return weight.flatten().double().clone()


def own_direction(vector: Tensor) -> Scores:
    """The projection on every canary's own direction, of norm 1."""
    pairs = vector.flatten().double().view(-1, 2)
    return np.asarray(((pairs[:, 0] - pairs[:, 1]) / math.sqrt(2)).numpy())


def toward_own_label(scores: Scores, every: Records) -> Scores:
    """The sign that the canary's label gives."""
    return np.where(every.y == 0, scores, -scores)
