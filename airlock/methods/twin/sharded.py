"""`twin`/`sharded`: sample and aggregate, the sound counterpart of DP-PG (Nissim, Raskhodnikova and Smith 2007).

The private records are divided into M disjoint shards by a keyed hash of their content. From one public start every
shard gives one vector: a linear head over public features in closed form (`heads`). Their mean, with noise, is put into
the public network, and that leaves.

Proof. A record lies in one shard and moves no other record (`data.split`), so adding or removing it changes one of the
M vectors v_i. Each is clipped to norm R, which is public, so the mean moves by at most Δ = 2R/M, and noise N(0, (zΔ)²)
on every coordinate is `GaussianDpEvent(z)` (`mechanisms.aggregate`). How a shard computes its vector does not matter to
this, as long as chance in it is public or independent of the records; features, M and R come from public figures.
The relation is add-remove. Whoever counts replaced records: the new record may lie in another shard, so two vectors
change, and z is half of what is stated here.
"""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import ClassVar

import dp_accounting as dpa
import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from airlock.accounting import calibrate, repeat
from airlock.accounting.guarantee import Status
from airlock.config import ReleaseConfig, parse
from airlock.data import Facts, Public, Records, Split, shard
from airlock.errors import AirlockWarning, ConfigError, Refused
from airlock.mechanisms import Randomness, ShardMean, Stream
from airlock.methods.case import Canaries, Case
from airlock.methods.contract import (  # fmt: skip
    NOTHING_ELSE_LEAVES,
    Channel,
    Details,
    Disclosed,
    Disclosing,
    Executed,
    NetworkArtefact,
    Plan,
)
from airlock.methods.twin import shard_canaries, shard_case
from airlock.methods.twin.heads import Heads
from airlock.methods.twin.shard_settings import ShardSettings, default_radius, default_shards
from airlock.training import Run, outcomes_of
from airlock.training.front_ends.front import front_end
from airlock.training.front_ends.public import check_public, outside, planned_sentence, public_records, sentence

ASSUMPTIONS = (
    "One person contributes one record; whoever contributes several that differ is protected less.",
    "The number of records stated on this card is public and was not derived from the private records.",
    "Network, settings and class names were chosen without looking at the private records.",
    "What all shards start from is public: it was neither trained nor chosen on the private records.",
    "The noise stays secret and is not used again.",
    NOTHING_ELSE_LEAVES,
)
_WISHED = 0.3  # of the radius: noise that hardly shows
_WARNED = 1.0
_OF_NETWORKS = ("basis", "steps", "learning_rate")  # settings of whole networks in a subspace, which are gone


