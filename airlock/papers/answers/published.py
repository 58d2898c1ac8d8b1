"""`answers`/`published`: noise on one neuron of a network with a convexified loss (Lu et al. 2021); a claim.

A net m – 128 (tanh) – C is trained on all private records with the convexified loss (`training.gradients`) and stays
inside. Every query is answered from it by Algorithm 1 (`neuron`), with the sensitivities that the paper computes from
the sizes of the network alone (`formulas`). ε is that of *one* answer, as in the paper; `queries` answers may be asked
for, and by the paper's composition they have queries · ε together (√queries · ε with Gaussian noise).

Why nothing is promised. (1) With three classes or more the logits without noise are revealed exactly, up to a common
shift: one answer has no finite ε. (2) The sensitivities are not bounds: Δω divides a bound on all weights together by
√|W| as if each moved alike; hidden activations are treated as fixed; ρ is too small; the loss is not convex in the
weights of a network with a hidden layer; and what Adam ends with is not a minimiser. (3) The Gaussian variant's "ε" is
that of Gaussian DP: ε = 1 is (4.38, 1e-5)-DP. (4) When α is searched, it is chosen by accuracies on the private
records, and in the paper it always was. So the recorded event is a non-private one, ε is infinite and the unit "none".

The accuracy on the card is that of one noisy answer to every test record, beyond the answers that may be asked for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from typing import Annotated, Any, ClassVar, Literal

import dp_accounting as dpa
import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import nn

from airlock.accounting import Claim, Guarantee, repeat
from airlock.accounting.terms import Status
from airlock.config import Frozen, Positive, ReleaseConfig, from_table
from airlock.data import Facts, Records, Split
from airlock.errors import ConfigError, TrainingError
from airlock.mechanisms import Randomness, Stream
from airlock.methods.case import Case, Scores
from airlock.methods.contract import (
    NOTHING_ELSE_LEAVES,
    ArtefactKind,
    Channel,
    Details,
    Executed,
    Plan,
    Secrets,
)
from airlock.methods.interface import BY_ANSWERER, Answerer, Interface
from airlock.nets import create
from airlock.papers.answers.formulas import Sensitivities, gaussian_epsilon, neuron_budget
from airlock.papers.answers.neuron import NeuronAnswerer, NeuronNoise, Noise, keep
from airlock.training import Recipe, Resident, Run, Shuffled, count_correct, fit
from airlock.training.devices import to_input
from airlock.training.gradients import Convexified, MeanLoss, Objective, ObjectiveGradients, start_as_keras
from airlock.training.outcomes import Outcomes

THEOREMS = {
    "laplace": (
        "Theorem 6 of Lu et al. 2021, for one answer, which does not hold: {why}. By its Theorem 1 {queries:,} answers "
        "would have ε = {total:.4g}"
    ),
    "gaussian": (
        "Theorem 6 of Lu et al. 2021 carried over to Gaussian DP, for one answer, which does not hold: {why}. Read as "
        "Gaussian DP it would be ({one:.3g}, {delta:.3g})-DP, and {queries:,} answers ({total:.4g}, {delta:.3g})-DP"
    ),
}
_TOLD = "an answer reveals all logits but one exactly, up to a common shift, so no ε bounds it"
_UNBOUNDED = "one record can move an output by more than the noise was made for"
NOT_NOISY = (
    "NOT TRUE of this method: every output that an answer depends on has noise. All but one have none, and with three "
    "classes or more an answer reveals them."
)
NEEDED = (
    "NOT TRUE of the paper: one record moves every weight alike, by a small share of what it can move all of them.",
    "NOT TRUE of this method: the loss is convex in the weights, and training ends in its minimum.",
)
SEARCHED = (
    "NOT TRUE of this method: α was chosen without looking at the private records. It was chosen by the accuracy on "
    "them and on {judges} records, in the clear."
)
ASSUMPTIONS = (
    "Every feature of a record lies between −1 and 1.",
    "Settings and class names were chosen without looking at the private records.",
    "The noise stays secret and is not used again, and the network stays inside.",
    NOTHING_ELSE_LEAVES,
)
_NO_EPSILON = "none: all logits but one are revealed exactly"


# Settings; defaults are the paper's (Tables 3 and 4).

LARGEST_ALPHA, ALPHA_STEP = 10.0, 0.5
ALPHAS = tuple(ALPHA_STEP * i for i in range(1, round(LARGEST_ALPHA / ALPHA_STEP) + 1))
_TABLE_4 = {"location30": 1.0, "mnist": 1.0, "adult": 1.0, "cifar10": 2.0, "cifar100": 1.0}
_DEFAULT_ALPHA = 1.0


class PublishedSettings(Frozen):
    """How the network is trained and how answers are made.

    Args:
        loss: elements: convexified as in the authors' code, which gives the paper's figures; records: convexified as
            printed (Eq. 22); mean: not convexified, the paper's "original loss".
        alpha: α of the convexified loss; "search" tries 0.5, 1, ... 10 on the private records, as the paper did. Left
            out: the paper's for the data sets that it used, else 1.
        judged_on: Which records judge α, besides the private ones, when it is searched.
        noise: On the picked neuron.
        shares: How a query's ε is divided; with Gaussian noise the authors' code divides by 2√C + 1, the paper by
            √(4C + 1). With Laplace noise both by 2C + 1.
        l2: A factor on the squared weights, without biases; twice the λ of the sensitivities.
        learning_rate: Of Adam.
        batch_size: Records in a batch.
        epochs: Passes over the records.
        queries: How many answers may be asked for in total.
    """

    loss: Literal["elements", "records", "mean"] = "elements"
    alpha: Annotated[float, Field(gt=0, le=LARGEST_ALPHA)] | Literal["search"] | None = None
    judged_on: Literal["test", "public"] = "test"
    noise: Noise = "laplace"
    shares: Literal["paper", "code"] = "paper"
    l2: Positive = 0.001
    learning_rate: Positive = 0.001
    batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = 100
    epochs: Annotated[int, Field(ge=1, le=100_000)] = 100
    queries: Annotated[int, Field(ge=1, le=1_000_000_000)] = 1000

    def alpha_for(self, data: str) -> float | Literal["search"]:
        """α, by the data's name where it was left out."""
        return _TABLE_4.get(data, _DEFAULT_ALPHA) if self.alpha is None else self.alpha


