"""DP-SGD (Abadi et al. 2016) with Poisson lots, per-record clipping and PLD accounting, for any channel.

Proof. With every record's gradient clipped to C, adding or removing one record moves the sum by at most C. Noise
N(0, z²C²) on the sum of a Poisson lot is `PoissonSampledDpEvent(q, GaussianDpEvent(z))`; k steps compose; dividing by a
public constant, the optimiser and the averaging of weights are post-processing. The noise is added on a public grid
(`mechanisms.gaussian`), lots and noise come from the secret stream.

With `clip = "adaptive"` C follows a quantile of the norms through a noisy count, and the event is the same: sum and
count together are one Gaussian mechanism with z (`mechanisms.quantile` has the proof). With `augment_multiplicity` the
gradient that is clipped is the mean over a record's copies: the bound, and so the event, is the same.

Class weights (`training.class_weights`) multiply a clipped gradient by a number of at most 1 that follows from the
record's own label: the bound, and so the event, is the same.

People. Where the data say whose a record is (`facts.people`), read "person" for "record" throughout: every person
enters a lot with probability q, whether she has one record or fifty. What is clipped, once, is the mean gradient of at
most `records_per_person` of her records in the lot, chosen afresh from the secret stream if she has more
(`training.devices`, `training.per_sample.people`). So adding or removing one person with all of her records moves the
sum by at most C, and the event is the same with the number of people in place of that of records. The bound K on her
records is no part of the proof: it bounds time and memory, and how one-sided a mean can be.

Top to bottom: the settings; the figures of a plan; `NoisyTraining`, which every method that trains under noise is built
on, whatever its noise looks like; and `DpSgd`, whose noise is Gaussian and as large as the clipping requires.
`dp_sgd_case` puts both on trial.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal, cast

import dp_accounting as dpa
import torch
from pydantic import Field
from torch import Tensor, nn

from airlock.accounting import BudgetSchedule, Guarantee, calibrate
from airlock.accounting.terms import Status
from airlock.config import MINILM, TRANSFORMERS, Positive, ReleaseConfig
from airlock.data import Facts, Records, Split
from airlock.errors import ConfigError, NetError
from airlock.mechanisms import Clip, GaussianNoise, QuantileBound, Randomness
from airlock.mechanisms.clipping import SMALLEST
from airlock.methods.contract import (
    NOTHING_ELSE_LEAVES,
    ONE_RECORD,
    SIZE,
    Arrays,
    Channel,
    Details,
    Disclosed,
    Disclosing,
    Executed,
    NetworkArtefact,
    Plan,
    Secrets,
    weights_of,
)
from airlock.nets import MEMORY, check, create, default_name, hugging_face, names, public_name
from airlock.nets.bert import with_tokens
from airlock.nets.domain import declare, drawn, vocabulary_of
from airlock.nets.hugging_face import merged
from airlock.nets.registry import seed_torch
from airlock.training import Poisson, PrivateGradients, Resident, Run, fit, losses_of, outcomes_of
from airlock.training.augment import Name as AugmentName
from airlock.training.augment import named
from airlock.training.gradients import Gradients
from airlock.training.loop import Augment, Recipe
from airlock.training.losses import loss_for
from airlock.training.outcomes import Outcomes
from airlock.training.sampling import sampled

ASSUMPTIONS = (
    ONE_RECORD,
    SIZE,
    "Network, settings and class names were chosen without looking at the private records.",
    "Which records each step drew, how they were changed at random, and the noise stay secret and are not used again.",
    NOTHING_ELSE_LEAVES,
)
BROUGHT = "The network came with its initial weights, which were made without the private records."
# One step of plain gradient descent on every record: the weights change by the noisy gradient. For the court.
ONE_STEP: dict[str, object] = {
    "steps": 1,
    "lot_size": 10**9,
    "optimiser": "sgd",
    "learning_rate": 1.0,
    "momentum": 0.0,
    "weight_decay": 0.0,
    "schedule": "constant",
    "warmup": 0.0,
    "ema": 0.0,
}
_ONLY_ADAPTIVE = ("clip_quantile", "clip_rate", "clip_count_noise")
ClipNorm = Annotated[float, Field(ge=SMALLEST)]


class NoisyTrainingSettings(Recipe):
    """A training recipe with lots and clipping.

    Args:
        lot_size: The expected number of records in a lot; with the public number of records it sets the sampling
            probability. If it is at least the public number, every record enters every step. It counts people where
            these are protected.
        clip_norm: The bound on one record's gradient, or on one person's mean gradient.
        augment: Random changes to each record by itself.
    """

    lot_size: Annotated[int, Field(ge=1)]
    clip_norm: ClipNorm
    augment: AugmentName = "none"


class DpSgdSettings(NoisyTrainingSettings):
    """The settings of DP-SGD, whose clip norm may adapt and whose records may come in several copies.

    Args:
        clip: "fixed" keeps `clip_norm`; "adaptive" starts there and follows a quantile of the gradients' norms, at a
            price that is part of ε.
        clip_quantile: The share of records that an adaptive clip norm should leave as they are.
        clip_rate: How fast it moves.
        clip_count_noise: The noise on the number of records within it; when left out, the larger of a twentieth of the
            expected lot and the noise multiplier.
        augment_multiplicity: Copies of each record in a step, each augmented on its own; their mean gradient is
            clipped.
    """

    clip: Literal["fixed", "adaptive"] = "fixed"
    clip_quantile: Annotated[float, Field(gt=0, lt=1)] = 0.5
    clip_rate: Positive = 0.2
    clip_count_noise: Positive | None = None
    augment_multiplicity: Annotated[int, Field(ge=1, le=1024)] = 1


@dataclass(frozen=True)
class DpSgdFigures:
    """What a training under noise is run with, fixed before any record is read.

    Args:
        steps: k.
        sampling_probability: q, with which every record enters a lot.
        expected_lot: The public constant that a sum of gradients is divided by.
        clip_norm: C; where the clip norm adapts, what it starts at.
        noise_multiplier: z, the noise over the sensitivity of all that a step releases.
        adaptive: How the clip norm adapts; None where it is fixed.
        records_per_person: The most records of a person in a lot; None where records are protected.
        expected_rows: The expected number of records in a lot of people.
    """

    steps: int
    sampling_probability: float
    expected_lot: float
    clip_norm: float
    noise_multiplier: float
    adaptive: QuantileBound | None = None
    records_per_person: int | None = None
    expected_rows: float | None = None

    @property
    def gradient_noise_multiplier(self) -> float:
        """The noise on the sum of gradients over C: more than z where a noisy count shares the budget of the step."""
        return self.adaptive.gradient_noise(self.noise_multiplier) if self.adaptive else self.noise_multiplier

    @property
    def noise_on_mean_gradient(self) -> float:
        """The standard deviation on a coordinate of the mean gradient."""
        return self.gradient_noise_multiplier * self.clip_norm / self.expected_lot

    @property
    def details(self) -> Details:
        """For the card."""
        common: dict[str, str | int | float] = {
            "steps": self.steps,
            "sampling_probability": self.sampling_probability,
            "expected_lot_size": self.expected_lot,
            "clip_norm": self.clip_norm,
            "noise_multiplier": self.noise_multiplier,
            "noise_on_mean_gradient": self.noise_on_mean_gradient,
        }
        if self.records_per_person is not None:
            common["records_per_person"] = self.records_per_person
        if self.adaptive is None:
            return common
        return {
            **common,
            "clip": f"adaptive, from clip_norm towards the {self.adaptive.quantile:g} quantile of the norms",
            "clip_count_noise": self.adaptive.count_noise,
            "noise_multiplier_of_gradients": self.gradient_noise_multiplier,
        }


class NoisyTraining(Channel[DpSgdFigures]):
    """Training on Poisson lots with noisy gradients; unless a method says otherwise, planned and proven as DP-SGD.

    A method says where its gradients come from (`source`) and what the card should say about them (`extras`,
    `measured`). Lots, training loop and events are the same for all.
    """

    status: ClassVar[Status] = "proven"
    settings: NoisyTrainingSettings

    def __init__(self, config: ReleaseConfig, facts: Facts) -> None:
        super().__init__(config, facts)
        self.settings = self.parse_settings()
        self.records = facts.expected("private", config.split)
        self.sampling_probability = min(1.0, self.settings.lot_size / self.records)
        self.expected_lot = self.sampling_probability * self.records
        named_net = default_name(facts.shape, facts.vocabulary) if config.net == "auto" else config.net
        self.net_name = with_tokens(named_net, facts.vocabulary)
        require_for_texts(config.net, facts)
        if self.settings.augment != "none" and len(facts.shape) != 3:
            raise ConfigError(
                'images for settings.augment other than "none"',
                f"records of shape {facts.shape}",
                do='Set augment = "none".',
            )

    @abstractmethod
    def parse_settings(self) -> NoisyTrainingSettings:
        """The user's settings over the defaults for this data."""

    @abstractmethod
    def source(
        self, net: nn.Module, split: Split, data: Resident, figures: DpSgdFigures, randomness: Randomness
    ) -> Gradients:
        """Where the gradients of this release come from; `net` is not trained yet, `data` are the private records."""

    @abstractmethod
    def executed_step(self, sampler: Poisson, gradients: Gradients) -> dpa.DpEvent:
        """What one step cost, from the sampler and the noise that were used."""

    def augmentation(self) -> Augment | None:
        """How a record is changed before its gradient is taken."""
        return named(self.settings.augment)

    def extras(self) -> Details:
        """Public details of this method in addition to the common ones; touches no record."""
        return {}

    def measured(self, gradients: Gradients) -> Details:
        """Details for the card that are only known after training: they follow from public records, or are paid for."""
        return {}

    def unpaid(self, gradients: Gradients) -> Details:
        """Figures that follow from private records and that nothing pays for; they stay inside."""
        return {}

    def kept(self, gradients: Gradients) -> Secrets:
        """Arrays for the vault."""
        return {}

    def figures(self) -> DpSgdFigures:
        """What the training will be run with, at the noise that (ε, δ) requires; touches no record."""
        return DpSgdFigures(
            self.settings.steps,
            self.sampling_probability,
            self.expected_lot,
            self.settings.clip_norm,
            self.noise_multiplier(),
            records_per_person=self.facts.most,
            expected_rows=self.facts.rows(self.expected_lot),
        )

    def resident(self, records: Records, device: torch.device) -> Resident:
        """Private records from which lots are drawn: of people, where these are protected."""
        return Resident(records, device, self.facts.most)

    def plan(self) -> Plan[DpSgdFigures]:
        """Fix the noise for (ε, δ) and check the network; touches no record."""
        net, figures = self.net(), self.figures()
        details: Details = {
            "net": self.public_net_name,
            **self.origin,
            "trainable_parameters": sum(p.numel() for p in net.parameters() if p.requires_grad),
            **figures.details,
            **self.weighing,
            **self.extras(),
        }
        noise = figures.noise_multiplier
        schedule = self.schedule(self.step_event(noise), figures.steps, self.beside(noise))
        promise = self.guarantee(schedule.events())
        return Plan(self.channel, self.method, self.leaves, promise, details, schedule, figures)

    def execute(self, plan: Plan[DpSgdFigures], split: Split, randomness: Randomness, run: Run) -> Executed:
        """Train under noise, measure on the test records, and account for exactly what was executed."""
        net = self.net()
        gradients, executed = self.train(net, split, plan.figures, randomness, run)
        return Executed(
            artefact=NetworkArtefact.leaving(merged(net), self.public_net_name, self.facts),
            events=executed,
            utility=self.outcomes(net, split.test),
            details={**plan.details, **self.measured(gradients)},
            secrets=self.kept(gradients),
            inside=self.unpaid(gradients),
        )

    def outcomes(self, net: nn.Module, test: Records) -> Outcomes:
        """What became of the test records; of a language model also how well it did before it was trained."""
        if self.facts.task != "language":
            return outcomes_of(net, test, self.facts.task)
        before = self.untrained().to(next(net.parameters()).device)
        return losses_of(net, before, test, self.facts.vocabulary or 0)

    def disclosing(self, split: Split, run: Run) -> Disclosing:
        """Trains one network, which is reset to its initial weights each time."""
        figures, net = self.planned.figures, self.net().to(run.device)
        start = copy.deepcopy(net.state_dict())

        def once(randomness: Randomness) -> Disclosed:
            net.load_state_dict(start)
            _, executed = self.train(net, split, figures, randomness, run)
            return Disclosed(_moved(net, start), executed)

        return once

    def train(
        self,
        net: nn.Module,
        split: Split,
        figures: DpSgdFigures,
        randomness: Randomness,
        run: Run,
        label: str = "training",
        recipe: NoisyTrainingSettings | None = None,
    ) -> tuple[Gradients, dpa.DpEvent]:
        """Train `net` in place; returns where its gradients came from, and what was executed.

        `recipe` replaces the settings; it may depend on public figures and records only.
        """
        recipe, finish = self.around(net, split, figures, randomness, run, recipe or self.settings)
        data = self.resident(split.private, run.device)
        gradients, sampler = self.parts(net, split, data, figures, randomness, run)
        steps = fit(
            net, data, sampler, gradients, recipe, randomness.seed, run, self.augmentation(), label,
            secret=randomness.privacy.child("records"),
        )  # fmt: skip
        return gradients, self.whole(self.executed_step(sampler, gradients), steps, finish())

    def around(
        self,
        net: nn.Module,
        split: Split,
        figures: DpSgdFigures,
        randomness: Randomness,
        run: Run,
        recipe: NoisyTrainingSettings,
    ) -> tuple[NoisyTrainingSettings, Callable[[], dpa.DpEvent | None]]:
        """What is done to `net` before the steps: the recipe, and what is done after them, which says what both cost.

        What they cost is what `beside` has planned.
        """
        return recipe, lambda: None

    def parts(
        self, net: nn.Module, split: Split, data: Resident, figures: DpSgdFigures, randomness: Randomness, run: Run
    ) -> tuple[Gradients, Poisson]:
        """Where the gradients come from, and what draws the lots."""
        gradients = self.source(net, split, data, figures, randomness)
        return gradients, Poisson(figures.sampling_probability, run.group.share(randomness.privacy.child("sampling")))

    @cached_property
    def public_net_name(self) -> str:
        """What the card calls the network."""
        return public_name(self.net_name)

    @cached_property
    def origin(self) -> Details:
        """For the card: the digest of the files that the network came from, where it came from some."""
        return {"base_sha256": hugging_face.digest(self.net_name)} if hugging_face.is_named(self.net_name) else {}

    @property
    def brought(self) -> bool:
        """Whether the network comes with weights, and not from the seed."""
        return is_brought(self.net_name)

    def untrained(self) -> nn.Module:
        """The network as training finds it, from the public seed."""
        return self.fresh(self.config.seed)

    def fresh(self, seed: int) -> nn.Module:
        """What training would find if this were the public seed; with the same base, if the network comes with one."""
        return declare(create(self.net_name, self.facts.shape, self.facts.outputs, seed), self.facts.vocabulary)

    def net(self) -> nn.Module:
        """A freshly initialised network; the seed is public and the check touches no record."""
        return checked(self.untrained(), self.net_name, self.facts)

    def noise_multiplier(self) -> float:
        """The least noise, over the sensitivity, that keeps the whole release within (ε, δ)."""
        return self._calibrated

    @cached_property
    def _calibrated(self) -> float:
        """Computed once: it takes seconds, and follows from the config and public facts, which do not change."""
        return calibrate(
            lambda noise: self.whole(self.step_event(noise), self.settings.steps, self.beside(noise)),
            self.config.epsilon,
            self.config.delta,
            accountant=self.config.accountant,
        )

    def step_event(self, noise_multiplier: float) -> dpa.DpEvent:
        """What one step is planned to cost."""
        noise = GaussianNoise(self.settings.clip_norm, noise_multiplier)
        return sampled(self.sampling_probability, noise.event)

    def whole(self, step: dpa.DpEvent, steps: int, beside: dpa.DpEvent | None = None) -> dpa.DpEvent:
        """All steps of all runs: when one result is picked among several, every run is paid for."""
        return self.schedule(step, steps, beside).events()

    def schedule(self, step: dpa.DpEvent, steps: int, beside: dpa.DpEvent | None = None) -> BudgetSchedule:
        """The same, step by step; `beside` is what else a run costs."""
        return training_schedule(step, steps, self.sampling_probability, self.config.tuning_runs, beside)

    def beside(self, noise_multiplier: float) -> dpa.DpEvent | None:
        """What a run is planned to cost beside its steps, if anything, when these have this noise."""
        return None

    def guarantee(self, events: dpa.DpEvent) -> Guarantee:
        """The promise that these events support."""
        return self.promise(events, self.assumptions())

    def assumptions(self) -> tuple[str, ...]:
        """The sentences that a reviewer ticks."""
        return (*ASSUMPTIONS, *([BROUGHT] if self.brought else []))