class OfShards(Channel):
    """What `sharded` and `kde-sharded` share: shards, their vectors, the planner; unit record, relation add-remove."""

    channel: ClassVar[str] = "twin"
    status: ClassVar[Status] = "proven"
    small: ClassVar[Mapping[str, object] | None] = {"shards": 6, "noise_limit": 1e9}
    settings: ShardSettings
    kind: ClassVar[type[ShardSettings]] = ShardSettings

    def __init__(self, config: ReleaseConfig, facts: Facts) -> None:
        super().__init__(config, facts)
        _refuse_networks(config)
        self.settings = parse(self.kind, config.settings, where="settings")
        self.records = facts.expected("private", config.split)
        if (self.settings.shards or 2) > self.records:
            raise ConfigError(
                f"at most as many shards as private records ({self.records:,})",
                f"{self.settings.shards or 2:,}",
                "Most shards would be empty and say nothing.",
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
        """Of a head's features."""
        return self.settings.dimensions

    @abstractmethod
    def event(self, noise_multiplier: float) -> dpa.DpEvent:
        """What the release of one vector is planned to cost."""

    @abstractmethod
    def publish(
        self, vectors: Tensor, noise_multiplier: float, radius: float, stream: Stream
    ) -> tuple[NDArray[np.float64], dpa.DpEvent]:
        """What leaves of the shards' vectors, and what it cost."""

    def figures(self, noise_multiplier: float) -> Details:
        """Further figures of this method for the plan."""
        return {}

    def noise_multiplier(self) -> float:
        """The least noise that keeps all runs within (ε, δ)."""
        return self._calibrated

    @cached_property
    def _calibrated(self) -> float:
        return calibrate(
            lambda z: repeat(self.event(z), self.config.tuning_runs),
            self.config.epsilon,
            self.config.delta,
            accountant=self.config.accountant,
        )

    def shards(self, noise_multiplier: float) -> int:
        """M."""
        return self.settings.shards or default_shards(self.records, noise_multiplier)

    def radius(self, noise_multiplier: float) -> float:
        """R."""
        return self.settings.radius or default_radius(self.records, self.shards(noise_multiplier))

    def plan(self) -> Plan:
        """The noise, and whether a vector of this size can be seen through it; touches no record."""
        plan = self._figured()
        ratio, wished = (float(plan.details[key]) for key in ("noise_norm_over_radius", "shards_for_noise_of_0.3"))
        if ratio > self.settings.noise_limit:
            raise Refused(
                f"noise of a norm of at most {self.settings.noise_limit:g} radii",
                f"{ratio:.3g}, for {self.heads.size:,} coordinates of {plan.details['shards']:,} shards",
                "The noise would drown what the shards have in common.",
                f"Take {wished:,.0f} shards or more if there are records for them, fewer dimensions or a larger ε; or "
                "raise settings.noise_limit to go on anyway.",
            )
        if ratio > _WARNED:
            warnings.warn(
                f"the noise will have {ratio:.2g} times the norm of what a shard may say, so accuracy may suffer; "
                f"{wished:,.0f} shards would bring it to {_WISHED:g}, and so would fewer dimensions or a larger ε.",
                AirlockWarning,
                stacklevel=2,
            )
        return plan

    def _figured(self) -> Plan:
        noise = self.noise_multiplier()
        count, size = self.shards(noise), self.heads.size
        unit = 2 * noise * math.sqrt(size)
        details: dict[str, str | int | float] = {
            "net": self.heads.name,
            "trainable_parameters": self.heads.parameters,
            "dimensions": size,
            "shards": count,
            "records_per_shard": self.records / count,
            "radius": self.radius(noise),
            "noise_multiplier": noise,
            "noise_norm_over_radius": unit / count,
            "shards_for_noise_of_0.3": math.ceil(unit / _WISHED),
            **self.figures(noise),
        }
        events = repeat(self.event(noise), self.config.tuning_runs)
        return Plan(self.channel, self.method, self.leaves, self.promise(events, self._assumptions()), details)

    def execute(self, plan: Plan, split: Split, randomness: Randomness, run: Run) -> Executed:
        """Ask every shard, publish what they have in common, measure."""
        noise = float(plan.details["noise_multiplier"])
        public = public_records(self.settings, split, self.config.seed)
        net = self.heads.start(public, run)
        vectors = self.answers(net, split.private, noise, run)
        vector, event = self.publish(vectors, noise, self.radius(noise), randomness.privacy.child("vector"))
        executed = repeat(event, self.config.tuning_runs)
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
        noise = self.noise_multiplier()
        net = self.heads.start(public_records(self.settings, split, self.config.seed), run)
        vectors = self.answers(net, split.private, noise, run)

        def once(randomness: Randomness) -> Disclosed:
            vector, event = self.publish(vectors, noise, self.radius(noise), randomness.privacy.child("vector"))
            return Disclosed({"vector": vector}, repeat(event, self.config.tuning_runs))

        return once

    def answers(self, net: nn.Module, records: Records, noise_multiplier: float, run: Run) -> Tensor:
        """Every shard's vector: private, until `publish`."""
        own = shard(records, self.shards(noise_multiplier), self.config.seed)
        return self.heads.vectors(net, records, own, run)

    def _assumptions(self, public: Public | None = None) -> tuple[str, ...]:
        more = sentence(public) if public else planned_sentence(self.settings)
        return (*ASSUMPTIONS, *more)


class Sharded(OfShards):
    """The mean of the shards' vectors with Gaussian noise; status proven, unit record, relation add-remove."""

    method: ClassVar[str] = "sharded"
    title: ClassVar[str] = "the noisy mean of models on disjoint shards"
    rank: ClassVar[int] = 70
    leaves: ClassVar[str] = (
        "A model that was never trained as a whole: many small models, each from a part of the private records of its "
        "own, were averaged, with random noise on the average."
    )

    @classmethod
    def case(cls, epsilon: float, delta: float) -> Case:
        """The released mean, when one record turns one shard's vector round."""
        return shard_case.of_mean(cls(shard_case.config_for(cls.method, epsilon, delta), shard_case.FACTS))

    @classmethod
    def canaries(cls, epsilon: float, delta: float, count: int) -> Canaries:
        """A whole release."""
        config = shard_canaries.config_for(epsilon, delta, count)
        return shard_canaries.of_mean(cls(config, shard_canaries.facts(count)))

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
