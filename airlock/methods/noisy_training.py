"""What methods that train under noise share: Poisson lots, noisy gradients, accounting for what was executed.

In: a config and the public facts; later the split and the randomness. Out: a plan, and a release with it. A method says
where its gradients come from (`source`) and what the card should know about them (`extras`, `measured`); lots, loop,
events and the check that the executed events are the planned ones are the same for all.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from functools import cached_property
from typing import ClassVar

import dp_accounting as dpa
from torch import nn

from airlock.accounting import BudgetSchedule, Guarantee, calibrate
from airlock.accounting.guarantee import Status
from airlock.config import ReleaseConfig
from airlock.data import Facts, Split
from airlock.errors import ConfigError
from airlock.mechanisms import GaussianNoise, Randomness
from airlock.methods.contract import (
    NOTHING_ELSE_LEAVES,
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
from airlock.methods.noisy_settings import PrivateTraining
from airlock.nets import check, create, default_name
from airlock.training import Poisson, Resident, Run, fit, outcomes_of
from airlock.training.augment import named
from airlock.training.gradients import Gradients
from airlock.training.loop import Augment
from airlock.training.sampling import sampled

ASSUMPTIONS = (
    "One person contributes one record; whoever contributes several is protected less.",
    "The number of records stated on this card is public and was not derived from the private records.",
    "Network, settings and class names were chosen without looking at the private records.",
    "The random choices of lots, augmentation, dropout and noise stay secret and are not used again.",
    NOTHING_ELSE_LEAVES,
)


class NoisyTraining(Channel):
    """Training on Poisson lots with noisy gradients; the base is DP-SGD's plan: proven, unit record, add-remove."""

    status: ClassVar[Status] = "proven"
    settings: PrivateTraining

    def __init__(self, config: ReleaseConfig, facts: Facts) -> None:
        super().__init__(config, facts)
        self.settings = self.parse_settings()
        self.records = facts.expected("private", config.split)
        self.sampling_probability = min(1.0, self.settings.lot_size / self.records)
        self.expected_lot = self.sampling_probability * self.records
        self.net_name = default_name(facts.shape) if config.net == "auto" else config.net
        if self.settings.augment != "none" and len(facts.shape) != 3:
            raise ConfigError(
                'images for settings.augment other than "none"',
                f"records of shape {facts.shape}",
                do='Set augment = "none".',
            )

    @abstractmethod
    def parse_settings(self) -> PrivateTraining:
        """The user's settings over the defaults for this data."""

    @abstractmethod
    def source(self, net: nn.Module, split: Split, data: Resident, plan: Plan, randomness: Randomness) -> Gradients:
        """Where the gradients of this release come from; `net` is not trained yet, `data` are the private records."""

    def augmentation(self) -> Augment | None:
        """What becomes of a record before its gradient is taken."""
        return named(self.settings.augment)

    def extras(self) -> Details:
        """Public figures of this method beside the common ones; touches no record."""
        return {}

    def measured(self, gradients: Gradients) -> Details:
        """Figures for the card that are only known after training: of public records, or paid for."""
        return {}

    def unpaid(self, gradients: Gradients) -> Details:
        """Figures that follow from private records and that nothing pays for; they stay inside."""
        return {}

    def kept(self, gradients: Gradients) -> Secrets:
        """Arrays for the vault."""
        return {}

    def plan(self) -> Plan:
        """Fix the noise for (ε, δ) and check the network; touches no record."""
        net = self.net()
        noise_multiplier = self.noise_multiplier()
        details: dict[str, str | int | float] = {
            "net": self.net_name,
            "trainable_parameters": sum(p.numel() for p in net.parameters() if p.requires_grad),
            "steps": self.settings.steps,
            "sampling_probability": self.sampling_probability,
            "expected_lot_size": self.expected_lot,
            "clip_norm": self.settings.clip_norm,
            "noise_multiplier": noise_multiplier,
            "noise_on_mean_gradient": noise_multiplier * self.settings.clip_norm / self.expected_lot,
            **self.extras(),
        }
        schedule = self.schedule(self.step_event(noise_multiplier), self.settings.steps)
        return Plan(self.channel, self.method, self.leaves, self.guarantee(schedule.events()), details, schedule)

    def execute(self, plan: Plan, split: Split, randomness: Randomness, run: Run) -> Executed:
        """Train under noise, measure on the test records, and account for exactly what was executed."""
        net = self.net()
        gradients, executed = self.train(net, split, plan, randomness, run)
        return Executed(
            artefact=NetworkArtefact.leaving(net, self.net_name, self.facts),
            events=executed,
            utility=outcomes_of(net, split.test),
            details={**plan.details, **self.measured(gradients)},
            secrets=self.kept(gradients),
            inside=self.unpaid(gradients),
        )

    def disclosing(self, split: Split, run: Run) -> Disclosing:
        """Training of one network, put back to its start each time."""
        plan, net = self.plan(), self.net().to(run.device)
        start = copy.deepcopy(net.state_dict())

        def once(randomness: Randomness) -> Disclosed:
            net.load_state_dict(start)
            _, executed = self.train(net, split, plan, randomness, run)
            return Disclosed(weights_of(net), executed)

        return once

    def train(
        self,
        net: nn.Module,
        split: Split,
        plan: Plan,
        randomness: Randomness,
        run: Run,
        label: str = "training",
        recipe: PrivateTraining | None = None,
    ) -> tuple[Gradients, dpa.DpEvent]:
        """Train `net` in place; gives where its gradients came from, and what was executed, which was planned.

        `recipe` takes the place of the settings; it may follow from public figures and records.
        """
        data = Resident(split.private, run.device)
        gradients, sampler = self.parts(net, split, data, plan, randomness, run)
        steps = fit(
            net, data, sampler, gradients, recipe or self.settings, randomness.seed, run, self.augmentation(), label,
            secret=randomness.privacy.child("records"),
        )  # fmt: skip
        return gradients, self.whole(self.executed_step(sampler, gradients), steps)

    def parts(
        self, net: nn.Module, split: Split, data: Resident, plan: Plan, randomness: Randomness, run: Run
    ) -> tuple[Gradients, Poisson]:
        """Where the gradients come from, and who draws the lots."""
        gradients = self.source(net, split, data, plan, randomness)
        return gradients, Poisson(self.sampling_probability, run.group.share(randomness.privacy.child("sampling")))

    def net(self) -> nn.Module:
        """A freshly initialised network; the seed is public and the check touches no record."""
        shape, classes = self.facts.shape, len(self.facts.classes)
        net = create(self.net_name, shape, classes, self.config.seed)
        check(copy.deepcopy(net), self.net_name, shape, classes)
        return net

    def noise_multiplier(self) -> float:
        """The least noise, over the sensitivity, that keeps the whole release within (ε, δ)."""
        return self._calibrated

    @cached_property
    def _calibrated(self) -> float:
        """Found once: it takes seconds, and follows from the config and public facts, which stay."""
        return calibrate(
            lambda noise: self.whole(self.step_event(noise), self.settings.steps),
            self.config.epsilon,
            self.config.delta,
            accountant=self.config.accountant,
        )

    def step_event(self, noise_multiplier: float) -> dpa.DpEvent:
        """What one step is planned to cost."""
        noise = GaussianNoise(self.settings.clip_norm, noise_multiplier)
        return sampled(self.sampling_probability, noise.event)

    @abstractmethod
    def executed_step(self, sampler: Poisson, gradients: Gradients) -> dpa.DpEvent:
        """What one step cost, from the sampler and the noise that were used."""

    def whole(self, step: dpa.DpEvent, steps: int) -> dpa.DpEvent:
        """All steps of all runs: when one result is picked among several, every run is paid for."""
        return self.schedule(step, steps).events()

    def schedule(self, step: dpa.DpEvent, steps: int) -> BudgetSchedule:
        """The same, step by step."""
        return training_course(step, steps, self.sampling_probability, self.config.tuning_runs)

    def guarantee(self, events: dpa.DpEvent) -> Guarantee:
        """The promise that these events support."""
        return self.promise(events, self.assumptions())

    def assumptions(self) -> tuple[str, ...]:
        """The sentences that a reviewer ticks."""
        return ASSUMPTIONS


def training_course(
    step: dpa.DpEvent, steps: int, sampling_probability: float, runs: int, before: dpa.DpEvent | None = None
) -> BudgetSchedule:
    """Steps on Poisson lots count in epochs; steps on all records by themselves."""
    if sampling_probability >= 1:
        return BudgetSchedule(step, steps, before, runs)
    return BudgetSchedule(step, steps, before, runs, "epochs", sampling_probability)
