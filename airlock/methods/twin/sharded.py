"""`twin`/`sharded`: sample and aggregate, the sound counterpart of DP-PG (Nissim, Raskhodnikova and Smith 2007).

The private records are divided into M disjoint shards by a keyed hash of their content. Starting from one public
network, every shard yields one vector: a linear head over public features, in closed form (`heads`). The mean of these
vectors, with noise, goes into the public network, and that network leaves.

Proof. A record lies in one shard and moves no other record (`data.split`), so adding or removing it changes one of the
M vectors v_i. Each is clipped to norm R, which is public, so the mean moves by at most Δ = 2R/M, and noise N(0, (zΔ)²)
on every coordinate is `GaussianDpEvent(z)` (`mechanisms.aggregate`). How a shard computes its vector does not matter
here, as long as any randomness in it is public or independent of the records, nor does it matter whether it learns
classes or a number; features, M and R come from public figures. The relation is add-remove. Under replace-one the new
record may lie in another shard, so two vectors change, and z is half of what is stated here. Where the records say
whose they are, shards are by person: a person with all her records lies in one shard, and adding or removing her
changes one vector.
"""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

import dp_accounting as dpa
import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from airlock.accounting import Claim, calibrate, compose, repeat
from airlock.accounting.terms import Status
from airlock.config import STEPS, Frozen, Positive, ReleaseConfig
from airlock.data import Facts, Public, Records, Split, shard
from airlock.data.split import Task
from airlock.errors import AirlockWarning, ConfigError, Refused
from airlock.mechanisms import Randomness, ShardMean, Stream, bounded
from airlock.methods.case import (
    ACCOUNTED,
    Canaries,
    Case,
    Coins,
    Scores,
    canary_records,
    canary_split,
    facts_of_canaries,
    less_noise,
    people_in_words,
    toward_own_label,
)
from airlock.methods.contract import (
    NOTHING_ELSE_LEAVES,
    ONE_RECORD,
    SIZE,
    Channel,
    Details,
    Disclosed,
    Disclosing,
    Executed,
    NetworkArtefact,
    Plan,
    check_executed,
)
from airlock.methods.floor import Floor, Gain, compare_heads
from airlock.methods.twin.heads import Heads
from airlock.methods.twin.sharded_case import (
    CASE_FACTS,
    CASE_FACTS_OF_NUMBERS,
    CASE_FACTS_OF_PEOPLE,
    CASE_RADIUS,
    CASE_SHARDS,
    STATISTICS,
    case_config,
    neighbours,
    pair_of,
)
from airlock.nets.frontend import Framed
from airlock.training import Run, outcomes_of
from airlock.training.front_ends.front import front_end
from airlock.training.front_ends.public import (
    SPLIT,
    FrontSettings,
    check_public,
    outside,
    planned_sentence,
    public_records,
    sentence,
)
from airlock.training.public_start import head_of

ASSUMPTIONS = (
    ONE_RECORD,
    SIZE,
    "Network, settings and class names were chosen without looking at the private records.",
    "The network that all shards start from is public: it was neither trained nor chosen on the private records.",
    "The noise stays secret and is not used again.",
    NOTHING_ELSE_LEAVES,
)
_FAINT = 0.3  # of the radius: noise that hardly shows
_LOUD = 1.0  # of the radius: noise that is worth a warning
_OF_NETWORKS = ("basis", "steps", "learning_rate")  # settings of whole networks in a subspace, which are gone

# How the defaults were found: on Fashion-MNIST alone (docs/results/twin-sharded.md). With n records, M shards and noise
# multiplier z, the noise falls as z/M and what a shard cannot know grows as M/n; the two balance at M ~ √(z n).
# Features have norm at most 1, and a head from s records had a norm of about √s there. Where R suits other data badly,
# accuracy suffers and the guarantee does not.
_SHARDS = 2.0  # times √(z n)
_RADIUS = {"classification": 0.5, "regression": 0.2}  # times √s; the second was chosen on made-up tables


# Settings and figures.


