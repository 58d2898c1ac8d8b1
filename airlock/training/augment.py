"""Augmentations: each changes a record by itself, so that they cost no privacy.

With several copies a record (De et al. 2022) every copy is changed on its own; what becomes of a record is the mean
gradient of its copies, which is clipped as one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Name = Literal["none", "shift", "flip", "shift+flip"]


def shift(x: Tensor, generator: torch.Generator, pixels: int = 0) -> Tensor:
    """Move every image by up to `pixels` (an eighth of its side by default) in both directions, filling with zeros."""
    count, channels, height, width = x.shape
    reach = pixels or max(1, height // 8)
    padded = F.pad(x, (reach,) * 4)
    top, left = torch.randint(0, 2 * reach + 1, (2, count), generator=generator, device=x.device)
    rows = (top[:, None] + torch.arange(height, device=x.device))[:, None, :, None]
    columns = (left[:, None] + torch.arange(width, device=x.device))[:, None, None, :]
    image = torch.arange(count, device=x.device)[:, None, None, None]
    channel = torch.arange(channels, device=x.device)[None, :, None, None]
    return padded[image, channel, rows, columns]


def flip(x: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror every other image, by chance."""
    chosen = torch.rand(len(x), generator=generator, device=x.device) < 0.5
    return torch.where(chosen[:, None, None, None], x.flip(3), x)


def cutout(x: Tensor, generator: torch.Generator) -> Tensor:
    """Grey out a square of a quarter of the side, somewhere in every image."""
    count, _, height, width = x.shape
    reach = max(1, height // 8)
    row = torch.randint(height, (count, 1, 1, 1), generator=generator, device=x.device)
    column = torch.randint(width, (count, 1, 1, 1), generator=generator, device=x.device)
    near = (row - torch.arange(height, device=x.device)[:, None]).abs() <= reach
    near = near & ((column - torch.arange(width, device=x.device)).abs() <= reach)
    return torch.where(near, 0.5, x)


def zoom(x: Tensor, generator: torch.Generator) -> Tensor:
    """Cut out half to all of every image's area, at any place and a little stretched, and resize it."""
    count, _, height, width = x.shape
    area, stretch, across, down = torch.rand(4, count, 1, 1, generator=generator, device=x.device)
    side, stretch = (0.5 + 0.5 * area).sqrt(), (0.5 * (stretch - 0.5)).exp()
    wide, high = (side * stretch).clamp(max=1), (side / stretch).clamp(max=1)
    columns, rows = ((2 * torch.arange(n, device=x.device) + 1) / n - 1 for n in (width, height))
    right = wide * columns + (2 * across - 1) * (1.1 - wide)
    low = high * rows[:, None] + (2 * down - 1) * (1.1 - high)
    grid = torch.stack([right.expand(-1, height, -1), low.expand(-1, -1, width)], 3)
    return F.grid_sample(x, grid, padding_mode="reflection", align_corners=False)


def colour(x: Tensor, generator: torch.Generator) -> Tensor:
    """Change light, contrast and saturation of every image by up to 0.3; every tenth loses its colours."""
    changes = torch.rand(4, len(x), 1, 1, 1, generator=generator, device=x.device)
    light, contrast, saturation = 0.7 + 0.6 * changes[:3]
    x = x * light
    grey = x.mean(1, keepdim=True)
    x = grey + (x - grey) * saturation * (changes[3] > 0.1)
    mean = x.mean((1, 2, 3), keepdim=True)
    changed: Tensor = (mean + (x - mean) * contrast).clamp(0, 1)
    return changed


def named(name: Name, copies: int = 1) -> Callable[[Tensor, torch.Generator], Tensor] | None:
    """The augmentation with this name; None for none. Copies of a record stand side by side in what it returns."""
    chosen = [{"shift": shift, "flip": flip}[part] for part in name.split("+") if part != "none"]
    if not chosen and copies == 1:
        return None

    def augment(x: Tensor, generator: torch.Generator) -> Tensor:
        x = x.repeat_interleave(copies, 0) if copies > 1 else x
        for one in chosen:
            x = one(x, generator)
        return x

    return augment
