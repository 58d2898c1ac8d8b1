"""What a method that trains under noise brings to court: one noisy step, and one whole run with canaries.

**One step** (`step_case`, `lot_case`): the real method on a tiny network, with one record more or less. The other
records are zero: this network has no biases, so their gradients are zero too, and they only take part in the drawing of
lots. The record that differs has a gradient far above the clip norm. What is scored is the output of the step: all that
follows (the optimiser, averaging, the weights) is computed from it. The scores are the projection on the record's
clipped gradient, each coordinate over its noise, which is the best score if the noise is as stated; the same for each
tensor, which shows one that got too little noise; and the squared norm.

For a promise about people (`STEP_FACTS_OF_PEOPLE`), one person more or less, who has many equal records: her mean
gradient is that of one record, while records that were clipped one by one would add up to many times the bound.

**One whole run** (`training_canaries`): made-up records, each included or not by a coin flip of its own. Every canary
has two coordinates of the input to itself, so that gradients of different canaries are orthogonal, and is so large that
its gradient is far above the clip norm: what it adds to a step has that norm and its own direction (the gradient-space
canary of Nasr et al. 2021 and Steinke et al. 2023, made by a record). Labels alternate, which keeps what the canaries
have in common small. There are no other records. Only the released model is scored. With plain SGD its weights are the
initial ones minus learning rate × the sum of all noisy gradients, so the projection of their change on a canary's
direction is the sum over the steps of the projections that a white-box attacker adds up: here the intermediate models,
which are accounted for too, tell no more. The learning rate is so small that gradients stay what they are at the start.
A canary that is a person has several such records with one gradient, and their mean is clipped once: she adds to a step
what one record would. Clipped one by one they would add that many times over.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from airlock.accounting import Claim, Guarantee
from airlock.config import ReleaseConfig, from_table
from airlock.data import Facts, Records, Split
from airlock.mechanisms import Clip, Randomness, Stream
from airlock.methods.case import (
    ACCOUNTED,
    Canaries,
    Case,
    Coins,
    LessNoise,
    Runs,
    Scores,
    canary_records,
    canary_split,
    facts_of_canaries,
    less_noise,
    people_in_words,
    toward_own_label,
)
from airlock.methods.contract import Channel, check_executed
from airlock.methods.dp_sgd import NoisyTraining
from airlock.training import Poisson, Resident, Run
from airlock.training.gradients import Gradients, GradientsOfPeople
from airlock.training.per_sample import clipped_sum

Trained = Callable[[Split, Randomness], nn.Module]

_CLASSES = 2
_NAMES = tuple(map(str, range(_CLASSES)))
_CPU = torch.device("cpu")

# One step. Usual records move the second layer more than the first, the record that differs almost only the first: it
# is large, and nearly orthogonal to the rows of the first layer. A shape that suits the others gives it little noise.
_INPUTS, _HIDDEN, _OTHERS = 6, 4, 3
_FIRST, _SECOND, _SIZE, _OFFSET = 0.5, 0.05, 80.0, 0.1
PUBLIC_RECORDS = 1000  # the stated number; the data sets of a case need not have it
PAIR = f"{_OTHERS} records of zeros, with and without one record whose gradient is far above the clip norm"
STEP_SETTINGS = {"steps": 1, "lot_size": PUBLIC_RECORDS // 2, "learning_rate": 1.0, "clip_norm": 0.5}
STEP_FACTS = Facts("court", (_INPUTS,), _NAMES, PUBLIC_RECORDS, 1, "made up for the court")
VISITS = 50  # records of the person who differs
STEP_FACTS_OF_PEOPLE = replace(STEP_FACTS, records=2 * PUBLIC_RECORDS, people=PUBLIC_RECORDS, records_per_person=VISITS)
PAIR_OF_PEOPLE = (
    f"{_OTHERS} people with a record of zeros each, with and without one person with {VISITS} records whose gradients "
    "are far above the clip norm"
)

# One whole run.
STEPS, _CANARY_CLIP_NORM = 10, 0.5
_CANARY_FIRST, _CANARY_SECOND = 0.05, 0.5  # the weights of both layers
_CANARY_SIZE = 28.0  # its gradient is about forty clip norms long
STATED = 100  # stated records per canary; all that this changes is the unit of a step
WHAT = (
    "one release, {steps} steps, on {count:,} canaries{who} with orthogonal gradients above the clip norm, each in or "
    "out"
)
STATISTIC = "the change of the released weights, projected on the canary's gradient"


class TriedTraining(NoisyTraining):
    """A method that trains under noise, in court with records and with people."""

    @classmethod
    def case(cls, epsilon: float, delta: float) -> Case:
        """One noisy step with and without a record."""
        return cls.step_in_court(epsilon, delta, STEP_FACTS)

    @classmethod
    def case_of_people(cls, epsilon: float, delta: float) -> Case:
        """The same for a person with many records."""
        return cls.step_in_court(epsilon, delta, STEP_FACTS_OF_PEOPLE)

    @classmethod
    def canaries(cls, epsilon: float, delta: float, count: int) -> Canaries:
        """A whole training; its claim is the method's own."""
        return cls.training_in_court(epsilon, delta, count, canary_facts(count))

    @classmethod
    def canaries_of_people(cls, epsilon: float, delta: float, count: int) -> Canaries:
        """The same with people who have several records each."""
        return cls.training_in_court(epsilon, delta, count, canary_facts(count, people=True))

    @classmethod
    @abstractmethod
    def step_in_court(cls, epsilon: float, delta: float, facts: Facts) -> Case:
        """The step that is tried."""

    @classmethod
    @abstractmethod
    def training_in_court(cls, epsilon: float, delta: float, count: int, facts: Facts) -> Canaries:
        """The training that is tried."""