class ShardSettings(FrontSettings):
    """How shards are made, what each of them computes, and how long its vector may be.

    Args:
        shards: M; when left out, it follows from the number of records and the noise.
        radius: R, the largest norm of a shard's vector; when left out, half the root of a shard's expected size, or a
            fifth of it where a number is predicted.
        features: The front end of a head, as in `weights`/`head`.
        ridge: The penalty of a shard's head.
        dimensions: How many random directions of the features are used; all when left out.
        noise_limit: Refuse a plan whose noise has a norm of more than this many radii.
        floor: Whether what leaves is compared with the head of the public part of the split, where there is one
            (`methods.floor`).
    """

    shards: Annotated[int, Field(ge=2, le=1_000_000)] | None = None
    radius: Positive | None = None
    features: str = "auto"
    ridge: Positive = 0.03
    dimensions: Annotated[int, Field(ge=1, le=100_000)] | None = None
    noise_limit: Positive = 5.0
    floor: bool = True


def default_shards(records: int, noise_multiplier: float) -> int:
    """2 √(z n), between 2 and the number of records."""
    return max(2, min(records, round(_SHARDS * math.sqrt(noise_multiplier * records))))


def default_radius(records: int, shards: int, task: Task = "classification") -> float:
    """Half of √s for heads of about s records each; less for a number, whose range has length 1."""
    return _RADIUS[task] * math.sqrt(max(records / shards, 1.0))


@dataclass(frozen=True)
class ShardFigures:
    """The public figures that a release over shards follows from.

    Args:
        noise_multiplier: z.
        shards: M.
        radius: R.
        dimensions: k, the length of a shard's vector.
    """

    noise_multiplier: float
    shards: int
    radius: float
    dimensions: int

    @property
    def noise_norm_over_radius(self) -> float:
        """The norm of the noise on the mean, in radii: z √k · 2R/M over R."""
        return self._noise_of_one / self.shards

    @property
    def shards_for_faint_noise(self) -> int:
        """How many shards it would take for noise that hardly shows."""
        return math.ceil(self._noise_of_one / _FAINT)

    @property
    def _noise_of_one(self) -> float:
        return 2 * self.noise_multiplier * math.sqrt(self.dimensions)


# The methods.


