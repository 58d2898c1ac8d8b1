"""The settings of `twin`/`published`, and what suits data sets that are known by name."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from airlock.config import Fraction, Positive, ReleaseConfig
from airlock.errors import ConfigError
from airlock.papers.twin.generate import DensitySettings
from airlock.training.loop import Schedule

BY_NAME: dict[str, dict[str, object]] = {
    "digits": {"models": 20, "epochs": 20, "batch_size": 64, "learning_rate": 0.05},
    "mnist": {"epochs": 10, "learning_rate": 0.1, "schedule": "cosine", "constant": "keep"},
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
        schedule: How the learning rate moves; the paper's is constant.
        precision: Of training, on a GPU.
        start: Whether all models start from the same weights. Starts of their own permute the units, and slices then
            mix units that have nothing to do with each other.
        common_epochs: So many epochs of one training come first, and all models go on from there; not in the paper. It
            keeps models that learn fast in one basin.
        sensitivity: Δu: "published", 1/(M(M−1)), or "correct", κ/M.
        threshold: δ_d: the twin's accuracy has to be above; at 0 the first is taken.
        tries: How often to draw at most.
        judged_on: Which records the accuracy is taken on.
        align: Bring the units of all models into one order before slicing (`training.ensembles.align`): with it, models
            that start apart can be used. Not in the paper.
        generator: "dp-pg"; or "dp-pgp", which publishes the most significant parameters of each layer of the average
            model by private clusters and noisy residuals, and draws the rest.
        significant: γ of dp-pgp, the share of a layer's parameters that are significant.
        clusters: k of dp-pgp, in a layer.
        draw_epsilon: ε1 of dp-pgp, of the parameters that are drawn; ε when left out.
        cluster_epsilon: ε2 of dp-pgp; a fifth of ε when left out.
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
    schedule: Schedule = "constant"
    precision: Literal["fp32", "tf32", "bf16"] = "tf32"
    start: Literal["shared", "independent"] = "shared"
    common_epochs: Annotated[float, Field(ge=0)] = 0.0
    sensitivity: Literal["published", "correct"] = "published"
    threshold: Fraction = 0.0
    tries: Annotated[int, Field(ge=1, le=10_000)] = 10
    judged_on: Literal["test", "public"] = "test"
    align: bool = False
    generator: Literal["dp-pg", "dp-pgp"] = "dp-pg"
    significant: Annotated[float, Field(ge=0, le=1)] = 0.2
    clusters: Annotated[int, Field(ge=1)] = 8
    draw_epsilon: Positive | None = None
    cluster_epsilon: Positive | None = None
    residual_epsilon: Positive | None = None
    printed: bool = False
    bound: Positive | None = None
    residual_sensitivity: Literal["cluster", "range"] = "cluster"


def check_together(settings: TwinSettings, config: ReleaseConfig) -> None:
    """Refuse settings that contradict each other, and keys that would be ignored: they hide a mistake.

    Raises:
        ConfigError: One of them.
    """
    _check_start(settings)
    _check_epsilons(settings, config.epsilon / config.tuning_runs)
    if settings.smoothing != 1 and not isinstance(settings.bandwidth, str):
        raise ConfigError("settings.smoothing with a rule as bandwidth", "with a number", do="Multiply it yourself.")
    if settings.threshold > 0 and settings.judged_on == "public" and not config.split.public:
        raise ConfigError(
            'public records for settings.judged_on = "public"',
            "none",
            do="Set split.public, or judge on the test records.",
        )


def _check_start(settings: TwinSettings) -> None:
    if settings.align and settings.range == "public":
        raise ConfigError(
            'settings.range = "data" for aligned models',
            '"public"',
            "A range around the start means nothing once units have changed places.",
        )
    if settings.common_epochs and (settings.range == "public" or settings.start == "independent"):
        raise ConfigError(
            'settings.start = "shared" and settings.range = "data" with settings.common_epochs',
            "another",
            "The common start is trained on the private records: models have no other, and it is not public.",
        )


def _check_epsilons(settings: TwinSettings, epsilon: float) -> None:
    own = settings.draw_epsilon
    if own is not None and settings.generator == "dp-pg":
        raise ConfigError("settings.draw_epsilon with dp-pgp", "with dp-pg", do="Its ε is `epsilon`.")
    if own is not None and own > epsilon * (1 + 1e-9):
        raise ConfigError(
            "settings.draw_epsilon up to epsilon",
            f"{own:g} > {epsilon:g}",
            "The paper's claim for a model is the largest of ε1 and ε2 + ε3.",
            "Raise epsilon, or lower it.",
        )
