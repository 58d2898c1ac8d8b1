"""`answers`/`neighbours`: the private records near a question vote for its label; which are near, public inputs say.

Private kNN (Zhu et al. 2020; Zhu and Wang 2023, Ind-KNN), for which public inputs need no labels. These, whose labels
are never looked at, are joined to a graph in the space of a public front end (`training.neighbours`). A private record
votes for its own label, in the cell of the public input that is nearest to it. A question is answered by all the votes
in some of the cells: those that a random walk from the question comes to most easily, as many as hold k records on
average.

Proof for one question. Its cells follow from the question and public inputs, so they are the same with one record more
or less. That record moves the count of one class in one cell by at most 1 (`training.neighbours.tally`), and so one of
the question's counts by at most 1, all others by nothing. The difference of two counts then moves by at most 1, which
is the `spread` of the `ExponentialMechanism`: an answer is ε₀²/8-zCDP, or ε₀-DP where that is accounted for better.
Questions may be chosen by earlier answers, their number Q is fixed in advance, and Q answers are Q of these events. A
person's records weigh at most 1 together; where they lie in several cells and classes, each count rises by her share in
it, so that the difference of two still moves by at most 1.

Why not the k nearest records. There, a record that enters pushes another out: one count rises and another falls, which
doubles the spread and with it the noise. Here the size of the neighbourhood is measured by public inputs instead; how
many votes there are may vary, and never has to be known.

Why no random subsample for each question. Sampling records with probability γ makes a question γ times as costly where
noise is large, and it leaves γ times as many votes: the noise over the votes stays the same, and chance is added to it.
At Q = 1,000 and ε = 1 a share of 5% has a noise of 5.9 on 5% of the votes, and no sampling 118 on all of them. (What
sampling saves is time.)

How many, by one rule: 12 times the noise between two counts, but no more than one class has if all are equally
frequent. Looked up on MNIST (seed 0, 2,000 test records, noise of 30, 116 and 250), where 6 to 24 times are within
three tenths of a point of each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache, cached_property
from typing import Annotated, ClassVar

import dp_accounting as dpa
import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from airlock.accounting import BudgetSchedule
from airlock.accounting.terms import Status
from airlock.config import Frozen, ReleaseConfig
from airlock.data import Facts, Records, Split
from airlock.errors import ConfigError
from airlock.mechanisms import ExponentialMechanism, Randomness, Stream
from airlock.methods.answers.answerer import (
    FRONT,
    GUMBEL,
    INSIDE,
    Noise,
    PaidAnswerer,
    front_arrays,
    least_noise,
)
from airlock.methods.answers.linear_head import (
    ASSUMPTIONS,
    FrontEndSettings,
    PublicFeatures,
    case_config,
    case_facts,
    embed_queries,
)
from airlock.methods.case import Case, Scores, on_circle
from airlock.methods.contract import ArtefactKind, Executed, Plan, Secrets
from airlock.methods.interface import BY_ANSWERER, ONE_ANSWER, Answerer, Answers, Interface, ask, ask_all
from airlock.nets.frontend import Framed
from airlock.training import Run
from airlock.training.convex import LogisticHead
from airlock.training.front_ends.front import embed
from airlock.training.neighbours import UNIT, PublicGraph, at_least_one, tally

SPREAD = 1.0  # how far one record moves the difference of two counts
GRAPH, TABLE = "graph", "table"  # files in the vault
PUBLIC = "The public inputs may be known to everyone: they are used without protection, and their labels not at all."
_PER_NOISE = 12
_BLOCK = 100  # questions whose neighbourhoods are held at once


class NeighboursSettings(FrontEndSettings):
    """Whose votes count and what may be asked.

    Args:
        neighbours: k, how many private records vote on a question on average; by the rule above if left out.
        queries: Q, the number of all answers.
    """

    neighbours: Annotated[int, Field(ge=1, le=10**9)] | None = None
    queries: Annotated[int, Field(ge=1, le=10**7)] = 1000


class NeighbourVotes(PaidAnswerer):
    """Votes of the records near a question, and a label drawn by them; one unit per answer."""

    def __init__(self, interface: Interface, kept: Secrets) -> None:
        super().__init__(interface, kept)
        figures = interface.figures
        self._graph, self._table = PublicGraph.load(kept[GRAPH]), kept[TABLE]["votes"].astype(np.int64)
        self._share = float(figures["share"])
        epsilon = GUMBEL / float(figures["noise_multiplier"])
        self._choice = ExponentialMechanism(SPREAD, epsilon, figures["way"] != "exponential, pure")

    @property
    def event(self) -> dpa.DpEvent:
        """What one answer costs."""
        return self._choice.event

    def counts(self, features: Tensor) -> NDArray[np.float64]:
        """Votes for every class, (questions, classes); they may not leave as they are."""
        points = len(self._table)
        size = min(points, max(1, round(self._share * points)))
        found = [np.empty((0, self._table.shape[1]))]
        for start in range(0, len(features), _BLOCK):
            reached = self._graph.reached(features[start : start + _BLOCK])
            cells = np.argpartition(-reached, size - 1, 1)[:, :size]
            found.append(np.stack([self._table[own].sum(0) for own in cells]) / UNIT)
        return np.concatenate(found)

    def _decide(self, features: Tensor, stream: Stream) -> Answers:
        return Answers(self._choice.pick(self.counts(features), stream))


class Neighbours(PublicFeatures):
    """Labels by the votes of near records; status proven, unit record or person, relation add-remove."""

    method: ClassVar[str] = "neighbours"
    title: ClassVar[str] = "labels by the votes of near records"
    rank: ClassVar[int] = 75
    artefact: ClassVar[ArtefactKind] = "interface"
    status: ClassVar[Status] = "proven"
    units: ClassVar[frozenset[str]] = frozenset({"record", "person"})
    small: ClassVar[Mapping[str, object] | None] = {"queries": 12, "neighbours": 24}
    texts: ClassVar[bool] = True
    leaves: ClassVar[str] = (
        "Answers to a limited number of questions. The private records that are most similar to a question vote on it, "
        "and each label is drawn at random, the likelier the more of them vote for it; the records stay inside."
    )
    settings_model: ClassVar[type[Frozen] | None] = NeighboursSettings
    settings: NeighboursSettings
    assumptions: ClassVar[tuple[str, ...]] = (*ASSUMPTIONS, PUBLIC, *INSIDE)

    def __init__(self, config: ReleaseConfig, facts: Facts) -> None:
        super().__init__(config, facts)
        self.public_inputs = facts.expected("public", config.split)
        if not self.public_inputs:
            raise ConfigError(
                "public inputs, with or without labels",
                "none",
                "They say which private records are near a question; without them that would have to be paid for.",
                'Set split.public, or take method = "votes".',
            )

    @classmethod
    def case(cls, epsilon: float, delta: float) -> Case:
        """All answers to a question on which the votes are evenly split."""
        settings = {"queries": CASE_QUERIES, "neighbours": CASE_RECORDS}
        return _case_of_neighbours(cls(_case_config(epsilon, delta, settings), case_facts(records=2 * CASE_RECORDS)))

    @classmethod
    def case_of_people(cls, epsilon: float, delta: float) -> Case:
        """The same with and without one person of many records."""
        settings = {"queries": CASE_QUERIES, "neighbours": CASE_RECORDS}
        facts = case_facts(records=2 * CASE_RECORDS, people=True)
        return _case_of_neighbours(cls(_case_config(epsilon, delta, settings), facts), VISITS)

    @classmethod
    def answerer(cls, interface: Interface, kept: Secrets) -> Answerer:
        """The answerer, from the interface's figures and the vault's votes."""
        return NeighbourVotes(interface, kept)

    @cached_property
    def noise(self) -> Noise:
        """For Q labels at this cost; when one of several runs is picked, all are paid for."""
        config = self.config
        return least_noise(
            True, self.settings.queries, config.tuning_runs, config.epsilon, config.delta, config.accountant
        )

    @property
    def neighbours(self) -> int:
        """How many vote on average, k.

        Raises:
            ConfigError: There are so few that the noise would drown their votes.
        """
        noise, chosen = SPREAD * self.noise.multiplier, self.settings.neighbours
        most = self.records if chosen else max(1, self.records // len(self.facts.classes))
        found = min(most, chosen or math.ceil(_PER_NOISE * noise))
        if found < noise:
            raise ConfigError(
                f"at least {math.ceil(noise):,} neighbours: the noise between two counts",
                f"{found:,}" if chosen else f"{self.records:,} {self.facts.counted}, of which {found:,} may be near",
                "Votes that are fewer than the noise are drowned by it.",
                'Lower settings.queries, raise epsilon, or take method = "head".',
            )
        return found

    def plan(self) -> Plan:
        """Calibrate the noise of Q answers to (ε, δ) and the neighbourhoods; touches no record."""
        noise, net = self.noise, self.sized()
        schedule = self.schedule(noise.event)
        return Plan(
            self.channel,
            self.method,
            self.leaves,
            self.promise(schedule.events(), self.assumptions),
            {
                "net": self.net_name,
                "features": net.centre.mean.numel(),
                "queries": self.settings.queries,
                "neighbours": self.neighbours,
                "public_inputs": self.public_inputs,
                "mechanism": noise.mechanism,
                "noise_multiplier": noise.multiplier,
                "noise_on_a_count": SPREAD * noise.multiplier / math.sqrt(2),
                **self.weighing,
            },
            schedule,
        )

    def execute(self, plan: Plan, split: Split, randomness: Randomness, run: Run) -> Executed:
        """Join the public inputs, count the votes in each cell, put them away, and ask about the test records."""
        kept = self.kept(self.ready().to(run.device), split.private, split.public, run)
        interface = self.interface()
        answerer = NeighbourVotes(interface, kept)
        executed = self.schedule(answerer.event).events()
        utility = ask_all(answerer, split.test, randomness.privacy.child("utility"))
        return Executed(interface, executed, utility, noise_made_on=BY_ANSWERER, secrets=kept)

    def kept(self, net: Framed, private: Records, public: Records, run: Run) -> Secrets:
        """What stays in the vault: the votes of each cell, the public graph, and the front end."""
        graph = PublicGraph.of(embed(net, at_least_one(public), run), self.config.seed)
        cells = graph.cells(embed(net, private, run))
        weights = self.weights_of(private).numpy()
        votes = tally(cells, private.y, weights, len(graph.points), len(self.facts.classes))
        return {TABLE: {"votes": votes}, GRAPH: graph.arrays(), FRONT: front_arrays(net)}

    def interface(self) -> Interface:
        """What may be asked, and the figures that the answerer needs."""
        figures: dict[str, str | int | float] = {
            "net": self.net_name,
            "way": self.noise.mechanism,
            "noise_multiplier": self.noise.multiplier,
            "share": min(1.0, self.neighbours / self.records),
        }
        return Interface("label", self.facts.shape, self.facts.classes, self.settings.queries, ONE_ANSWER, figures)

    def schedule(self, answer: dpa.DpEvent) -> BudgetSchedule:
        """All answers, in every run."""
        return BudgetSchedule(answer, self.settings.queries, runs=self.config.tuning_runs, unit="queries")


# The case for the court: all answers to one question, on which the votes are evenly split.
#
# All records lie in the cells that the question reaches, half of them of either class; the record that differs is one
# more of class 1, in the same place. A label reveals most about one vote where the counts are equal. With people, who
# differs has many records there, which weigh as much as one together. The score is how many labels name class 1.

CASE_RECORDS, CASE_QUERIES, VISITS = 400, 100, 20
_CASE_PUBLIC = 8
STATISTICS = ("how many of the answers name the record's class, ties broken by a coin flip",)
PAIR = (
    f"{CASE_RECORDS} records that all vote on a question, half of them for either class, with and without one more; "
    f"{CASE_QUERIES} answers to it"
)


def _case_config(epsilon: float, delta: float, settings: Mapping[str, object]) -> ReleaseConfig:
    made = case_config(Neighbours.method, epsilon, delta, settings)
    return made.model_copy(update={"split": made.split.model_copy(update={"public": 0.5})})


def case_sides(visits: int | None = None) -> tuple[Records, Records]:
    """With and without the record, or the person with so many; what differs comes last."""
    more = visits or 1
    x = np.tile(np.array([[1.0, 0.0]], np.float32), (CASE_RECORDS + more, 1))
    y = np.append(np.arange(CASE_RECORDS) % 2, np.ones(more)).astype(np.int64)
    person = None if visits is None else np.append(np.arange(CASE_RECORDS), np.full(more, CASE_RECORDS))
    both = Records(x, y, person)
    return both, both.take(np.arange(CASE_RECORDS))


def case_public() -> Records:
    """Inputs all around the circle; their labels are never looked at."""
    return Records(on_circle(2 * np.pi * np.arange(_CASE_PUBLIC) / _CASE_PUBLIC), np.zeros(_CASE_PUBLIC, np.int64))


def _case_of_neighbours(channel: Neighbours, visits: int | None = None) -> Case:
    """The real cells, the real neighbourhoods, the real noise."""
    net, sides = channel.ready(), case_sides(visits)
    question = np.asarray(sides[0].x[:1], np.float32)

    def counted(with_record: bool) -> NeighbourVotes:
        kept = channel.kept(net, sides[0 if with_record else 1], case_public(), Run())
        return NeighbourVotes(channel.interface(), kept)

    answerers = cache(counted)
    features = embed_queries(counted(True).body, question, LogisticHead(2, 1.0, 1))
    with_it, without = (counted(known).counts(features)[0] for known in (True, False))

    def run(with_record: bool, count: int, stream: Stream) -> Scores:
        asked = np.repeat(question, CASE_QUERIES * count, 0)
        found = ask(answerers(with_record), asked, stream.child("answers"))
        named = found.labels.reshape(count, CASE_QUERIES).sum(1)
        return np.asarray(named + stream.child("ties").uniform(count))[:, None]

    return Case.of_proven(channel.plan().guarantee, PAIR, STATISTICS, run, float(with_it[1] - without[1]) / SPREAD)
