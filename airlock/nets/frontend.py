"""Frozen public front ends with a linear head, which `weights`/`head` trains and releases as one network.

A front end maps each record by itself to a feature vector of norm at most 1; none of its tensors was trained on private
records. `scattering`: scattering maps, normalised per record in groups of three, projected at random to at most 1000
dimensions and whitened by the covariance of synthetic images (`pretrain`). `pixels`: the record itself. Any other
module can be the front end too (`Framed`).

The only thing between front end and head that may come from private records is `Centre.mean`; the caller that sets it
must have paid for it.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from airlock.nets.scattering import Scattering, by_matrices
from airlock.nets.synthetic import draw

Shape = tuple[int, ...]

DIMENSIONS = 1000  # a random projection to this many keeps angles to about 3%
_IMAGES = 4000  # synthetic ones, for the whitening
_DAMPING = 1e-3  # added to the eigenvalues of features of norm 1: directions below it are not amplified
_PROJECTION = 3  # its index in the scattering front end
_TINY = 1e-12
CONSTANT = 0.25  # the last feature: the head's bias, inside the norm that clipping bounds
_BOUND = 1.0 - 2.0**-16  # float32 rounding stays below 1


class Unit(nn.Module):
    """Scales every record to norm 1 (a zero stays zero).

    Guarantee: the output has norm at most 1 per record, whatever the input: a record with NaN or infinity becomes zero.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Divide by the norm, in two steps so that no square overflows."""
        largest = x.abs().amax(1, keepdim=True)
        x = x / (largest + _TINY)
        unit = x * _BOUND / (x.square().sum(1, keepdim=True) + _TINY).sqrt()
        return torch.where(largest < math.inf, unit, torch.zeros_like(unit))


class Level(nn.Module):
    """Scales every record's features to mean 0 and standard deviation 1."""

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        self.dimensions = dimensions

    def forward(self, x: Tensor) -> Tensor:
        """(batch, dimensions), record by record."""
        return F.layer_norm(x, (self.dimensions,))


class Mirrored(nn.Module):
    """Features averaged over an image and its mirror image."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """The mean of both."""
        features: Tensor = (self.body(x) + self.body(x.flip(3))) / 2
        return features


class Centre(nn.Module):
    """Subtract one released vector from every record, rescale to norm 1, and append a constant as bias."""

    mean: Tensor

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(dimensions))
        self.unit = Unit()

    def forward(self, x: Tensor) -> Tensor:
        """(batch, dimensions) to (batch, dimensions + 1), of norm at most 1."""
        return F.pad(self.unit(x - self.mean), (0, 1), value=CONSTANT) / math.hypot(1.0, CONSTANT)


class Framed(nn.Module):
    """Front end, centring and linear head: maps records to logits. Only the head can be trained.

    Args:
        front: Maps records to features (batch, dimensions) of norm at most 1; it is frozen here.
        dimensions: The number of features.
        classes: The number of logits.
    """

    def __init__(self, front: nn.Module, dimensions: int, classes: int) -> None:
        super().__init__()
        self.front = front.requires_grad_(False).eval()
        self.centre = Centre(dimensions)
        self.head = nn.Linear(dimensions + 1, classes, bias=False)
        nn.init.zeros_(self.head.weight)

    def train(self, mode: bool = True) -> Framed:
        """The front end stays in eval mode: its BatchNorm or dropout, if any, is frozen with it."""
        super().train(mode)
        self.front.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(self.centre(self.front(x)))
        return logits


def whitened(net: Framed) -> Framed:
    """The same network with a whitening layer for its features, an identity until `whiten` fills it."""
    dimensions, classes = net.centre.mean.numel(), net.head.out_features
    layer = nn.Linear(dimensions, dimensions)
    nn.init.eye_(layer.weight)
    nn.init.zeros_(layer.bias)
    return Framed(nn.Sequential(net.front, layer, Unit()), dimensions, classes)


def whitening(mean: Tensor, covariance: Tensor, power: float, damping: float) -> tuple[Tensor, Tensor]:
    """Weight and bias of x -> (C + d)^-power (x - mean) in C's own axes; d is `damping` times C's mean eigenvalue.

    With power 1/2 and no damping, features with this mean and covariance get covariance 1. Directions in which public
    features hardly vary are not amplified beyond what the damping allows.
    """
    values, vectors = torch.linalg.eigh(covariance.double())
    values = values.clamp_min(0)
    scale = (values + damping * values.mean() + _TINY) ** -power
    weight = (vectors * scale).T
    return weight.float(), -(weight @ mean.double()).float()


def whiten(net: Framed, weight: Tensor, bias: Tensor) -> None:
    """Fill the whitening layer that `whitened` added."""
    assert isinstance(net.front, nn.Sequential)
    layer = net.front[1]
    assert isinstance(layer, nn.Linear)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(bias)


def scattering_linear(shape: Shape, classes: int) -> Framed:
    """Scattering features with a linear head; the projection is empty until `pretrain` fills it."""
    maps = Scattering(shape)
    found = maps.channels * maps.rows * maps.columns
    projection = nn.Linear(found, min(found, DIMENSIONS))
    nn.init.zeros_(projection.weight)
    nn.init.zeros_(projection.bias)
    norm = nn.GroupNorm(maps.channels // 3, maps.channels, affine=False)
    front = nn.Sequential(maps, norm, nn.Flatten(), projection, Unit())
    return Framed(front, projection.out_features, classes)


def pixels_linear(shape: Shape, classes: int) -> Framed:
    """The record itself, centred and of norm 1, with a linear head."""
    return Framed(nn.Sequential(nn.Flatten(), Unit()), math.prod(shape), classes)


def pretrain(net: Framed, shape: Shape, seed: int) -> None:
    """Fill the projection of `scattering_linear`: random directions, centred and whitened on synthetic images.

    Public: the result depends on the shape and the seed alone. With C the covariance of the projected synthetic
    features of norm 1, the whitening is (C + 0.001)^(-1/2).
    """
    weight, bias = _whitened(shape, seed)
    tensors = net.front.state_dict() | {f"{_PROJECTION}.weight": weight, f"{_PROJECTION}.bias": bias}
    net.front.load_state_dict(tensors)


@lru_cache(maxsize=2)
def _whitened(shape: Shape, seed: int) -> tuple[Tensor, Tensor]:
    """Weight and bias of the projection."""
    front = scattering_linear(shape, 1).front
    assert isinstance(front, nn.Sequential)
    with torch.no_grad():
        images = torch.split(draw(_IMAGES, shape, seed), 250)
        maps = by_matrices(front[:_PROJECTION])
        features = torch.cat([maps(block) for block in images])
        directions = _directions(features.shape[1], min(features.shape[1], DIMENSIONS), seed)
        directions /= features.norm(dim=1).mean()
        projected = features @ directions
        mean = projected.mean(0)
        values, vectors = torch.linalg.eigh(projected.T.cov(correction=0).double())
        whitening = (vectors * (values.clamp_min(0) + _DAMPING).rsqrt()).float()
        return (directions @ whitening).T, -mean @ whitening


def _directions(found: int, wanted: int, seed: int) -> Tensor:
    """A random projection that preserves norms on average; the identity if it would not reduce the dimension."""
    if found <= wanted:
        return torch.eye(found)
    chance = torch.Generator().manual_seed(seed)
    return torch.randn(found, wanted, generator=chance) / math.sqrt(wanted)
