"""`weights`/`shaped`: noise whose shape is that of the clipping; the sound counterpart of optimised additive noise.

Proof. g̃ = g/s is clipped to ‖g̃‖ ≤ 1, so adding or removing one record moves Σ g̃ by at most 1 in L2, whatever its
direction. N(0, z²I) on the sum of a Poisson lot is `PoissonSampledDpEvent(q, GaussianDpEvent(z))`. Multiplying by s and
dividing by a public constant is post-processing: noise of z·s_i a coordinate. Nothing depends on what s is, as long as
it is a function of public things; here it is one of the settings, the initial network, and either the public records
or synthetic ones. The events are those of `gaussian`. An adaptive clip norm moves the bound on ‖g̃‖, and the noise with
it; the shape stays.

The shape follows `noise_shape`; what it gains over a plain norm is measured on other public records than it was made
from, and stands on the card.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from airlock.config import ReleaseConfig
from airlock.data import Facts, Records, Split
from airlock.errors import ConfigError, DataError
from airlock.mechanisms import Clip
from airlock.methods.contract import Details
from airlock.methods.noisy_settings import GaussianTraining
from airlock.methods.weights import noise_shape, proxy
from airlock.methods.weights.gaussian import Gaussian
from airlock.methods.weights.settings import settings_for
from airlock.training import Resident
from airlock.training.gradients import Gradients

_RECORDS = 256  # public or synthetic; half of them make the shape, the other half measure its gain
_NO_GAIN = "no: on these records a plain norm does as well (method gaussian)"
_UNPROTECTED = "The public records are not covered: the shape of the noise was computed from them without noise."


class ShapedTraining(GaussianTraining):
    """Private training with shaped clipping and noise.

    Args:
        shape_from: "public" records (split.public > 0), a synthetic "proxy", "none" for a plain norm; "auto" takes
            public records where there are some and else the proxy.
        granularity: One scale a tensor, or one an output channel.
        objective: What the noise should disturb least: its own energy, the loss by curvature, or the loss by slope.
        clip_norm: The plain clip norm that would clip as much; it sets the size of s.
    """

    shape_from: Literal["auto", "public", "proxy", "none"] = "auto"
    granularity: noise_shape.Granularity = "tensor"
    objective: noise_shape.Objective = "energy"


@dataclass(frozen=True)
class Shape:
    """s by parameter name, and what it gains."""

    scale: Mapping[str, Tensor]
    gain: float

    @property
    def details(self) -> Details:
        """For the card."""
        helps = self.gain > 1.0
        return {"shape_gain": round(self.gain, 3), "shape_helps": "yes" if helps else _NO_GAIN}


class Shaped(Gaussian):
    """DP-SGD in a shaped norm; status proven, unit record, relation add-remove."""

    method: ClassVar[str] = "shaped"
    title: ClassVar[str] = "a network by DP-SGD with shaped noise"
    rank: ClassVar[int] = 40
    settings: ShapedTraining

    def __init__(self, config: ReleaseConfig, facts: Facts) -> None:
        super().__init__(config, facts)
        self.shape_from = self.settings.shape_from
        if self.shape_from == "auto":
            self.shape_from = "public" if config.split.public > 0 else "proxy"
        if self.shape_from == "public" and config.split.public == 0:
            raise ConfigError(
                'split.public above 0 for settings.shape_from = "public"',
                "0",
                "There is no public record to take the shape from.",
                'Set split.public, or shape_from = "proxy".',
            )
        self._measured: Details = {}

    def parse_settings(self) -> ShapedTraining:
        """The user's settings over the defaults of `gaussian`."""
        return settings_for(self.config, self.facts, ShapedTraining)

    def extras(self) -> Details:
        """Where the shape comes from; its gain too, where no record is needed to know it."""
        words = {"public": "public records", "proxy": "synthetic records", "none": "none: a plain norm"}
        how = {
            "shape_from": words[self.shape_from],
            "granularity": self.settings.granularity,
            "objective": self.settings.objective,
        }
        return {**how, **self._proxy_shape.details} if self.shape_from == "proxy" else how

    def measured(self, gradients: Gradients) -> Details:
        """The gain on the public records, which no plan may read."""
        return {**super().measured(gradients), **self._measured}

    def assumptions(self) -> tuple[str, ...]:
        """Those of DP-SGD; with public records also that they are not covered."""
        return (*super().assumptions(), *([_UNPROTECTED] if self.shape_from == "public" else []))

    def clip(self, net: nn.Module, split: Split, data: Resident) -> Clip:
        """To 1, in units of s; the noise gets the same s."""
        scale = {name: value.to(data.y.device) for name, value in self._scale(net, split).items()}
        return Clip(1.0, scale=scale)

    def _scale(self, net: nn.Module, split: Split) -> Mapping[str, Tensor]:
        if self.shape_from == "proxy":
            return self._proxy_shape.scale
        if self.shape_from == "public":
            shape = self._shape(net, *_inputs(split.public))
            self._measured = shape.details
            return shape.scale
        plain = torch.tensor(self.settings.clip_norm)
        return {name: plain for name, p in net.named_parameters() if p.requires_grad}

    @cached_property
    def _proxy_shape(self) -> Shape:
        x, y = proxy.make(self.facts.shape, len(self.facts.classes), _RECORDS, self.config.seed)
        return self._shape(self.net(), x, y)

    def _shape(self, net: nn.Module, x: Tensor, y: Tensor) -> Shape:
        """The best scale for the records at even places, and its gain on those at odd ones."""
        granularity, objective, seed = self.settings.granularity, self.settings.objective, self.config.seed
        halves = [noise_shape.measure(net, x[first::2], y[first::2], granularity, objective, seed) for first in (0, 1)]
        scale = noise_shape.best_scale(halves[0], self.settings.clip_norm, objective)
        return Shape(scale, noise_shape.gain(scale, halves[1], objective))


def _inputs(records: Records) -> tuple[Tensor, Tensor]:
    if len(records) < 2:
        raise DataError(
            "at least two public records for the shape of the noise",
            "fewer",
            "One half makes the shape, the other half measures what it gains.",
            'Raise split.public, or set shape_from = "proxy".',
        )
    data = Resident(records, torch.device("cpu"))
    return data.batch(np.arange(min(len(records), _RECORDS), dtype=np.int64))
