"""`weights`/`gaussian`: DP-SGD (Abadi et al. 2016) with Poisson lots, per-record clipping and PLD accounting.

Proof. With every record's gradient clipped to C, adding or removing one record moves the sum by at most C. Noise
N(0, z²C²) on the sum of a Poisson lot is `PoissonSampledDpEvent(q, GaussianDpEvent(z))`; k steps compose; dividing by a
public constant, the optimiser and the averaging of weights are post-processing. The noise is added on a public grid
(`mechanisms.gaussian`), lots and noise come from the secret stream.
"""

from __future__ import annotations

from typing import ClassVar, cast

import dp_accounting as dpa
from torch import nn

from airlock.channels.contract import Plan
from airlock.channels.weights.training import NoisyTraining
from airlock.data import Split
from airlock.mechanisms import Clip, Randomness
from airlock.training import Poisson, PrivateGradients, Resident
from airlock.training.gradients import Gradients


class Gaussian(NoisyTraining):
    """DP-SGD; status proven, unit record, relation add-remove."""

    method: ClassVar[str] = "gaussian"

    def source(self, net: nn.Module, split: Split, data: Resident, plan: Plan, randomness: Randomness) -> Gradients:
        """Clipped per-record gradients with noise of the planned size."""
        return PrivateGradients(
            self.clip(net, split, data),
            float(plan.details["noise_multiplier"]),
            self.expected_lot,
            randomness.privacy.child("gradients"),
        )

    def clip(self, net: nn.Module, split: Split, data: Resident) -> Clip:
        """How one record's gradient is bounded: in the plain norm."""
        return Clip(self.settings.clip_norm)

    def executed_step(self, sampler: Poisson, gradients: Gradients) -> dpa.DpEvent:
        """What one step cost: the noise that was added, on a lot of the sampler that drew it."""
        return sampler.event(cast(PrivateGradients, gradients).noise.event)
