"""`answers`/`per-query`: a private head stays in the vault and answers a number of queries that is fixed in advance.

The head is that of `head`, certified and without noise; it never leaves. Every answer has noise of its own (`noisy`,
which has the proof), all Q of them together cost (ε, δ), and then it is over. What leaves is the right to ask.

One head with noise once is never noisier from the second query on (`planner`): this method is for the case that no
model may leave, whatever its noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from airlock.accounting import BudgetSchedule, repeat
from airlock.accounting.guarantee import Status
from airlock.config import ReleaseConfig
from airlock.data import Facts, Split
from airlock.mechanisms import Randomness
from airlock.methods.answers import answers_case
from airlock.methods.answers.answerer import FRONT, HEAD, INSIDE, front_arrays
from airlock.methods.answers.fitted import ASSUMPTIONS, Fitted, FittedFrontSettings, HeadSettings
from airlock.methods.answers.noisy import Noise, Noisy, least_noise
from airlock.methods.answers.planner import advise
from airlock.methods.case import Case
from airlock.methods.contract import ArtefactKind, Executed, Plan, Secrets
from airlock.methods.interface import BY_ANSWERER, ONE_ANSWER, Answerer, Interface, ask_all
from airlock.nets.frontend import Framed
from airlock.training import Run
from airlock.training.convex import LogisticHead


class PerQuerySettings(HeadSettings):
    """How the head is solved and what may be asked.

    Args:
        queries: Q, the number of all answers.
        gives: What an answer is: all logits, or the label alone, which can have less noise.
    """

    queries: Annotated[int, Field(ge=1, le=10**7)] = 1000
    gives: Literal["logits", "label"] = "logits"


class PerQuery(Fitted):
    """Q answers with noise; status proven, unit record, relation add-remove."""

    channel: ClassVar[str] = "answers"
    method: ClassVar[str] = "per-query"
    title: ClassVar[str] = "answers with noise on each"
    rank: ClassVar[int] = 90
    artefact: ClassVar[ArtefactKind] = "interface"
    status: ClassVar[Status] = "proven"
    small: ClassVar[Mapping[str, object] | None] = {"queries": 12}
    leaves: ClassVar[str] = (
        "Answers to a limited number of questions, each with random noise. The model that answers stays inside."
    )
    settings_type: ClassVar[type[FittedFrontSettings]] = PerQuerySettings
    assumptions: ClassVar[tuple[str, ...]] = (*ASSUMPTIONS, *INSIDE)

    def __init__(self, config: ReleaseConfig, facts: Facts) -> None:
        super().__init__(config, facts)
        assert isinstance(self.settings, PerQuerySettings)
        self.queries, self.gives = self.settings.queries, self.settings.gives

    @classmethod
    def case(cls, epsilon: float, delta: float) -> Case:
        """All answers about a record that moves the head almost as far as can be."""
        return answers_case.of_answers(cls, epsilon, delta)

    @classmethod
    def answerer(cls, interface: Interface, kept: Secrets) -> Answerer:
        """Whoever answers, from the interface's figures and the vault's head."""
        return Noisy(interface, kept)

    def plan(self) -> Plan:
        """Calibrate the noise of Q answers to (ε, δ) and fix the regularisation; touches no record."""
        net, noise = self.sized(), self.noise()
        objective = self.objective(noise.multiplier)
        self.check(objective, net.head.in_features)
        interface = self.interface(net, noise)
        advice = advise(
            self.queries,
            noise.multiplier,
            float(interface.figures["sensitivity"]),
            self.records,
            self.config.epsilon,
            self.config.delta,
        )
        schedule = BudgetSchedule(noise.event, self.queries, runs=self.config.tuning_runs, unit="queries")
        return Plan(
            self.channel,
            self.method,
            self.leaves,
            self.promise(schedule.events(), self.assumptions),
            {
                "net": self.net_name,
                "features": net.centre.mean.numel(),
                "queries": self.queries,
                "gives": self.gives,
                "mechanism": noise.way,
                "regularisation": objective.regularisation,
                "largest_gradient": objective.largest_gradient,
                "sensitivity": interface.figures["sensitivity"],
                "noise_multiplier": noise.multiplier,
                "noise_on_a_logit": advice.comparison.per_query_noise,
                "noise_of_one_head": advice.comparison.head_noise,
                "advice": advice.says,
            },
            schedule,
        )

    def execute(self, plan: Plan, split: Split, randomness: Randomness, run: Run) -> Executed:
        """Compute features once, solve the head, put it away, and ask about the test records."""
        noise = self.noise()
        net = self.ready().to(run.device)
        interface = self.interface(net, noise)
        kept = self.kept(net, split, noise, run)
        desk = Noisy(interface, kept)
        executed = repeat(repeat(desk.event, self.queries), self.config.tuning_runs)
        utility = ask_all(desk, split.test, randomness.privacy.child("utility"))
        return Executed(interface, executed, utility, noise_made_on=BY_ANSWERER, secrets=kept)

    def kept(self, net: Framed, split: Split, noise: Noise, run: Run) -> Secrets:
        """What stays in the vault: the head of these records, no longer than it may be, and the front end."""
        head = self.solve(net, split.private, noise.multiplier, run)
        objective = self.objective(noise.multiplier)
        head = objective.projected(head, self.radius(objective))
        return {HEAD: {"weight": np.ascontiguousarray(head.cpu().numpy())}, FRONT: front_arrays(net)}

    def interface(self, net: Framed, noise: Noise) -> Interface:
        """What may be asked, and the figures that whoever answers needs."""
        objective, classes = self.objective(noise.multiplier), len(self.facts.classes)
        moved = objective.sensitivity() * objective.bound
        error = objective.logit_error(net.head.in_features, self.radius(objective))
        figures: dict[str, str | int | float] = {
            "net": self.net_name,
            "way": noise.way,
            "noise_multiplier": noise.multiplier,
            "sensitivity": moved + 2 * math.sqrt(classes) * error,
            "spread": math.sqrt(2) * moved * (1 + 2**-40) + 4 * error,
        }
        return Interface(self.gives, self.facts.shape, self.facts.classes, self.queries, ONE_ANSWER, figures)

    def radius(self, objective: LogisticHead) -> float:
        """No head of twice the stated number of records is longer."""
        return objective.largest_norm(2 * self.records)

    def noise(self) -> Noise:
        """The least there is for Q answers at this cost; when one of several runs is picked, all are paid for."""
        config = self.config
        return least_noise(
            self.gives == "label", self.queries, config.tuning_runs, config.epsilon, config.delta, config.accountant
        )
