"""`weights`/`gaussian`: DP-SGD, and all weights leave. Proof and plan are those of `methods.dp_sgd`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from airlock.methods.dp_sgd import DpSgd
from airlock.methods.noisy_settings import ONE_STEP, GaussianTraining
from airlock.methods.weights.settings import settings_for
from airlock.methods.weights.training import TrainedWeights


class Gaussian(DpSgd, TrainedWeights):
    """DP-SGD; status proven, unit record, relation add-remove."""

    method: ClassVar[str] = "gaussian"
    title: ClassVar[str] = "a network by plain DP-SGD"
    rank: ClassVar[int] = 30
    small: ClassVar[Mapping[str, object] | None] = ONE_STEP

    def parse_settings(self) -> GaussianTraining:
        """The user's settings over the defaults for this data."""
        return settings_for(self.config, self.facts, GaussianTraining)
