"""`answers`/`poll`: many heads on disjoint records vote on every question, and the counts get noise.

Proof for one question. One record more or less changes at most one vote (`shards`): one count falls by 1 and another
rises by 1, so the counts move by at most √2 in L2. They get discrete Gaussian noise on a public grid (`GridNoise`), z
times that: ρ-zCDP with ρ = 1/(2z²), and the label is the largest of them, which adds nothing. Questions may be chosen
by earlier answers, their number Q is fixed in advance, and Q answers are Q of these events. What the features of a
question are does not matter to this, and no head needs a certificate. (Noisy votes of disjoint teachers: Papernot et
al. 2018, GNMax, here for questions in place of a student.)

Why it beats noise on logits from a hundred answers on: there one record counts for 1/n0 of a head, regularised so that
a logit can bear the noise; here it counts for one vote of K, whatever λ is, and votes of heads that agree grow with K
while the noise does not. With few answers the noise is small and the votes' own errors are what counts: `per-query`.

How many heads, by one rule: 8 times the noise on a count, or as many as leave five records to a head. Tried on MNIST
(pixels, ε = 1, seed 0) with 300, 1,000 and 3,000 heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar

import dp_accounting as dpa
import numpy as np
from pydantic import Field
from torch import Tensor

from airlock.accounting import BudgetSchedule
from airlock.accounting.guarantee import Status
from airlock.config import ReleaseConfig
from airlock.data import Facts, Split
from airlock.errors import ConfigError
from airlock.mechanisms import GridNoise, Randomness, Stream
from airlock.methods.answers import poll_case
from airlock.methods.answers.fitted import FittedFrontSettings
from airlock.methods.answers.noisy import Noise, least_noise
from airlock.methods.answers.shards import FEWEST, Council, Sharded, ShardSettings
from airlock.methods.case import Case
from airlock.methods.contract import ArtefactKind, Executed, Plan, Secrets
from airlock.methods.interface import BY_ANSWERER, ONE_ANSWER, Answerer, Answers, Interface, ask_all
from airlock.training import Run

MOVED = math.sqrt(2)  # how far one record moves the counts
_HEADS_PER_NOISE = 8
_FEWEST_HEADS = 30


class PollSettings(ShardSettings):
    """Who votes and what may be asked.

    Args:
        queries: Q, the number of all answers.
    """

    queries: Annotated[int, Field(ge=1, le=10**7)] = 1000


class Counted(Council):
    """The counts of every question with noise; one unit an answer."""

    def __init__(self, interface: Interface, kept: Secrets) -> None:
        super().__init__(interface, kept)
        multiplier = float(interface.figures["noise_multiplier"])
        self._noise = GridNoise("gaussian", MOVED, multiplier, len(interface.classes))

    @property
    def event(self) -> dpa.DpEvent:
        """Of one answer."""
        return self._noise.event

    def _decide(self, features: Tensor, stream: Stream) -> Answers:
        noisy = self._noise.add_rows(self.counts(features).astype(np.float64), stream)
        return Answers(noisy.argmax(1).astype(np.int64))


class Poll(Sharded):
    """Noisy votes on Q questions; status proven, unit record, relation add-remove."""

    channel: ClassVar[str] = "answers"
    method: ClassVar[str] = "poll"
    title: ClassVar[str] = "labels by noisy votes"
    rank: ClassVar[int] = 80
    artefact: ClassVar[ArtefactKind] = "interface"
    status: ClassVar[Status] = "proven"
    small: ClassVar[Mapping[str, object] | None] = {"queries": 12, "heads": 24}
    leaves: ClassVar[str] = (
        "Answers to a limited number of questions. Many models, each trained on other records, vote on each; the votes "
        "are counted with random noise, and the models stay inside."
    )
    settings_type: ClassVar[type[FittedFrontSettings]] = PollSettings

    def __init__(self, config: ReleaseConfig, facts: Facts) -> None:
        super().__init__(config, facts)
        assert isinstance(self.settings, PollSettings)
        self.asking = self.settings

    @classmethod
    def case(cls, epsilon: float, delta: float) -> Case:
        """All answers to a question on which the votes are as even as they can be."""
        return poll_case.of_poll(cls, epsilon, delta)

    @classmethod
    def answerer(cls, interface: Interface, kept: Secrets) -> Answerer:
        """Whoever answers, from the interface's figures and the vault's heads."""
        return Counted(interface, kept)

    def plan(self) -> Plan:
        """Calibrate the noise of Q answers to (ε, δ) and fix the heads; touches no record."""
        noise, net = self.noise(), self.sized()
        heads = self.heads(noise)
        objective = self.objective(heads)
        self.check(objective, net.head.in_features, 2 * self.records)
        schedule = self.schedule(noise.event)
        return Plan(
            self.channel,
            self.method,
            self.leaves,
            self.promise(schedule.events(), self.assumptions),
            {
                "net": self.net_name,
                "features": net.centre.mean.numel(),
                "queries": self.asking.queries,
                "heads": heads,
                "records_per_head": round(self.records / heads, 1),
                "regularisation": objective.regularisation,
                "noise_multiplier": noise.multiplier,
                "noise_on_a_count": MOVED * noise.multiplier,
            },
            schedule,
        )

    def execute(self, plan: Plan, split: Split, randomness: Randomness, run: Run) -> Executed:
        """Compute features once, solve a head a shard, put them away, and ask about the test records."""
        noise = self.noise()
        kept = self.kept(self.ready().to(run.device), split.private, self.heads(noise), run)
        interface = self.interface(noise)
        desk = Counted(interface, kept)
        executed = self.schedule(desk.event).events()
        utility = ask_all(desk, split.test, randomness.privacy.child("utility"))
        return Executed(interface, executed, utility, noise_made_on=BY_ANSWERER, secrets=kept)

    def interface(self, noise: Noise) -> Interface:
        """What may be asked, and the figures that whoever answers needs."""
        figures: dict[str, str | int | float] = {
            "net": self.net_name,
            "heads": self.heads(noise),
            "noise_multiplier": noise.multiplier,
        }
        return Interface("label", self.facts.shape, self.facts.classes, self.asking.queries, ONE_ANSWER, figures)

    def noise(self) -> Noise:
        """For Q answers at this cost; when one of several runs is picked, all are paid for."""
        config = self.config
        return least_noise(
            False, self.asking.queries, config.tuning_runs, config.epsilon, config.delta, config.accountant
        )

    def heads(self, noise: Noise) -> int:
        """K.

        Raises:
            ConfigError: So few that the noise would drown their votes.
        """
        wished = math.ceil(_HEADS_PER_NOISE * MOVED * noise.multiplier)
        chosen = self.asking.heads
        heads = max(min(wished, self.records // FEWEST), _FEWEST_HEADS) if chosen is None else chosen
        if heads < MOVED * noise.multiplier:
            raise ConfigError(
                f"at least {math.ceil(MOVED * noise.multiplier):,} heads: the noise on a count",
                f"{heads:,}" if chosen else f"{self.records:,} records, enough for {heads:,}",
                "Votes that are fewer than the noise are drowned by it.",
                'Lower settings.queries, raise epsilon, or take method = "head".',
            )
        return heads

    def schedule(self, answer: dpa.DpEvent) -> BudgetSchedule:
        """All answers, in every run."""
        return BudgetSchedule(answer, self.asking.queries, runs=self.config.tuning_runs, unit="queries")
