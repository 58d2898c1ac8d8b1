"""The cases of private training: one noisy step of the real method on a tiny network, with one record more or less.

The other records are zero: this network has no biases, so their gradients are zero too, and they only take part in the
drawing of lots. The record that differs has a gradient far above the clip norm. What is scored is what a step puts out:
all that follows (the optimiser, averaging, the weights) is computed from it.

Statistics: the projection on the record's clipped gradient, each coordinate over its noise, which is the best score
where the noise is as stated; the same tensor by tensor, which shows one that got too little; and the squared size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import dp_accounting as dpa
import numpy as np
import torch
from torch import Tensor, nn

from airlock.accounting import Claim, to_json
from airlock.config import ReleaseConfig, from_table
from airlock.data import Facts, Records, Split
from airlock.errors import Refused
from airlock.mechanisms import Clip, Randomness, Stream
from airlock.methods.case import Case, Scores, curve_of, less_noise
from airlock.methods.contract import Plan
from airlock.training import Poisson, Resident
from airlock.training.per_sample import clipped_sum

if TYPE_CHECKING:
    from airlock.methods.noisy_training import NoisyTraining

_INPUTS, _HIDDEN, _CLASSES = 6, 4, 2
_OTHERS = 3
# Usual records move the second layer more than the first, the record that differs almost only the first: it is large,
# and nearly orthogonal to the rows of the first layer. A shape that suits the others gives it little noise.
_FIRST, _SECOND, _SIZE, _OFFSET = 0.5, 0.05, 80.0, 0.1
_CPU = torch.device("cpu")
PUBLIC_RECORDS = 1000  # the stated number; the data sets of a case need not have it
PAIR = f"{_OTHERS} records of zeros, with and without one record whose gradient is far above the clip norm"
ACCOUNTED = "dp-accounting's PLD of the events that the runs execute"
SETTINGS = {"steps": 1, "lot_size": PUBLIC_RECORDS // 2, "learning_rate": 1.0, "clip_norm": 0.5}
FACTS = Facts("court", (_INPUTS,), tuple(map(str, range(_CLASSES))), PUBLIC_RECORDS, 1, "made up for the court")


def tiny_net(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two layers without biases: a record of zeros has no gradient."""
    first, second = nn.Linear(shape[0], _HIDDEN, bias=False), nn.Linear(_HIDDEN, classes, bias=False)
    with torch.no_grad():  # of one sign, so that no unit is dead on records that are positive on the whole
        first.weight.fill_(_FIRST)
        second.weight.copy_(torch.tensor([-_SECOND, _SECOND])[:, None].expand(classes, _HIDDEN))
    return nn.Sequential(first, nn.ReLU(), second)


def config_for(method: str, epsilon: float, delta: float, **changes: object) -> ReleaseConfig:
    """One step on the made-up facts; half of the records are expected in its lot. Of `weights` unless changed."""
    table = {
        "channel": "weights",
        "method": method,
        "data": "court",
        "net": f"{__name__}:tiny_net",
        "epsilon": epsilon,
        "delta": delta,
        "split": {"test": 0.0, "holdout": 0.0},
        "device": "cpu",
        "settings": dict(SETTINGS),
    }
    return from_table({**table, **changes})


def neighbours() -> tuple[Records, Records]:
    """With and without the record; the one that differs comes last."""
    x = np.zeros((_OTHERS + 1, _INPUTS), np.float32)
    x[-1] = np.where(np.arange(_INPUTS) % 2, -_SIZE, _SIZE) + _OFFSET
    both = Records(x, np.zeros(len(x), np.int64))
    return both, both.take(np.arange(_OTHERS))


def of_step(channel: NoisyTraining) -> Case:
    """One step of a proven method on a Poisson lot; the claim is the ε of the event that was executed."""
    plan = channel.plan()
    promised = plan.guarantee
    claim = Claim(promised.epsilon, promised.delta, ACCOUNTED)
    return _case(channel, plan, channel.sampling_probability, claim, promised.events)


def of_lot(channel: NoisyTraining, claim: Claim) -> Case:
    """One step on a lot of all records, for a claim that is about the noise of one step."""
    return _case(channel, channel.plan(), 1.0, claim, None)


def _case(
    channel: NoisyTraining, plan: Plan, sampling_probability: float, claim: Claim, events: dpa.DpEvent | None
) -> Case:
    net = channel.net()
    projection = Projection(net, channel_clip(channel, net, plan))
    sides = {with_record: _prepared(records) for with_record, records in zip((True, False), neighbours(), strict=True)}

    def run(with_record: bool, count: int, stream: Stream) -> Scores:
        split, data = sides[with_record]
        scores = np.empty((count, projection.columns))
        for i in range(count):
            randomness = Randomness(0, stream.child(i))
            gradients = channel.source(net, split, data, plan, randomness)
            sampler = Poisson(sampling_probability, randomness.privacy.child("sampling"))
            gradients(net, *data.batch(sampler.draw(0, len(data))), 0)
            if i == 0 and events is not None:
                check_claimed(events, channel.executed_step(sampler, gradients))
            scores[i] = projection.of(net)
        return scores

    if events is None:
        return Case(claim, PAIR, projection.names, run)
    return Case(claim, PAIR, projection.names, run, curve_of(events, claim.epsilon), less_noise(events, claim.delta))


class Projection:
    """What a step put out, on the differing record's clipped gradient: in all, tensor by tensor, and its size."""

    def __init__(self, net: nn.Module, clip: Clip) -> None:
        x, y = Resident(neighbours()[0], _CPU).batch(np.array([_OTHERS]))
        gradient, _ = clipped_sum(net, x, y, clip)
        self._spread = {name: _spread(clip, name, g) for name, g in gradient.items()}
        self._wanted = {name: (g / self._spread[name]).flatten().double() for name, g in gradient.items()}
        tensors = tuple(f"the projection within {name}" for name in gradient)
        self.names = ("the projection on the record's clipped gradient", *tensors, "the squared size of the step")
        self.columns = len(self.names)

    def of(self, net: nn.Module) -> list[float]:
        """The scores of the gradient that lies in the network."""
        parts, size = [], 0.0
        for name, wanted in self._wanted.items():
            gradient = net.get_parameter(name).grad
            assert gradient is not None
            found = (gradient / self._spread[name]).flatten().double()
            parts.append(float(found @ wanted))
            size += float(found @ found)
        return [sum(parts), *parts, size]


def channel_clip(channel: NoisyTraining, net: nn.Module, plan: Plan) -> Clip:
    """How the method clips: its bound, and the shape that its noise shares."""
    split, data = _prepared(neighbours()[0])
    source = channel.source(net, split, data, plan, Randomness(0, Stream.from_seed(0)))
    clip = source.clip  # type: ignore[attr-defined]
    assert isinstance(clip, Clip)
    return clip


def _spread(clip: Clip, name: str, like: Tensor) -> Tensor:
    scale = clip.scale_of(name)
    return torch.ones_like(like) if scale is None else scale.expand_as(like)


def _prepared(records: Records) -> tuple[Split, Resident]:
    nobody = records.take(np.arange(0))
    return Split(FACTS, records, nobody, nobody, nobody), Resident(records, _CPU)


def check_claimed(planned: dpa.DpEvent, executed: dpa.DpEvent) -> None:
    """The claim is that of what runs, or there is no case."""
    if to_json(planned) != to_json(executed):
        raise Refused(
            "the executed event to equal the claimed one", "a difference", "The court would try another mechanism."
        )