def _check(settings: PublishedSettings, net: str, public_share: float) -> None:
    """Refuse settings that would be ignored or contradict each other.

    Raises:
        ConfigError: It says which.
    """
    ignored = "A key that is ignored hides a mistake."
    given = settings.model_fields_set
    if settings.loss == "mean" and "alpha" in given:
        raise ConfigError('no settings.alpha with settings.loss = "mean"', "one", ignored, "Leave alpha out.")
    if settings.alpha != "search" and "judged_on" in given:
        raise ConfigError('settings.alpha = "search" with settings.judged_on', "none", ignored, "Leave judged_on out.")
    if settings.judged_on == "public" and not public_share:
        raise ConfigError(
            'public records for settings.judged_on = "public"', "none", do="Set split.public, or judge on test records."
        )
    if net not in ("auto", "mlp"):
        raise ConfigError(
            "net 'mlp' for answers/published",
            f"'{net}'",
            "The paper's sensitivities are those of one hidden layer of 128 tanh units.",
            "Leave `net` out.",
        )


# The method.


class Published(Channel):
    """The paper's algorithm: status claimed, unit none."""

    channel: ClassVar[str] = "answers"
    method: ClassVar[str] = "published"
    title: ClassVar[str] = "answers with noise on one neuron, as published"
    artefact: ClassVar[ArtefactKind] = "interface"
    status: ClassVar[Status] = "claimed"
    leaves: ClassVar[str] = (
        "Answers to a limited number of queries, from a model that was trained on the private records without "
        "protection and stays inside. In every answer one of the model's outputs is changed at random."
    )
    unproven: ClassVar[str] = (
        "The paper's proof fails: all outputs but one get no noise, so with three classes or more an answer reveals "
        "them exactly; and the effect of one record on an output is underestimated."
    )
    sound_method: ClassVar[str] = "head"

    settings_model: ClassVar[type[Frozen] | None] = PublishedSettings
    settings: PublishedSettings

    def __init__(self, config: ReleaseConfig, facts: Facts) -> None:
        super().__init__(config, facts)
        _check(self.settings, config.net, config.split.public)
        self.records = facts.expected("private", config.split)
        self.alpha = self.settings.alpha_for(facts.name)

    @classmethod
    def case(cls, epsilon: float, delta: float) -> Case:
        """One answer, of three classes, from networks that were trained with and without one record."""
        return case_of_answer(cls, epsilon, delta)

    @classmethod
    def answerer(cls, interface: Interface, kept: Secrets) -> Answerer:
        """The answerer, from the interface and the network in the vault."""
        return NeuronAnswerer(interface, kept)

    @property
    def sensitivities(self) -> Sensitivities:
        """As the paper computes them, from public sizes."""
        inputs, classes = math.prod(self.facts.shape), len(self.facts.classes)
        return Sensitivities(inputs, classes, self.records, self.settings.l2 / 2)

    @property
    def noise(self) -> NeuronNoise:
        """Of one answer; repeated runs share ε."""
        s, sizes = self.settings, self.sensitivities
        kind = "gaussian-code" if (s.noise, s.shares) == ("gaussian", "code") else s.noise
        share = neuron_budget(self.config.epsilon / self.config.tuning_runs, sizes.classes, kind)
        return NeuronNoise(s.noise, sizes.of_a_logit, sizes.of_a_probability, share)

    @property
    def recipe(self) -> Recipe:
        """Its steps follow from the public number of records."""
        steps = self.settings.epochs * math.ceil(self.records / self.settings.batch_size)
        return Recipe(steps=steps, optimiser="adam", learning_rate=self.settings.learning_rate, precision="fp32")

    def plan(self) -> Plan:
        """What is claimed of an answer; touches no record."""
        s, sizes, noise = self.settings, self.sensitivities, self.noise
        details: dict[str, str | int | float] = {
            "net": "mlp",
            "loss": "mean" if s.loss == "mean" else f"convexified, mean over {s.loss}",
            **({} if s.loss == "mean" else {"alpha": self.alpha}),
            "l2": s.l2,
            "learning_rate": s.learning_rate,
            "batch_size": s.batch_size,
            "steps": self.recipe.steps,
            "queries": s.queries,
            "noise": s.noise,
            "noise_scale": noise.scale,
            "claimed_epsilon_per_answer": self.config.epsilon / self.config.tuning_runs,
            "claimed_neuron_epsilon": noise.epsilon,
            "claimed_lipschitz_constant": sizes.lipschitz,
            "claimed_weight_sensitivity": sizes.of_one_weight,
            "claimed_logit_sensitivity": sizes.of_a_logit,
            "claimed_probability_sensitivity": sizes.of_a_probability,
            "claimed_stability": sizes.stability,
            "epsilon_per_answer": _NO_EPSILON if sizes.classes > 2 else "none: the sensitivity is not a bound",
        }
        return Plan(self.channel, self.method, self.leaves, self._guarantee(self._events()), details)

    def interface(self) -> Interface:
        """What may be asked; all of it public."""
        unit = f"one answer, for which ε = {self.config.epsilon:g} is claimed and not proven"
        shape, classes, figures = self.facts.shape, self.facts.classes, self.noise.figures
        return Interface("probabilities", shape, classes, self.settings.queries, unit, figures)

    def execute(self, plan: Plan, split: Split, randomness: Randomness, run: Run) -> Executed:
        """Train the network, keep it, and measure the accuracy of one answer per test record."""
        alpha = self.search(split, run) if self.alpha == "search" else self.alpha
        net = self.train(split.private, self.objective(alpha), run)
        interface, kept = self.interface(), keep(net)
        utility = measure(NeuronAnswerer(interface, kept), split.test, randomness.privacy.child("utility"))
        executed = repeat(dpa.NonPrivateDpEvent(), self.config.tuning_runs)  # the network was trained in the clear
        inside: Details = {"alpha_found": alpha} if self.alpha == "search" else {}
        return Executed(interface, executed, utility, noise_made_on=BY_ANSWERER, secrets=kept, inside=inside)

    def objective(self, alpha: float) -> Objective:
        """What is minimised at this α."""
        s = self.settings
        return MeanLoss(s.l2) if s.loss == "mean" else Convexified(alpha, s.loss, s.l2)

    def start(self) -> nn.Module:
        """The network before training, started as in Keras."""
        net = create("mlp", self.facts.shape, len(self.facts.classes), self.config.seed)
        start_as_keras(net, self.config.seed)
        return net

    def train(self, records: Records, objective: Objective, run: Run, label: str = "training") -> nn.Module:
        """The trained network, on the CPU; it must not leave.

        Raises:
            TrainingError: It diverged.
        """
        net, s = self.start(), self.settings
        sampler, gradients = Shuffled(s.batch_size, self.config.seed), ObjectiveGradients(objective)
        fit(net, Resident(records, run.device), sampler, gradients, self.recipe, self.config.seed, run, label=label)
        net = net.cpu().eval().requires_grad_(False)
        if not all(bool(p.isfinite().all()) for p in net.parameters()):
            raise TrainingError(
                "finite parameters", "others", "Training diverged.", "Lower settings.learning_rate or settings.alpha."
            )
        return net

    def search(self, split: Split, run: Run) -> float:
        """The α whose accuracies are closest to those without convexification, as the paper searched it.

        Closest in the sum of the differences on private records and on those that judge; the smallest α among equals.
        The paper says only that both are to be "(almost) the same".
        """
        judges = split.public if self.settings.judged_on == "public" else split.test

        def accuracies(objective: Objective, name: str) -> NDArray[np.float64]:
            own = replace(run, checkpoint=run.checkpoint and run.checkpoint / name)
            net = self.train(split.private, objective, own, f"trying {name}")
            return np.array([count_correct(net, part) / max(1, len(part)) for part in (split.private, judges)])

        wanted = accuracies(MeanLoss(self.settings.l2), "mean")
        apart = [np.abs(accuracies(self.objective(a), f"alpha-{a:g}") - wanted).sum() for a in ALPHAS]
        return ALPHAS[int(np.argmin(apart))]

    def _events(self) -> dpa.DpEvent:
        return repeat(dpa.NonPrivateDpEvent(), self.config.tuning_runs)

    def _guarantee(self, events: dpa.DpEvent) -> Guarantee:
        many = len(self.facts.classes) > 2
        searched = (SEARCHED.format(judges=self.settings.judged_on),) if self.alpha == "search" else ()
        assumptions = (*((NOT_NOISY,) if many else ()), *NEEDED, *searched, *ASSUMPTIONS)
        claim = Claim(self.config.epsilon, self.config.delta, self._theorem(_TOLD if many else _UNBOUNDED))
        return self.promise(events, assumptions, unit="none", claim=claim)

    def _theorem(self, why: str) -> str:
        epsilon, delta, queries = self.config.epsilon, self.config.delta, self.settings.queries
        gaussian = self.settings.noise == "gaussian"
        total = gaussian_epsilon(epsilon * math.sqrt(queries), delta) if gaussian else queries * epsilon
        one = gaussian_epsilon(epsilon, delta)
        return THEOREMS[self.settings.noise].format(why=why, queries=queries, one=one, total=total, delta=delta)


