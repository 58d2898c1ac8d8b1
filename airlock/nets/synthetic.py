"""Synthetic images: random soft shapes, drawn from a seed and from nothing else.

They stand in for public data where a front end needs some (compare Baradad et al. 2021: networks learn useful features
from random shapes). Bent bars and ellipses of random size, place, direction and colour lie over each other on black.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_MOST = 6  # shapes in an image


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
