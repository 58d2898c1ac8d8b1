"""`answers`/`per-query`: a private head stays in the vault and answers a number of queries that is fixed in advance.

The head is that of `head`, certified and without noise; it never leaves. Every answer has its own noise, all Q of them
together cost (ε, δ), and then no more are given. What leaves is the right to ask.

Proof for one query. Its features φ follow from the query and public tensors, so they are the same whichever records
the head W was solved on, and ‖φ‖ ≤ R is enforced. One record more or less moves W by at most Δ in L2
(`training.convex`), so

    ‖Wφ − W'φ‖₂ ≤ ‖W − W'‖_op ‖φ‖ ≤ ‖W − W'‖_F R ≤ Δ R,

by Cauchy and Schwarz in every row; and two of its coordinates move apart by at most √2 Δ R, because |a − b| ≤
√2 √(a² + b²). Logits are computed in float64. W is projected to a ball of public radius B, which brings no two heads
further apart, so a computed logit is off by at most e = γ(width) B R (Higham 2002): in L2 that is 2√C e more for a
pair, 4e more for the spread. Both are part of the sensitivity.

* logits: rounded to a public grid, with a discrete Gaussian on each (`GridNoise`): ρ-zCDP, ρ = 1/(2z²).
* label: the largest of such logits, or the `ExponentialMechanism` over the true ones, whose losses lie in one
  interval of length ε₀: ε₀-DP and ε₀²/8-zCDP. As the largest of logits with Gumbel noise, two of them are told apart
  under noise of standard deviation (π/√3) √2ΔR/ε₀, where Gaussian noise has √2 zΔR. At equal ρ = ε₀²/8 = 1/(2z²) that
  is 0.907 times as much; accounted as pure ε₀ it is less still for a handful of queries. Which is best follows from
  public figures.

Answers are independent given W, queries may be chosen by earlier answers, and the number Q of all answers is fixed in
advance, so Q answers are Q of these events. All of it holds for one person with all her records in place of one record:
W moves by at most Δ (`training.convex`).

One head, or noise on every answer? Both have the same sensitivity. With a budget of μ in terms of Gaussian differential
privacy (Dong, Roth and Su 2022), where one Gaussian mechanism has μ = 1/z, a head that leaves gets noise ΔR/μ on a
logit for any number of queries. Q answers share the budget, each gets μ/√Q: noise ΔR√Q/μ on every logit. So from the
second query on the head has less noise, and this method is for the case that no model may leave, whatever its noise.
Where labels are enough, `votes` then does better as long as there are records for more heads than the noise on a count,
and `neighbours` where there are public inputs and one class has more records than that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import dp_accounting as dpa
import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from scipy.special import log_softmax, softmax
from torch import Tensor

from airlock.accounting import BudgetSchedule, repeat
from airlock.accounting.terms import Claim, Status
from airlock.config import Frozen
from airlock.data import Records, Split
from airlock.mechanisms import ExponentialMechanism, GridNoise, Randomness, Stream
from airlock.methods.answers.answerer import (
    FEWEST_RECORDS,
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
    CASE_REGULARISATION,
    PAIR,
    PAIR_OF_PEOPLE,
    VISITS,
    CertifiedHead,
    HeadSettings,
    case_config,
    case_facts,
    embed_queries,
    neighbours,
)
from airlock.methods.case import (
    ACCOUNTED,
    Canaries,
    Case,
    Coins,
    Scores,
    canary_split,
    facts_of_canaries,
    less_noise,
    people_in_words,
)
from airlock.methods.contract import ArtefactKind, Executed, Plan, Secrets
from airlock.methods.interface import BY_ANSWERER, ONE_ANSWER, Answerer, Answers, Interface, ask, ask_all
from airlock.nets.frontend import Framed
from airlock.training import Run
from airlock.training.convex import ConvexHead, LogisticHead
from airlock.training.front_ends.front import front_of

Gives = Literal["logits", "label"]

HEAD = "head"  # file in the vault


class PerQuerySettings(HeadSettings):
    """How the head is solved and what may be asked.

    Args:
        queries: Q, the number of all answers.
        gives: What an answer is: all logits, or the label alone, which can have less noise.
    """

    queries: Annotated[int, Field(ge=1, le=10**7)] = 1000
    gives: Gives = "logits"


@dataclass(frozen=True)
class LogitFigures:
    """The public figures that answers follow from.

    Args:
        noise: How an answer is drawn.
        objective: What the head minimises.
        radius: B, the largest norm of the head.
        sensitivity: How far one record moves the logits of a query in L2, rounding included.
        spread: How far it moves two of them apart.
    """

    noise: Noise
    objective: ConvexHead
    radius: float
    sensitivity: float
    spread: float

    @property
    def noise_on_a_logit(self) -> float:
        """Its standard deviation."""
        return self.noise.multiplier * self.sensitivity


class NoisyLogits(PaidAnswerer):
    """Wφ with noise, for every query separately; one unit per answer."""

    def __init__(self, interface: Interface, kept: Secrets) -> None:
        super().__init__(interface, kept)
        figures = interface.figures
        self._head = torch.from_numpy(np.asarray(kept[HEAD]["weight"], np.float64))
        self._mechanism, multiplier = str(figures["way"]), float(figures["noise_multiplier"])
        sensitivity, spread = float(figures["sensitivity"]), float(figures["spread"])
        self._grid = GridNoise("gaussian", sensitivity, multiplier, len(interface.classes))
        self._choice = ExponentialMechanism(spread, GUMBEL / multiplier, self._mechanism != "exponential, pure")

    @property
    def event(self) -> dpa.DpEvent:
        """What one answer costs, as the mechanism that is used states it."""
        return self._grid.event if self._mechanism == "gaussian" else self._choice.event

    def _decide(self, features: Tensor, stream: Stream) -> Answers:
        logits = (features @ self._head.mT).numpy()
        if self._mechanism != "gaussian":
            return Answers(self._choice.pick(logits, stream))
        noisy = self._grid.add_rows(logits, stream)
        labels = noisy.argmax(1).astype(np.int64)
        return Answers(labels, noisy if self.interface.gives == "logits" else None)


class PerQuery(CertifiedHead):
    """Q answers with noise; status proven, unit record or person, relation add-remove."""

    method: ClassVar[str] = "per-query"
    title: ClassVar[str] = "answers with noise on each"
    rank: ClassVar[int] = 90
    artefact: ClassVar[ArtefactKind] = "interface"
    status: ClassVar[Status] = "proven"
    units: ClassVar[frozenset[str]] = frozenset({"record", "person"})
    small: ClassVar[Mapping[str, object] | None] = {"queries": 12}
    texts: ClassVar[bool] = True
    leaves: ClassVar[str] = (
        "Answers to a limited number of questions, each with random noise. The model that answers stays inside."
    )
    settings_model: ClassVar[type[Frozen] | None] = PerQuerySettings
    settings: PerQuerySettings
    assumptions: ClassVar[tuple[str, ...]] = (*ASSUMPTIONS, *INSIDE)

    @classmethod
    def case(cls, epsilon: float, delta: float) -> Case:
        """All answers about a record that moves the head almost as far as possible."""
        return case_of_answers(cls, epsilon, delta)

    @classmethod
    def case_of_people(cls, epsilon: float, delta: float) -> Case:
        """The same about a person of many records."""
        return case_of_answers(cls, epsilon, delta, people=True)

    @classmethod
    def canaries(cls, epsilon: float, delta: float, count: int) -> Canaries:
        """A whole release, and all answers to one question, on canaries that each have a class of their own."""
        return _canaries_of_answers(cls, epsilon, delta, count, people=False)

    @classmethod
    def canaries_of_people(cls, epsilon: float, delta: float, count: int) -> Canaries:
        """The same with people who have several records each."""
        return _canaries_of_answers(cls, epsilon, delta, count, people=True)

    @classmethod
    def answerer(cls, interface: Interface, kept: Secrets) -> Answerer:
        """The answerer, from the interface's figures and the vault's head."""
        return NoisyLogits(interface, kept)

    @cached_property
    def noise(self) -> Noise:
        """The least there is for Q answers at this cost; when one of several runs is picked, all are paid for."""
        asked, config = self.settings, self.config
        return least_noise(
            asked.gives == "label", asked.queries, config.tuning_runs, config.epsilon, config.delta, config.accountant
        )

    @cached_property
    def figures(self) -> LogitFigures:
        """Computed once, from the noise."""
        objective = self.objective(self.noise.multiplier)
        radius = objective.largest_norm(2 * self.records)  # no head of twice the stated number of records is longer
        moved = objective.sensitivity() * objective.bound
        error = objective.logit_error(self.sized().head.in_features, radius)
        return LogitFigures(
            noise=self.noise,
            objective=objective,
            radius=radius,
            sensitivity=moved + 2 * math.sqrt(len(self.facts.classes)) * error,
            spread=math.sqrt(2) * moved * (1 + 2**-40) + 4 * error,
        )

    def plan(self) -> Plan:
        """Calibrate the noise of Q answers to (ε, δ) and fix the regularisation; touches no record."""
        net, figures, queries = self.sized(), self.figures, self.settings.queries
        self.check(figures.objective, net.head.in_features)
        advice = self.advice()
        schedule = BudgetSchedule(self.noise.event, queries, runs=self.config.tuning_runs, unit="queries")
        return Plan(
            self.channel,
            self.method,
            self.leaves,
            self.promise(schedule.events(), self.assumptions),
            {
                "net": self.net_name,
                "features": net.centre.mean.numel(),
                "queries": queries,
                "gives": self.settings.gives,
                "mechanism": self.noise.mechanism,
                "regularisation": figures.objective.regularisation,
                "largest_gradient": figures.objective.largest_gradient,
                "sensitivity": figures.sensitivity,
                "noise_multiplier": self.noise.multiplier,
                "noise_on_a_logit": figures.noise_on_a_logit,
                "noise_of_one_head_at_most": advice.head_noise,
                "advice": advice.says,
                **self.weighing,
            },
            schedule,
        )

    def advice(self) -> NoiseAdvice:
        """Which method to use for this many queries."""
        config, queries = self.config, self.settings.queries
        alone = head_noise_at_most(self.noise, queries, config.tuning_runs, config.epsilon, config.delta)
        on_a_count = math.sqrt(2) * self.noise.multiplier
        head_noise = alone * self.figures.sensitivity
        near = self.records // len(self.facts.classes) if self.facts.expected("public", config.split) else 0
        return NoiseAdvice(queries, head_noise, self.figures.noise_on_a_logit, on_a_count, self.records, near)

    def execute(self, plan: Plan, split: Split, randomness: Randomness, run: Run) -> Executed:
        """Compute features once, solve the head, put it away, and ask about the test records."""
        kept = self.kept(self.ready().to(run.device), split, run)
        interface = self.interface()
        answerer = NoisyLogits(interface, kept)
        executed = repeat(repeat(answerer.event, self.settings.queries), self.config.tuning_runs)
        utility = ask_all(answerer, split.test, randomness.privacy.child("utility"))
        return Executed(interface, executed, utility, noise_made_on=BY_ANSWERER, secrets=kept)

    def kept(self, net: Framed, split: Split, run: Run) -> Secrets:
        """What stays in the vault: the head of these records, no longer than it may be, and the front end."""
        head = self.solve(net, split.private, self.noise.multiplier, run)
        head = self.figures.objective.projected(head, self.figures.radius)
        return {HEAD: {"weight": np.ascontiguousarray(head.cpu().numpy())}, FRONT: front_arrays(net)}

    def interface(self) -> Interface:
        """What may be asked, and the figures that the answerer needs."""
        figures: dict[str, str | int | float] = {
            "net": self.net_name,
            "way": self.noise.mechanism,
            "noise_multiplier": self.noise.multiplier,
            "sensitivity": self.figures.sensitivity,
            "spread": self.figures.spread,
        }
        asked, facts = self.settings, self.facts
        return Interface(asked.gives, facts.shape, facts.classes, asked.queries, ONE_ANSWER, figures)


# Which method to use, by public figures alone.

_SEVERAL = 10  # questions from which on `votes` was better wherever it was tried; with fewer it was not tried


def head_noise_at_most(noise: Noise, queries: int, runs: int, epsilon: float, delta: float) -> float:
    """A bound in closed form on the noise multiplier of `head` at the same cost as these answers.

    Q answers of ρ-zCDP each are Qρ-zCDP, and so is one Gaussian mechanism with z = 1/√(2Qρ). Where answers are
    accounted for as pure ε-DP, ρ is the largest with ρ + 2√(ρ ln(1/δ)) ≤ ε (Bun and Steinke 2016), over all runs.
    """
    if noise.mechanism == "exponential, pure":
        log = math.log(1 / delta)
        rho = (math.sqrt(log + epsilon) - math.sqrt(log)) ** 2 / runs
    else:
        rho = queries * float(noise.event.rho)
    return 1 / math.sqrt(2 * rho)


@dataclass(frozen=True)
class NoiseAdvice:
    """`head`, `per-query` and `votes` at the same (ε, δ).

    Args:
        queries: Q.
        head_noise: The standard deviation of the noise on one logit when one head leaves, at most.
        per_query_noise: The same when each of Q answers gets its own noise.
        noise_on_a_count: Of `votes`.
        records: n0.
        near: How many of them may vote as neighbours; none without public inputs.
    """

    queries: int
    head_noise: float
    per_query_noise: float
    noise_on_a_count: float
    records: int
    near: int = 0

    @property
    def recommended(self) -> Literal["head", "per-query"]:
        """The method with less noise; where it is the same, the one without a limit."""
        alike = math.isclose(self.head_noise, self.per_query_noise, rel_tol=1e-9)
        return "head" if alike or self.head_noise < self.per_query_noise else "per-query"

    @property
    def inside(self) -> Literal["per-query", "votes", "neighbours"]:
        """The best method for labels by which no model leaves."""
        if self.near > self.noise_on_a_count and self.queries >= _SEVERAL:
            return "neighbours"
        enough = self.records // FEWEST_RECORDS > self.noise_on_a_count
        return "votes" if enough and self.queries >= _SEVERAL else "per-query"

    @property
    def says(self) -> str:
        """What to use."""
        return f"{self._either()} If no model may leave: '{self.inside}' for labels, 'per-query' for logits."

    def _either(self) -> str:
        if self.queries == 1 and self.recommended == "head":
            return "One query: the same noise either way; take 'head', which answers more of them at no further cost."
        count = f"{self.queries:,} {'query' if self.queries == 1 else 'queries'}"
        noises = (
            f"noise of {self.per_query_noise:.3g} on every logit if each is answered separately, at most "
            f"{self.head_noise:.3g} with one head, which has no limit"
        )
        few = "take 'head'." if self.recommended == "head" else "take 'per-query' if so few are enough, else 'head'."
        return f"{count}: {noises}: {few}"


# The case for the court: all answers of a budget, asked about the one record that differs.
#
# The records are those of `head`'s case, of which one moves the head by nine tenths of what is accounted for, almost
# all of it along its own features: no query shows more of it than the record itself. Both heads are known to the court,
# so the best score of logits is their projection on the difference, and of labels their likelihood.

CASE_QUERIES: dict[Gives, int] = {"logits": 4, "label": 100}
_NAMED = "how many answers name the record's class"
STATISTICS: dict[Gives, tuple[str, ...]] = {
    "logits": ("all answers on the difference of both heads' logits", _NAMED),
    "label": ("how much likelier the labels are with the record than without", _NAMED),
}


def case_of_answers(
    method: type[PerQuery],
    epsilon: float,
    delta: float,
    classes: int = 2,
    gives: Gives = "logits",
    people: bool = False,
) -> Case:
    """The real heads, the real noise, the whole budget; classes that no record has change nothing but the noise.

    With `people`, one person of many records differs instead of one record.
    """
    channel = case_channel(method, epsilon, delta, classes, gives, people)
    net, sides, figures = channel.ready(), neighbours(VISITS if people else None), channel.figures
    nobody = sides[0].take(np.arange(0))
    kept = [channel.kept(net, Split(channel.facts, side, nobody, nobody, nobody), Run()) for side in sides]
    answerers = [method.answerer(channel.interface(), own) for own in kept]
    query, often = sides[0].x[-1:].astype(np.float32), CASE_QUERIES[gives]
    with_it, without = (_logits(net, own, query) for own in kept)
    toward = np.asarray((with_it - without) / np.linalg.norm(with_it - without))
    scale = figures.spread / channel.noise.epsilon
    likelier = log_softmax(with_it / scale) - log_softmax(without / scale)

    def run(with_record: bool, count: int, stream: Stream) -> Scores:
        found = ask(answerers[0 if with_record else 1], np.repeat(query, often * count, 0), stream)
        along = likelier[found.labels] if found.values is None else found.values @ toward
        return np.stack([np.asarray(each).reshape(count, often).sum(1) for each in (along, found.labels == 0)], 1)

    if gives == "logits":
        reach = float(np.linalg.norm(with_it - without)) / figures.sensitivity
    else:  # by the divergence of two labels, over what is accounted for
        rho = getattr(channel.noise.event, "rho", math.inf)
        reach = math.sqrt(float(softmax(with_it / scale) @ likelier) / rho)
    pair = f"{PAIR_OF_PEOPLE if people else PAIR}; {often} answers about that record"
    return Case.of_proven(channel.plan().guarantee, pair, STATISTICS[gives], run, reach)


def case_channel(
    method: type[PerQuery], epsilon: float, delta: float, classes: int, gives: Gives, people: bool = False
) -> PerQuery:
    """The method on the made-up records."""
    settings = {"regularisation": CASE_REGULARISATION, "queries": CASE_QUERIES[gives], "gives": gives}
    return method(case_config(method.method, epsilon, delta, settings), case_facts(classes, people=people))


def _logits(net: Framed, kept: Secrets, query: NDArray[np.float32]) -> Scores:
    """Without noise."""
    weight = torch.from_numpy(np.asarray(kept[HEAD]["weight"]))
    body = front_of(net, torch.device("cpu"), torch.float32)
    features = embed_queries(body, query, LogisticHead(len(weight), 1.0, 1))
    return np.asarray((features @ weight.mT)[0].numpy(), np.float64)


# The canaries: a whole release, and all of its answers spent on one question. Answers about many questions would share
# the budget: of c canaries that are asked about one by one, each shows in one answer of c, under √c times the noise. So
# all canaries have the same features and each a class of its own, which its record lifts: one answer has a logit for
# each of them, and a canary shows in every answer, as far as one record shows.

_CANARY_REGULARISATION = 0.2  # over the number of canaries: heads are then almost linear in the records
_STATED_PER_CANARY = 100  # records, or people
_CANARY_ANSWERS = 4
_CANARIES = "one release, and {answers} answers, on {count:,} canaries{who} each with a class of its own, in or out"
_CANARY_SCORE = "the answers' logits of the canary's class"


def _canaries_of_answers(method: type[PerQuery], epsilon: float, delta: float, count: int, people: bool) -> Canaries:
    facts = facts_of_canaries(1, _STATED_PER_CANARY * count, people)
    settings = {"regularisation": _CANARY_REGULARISATION / count, "queries": _CANARY_ANSWERS, "gives": "logits"}
    own = replace(facts, classes=tuple(map(str, range(count))))
    channel = method(case_config(method.method, epsilon, delta, settings), own)
    whose = np.repeat(np.arange(count), facts.most or 1)
    every = Records(np.ones((len(whose), 1), np.float32), whose, whose if people else None)
    question = np.ones((_CANARY_ANSWERS, 1), np.float32)

    def run(coins: Coins, stream: Stream) -> Scores:
        split = canary_split(channel.facts, every, coins)
        made = channel.release(split, Randomness(0, stream.child("release")), Run())
        answerer = method.answerer(channel.interface(), made.secrets)
        values = ask(answerer, question, stream.child("questions")).values
        assert values is not None
        return np.asarray(values.sum(0))

    promised, what = channel.plan().guarantee, people_in_words(facts) or ","
    claim = Claim(promised.epsilon, promised.delta, ACCOUNTED)
    family = less_noise(promised.events, claim.delta, _reach_of_canary(channel, every, question[:1]))
    told = _CANARIES.format(answers=_CANARY_ANSWERS, count=count, who=what)
    return Canaries(claim, count, told, _CANARY_SCORE, run, family)


def _reach_of_canary(channel: PerQuery, every: Records, question: NDArray[np.float32]) -> float:
    """How far a canary moves the logit of its own class, as a share of what is accounted for."""
    net, place = channel.ready(), np.arange(len(channel.facts.classes))
    half, found = len(place) // 2, []
    for coins in (place < half, (place < half) & (place > 0)):
        kept = channel.kept(net, canary_split(channel.facts, every, coins), Run())
        found.append(float(_logits(net, kept, question)[0]))
    return abs(found[0] - found[1]) / channel.figures.sensitivity
