"""The shape of sound noise: closed forms, and the moments they need, from public records.

With per-record second moments m_i = E g_i² and clipping to ‖g/s‖ ≤ 1, the mean squared norm that clipping sees is
Σ m_i/s_i² = c: it sets how much is clipped away (a bias of at most c/4 in the s⁻¹ norm). At the same c, the noise z·s
costs least, by objective, with

    linear      min Σ |w_i| s_i    s_i = (m_i/|w_i|)^{1/3} · √(Σ m_j^{1/3} |w_j|^{2/3} / c)
    curvature   min Σ h_i s_i²     s_i = (m_i/h_i)^{1/4} · √(Σ √(m_j h_j) / c)
    energy      as curvature with h = 1: the noise energy itself

A scale is shared by a group (a tensor, or an output channel of it); m, w and h of a group are sums over its
coordinates, which leaves the closed forms as they are. c = Σ m_i/C² for the clip norm C of the settings: as much is
clipped as with a plain norm of C, and only the proportions of m, w and h matter.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from airlock.training.per_sample.functional import FunctionalGradients

Granularity = Literal["tensor", "channel"]
Objective = Literal["energy", "curvature", "linear"]

_CHUNK_BYTES = 1 << 27  # memory for one chunk of per-record gradients
_FLOOR = 1e-2  # of the mean: a group that public records hardly move is neither starved nor left without noise
_WARM_STEPS, _WARM_RATE = 20, 1e-2


@dataclass(frozen=True)
class Moments:
    """What the closed forms need of every group, by parameter name.

    Args:
        second: Sum of E g².
        weight: Sum of |w|, of h, or the number of coordinates, by objective.
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
    """Scales by parameter name: they clip as much as a plain norm of `clip_norm`, with the least costly noise."""
    second, weight = _flat(moments.second).double(), _flat(moments.weight).double()
    level = float(second.sum()) / clip_norm**2
    flat = closed_form(second, weight, level, objective).float()
    pieces = torch.split(flat, [group.numel() for group in moments.second.values()])
    return {name: piece.view_as(moments.second[name]) for name, piece in zip(moments.second, pieces, strict=True)}


def gain(scale: Mapping[str, Tensor], moments: Moments, objective: Objective) -> float:
    """Cost of isotropic noise over cost of the shaped noise when both clip equally much of these moments.

    Above 1 the shape helps. The moments should be those of other records than the shape was made from: on its own
    records a best shape is never below 1.
    """
    second, weight, s = (_flat(values).double() for values in (moments.second, moments.weight, scale))
    clipped = ((second / s.square()).sum() / second.sum()).sqrt()
    power = 1 if objective == "linear" else 2
    return float(weight.sum() / (weight * (clipped * s).pow(power)).sum())


def measure(net: nn.Module, x: Tensor, y: Tensor, granularity: Granularity, objective: Objective, seed: int) -> Moments:
    """Moments of public records at the start of training and a few plain steps into it; `net` is not changed.

    Both places count alike, whatever the size of their gradients. Curvature is the diagonal of the Fisher matrix (of
    Gauss–Newton, for cross-entropy), with labels drawn from the network's own prediction.
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
    """Sums over the coordinates of each group; shaped so that it broadcasts against the parameter."""
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
