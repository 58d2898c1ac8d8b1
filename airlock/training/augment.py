"""Augmentations: each changes a record independently of the others, so they cost no privacy.

With several copies per record (De et al. 2022) every copy is augmented independently; a record's gradient is the mean
over its copies, which is clipped once.
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
    """Mirror each image with probability one half."""
    chosen = torch.rand(len(x), generator=generator, device=x.device) < 0.5
    return torch.where(chosen[:, None, None, None], x.flip(3), x)


def cutout(x: Tensor, generator: torch.Generator) -> Tensor:
    """Grey out a square of a quarter of the side at a random position in every image."""
    count, _, height, width = x.shape
    reach = max(1, height // 8)
    row = torch.randint(height, (count, 1, 1, 1), generator=generator, device=x.device)
    column = torch.randint(width, (count, 1, 1, 1), generator=generator, device=x.device)
    near = (row - torch.arange(height, device=x.device)[:, None]).abs() <= reach
    near = near & ((column - torch.arange(width, device=x.device)).abs() <= reach)
    return torch.where(near, 0.5, x)


def named(name: Name, copies: int = 1) -> Callable[[Tensor, torch.Generator], Tensor] | None:
    """The augmentation with this name; None for none. In its output, copies of a record are adjacent."""
    chosen = [{"shift": shift, "flip": flip}[part] for part in name.split("+") if part != "none"]
    if not chosen and copies == 1:
        return None

    def augment(x: Tensor, generator: torch.Generator) -> Tensor:
        x = x.repeat_interleave(copies, 0) if copies > 1 else x
        for one in chosen:
            x = one(x, generator)
        return x

    return augment
