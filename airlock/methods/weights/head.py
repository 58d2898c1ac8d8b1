"""`weights`/`head`: public features with a private linear head (Tramèr and Boneh 2021), by full-batch noisy descent.

A frozen public front end turns every record, by itself, into a feature vector of norm at most 1. Two things then see
the private records: the mean feature, released once with noise and subtracted from every record (a common direction
would only waste the norm that clipping bounds); and a linear head, trained like any network of `weights`/`gaussian`,
with every record in every step unless a lot size is given. Front end, mean and head leave as one network.

Proof. One record moves the sum of features by at most 1, so noise N(0, z_m²) on it is `GaussianDpEvent(z_m)`. Given the
released mean, a step is DP-SGD's (`gaussian`): `PoissonSampledDpEvent(q, GaussianDpEvent(z))`, or `GaussianDpEvent(z)`
at q = 1. The events compose adaptively. The mean takes the fraction `centre_share` of the budget, in terms of
1/z_m² against k·q²/z².

People. Where the data say whose a record is, a person's part of the sum is the mean of her features, whose norm is at
most 1 like each of theirs, and a step is DP-SGD's for people (`dp_sgd`): adding or removing a person with all of her
records moves both by no more than one record does, and the events are the same with people in place of records.

Settings follow one rule for all data and every ε: with noise z on steps that are scaled to clip norm C and expected lot
L, a weight ends with noise of about η·√k·z·C/((1-m)·L). The learning rate η makes this 1. Features and weights have
scale 1 as well, so this is the point where signal and noise meet. The rule, the 200 steps, the clip norm and the
whitening of scattering features (`nets.frontend`) were chosen on Fashion-MNIST, the use of public images (`public`) on
CIFAR-100, and nothing on any other set; docs/results/weights.md has the tables.

Public images (`settings.public`) are used in the clear, for the front end alone; `data.public` keeps them apart from
the private records.

In court, one record stands against none, so that everything that is released has a known distribution, and the score
can be the best one there is: the log-likelihood ratio of the release with and without the record, for the mean, for the
head, and for both. The canaries are those of `dp_sgd_case`, scored by mean and head together.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar

import dp_accounting as dpa
import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from airlock.accounting import BudgetSchedule, calibrate, compose, repeat
from airlock.accounting.guarantee import Status
from airlock.config import Fraction, Positive, ReleaseConfig, parse
from airlock.data import Facts, Public, Records, Split
from airlock.mechanisms import GaussianNoise, Randomness, Stream
from airlock.methods import dp_sgd_case
from airlock.methods.case import Canaries, Case, Coins, Scores
from airlock.methods.contract import (  # fmt: skip
    Channel,
    Details,
    Disclosed,
    Disclosing,
    Executed,
    NetworkArtefact,
    Plan,
    check_executed,
    refuse_net,
    weights_of,
)
from airlock.methods.dp_sgd import ASSUMPTIONS, ClipNorm, training_schedule
from airlock.methods.dp_sgd_case import own_direction, toward_own_label
from airlock.nets.frontend import Framed
from airlock.training import Poisson, PrivateGradients, Recipe, Resident, Run, fit, outcomes_of
from airlock.training.distributed import ALONE
from airlock.training.front_ends.features import BLOCK, compute
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
PAIR = "no record, and one record whose features have norm 1"
PAIR_OF_PEOPLE = f"nobody, and one person with {dp_sgd_case.VISITS} records whose features have norm 1"
STATISTICS = (
    "how much more likely mean and head are with the record",
    "how much more likely the mean is",
    "how much more likely the head is",
)
CANARY_STATISTIC = "the released mean and the released head on the canary's features, each over its noise"


class HeadSettings(FrontSettings):
    """How the head is trained; everything left out follows from public facts.

    Args:
        features: The front end: scattering, pixels, efficientnet-lite0, trained (a network that is trained on the
            public images), auto (scattering for images of at least 8 pixels a side, pixels otherwise), or
            `package.module:function` that returns the user's own frozen module.
        steps: How many steps.
        lot_size: The expected number of records in a step; all of them when left out.
        clip_norm: The bound on one record's gradient; features have norm 1, so gradients start near 0.95.
        learning_rate: When left out, chosen so that the noise on a weight is 1 in the end.
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


