"""`answers`/`head`: public features with a private linear head that leaves once and answers any number of queries.

A frozen public front end turns every record, by itself, into a feature vector φ of norm at most 1, a constant for the
bias inside. A multinomial logistic head with strong regularisation is solved on all private records to a certified
distance of its minimiser (`training.convex`), gets Gaussian noise once, and leaves with its front end as one network
(output perturbation: Chaudhuri, Monteleoni and Sarwate 2011). It is the sound counterpart of noise on every answer: all
answers are computed from what left, so they cost nothing.

Proof. One record more or less moves the certified head by at most Δ = √2/(λ n0) + 2τ/λ in L2, as `training.convex`
shows. Noise N(0, (zΔ)²) on every weight is `GaussianDpEvent(z)`, once; front end, λ, n0 and τ follow from public facts.

Settings, by one rule for all data and every ε: the noise on a logit, zΔ‖φ‖, is `logit_noise`; λ follows. A small λ fits
the records better and makes the noise larger; a large λ shrinks logits and noise alike. The figure was looked up on
digits and on the pixels of Fashion-MNIST, where 0.1 to 0.3 differ by a point at ε = 1.

Features are computed in float64: in a batch another record can change the order in which sums are taken, and with it
their last bits, which are 10^-15 here and add nothing to Δ that could be seen beside the gap.
"""

from __future__ import annotations

import copy
from typing import Annotated, ClassVar, Literal

import dp_accounting as dpa
import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from airlock.accounting import Guarantee, calibrate, repeat
from airlock.accounting.guarantee import Status
from airlock.channels.answers import case
from airlock.channels.case import Canaries, Case
from airlock.channels.contract import Artefact, Channel, Plan, Release, Utility, check_executed, refuse_net
from airlock.config import Frozen, Positive, ReleaseConfig, parse
from airlock.data import Facts, Records, Split
from airlock.errors import ConfigError
from airlock.mechanisms import GaussianNoise, Randomness, Stream
from airlock.nets import build_front
from airlock.nets.frontend import Framed, pretrain
from airlock.nets.scattering import SMALLEST
from airlock.training import Run, count_correct
from airlock.training.convex import LogisticHead, solve
from airlock.training.resident import to_input

ASSUMPTIONS = (
    "One person contributes one record; whoever contributes several is protected less.",
    "The number of records stated on this card is public and was not derived from the private records.",
    "Settings and class names were chosen without looking at the private records.",
    "The noise stays secret and is not used again.",
    "Test and holdout records are not covered: accuracy and attack results are published without noise.",
    "The front end is public: it was neither trained nor chosen on the private records.",
)
_BATCH = 250


class HeadSettings(Frozen):
    """How the head is solved; everything left out follows from public facts.

    Args:
        features: The front end: scattering, pixels, or auto (scattering for images of at least 8 pixels a side).
        logit_noise: The standard deviation of the noise on a logit; sets the regularisation.
        regularisation: λ itself, instead.
        tolerance: How much the solver's distance from the minimiser may add to the sensitivity, as a fraction.
    """

    features: Literal["auto", "scattering", "pixels"] = "auto"
    logit_noise: Positive = 0.2
    regularisation: Positive | None = None
    tolerance: Annotated[float, Field(ge=1e-6, le=1)] = 1e-3


