"""How a record becomes the features that leave, as computed by an attacker who knows the whole pipeline.

In: a front end, the norm that features are clipped to, the noise. Out: features of any record, with the attacker's own
noise. A front end is any module from records (floats; pixels from 0 to 1) to features; a projection is part of it. The
noise here is for attacks only: it is seeded and protects no one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from airlock.data import Records
from airlock.errors import DataError
from airlock.training.devices import to_input

_BLOCK = 250
_TINY = 1e-12


@dataclass(frozen=True)
class FeaturePipeline:
    """What every record goes through.

    Args:
        front: From records to features; frozen, each record processed independently.
        clip: The largest norm of one record's features; None where they are not clipped.
        sigma: The standard deviation of the noise on every feature; 0 for none.
    """

    front: nn.Module
    clip: float | None = None
    sigma: float = 0.0

    def clean(self, x: Tensor) -> Tensor:
        """Features before the noise; differentiable."""
        features: Tensor = self.front(x)
        if self.clip is None:
            return features
        norm = features.flatten(1).norm(dim=1).clamp_min(_TINY).view(-1, *[1] * (features.dim() - 1))
        clipped: Tensor = features * (self.clip / norm).clamp_max(1.0)
        return clipped

    def noisy(self, features: Tensor, generator: torch.Generator) -> Tensor:
        """Clean features with noise; the generator's device decides where it is drawn."""
        if not self.sigma:
            return features
        noise = torch.randn(features.shape, generator=generator, device=generator.device)
        return features + self.sigma * noise.to(features)


@dataclass(frozen=True)
class Pairs:
    """Records that an attacker knows, with their features before noise.

    Args:
        x: Records as floats.
        clean: Their features, without noise: the attacker can add fresh noise as often as it likes.
        y: Their labels, which leave with the features.
    """

    x: Tensor
    clean: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def take(self, which: slice | Tensor) -> Pairs:
        """Some of them."""
        return Pairs(self.x[which], self.clean[which], self.y[which])

    def halves(self) -> tuple[Pairs, Pairs]:
        """Three quarters to learn from, and every fourth record for selection."""
        every = torch.arange(len(self), device=self.y.device) % 4 == 3
        return self.take(~every), self.take(every)


def push(
    pipeline: FeaturePipeline, records: Records, device: torch.device, progress: Callable[[int], Any] | None = None
) -> Pairs:
    """Send records through the pipeline, without the noise.

    Raises:
        DataError: There are none.
    """
    if not len(records):
        raise DataError("records to attack with", "none")
    pipeline.front.to(device).eval()
    x = to_input(torch.from_numpy(np.ascontiguousarray(records.x)).to(device))
    found = []
    with torch.no_grad():
        for start in range(0, len(x), _BLOCK):
            found.append(pipeline.clean(x[start : start + _BLOCK]))
            if progress:
                progress(start)
    labels: NDArray[np.int64] = np.ascontiguousarray(records.y)
    return Pairs(x, torch.cat(found), torch.from_numpy(labels).to(device))


def generator_on(device: torch.device, seed: int) -> torch.Generator:
    """A seeded generator on the device where it is used."""
    return torch.Generator(device).manual_seed(seed)