def measure(answerer: Answerer, records: Records, stream: Stream) -> Outcomes:
    """What every record is told about itself, with one answer each."""
    if not len(records):
        return Outcomes(records.y, records.y)
    x = to_input(torch.from_numpy(np.ascontiguousarray(records.x))).numpy()
    answers = answerer.answer(x, answerer.reserve(len(records)), stream)
    return Outcomes(records.y, answers.labels.astype(np.int64))


# The case for the court: two trainings, with and without one record, and one answer per run.
#
# All other records are alike: the same features, class 0. The one that differs has a feature and a class that no other
# record has. The query is that record. The real training code trains a network on either set; then every run is one
# answer by the real algorithm. Both networks are known to the court.
#
# With three classes or more an answer reveals ln p_u/p_w = z_u − z_w for every pair without noise: the score is which
# network has such a pair at exactly that place, and it does not err. With two, all that is revealed is z_0 − z_1 with
# noise of one known scale; the two networks are further apart than the paper's sensitivity says, and the score is what
# is revealed. The claim is the paper's for one answer; for Gaussian noise, which it states as Gaussian DP, the (ε, δ)
# that this means.

Kept = Mapping[bool, Secrets]  # what stays inside, with the record and without

CASE_CLASSES = 3
_CASE_RECORDS = 10_000
_CASE_SETTINGS = {"batch_size": 1000}  # the paper's 100 would take ten times as long, and show more
QUERY = np.array([[1.0, 0.0]], np.float32)
_TINY = 1e-300
PAIR = (
    f"{_CASE_RECORDS:,} records, with and without one that has its own feature and its own class; the network is "
    "trained on either set, and asked about that record"
)
_LOG_ODDS = "the log-odds of the first class in the answer"
_CLOSEST = "how much closer the closest log-ratio of two probabilities is to the network with the record"


