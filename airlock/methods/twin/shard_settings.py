"""The settings of `twin`/`sharded` and `twin`/`kde-sharded`, and what follows from public figures when left out.

How the defaults were found: on Fashion-MNIST alone (docs/results/twin-sharded.md). With n records, M shards and noise
multiplier z, noise falls as z/M and what a shard cannot know grows as M/n; both are even at M ~ √(z n). Features have
norm at most 1, and a head from s records had a norm of about √s there. Where R suits other
data badly, accuracy suffers and the promise does not.
"""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from airlock.config import Positive
from airlock.training.front_ends.public import FrontSettings

_SHARDS = 2.0  # times √(z n)
_RADIUS = 0.5  # times √s


class ShardSettings(FrontSettings):
    """How shards are made, what each is asked for, and how far its answer may reach.

    Args:
        shards: M; when left out, by the number of records and the noise.
        radius: R, the largest norm of a shard's vector; when left out, half the root of a shard's expected size.
        features: The front end of a head, as in `weights`/`head`.
        ridge: The penalty of a shard's head.
        dimensions: How many random directions of the features are used; all when left out.
        noise_limit: Refuse a plan whose noise norm is above so many radii.
    """

    shards: Annotated[int, Field(ge=2, le=1_000_000)] | None = None
    radius: Positive | None = None
    features: str = "auto"
    ridge: Positive = 0.03
    dimensions: Annotated[int, Field(ge=1, le=100_000)] | None = None
    noise_limit: Positive = 5.0


def default_shards(records: int, noise_multiplier: float) -> int:
    """2 √(z n), between 2 and the number of records."""
    return max(2, min(records, round(_SHARDS * math.sqrt(noise_multiplier * records))))


def default_radius(records: int, shards: int) -> float:
    """Half of √s for heads of about s records each."""
    return _RADIUS * math.sqrt(max(records / shards, 1.0))