@dataclass(frozen=True)
class HeadFigures:
    """What the head is trained with, fixed before any record is read.

    Args:
        recipe: Steps, learning rate and momentum.
        sampling_probability: q.
        expected_lot: The public constant that a sum of gradients is divided by.
        clip_norm: C.
        noise_multiplier: z.
        mean_noise: On the sum of features; None where features are not centred.
        records_per_person: The most records of a person in a lot; None where records are protected.
        expected_rows: The expected number of records in a lot of people.
    """

    recipe: Recipe
    sampling_probability: float
    expected_lot: float
    clip_norm: float
    noise_multiplier: float
    mean_noise: GaussianNoise | None
    records_per_person: int | None = None
    expected_rows: float | None = None

    @property
    def details(self) -> Details:
        """For the card."""
        common: Details = {
            "steps": self.recipe.steps,
            "sampling_probability": self.sampling_probability,
            "expected_lot_size": self.expected_lot,
            "clip_norm": self.clip_norm,
            "learning_rate": self.recipe.learning_rate,
            "noise_multiplier": self.noise_multiplier,
            "noise_on_mean_gradient": self.noise_multiplier * self.clip_norm / self.expected_lot,
        }
        if self.mean_noise is not None:
            common = {**common, "noise_multiplier_of_the_mean": self.mean_noise.noise_multiplier}
        most = self.records_per_person
        return common if most is None else {**common, "records_per_person": most}


class Head(Channel[HeadFigures]):
    """Public features, private linear head; status proven, unit record or person, relation add-remove."""

    channel: ClassVar[str] = "weights"
    method: ClassVar[str] = "head"
    title: ClassVar[str] = "a private head on public features, by DP-SGD"
    rank: ClassVar[int] = 10
    units: ClassVar[frozenset[str]] = frozenset({"record", "person"})
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
        return _case(cls(_court_config(epsilon, delta, steps=1), dp_sgd_case.STEP_FACTS))

    @classmethod
    def case_of_people(cls, epsilon: float, delta: float) -> Case:
        """The same for a person with many records."""
        return _case(cls(_court_config(epsilon, delta, steps=1), dp_sgd_case.STEP_FACTS_OF_PEOPLE))

    @classmethod
    def canaries(cls, epsilon: float, delta: float, count: int) -> Canaries:
        """A whole release: the mean feature and the head."""
        config = _court_config(epsilon, delta, steps=dp_sgd_case.STEPS, momentum=0.0, clip_norm=0.1)
        return _canaries(cls(config, dp_sgd_case.canary_facts(count)))

    def plan(self) -> Plan[HeadFigures]:
        """Calibrate the noise to (ε, δ) and check the front end; touches no record."""
        net, figures = self.front.sized(), self._figures(self._calibrated)
        details: Details = {
            "net": self.net_name,
            "features": net.centre.mean.numel(),
            "trainable_parameters": net.head.weight.numel(),
            **figures.details,
        }
        schedule = self._schedule(figures.noise_multiplier)
        promise = self.promise(schedule.events(), self._assumptions())
        return Plan(self.channel, self.method, self.leaves, promise, details, schedule, figures)

    def execute(self, plan: Plan[HeadFigures], split: Split, randomness: Randomness, run: Run) -> Executed:
        """Compute features once, release their mean, train the head under noise, measure."""
        public = public_records(self.settings, split, self.config.seed)
        net = self.front.ready(public, replace(run, group=ALONE))
        run.group.spread(net.state_dict().values())  # public tensors, which another machine may compute differently
        data = Features(net, split.private, run, self.facts.most)
        executed = self.train(net, data, plan.figures, randomness, run)
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
        data = ResettableFeatures(self.front.ready(public, run), split.private, run, self.facts.most)
        figures = self.planned.figures

        def once(randomness: Randomness) -> Disclosed:
            data.reset()
            executed = self.train(data.net, data, figures, randomness, run)
            return Disclosed({"mean": data.net.centre.mean.cpu().numpy(), **weights_of(data.net.head)}, executed)

        return once

    def train(self, net: Framed, data: Features, figures: HeadFigures, randomness: Randomness, run: Run) -> dpa.DpEvent:
        """Everything that sees the private records: the mean feature and the head, left in `net`; returns its cost."""
        spent = self._centre(net, data, figures, randomness.privacy.child("mean"), run)
        sampler = Poisson(figures.sampling_probability, run.group.share(randomness.privacy.child("sampling")))
        gradients = PrivateGradients(
            figures.clip_norm,
            figures.noise_multiplier,
            figures.expected_lot,
            randomness.privacy.child("gradients"),
            sampled=figures.sampling_probability < 1,
            records_per_person=figures.records_per_person,
            expected_rows=figures.expected_rows,
        )
        steps = fit(
            data.trained, data, sampler, gradients, figures.recipe, randomness.seed, run,
            secret=randomness.privacy.child("records"),
        )  # fmt: skip
        return self._whole(spent, repeat(sampler.event(gradients.noise.event), steps))

    def _centre(self, net: Framed, data: Features, figures: HeadFigures, stream: Stream, run: Run) -> list[dpa.DpEvent]:
        """Release the mean feature with noise, put it into the network, and return its cost."""
        if figures.mean_noise is None:
            return []
        if run.group.lead:
            noisy = figures.mean_noise.add(data.total(), stream) / self.records
            with torch.no_grad():
                net.centre.mean.copy_(torch.from_numpy(noisy))
        run.group.spread([net.centre.mean])
        return [figures.mean_noise.event]

    @cached_property
    def _calibrated(self) -> float:
        """The least noise, over the sensitivity, that keeps the whole release within (ε, δ)."""
        config = self.config
        whole = lambda z: self._schedule(z).events()  # noqa: E731
        return calibrate(whole, config.epsilon, config.delta, accountant=config.accountant)

    def _figures(self, noise_multiplier: float) -> HeadFigures:
        """All that follows from the noise and the settings."""
        settings = self.settings
        unit = (1 - settings.momentum) * self.expected_lot / (noise_multiplier * settings.clip_norm)
        rate = settings.learning_rate or unit / math.sqrt(settings.steps)
        recipe = Recipe(steps=settings.steps, learning_rate=rate, momentum=settings.momentum, precision="fp32")
        mean_noise = self._mean_noise(noise_multiplier)
        return HeadFigures(
            recipe, self.sampling_probability, self.expected_lot, settings.clip_norm, noise_multiplier, mean_noise,
            self.facts.most, self.facts.rows(self.expected_lot),
        )  # fmt: skip

    def _mean_noise(self, noise_multiplier: float) -> GaussianNoise | None:
        """The noise on the sum of features, by its share of the budget; features have norm at most 1."""
        share = self.settings.centre_share
        if not share:
            return None
        steps = math.sqrt(self.settings.steps * share / (1 - share)) * self.sampling_probability
        return GaussianNoise(1.0, noise_multiplier / steps)

    def _schedule(self, noise_multiplier: float) -> BudgetSchedule:
        """What the mean and the steps cost at this noise."""
        noise, mean = GaussianNoise(self.settings.clip_norm, noise_multiplier), self._mean_noise(noise_multiplier)
        step = sampled(self.sampling_probability, noise.event)
        before = None if mean is None else mean.event
        return training_schedule(step, self.settings.steps, self.sampling_probability, self.config.tuning_runs, before)

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


