"""`weights`/`shaped`: noise whose shape is that of the clipping; the sound counterpart of optimised additive noise.

Proof. g̃ = g/s is clipped to ‖g̃‖ ≤ 1, so adding or removing one record moves Σ g̃ by at most 1 in L2, whatever its
direction. N(0, z²I) on the sum of a Poisson lot is `PoissonSampledDpEvent(q, GaussianDpEvent(z))`. Multiplying by s and
dividing by a public constant is post-processing: the noise on coordinate i is z·s_i. The proof holds for any s that is
a function of public things; here it is one of the settings, the initial network, and either the public records or
synthetic ones. The events are those of `gaussian`. An adaptive clip norm moves the bound on ‖g̃‖, and the noise with it;
the shape stays.

The shape. With per-record second moments m_i = E g_i² and clipping to ‖g/s‖ ≤ 1, the mean squared norm that clipping
sees is Σ m_i/s_i² = c: it sets how much is clipped away (a bias of at most c/4 in the s⁻¹ norm). At the same c, the
noise z·s costs least, by objective, with

    linear      min Σ |w_i| s_i    s_i = (m_i/|w_i|)^{1/3} · √(Σ m_j^{1/3} |w_j|^{2/3} / c)
    curvature   min Σ h_i s_i²     s_i = (m_i/h_i)^{1/4} · √(Σ √(m_j h_j) / c)
    energy      as curvature with h = 1: the noise energy itself

A group (a tensor, or one of its output channels) shares one scale; m, w and h of a group are sums over its coordinates,
which leaves the closed forms as they are. c = Σ m_i/C² for the clip norm C of the settings: as much is clipped as with
a plain norm of C, and only the proportions of m, w and h matter. The gain over a plain norm is measured on public
records other than those that the shape was made from, and is stated on the card.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from airlock.config import ReleaseConfig
from airlock.data import Facts, Records, Split
from airlock.errors import ConfigError, DataError
from airlock.mechanisms import Clip
from airlock.methods.contract import Details
from airlock.methods.weights.gaussian import Gaussian, GaussianSettings, settings_for
from airlock.nets.domain import numbers
from airlock.training import Resident
from airlock.training.gradients import Gradients
from airlock.training.per_sample.functional import FunctionalGradients

Granularity = Literal["tensor", "channel"]
Objective = Literal["energy", "curvature", "linear"]

_RECORDS = 256  # public or synthetic; half of them make the shape, the other half measure its gain
_NO_GAIN = "no: on these records a plain norm does as well (method gaussian)"
_UNPROTECTED = "The public records are not covered: the shape of the noise was computed from them without noise."
_CHUNK_BYTES = 1 << 27  # memory for one chunk of per-record gradients
_FLOOR = 1e-2  # of the mean: a group that public records hardly move keeps some noise, and some room for gradients
_WARM_STEPS, _WARM_RATE = 20, 1e-2
_SHARED = 0.5  # of a synthetic text's tokens: its class's own
_PROXY_NOISE = 0.2  # on a synthetic record, whose values lie in [0, 1]


class ShapedSettings(GaussianSettings):
    """Private training with shaped clipping and noise.

    Args:
        shape_from: "public" records (split.public > 0), a synthetic "proxy", "none" for a plain norm; "auto" takes
            public records where there are some, and the proxy otherwise.
        granularity: One scale per tensor, or one per output channel.
        objective: What the noise should disturb least: its own energy, the loss by curvature, or the loss by slope.
        clip_norm: The plain clip norm that would clip as much; it sets the size of s.
    """

    shape_from: Literal["auto", "public", "proxy", "none"] = "auto"
    granularity: Granularity = "tensor"
    objective: Objective = "energy"


@dataclass(frozen=True)
class Shape:
    """s by parameter name, and its gain over a plain norm."""

    scale: Mapping[str, Tensor]
    gain: float

    @property
    def details(self) -> Details:
        """For the card."""
        helps = self.gain > 1.0
        return {"shape_gain": round(self.gain, 3), "shape_helps": "yes" if helps else _NO_GAIN}


class Shaped(Gaussian):
    """DP-SGD in a shaped norm; status proven, unit record or person, relation add-remove."""

    method: ClassVar[str] = "shaped"
    title: ClassVar[str] = "a network by DP-SGD with shaped noise"
    rank: ClassVar[int] = 40
    texts: ClassVar[bool] = True
    settings: ShapedSettings

    def __init__(self, config: ReleaseConfig, facts: Facts) -> None:
        super().__init__(config, facts)
        self.shape_from = self.settings.shape_from
        if self.shape_from == "auto":
            self.shape_from = "public" if config.split.public > 0 else "proxy"
        if self.shape_from == "public" and config.split.public == 0:
            raise ConfigError(
                'split.public above 0 for settings.shape_from = "public"',
                "0",
                "There would be no public records to compute the shape from.",
                'Set split.public, or shape_from = "proxy".',
            )
        self._measured: Details = {}

    def parse_settings(self) -> ShapedSettings:
        """The user's settings over the defaults of `gaussian`."""
        return settings_for(self.config, self.facts, ShapedSettings)

    def extras(self) -> Details:
        """Where the shape comes from; also its gain, where no record is needed to know it."""
        words = {"public": "public records", "proxy": "synthetic records", "none": "none: a plain norm"}
        how: Details = {
            **super().extras(),
            "shape_from": words[self.shape_from],
            "granularity": self.settings.granularity,
            "objective": self.settings.objective,
        }
        return {**how, **self._proxy_shape.details} if self.shape_from == "proxy" else how

    def measured(self, gradients: Gradients) -> Details:
        """The gain on the public records, which a plan may not read."""
        return {**super().measured(gradients), **self._measured}

    def assumptions(self) -> tuple[str, ...]:
        """Those of DP-SGD; with public records, also that they are not covered."""
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
        shape, vocabulary = self.facts.shape, self.facts.vocabulary
        x, y = synthetic_records(shape, len(self.facts.classes), _RECORDS, self.config.seed, vocabulary)
        return self._shape(self.net(), x, y)

    def _shape(self, net: nn.Module, x: Tensor, y: Tensor) -> Shape:
        """The best scale for the records at even positions, and its gain on those at odd ones."""
        granularity, objective, seed = self.settings.granularity, self.settings.objective, self.config.seed
        halves = [measure_moments(net, x[first::2], y[first::2], granularity, objective, seed) for first in (0, 1)]
        scale = best_scale(halves[0], self.settings.clip_norm, objective)
        return Shape(scale, gain(scale, halves[1], objective))


