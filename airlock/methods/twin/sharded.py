"""`twin`/`sharded`: sample and aggregate, the sound counterpart of DP-PG (Nissim, Raskhodnikova and Smith 2007).

The private records are divided into M disjoint shards by a keyed hash of their content. Starting from one public
network, every shard yields one vector: a linear head over public features, in closed form (`heads`). The mean of these
vectors, with noise, goes into the public network, and that network leaves.

Proof. A record lies in one shard and moves no other record (`data.split`), so adding or removing it changes one of the
M vectors v_i. Each is clipped to norm R, which is public, so the mean moves by at most Δ = 2R/M, and noise N(0, (zΔ)²)
on every coordinate is `GaussianDpEvent(z)` (`mechanisms.aggregate`). How a shard computes its vector does not matter
here, as long as any randomness in it is public or independent of the records; features, M and R come from public
figures. The relation is add-remove. Under replace-one the new record may lie in another shard, so two vectors change,
and z is half of what is stated here. Where the records say whose they are, shards are by person: a person with all her
records lies in one shard, and adding or removing her changes one vector.
"""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Annotated, ClassVar

import dp_accounting as dpa
import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from airlock.accounting import Claim, calibrate, repeat
from airlock.accounting.guarantee import Status
from airlock.config import Frozen, Positive, ReleaseConfig, from_table
from airlock.data import Facts, Public, Records, Split, shard
from airlock.errors import AirlockWarning, ConfigError, Refused
from airlock.mechanisms import Randomness, ShardMean, Stream, bounded
from airlock.methods.case import ACCOUNTED, Canaries, Case, Coins, Scores, less_noise
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
from airlock.methods.twin.heads import Heads
from airlock.nets.frontend import Framed
from airlock.training import Run, outcomes_of
from airlock.training.front_ends.front import front_end
from airlock.training.front_ends.public import (
    FrontSettings,
    check_public,
    outside,
    planned_sentence,
    public_records,
    sentence,
)

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
_RADIUS = 0.5  # times √s


# Settings and figures.


class ShardSettings(FrontSettings):
    """How shards are made, what each of them computes, and how long its vector may be.

    Args:
        shards: M; when left out, it follows from the number of records and the noise.
        radius: R, the largest norm of a shard's vector; when left out, half the root of a shard's expected size.
        features: The front end of a head, as in `weights`/`head`.
        ridge: The penalty of a shard's head.
        dimensions: How many random directions of the features are used; all when left out.
        noise_limit: Refuse a plan whose noise has a norm of more than this many radii.
    """

    shards: Annotated[int, Field(ge=2, le=1_000_000)] | None = None
    radius: Positive | None = None
    features: str = "auto"
    ridge: Positive = 0.03
    dimensions: Annotated[int, Field(ge=1, le=100_000)] | None = None
    noise_limit: Positive = 5.0


def default_shards(records: int, noise_multiplier: float) -> int:
    """2 √(z n), between 2 and the number of records."""
    return max(2, min(records, round(_SHARDS * math.sqrt(noise_multiplier * records))))


