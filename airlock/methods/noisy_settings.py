"""The settings of private training, for every channel that trains so."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from airlock.config import Positive
from airlock.mechanisms.clipping import SMALLEST
from airlock.training.augment import Name as AugmentName
from airlock.training.loop import Recipe

ClipNorm = Annotated[float, Field(ge=SMALLEST)]

# One step of plain descent on every record: what it changes is the noisy gradient, for the court.
ONE_STEP: dict[str, object] = {
    "steps": 1,
    "lot_size": 10**9,
    "optimiser": "sgd",
    "learning_rate": 1.0,
    "momentum": 0.0,
    "weight_decay": 0.0,
    "schedule": "constant",
    "warmup": 0.0,
    "ema": 0.0,
}


class PrivateTraining(Recipe):
    """A recipe with lots and clipping.

    Args:
        lot_size: The expected number of records in a lot; with the public number of records it sets the sampling
            probability. As large as the public number, or larger: every record enters every step.
        clip_norm: The bound on one record's gradient.
        augment: Random changes to each record by itself.
    """

    lot_size: Annotated[int, Field(ge=1)]
    clip_norm: ClipNorm
    augment: AugmentName = "none"


class GaussianTraining(PrivateTraining):
    """Private training whose clip norm may move and whose records may come as several copies.

    Args:
        clip: "fixed" keeps `clip_norm`; "adaptive" starts there and follows a quantile of the gradients' norms, at a
            price that is part of ε.
        clip_quantile: The share of records that an adaptive clip norm should leave as they are.
        clip_rate: How fast it moves.
        clip_count_noise: The noise on the number of records within it; left out, the larger of a twentieth of the
            expected lot and the noise multiplier.
        augment_multiplicity: Copies of each record in a step, each augmented on its own; the mean gradient is clipped.
    """

    clip: Literal["fixed", "adaptive"] = "fixed"
    clip_quantile: Annotated[float, Field(gt=0, lt=1)] = 0.5
    clip_rate: Positive = 0.2
    clip_count_noise: Positive | None = None
    augment_multiplicity: Annotated[int, Field(ge=1, le=1024)] = 1
