"""Records as features, by a frozen public front end: each depends only on its own record and public tensors.

A projection turns a stack of maps into a few numbers: averages over each map, then public directions. The noise on
every released number grows with how many there are, so a few numbers must carry what separates the classes. Directions
are those in which the class means of the public set are far apart relative to the variance within a class (Fisher
1936), strongest first; if more directions are requested than the classes determine, those of largest variance follow.
Along each direction the within-class standard deviation is scaled to 1, so that the ball to which features are clipped
is filled evenly. No private record is involved.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from airlock.data import Public, Records
from airlock.errors import ConfigError
from airlock.training.devices import to_input
from airlock.training.loop import Run
from airlock.training.per_sample import outputs
from airlock.training.per_sample.forward import SIZE

BLOCK = 256  # records at a time


def compute(front: nn.Module, records: Records, run: Run, label: str) -> Iterator[tuple[slice, Tensor]]:
    """Features of all records in blocks, on the run's device, each with its slice."""
    form = torch.channels_last if run.device.type == "cuda" else torch.contiguous_format
    front.to(device=run.device, memory_format=form)  # type: ignore[call-overload]
    step = max(BLOCK, SIZE[run.device.type])
    for start in range(0, len(records), step):
        block = torch.from_numpy(np.ascontiguousarray(records.x[start : start + step])).to(run.device)
        x = to_input(block)
        features = outputs(front, x.contiguous(memory_format=form) if x.dim() == 4 else x)
        yield slice(start, start + len(x)), features
        if run.progress:
            run.progress(label, start + len(x), len(records))


# From a stack of maps to a few numbers.


_RIDGE = 0.1  # relative to the mean variance within classes: directions that hardly vary are not amplified


class Average(nn.Module):
    """Each map's mean; inputs without spatial dimensions are unchanged."""

    def forward(self, x: Tensor) -> Tensor:
        """(n, D, ...) to (n, D)."""
        return x.flatten(2).mean(2) if x.dim() > 2 else x


def fit_projection(front: nn.Module, public: Public, dimensions: int, run: Run) -> tuple[nn.Module, Tensor]:
    """The front end followed by averages and a projection, and the norms of the public records' features.

    Args:
        front: Maps records to feature maps.
        public: The records that the directions are learned from.
        dimensions: The number of output features.
        run: Device, progress.

    Raises:
        ConfigError: The front end has fewer maps than the requested features.
    """
    body = nn.Sequential(front, Average())
    averages = torch.cat([x.double() for _, x in compute(body, public.records, run, "features of public records")])
    if dimensions > averages.shape[1]:
        raise ConfigError(
            f"settings.project of at most {averages.shape[1]}, the maps of the front end", f"{dimensions}"
        )
    labels = torch.from_numpy(public.records.y).to(averages.device)
    mean, directions = fisher(averages, labels, public.classes, dimensions)
    last = nn.Linear(averages.shape[1], dimensions).to(averages.device).requires_grad_(False)
    last.weight.copy_(directions)
    last.bias.copy_(-(directions @ mean))
    norms = ((averages - mean) @ directions.T).norm(dim=1)
    return nn.Sequential(front, Average(), last).eval(), norms.cpu()


def fisher(x: Tensor, y: Tensor, classes: int, dimensions: int) -> tuple[Tensor, Tensor]:
    """The mean, and a matrix (dimensions, features) of directions."""
    member = nn.functional.one_hot(y, classes).to(x)
    counts = member.sum(0).clamp_min(1.0)
    means, mean = (member.T @ x) / counts[:, None], x.mean(0)
    around = x - means[y]
    within = around.T @ around / len(x)
    values, vectors = torch.linalg.eigh(within)
    white = vectors * (values.clamp_min(0) + _RIDGE * values.mean() + 1e-12).rsqrt()
    apart = ((means - mean) * (counts / len(x)).sqrt()[:, None]) @ white
    between = apart.T @ apart
    rest = white.T @ (within @ white)  # breaks ties beyond the classes' directions by their variance
    _, axes = torch.linalg.eigh(between + 1e-6 * between.diagonal().mean() * rest)
    return mean, (white @ axes.flip(1)[:, :dimensions]).T