def _inputs(records: Records) -> tuple[Tensor, Tensor]:
    if len(records) < 2:
        raise DataError(
            "at least two public records for the shape of the noise",
            "fewer",
            "One half determines the shape, the other half measures its gain.",
            'Raise split.public, or set shape_from = "proxy".',
        )
    data = Resident(records, torch.device("cpu"))
    return data.batch(np.arange(min(len(records), _RECORDS), dtype=np.int64))


@dataclass(frozen=True)
class Moments:
    """What the closed forms need to know about every group, by parameter name.

    Args:
        second: Sum of E g².
        weight: Sum of |w|, sum of h, or the number of coordinates, depending on the objective.
    """

    second: Mapping[str, Tensor]
    weight: Mapping[str, Tensor]


def closed_form(second: Tensor, weight: Tensor, level: float, objective: Objective) -> Tensor:
    """The best scales of groups with these moments and weights, such that Σ second/s² = level."""
    if objective == "linear":
        size = (second.pow(1 / 3) * weight.pow(2 / 3)).sum() / level
        return (second / weight).pow(1 / 3) * size.sqrt()
    size = (second * weight).sqrt().sum() / level
    return (second / weight).pow(1 / 4) * size.sqrt()


def best_scale(moments: Moments, clip_norm: float, objective: Objective) -> dict[str, Tensor]:
    """Scales by parameter name that clip as much as a plain norm of `clip_norm`, with the least costly noise."""
    second, weight = _flat(moments.second).double(), _flat(moments.weight).double()
    level = float(second.sum()) / clip_norm**2
    flat = closed_form(second, weight, level, objective).float()
    pieces = torch.split(flat, [group.numel() for group in moments.second.values()])
    return {name: piece.view_as(moments.second[name]) for name, piece in zip(moments.second, pieces, strict=True)}


def gain(scale: Mapping[str, Tensor], moments: Moments, objective: Objective) -> float:
    """The cost of isotropic noise over that of the shaped noise when both clip equally much of these moments.

    Above 1 the shape helps. The moments should come from records other than those that the shape was made from: on its
    own records the best shape is never below 1.
    """
    second, weight, s = (_flat(values).double() for values in (moments.second, moments.weight, scale))
    clipped = ((second / s.square()).sum() / second.sum()).sqrt()
    power = 1 if objective == "linear" else 2
    return float(weight.sum() / (weight * (clipped * s).pow(power)).sum())


def measure_moments(
    net: nn.Module, x: Tensor, y: Tensor, granularity: Granularity, objective: Objective, seed: int
) -> Moments:
    """Moments of public records at the start of training and a few plain steps later; `net` is not changed.

    Both points have equal weight, whatever the size of their gradients. Curvature is the diagonal of the Fisher matrix
    (of Gauss–Newton, for cross-entropy), with labels drawn from the network's own prediction.
    """
    net = copy.deepcopy(net).eval()
    generator = torch.Generator().manual_seed(seed)
    start = _moments(net, x, y, granularity, objective, generator)
    _warm(net, x, y)
    later = _moments(net, x, y, granularity, objective, generator)
    sizes = {name: _coordinates(p, granularity) for name, p in net.named_parameters() if p.requires_grad}
    return Moments(
        _floored(_mean(start.second, later.second), sizes), _floored(_mean(start.weight, later.weight), sizes)
    )