def case_facts(classes: int) -> Facts:
    """Two features; the number of records is that of the set with the record."""
    names = tuple(map(str, range(classes)))
    return Facts("court", (2,), names, _CASE_RECORDS, 1, "made up for the court")


def case_config(epsilon: float, delta: float, **settings: Any) -> ReleaseConfig:
    """The paper's settings, with larger batches."""
    table = {
        "channel": "answers",
        "method": "published",
        "data": "court",
        "epsilon": epsilon,
        "delta": delta,
        "split": {"test": 0.0, "holdout": 0.0},
        "device": "cpu",
        "settings": {**_CASE_SETTINGS, **settings},
    }
    return from_table(table)


def neighbours() -> tuple[Records, Records]:
    """With and without the record; the one that differs comes last."""
    x, y = np.tile(1 - QUERY, (_CASE_RECORDS, 1)), np.zeros(_CASE_RECORDS, np.int64)
    x[-1], y[-1] = QUERY, 1
    both = Records(x, y)
    return both, both.take(np.arange(_CASE_RECORDS - 1))


def case_of_answer(
    method: type[Published], epsilon: float, delta: float, classes: int = CASE_CLASSES, **settings: Any
) -> Case:
    """One answer about the record; the networks are trained here, once per side."""
    channel = method(case_config(epsilon, delta, **settings), case_facts(classes))
    return case_of_networks(channel, train_both(channel))


