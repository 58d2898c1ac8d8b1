"""DP-SGD (Abadi et al. 2016) with Poisson lots, per-record clipping and PLD accounting, for any channel.

Proof. With every record's gradient clipped to C, adding or removing one record moves the sum by at most C. Noise
N(0, z²C²) on the sum of a Poisson lot is `PoissonSampledDpEvent(q, GaussianDpEvent(z))`; k steps compose; dividing by a
public constant, the optimiser and the averaging of weights are post-processing. The noise is added on a public grid
(`mechanisms.gaussian`), lots and noise come from the secret stream.

With `clip = "adaptive"` C follows a quantile of the norms through a noisy count, and the event is the same: sum and
count together are one Gaussian mechanism with z (`mechanisms.quantile` has the proof). With `augment_multiplicity` the
gradient that is clipped is the mean over a record's copies: the bound, and so the event, is the same.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import cast

import dp_accounting as dpa
import torch
from torch import nn

from airlock.config import ReleaseConfig
from airlock.data import Facts, Split
from airlock.errors import ConfigError
from airlock.mechanisms import Clip, QuantileBound, Randomness
from airlock.methods.contract import Details, Plan
from airlock.methods.noisy_settings import GaussianTraining
from airlock.methods.noisy_training import NoisyTraining
from airlock.nets.registry import seed_torch
from airlock.training import Poisson, PrivateGradients, Resident
from airlock.training.augment import named
from airlock.training.gradients import Gradients
from airlock.training.loop import Augment

_ONLY_ADAPTIVE = ("clip_quantile", "clip_rate", "clip_count_noise")


class DpSgd(NoisyTraining):
    """DP-SGD; status proven, unit record, relation add-remove."""

    settings: GaussianTraining

    def __init__(self, config: ReleaseConfig, facts: Facts) -> None:
        super().__init__(config, facts)
        unused = [name for name in _ONLY_ADAPTIVE if name in self.settings.model_fields_set]
        if unused and self.settings.clip == "fixed":
            raise ConfigError(
                f'settings.clip = "adaptive" beside settings.{unused[0]}',
                '"fixed"',
                "A clip norm that stays has no use for it.",
                f'Set clip = "adaptive", or leave {unused[0]} out.',
            )

    @abstractmethod
    def parse_settings(self) -> GaussianTraining:
        """The user's settings over the defaults for this data."""

    def plan(self) -> Plan:
        """DP-SGD's, with what a moving clip norm and copies of records change; touches no record."""
        self._check_copies()
        plan = super().plan()
        more: dict[str, str | int | float] = {}
        if self.settings.augment_multiplicity > 1:
            more["augment_multiplicity"] = self.settings.augment_multiplicity
        moving = self.moving(float(plan.details["noise_multiplier"]))
        if moving:
            noise = moving.gradient_noise(float(plan.details["noise_multiplier"]))
            more |= {
                "clip": f"adaptive, from clip_norm towards the {moving.quantile:g} quantile of the norms",
                "clip_count_noise": moving.count_noise,
                "noise_multiplier_of_gradients": noise,
                "noise_on_mean_gradient": noise * self.settings.clip_norm / self.expected_lot,
            }
        return replace(plan, details={**plan.details, **more})

    def moving(self, noise_multiplier: float) -> QuantileBound | None:
        """How the clip norm moves; every number of it is public."""
        settings = self.settings
        if settings.clip == "fixed":
            return None
        count_noise = settings.clip_count_noise or max(self.expected_lot / 20, noise_multiplier)
        return QuantileBound(settings.clip_quantile, settings.clip_rate, count_noise)

    def source(self, net: nn.Module, split: Split, data: Resident, plan: Plan, randomness: Randomness) -> Gradients:
        """Clipped per-record gradients with noise of the planned size."""
        noise_multiplier = float(plan.details["noise_multiplier"])
        return PrivateGradients(
            self.clip(net, split, data),
            noise_multiplier,
            self.expected_lot,
            randomness.privacy.child("gradients"),
            self.moving(noise_multiplier),
            sampled=self.sampling_probability < 1,
        )

    def clip(self, net: nn.Module, split: Split, data: Resident) -> Clip:
        """How one record's gradient is bounded: in the plain norm."""
        return Clip(self.settings.clip_norm)

    def measured(self, gradients: Gradients) -> Details:
        """Where a moving clip norm ended: it follows from noisy counts that are paid for."""
        source = cast(PrivateGradients, gradients)
        moved = source.clip.norm / source.start
        return {"final_clip_norm": float(f"{self.settings.clip_norm * moved:.4g}")} if source.moving else {}

    def augmentation(self) -> Augment | None:
        """Every copy of a record is changed on its own."""
        return named(self.settings.augment, self.settings.augment_multiplicity)

    def executed_step(self, sampler: Poisson, gradients: Gradients) -> dpa.DpEvent:
        """What one step cost: the noise that was added, on a lot of the sampler that drew it."""
        return sampler.event(cast(PrivateGradients, gradients).event)

    def _check_copies(self) -> None:
        """Equal copies have equal gradients: several of them would only cost time."""
        copies = self.settings.augment_multiplicity
        if copies > 1 and self.settings.augment == "none" and not _draws(self.net(), self.facts.shape):
            raise ConfigError(
                f"copies that differ for settings.augment_multiplicity = {copies}",
                'augment = "none" and a network without dropout',
                "Equal copies have equal gradients, so their mean is that of one copy at many times the work.",
                'Set augment ("shift", "flip", "shift+flip"), or augment_multiplicity = 1.',
            )


def _draws(net: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether the network answers at random while it trains, as dropout does; tried on made-up records."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        seed_torch(0)
        x = torch.rand(8, *shape)
        net.train()
        return not torch.equal(net(x), net(x))