def default_radius(records: int, shards: int) -> float:
    """Half of √s for heads of about s records each."""
    return _RADIUS * math.sqrt(max(records / shards, 1.0))


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
    """What `sharded` and `kde-sharded` share: shards, their vectors, the plan; unit record, relation add-remove."""

    channel: ClassVar[str] = "twin"
    status: ClassVar[Status] = "proven"
    small: ClassVar[Mapping[str, object] | None] = {"shards": 6, "noise_limit": 1e9}
    settings_model: ClassVar[type[Frozen] | None] = ShardSettings
    settings: ShardSettings

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
        self.heads = self._heads()
        self.public = outside(self.settings)

    def _heads(self) -> Heads:
        settings, config, facts = self.settings, self.config, self.facts
        check_public(settings, settings.features, facts, config.split.public)
        front = front_end(settings.features, facts.shape, len(facts.classes), config.seed, settings)
        return Heads(front, self.wanted_dimensions(), settings.ridge, config.seed)

    def wanted_dimensions(self) -> int | None:
        """How many directions of the features a head uses; None for all."""
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
            lambda z: repeat(self.event(z), self.config.tuning_runs),
            self.config.epsilon,
            self.config.delta,
            accountant=self.config.accountant,
        )
        shards = self.count_shards(noise)
        radius = self.settings.radius or default_radius(self.records, shards)
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
            **self.more_details(),
        }
        events = repeat(self.event(figures.noise_multiplier), self.config.tuning_runs)
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
        vector, executed = self._published(vectors, randomness)
        self.heads.settle(net, vector)
        utility = outcomes_of(net, split.test)  # before it leaves a GPU
        return Executed(
            artefact=NetworkArtefact.leaving(net, self.heads.name, self.facts),
            events=executed,
            utility=utility,
            details={**plan.details, **_measured(public)},
            assumptions=self._assumptions(public),
        )

    def disclosing(self, split: Split, run: Run) -> Disclosing:
        """What is published of the shards' vectors; the network that leaves is computed from it."""
        net = self.heads.start(public_records(self.settings, split, self.config.seed), run)
        vectors = self.vectors(net, split.private, run)

        def once(randomness: Randomness) -> Disclosed:
            vector, executed = self._published(vectors, randomness)
            return Disclosed({"vector": vector}, executed)

        return once

    def vectors(self, net: nn.Module, records: Records, run: Run) -> Tensor:
        """Every shard's vector; private until `publish`."""
        return self.heads.vectors(net, records, shard(records, self.figures.shards, self.config.seed), run)

    def _published(self, vectors: Tensor, randomness: Randomness) -> tuple[NDArray[np.float64], dpa.DpEvent]:
        """What leaves, and what all runs cost."""
        figures, stream = self.figures, randomness.privacy.child("vector")
        vector, event = self.publish(vectors, figures.noise_multiplier, figures.radius, stream)
        return vector, repeat(event, self.config.tuning_runs)

    def _assumptions(self, public: Public | None = None) -> tuple[str, ...]:
        more = sentence(public) if public else planned_sentence(self.settings)
        return (*ASSUMPTIONS, *more)


class Sharded(SampleAndAggregate):
    """The mean of the shards' vectors with noise; status proven, unit record or person, relation add-remove."""

    method: ClassVar[str] = "sharded"
    title: ClassVar[str] = "the noisy mean of models on disjoint shards"
    rank: ClassVar[int] = 70
    units: ClassVar[frozenset[str]] = frozenset({"record", "person"})
    leaves: ClassVar[str] = (
        "A model that was never trained as a whole: many small models, each fitted to its own part of the private "
        "records, were averaged, with random noise on the average."
    )

    @classmethod
    def case(cls, epsilon: float, delta: float) -> Case:
        """The released mean, when one record reverses one shard's vector."""
        return _case_of_mean(cls(case_config(cls.method, epsilon, delta), CASE_FACTS))

    @classmethod
    def canaries(cls, epsilon: float, delta: float, count: int) -> Canaries:
        """A whole release."""
        settings = {"shards": _SHARDS_PER_CANARY * count, "dimensions": None}
        config = case_config(cls.method, epsilon, delta, **settings)
        return _canaries_of_mean(cls(config, canary_facts(count)))

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


# The case for the court: one record reverses the vector of its shard.
#
# Half of the shards hold records that say "−a", the others one that says "+a", so that a release can go either way. A
# shard that says −a holds two records of label 1 whose sum is a/2, and two of label 0 that cancel out; the record that
# differs is a itself with label 0. The penalty is so large that a head is the sum of its records, and the radius so
# small that every vector is clipped: from −a/2 to +a/2 is from one side of the ball to the other. Records are scaled
# until they lie in the shard where they are wanted; features have norm 1, so the scale does not matter otherwise.
#
# The score is the best there is: the logarithm of how much more likely the release is with the record than without it.

CASE_SHARDS = 50
CASE_RADIUS = 1e-4
CASE_FACTS = Facts("court", (2,), ("0", "1"), 1000, 1, "made up for the court")
PAIR = (
    f"{CASE_SHARDS} shards of which half say −a and half +a, with and without one record that turns one of them from "
    "−a to +a, all clipped"
)
STATISTICS = ("how much more likely what leaves is with the record",)
_CASE_RIDGE = 1e3
_SIDE = math.sqrt(1 - 0.25**2)  # two vectors (1/4, ±_SIDE) add up to a/2
_AGAINST = (((0.25, _SIDE), 1), ((0.25, -_SIDE), 1), ((0.0, 1.0), 0), ((0.0, -1.0), 0))
_FOR = ((1.0, 0.0), 0)
_TRIES = 2000

