"""The settings of `twin`/`published`, and what suits data sets that are known by name."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from airlock.channels.twin.generate import DensitySettings
from airlock.config import Fraction, Positive

BY_NAME: dict[str, dict[str, object]] = {
    "digits": {"models": 20, "epochs": 20, "batch_size": 64, "learning_rate": 0.05},
    "mnist": {"epochs": 9, "learning_rate": 0.01},
}


class TwinSettings(DensitySettings):
    """The paper's training and sampling.

    Args:
        models: M.
        epochs: How often every model goes through the records, by their public number.
        batch_size: Of training.
        learning_rate: Of training.
        momentum: Of training.
        weight_decay: Of training.
        precision: Of training, on a GPU.
        start: Whether all models start from the same weights. Starts of their own permute the units, and slices then
            mix units that have nothing to do with each other.
        sensitivity: Δu: "published", 1/(M(M−1)), or "correct", κ/M.
        threshold: δ_d: the twin's accuracy has to be above; at 0 the first is taken.
        tries: How often to draw at most.
        judged_on: Which records the accuracy is taken on.
        align: Bring the units of all models into one order before slicing (`training.align`): with it, models that
            start apart can be used. Not in the paper.
        generator: "dp-pg"; or "dp-pgp", which publishes the most significant parameters of each layer of the average
            model by private clusters and noisy residuals, and draws the rest.
        significant: γ of dp-pgp, the share of a layer's parameters that are significant.
        clusters: k of dp-pgp, in a layer.
        cluster_epsilon: ε2 of dp-pgp; a fifth of ε when left out. ε1 is ε.
        residual_epsilon: ε3 of dp-pgp; four fifths of ε when left out.
        printed: Line 21 of algorithm 2 of dp-pgp as printed, which reflects a parameter at its centroid.
        bound: Of dp-pgp, a public bound of a parameter's magnitude; as published, the largest selected one.
        residual_sensitivity: Δo of dp-pgp: the diameter of the "cluster" as published, or of the "range".
    """

    models: Annotated[int, Field(ge=2, le=10_000)] = 50
    epochs: Positive = 60
    batch_size: Annotated[int, Field(ge=1)] = 128
    learning_rate: Positive = 0.001
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    precision: Literal["fp32", "tf32", "bf16"] = "tf32"
    start: Literal["shared", "independent"] = "shared"
    sensitivity: Literal["published", "correct"] = "published"
    threshold: Fraction = 0.0
    tries: Annotated[int, Field(ge=1, le=10_000)] = 10
    judged_on: Literal["test", "public"] = "test"
    align: bool = False
    generator: Literal["dp-pg", "dp-pgp"] = "dp-pg"
    significant: Annotated[float, Field(ge=0, le=1)] = 0.2
    clusters: Annotated[int, Field(ge=1)] = 8
    cluster_epsilon: Positive | None = None
    residual_epsilon: Positive | None = None
    printed: bool = False
    bound: Positive | None = None
    residual_sensitivity: Literal["cluster", "range"] = "cluster"