def tiny_net(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two layers without biases: a record of zeros has no gradient."""
    first, second = nn.Linear(shape[0], _HIDDEN, bias=False), nn.Linear(_HIDDEN, classes, bias=False)
    with torch.no_grad():  # of one sign, so that no unit is dead on records that are positive on the whole
        first.weight.fill_(_FIRST)
        second.weight.copy_(torch.tensor([-_SECOND, _SECOND])[:, None].expand(classes, _HIDDEN))
    return nn.Sequential(first, nn.ReLU(), second)


def step_config(method: str, epsilon: float, delta: float, **changes: object) -> ReleaseConfig:
    """One step on the made-up facts, with half of the records expected in its lot; of `weights` unless changed."""
    table = {
        "channel": "weights",
        "method": method,
        "data": "court",
        "net": f"{__name__}:tiny_net",
        "epsilon": epsilon,
        "delta": delta,
        "split": {"test": 0.0, "holdout": 0.0},
        "device": "cpu",
        "settings": dict(STEP_SETTINGS),
    }
    return from_table({**table, **changes})


def neighbours(facts: Facts = STEP_FACTS) -> tuple[Records, Records]:
    """With and without the record, or the person with all of her records, which come last."""
    several = 1 if facts.people is None else facts.records_per_person
    x = np.zeros((_OTHERS + several, _INPUTS), np.float32)
    x[_OTHERS:] = np.where(np.arange(_INPUTS) % 2, -_SIZE, _SIZE) + _OFFSET
    person = None if facts.people is None else np.minimum(np.arange(len(x)), _OTHERS)
    both = Records(x, np.zeros(len(x), np.int64), person)
    return both, both.take(np.arange(_OTHERS))


def step_case(channel: NoisyTraining) -> Case:
    """One step of a proven method on a Poisson lot; the claim is the ε of the event that was executed."""
    projection = _projection(channel)
    run = _runs(channel, projection, channel.sampling_probability, proven=True)
    pair = PAIR if channel.facts.people is None else PAIR_OF_PEOPLE
    return Case.of_proven(channel.planned.guarantee, pair, projection.names, run)


def lot_case(channel: NoisyTraining, claim: Claim) -> Case:
    """One step on a lot of all records, for a claim about the noise of one step."""
    projection = _projection(channel)
    return Case(claim, PAIR, projection.names, _runs(channel, projection, 1.0, proven=False))


def _runs(channel: NoisyTraining, projection: Projection, sampling_probability: float, proven: bool) -> Runs:
    net, plan = channel.net(), channel.planned
    pair = zip((True, False), neighbours(channel.facts), strict=True)
    sides = {with_record: _prepared(channel, records) for with_record, records in pair}

    def run(with_record: bool, count: int, stream: Stream) -> Scores:
        split, data = sides[with_record]
        scores = np.empty((count, projection.columns))
        for i in range(count):
            randomness = Randomness(0, stream.child(i))
            gradients = channel.source(net, split, data, plan.figures, randomness)
            sampler = Poisson(sampling_probability, randomness.privacy.child("sampling"))
            _step(gradients, net, data, sampler, randomness)
            if i == 0 and proven:
                check_executed(plan, channel.executed_step(sampler, gradients))
            scores[i] = projection.of(net)
        return scores

    return run


def _step(gradients: Gradients, net: nn.Module, data: Resident, sampler: Poisson, randomness: Randomness) -> None:
    """One step on one lot, as the loop makes it."""
    x, y, owners = data.lot(sampler.draw(0, data.units), randomness.privacy.child("records", "rows").uniform)
    if owners is None:
        gradients(net, x, y, 0)
    else:
        cast(GradientsOfPeople, gradients)(net, x, y, 0, owners)


class Projection:
    """The output of a step, projected on one record's clipped gradient: in all, per tensor, and its norm.

    Args:
        net: The network before the step.
        clip: How the method clips.
        x: The record, as a batch of one.
        y: Its label.
    """

    def __init__(self, net: nn.Module, clip: Clip, x: Tensor, y: Tensor) -> None:
        gradient, _ = clipped_sum(net, x, y, clip)
        self._spread = {name: _spread(clip, name, g) for name, g in gradient.items()}
        self._wanted = {name: (g / self._spread[name]).flatten().double() for name, g in gradient.items()}
        tensors = tuple(f"the projection within {name}" for name in gradient)
        self.names = ("the projection on the record's clipped gradient", *tensors, "the squared norm of the step")
        self.columns = len(self.names)
        # Of the clipped gradient over the clip norm: 1 unless the whole gradient is shorter.
        self.reach = math.sqrt(sum(float(g.square().sum()) for g in self._wanted.values())) / clip.norm

    def of(self, net: nn.Module) -> list[float]:
        """The scores of the gradient that the network holds."""
        parts, size = [], 0.0
        for name, wanted in self._wanted.items():
            found = self._scaled(name, net.get_parameter(name).grad)
            parts.append(float(found @ wanted))
            size += float(found @ found)
        return [sum(parts), *parts, size]

    def along(self, net: nn.Module) -> float:
        """The length of the gradient that the network holds in the record's direction."""
        return self.of_change({name: net.get_parameter(name).grad for name in self._wanted})

    def of_change(self, change: Mapping[str, Tensor | None]) -> float:
        """The length of a change of the weights in the record's direction, each coordinate over its noise."""
        length = math.sqrt(sum(float(wanted @ wanted) for wanted in self._wanted.values()))
        found = sum(self._scaled(name, change[name]) @ wanted for name, wanted in self._wanted.items())
        return float(found) / length if length else 0.0

    def _scaled(self, name: str, value: Tensor | None) -> Tensor:
        assert value is not None
        return (value / self._spread[name]).flatten().double()


def _projection(channel: NoisyTraining) -> Projection:
    """On the gradient as the method clips it: with its bound, and the shape that its noise shares."""
    net, (split, data) = channel.net(), _prepared(channel, neighbours(channel.facts)[0])
    source = channel.source(net, split, data, channel.planned.figures, Randomness(0, Stream.from_seed(0)))
    clip = source.clip  # type: ignore[attr-defined]
    assert isinstance(clip, Clip)
    return Projection(net, clip, *Resident(neighbours()[0], _CPU).batch(np.array([_OTHERS])))


def _spread(clip: Clip, name: str, like: Tensor) -> Tensor:
    scale = clip.scale_of(name)
    return torch.ones_like(like) if scale is None else scale.expand_as(like)


def _prepared(channel: NoisyTraining, records: Records) -> tuple[Split, Resident]:
    nobody = records.take(np.arange(0))
    return Split(channel.facts, records, nobody, nobody, nobody), channel.resident(records, _CPU)


def canary_facts(count: int, people: bool = False) -> Facts:
    """Two coordinates per canary."""
    return facts_of_canaries(2 * count, STATED * count, people)


def canary_net(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Two linear layers without biases: a canary, whose coordinates cancel out, moves only the first at the start."""
    first, second = nn.Linear(shape[0], 1, bias=False), nn.Linear(1, classes, bias=False)
    with torch.no_grad():
        first.weight.fill_(_CANARY_FIRST)
        second.weight.copy_(torch.tensor([-_CANARY_SECOND, _CANARY_SECOND])[:, None])
    return nn.Sequential(first, second)


def canary_config(
    method: str, epsilon: float, delta: float, count: int, steps: int = STEPS, lot: float = 0.5
) -> ReleaseConfig:
    """A few steps of plain SGD; each lot has half of the records, unless another share is asked for."""
    settings = canary_settings(count, steps, lot)
    return step_config(method, epsilon, delta, net=f"{__name__}:canary_net", settings=settings)


def canary_settings(count: int, steps: int = STEPS, lot: float = 0.5) -> dict[str, object]:
    """The settings of that training."""
    return {
        "steps": steps,
        "lot_size": int(lot * STATED * count),
        "learning_rate": 1.0,
        "momentum": 0.0,
        "ema": 0.0,
        "clip_norm": _CANARY_CLIP_NORM,
    }


def canaries_in_pairs(count: int, visits: int | None = None) -> Records:
    """All canaries: plus and minus their size in two coordinates of their own."""
    x, i = np.zeros((count, 2 * count), np.float32), np.arange(count)
    x[i, 2 * i], x[i, 2 * i + 1] = _CANARY_SIZE, -_CANARY_SIZE
    return canary_records(x, visits)


def training_canaries(channel: NoisyTraining, trained: Trained | None = None) -> Canaries:
    """The whole release of a method that trains a network; or what `trained` returns, if that network stays."""
    count = channel.facts.shape[0] // 2
    every, before = canaries_in_pairs(count, channel.facts.most), _first_weight(channel.net())

    def run(coins: Coins, stream: Stream) -> Scores:
        after = _first_weight(released(channel, every, coins, stream, trained))
        return toward_own_label(own_direction(before - after))

    promise, what = channel.planned.guarantee, in_words(channel.facts, count, channel.settings.steps)
    return Canaries(claim_of(promise), count, what, STATISTIC, run, family_of(promise))


def in_words(facts: Facts, count: int, steps: int) -> str:
    """The canaries and the run."""
    return WHAT.format(steps=steps, count=count, who=people_in_words(facts))


def claim_of(guarantee: Guarantee) -> Claim:
    """What is claimed of the whole release: by accounting, or by the paper where nothing is proven."""
    return guarantee.claim or Claim(guarantee.epsilon, guarantee.delta, ACCOUNTED)


def family_of(guarantee: Guarantee) -> LessNoise | None:
    """The whole release with less noise; nothing is known about a paper's claim."""
    return None if guarantee.claim else less_noise(guarantee.events, guarantee.delta)


def released(
    channel: Channel, every: Records, coins: Coins, stream: Stream, trained: Trained | None = None
) -> nn.Module:
    """The network when the private records are those of the canaries whose coin says so."""
    split = canary_split(channel.facts, every, coins)
    if trained is not None:
        return trained(split, Randomness(0, stream))
    return channel.release(split, Randomness(0, stream), Run()).network.net


def _first_weight(net: nn.Module) -> Tensor:
    weight: Tensor = next(net.parameters()).detach()
    return weight.flatten().double().clone()


def own_direction(vector: Tensor) -> Scores:
    """The projection on every canary's own direction, which has norm 1."""
    pairs = vector.flatten().double().view(-1, 2)
    return np.asarray(((pairs[:, 0] - pairs[:, 1]) / math.sqrt(2)).numpy())
