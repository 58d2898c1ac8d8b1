"""What `twin`/`published` brings to court.

The claim is about one model of the collection, so that is what differs: M models, far from each other in every one of
some hundred parameters, with and without the last of them. (Were all others close together, their scores would hide
it.) Range and bandwidth are public here: taken from the slices, as published, they alone would tell the two apart. What
is scored are the drawn parameters: the sum of their log-likelihood ratios, which is the best score there is, and how
many of them lie where only the last model is.

The canaries are about records, for which the paper claims nothing: every canary is in every model, and the twin has its
weights. Each has an input of its own to a linear network, so that its weights stay at 0 if it is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from airlock.config import ReleaseConfig, from_table
from airlock.data import Facts, Records, Split
from airlock.mechanisms import Randomness, Stream
from airlock.methods.case import Canaries, Case, Coins, Scores
from airlock.papers.twin.generate import draw, spread
from airlock.training import Run

if TYPE_CHECKING:
    from airlock.papers.twin.published import Published

MODELS, _INPUTS, _CLASSES = 20, 100, 2
PARAMETERS = (_INPUTS + 1) * _CLASSES  # of `linear_net`
_APART, _BANDWIDTH = 0.3, 0.05
_LAST = _APART * (MODELS - 1) / 2
_SIZE = 4.0
FACTS = Facts("court", (_INPUTS,), tuple(map(str, range(_CLASSES))), 1000, 1, "made up for the court")
PAIR = (
    f"{MODELS} models of {PARAMETERS} parameters, with and without one that is far from all others in each of them; "
    "range and bandwidth public"
)
STATISTICS = ("the log-likelihood ratio of all parameters", "how many parameters lie near the one model's")
WHAT = "one release on {count:,} canaries, each with a weight of its own and in every model of the collection, or out"
STATISTIC = "the canary's own weights in the twin, towards its label"


def config_for(epsilon: float, delta: float) -> ReleaseConfig:
    """The paper's sampling, with a public range and bandwidth."""
    settings = {"models": MODELS, "bandwidth": _BANDWIDTH, "range": "public", "radius": 3.0}
    return _config(epsilon, delta, "linear_net", settings)


def config_of_records(epsilon: float, delta: float) -> ReleaseConfig:
    """A small collection, with everything as published; canaries that are out leave their slices constant."""
    settings = {"models": 10, "epochs": 2.0, "batch_size": 32, "learning_rate": 1.0, "constant": "keep"}
    return _config(epsilon, delta, "linear_net", settings)


def _config(epsilon: float, delta: float, net: str, settings: Mapping[str, object]) -> ReleaseConfig:
    table = {
        "channel": "twin",
        "method": "published",
        "data": "court",
        "net": f"{__name__}:{net}",
        "epsilon": epsilon,
        "delta": delta,
        "split": {"test": 0.0, "holdout": 0.0},
        "device": "cpu",
        "settings": dict(settings),
    }
    return from_table(table)


def linear_net(shape: tuple[int, ...], classes: int) -> nn.Module:
    """One layer, all zeros."""
    net = nn.Linear(shape[0], classes)
    for parameter in net.parameters():
        nn.init.zeros_(parameter)
    return net


def facts(count: int) -> Facts:
    """One input a canary."""
    return Facts("court", (count,), tuple(map(str, range(_CLASSES))), count, 1, "made up for the court")


def neighbours() -> tuple[Tensor, Tensor]:
    """With and without the last model: (models, parameters)."""
    places = _APART * (torch.arange(MODELS, dtype=torch.float64) - (MODELS - 1) / 2)
    both = places[:, None].repeat(1, PARAMETERS)
    return both, both[:-1]


def of_model(channel: Published) -> Case:
    """The paper's claim, tried with one model more or less; its ε and Δu are those of M models on both sides."""
    settings, mechanism = channel.settings, channel.mechanism
    sides = dict(zip((True, False), neighbours(), strict=True))
    centre = torch.zeros(PARAMETERS, dtype=torch.float64)
    bandwidth, low, high = spread(sides[True], settings, centre)
    one, other = (mechanism.probabilities(sides[known], low, high, bandwidth)[0] for known in (True, False))
    ratio = one.log() - other.log()  # the same for every parameter

    def run(with_record: bool, count: int, stream: Stream) -> Scores:
        scores = np.empty((count, len(STATISTICS)))
        for i in range(count):
            values, _ = draw(sides[with_record], settings, mechanism, centre, stream.child(i))
            place = ((values - low) / (high - low) * mechanism.points - 0.5).round().long()
            scores[i] = float(ratio[place].sum()), int(((values - _LAST).abs() < settings.window * bandwidth).sum())
        return scores

    claim = channel.plan().guarantee.claim
    assert claim is not None
    return Case(claim, PAIR, STATISTICS, run)


def of_records(channel: Published) -> Canaries:
    """The same ε, read as one about records."""
    count = channel.facts.shape[0]
    every = Records(_SIZE * np.eye(count, dtype=np.float32), np.arange(count) % _CLASSES)

    def run(coins: Coins, stream: Stream) -> Scores:
        nobody = every.take(np.arange(0))
        split = Split(channel.facts, every.take(np.flatnonzero(coins)), nobody, every.take(np.arange(1)), nobody)
        net = channel.release(split, Randomness(0, stream), Run()).network.net
        weight: Tensor = next(net.parameters()).detach().double()
        towards = (weight[0] - weight[1]).numpy()
        return np.asarray(np.where(every.y == 0, towards, -towards))

    claim = channel.plan().guarantee.claim
    assert claim is not None
    return Canaries(claim, count, WHAT.format(count=count), STATISTIC, run)