class SampleAndAggregate(Channel):
    """What `sharded` and `kde-sharded` share: shards, their vectors, the plan; relation add-remove."""

    channel: ClassVar[str] = "twin"
    status: ClassVar[Status] = "proven"
    units: ClassVar[frozenset[str]] = frozenset({"record", "person"})
    weighs_classes: ClassVar[bool] = True
    small: ClassVar[Mapping[str, object] | None] = {"shards": 6, "noise_limit": 1e9, "floor": False}
    settings_model: ClassVar[type[Frozen] | None] = ShardSettings
    settings: ShardSettings
    compares: ClassVar[bool] = False  # whether it compares what leaves with the head of public records alone
    floor: Floor | None = None  # the comparison with public records alone, where a method makes one

    def __init__(self, config: ReleaseConfig, facts: Facts) -> None:
        _refuse_networks(config)
        super().__init__(config, facts)
        self.records = facts.expected("private", config.split)
        if (self.settings.shards or 2) > self.records:
            raise ConfigError(
                f"at most as many shards as private {facts.counted} ({self.records:,})",
                f"{self.settings.shards or 2:,}",
                "Most shards would be empty and contribute nothing.",
                "Lower settings.shards, or leave it out.",
            )
        if self.compares and self.settings.floor:
            self.floor = Floor.where_public(config, facts, self.records)
        self.heads = self._heads()
        self.public = outside(self.settings)

    @classmethod
    def case(cls, epsilon: float, delta: float) -> Case:
        """What is published, when one record reverses one shard's vector."""
        return cls(case_config(cls.method, epsilon, delta), CASE_FACTS).in_court()

    @classmethod
    def case_of_people(cls, epsilon: float, delta: float) -> Case:
        """The same for a person with many records."""
        return cls(case_config(cls.method, epsilon, delta), CASE_FACTS_OF_PEOPLE).in_court()

    @abstractmethod
    def in_court(self) -> Case:
        """The case of this method as the court configures it."""

    @cached_property
    def neighbours(self) -> tuple[Records, Records]:
        """The court's records."""
        return neighbours(self.config.seed, self.facts.most, 1 if self.facts.target is None else STEPS)

    def _heads(self) -> Heads:
        settings, config, facts = self.settings, self.config, self.facts
        check_public(settings, settings.features, facts, config.split.public)
        front = front_end(settings.features, facts, config.seed, settings)
        wanted = self.wanted_dimensions(front.sized().centre.mean.numel())
        return Heads(front, wanted, settings.ridge, config.seed, self.class_weights, facts.task)

    def wanted_dimensions(self, features: int) -> int | None:
        """How many directions of so many features a head uses; None for all."""
        return self.settings.dimensions

    def count_shards(self, noise_multiplier: float) -> int:
        """M."""
        return self.settings.shards or default_shards(self.records, noise_multiplier)

    @abstractmethod
    def event(self, noise_multiplier: float) -> dpa.DpEvent:
        """What the release of one vector is planned to cost."""

    @abstractmethod
    def publish(
        self, vectors: Tensor, noise_multiplier: float, radius: float, stream: Stream
    ) -> tuple[NDArray[np.float64], dpa.DpEvent]:
        """What leaves of the shards' vectors, and what it cost."""

    def more_details(self) -> Details:
        """Further figures of this method to show in the plan."""
        return {}

    @cached_property
    def figures(self) -> ShardFigures:
        """Computed once: the least noise that keeps all runs within (ε, δ), and what follows from it."""
        noise = calibrate(
            lambda z: self._all_runs(self.event(z), self.floor and self.floor.event),
            self.config.epsilon,
            self.config.delta,
            accountant=self.config.accountant,
        )
        shards = self.count_shards(noise)
        radius = self.settings.radius or default_radius(self.records, shards, self.facts.task)
        return ShardFigures(noise, shards, radius, self.heads.size)

    def plan(self) -> Plan:
        """The noise, and whether a vector of this size can be seen through it; touches no record."""
        self._check_noise()
        figures = self.figures
        details: dict[str, str | int | float] = {
            "net": self.heads.name,
            "trainable_parameters": self.heads.parameters,
            "dimensions": figures.dimensions,
            "shards": figures.shards,
            f"{self.facts.counted}_per_shard": self.records / figures.shards,
            "radius": figures.radius,
            "noise_multiplier": figures.noise_multiplier,
            "noise_norm_over_radius": figures.noise_norm_over_radius,
            "shards_for_noise_of_0.3": figures.shards_for_faint_noise,
            **self.weighing,
            **(self.floor.details if self.floor else {}),
            **self.more_details(),
        }
        events = self._all_runs(self.event(figures.noise_multiplier), self.floor and self.floor.event)
        return Plan(self.channel, self.method, self.leaves, self.promise(events, self._assumptions()), details)

    def _check_noise(self) -> None:
        """Refuse noise that would drown the mean, and warn of noise that shows."""
        ratio, wished = self.figures.noise_norm_over_radius, self.figures.shards_for_faint_noise
        if ratio > self.settings.noise_limit:
            raise Refused(
                f"noise of a norm of at most {self.settings.noise_limit:g} radii",
                f"{ratio:.3g}, for {self.figures.dimensions:,} coordinates of {self.figures.shards:,} shards",
                "The noise would drown what the shards have in common.",
                f"Take {wished:,} shards or more if there are records for them, fewer dimensions or a larger ε; or "
                "raise settings.noise_limit to continue anyway.",
            )
        if ratio > _LOUD:
            warnings.warn(
                f"the noise will have {ratio:.2g} times the norm that a shard's vector may have, so accuracy may "
                f"suffer; {wished:,} shards would bring it down to {_FAINT:g}, and fewer dimensions or a larger ε "
                "would also help.",
                AirlockWarning,
                stacklevel=3,
            )

    def execute(self, plan: Plan, split: Split, randomness: Randomness, run: Run) -> Executed:
        """Compute every shard's vector, publish what they have in common, measure."""
        public = public_records(self.settings, split, self.config.seed)
        net = self.heads.start(public, run)
        vectors = self.vectors(net, split.private, run)
        _, executed, gain = self._published(net, vectors, split, randomness, run)
        told = self.floor.told(gain, split) if self.floor and gain else {}
        utility = outcomes_of(net, split.test, self.facts.task)  # before it leaves a GPU
        return Executed(
            artefact=NetworkArtefact.leaving(net, self.heads.name, self.facts),
            events=executed,
            utility=utility,
            details={**plan.details, **told, **_measured(public)},
            assumptions=self._assumptions(public),
        )

    def disclosing(self, split: Split, run: Run) -> Disclosing:
        """What is published of the shards' vectors; the network that leaves is computed from it."""
        net = self.heads.start(public_records(self.settings, split, self.config.seed), run)
        vectors = self.vectors(net, split.private, run)

        def once(randomness: Randomness) -> Disclosed:
            vector, executed, gain = self._published(net, vectors, split, randomness, run)
            return Disclosed({"vector": vector, **({"gain": np.array([gain.count])} if gain else {})}, executed)

        return once

    def vectors(self, net: nn.Module, records: Records, run: Run) -> Tensor:
        """Every shard's vector; private until `publish`."""
        return self.heads.vectors(net, records, shard(records, self.figures.shards, self.config.seed), run)

    def _published(
        self, net: Framed, vectors: Tensor, split: Split, randomness: Randomness, run: Run
    ) -> tuple[NDArray[np.float64], dpa.DpEvent, Gain | None]:
        """The released vector, what all runs cost, and what the comparison found; `net` is then what leaves."""
        figures, stream = self.figures, randomness.privacy.child("vector")
        vector, event = self.publish(vectors, figures.noise_multiplier, figures.radius, stream)
        self.heads.settle(net, vector)
        if self.floor is None:
            return vector, self._all_runs(event), None
        public, private = head_of(net, split.public, run), net.head.weight.detach().clone()
        stream = randomness.privacy.child("floor")
        gain = compare_heads(self.floor, net, public, private, split.private, stream, run)
        return vector, self._all_runs(event, gain.event), gain

    def _all_runs(self, *events: dpa.DpEvent | None) -> dpa.DpEvent:
        """What these cost together in every run that is paid for."""
        return repeat(compose([event for event in events if event is not None]), self.config.tuning_runs)

    def _assumptions(self, public: Public | None = None) -> tuple[str, ...]:
        more = sentence(public) if public else planned_sentence(self.settings)
        if self.floor is not None and (self.settings.public is None or self.settings.public.source != SPLIT):
            more = (*more, *self.floor.assumptions)
        return (*ASSUMPTIONS, *more)


