"""`answers`/`head`: public features with a private linear head that leaves once and answers any number of queries.

A frozen public front end maps every record on its own to a feature vector φ of norm at most 1, with a constant in it
for the bias. A multinomial logistic head, or a Huber regression, with strong regularisation is solved on all private
records to within a certified distance of its minimiser (`training.convex`), gets Gaussian noise once, and leaves with
its front end as one network (output perturbation: Chaudhuri, Monteleoni and Sarwate 2011). It is the sound counterpart
of noise on every answer: all answers are computed from what left, so they cost nothing.

Proof. One record more or less moves the certified head by at most Δ = s/(λ n0) + 2τ/λ in L2, with s = √2 for classes
and the threshold of Huber's loss for a number, as `training.convex` shows. Noise N(0, (zΔ)²) on every weight is
`GaussianDpEvent(z)`, once; front end, λ, n0 and τ follow from public facts. The same holds for one person more or less:
the loss of a person is the mean over her records, so that she moves the head no further than one record would, and n0
is the public number of people.

Settings, by one rule for all data and every ε: the noise on a logit, zΔ‖φ‖, is `logit_noise`; λ follows. A small λ fits
the records better and makes the noise larger; a large λ shrinks logits and noise alike. The default was chosen on
digits and on the pixels of Fashion-MNIST, where 0.1 to 0.3 differ by a point at ε = 1; where a number is predicted, the
noise is a share of its range, and the default was chosen on made-up tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import ClassVar

import dp_accounting as dpa
import numpy as np
import torch
from torch import Tensor

from airlock.accounting import Claim, calibrate, repeat
from airlock.accounting.terms import Status
from airlock.data import Records, Split
from airlock.mechanisms import GaussianNoise, Randomness, Stream
from airlock.methods.answers.linear_head import (
    CASE_REGULARISATION,
    PAIR,
    PAIR_OF_PEOPLE,
    VISITS,
    CertifiedHead,
    case_config,
    case_facts,
    neighbours,
)
from airlock.methods.case import (
    ACCOUNTED,
    Canaries,
    Case,
    Coins,
    Scores,
    canary_records,
    canary_split,
    facts_of_canaries,
    less_noise,
    people_in_words,
    toward_own_label,
)
from airlock.methods.contract import Disclosed, Disclosing, Executed, NetworkArtefact, Plan, check_executed, weights_of
from airlock.nets.frontend import Framed
from airlock.training import Run, outcomes_of
from airlock.training.convex import ConvexHead

ON_AN_OUTPUT = {"classification": "noise_on_a_logit", "regression": "noise_as_a_share_of_the_range"}


class Head(CertifiedHead):
    """Public features, one private head with noise; status proven, unit record or person, relation add-remove."""

    method: ClassVar[str] = "head"
    title: ClassVar[str] = "a private head on public features, by output noise"
    rank: ClassVar[int] = 20
    status: ClassVar[Status] = "proven"
    units: ClassVar[frozenset[str]] = frozenset({"record", "person"})
    tasks: ClassVar[frozenset[str]] = frozenset({"classification", "regression"})
    texts: ClassVar[bool] = True
    small: ClassVar[Mapping[str, object] | None] = {}
    leaves: ClassVar[str] = (
        "A model whose last layer was fitted to the private records, with random noise on it, on top of a fixed public "
        "part. It answers any number of queries."
    )

    @classmethod
    def case(cls, epsilon: float, delta: float) -> Case:
        """The head with and without one record that moves it almost as far as possible."""
        config = case_config(cls.method, epsilon, delta, {"regularisation": CASE_REGULARISATION})
        return _case_of_head(cls(config, case_facts()))

    @classmethod
    def case_of_people(cls, epsilon: float, delta: float) -> Case:
        """The same with and without one person of many records."""
        config = case_config(cls.method, epsilon, delta, {"regularisation": CASE_REGULARISATION})
        return _case_of_head(cls(config, case_facts(people=True)), VISITS, PAIR_OF_PEOPLE)

    @classmethod
    def canaries(cls, epsilon: float, delta: float, count: int) -> Canaries:
        """A whole release on canaries that each have their own features."""
        return cls._canaries(epsilon, delta, count, people=False)

    @classmethod
    def canaries_of_people(cls, epsilon: float, delta: float, count: int) -> Canaries:
        """The same with people who have several records each."""
        return cls._canaries(epsilon, delta, count, people=True)

    @classmethod
    def _canaries(cls, epsilon: float, delta: float, count: int, people: bool) -> Canaries:
        config = case_config(cls.method, epsilon, delta, {"regularisation": _CANARY_REGULARISATION / count})
        return _canaries_of_head(cls(config, facts_of_canaries(count, _STATED_PER_CANARY * count, people)))

    @cached_property
    def noise_multiplier(self) -> float:
        """The least noise, over the sensitivity, that keeps all runs within (ε, δ)."""
        config = self.config
        return calibrate(self._events, config.epsilon, config.delta, accountant=config.accountant)

    @cached_property
    def head_objective(self) -> ConvexHead:
        """What the head minimises at that noise."""
        return self.objective(self.noise_multiplier)

    def plan(self) -> Plan:
        """Calibrate the noise to (ε, δ) and fix the regularisation; touches no record."""
        net, objective = self.sized(), self.head_objective
        self.check(objective, net.head.in_features)
        noise = self.noise_multiplier * objective.sensitivity()
        return Plan(
            self.channel,
            self.method,
            self.leaves,
            self.promise(self._events(self.noise_multiplier), self.assumptions),
            {
                "net": self.net_name,
                "features": net.centre.mean.numel(),
                "trainable_parameters": net.head.weight.numel(),
                "regularisation": objective.regularisation,
                "largest_gradient": objective.largest_gradient,
                "sensitivity": objective.sensitivity(),
                "noise_multiplier": self.noise_multiplier,
                "noise_on_a_weight": noise,
                ON_AN_OUTPUT[self.facts.task]: noise * objective.bound,
                **self.weighing,
            },
        )

    def execute(self, plan: Plan, split: Split, randomness: Randomness, run: Run) -> Executed:
        """Compute features once, solve the head, add noise once, measure."""
        net = self.ready().to(run.device)
        head = self.solve(net, split.private, self.noise_multiplier, run)
        executed = self.perturb(net, head, self.noise_multiplier, randomness.privacy.child("head"))
        utility = outcomes_of(net, split.test, self.facts.task)  # before it leaves a GPU
        return Executed(NetworkArtefact.leaving(net, self.net_name, self.facts), executed, utility)

    def disclosing(self, split: Split, run: Run) -> Disclosing:
        """The head with noise; it is solved once."""
        net = self.ready().to(run.device)
        head = self.solve(net, split.private, self.noise_multiplier, run)

        def once(randomness: Randomness) -> Disclosed:
            executed = self.perturb(net, head, self.noise_multiplier, randomness.privacy.child("head"))
            return Disclosed(weights_of(net), executed)

        return once

    def perturb(self, net: Framed, head: Tensor, noise_multiplier: float, stream: Stream) -> dpa.DpEvent:
        """Put the head with noise into the network; returns what that cost."""
        noise = GaussianNoise(self.objective(noise_multiplier).sensitivity(), noise_multiplier)
        noisy = noise.add(head.cpu().numpy(), stream)
        with torch.no_grad():
            net.head.weight.copy_(torch.from_numpy(noisy))
        return repeat(noise.event, self.config.tuning_runs)

    def _events(self, noise_multiplier: float) -> dpa.DpEvent:
        """When one result is picked among several runs, every run is paid for."""
        return repeat(GaussianNoise(1.0, noise_multiplier).event, self.config.tuning_runs)


# The case for the court: made-up records, the real solver, the real noise. Both heads are known to the court, so the
# score is the best there is: the projection on their difference.

STATISTICS = ("the projection on the difference of both heads", "the squared size of the head")


def _case_of_head(channel: Head, visits: int | None = None, pair: str = PAIR) -> Case:
    """The real release, solved and with noise; the claim is the ε of the event that was executed."""
    plan, here, noise = channel.plan(), Run(), channel.noise_multiplier
    net = channel.ready()
    sides = dict(zip((True, False), neighbours(visits), strict=True))
    both, others = (channel.solve(net, sides[known], noise, here).numpy() for known in (True, False))
    toward = (both - others) / np.linalg.norm(both - others)

    def run(with_record: bool, count: int, stream: Stream) -> Scores:
        head, scores = channel.solve(net, sides[with_record], noise, here), np.empty((count, 2))
        for i in range(count):
            executed = channel.perturb(net, head, noise, stream.child(i))
            if i == 0:
                check_executed(plan, executed)
            found = net.head.weight.detach().double().numpy() - others
            scores[i] = (found * toward).sum(), (found**2).sum()
        return scores

    reach = float(np.linalg.norm(both - others)) / channel.head_objective.sensitivity()
    return Case.of_proven(plan.guarantee, pair, STATISTICS, run, reach)


# The canaries: a whole release. A canary's features are its own coordinate and the constant, and labels alternate.

_CANARY_REGULARISATION = 0.2  # over the number of canaries: each is then held back only a little, and only by itself
_STATED_PER_CANARY = 100  # records, or people
_CANARIES = "one release on {count:,} canaries{who} each with their own features and each in or out"
_CANARY_SCORE = "the released head on the canary's own features, towards its label"


def _canaries_of_head(channel: Head) -> Canaries:
    count = channel.facts.shape[0]
    every = canary_records(np.eye(count, dtype=np.float32), channel.facts.most)
    promised = channel.plan().guarantee

    def run(coins: Coins, stream: Stream) -> Scores:
        split = canary_split(channel.facts, every, coins)
        net = channel.release(split, Randomness(0, stream), Run()).network.net
        assert isinstance(net, Framed)
        weight = net.head.weight.double().numpy()[:, :count]
        return toward_own_label(weight[0] - weight[1])

    claim = Claim(promised.epsilon, promised.delta, ACCOUNTED)
    family = less_noise(promised.events, claim.delta, _reach_of_canary(channel, every))
    what = _CANARIES.format(count=count, who=people_in_words(channel.facts) or ",")
    return Canaries(claim, count, what, _CANARY_SCORE, run, family)


def _reach_of_canary(channel: Head, every: Records) -> float:
    """How far a canary moves the head along its own features, as a share of what is accounted for."""
    net, place = channel.ready(), np.arange(channel.facts.shape[0])
    half = len(place) // 2
    with_it, without = (
        channel.solve(net, canary_split(channel.facts, every, coins).private, channel.noise_multiplier, Run()).numpy()
        for coins in (place < half, (place < half) & (place > 0))
    )
    return float(np.linalg.norm((with_it - without)[:, 0])) / channel.head_objective.sensitivity()
