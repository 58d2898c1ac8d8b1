"""`weights`/`gaussian`: DP-SGD (Abadi et al. 2016) with Poisson lots, per-record clipping and PLD accounting.

Proof. With every record's gradient clipped to C, adding or removing one record moves the sum by at most C. Noise
N(0, z²C²) on the sum of a Poisson lot is `PoissonSampledDpEvent(q, GaussianDpEvent(z))`; k steps compose; dividing by a
public constant, the optimiser and the averaging of weights are post-processing. The noise is added on a public grid
(`mechanisms.gaussian`), lots and noise come from the secret stream.
"""

from __future__ import annotations

import copy
from typing import ClassVar

import dp_accounting as dpa
from torch import nn

from airlock.accounting import Guarantee, calibrate, repeat
from airlock.accounting.guarantee import Status
from airlock.channels.contract import Artefact, Channel, Plan, Release, Utility, check_executed
from airlock.channels.weights.settings import PrivateTraining, settings_for
from airlock.config import ReleaseConfig
from airlock.data import Facts, Split
from airlock.mechanisms import GaussianNoise, Randomness
from airlock.nets import check, create, default_name
from airlock.training import Poisson, PrivateGradients, Resident, Run, count_correct, fit
from airlock.training.augment import named
from airlock.training.sampling import sampled

ASSUMPTIONS = (
    "One person contributes one record; whoever contributes several is protected less.",
    "The number of records stated on this card is public and was not derived from the private records.",
    "Network, settings and class names were chosen without looking at the private records.",
    "The random choices of lots and noise stay secret and are not used again.",
    "Test and holdout records are not covered: accuracy and attack results are published without noise.",
)


class Gaussian(Channel):
    """DP-SGD; status proven, unit record, relation add-remove."""

    channel: ClassVar[str] = "weights"
    method: ClassVar[str] = "gaussian"
    status: ClassVar[Status] = "proven"
    leaves: ClassVar[str] = (
        "A trained model with all its weights. Each step of its training saw the private records only through "
        "bounded contributions with random noise on top."
    )

    def __init__(self, config: ReleaseConfig, facts: Facts) -> None:
        super().__init__(config, facts)
        self.settings: PrivateTraining = settings_for(config, facts)
        self.records = facts.expected("private", config.split)
        self.sampling_probability = min(1.0, self.settings.lot_size / self.records)
        self.net_name = default_name(facts.shape) if config.net == "auto" else config.net

    def plan(self) -> Plan:
        """Calibrate the noise to (ε, δ) and check the network; touches no record."""
        parameters = sum(p.numel() for p in self._net().parameters() if p.requires_grad)
        noise_multiplier = calibrate(
            self._event, self.config.epsilon, self.config.delta, accountant=self.config.accountant
        )
        details: dict[str, str | int | float] = {
            "net": self.net_name,
            "trainable_parameters": parameters,
            "steps": self.settings.steps,
            "sampling_probability": self.sampling_probability,
            "expected_lot_size": self.sampling_probability * self.records,
            "clip_norm": self.settings.clip_norm,
            "noise_multiplier": noise_multiplier,
            "noise_on_mean_gradient": noise_multiplier
            * self.settings.clip_norm
            / (self.sampling_probability * self.records),
        }
        return Plan(self.channel, self.method, self.leaves, self._guarantee(self._event(noise_multiplier)), details)

    def release(self, split: Split, randomness: Randomness, run: Run) -> Release:
        """Train under noise, measure on the test records, and account for exactly what was executed."""
        plan = self.plan()
        net = self._net()
        sampler = Poisson(self.sampling_probability, randomness.privacy.child("sampling"))
        gradients = PrivateGradients(
            self.settings.clip_norm,
            float(plan.details["noise_multiplier"]),
            self.sampling_probability * self.records,
            randomness.privacy.child("gradients"),
        )
        data = Resident(split.private, run.device)
        steps = fit(net, data, sampler, gradients, self.settings, randomness.seed, run, named(self.settings.augment))
        executed = self._whole(sampler.event(gradients.noise.event), steps)
        check_executed(plan, executed)
        return Release(
            plan=plan,
            artefact=Artefact(_settled(net), self.net_name, self.facts.shape, self.facts.classes),
            guarantee=self._guarantee(executed),
            utility=Utility(count_correct(net, split.test), len(split.test)),
            secure_noise=randomness.privacy.secure,
        )

    def _net(self) -> nn.Module:
        """A freshly initialised network; the seed is public and the check touches no record."""
        shape, classes = self.facts.shape, len(self.facts.classes)
        net = create(self.net_name, shape, classes, self.config.seed)
        check(copy.deepcopy(net), self.net_name, shape, classes)
        return net

    def _event(self, noise_multiplier: float) -> dpa.DpEvent:
        noise = GaussianNoise(self.settings.clip_norm, noise_multiplier)
        return self._whole(sampled(self.sampling_probability, noise.event), self.settings.steps)

    def _whole(self, step: dpa.DpEvent, steps: int) -> dpa.DpEvent:
        """All steps of all runs: when one result is picked among several, every run is paid for."""
        return repeat(repeat(step, steps), self.config.tuning_runs)

    def _guarantee(self, events: dpa.DpEvent) -> Guarantee:
        return Guarantee(
            unit="record",
            relation="add-remove",
            events=events,
            delta=self.config.delta,
            status=self.status,
            assumptions=ASSUMPTIONS,
            accountant=self.config.accountant,
        )


def _settled(net: nn.Module) -> nn.Module:
    return net.cpu().eval().requires_grad_(False)