class Sharded(SampleAndAggregate):
    """The mean of the shards' vectors with noise; status proven, unit record or person, relation add-remove."""

    method: ClassVar[str] = "sharded"
    title: ClassVar[str] = "the noisy mean of models on disjoint shards"
    rank: ClassVar[int] = 70
    compares: ClassVar[bool] = True
    tasks: ClassVar[frozenset[str]] = frozenset({"classification", "regression"})
    texts: ClassVar[bool] = True
    leaves: ClassVar[str] = (
        "A model that was never trained as a whole: many small models, each fitted to its own part of the private "
        "records, were averaged, with random noise on the average."
    )

    @classmethod
    def canaries(cls, epsilon: float, delta: float, count: int) -> Canaries:
        """A whole release."""
        return _canaries_of_mean(cls(_canary_config(epsilon, delta, count), canary_facts(count)))

    @classmethod
    def canaries_of_people(cls, epsilon: float, delta: float, count: int) -> Canaries:
        """The same with people who have several records each."""
        return _canaries_of_mean(cls(_canary_config(epsilon, delta, count), canary_facts(count, people=True)))

    def in_court(self) -> Case:
        """The released mean."""
        return _case_of_mean(self)

    def event(self, noise_multiplier: float) -> dpa.DpEvent:
        """One Gaussian."""
        return ShardMean(1.0, 2, noise_multiplier).event

    def publish(
        self, vectors: Tensor, noise_multiplier: float, radius: float, stream: Stream
    ) -> tuple[NDArray[np.float64], dpa.DpEvent]:
        """The noisy mean."""
        mechanism = ShardMean(radius, len(vectors), noise_multiplier)
        return mechanism.release(vectors, stream), mechanism.event


def _refuse_networks(config: ReleaseConfig) -> None:
    """Say what to use instead of whole networks in a public subspace, which a `net` or their settings once chose.

    Raises:
        ConfigError: The config asks for them.
    """
    asked = [f"net = '{config.net}'"] if config.net != "auto" else []
    asked += [f"settings.{key}" for key in _OF_NETWORKS if key in config.settings]
    if asked:
        raise ConfigError(
            "shards that are heads over public features",
            " and ".join(asked),
            "Whole networks in a public subspace were removed: they reached 30% on digits where heads reach 91%.",
            'Leave it out, and name a front end for the heads, such as settings.features = "scattering" or "pixels".',
        )


