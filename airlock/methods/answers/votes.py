"""`answers`/`votes`: many heads on disjoint records vote on every question, and the counts get noise.

Proof for one question. A record lies in one shard and moves no other (`data.split`), a head is solved from its own
shard alone, and a head has one vote: one record more or less changes at most one vote. One count then falls by 1 and
another rises by 1, so the counts move by at most √2 in L2. They get discrete Gaussian noise on a public grid
(`GridNoise`), z times that: ρ-zCDP with ρ = 1/(2z²), and the label is the largest of them, which adds nothing.
Questions may be chosen by earlier answers, their number Q is fixed in advance, and Q answers are Q of these events.
What the features of a question are does not matter here, and neither does how near a head is to its minimiser: only its
vote is ever used, so it needs no certificate and no noise and may fit its few records well. (Noisy votes of disjoint
teachers: Papernot et al. 2018, GNMax, here for questions instead of a student.) Shards are by person where the records
say whose they are: a person lies in one shard with all her records, and one person more or less changes one vote.

Why it beats noise on logits from a hundred answers on: there, one record counts for 1/n0 of a head that is regularised
until a logit can bear the noise; here it counts for one vote of K, whatever λ is, and the votes of heads that agree
grow with K while the noise does not. With few answers the noise is small, and the votes' own errors dominate:
`per-query`.

How many heads, by one rule: 8 times the noise on a count, or as many as leave five records per head. Tried on MNIST
(pixels, ε = 1, seed 0) with 300, 1,000 and 3,000 heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache, cached_property
from typing import Annotated, ClassVar

import dp_accounting as dpa
import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from airlock.accounting import BudgetSchedule
from airlock.accounting.terms import Status
from airlock.config import Frozen, Positive
from airlock.data import Records, Split
from airlock.data.split import shard
from airlock.errors import ConfigError
from airlock.mechanisms import GridNoise, Randomness, Stream
from airlock.methods.answers.answerer import (
    FEWEST_RECORDS,
    FRONT,
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
from airlock.training.convex import LogisticHead, solve
from airlock.training.front_ends.front import embed

MOVED = math.sqrt(2)  # how far one record moves the counts
HEADS = "heads"  # file in the vault
_HEADS_PER_NOISE = 8
_FEWEST_HEADS = 30
_TOLERANCE = 0.05
_BLOCK = 100  # questions whose votes are counted at once

Whole = NDArray[np.int64]


class VotesSettings(FrontEndSettings):
    """Who votes and what may be asked.

    Args:
        heads: K, how many heads vote; by the rule above if left out.
        regularisation: λ of a head. The default was chosen on digits, where 0.001 gives the clearest majorities.
        queries: Q, the number of all answers.
    """

    heads: Annotated[int, Field(ge=3, le=10**5)] | None = None
    regularisation: Positive = 1e-3
    queries: Annotated[int, Field(ge=1, le=10**7)] = 1000


class NoisyVotes(PaidAnswerer):
    """Heads that vote, and noise on the counts of every question; one unit per answer."""

    def __init__(self, interface: Interface, kept: Secrets) -> None:
        super().__init__(interface, kept)
        self._heads = torch.from_numpy(kept[HEADS]["weight"]).flatten(0, 1)
        multiplier = float(interface.figures["noise_multiplier"])
        self._noise = GridNoise("gaussian", MOVED, multiplier, len(interface.classes))

    @property
    def event(self) -> dpa.DpEvent:
        """What one answer costs."""
        return self._noise.event

    def counts(self, features: Tensor) -> Whole:
        """Votes for every class, (questions, classes); they may not leave as they are."""
        classes, found = len(self.interface.classes), []
        for start in range(0, len(features), _BLOCK):
            block = features[start : start + _BLOCK].float()
            votes = (block @ self._heads.mT).reshape(len(block), -1, classes).argmax(2).numpy()
            found.append((votes[:, :, None] == np.arange(classes)).sum(1))
        return np.concatenate(found)

    def _decide(self, features: Tensor, stream: Stream) -> Answers:
        noisy = self._noise.add_rows(self.counts(features).astype(np.float64), stream)
        return Answers(noisy.argmax(1).astype(np.int64))


class Votes(PublicFeatures):
    """Noisy votes on Q questions; status proven, unit record or person, relation add-remove."""

    method: ClassVar[str] = "votes"
    title: ClassVar[str] = "labels by noisy votes"
    rank: ClassVar[int] = 80
    artefact: ClassVar[ArtefactKind] = "interface"
    status: ClassVar[Status] = "proven"
    units: ClassVar[frozenset[str]] = frozenset({"record", "person"})
    small: ClassVar[Mapping[str, object] | None] = {"queries": 12, "heads": 24}
    texts: ClassVar[bool] = True
    leaves: ClassVar[str] = (
        "Answers to a limited number of questions. Many models, each trained on different records, vote on each; the "
        "votes are counted with random noise, and the models stay inside."
    )
    settings_model: ClassVar[type[Frozen] | None] = VotesSettings
    settings: VotesSettings
    assumptions: ClassVar[tuple[str, ...]] = (*ASSUMPTIONS, *INSIDE)

    @classmethod
    def case(cls, epsilon: float, delta: float) -> Case:
        """All answers to a question on which the votes are as evenly split as possible."""
        settings = {"queries": CASE_QUERIES}
        return _case_of_votes(cls(case_config(cls.method, epsilon, delta, settings), case_facts(records=10_000)))

    @classmethod
    def answerer(cls, interface: Interface, kept: Secrets) -> Answerer:
        """The answerer, from the interface's figures and the vault's heads."""
        return NoisyVotes(interface, kept)

    @cached_property
    def noise(self) -> Noise:
        """For Q answers at this cost; when one of several runs is picked, all are paid for."""
        config = self.config
        return least_noise(
            False, self.settings.queries, config.tuning_runs, config.epsilon, config.delta, config.accountant
        )

    @cached_property
    def heads(self) -> int:
        """K.

        Raises:
            ConfigError: There are so few that the noise would drown their votes.
        """
        on_a_count, chosen = MOVED * self.noise.multiplier, self.settings.heads
        wished = min(math.ceil(_HEADS_PER_NOISE * on_a_count), self.records // FEWEST_RECORDS)
        heads = max(wished, _FEWEST_HEADS) if chosen is None else chosen
        if heads < on_a_count:
            raise ConfigError(
                f"at least {math.ceil(on_a_count):,} heads: the noise on a count",
                f"{heads:,}" if chosen else f"{self.records:,} {self.facts.counted}, enough for {heads:,}",
                "Votes that are fewer than the noise are drowned by it.",
                'Lower settings.queries, raise epsilon, or take method = "head".',
            )
        return heads

    def plan(self) -> Plan:
        """Calibrate the noise of Q answers to (ε, δ) and fix the heads; touches no record."""
        noise, heads, net = self.noise, self.heads, self.sized()
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
                "queries": self.settings.queries,
                "heads": heads,
                f"{self.facts.counted}_per_head": round(self.records / heads, 1),
                "regularisation": objective.regularisation,
                "noise_multiplier": noise.multiplier,
                "noise_on_a_count": MOVED * noise.multiplier,
                **self.weighing,
            },
            schedule,
        )

    def execute(self, plan: Plan, split: Split, randomness: Randomness, run: Run) -> Executed:
        """Compute features once, solve one head per shard, put them away, and ask about the test records."""
        kept = self.kept(self.ready().to(run.device), split.private, self.heads, run)
        interface = self.interface()
        answerer = NoisyVotes(interface, kept)
        executed = self.schedule(answerer.event).events()
        utility = ask_all(answerer, split.test, randomness.privacy.child("utility"))
        return Executed(interface, executed, utility, noise_made_on=BY_ANSWERER, secrets=kept)

    def objective(self, heads: int) -> LogisticHead:
        """What one of this many heads minimises."""
        records = max(1, round(self.records / heads))
        return LogisticHead(len(self.facts.classes), self.settings.regularisation, records, _TOLERANCE)

    def kept(self, net: Framed, records: Records, heads: int, run: Run) -> Secrets:
        """What stays in the vault: one head per shard, each from its own records alone, and the front end."""
        features, labels = embed(net, records, run), torch.from_numpy(np.ascontiguousarray(records.y)).to(run.device)
        weights = self.weights_of(records).to(run.device)
        objective, found = self.objective(heads), []
        for i, own in enumerate(shard(records, heads, self.config.seed)):
            place = torch.from_numpy(own).to(run.device)
            found.append(fit_head(features[place], labels[place], objective, weights[place]).float().cpu())
            if run.progress:
                run.progress("heads", i + 1, heads)
        return {HEADS: {"weight": np.ascontiguousarray(torch.stack(found).numpy())}, FRONT: front_arrays(net)}

    def interface(self) -> Interface:
        """What may be asked, and the figures that the answerer needs."""
        figures: dict[str, str | int | float] = {
            "net": self.net_name,
            "heads": self.heads,
            "noise_multiplier": self.noise.multiplier,
        }
        return Interface("label", self.facts.shape, self.facts.classes, self.settings.queries, ONE_ANSWER, figures)

    def schedule(self, answer: dpa.DpEvent) -> BudgetSchedule:
        """All answers, in every run."""
        return BudgetSchedule(answer, self.settings.queries, runs=self.config.tuning_runs, unit="queries")


def fit_head(features: Tensor, labels: Tensor, objective: LogisticHead, weights: Tensor | None = None) -> Tensor:
    """One head from its own records, solved in the space that they span, which is all it can use.

    No guarantee rests on how near it is to the minimiser: its vote belongs to its own shard, whatever it is.
    """
    own = None if weights is None else [weights]
    if len(labels) == 0:
        return features.new_zeros(objective.outputs, features.shape[1])
    if len(labels) >= features.shape[1]:
        return solve([(features, labels)], objective, weights=own, certify=False)[0]
    basis, inner = torch.linalg.qr(objective.bounded(features).mT)
    head: Tensor = solve([(inner.mT.contiguous(), labels)], objective, weights=own, certify=False)[0] @ basis.mT
    return head


# The case for the court: all answers to one question, on which the votes are as evenly split as possible.
#
# Records lie on a quarter circle, those below 45° in class 0 and those above in class 1, four for each head. A head
# sees few of them, so each draws the line at another place, and the lead of a class changes steadily with the angle of
# a question. The record that differs is of class 1 and falls into an empty shard, whose head votes for class 0 until
# the record is there: it takes a vote from class 0 and gives it to class 1 on every question. Where the votes are even,
# a label reveals most about one of them: the score is how many labels name class 1.

CASE_QUERIES = 12
PER_HEAD = 4
STATISTICS = ("how many of the answers name the record's class, ties broken by a coin flip",)
PAIR = (
    "votes of heads on a quarter circle, with and without a record that moves one of them; "
    f"{CASE_QUERIES} answers to a question on which the votes are even"
)


def _case_of_votes(channel: Votes) -> Case:
    """The real shards, the real heads, the real noise."""
    net, sides = channel.ready(), neighbours(channel.heads, channel.config.seed)

    def fitted(with_record: bool) -> NoisyVotes:
        kept = channel.kept(net, sides[0 if with_record else 1], channel.heads, Run())
        return NoisyVotes(channel.interface(), kept)

    answerers = cache(fitted)  # fitted when the first run needs it, which takes far longer than its answers
    angles = on_circle(np.linspace(0.0, np.pi / 2, 3000))
    plain = fitted(False)
    counts = plain.counts(embed_queries(plain.body, angles, LogisticHead(2, 1.0, 1)))
    question = angles[np.abs(counts[:, 0] - counts[:, 1]).argmin()][None]

    def run(with_record: bool, count: int, stream: Stream) -> Scores:
        asked = np.repeat(question, CASE_QUERIES * count, 0)
        found = ask(answerers(with_record), asked, stream.child("answers"))
        named = found.labels.reshape(count, CASE_QUERIES).sum(1)
        return np.asarray(named + stream.child("ties").uniform(count))[:, None]

    reach = math.sqrt(2 / math.pi)  # what the sign of a normal number reveals about its mean
    return Case.of_proven(channel.plan().guarantee, PAIR, STATISTICS, run, reach)


def neighbours(heads: int, seed: int) -> tuple[Records, Records]:
    """With and without the record, which comes last."""
    angles = np.random.default_rng(0).uniform(0, np.pi / 2, PER_HEAD * heads)
    without = Records(on_circle(angles), (angles > np.pi / 4).astype(np.int64))
    for angle in np.linspace(0.7, 0.8, 1000):
        x = np.concatenate([without.x, on_circle(np.array([angle]))])
        both = Records(x, np.append(without.y, 1))
        if any(len(own) == 1 and own[0] == len(without) for own in shard(both, heads, seed)):
            return both, without
    raise AssertionError("no record falls into an empty shard")