def is_brought(name: str) -> bool:
    """Whether a network of this name comes with weights, and not from the seed."""
    return name == MEMORY or (hugging_face.is_named(name) and hugging_face.has_weights(name))


def require_for_texts(name: str, facts: Facts, key: str = "net") -> None:
    """Refuse a built-in network where records are texts, unless it is for texts.

    Raises:
        ConfigError: It takes numbers or images.
    """
    if facts.vocabulary is not None and name in names():
        raise ConfigError(
            f"a network for texts as `{key}`",
            f"'{name}'",
            "Most built-in networks take numbers or images, and the numbers of a text are names of tokens.",
            f"Leave `{key}` out, or name a folder of transformers or your own as package.module:function.",
        )


def checked(net: nn.Module, name: str, facts: Facts) -> nn.Module:
    """The network, if it can be trained on such records; touches none.

    Raises:
        NetError: It cannot be trained per sample, or it belongs to another tokenizer.
    """
    vocabulary, known = facts.vocabulary, vocabulary_of(net) or 0
    exactly = name == TRANSFORMERS + MINILM  # others may have rows to spare
    if vocabulary is not None and (known < vocabulary or (exactly and known != vocabulary)):
        raise NetError(
            f"a net for a tokenizer of {vocabulary - 1:,} tokens",
            f"one for {known - 1:,}",
            "It would take some tokens for others.",
            "Give data.tokenizer the one that belongs to the net.",
        )
    check(copy.deepcopy(net), public_name(name), facts.shape, facts.outputs)
    return net