def _measured(public: Public | None) -> Details:
    if public is None:
        return {}
    return {"public_data": public.name, "public_records": len(public.records), "public_sha256": public.digest}


# In court. The score is the best there is: the logarithm of how much more likely the release is with the record, or the
# person, than without it.

Score = Callable[[NDArray[np.float64]], float]


def case_vectors(channel: SampleAndAggregate, with_record: bool) -> Tensor:
    """The shards' vectors on one side."""
    here = Run(device=torch.device("cpu"))
    records = channel.neighbours[0 if with_record else 1]
    return channel.vectors(channel.heads.start(None, here), records, here)


def case_of(channel: SampleAndAggregate, score: Score, reach: float) -> Case:
    """The case of a method over shards, by its score of what leaves."""
    plan, noise_multiplier = channel.plan(), channel.figures.noise_multiplier

    def run(with_record: bool, count: int, stream: Stream) -> Scores:
        vectors, scores = case_vectors(channel, with_record), np.empty((count, 1))
        for i in range(count):
            found, executed = channel.publish(vectors, noise_multiplier, CASE_RADIUS, stream.child(i))
            if i == 0:
                check_executed(plan, executed)
            scores[i] = score(found)
        return scores

    return Case.of_proven(plan.guarantee, pair_of(channel.facts), STATISTICS, run, reach)


def _case_of_mean(channel: Sharded) -> Case:
    """The noisy mean of the real method."""
    one, other = (bounded(case_vectors(channel, known), CASE_RADIUS).mean(0).numpy() for known in (True, False))
    spread = channel.figures.noise_multiplier * 2 * CASE_RADIUS / CASE_SHARDS

    def ratio(found: NDArray[np.float64]) -> float:
        return float((found - (one + other) / 2) @ (one - other)) / spread**2

    return case_of(channel, ratio, 1.0)


def case_of_numbers(epsilon: float, delta: float) -> Case:
    """The case of `Sharded` where a number is predicted."""
    config = case_config(Sharded.method, epsilon, delta, "regression")
    return Sharded(config, CASE_FACTS_OF_NUMBERS).in_court()


# The canaries: one whole release on made-up records, each in or out by its own coin flip.
#
# Every canary has a coordinate of the input to itself, and there are so many shards that it mostly has one of those
# too. Alone in its shard it moves the vector from zero to the edge of the ball: half of what the noise is made for,
# which is all that adding a record to an empty shard can do. The record of the case does twice that. The records of a
# canary that is a person have different scales, like those of the person in the case.

_SHARDS_PER_CANARY = 8
_STATED_PER_CANARY = 100  # records, or people
_CANARIES = (
    "one release on {count:,} canaries{who} in orthogonal directions, mostly alone in their shards, each in or out"
)
_CANARY_SCORE = "the released head in the canary's own direction"


def _canary_config(epsilon: float, delta: float, count: int) -> ReleaseConfig:
    return case_config(Sharded.method, epsilon, delta, shards=_SHARDS_PER_CANARY * count, dimensions=None)


def canary_facts(count: int, people: bool = False) -> Facts:
    """One coordinate per canary; the number of records, or of people, is stated, not counted."""
    return facts_of_canaries(count, _STATED_PER_CANARY * count, people)


def _canaries_of_mean(channel: Sharded) -> Canaries:
    """The released head, coordinate by coordinate."""
    count = channel.facts.shape[0]
    every = canary_records(np.eye(count, dtype=np.float32), channel.facts.most, largest=2.0)

    def run(coins: Coins, stream: Stream) -> Scores:
        split = canary_split(channel.facts, every, coins)
        net = channel.release(split, Randomness(0, stream), Run()).network.net
        assert isinstance(net, Framed)
        weight = net.head.weight.double().numpy()[:, :-1]  # the last one is the bias
        return toward_own_label(weight[0] - weight[1])

    promised = channel.plan().guarantee
    claim = Claim(promised.epsilon, promised.delta, ACCOUNTED)
    family = less_noise(promised.events, promised.delta, 0.5)  # from the centre of the ball to its edge
    what = _CANARIES.format(count=count, who=people_in_words(channel.facts))
    return Canaries(claim, count, what, _CANARY_SCORE, run, family)
