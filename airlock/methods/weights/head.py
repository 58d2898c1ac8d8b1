"""`weights`/`head`: public features with a private linear head (Tramèr and Boneh 2021), by full-batch noisy descent.

A frozen front end turns every record, by itself, into a feature vector of norm at most 1. Two things then see the
private records. First, something about all features is released once with noise, and improves them: of pictures their
mean, which is subtracted from every record (a common direction would only waste the norm that clipping bounds); of a
table with declared columns how its numbers are distributed, which places the cut points that they are compared with
(`nets.tables`, `training.front_ends.cut_points`). Then a linear head is trained like any network of
`weights`/`gaussian`, with every record in every step unless a lot size is given. Front end and head leave as one
network.

Proof. What is released first is a sum over records, and one record moves it by at most Δ: the sum of features by 1,
the counts of c numbers' values by √c (`cut_points`). So noise N(0, (z₁Δ)²) on it is `GaussianDpEvent(z₁)`. Given what
was released, features depend on their own record alone, and a step is DP-SGD's (`gaussian`):
`PoissonSampledDpEvent(q, GaussianDpEvent(z))`, or `GaussianDpEvent(z)` at q = 1. The events compose adaptively. The
first release takes the fraction `centre_share` of the budget, in terms of 1/z₁² against k·q²/z².

People. Where the data say whose a record is, a person's part of the sum is the mean over her records, whose norm is at
most Δ like each of theirs, and a step is DP-SGD's for people (`dp_sgd`): adding or removing a person with all of her
records moves both by no more than one record does, and the events are the same with people in place of records.

Settings follow one rule for all data and every ε: with noise z on steps that are scaled to clip norm C and expected lot
L, a weight ends with noise of about η·√k·z·C/((1-m)·L). The learning rate η makes this 1. Features and weights have
scale 1 as well, so this is the point where signal and noise meet. For tables, which may have few records, sampling
error counts like noise: z becomes √(z² + k·s²), or a small table at a large ε would be fitted to its last record. The
rule, the 200 steps, the clip norm for pictures and the whitening of scattering features (`nets.frontend`) were chosen
on Fashion-MNIST, the use of public images (`public`) on CIFAR-100; docs/results/weights.md has the tables. What is
particular to tables (the cut points, the share that places them, the clip norm, s, the largest rate and when pairs of
columns are used) was looked up on tables of the KEEL collection; docs/results/tables.md names the development tables.

Where a number is predicted, the loss is the squared error, which changes no proof: gradients are clipped whatever they
are. Targets lie in a range of length 1, and η makes the noise on a weight 0.05; that and the clip norm were chosen on
made-up tables alone.

Public images (`settings.public`) are used in the clear, for the front end alone; `data.public` keeps them apart from
the private records.

In court, one record stands against none, so that everything that is released has a known distribution, and the score
can be the best one there is: the log-likelihood ratio of the release with and without the record, for what is released
first, for the head, and for both. The canaries are those of `dp_sgd_case`, scored by mean and head together.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import dp_accounting as dpa
import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from airlock.accounting import BudgetSchedule, calibrate, compose, repeat
from airlock.accounting.terms import Status
from airlock.config import Column, Fraction, Positive, ReleaseConfig, parse
from airlock.data import Facts, Public, Records, Split
from airlock.errors import ConfigError
from airlock.mechanisms import GaussianNoise, Randomness, Stream
from airlock.methods import dp_sgd_case
from airlock.methods.case import Canaries, Case, Coins, Scores, toward_own_label
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
from airlock.methods.dp_sgd_case import own_direction
from airlock.methods.floor import Floor, compare_heads
from airlock.methods.weights.features import Features, TableFeatures
from airlock.nets.frontend import Framed
from airlock.nets.tables import count_pairs
from airlock.training import Poisson, PrivateGradients, Recipe, Run, fit, outcomes_of
from airlock.training.distributed import ALONE
from airlock.training.front_ends.cut_points import choose_cells, sensitivity
from airlock.training.front_ends.front import STEPS, FrontEnd, by_facts, front_end
from airlock.training.front_ends.public import (
    SPLIT,
    FrontSettings,
    check_public,
    outside,
    planned_sentence,
    public_records,
    sentence,
)
from airlock.training.losses import loss_for
from airlock.training.public_start import head_of
from airlock.training.sampling import sampled

_SHARE_OF_THE_MEAN, _SHARE_OF_COUNTS = 0.05, 0.1  # of the budget
_SIGNAL_OF_A_PAIR = 20.0  # records over the noise of all steps, for each pair of columns
_MOST_PAIRS = 2_000_000  # times records: their features are kept in memory
_SAMPLING_ERROR = 1.3  # of a table's summed gradients, in clip norms: it is the same in all steps
_LARGEST_RATE = 100.0  # over 1 − momentum: descent on features of norm 1 is stable far beyond it
# Of a regression on a table: targets lie in a range of length 1, so that gradients are shorter and weights smaller.
_TARGET_CLIP, _TARGET_NOISE = 0.2, 0.05
PUBLIC_FRONT = "The front end is public: it was neither trained nor chosen on the private records."
TABLE_FRONT = (
    "What is known of a column before training was declared without looking at the private records; where its numbers "
    "are cut follows from counts with noise, which ε covers."
)
TABLE_FRONT_READ_OFF = "Where the numbers of a column are cut follows from counts with noise, which ε covers."
TABLE_LEAVES = (
    "A model that adds up what each column says, and what pairs of columns say if there are enough records. The "
    "training saw the private records only through bounded contributions with random noise on top."
)
PAIR = "no record, and one record whose features have norm 1"
PAIR_OF_PEOPLE = f"nobody, and one person with {dp_sgd_case.VISITS} records whose features have norm 1"
STATISTICS = (
    "how much more likely mean (or counts) and head are with the record",
    "how much more likely the mean is, or the counts",
    "how much more likely the head is",
)
CANARY_STATISTIC = "the released mean and the released head on the canary's features, each over its noise"


class HeadSettings(FrontSettings):
    """How the head is trained; everything left out follows from public facts.

    Args:
        features: The front end: scattering, pixels, efficientnet-lite0, trained (a network that is trained on the
            public images), steps (a table's numbers compared with cut points), minilm (an encoder of texts), auto
            (steps for tables, minilm for texts, scattering for images of at least 8 pixels a side, pixels otherwise),
            or `package.module:function` that returns the user's own frozen module.
        pairs: Of steps: whether pairs of columns are used too; by default where there are enough records for them.
        steps: How many steps.
        lot_size: The expected number of records in a step; all of them when left out.
        clip_norm: The bound on one record's gradient; features have norm 1, so gradients start near 0.95. By default
            1 for steps, else 0.1.
        learning_rate: When left out, chosen so that the noise on a weight is 1 in the end.
        momentum: Of the descent.
        centre_share: The fraction of the budget for what is released first: the mean feature (0.05 by default), or for
            steps the counts that place cut points (0.1). 0 leaves the features as they are.
        floor: Whether the head is compared with that of the public part of the split, where there is one
            (`methods.floor`); not of tables.
    """

    features: str = "auto"
    pairs: bool | None = None
    steps: Annotated[int, Field(ge=1, le=1_000_000)] = 200
    lot_size: Annotated[int, Field(ge=1)] | None = None
    clip_norm: ClipNorm | None = None
    learning_rate: Positive | None = None
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    centre_share: Fraction | None = None
    floor: bool = True


@dataclass(frozen=True)
class HeadFigures:
    """What the head is trained with, fixed before any record is read.

    Args:
        recipe: Steps, learning rate and momentum.
        sampling_probability: q.
        expected_lot: The public constant that a sum of gradients is divided by.
        clip_norm: C.
        noise_multiplier: z.
        first_noise: On what is released before the head; None where nothing is.
        first: What that is: the "mean" feature, or "counts" of a table's numbers.
        records_per_person: The most records of a person in a lot; None where records are protected.
        expected_rows: The expected number of records in a lot of people.
    """

    recipe: Recipe
    sampling_probability: float
    expected_lot: float
    clip_norm: float
    noise_multiplier: float
    first_noise: GaussianNoise | None
    first: Literal["mean", "counts"] = "mean"
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
        if self.first_noise is not None:
            common = {**common, f"noise_multiplier_of_the_{self.first}": self.first_noise.noise_multiplier}
        most = self.records_per_person
        return common if most is None else {**common, "records_per_person": most}


class Head(Channel[HeadFigures]):
    """Features of a fixed kind, private linear head; status proven, unit record or person, relation add-remove."""

    channel: ClassVar[str] = "weights"
    method: ClassVar[str] = "head"
    title: ClassVar[str] = "a private head on public features, by DP-SGD"
    rank: ClassVar[int] = 10
    units: ClassVar[frozenset[str]] = frozenset({"record", "person"})
    weighs_classes: ClassVar[bool] = True
    status: ClassVar[Status] = "proven"
    small: ClassVar[Mapping[str, object] | None] = {
        "steps": 1,
        "lot_size": 10**9,
        "learning_rate": 1.0,
        "momentum": 0.0,
        "floor": False,  # of so few records it would nearly always keep the result back
    }
    distributed: ClassVar[bool] = True
    tasks: ClassVar[frozenset[str]] = frozenset({"classification", "regression"})
    texts: ClassVar[bool] = True
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
        self.features = by_facts(facts) if self.settings.features == "auto" else self.settings.features
        front_end(self.features, facts, config.seed, self.settings)  # refuses at once what it does not know
        self.tabular = self.features == STEPS
        regression = facts.target is not None
        usual = (_TARGET_CLIP if regression else 1.0) if self.tabular else 0.1
        self.clip_norm = self.settings.clip_norm or usual
        self.noise_in_the_end = _TARGET_NOISE if regression else 1.0
        if self.settings.pairs is not None and not self.tabular:
            raise ConfigError(
                'features = "steps" along with settings.pairs',
                f"'{self.features}'",
                "A key that was silently ignored would hide a mistake.",
            )

    @cached_property
    def front(self) -> FrontEnd:
        """The front end, sized by public figures."""
        pairs = self.tabular and (self._enough_for_pairs() if self.settings.pairs is None else self.settings.pairs)
        return front_end(self.features, self.facts, self.config.seed, self.settings, pairs)

    @cached_property
    def floor(self) -> Floor | None:
        """The comparison with the head of the public records alone; None where there is none."""
        if self.tabular or not self.settings.floor:
            return None
        return Floor.where_public(self.config, self.facts, self.records)

    @property
    def net_name(self) -> str:
        """Of front end and head."""
        return self.front.name

    def _enough_for_pairs(self) -> bool:
        """Whether there are enough records, at this noise, for a curve of each pair of columns as well."""
        pairs = count_pairs([column for _, column in self.facts.columns])
        signal = self.expected_lot * math.sqrt(self.settings.steps) / self._calibrated  # over the noise of all steps
        return _SIGNAL_OF_A_PAIR * pairs <= signal and pairs * self.records <= _MOST_PAIRS

    @cached_property
    def numbers(self) -> int:
        """How many of a table's columns are numbers."""
        return sum(column.categories is None for _, column in self.facts.columns) if self.tabular else 0

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
        return _canaries(cls(_canary_config(epsilon, delta), dp_sgd_case.canary_facts(count)))

    @classmethod
    def canaries_of_people(cls, epsilon: float, delta: float, count: int) -> Canaries:
        """The same with people who have several records each."""
        return _canaries(cls(_canary_config(epsilon, delta), dp_sgd_case.canary_facts(count, people=True)))

    def plan(self) -> Plan[HeadFigures]:
        """Calibrate the noise to (ε, δ) and check the front end; touches no record."""
        net, figures = self.front.sized(), self._figures(self._calibrated)
        details: Details = {
            "net": self.net_name,
            "features": net.centre.mean.numel(),
            "trainable_parameters": net.head.weight.numel(),
            **figures.details,
            **self.weighing,
            **(self.floor.details if self.floor else {}),
        }
        schedule = self._schedule(figures.noise_multiplier)
        promise = self.promise(schedule.events(), self._assumptions())
        leaves = TABLE_LEAVES if self.tabular else self.leaves
        return Plan(self.channel, self.method, leaves, promise, details, schedule, figures)

    def execute(self, plan: Plan[HeadFigures], split: Split, randomness: Randomness, run: Run) -> Executed:
        """Release what improves the features, compute them once, train the head under noise, measure."""
        public = public_records(self.settings, split, self.config.seed)
        net = self.front.ready(public, replace(run, group=ALONE))
        run.group.spread(net.state_dict().values())  # public tensors, which another machine may compute differently
        data = self.prepared(net, split.private, run)
        executed, told = self._compared(data, split, plan.figures, randomness, run)
        utility = outcomes_of(net, split.test, self.facts.task)  # before it leaves a GPU
        return Executed(
            artefact=NetworkArtefact.leaving(net, self.net_name, self.facts),
            events=executed,
            utility=utility,
            details={**plan.details, **told, **_measured(net, public)},
            assumptions=self._assumptions(public),
        )

    def disclosing(self, split: Split, run: Run) -> Disclosing:
        """What is released first and the head; records go through the front end of pictures once."""
        public = public_records(self.settings, split, self.config.seed)
        data = self.prepared(self.front.ready(public, run), split.private, run)
        figures = self.planned.figures

        def once(randomness: Randomness) -> Disclosed:
            data.reset()
            executed, _ = self._compared(data, split, figures, randomness, run)
            return Disclosed({figures.first: data.released.cpu().numpy(), **weights_of(data.net.head)}, executed)

        return once

    def prepared(self, net: Framed, records: Records, run: Run) -> Features:
        """The private records for this network."""
        if not self.tabular:
            return Features(net, records, run, self.facts.most)
        noise = self.planned.figures.first_noise
        cells = choose_cells(self.records, noise.scale(1)) if noise else 1
        return TableFeatures(net, records, run, self.facts.most, cells)

    def _compared(
        self, data: Features, split: Split, figures: HeadFigures, randomness: Randomness, run: Run
    ) -> tuple[dpa.DpEvent, Details]:
        """Train, and let the head of the public records alone leave if it is better; the cost, and what was found."""
        if self.floor is None:
            return self.train(data, figures, randomness, run), {}
        spent, steps = self._trained(data, figures, randomness, run)
        private, public = data.net.head.weight.detach().clone(), head_of(data.net, split.public, run)
        gain = self.floor.unknown
        if run.group.lead:
            stream = randomness.privacy.child("floor")
            gain = compare_heads(self.floor, data.net, public, private, split.private, stream, run)
        count = torch.tensor(gain.count, dtype=torch.float64)
        run.group.spread([count, data.net.head.weight])
        told = self.floor.told(replace(gain, count=float(count)), split)
        return self._whole([*spent, gain.event], steps), told

    def train(self, data: Features, figures: HeadFigures, randomness: Randomness, run: Run) -> dpa.DpEvent:
        """Everything that sees the private records: what is released first, and the head; returns its cost."""
        return self._whole(*self._trained(data, figures, randomness, run))

    def _trained(
        self, data: Features, figures: HeadFigures, randomness: Randomness, run: Run
    ) -> tuple[list[dpa.DpEvent], dpa.DpEvent]:
        """The same, with both costs."""
        spent = self._first(data, figures, randomness.privacy.child(figures.first), run)
        sampler = Poisson(figures.sampling_probability, run.group.share(randomness.privacy.child("sampling")))
        gradients = PrivateGradients(
            figures.clip_norm,
            figures.noise_multiplier,
            figures.expected_lot,
            randomness.privacy.child("gradients"),
            sampled=figures.sampling_probability < 1,
            records_per_person=figures.records_per_person,
            expected_rows=figures.expected_rows,
            class_weights=self.class_weights,
            loss=loss_for(self.facts),
        )
        steps = fit(
            data.trained, data, sampler, gradients, figures.recipe, randomness.seed, run,
            secret=randomness.privacy.child("records"),
        )  # fmt: skip
        data.trained.to(run.device)  # to the front end's; out of shards it comes back on the CPU
        return spent, repeat(sampler.event(gradients.noise.event), steps)

    def _first(self, data: Features, figures: HeadFigures, stream: Stream, run: Run) -> list[dpa.DpEvent]:
        """Release what improves the features with noise, put it into the network, and return its cost."""
        noise = figures.first_noise
        if noise is None:
            return []
        if run.group.lead:
            data.improve(noise.add(data.total(), stream), noise, self.records)
        run.group.spread([data.released])
        return [noise.event]

    @cached_property
    def _calibrated(self) -> float:
        """The least noise, over the sensitivity, that keeps the whole release within (ε, δ)."""
        config = self.config
        whole = lambda z: self._schedule(z).events()  # noqa: E731
        return calibrate(whole, config.epsilon, config.delta, accountant=config.accountant)

    def _figures(self, noise_multiplier: float) -> HeadFigures:
        """All that follows from the noise and the settings."""
        settings = self.settings
        rate = settings.learning_rate or self._rate(noise_multiplier)
        recipe = Recipe(steps=settings.steps, learning_rate=rate, momentum=settings.momentum, precision="fp32")
        return HeadFigures(
            recipe, self.sampling_probability, self.expected_lot, self.clip_norm, noise_multiplier,
            self._first_noise(noise_multiplier), "counts" if self.tabular else "mean", self.facts.most,
            self.facts.rows(self.expected_lot),
        )  # fmt: skip

    def _rate(self, noise_multiplier: float) -> float:
        """The learning rate by the rule above; for tables with sampling error beside the noise, and a bound."""
        root, rest = math.sqrt(self.settings.steps), 1 - self.settings.momentum
        if self.tabular:
            noise_multiplier = math.hypot(noise_multiplier, _SAMPLING_ERROR * root)
        rate = self.noise_in_the_end * rest * self.expected_lot / (noise_multiplier * self.clip_norm) / root
        return min(rate, _LARGEST_RATE * rest) if self.tabular else rate

    def _first_noise(self, noise_multiplier: float) -> GaussianNoise | None:
        """The noise on what is released first, by its share of the budget; None where nothing is."""
        share = self.settings.centre_share
        if share is None:
            share = _SHARE_OF_COUNTS if self.tabular else _SHARE_OF_THE_MEAN
        if not share or (self.tabular and not self.numbers):
            return None
        steps = math.sqrt(self.settings.steps * share / (1 - share)) * self.sampling_probability
        return GaussianNoise(sensitivity(self.numbers) if self.tabular else 1.0, noise_multiplier / steps)

    def _schedule(self, noise_multiplier: float) -> BudgetSchedule:
        """What the first release and the steps cost at this noise."""
        noise, first = GaussianNoise(self.clip_norm, noise_multiplier), self._first_noise(noise_multiplier)
        step = sampled(self.sampling_probability, noise.event)
        beside = [one.event for one in (first, self.floor) if one is not None]
        before = compose(beside) if beside else None
        return training_schedule(step, self.settings.steps, self.sampling_probability, self.config.tuning_runs, before)

    def _whole(self, first: list[dpa.DpEvent], training: dpa.DpEvent) -> dpa.DpEvent:
        """First release and training of all runs: when one result is picked among several, every run is paid for."""
        return repeat(compose([*([compose(first)] if first else []), training]), self.config.tuning_runs)

    def _assumptions(self, public: Public | None = None) -> tuple[str, ...]:
        more = sentence(public) if public else planned_sentence(self.settings)
        if self.floor is not None and (self.settings.public is None or self.settings.public.source != SPLIT):
            more = (*more, *self.floor.assumptions)
        table = TABLE_FRONT_READ_OFF if "columns" in self.facts.read_off else TABLE_FRONT
        return (*ASSUMPTIONS, table if self.tabular else PUBLIC_FRONT, *more)


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


def _court_config(epsilon: float, delta: float, **settings: object) -> ReleaseConfig:
    """First release and head share the budget evenly; every record is in every step."""
    own = {"features": "pixels", "centre_share": 0.5, "learning_rate": 1.0, "clip_norm": 0.1, **settings}
    return dp_sgd_case.step_config(Head.method, epsilon, delta, net="auto", settings=own)


def table_case(epsilon: float, delta: float, people: bool = False) -> Case:
    """The same case for a table of two numbers: their counts, and one step on every record."""
    facts = dp_sgd_case.STEP_FACTS_OF_PEOPLE if people else dp_sgd_case.STEP_FACTS
    columns = tuple((f"number {place}", Column(min=0, max=1)) for place in range(facts.shape[0]))
    return _case(Head(_court_config(epsilon, delta, steps=1, features=STEPS), replace(facts, columns=columns)))


def _case(channel: Head) -> Case:
    """First release and head of the real method; the claim is the ε of the events that were executed."""
    plan, here = channel.planned, Run()
    figures, noise_of_first = plan.figures, plan.figures.first_noise
    assert noise_of_first is not None
    both, others = dp_sgd_case.neighbours(channel.facts)
    record = both.take(np.arange(len(others), len(both)))
    sides = {
        known: channel.prepared(
            copy.deepcopy(channel.front.ready(None, here)), record.take(np.arange(len(record) if known else 0)), here
        )
        for known in (True, False)
    }
    x, wanted = torch.from_numpy(record.x[:1]), sides[True].total()

    def run(with_record: bool, count: int, stream: Stream) -> Scores:
        side, scores = sides[with_record], np.empty((count, len(STATISTICS)))
        for i in range(count):
            side.reset()
            with _overheard(side) as heard:
                executed = channel.train(side, figures, Randomness(0, stream.child(i)), here)
            if i == 0:
                check_executed(plan, executed)
            first = _log_ratio(heard[0], wanted, noise_of_first)
            weight = -side.net.head.weight.detach().numpy() * figures.expected_lot
            head = _log_ratio(weight, _clipped(side.net, x, figures), GaussianNoise(figures.clip_norm, noise))
            scores[i] = first + head, first, head
        return scores

    noise = figures.noise_multiplier
    pair = PAIR if channel.facts.people is None else PAIR_OF_PEOPLE
    return Case.of_proven(plan.guarantee, pair, STATISTICS, run)


@contextmanager
def _overheard(side: Features) -> Iterator[list[NDArray[np.float64]]]:
    """What is released first, as it was before cut points or a mean were made of it."""
    heard, improve = list[NDArray[np.float64]](), side.improve

    def listening(noisy: NDArray[np.float64], noise: GaussianNoise, units: int) -> None:
        heard.append(noisy)
        improve(noisy, noise, units)

    vars(side)["improve"] = listening
    try:
        yield heard
    finally:
        del vars(side)["improve"]


def _clipped(net: Framed, x: Tensor, figures: HeadFigures) -> NDArray[np.float64]:
    """The record's gradient at a head of zeros, which is longer than the clip norm, clipped; label 0."""
    classes = net.head.out_features
    slope = torch.full((classes, 1), 1.0 / classes)
    slope[0] -= 1.0
    with torch.no_grad():
        gradient = slope * net.centre(net.front(x))
    clipped: Tensor = gradient * (figures.clip_norm / gradient.norm())
    return clipped.double().numpy()


def _log_ratio(found: NDArray[np.floating], wanted: NDArray[np.float64], noise: GaussianNoise) -> float:
    """The logarithm of N(wanted, σ²) over N(0, σ²) at what was found."""
    deviation = noise.noise_multiplier * noise.sensitivity
    return float(((found - wanted / 2) * wanted).sum()) / deviation**2


def _canary_config(epsilon: float, delta: float) -> ReleaseConfig:
    return _court_config(epsilon, delta, steps=dp_sgd_case.STEPS, momentum=0.0, clip_norm=0.1)


def _canaries(channel: Head) -> Canaries:
    """The whole release of a head: the mean and the steps, added up with the weights that their noise gives them."""
    count = channel.records // dp_sgd_case.STATED
    every = dp_sgd_case.canaries_in_pairs(count, channel.facts.most)
    promise, figures = channel.planned.guarantee, channel.planned.figures
    assert figures.first_noise is not None
    noise, of_mean = figures.noise_multiplier, figures.first_noise.noise_multiplier

    def run(coins: Coins, stream: Stream) -> Scores:
        net = dp_sgd_case.released(channel, every, coins, stream)
        assert isinstance(net, Framed)
        weight = net.head.weight.detach()[:, :-1]  # the last one is the bias
        head = toward_own_label(own_direction(weight[0] - weight[1]) / math.sqrt(2))
        head = head * (figures.expected_lot / figures.clip_norm)
        return own_direction(net.centre.mean) * channel.records / of_mean**2 + head / noise**2

    what = dp_sgd_case.in_words(channel.facts, count, figures.recipe.steps)
    claim, family = dp_sgd_case.claim_of(promise), dp_sgd_case.family_of(promise)
    return Canaries(claim, count, what, CANARY_STATISTIC, run, family)
