"""The settings of private training, and their defaults by data set.

Defaults depend on public facts alone. Those of the named image sets were looked up on those very sets, which are public
benchmarks; on private data a setting that is chosen by its result costs budget (`tuning_runs`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from airlock.config import Positive, ReleaseConfig, parse
from airlock.data import Facts
from airlock.training.augment import Name as AugmentName
from airlock.training.loop import Recipe


class PrivateTraining(Recipe):
    """A recipe with lots and clipping.

    Args:
        lot_size: The expected number of records in a lot; with the public number of records it sets the sampling
            probability. As large as the public number, or larger: every record enters every step.
        clip_norm: The bound on one record's gradient.
        augment: Random changes to each record by itself.
    """

    lot_size: Annotated[int, Field(ge=1)]
    clip_norm: Positive
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


S = TypeVar("S", bound=PrivateTraining)
Defaults = Mapping[str, Mapping[str, Any]]

_BY_NAME: dict[str, dict[str, Any]] = {
    "digits": {"steps": 40, "lot_size": 1797, "learning_rate": 0.3, "clip_norm": 1.0},
    "mnist": {"steps": 300, "lot_size": 2048, "learning_rate": 8.0, "clip_norm": 0.1, "ema": 0.95},
}


def settings_for(config: ReleaseConfig, facts: Facts, model: type[S], by_name: Defaults = _BY_NAME) -> S:
    """The user's settings over the defaults for this data.

    Args:
        config: What was asked for.
        facts: What is public about the data.
        model: The method's settings.
        by_name: The method's defaults by data set.
    """
    defaults = by_name.get(facts.name) or _general(facts.expected("private", config.split))
    return parse(model, {**defaults, **config.settings}, where="settings")


def _general(records: int) -> dict[str, Any]:
    """Large lots and a few hundred steps: what does well under noise whatever the data."""
    lot = max(min(records, 256), records // 10)
    return {"steps": 300, "lot_size": lot, "learning_rate": 4.0, "clip_norm": 0.1, "ema": 0.95}