def _moved(net: nn.Module, start: Mapping[str, Tensor]) -> Arrays:
    """The weights, of frozen ones only how far each tensor has moved: nowhere, unless there is a fault."""
    frozen = {name: p for name, p in net.named_parameters() if not p.requires_grad}
    found = dict(weights_of(net, leave_out=frozen.keys()))
    for name, parameter in frozen.items():
        found[name] = (parameter.detach() - start[name].to(parameter)).abs().sum().double().cpu().numpy().reshape(1)
    return found


def training_schedule(
    step: dpa.DpEvent, steps: int, sampling_probability: float, runs: int, before: dpa.DpEvent | None = None
) -> BudgetSchedule:
    """How the cost of a training builds up: in epochs on Poisson lots, in steps if each of them takes all records."""
    if sampling_probability >= 1:
        return BudgetSchedule(step, steps, before, runs)
    return BudgetSchedule(step, steps, before, runs, "epochs", sampling_probability)


class DpSgd(NoisyTraining):
    """DP-SGD; status proven, unit record or person, relation add-remove."""

    units: ClassVar[frozenset[str]] = frozenset({"record", "person"})
    weighs_classes: ClassVar[bool] = True
    settings: DpSgdSettings

    def __init__(self, config: ReleaseConfig, facts: Facts) -> None:
        super().__init__(config, facts)
        unused = [name for name in _ONLY_ADAPTIVE if name in self.settings.model_fields_set]
        if unused and self.settings.clip == "fixed":
            raise ConfigError(
                f'settings.clip = "adaptive" together with settings.{unused[0]}',
                '"fixed"',
                "A fixed clip norm makes no use of it.",
                f'Set clip = "adaptive", or leave {unused[0]} out.',
            )

    @abstractmethod
    def parse_settings(self) -> DpSgdSettings:
        """The user's settings over the defaults for this data."""

    def figures(self) -> DpSgdFigures:
        """Those of any training under noise, and how the clip norm adapts; touches no record."""
        figures = super().figures()
        return replace(figures, adaptive=self.adaptive(figures.noise_multiplier))

    def plan(self) -> Plan[DpSgdFigures]:
        """As for any training under noise, with the copies of records; touches no record."""
        self._check_copies()
        plan, copies = super().plan(), self.settings.augment_multiplicity
        return replace(plan, details={**plan.details, "augment_multiplicity": copies}) if copies > 1 else plan

    def adaptive(self, noise_multiplier: float) -> QuantileBound | None:
        """How the clip norm adapts, where it does; every number of it is public."""
        settings = self.settings
        if settings.clip == "fixed":
            return None
        count_noise = settings.clip_count_noise or max(self.expected_lot / 20, noise_multiplier)
        return QuantileBound(settings.clip_quantile, settings.clip_rate, count_noise)

    def source(
        self, net: nn.Module, split: Split, data: Resident, figures: DpSgdFigures, randomness: Randomness
    ) -> Gradients:
        """Clipped per-record gradients with noise of the planned size."""
        return PrivateGradients(
            self.clip(net, split, data),
            figures.noise_multiplier,
            figures.expected_lot,
            randomness.privacy.child("gradients"),
            figures.adaptive,
            sampled=figures.sampling_probability < 1,
            records_per_person=figures.records_per_person,
            expected_rows=figures.expected_rows,
            class_weights=self.class_weights,
            loss=loss_for(self.facts),
        )

    def clip(self, net: nn.Module, split: Split, data: Resident) -> Clip:
        """How one record's gradient is bounded: in the plain norm."""
        return Clip(self.settings.clip_norm)

    def measured(self, gradients: Gradients) -> Details:
        """Where an adaptive clip norm ended: it follows from noisy counts that are paid for."""
        source = cast(PrivateGradients, gradients)
        moved = source.clip.norm / source.start
        return {"final_clip_norm": float(f"{self.settings.clip_norm * moved:.4g}")} if source.moving else {}

    def augmentation(self) -> Augment | None:
        """Every copy of a record is changed on its own."""
        return named(self.settings.augment, self.settings.augment_multiplicity)

    def executed_step(self, sampler: Poisson, gradients: Gradients) -> dpa.DpEvent:
        """What one step cost: the noise that was added, on a lot of the sampler that drew it."""
        return sampler.event(cast(PrivateGradients, gradients).event)

    def _check_copies(self) -> None:
        """Identical copies have identical gradients: several of them would only cost time."""
        copies = self.settings.augment_multiplicity
        if copies > 1 and self.settings.augment == "none" and not _is_random(self.net(), self.facts.shape):
            raise ConfigError(
                f"copies that differ for settings.augment_multiplicity = {copies}",
                'augment = "none" and a network without dropout',
                "Identical copies have identical gradients, so their mean is that of one copy at many times the work.",
                'Set augment ("shift", "flip", "shift+flip"), or augment_multiplicity = 1.',
            )


def _is_random(net: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether the network answers at random in training mode, as with dropout; tried on made-up records."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        seed_torch(0)
        x = drawn(net, 8, shape, 0)
        net.train()
        return not torch.equal(net(x), net(x))
