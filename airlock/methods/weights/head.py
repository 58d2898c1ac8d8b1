"""`weights`/`head`: public features with a private linear head (Tramèr and Boneh 2021), by full-batch noisy descent.

A frozen public front end turns every record, by itself, into a feature vector of norm at most 1. Two things then see
the private records: the mean feature, released once with noise and subtracted from every record (a common direction
would only waste the norm that clipping bounds); and a linear head, trained like any network of `weights`/`gaussian`,
with every record in every step unless a lot size is given. Front end, mean and head leave as one network.

Proof. One record moves the sum of features by at most 1, so noise N(0, z_m²) on it is `GaussianDpEvent(z_m)`. Given the
released mean, a step is DP-SGD's (`gaussian`): `PoissonSampledDpEvent(q, GaussianDpEvent(z))`, or `GaussianDpEvent(z)`
at q = 1. The events compose adaptively. The mean takes the fraction `centre_share` of the budget, in terms of
1/z_m² against k·q²/z².

Settings, by one rule for all data and every ε: with noise z on steps that are scaled to clip norm C and expected lot L,
a weight ends with noise of about η·√k·z·C/((1-m)·L). The learning rate η makes this 1. Features and weights have scale
1 as well, so this is the point where signal and noise meet. The rule, the 200 steps, the clip norm and the whitening of
scattering features (`nets.frontend`) were looked up on Fashion-MNIST, what public images are used for (`public`) on
CIFAR-100, none of them on another set; docs/results/weights.md has the tables.

Public images (`settings.public`) are used in the clear, for the front end alone; `data.public` keeps them apart from
the private records.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Annotated, ClassVar

import dp_accounting as dpa
import torch
from pydantic import Field

from airlock.accounting import BudgetSchedule, calibrate, compose, repeat
from airlock.accounting.guarantee import Status
from airlock.config import Fraction, Positive, ReleaseConfig, parse
from airlock.data import Facts, Public, Split
from airlock.mechanisms import GaussianNoise, Randomness, Stream
from airlock.methods import step_canaries
from airlock.methods.case import Canaries, Case
from airlock.methods.contract import (  # fmt: skip
    Channel,
    Details,
    Disclosed,
    Disclosing,
    Executed,
    NetworkArtefact,
    Plan,
    refuse_net,
    weights_of,
)
from airlock.methods.noisy_settings import ClipNorm
from airlock.methods.noisy_training import ASSUMPTIONS, training_course
from airlock.methods.step_case import FACTS
from airlock.methods.weights import canaries, head_case
from airlock.methods.weights.features import Features
from airlock.nets.frontend import Framed
from airlock.training import Poisson, PrivateGradients, Recipe, Run, fit, outcomes_of
from airlock.training.distributed import ALONE
from airlock.training.front_ends.front import front_end
from airlock.training.front_ends.public import (
    FrontSettings,
    check_public,
    outside,
    planned_sentence,
    public_records,
    sentence,
)
from airlock.training.sampling import sampled

PUBLIC_FRONT = "The front end is public: it was neither trained nor chosen on the private records."


class HeadSettings(FrontSettings):
    """How the head is trained; everything left out follows from public facts.

    Args:
        features: The front end: scattering, pixels, efficientnet-lite0, trained (a network that is trained on the
            public images), auto (scattering for images of at least 8 pixels a side, pixels otherwise), or
            `package.module:function` that returns the user's own frozen module.
        steps: How many steps.
        lot_size: The expected number of records in a step; all of them when left out.
        clip_norm: The bound on one record's gradient; features have norm 1, so gradients start near 0.95.
        learning_rate: When left out, such that a weight's noise in the end is 1.
        momentum: Of the descent.
        centre_share: The fraction of the budget for the mean feature; 0 leaves the features as they are.
    """

    features: str = "auto"
    steps: Annotated[int, Field(ge=1, le=1_000_000)] = 200
    lot_size: Annotated[int, Field(ge=1)] | None = None
    clip_norm: ClipNorm = 0.1
    learning_rate: Positive | None = None
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    centre_share: Fraction = 0.05


class Head(Channel):
    """Public features, private linear head; status proven, unit record, relation add-remove."""

    channel: ClassVar[str] = "weights"
    method: ClassVar[str] = "head"
    title: ClassVar[str] = "a private head on public features, by DP-SGD"
    rank: ClassVar[int] = 10
    status: ClassVar[Status] = "proven"
    small: ClassVar[Mapping[str, object] | None] = {
        "steps": 1,
        "lot_size": 10**9,
        "learning_rate": 1.0,
        "momentum": 0.0,
    }
    distributed: ClassVar[bool] = True
    leaves: ClassVar[str] = (
        "A model whose last layer was trained on the private records, on top of a fixed public part. The training saw "
        "the records only through bounded contributions with random noise on top."
    )

    def __init__(self, config: ReleaseConfig, facts: Facts) -> None:
        super().__init__(config, facts)
        self.settings = parse(HeadSettings, config.settings, where="settings")
        refuse_net(config)
        self.records = facts.expected("private", config.split)
        self.sampling_probability = min(1.0, (self.settings.lot_size or self.records) / self.records)
        self.expected_lot = self.sampling_probability * self.records
        check_public(self.settings, self.settings.features, facts, config.split.public)
        self.public = outside(self.settings)
        self.front = front_end(self.settings.features, facts.shape, len(facts.classes), config.seed, self.settings)
        self.net_name = self.front.name

    @classmethod
    def case(cls, epsilon: float, delta: float) -> Case:
        """The mean feature and one step on every record."""
        return head_case.of_head(cls(head_case.config_for(epsilon, delta), FACTS))

    @classmethod
    def canaries(cls, epsilon: float, delta: float, count: int) -> Canaries:
        """A whole release: the mean feature and the head."""
        return canaries.of_head(cls(canaries.config_for_head(epsilon, delta, count), step_canaries.facts(count)))

    def plan(self) -> Plan:
        """Calibrate the noise to (ε, δ) and check the front end; touches no record."""
        net = self.front.sized()
        noise = self._calibrated
        details: dict[str, str | int | float] = {
            "net": self.net_name,
            "features": net.centre.mean.numel(),
            "trainable_parameters": net.head.weight.numel(),
            "steps": self.settings.steps,
            "sampling_probability": self.sampling_probability,
            "expected_lot_size": self.expected_lot,
            "clip_norm": self.settings.clip_norm,
            "learning_rate": self._recipe(noise).learning_rate,
            "noise_multiplier": noise,
            "noise_on_mean_gradient": noise * self.settings.clip_norm / self.expected_lot,
        }
        if self.settings.centre_share:
            details["noise_multiplier_of_the_mean"] = self._mean_noise(noise).noise_multiplier
        schedule = self._planned(noise)
        promise = self.promise(schedule.events(), self._assumptions())
        return Plan(self.channel, self.method, self.leaves, promise, details, schedule)

    def execute(self, plan: Plan, split: Split, randomness: Randomness, run: Run) -> Executed:
        """Compute features once, release their mean, train the head under noise, measure."""
        noise = float(plan.details["noise_multiplier"])
        public = public_records(self.settings, split, self.config.seed)
        net = self.front.ready(public, replace(run, group=ALONE))
        run.group.spread(net.state_dict().values())  # what is public may come out otherwise on another machine
        executed = self.train(net, Features(net, split.private, run), noise, randomness, run)
        utility = outcomes_of(net, split.test)  # before it leaves a GPU
        return Executed(
            artefact=NetworkArtefact.leaving(net, self.net_name, self.facts),
            events=executed,
            utility=utility,
            details={**plan.details, **_measured(net, public)},
            assumptions=self._assumptions(public),
        )

    def disclosing(self, split: Split, run: Run) -> Disclosing:
        """The mean feature and the head; features are computed once."""
        public = public_records(self.settings, split, self.config.seed)
        data = head_case.Side(self.front.ready(public, run), split.private, run)

        def once(randomness: Randomness) -> Disclosed:
            data.reset()
            executed = self.train(data.net, data, self._calibrated, randomness, run)
            return Disclosed({"mean": data.net.centre.mean.cpu().numpy(), **weights_of(data.net.head)}, executed)

        return once

    @cached_property
    def _calibrated(self) -> float:
        """The least noise, over the sensitivity, that keeps the whole release within (ε, δ)."""
        config = self.config
        whole = lambda z: self._planned(z).events()  # noqa: E731
        return calibrate(whole, config.epsilon, config.delta, accountant=config.accountant)

    def train(self, net: Framed, data: Features, noise: float, randomness: Randomness, run: Run) -> dpa.DpEvent:
        """Everything that sees the private records: the mean feature and the head, left in `net`; what it cost."""
        spent = self._centre(net, data, noise, randomness.privacy.child("mean"), run)
        sampler = Poisson(self.sampling_probability, run.group.share(randomness.privacy.child("sampling")))
        gradients = PrivateGradients(
            self.settings.clip_norm,
            noise,
            self.expected_lot,
            randomness.privacy.child("gradients"),
            sampled=self.sampling_probability < 1,
        )
        steps = fit(data.trained, data, sampler, gradients, self._recipe(noise), randomness.seed, run)
        return self._whole(spent, repeat(sampler.event(gradients.noise.event), steps))

    def _centre(self, net: Framed, data: Features, noise: float, stream: Stream, run: Run) -> list[dpa.DpEvent]:
        """Release the mean feature with noise, put it into the network, and say what it cost."""
        if not self.settings.centre_share:
            return []
        mechanism = self._mean_noise(noise)
        if run.group.lead:
            noisy = mechanism.add(data.total(), stream) / self.records
            with torch.no_grad():
                net.centre.mean.copy_(torch.from_numpy(noisy))
        run.group.spread([net.centre.mean])
        return [mechanism.event]

    def _mean_noise(self, noise_multiplier: float) -> GaussianNoise:
        """The noise on the sum of features, by its share of the budget; features have norm at most 1."""
        share = self.settings.centre_share
        steps = math.sqrt(self.settings.steps * share / (1 - share)) * self.sampling_probability
        return GaussianNoise(1.0, noise_multiplier / steps)

    def _recipe(self, noise_multiplier: float) -> Recipe:
        settings = self.settings
        unit = (1 - settings.momentum) * self.expected_lot / (noise_multiplier * settings.clip_norm)
        rate = settings.learning_rate or unit / math.sqrt(settings.steps)
        return Recipe(steps=settings.steps, learning_rate=rate, momentum=settings.momentum, precision="fp32")

    def _planned(self, noise_multiplier: float) -> BudgetSchedule:
        noise = GaussianNoise(self.settings.clip_norm, noise_multiplier)
        step = sampled(self.sampling_probability, noise.event)
        mean = self._mean_noise(noise_multiplier).event if self.settings.centre_share else None
        return training_course(step, self.settings.steps, self.sampling_probability, self.config.tuning_runs, mean)

    def _whole(self, mean: list[dpa.DpEvent], training: dpa.DpEvent) -> dpa.DpEvent:
        """Mean and training of all runs: when one result is picked among several, every run is paid for."""
        return repeat(compose([*mean, training]), self.config.tuning_runs)

    def _assumptions(self, public: Public | None = None) -> tuple[str, ...]:
        more = sentence(public) if public else planned_sentence(self.settings)
        return (*ASSUMPTIONS, PUBLIC_FRONT, *more)


def _measured(net: Framed, public: Public | None) -> Details:
    """What the card says about public images and the front end that was made with them."""
    if public is None:
        return {}
    tensors = hashlib.sha256()
    for name, tensor in net.front.state_dict().items():
        tensors.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return {
        "public_data": public.name,
        "public_records": len(public.records),
        "public_sha256": public.digest,
        "front_end_sha256": tensors.hexdigest(),
    }