def _moments(
    net: nn.Module, x: Tensor, y: Tensor, granularity: Granularity, objective: Objective, generator: torch.Generator
) -> Moments:
    trainable = {name: p.detach() for name, p in net.named_parameters() if p.requires_grad}
    second, mean = _accumulated(net, trainable, x, y, granularity)
    if objective == "energy":
        return Moments(second, {name: _coordinates(p, granularity) for name, p in trainable.items()})
    if objective == "linear":
        return Moments(second, {name: _grouped(g.abs(), granularity) for name, g in mean.items()})
    with torch.no_grad():
        drawn = torch.multinomial(F.softmax(net(x).float(), 1), 1, generator=generator)[:, 0]
    return Moments(second, _accumulated(net, trainable, x, drawn, granularity)[0])


def _accumulated(
    net: nn.Module, trainable: dict[str, Tensor], x: Tensor, y: Tensor, granularity: Granularity
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Sums over the records: of the squared gradients by group, and of the gradients."""
    second = {name: torch.zeros_like(_coordinates(p, granularity)) for name, p in trainable.items()}
    mean = {name: torch.zeros_like(p) for name, p in trainable.items()}
    engine = FunctionalGradients(net)
    chunk = max(1, _CHUNK_BYTES // engine.bytes_per_record)
    for start in range(0, len(y), chunk):
        rows = engine.rows(x[start : start + chunk], y[start : start + chunk])
        for name, g in rows.items():
            second[name] += _grouped(g.square().sum(0), granularity)
            mean[name] += g.sum(0)
    return second, mean


def _warm(net: nn.Module, x: Tensor, y: Tensor) -> None:
    """A few steps of Adam on public records, so that layers behind a head that starts at zero have a gradient."""
    optimiser = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=_WARM_RATE)
    for _ in range(_WARM_STEPS):
        optimiser.zero_grad()
        F.cross_entropy(net(x).float(), y).backward()  # type: ignore[no-untyped-call]
        optimiser.step()


def _grouped(value: Tensor, granularity: Granularity) -> Tensor:
    """Sums over the coordinates of each group, shaped to broadcast against the parameter."""
    if granularity == "tensor" or value.dim() == 0:
        return value.sum()
    return value.flatten(1).sum(1).view(-1, *[1] * (value.dim() - 1)) if value.dim() > 1 else value.clone()


def _coordinates(parameter: Tensor, granularity: Granularity) -> Tensor:
    return _grouped(torch.ones_like(parameter), granularity)


def _mean(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> dict[str, Tensor]:
    sizes = [max(float(_flat(values).sum()), 1e-30) for values in (one, other)]
    return {name: one[name] / sizes[0] + other[name] / sizes[1] for name in one}


def _floored(values: dict[str, Tensor], sizes: dict[str, Tensor]) -> dict[str, Tensor]:
    least = _FLOOR * float(_flat(values).sum()) / float(_flat(sizes).sum())
    return {name: torch.maximum(value, sizes[name] * max(least, 1e-30)) for name, value in values.items()}


def _flat(values: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([value.flatten() for value in values.values()])


def synthetic_records(
    shape: tuple[int, ...], classes: int, records: int, seed: int, vocabulary: int | None = None
) -> tuple[Tensor, Tensor]:
    """Inputs and labels that stand in for public records, from a public seed and the shape of a record alone.

    Every class is one smooth random pattern, every record its class's pattern plus noise, in [0, 1] as images and
    declared columns are. With a vocabulary they are texts of random lengths, about half of whose tokens are their
    class's. They teach nothing about the data, but show which layers have large gradients.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(records) // 2 % classes  # pairs, so that each half of the records has every class
    if vocabulary is not None:
        texts = torch.from_numpy(numbers(records, shape, vocabulary, np.random.default_rng(seed)))
        own = torch.randint(1, vocabulary, (classes, *shape), generator=generator).float()[labels]
        kept = (texts > 0) & (torch.rand(texts.shape, generator=generator) < _SHARED)
        return torch.where(kept, own, texts), labels
    patterns = _patterns(shape, classes, generator)
    noise = torch.randn(records, *shape, generator=generator)
    return (patterns[labels] + _PROXY_NOISE * noise).clamp(0.0, 1.0), labels


def _patterns(shape: tuple[int, ...], classes: int, generator: torch.Generator) -> Tensor:
    if len(shape) != 3:
        return torch.rand(classes, *shape, generator=generator)
    channels, height, width = shape
    coarse = torch.randn(classes, channels, -(-height // 4), -(-width // 4), generator=generator)
    smooth = F.interpolate(coarse, size=(height, width), mode="bilinear", align_corners=False)
    return smooth.clamp(0.0, 1.0)
