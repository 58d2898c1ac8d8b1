"""A compact residual network for small images, to be trained on public ones and frozen: features 'trained'.

A stem and three stages of width 2w, 4w and 8w, each a convolution, a pooling by two and a residual pair of
convolutions, with BatchNorm. Frozen, BatchNorm is in eval mode: its statistics are the public images', so a record's
features depend on the record alone.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from airlock.errors import NetError
from airlock.nets.frontend import Framed, Level, Mirrored, Unit

WIDTHS = (16, 64)
SMALLEST = 8  # pixels a side: three poolings
_MIDDLE, _SPREAD = 0.475, 0.25  # of natural images in [0, 1], about


class Trunk(nn.Module):
    """Images (batch, colours, height, width) in [0, 1] to the averages over the maps of the last two stages.

    `dimensions` of them in all, of which the first `learnt`, the last stage's, are what a classifier is trained on.

    Args:
        colours: 1 or 3.
        width: Of the stem.
    """

    def __init__(self, colours: int, width: int) -> None:
        super().__init__()
        widths = (width, 2 * width, 4 * width, 8 * width)
        self.learnt, self.dimensions = widths[3], widths[3] + widths[2]
        self.stem = _convolution(colours, width)
        self.stages = nn.ModuleList(_stage(a, b) for a, b in pairwise(widths))

    def forward(self, x: Tensor) -> Tensor:
        """Averages of the last stage's maps, then those of the one before."""
        x = self.stem((x - _MIDDLE) / _SPREAD)
        pooled = []
        for stage in self.stages:
            x = stage(x)
            pooled.append(x.mean((2, 3)))
        return torch.cat([pooled[2], pooled[1]], 1)


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(_convolution(width, width), _convolution(width, width))

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = x + self.body(x)
        return added


def _convolution(found: int, wanted: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(found, wanted, 3, padding=1, bias=False), nn.BatchNorm2d(wanted), nn.ReLU())


def _stage(found: int, wanted: int) -> nn.Sequential:
    return nn.Sequential(_convolution(found, wanted), nn.MaxPool2d(2), _Residual(wanted))


def trained_linear(shape: tuple[int, ...], classes: int, width: int, mirror: bool) -> Framed:
    """The trunk, freshly initialised, with each record's features normalised, and a linear head.

    Raises:
        NetError: The records are no images of at least 8 pixels a side.
    """
    if len(shape) != 3 or min(shape[1:]) < SMALLEST:
        raise NetError(
            f"images of at least {SMALLEST} pixels a side for features 'trained'",
            f"records of shape {' × '.join(map(str, shape))}",
            do="Take other features.",
        )
    trunk = Trunk(shape[0], width)
    front = nn.Sequential(Mirrored(trunk) if mirror else trunk, Level(trunk.dimensions), Unit())
    return Framed(front, trunk.dimensions, classes)


def trained_name(width: int, mirror: bool) -> str:
    """What this front end is called where it is built by name."""
    return f"trained-{width}" + ("-mirror" if mirror else "")