class _Trained(nn.Module):
    """What the loop trains: the head. The mean is part of it so that a checkpoint holds it too."""

    mean: Tensor

    def __init__(self, net: Framed) -> None:
        super().__init__()
        self.head = net.head
        self.register_buffer("mean", net.centre.mean)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x)
        return logits


class Features(Resident):
    """Features of all private records on the device, computed once and centred when the first batch is drawn.

    Every feature vector depends on its own record and on public tensors alone, so computing it costs no privacy. A
    resumed run restores the released mean from its checkpoint before the first batch: the noisy mean is used once,
    whatever happens. `trained` is the module to train on the batches.

    Args:
        net: The network.
        records: The private records.
        run: Where to compute.
        records_per_person: Draw people, with at most so many of their records each; None draws records.
    """

    def __init__(self, net: Framed, records: Records, run: Run, records_per_person: int | None = None) -> None:
        self.net = net.to(run.device)
        self.trained = _Trained(net)
        self.y = torch.from_numpy(np.ascontiguousarray(records.y)).to(run.device)
        self.x = torch.empty(len(records), net.centre.mean.numel(), device=run.device)
        self._centred: Tensor | None = None
        self._shares: Tensor | None = None  # of a record in its person's mean
        if records_per_person is not None:
            self.groups, self.most = records.groups(), records_per_person
            self._shares = torch.from_numpy(records.weights).to(run.device)
        for place, features in compute(net.front, records, run, "features"):
            self.x[place] = features

    def total(self) -> NDArray[np.float64]:
        """The sum of all features, of each person's mean where people are drawn: one moves it by at most 1 in L2."""
        wide = self.x.double()
        return (wide.sum(0) if self._shares is None else wide.mT @ self._shares).cpu().numpy()

    def batch(self, index: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """The records at these positions; a batch of all of them, in their order, is not copied."""
        if self._centred is None:
            with torch.no_grad():
                self._centred = torch.cat([self.net.centre(block) for block in torch.split(self.x, BLOCK)])
            self.x = self._centred
        if self.groups is None and len(index) == len(self.y):
            return self._centred, self.y
        where = torch.from_numpy(index).to(self.y.device)
        return self._centred.index_select(0, where), self.y.index_select(0, where)


class ResettableFeatures(Features):
    """Features and network that can be reset to where they started, for many releases of the same records."""

    def __init__(self, net: Framed, records: Records, run: Run, records_per_person: int | None = None) -> None:
        super().__init__(net, records, run, records_per_person)
        self.raw = self.x

    def reset(self) -> None:
        """Features as they were before the mean was subtracted; mean and head zero."""
        self.x, self._centred = self.raw, None
        with torch.no_grad():
            self.net.centre.mean.zero_()
            self.net.head.weight.zero_()


def _court_config(epsilon: float, delta: float, **settings: object) -> ReleaseConfig:
    """Mean and head share the budget evenly; every record is in every step."""
    own = {"features": "pixels", "centre_share": 0.5, "learning_rate": 1.0, **settings}
    return dp_sgd_case.step_config(Head.method, epsilon, delta, net="auto", settings=own)


def _case(channel: Head) -> Case:
    """Mean and head of the real method; the claim is the ε of the events that were executed."""
    plan, here = channel.planned, Run()
    figures = plan.figures
    assert figures.mean_noise is not None
    noise_of_mean = figures.mean_noise.noise_multiplier
    both, others = dp_sgd_case.neighbours(channel.facts)
    record = both.take(np.arange(len(others), len(both)))
    sides = {
        known: ResettableFeatures(
            copy.deepcopy(channel.front.ready(None, here)),
            record.take(np.arange(len(record) if known else 0)),
            here,
            channel.facts.most,
        )
        for known in (True, False)
    }
    features = sides[True].raw[0]

    def run(with_record: bool, count: int, stream: Stream) -> Scores:
        side, scores = sides[with_record], np.empty((count, len(STATISTICS)))
        for i in range(count):
            side.reset()
            executed = channel.train(side.net, side, figures, Randomness(0, stream.child(i)), here)
            if i == 0:
                check_executed(plan, executed)
            mean = _log_ratio(side.net.centre.mean * channel.records, features, noise_of_mean)
            weight = -side.net.head.weight.detach() * figures.expected_lot / figures.clip_norm
            head = _log_ratio(weight, _direction(side.net, features), figures.noise_multiplier)
            scores[i] = mean + head, mean, head
        return scores

    pair = PAIR if channel.facts.people is None else PAIR_OF_PEOPLE
    return Case.of_proven(plan.guarantee, pair, STATISTICS, run)


def _direction(net: Framed, features: Tensor) -> Tensor:
    """The record's gradient at a head of zeros over its norm, which is above the clip norm; label 0."""
    classes = net.head.out_features
    slope = torch.full((classes, 1), 1.0 / classes)
    slope[0] -= 1.0
    with torch.no_grad():
        gradient: Tensor = slope * net.centre(features[None])
    return gradient.div_(gradient.norm())


def _log_ratio(found: Tensor, wanted: Tensor, noise: float) -> float:
    """The logarithm of N(wanted, noise²) over N(0, noise²) at what was found."""
    found, wanted = found.flatten().double(), wanted.flatten().double()
    return float((found - wanted / 2) @ wanted) / noise**2


def _canaries(channel: Head) -> Canaries:
    """The whole release of a head: the mean and the steps, added up with the weights that their noise gives them."""
    every = dp_sgd_case.canary_records(channel.records // dp_sgd_case.STATED)
    promise, figures = channel.planned.guarantee, channel.planned.figures
    assert figures.mean_noise is not None
    noise, of_mean = figures.noise_multiplier, figures.mean_noise.noise_multiplier

    def run(coins: Coins, stream: Stream) -> Scores:
        net = dp_sgd_case.released(channel, every, coins, stream)
        assert isinstance(net, Framed)
        weight = net.head.weight.detach()[:, :-1]  # the last one is the bias
        head = toward_own_label(own_direction(weight[0] - weight[1]) / math.sqrt(2), every)
        head = head * (figures.expected_lot / figures.clip_norm)
        return own_direction(net.centre.mean) * channel.records / of_mean**2 + head / noise**2

    what = dp_sgd_case.WHAT.format(steps=figures.recipe.steps, count=len(every))
    claim, family = dp_sgd_case.claim_of(promise), dp_sgd_case.family_of(promise)
    return Canaries(claim, len(every), what, CANARY_STATISTIC, run, family)
