"""DP-PG (Mao et al. 2020, Algorithm 1): one model, every parameter drawn from the density of its slice.

What the paper leaves open is a setting here. Its range and bandwidth come from the slices themselves, which no ε
covers; both can be public instead: a fixed bandwidth, and a range around the weights that all models started from.

A slice whose values are all equal has no density: its bandwidth is 0 and its range a point. Such slices are common
where all models start alike: a weight behind an input that is 0 in every record never moves. They are refused, or kept
as they are if settings say so. Whether a slice is constant follows from the records, so their number is not public.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from airlock.config import Frozen, Positive
from airlock.errors import TrainingError
from airlock.mechanisms import Stream
from airlock.mechanisms.density import DensityMechanism, sheather_jones, silverman
from airlock.training.ensembles.checkpoint_store import COLUMNS, Slices

_COLUMNS = {"cuda": 8 * COLUMNS}  # of a block, where there is room


class DensitySettings(Frozen):
    """How the density of a slice is estimated, and where it is sampled.

    Args:
        bandwidth: A rule that looks at the slice (silverman, sheather-jones), or a public number for all slices.
        smoothing: A factor on a rule's bandwidth: the rules fit a density, and a twin should be near its middle.
        window: The width of the score's window, in bandwidths.
        grid_points: How many values can be drawn.
        range: Where they lie: "data", from the smallest to the largest value of the slice and `margin` bandwidths
            beyond that; "public", within `radius` of the shared start, or of 0 where models start apart.
        margin: With a range from data, in bandwidths.
        radius: With a public range.
        constant: What to do where a slice has one value in all models: "refuse", or "keep" it, as it was trained.
    """

    bandwidth: Literal["silverman", "sheather-jones"] | Positive = "silverman"
    smoothing: Positive = 1.0
    window: Positive = 1.0
    grid_points: Annotated[int, Field(ge=2, le=65_536)] = 256
    range: Literal["data", "public"] = "data"
    margin: Annotated[float, Field(ge=0)] = 1.0
    radius: Positive = 0.5
    constant: Literal["refuse", "keep"] = "refuse"


@dataclass(frozen=True)
class Generated:
    """Drawn parameters, and how many of their slices were constant."""

    values: Tensor
    constant: int


def generate(
    slices: Slices,
    settings: DensitySettings,
    mechanism: DensityMechanism,
    centre: Tensor | None,
    stream: Stream,
    device: torch.device,
) -> Generated:
    """Draw every parameter, block by block.

    Args:
        slices: The models.
        settings: Bandwidth and range.
        mechanism: ε, Δu, window and grid.
        centre: The middle of a public range: (parameters,); 0 where left out.
        stream: Secret; each block opens its own child.
        device: Where to compute.

    Raises:
        TrainingError: A parameter that is not finite, or a constant slice that is not to be kept.
    """
    values = torch.empty(slices.parameters)
    constant = 0
    for start, block in slices.blocks(_COLUMNS.get(device.type, COLUMNS)):
        own = slice(start, start + block.shape[1])
        middle = torch.zeros(block.shape[1]) if centre is None else centre[own]
        drawn, fixed = draw(block.to(device), settings, mechanism, middle.to(device), stream.child(start))
        values[own] = drawn.cpu()
        constant += fixed
    if constant and settings.constant == "refuse":
        raise TrainingError(
            "parameters that differ between the models",
            "some that are the same in all of them",
            "Such a slice has no density to draw from: the twin would have the trained value itself.",
            'Start models apart, train longer, or accept it with settings.constant = "keep".',
        )
    return Generated(values, constant)


def draw(
    block: Tensor, settings: DensitySettings, mechanism: DensityMechanism, centre: Tensor, stream: Stream
) -> tuple[Tensor, int]:
    """One value per slice of (models, slices), and the number of constant slices."""
    bandwidth, low, high = spread(block, settings, centre)
    live = (bandwidth > 0) & (high > low)
    if bool(live.all()):
        return mechanism.sample(block, low, high, bandwidth, stream), 0
    drawn = block[0].clone()
    if bool(live.any()):
        drawn[live] = mechanism.sample(block[:, live], low[live], high[live], bandwidth[live], stream)
    return drawn, int((~live).sum())


def spread(block: Tensor, settings: DensitySettings, centre: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Bandwidth and range of every slice."""
    if settings.bandwidth == "silverman":
        bandwidth = settings.smoothing * silverman(block)
    elif settings.bandwidth == "sheather-jones":
        bandwidth = settings.smoothing * sheather_jones(block)
    else:
        bandwidth = torch.full(block.shape[1:], settings.bandwidth, dtype=torch.float64, device=block.device)
    if settings.range == "public":
        return bandwidth, centre.double() - settings.radius, centre.double() + settings.radius
    margin = settings.margin * bandwidth
    return bandwidth, block.amin(0).double() - margin, block.amax(0).double() + margin