def train_both(channel: Published) -> Kept:
    """The networks with and without the record, by the method's own training."""
    assert channel.alpha != "search"
    objective = channel.objective(channel.alpha)
    with torch.random.fork_rng(devices=[]):
        kept = [keep(channel.train(side, objective, Run())) for side in neighbours()]
    return dict(zip((True, False), kept, strict=True))


def case_of_networks(channel: Published, kept: Kept) -> Case:
    """One answer from either network."""
    answerers = {known: NeuronAnswerer(channel.interface(), kept[known]) for known in (True, False)}
    both, others = (answerers[known].logits(QUERY)[0] for known in (True, False))
    classes, epsilon, delta = len(channel.facts.classes), channel.config.epsilon, channel.config.delta

    def run(with_record: bool, count: int, stream: Stream) -> Scores:
        asked = answerers[with_record]
        values = asked.answer(QUERY.repeat(count, 0), asked.reserve(count), stream).values
        assert values is not None
        logs = np.log(np.maximum(values, _TINY))
        scores = [logs[:, 0] - np.log(np.maximum(values[:, 1:].sum(1), _TINY))]
        if classes > 2:
            scores.append(_apart(logs, others) - _apart(logs, both))
        return np.stack(scores, 1)

    gaussian = channel.settings.noise == "gaussian"
    stated = gaussian_epsilon(epsilon, delta) if gaussian else epsilon
    theorem = "Theorem 6 of Lu et al. 2021, for one answer" + (", as Gaussian DP" if gaussian else "")
    return Case(Claim(stated, delta, theorem), PAIR, (_LOG_ODDS,) if classes == 2 else (_LOG_ODDS, _CLOSEST), run)


def _apart(logs: NDArray[np.float64], logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """The logarithm of how far the closest pair is from a network's; rounding alone leaves some 1e-15."""
    pairs = [np.abs(logs[:, u] - logs[:, w] - (logits[u] - logits[w])) for u, w in combinations(range(len(logits)), 2)]
    found: NDArray[np.float64] = np.log(np.maximum(np.min(pairs, 0), 1e-12))
    return found
