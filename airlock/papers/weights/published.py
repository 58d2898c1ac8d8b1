"""`weights`/`published`: optimised additive noise (Xiang, Yang and Li 2019, Algorithm 1), as published; a claim.

Each iteration: w = mean gradient over the whole private set; σ from w (`optimised_noise`); clip per record to α; sum
over a Poisson lot; add N(0, diag σ²); divide. With `noise_on = "mean"` the noise is added after dividing, as the paper
writes it, which is too much noise to learn from at these lot sizes; the authors' later code adds it to the sum.

Why nothing is promised. (1) w comes from every private record, without noise or clipping, and σ carries it into the
release: no ε bounds that. So the recorded event is a non-private one in every iteration, ε is infinite, and the unit is
"none". (2) If w were public, one iteration would be the Gaussian mechanism with the *smallest* σ over α, because a
clipped gradient may point along that coordinate; and the smallest σ is at most that of equal noise, α/√τ. (3) Even
equal noise has a larger ε than claimed: after Eq. 9 the paper takes E[e^{λc}] = exp(λs/2), but it is exp(λ(λ+1)s/2).

What may be said when. Before a record is read: the claim, and the ε of equal noise (`equal_noise_epsilon`), which every
run exceeds even with w public. The smallest σ of a run follows from the private records: it enters no event and no
plan. Its ε is put into the dossier after training, rounded and marked as unprotected like the attack figures; min u of
every step goes to the vault.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, cast

import dp_accounting as dpa
import numpy as np
from pydantic import Field
from torch import nn

from airlock.accounting import Claim, Guarantee, compute_epsilon
from airlock.accounting.epsilon import LARGEST
from airlock.accounting.terms import Status
from airlock.config import ReleaseConfig
from airlock.data import Facts, Split
from airlock.mechanisms import Randomness
from airlock.methods import dp_sgd_case
from airlock.methods.case import Canaries, Case
from airlock.methods.contract import Details, Secrets
from airlock.methods.dp_sgd import DpSgdFigures, NoisyTrainingSettings
from airlock.methods.weights.gaussian import TrainedWeights, settings_for
from airlock.papers.weights.optimised_noise import OptimisedGradients, SensitivityFrom, Solver, budget, one_iteration
from airlock.training import Poisson, Resident
from airlock.training.gradients import Gradients
from airlock.training.sampling import sampled

THEOREM = (
    "Theorem 1 of Xiang, Yang and Li 2019, which does not hold: the noise is shaped by the private records without "
    "protection, so no ε bounds it; were the shape public, the smallest noise would decide, and ε would be at least "
    "the {epsilon} of equal noise"
)
NEEDED = (
    "NOT TRUE of this method: the shape of the noise does not depend on the private records. It is computed from all "
    "of them, without noise and without clipping.",
    "NOT TRUE of this method: every direction that a clipped gradient can take gets the noise that was accounted for. "
    "Along the coordinate with the smallest noise it gets less.",
    "NOT TRUE of the paper: the moment bound after its Eq. 9. A factor λ + 1 is missing.",
)
# Table II; 30 epochs. The paper gives no learning rate.
_BY_NAME: dict[str, dict[str, Any]] = {
    "digits": {"steps": 40, "lot_size": 1797, "clip_norm": 1.0, "learning_rate": 0.3},
    "mnist": {"steps": 1650, "lot_size": 1000, "clip_norm": 4.0, "learning_rate": 0.1, "momentum": 0.0},
    "svhn": {"steps": 2198, "lot_size": 1000, "clip_norm": 0.2, "learning_rate": 2.0, "momentum": 0.0},
    "cifar10": {"steps": 1500, "lot_size": 1000, "clip_norm": 0.2, "learning_rate": 2.0, "momentum": 0.0},
}


class PublishedSettings(NoisyTrainingSettings):
    """Private training with the paper's noise.

    Args:
        solver: Projected gradient steps on Eq. 11, as in the paper; or the closed form of the authors' later code,
            which is not in the paper and gets the paper's budget here.
        refresh: After how many iterations w and the shape are computed again; 1 in the paper.
        sensitivity_from: w over all private records as in the paper, or estimated from the lot of the iteration, at a
            55th of the cost on MNIST.
        noise_on: Whether the noise is added to the sum of the clipped gradients or to their mean.
        moment_order: λ of Eq. 9; when left out, the limit of large orders.
    """

    solver: Solver = "projected"
    refresh: Annotated[int, Field(ge=1)] = 1
    sensitivity_from: SensitivityFrom = "all"
    noise_on: Literal["sum", "mean"] = "sum"
    moment_order: Annotated[int, Field(ge=1)] | None = None


class Published(TrainedWeights):
    """Optimised additive noise; status claimed, unit none."""

    method: ClassVar[str] = "published"
    title: ClassVar[str] = "a network with optimised noise, as published"
    status: ClassVar[Status] = "claimed"
    distributed: ClassVar[bool] = False
    leaves: ClassVar[str] = (
        "A trained model with all its weights. Noise was added in each step of its training, but how much each weight "
        "got was computed from the private records without protection."
    )
    unproven: ClassVar[str] = (
        "The paper's proof fails: the noise is shaped by the private records without protection, is too small along "
        "some directions, and its moment bound lacks a factor."
    )
    sound_method: ClassVar[str] = "shaped"
    settings: PublishedSettings

    def __init__(self, config: ReleaseConfig, facts: Facts) -> None:
        super().__init__(config, facts)
        iterations = self.settings.steps * config.tuning_runs
        self.budget = budget(
            config.epsilon, config.delta, self.sampling_probability, iterations, self.settings.moment_order
        )

    @classmethod
    def case(cls, epsilon: float, delta: float) -> Case:
        """One iteration on a lot, which the paper claims to be (ε_t, δ_t)-private, at ε_t = ε and δ_t = δ."""
        made = cls(dp_sgd_case.step_config(cls.method, epsilon, delta), dp_sgd_case.STEP_FACTS)
        made.budget = one_iteration(epsilon, delta, made.settings.moment_order)
        claim = Claim(epsilon, delta, "Eq. 9 and 10 of Xiang, Yang and Li 2019, for one iteration")
        return dp_sgd_case.lot_case(made, claim)

    @classmethod
    def canaries(cls, epsilon: float, delta: float, count: int) -> Canaries:
        """Many steps on every record: the more of them, the further the paper's Eq. 12 falls below their true cost."""
        config = dp_sgd_case.canary_config(cls.method, epsilon, delta, count, steps=100, lot=1.0)
        return dp_sgd_case.training_canaries(cls(config, dp_sgd_case.canary_facts(count)))

    @cached_property
    def equal_noise_epsilon(self) -> float:
        """What equal noise of the paper's size would cost: no run of this method can cost less."""
        return self._epsilon(self.noise_multiplier())

    def parse_settings(self) -> PublishedSettings:
        """The user's settings over the paper's, for the data sets that it used."""
        return settings_for(self.config, self.facts, PublishedSettings, _BY_NAME)

    def noise_multiplier(self) -> float:
        """Of equal noise, over the sensitivity of what it is added to; the smallest noise of any shape is below it."""
        return self.budget.noise_multiplier * (self.expected_lot if self.settings.noise_on == "mean" else 1.0)

    def step_event(self, noise_multiplier: float) -> dpa.DpEvent:
        """One iteration reads every private record without protection."""
        return dpa.NonPrivateDpEvent()

    def executed_step(self, sampler: Poisson, gradients: Gradients) -> dpa.DpEvent:
        """As planned: the shape of the noise came from the private records."""
        return dpa.NonPrivateDpEvent()

    def extras(self) -> Details:
        """The paper's budget per iteration, and what equal noise of that size would really cost."""
        return {
            "solver": self.settings.solver,
            "refresh": self.settings.refresh,
            "sensitivity_from": self.settings.sensitivity_from,
            "noise_on": self.settings.noise_on,
            "claimed_epsilon_per_step": self.budget.epsilon,
            "claimed_delta_per_step": self.budget.delta,
            "tau": self.budget.tau,
            "equal_noise_epsilon": _stated(self.equal_noise_epsilon),
        }

    def source(
        self, net: nn.Module, split: Split, data: Resident, figures: DpSgdFigures, randomness: Randomness
    ) -> Gradients:
        """The paper's noisy gradients; they read the whole private set."""
        return OptimisedGradients(
            data,
            figures.clip_norm,
            self.budget.noise_multiplier,
            figures.expected_lot,
            randomness.privacy.child("gradients"),
            self.settings.solver,
            self.settings.refresh,
            self.settings.noise_on,
            self.settings.sensitivity_from,
        )

    def unpaid(self, gradients: Gradients) -> Details:
        """The ε if w were public and every step had the smallest noise of the run."""
        smallest = min(cast(OptimisedGradients, gradients).smallest, default=1.0)
        epsilon = self._epsilon(smallest * self.noise_multiplier())
        words = f"above {LARGEST:,.0f}" if math.isinf(epsilon) else f"about {epsilon:.2g}"
        return {"smallest_noise_epsilon": words}

    def kept(self, gradients: Gradients) -> Secrets:
        """The smallest factor on equal noise, for each shape."""
        smallest = cast(OptimisedGradients, gradients).smallest
        return {"noise": {"smallest_factor": np.asarray(smallest, np.float64)}}

    def guarantee(self, events: dpa.DpEvent) -> Guarantee:
        """Nothing is promised; the paper's claim is recorded."""
        stated = _stated(self.equal_noise_epsilon)
        theorem = THEOREM.format(epsilon=f"ε = {stated:.3g}" if isinstance(stated, float) else f"ε {stated}")
        claim = Claim(self.config.epsilon, self.config.delta, theorem)
        return self.promise(events, (*NEEDED, *self.assumptions()), unit="none", claim=claim)

    def _epsilon(self, noise_multiplier: float) -> float:
        """The ε of the whole release if every step were the Gaussian mechanism with this noise and a public shape."""
        if noise_multiplier <= 0:
            return math.inf
        step = sampled(self.sampling_probability, dpa.GaussianDpEvent(noise_multiplier))
        whole = self.whole(step, self.settings.steps)
        return compute_epsilon(whole, self.config.delta, accountant=self.config.accountant).epsilon


def _stated(epsilon: float) -> str | float:
    return f"above {LARGEST:,.0f}" if math.isinf(epsilon) else epsilon
