"""`answers`/`published`: noise on one neuron of a network with a convexified loss (Lu et al. 2021); a claim.

A net m – 128 (tanh) – C is trained on all private records with the convexified loss (`training.gradients`) and stays
inside. Every query is answered from it by Algorithm 1 (`neuron`), with the sensitivities that the paper computes from
the sizes of the network alone (`formulas`). ε is that of *one* answer, as in the paper; `queries` answers may be asked
for, and the paper's composition makes queries · ε of them (√queries · ε with Gaussian noise).

Why nothing is promised. (1) With three classes or more the logits without noise are told exactly, up to a common shift:
one answer has no finite ε. (2) The sensitivities are no bounds: Δω divides a bound on all weights together by √|W| as
if each moved alike; hidden activations are taken as fixed; ρ is too small; the loss is not convex in the weights of a
network with a hidden layer; and what Adam ends with is no minimiser. (3) The Gaussian variant's "ε" is that of Gaussian
DP: ε = 1 is (4.38, 1e-5)-DP. (4) α is chosen by accuracies on the private records when it is searched, and in the paper
it always was. So the recorded event is a non-private one, ε is infinite and the unit "none".

The accuracy on the card is that of one noisy answer to every test record, beyond the answers that may be asked for.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

import dp_accounting as dpa
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from airlock.accounting import Claim, Guarantee, repeat
from airlock.accounting.guarantee import Status
from airlock.config import ReleaseConfig, parse
from airlock.data import Facts, Records, Split
from airlock.errors import TrainingError
from airlock.mechanisms import Randomness, Stream
from airlock.methods.case import Case
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
from airlock.papers.answers import case as published_case
from airlock.papers.answers.formulas import Sensitivities, gaussian_epsilon, neuron_budget
from airlock.papers.answers.neuron import NeuronAnswerer, NeuronNoise, keep
from airlock.papers.answers.settings import ALPHAS, PublishedSettings, check
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
_TOLD = "an answer tells all logits but one exactly, up to a common shift, so that no ε bounds it"
_UNBOUNDED = "one record can move an output by more than the noise was made for"
NOT_NOISY = (
    "NOT TRUE of this method: every output that an answer depends on has noise. All but one have none, and with three "
    "classes or more an answer tells them."
)
NEEDED = (
    "NOT TRUE of the paper: one record moves every weight by the same small share of what it can move them in all.",
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
_NO_EPSILON = "none: all logits but one are told exactly"


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
        "The paper's proof fails: all outputs but one get no noise, so that with three classes or more an answer tells "
        "them exactly; and the effect of one record on an output is taken too small."
    )
    sound_method: ClassVar[str] = "head"

    def __init__(self, config: ReleaseConfig, facts: Facts) -> None:
        super().__init__(config, facts)
        self.settings = parse(PublishedSettings, config.settings, where="settings")
        check(self.settings, config.net, config.split.public)
        self.records = facts.expected("private", config.split)
        self.alpha = self.settings.alpha_for(facts.name)

    @classmethod
    def case(cls, epsilon: float, delta: float) -> Case:
        """One answer, of three classes, from networks that were trained with and without one record."""
        return published_case.of_answer(cls, epsilon, delta)

    @classmethod
    def answerer(cls, interface: Interface, kept: Secrets) -> Answerer:
        """Whoever answers, from the interface and the network in the vault."""
        return NeuronAnswerer(interface, kept)

    @property
    def sensitivities(self) -> Sensitivities:
        """As the paper computes them, from public sizes."""
        inputs, classes = math.prod(self.facts.shape), len(self.facts.classes)
        return Sensitivities(inputs, classes, self.records, self.settings.l2 / 2)

    @property
    def noise(self) -> NeuronNoise:
        """Of one answer; runs that are repeated share ε."""
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
            "epsilon_per_answer": _NO_EPSILON if sizes.classes > 2 else "none: the sensitivity is no bound",
        }
        return Plan(self.channel, self.method, self.leaves, self._guarantee(self._events()), details)

    def interface(self) -> Interface:
        """What may be asked; all of it public."""
        unit = f"one answer, for which ε = {self.config.epsilon:g} is claimed and not proven"
        shape, classes, figures = self.facts.shape, self.facts.classes, self.noise.figures
        return Interface("probabilities", shape, classes, self.settings.queries, unit, figures)

    def execute(self, plan: Plan, split: Split, randomness: Randomness, run: Run) -> Executed:
        """Train the network, keep it, and let one answer to every test record show what answers are worth."""
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
    """What every record is told about itself, by one answer each."""
    if not len(records):
        return Outcomes(records.y, records.y)
    x = to_input(torch.from_numpy(np.ascontiguousarray(records.x))).numpy()
    answers = answerer.answer(x, answerer.reserve(len(records)), stream)
    return Outcomes(records.y, answers.labels.astype(np.int64))
