"""Variations of public images, for a teacher whose answers are free: its outputs on them carry more than a class label.

Each of these makes up a quarter of a batch: the image; the image slightly rotated, stretched, sheared and shifted; one
side of it joined to the other side of another image, then shifted; the image mirrored or upside down, then shifted. A
teacher that knows classes without public images recognises parts of them in these. They need not look like records, and
the label of an image does not apply to its variation: only answers computed for the variation itself are valid.

Not for private records: a variation of one depends on another.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Vary = Callable[[Tensor, torch.Generator], Tensor]
_TURN, _STRETCH, _SHEAR, _MOVE = math.pi / 6, 0.2, 0.3, 0.1  # maxima; in radians, of the size, of half a side
_FIRST, _LAST = 0.3, 0.75  # as fractions of a side: where a cut may be


def vary(x: Tensor, generator: torch.Generator) -> Tensor:
    """A batch of images, each varied in one of four ways according to its position in the batch."""
    plain, moved, joined, mirrored = (x[start::4] for start in range(4))
    found = [plain, _moved(moved, generator), _moved(_joined(joined, generator), generator)]
    found.append(_moved(_mirrored(mirrored, generator), generator))
    changed = torch.empty_like(x)
    for start, part in enumerate(found):
        changed[start::4] = part
    return changed


class Balanced:
    """Variations for which a teacher predicts every class about equally often.

    Classes without public images are rarely predicted by chance. Several variations of every image are made, and as
    many as there were images are drawn, each weighted by the inverse frequency of its predicted class. This is free if
    the teacher's answers are.

    Args:
        teacher: The teacher, on the images' device.
        times: How many variations of each image to choose from.
    """

    def __init__(self, teacher: nn.Module, times: int = 4) -> None:
        self.teacher, self.times = teacher.eval(), times

    @torch.no_grad()
    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """As many variations as images."""
        found = vary(x.repeat(self.times, 1, 1, 1), generator)
        named = self.teacher(found).argmax(1)
        weight = 1.0 / torch.bincount(named)[named].float()
        return found[torch.multinomial(weight, len(x), generator=generator)]


def _even(count: int, most: float, x: Tensor, generator: torch.Generator) -> Tensor:
    """Uniform between −most and most."""
    return (2 * torch.rand(count, generator=generator, device=x.device) - 1) * most


def _moved(x: Tensor, generator: torch.Generator) -> Tensor:
    """Rotated, stretched in both directions, sheared and shifted, each at random."""
    count = len(x)
    turn, shear = _even(count, _TURN, x, generator), _even(count, _SHEAR, x, generator)
    wide, high = (1 + _even(count, _STRETCH, x, generator) for _ in range(2))
    right, down = (_even(count, _MOVE, x, generator) for _ in range(2))
    row, column = (torch.linspace(1 / n - 1, 1 - 1 / n, n, device=x.device) for n in x.shape[2:])

    def places(of_column: Tensor, of_row: Tensor, offset: Tensor) -> Tensor:
        return of_column.view(-1, 1, 1) * column + of_row.view(-1, 1, 1) * row[:, None] + offset.view(-1, 1, 1)

    across = places(wide * turn.cos(), shear - wide * turn.sin(), right)
    along = places(high * turn.sin(), high * turn.cos(), down)
    return F.grid_sample(x, torch.stack([across, along], 3), align_corners=False)


def _joined(x: Tensor, generator: torch.Generator) -> Tensor:
    """One side of every image joined to the other side of another."""
    other = x[torch.randperm(len(x), generator=generator, device=x.device)]
    cut = _FIRST + (_LAST - _FIRST) * torch.rand(len(x), 1, 1, 1, generator=generator, device=x.device)
    across = torch.rand(len(x), 1, 1, 1, generator=generator, device=x.device) < 0.5
    height, width = x.shape[2:]
    above = torch.arange(height, device=x.device).view(1, 1, -1, 1) < cut * height
    left = torch.arange(width, device=x.device).view(1, 1, 1, -1) < cut * width
    return torch.where(torch.where(across, above, left), x, other)


def _mirrored(x: Tensor, generator: torch.Generator) -> Tensor:
    """Mirrored in one direction, the other, or both."""
    way = torch.randint(3, (len(x), 1, 1, 1), generator=generator, device=x.device)
    return torch.where(way == 0, x.flip(2), torch.where(way == 1, x.flip(3), x.flip(2, 3)))
