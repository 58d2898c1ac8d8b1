"""Synthetic images: random soft shapes, generated from a seed and nothing else.

They stand in for public data where a front end needs some (compare Baradad et al. 2021: networks learn useful features
from random shapes). Bent bars and ellipses of random size, position, direction and colour overlap on a black
background. With labels (`draw_classes`), the images of a class share three shapes, each slightly varied, in front of
others; telling classes apart then requires edges, directions, bends and their arrangement (compare Kataoka et al.
2020).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_MOST = 6  # shapes in an image
_SHARED = 3  # shapes that the images of one class share
_CHANGE = 0.12  # the most that each of their parameters varies, as a fraction of its range
_CHANGED = torch.tensor([2.0, 2.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0.0])  # position twice as much, kind not at all


def draw(count: int, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """`count` images of this shape (colours, height, width) in [0, 1]; a function of the seed alone."""
    colours, height, width = shape
    generator = torch.Generator().manual_seed(seed)
    rows, columns = torch.linspace(-1, 1, height)[:, None], torch.linspace(-1, 1, width)[None, :]
    shapes = 1 + torch.randint(_MOST, (count, 1, 1, 1), generator=generator)
    images = torch.zeros(count, colours, height, width)
    for place in range(_MOST):
        cover = _cover(rows, columns, torch.rand(9, count, 1, 1, generator=generator))[:, None]
        colour = 0.2 + 0.8 * torch.rand(count, colours, 1, 1, generator=generator)
        images = torch.where(place < shapes, images + cover * (colour - images), images)
    return images


def draw_classes(count: int, shape: tuple[int, ...], classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """`count` uint8 images of this shape and the labels they were made from; a function of the seed alone."""
    colours, height, width = shape
    generator = torch.Generator().manual_seed(seed)
    rows, columns = torch.linspace(-1, 1, height)[:, None], torch.linspace(-1, 1, width)[None, :]
    kinds = torch.rand(_SHARED, 9, classes, generator=generator)
    kind_colours = torch.rand(_SHARED, classes, colours, generator=generator)
    labels = torch.randint(classes, (count,), generator=generator)
    images = draw(count, shape, seed + 1) * 0.7
    for kind, paint in zip(kinds, kind_colours, strict=True):
        change = _CHANGE * (2 * torch.rand(9, count, generator=generator) - 1)
        chance = (kind[:, labels] + change * _CHANGED[:, None]).clamp(0, 1)
        cover = _cover(rows, columns, chance[:, :, None, None])[:, None]
        shade = paint[labels] + 0.3 * (2 * torch.rand(count, colours, generator=generator) - 1)
        images += cover * ((0.2 + 0.8 * shade).clamp(0, 1)[:, :, None, None] - images)
    return (images * 255).round().byte(), labels


def _cover(rows: Tensor, columns: Tensor, chance: Tensor) -> Tensor:
    """How much of every pixel one shape covers: a bar or an ellipse, bent along a parabola, with a soft edge."""
    x, y, angle = 1.4 * chance[0] - 0.7, 1.4 * chance[1] - 0.7, math.pi * chance[2]
    u = (columns - x) * angle.cos() + (rows - y) * angle.sin()
    v = (rows - y) * angle.cos() - (columns - x) * angle.sin() + (2 * chance[3] - 1) * u**2
    length, breadth = 0.1 + 0.7 * chance[4], 0.04 + 0.5 * chance[5] ** 3
    ellipse = breadth * (((u / length) ** 2 + (v / breadth) ** 2).sqrt() - 1)
    bar = torch.maximum(u.abs() - length, v.abs() - breadth)
    outside = torch.where(chance[6] < 0.5, ellipse, bar)
    return torch.sigmoid(-outside / (0.03 + 0.05 * chance[7]))