Kind = tuple[tuple[float, float], int]
Score = Callable[[NDArray[np.float64]], float]


def case_config(method: str, epsilon: float, delta: float, **changes: int | None) -> ReleaseConfig:
    """Heads on the records themselves."""
    settings = {"features": "pixels", "ridge": _CASE_RIDGE, "radius": CASE_RADIUS, "dimensions": 2}
    table = {"channel": "twin", "method": method, "data": "court", "epsilon": epsilon, "delta": delta, "device": "cpu"}
    table |= {"split": {"test": 0.0, "holdout": 0.0}, "settings": {**settings, "shards": CASE_SHARDS, **changes}}
    return from_table(table)


@cache
def neighbours(seed: int) -> tuple[Records, Records]:
    """With and without the record; the one that differs comes last and lies in the first shard."""
    half = CASE_SHARDS // 2
    found = [_scaled(kind, range(half), seed) for kind in _AGAINST]
    found.append(_scaled(_FOR, [*range(half, CASE_SHARDS), 0], seed))
    both = Records(np.concatenate([one.x for one in found]), np.concatenate([one.y for one in found]))
    return both, both.take(np.arange(len(both) - 1))


def _scaled(kind: Kind, places: Sequence[int], seed: int) -> Records:
    """Multiples of the vector, one in each of these shards."""
    (vector, label), scale = kind, np.linspace(1, 2, _TRIES)[:, None]
    every = Records((scale * np.array(vector)).astype(np.float32), np.full(_TRIES, label, np.int64))
    own = shard(every, CASE_SHARDS, seed)
    return every.take(np.array([own[place][0] for place in places]))


def case_vectors(channel: SampleAndAggregate, with_record: bool) -> Tensor:
    """The shards' vectors on one side."""
    here = Run(device=torch.device("cpu"))
    records = neighbours(channel.config.seed)[0 if with_record else 1]
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

    return Case.of_proven(plan.guarantee, PAIR, STATISTICS, run, reach)


def _case_of_mean(channel: Sharded) -> Case:
    """The noisy mean of the real method."""
    one, other = (bounded(case_vectors(channel, known), CASE_RADIUS).mean(0).numpy() for known in (True, False))
    spread = channel.figures.noise_multiplier * 2 * CASE_RADIUS / CASE_SHARDS

    def ratio(found: NDArray[np.float64]) -> float:
        return float((found - (one + other) / 2) @ (one - other)) / spread**2

    return case_of(channel, ratio, 1.0)


# The canaries: one whole release on made-up records, each in or out by its own coin flip.
#
# Every canary has a coordinate of the input to itself, and there are so many shards that it mostly has one of those
# too. Alone in its shard it moves the vector from zero to the edge of the ball: half of what the noise is made for,
# which is all that adding a record to an empty shard can do. The record of the case does twice that.

_SHARDS_PER_CANARY = 8
_STATED_PER_CANARY = 100  # records
_CANARIES = "one release on {count:,} canaries in orthogonal directions, mostly alone in their shards, each in or out"
_CANARY_SCORE = "the released head in the canary's own direction"


def canary_facts(count: int) -> Facts:
    """One coordinate per canary; the number of records is stated, not counted."""
    return Facts("court", (count,), ("0", "1"), _STATED_PER_CANARY * count, 1, "made up for the court")


def _canaries_of_mean(channel: Sharded) -> Canaries:
    """The released head, coordinate by coordinate."""
    count = channel.facts.shape[0]
    every = Records(np.eye(count, dtype=np.float32), np.arange(count, dtype=np.int64) % 2)
    toward = 1.0 - 2.0 * every.y

    def run(coins: Coins, stream: Stream) -> Scores:
        private, nobody = every.take(np.flatnonzero(coins)), every.take(np.arange(0))
        split = Split(channel.facts, private, nobody, every.take(np.arange(1)), nobody)
        net = channel.release(split, Randomness(0, stream), Run()).network.net
        assert isinstance(net, Framed)
        weight = net.head.weight.double().numpy()[:, :-1]  # the last one is the bias
        return np.asarray((weight[0] - weight[1]) * toward)

    promised = channel.plan().guarantee
    claim = Claim(promised.epsilon, promised.delta, ACCOUNTED)
    family = less_noise(promised.events, promised.delta, 0.5)  # from the centre of the ball to its edge
    return Canaries(claim, count, _CANARIES.format(count=count), _CANARY_SCORE, run, family)