class Head(Channel):
    """Public features, one private head with noise; status proven, unit record, relation add-remove."""

    channel: ClassVar[str] = "answers"
    method: ClassVar[str] = "head"
    status: ClassVar[Status] = "proven"
    leaves: ClassVar[str] = (
        "A model whose last layer was fitted to the private records, with random noise on it, on top of a fixed public "
        "part. It answers any number of queries."
    )

    def __init__(self, config: ReleaseConfig, facts: Facts) -> None:
        super().__init__(config, facts)
        self.settings = parse(HeadSettings, config.settings, where="settings")
        refuse_net(config)
        if self.settings.regularisation is not None and "logit_noise" in self.settings.model_fields_set:
            raise ConfigError(
                "one of settings.logit_noise and settings.regularisation",
                "both",
                "A key that is ignored hides a mistake.",
            )
        self.records = facts.expected("private", config.split)
        picture = len(facts.shape) == 3 and min(facts.shape[1:]) >= SMALLEST
        automatic = "scattering" if picture else "pixels"
        self.features = automatic if self.settings.features == "auto" else self.settings.features
        self.net_name = f"{self.features}-linear"

    @classmethod
    def case(cls, epsilon: float, delta: float) -> Case:
        """The head with and without one record that moves it almost as far as can be."""
        return case.of_head(cls(case.config_for(epsilon, delta), case.FACTS))

    @classmethod
    def canaries(cls, epsilon: float, delta: float, count: int) -> Canaries:
        """A whole release on canaries with features of their own."""
        facts = case.canary_facts(count)
        return case.canaries_of(cls(case.config_for(epsilon, delta, case.CANARY_REGULARISATION / count), facts), count)

    def plan(self) -> Plan:
        """Calibrate the noise to (ε, δ) and fix the regularisation; touches no record."""
        net = self.sized()
        noise_multiplier = calibrate(
            self._events, self.config.epsilon, self.config.delta, accountant=self.config.accountant
        )
        objective = self.objective(noise_multiplier)
        self._check(objective, net.head.in_features)
        noise = noise_multiplier * objective.sensitivity()
        return Plan(
            self.channel,
            self.method,
            self.leaves,
            self._guarantee(self._events(noise_multiplier)),
            {
                "net": self.net_name,
                "features": net.centre.mean.numel(),
                "trainable_parameters": net.head.weight.numel(),
                "regularisation": objective.regularisation,
                "largest_gradient": objective.largest_gradient,
                "sensitivity": objective.sensitivity(),
                "noise_multiplier": noise_multiplier,
                "noise_on_a_weight": noise,
                "noise_on_a_logit": noise * objective.bound,
            },
        )

    def release(self, split: Split, randomness: Randomness, run: Run) -> Release:
        """Compute features once, solve the head, add noise once, measure."""
        plan = self.plan()
        noise_multiplier = float(plan.details["noise_multiplier"])
        net = self.ready().to(run.device)
        head = self.solve(net, split.private, noise_multiplier, run)
        executed = self.perturb(net, head, noise_multiplier, randomness.privacy.child("head"))
        check_executed(plan, executed)
        utility = Utility(count_correct(net, split.test), len(split.test))
        return Release(
            plan=plan,
            artefact=Artefact(
                net.cpu().eval().requires_grad_(False), self.net_name, self.facts.shape, self.facts.classes
            ),
            guarantee=self._guarantee(executed),
            utility=utility,
            secure_noise=randomness.privacy.secure,
            noise_made_on=randomness.privacy.drawn_on,
        )

    def objective(self, noise_multiplier: float) -> LogisticHead:
        """What is minimised, by public figures; λ from the noise that a logit may have."""
        fixed, tolerance = self.settings.regularisation, self.settings.tolerance
        per_unit = LogisticHead(len(self.facts.classes), 1.0, self.records, tolerance).sensitivity()
        regularisation = noise_multiplier * per_unit / self.settings.logit_noise if fixed is None else fixed
        return LogisticHead(len(self.facts.classes), regularisation, self.records, tolerance)

    def solve(self, net: Framed, records: Records, noise_multiplier: float, run: Run) -> Tensor:
        """The certified head of these records, without noise; it must not leave."""
        labels = torch.from_numpy(np.ascontiguousarray(records.y)).to(run.device)
        return solve([(_embed(net, records, run), labels)], self.objective(noise_multiplier))[0]

    def perturb(self, net: Framed, head: Tensor, noise_multiplier: float, stream: Stream) -> dpa.DpEvent:
        """Put the head with noise into the network; what that cost."""
        noise = GaussianNoise(self.objective(noise_multiplier).sensitivity(), noise_multiplier)
        noisy = noise.add(head.cpu().numpy(), stream)
        with torch.no_grad():
            net.head.weight.copy_(torch.from_numpy(noisy))
        return repeat(noise.event, self.config.tuning_runs)

    def sized(self) -> Framed:
        """The network before anything public was computed for it."""
        return build_front(self.net_name, self.facts.shape, len(self.facts.classes))

    def ready(self) -> Framed:
        """The network with all public tensors in place; its head is still zero."""
        net = self.sized()
        if self.features == "scattering":
            pretrain(net, self.facts.shape, self.config.seed)
        return net

    def _events(self, noise_multiplier: float) -> dpa.DpEvent:
        """When one result is picked among several runs, every run is paid for."""
        return repeat(GaussianNoise(1.0, noise_multiplier).event, self.config.tuning_runs)

    def _check(self, objective: LogisticHead, width: int) -> None:
        """Refuse figures at which rounding alone could keep a head from being certified, whatever the records are."""
        if objective.largest_gradient < 2 * objective.sharpest(width, 2 * self.records):
            raise ConfigError(
                "a head that float64 can certify whatever the records are",
                f"a regularisation of {objective.regularisation:.2g} at a tolerance of {objective.tolerance:.2g}",
                "A refusal after the records were read would tell something about them.",
                "Raise settings.tolerance, settings.regularisation or lower settings.logit_noise.",
            )

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


def _embed(net: Framed, records: Records, run: Run) -> Tensor:
    """Features with their constant, in float64, in blocks of one size whatever the number of records."""
    body = copy.deepcopy(nn.Sequential(net.front, net.centre)).double().eval().to(run.device)
    found = torch.empty(len(records), net.head.in_features, dtype=torch.float64, device=run.device)
    for start in range(0, len(records), _BATCH):
        part = torch.from_numpy(np.ascontiguousarray(records.x[start : start + _BATCH])).to(run.device)
        block = part.new_zeros(_BATCH, *part.shape[1:])
        block[: len(part)] = part
        with torch.no_grad():
            found[start : start + len(part)] = body(to_input(block).double())[: len(part)]
        if run.progress:
            run.progress("features", start + len(part), len(records))
    return found
