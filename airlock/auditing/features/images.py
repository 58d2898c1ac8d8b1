"""How alike two pictures are: PSNR and SSIM of whole batches, and the total variation that attackers prefer small.

In: pictures as floats from 0 to 1, (n, colours, height, width). Out: one figure a picture. A PSNR ends at 100 dB, so
that a picture that is rebuilt to the last bit has a finite one.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from airlock.errors import DataError
from airlock.training.front_ends.probe_networks import error as error
from airlock.training.front_ends.probe_networks import psnr as psnr

_WINDOW, _SPREAD = 11, 1.5  # of Wang et al. 2004
_C1, _C2 = 0.01**2, 0.03**2


def ssim(first: Tensor, second: Tensor) -> Tensor:
    """Structural similarity of each pair (Wang et al. 2004), mean over the windows that lie inside and over colours.

    The window is Gaussian, 11 × 11 with spread 1.5; in a smaller picture the largest odd one that it holds.
    """
    error(first, second)
    if first.dim() != 4:
        raise DataError("pictures (n, colours, height, width)", f"{first.dim()} axes")
    window = _window(min(_WINDOW, *first.shape[2:]), first)

    def mean(x: Tensor) -> Tensor:
        colours = x.shape[1]
        across = F.conv2d(x, window.view(1, 1, 1, -1).repeat(colours, 1, 1, 1), groups=colours)
        return F.conv2d(across, window.view(1, 1, -1, 1).repeat(colours, 1, 1, 1), groups=colours)

    mean_a, mean_b = mean(first), mean(second)
    var_a, var_b = mean(first * first) - mean_a**2, mean(second * second) - mean_b**2
    both = mean(first * second) - mean_a * mean_b
    light = (2 * mean_a * mean_b + _C1) / (mean_a**2 + mean_b**2 + _C1)
    return (light * (2 * both + _C2) / (var_a + var_b + _C2)).flatten(1).mean(1)


def total_variation(x: Tensor) -> Tensor:
    """The mean absolute step between neighbouring pixels of each picture, down and across."""
    down, across = x.diff(dim=2).abs().flatten(1), x.diff(dim=3).abs().flatten(1)
    return (down.sum(1) + across.sum(1)) / x[0].numel()


def _window(size: int, like: Tensor) -> Tensor:
    size -= 1 - size % 2
    places = torch.arange(size, device=like.device, dtype=like.dtype) - size // 2
    weights = torch.exp(-(places**2) / (2 * _SPREAD**2))
    return weights / weights.sum()
