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
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import ClassVar

import dp_accounting as dpa
import torch
from torch import Tensor

from airlock.accounting import calibrate, repeat
from airlock.accounting.guarantee import Status
from airlock.data import Split
from airlock.mechanisms import GaussianNoise, Randomness, Stream
from airlock.methods.answers import case
from airlock.methods.answers.fitted import Fitted
from airlock.methods.case import Canaries, Case
from airlock.methods.contract import (  # fmt: skip
    Disclosed,
    Disclosing,
    Executed,
    NetworkArtefact,
    Plan,
    weights_of,
)
from airlock.nets.frontend import Framed
from airlock.training import Run, outcomes_of


class Head(Fitted):
    """Public features, one private head with noise; status proven, unit record, relation add-remove."""

    channel: ClassVar[str] = "answers"
    method: ClassVar[str] = "head"
    title: ClassVar[str] = "a private head on public features, by output noise"
    rank: ClassVar[int] = 20
    status: ClassVar[Status] = "proven"
    small: ClassVar[Mapping[str, object] | None] = {}
    leaves: ClassVar[str] = (
        "A model whose last layer was fitted to the private records, with random noise on it, on top of a fixed public "
        "part. It answers any number of queries."
    )

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
        noise_multiplier = self._calibrated
        objective = self.objective(noise_multiplier)
        self.check(objective, net.head.in_features)
        noise = noise_multiplier * objective.sensitivity()
        return Plan(
            self.channel,
            self.method,
            self.leaves,
            self.promise(self._events(noise_multiplier), self.assumptions),
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

    def execute(self, plan: Plan, split: Split, randomness: Randomness, run: Run) -> Executed:
        """Compute features once, solve the head, add noise once, measure."""
        noise_multiplier = self._calibrated
        net = self.ready().to(run.device)
        head = self.solve(net, split.private, noise_multiplier, run)
        executed = self.perturb(net, head, noise_multiplier, randomness.privacy.child("head"))
        utility = outcomes_of(net, split.test)  # before it leaves a GPU
        return Executed(NetworkArtefact.leaving(net, self.net_name, self.facts), executed, utility)

    @cached_property
    def _calibrated(self) -> float:
        """The least noise, over the sensitivity, that keeps all runs within (ε, δ)."""
        config = self.config
        return calibrate(self._events, config.epsilon, config.delta, accountant=config.accountant)

    def disclosing(self, split: Split, run: Run) -> Disclosing:
        """The head with noise; it is solved once."""
        net, noise_multiplier = self.ready().to(run.device), self._calibrated
        head = self.solve(net, split.private, noise_multiplier, run)

        def once(randomness: Randomness) -> Disclosed:
            executed = self.perturb(net, head, noise_multiplier, randomness.privacy.child("head"))
            return Disclosed(weights_of(net), executed)

        return once

    def perturb(self, net: Framed, head: Tensor, noise_multiplier: float, stream: Stream) -> dpa.DpEvent:
        """Put the head with noise into the network; what that cost."""
        noise = GaussianNoise(self.objective(noise_multiplier).sensitivity(), noise_multiplier)
        noisy = noise.add(head.cpu().numpy(), stream)
        with torch.no_grad():
            net.head.weight.copy_(torch.from_numpy(noisy))
        return repeat(noise.event, self.config.tuning_runs)

    def _events(self, noise_multiplier: float) -> dpa.DpEvent:
        """When one result is picked among several runs, every run is paid for."""
        return repeat(GaussianNoise(1.0, noise_multiplier).event, self.config.tuning_runs)
