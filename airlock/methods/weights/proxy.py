"""Records that stand in for public ones: synthetic classes, made from a public seed and the shape of a record alone.

Every class is one smooth random pattern, every record its class's pattern plus noise, in [0, 1] as images and declared
columns are. They teach nothing about the data; they show how large the gradients of which layer are.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_NOISE = 0.2


def make(shape: tuple[int, ...], classes: int, records: int, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs and labels, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(records) // 2 % classes  # pairs, so that each half of the records has every class
    patterns = _patterns(shape, classes, generator)
    noise = torch.randn(records, *shape, generator=generator)
    return (patterns[labels] + _NOISE * noise).clamp(0.0, 1.0), labels


def _patterns(shape: tuple[int, ...], classes: int, generator: torch.Generator) -> Tensor:
    if len(shape) != 3:
        return torch.rand(classes, *shape, generator=generator)
    channels, height, width = shape
    coarse = torch.randn(classes, channels, -(-height // 4), -(-width // 4), generator=generator)
    smooth = F.interpolate(coarse, size=(height, width), mode="bilinear", align_corners=False)
    return smooth.clamp(0.0, 1.0)
