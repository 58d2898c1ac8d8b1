"""Answers from one private head, each with noise of its own: how much, and how it is drawn.

Proof for one query. Its features φ follow from the query and public tensors, so they are the same whichever records
the head W was solved on, and ‖φ‖ ≤ R is enforced. One record more or less moves W by at most Δ in L2
(`training.convex`), so

    ‖Wφ − W'φ‖₂ ≤ ‖W − W'‖_op ‖φ‖ ≤ ‖W − W'‖_F R ≤ Δ R,

by Cauchy and Schwarz in every row; and two of its coordinates move apart by at most √2 Δ R, because |a − b| ≤
√2 √(a² + b²). Logits are computed in float64. W is projected to a ball of public radius B, which brings no two heads
further apart, so a computed logit is off by at most e = γ(width) B R (Higham 2002): in L2 that is 2√C e more for a
pair, 4e more for the spread. Both are part of the sensitivity.

* logits: rounded to a public grid, with a discrete Gaussian on each (`GridNoise`): ρ-zCDP, ρ = 1/(2z²).
* label: the largest of such logits, or `ExponentialMechanism` over the true ones, whose losses lie in one
  interval of length ε₀: ε₀-DP and ε₀²/8-zCDP. As the largest of logits with Gumbel noise, two of them are told apart
  under noise of standard deviation (π/√3) √2ΔR/ε₀, where Gaussian noise has √2 zΔR. At equal ρ = ε₀²/8 = 1/(2z²) that
  is 0.907 times as much; accounted as pure ε₀ it is less still for a handful of queries. Which is best follows from
  public figures.

Answers are independent given W, queries may be chosen by earlier answers, and the number Q of all answers is fixed in
advance, so Q answers are Q of these events.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import dp_accounting as dpa
import numpy as np
import torch
from torch import Tensor

from airlock.accounting import calibrate, pure, repeat
from airlock.accounting.epsilon import Accountant
from airlock.mechanisms import ExponentialMechanism, GridNoise, Stream
from airlock.methods.answers.answerer import HEAD, Desk
from airlock.methods.contract import Secrets
from airlock.methods.interface import Answers, Interface

Way = Literal["gaussian", "exponential", "exponential, pure"]

GUMBEL = math.pi / math.sqrt(3)  # the deviation of the difference of two standard Gumbel numbers
_FEW = 64  # queries up to which pure accounting is tried: it grows with Q twice as fast as the other in the end


@dataclass(frozen=True)
class Noise:
    """How an answer is drawn, before the sensitivity is known.

    Args:
        way: By which mechanism.
        multiplier: Deviation of the noise between two logits, over that of their sensitivity; the smaller, the better.
    """

    way: Way
    multiplier: float

    @property
    def epsilon(self) -> float:
        """ε₀ of the exponential mechanism."""
        return GUMBEL / self.multiplier

    @property
    def event(self) -> dpa.DpEvent:
        """Of one answer."""
        if self.way == "gaussian":
            return dpa.ZCDpEvent(0.5 / self.multiplier**2, 0.0)
        return pure(self.epsilon) if self.way == "exponential, pure" else dpa.ZCDpEvent(self.epsilon**2 / 8, 0.0)


def least_noise(
    label: bool, queries: int, runs: int, epsilon: float, delta: float, accountant: Accountant = "auto"
) -> Noise:
    """The way with the least noise for so many answers at this cost.

    Args:
        label: Whether answers are labels alone.
        queries: Q.
        runs: How often all of this is done before one result is picked.
        epsilon: The target.
        delta: The δ it is stated at.
        accountant: As in `compute_epsilon`.
    """

    def fitted(way: Way) -> Noise:
        found = calibrate(
            lambda z: repeat(repeat(Noise(way, z).event, queries), runs), epsilon, delta, accountant=accountant
        )
        return Noise(way, found)

    if not label:
        return fitted("gaussian")
    ways: list[Way] = ["exponential", "gaussian"] if accountant != "pld" else []
    ways += ["exponential, pure"] if queries <= _FEW or not ways else []
    return min((fitted(way) for way in ways), key=lambda noise: noise.multiplier)


class Noisy(Desk):
    """Wφ with noise, for every query by itself; one unit an answer."""

    def __init__(self, interface: Interface, kept: Secrets) -> None:
        super().__init__(interface, kept)
        figures = interface.figures
        self._head = torch.from_numpy(np.asarray(kept[HEAD]["weight"], np.float64))
        self._way, multiplier = str(figures["way"]), float(figures["noise_multiplier"])
        sensitivity, spread = float(figures["sensitivity"]), float(figures["spread"])
        self._grid = GridNoise("gaussian", sensitivity, multiplier, len(interface.classes))
        self._choice = ExponentialMechanism(spread, GUMBEL / multiplier, self._way != "exponential, pure")

    @property
    def event(self) -> dpa.DpEvent:
        """Of one answer, as the mechanism that is used states it."""
        return self._grid.event if self._way == "gaussian" else self._choice.event

    def _decide(self, features: Tensor, stream: Stream) -> Answers:
        logits = (features @ self._head.mT).numpy()
        if self._way != "gaussian":
            return Answers(self._choice.pick(logits, stream))
        noisy = self._grid.add_rows(logits, stream)
        labels = noisy.argmax(1).astype(np.int64)
        return Answers(labels, noisy if self.interface.gives == "logits" else None)
