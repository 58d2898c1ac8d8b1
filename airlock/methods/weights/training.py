"""What the methods of `weights` share: a network that is trained under noise leaves, and the cases for the court."""

from __future__ import annotations

from typing import ClassVar

from airlock.methods import step_canaries, step_case
from airlock.methods.case import Canaries, Case
from airlock.methods.noisy_settings import PrivateTraining
from airlock.methods.noisy_training import NoisyTraining
from airlock.methods.weights.settings import settings_for


class TrainedWeights(NoisyTraining):
    """All weights leave."""

    channel: ClassVar[str] = "weights"
    distributed: ClassVar[bool] = True
    leaves: ClassVar[str] = (
        "A trained model with all its weights. Each step of its training saw the private records only through "
        "bounded contributions with random noise on top."
    )

    @classmethod
    def case(cls, epsilon: float, delta: float) -> Case:
        """One step on a lot that every record enters with probability 1/2."""
        return step_case.of_step(cls(step_case.config_for(cls.method, epsilon, delta), step_case.FACTS))

    @classmethod
    def canaries(cls, epsilon: float, delta: float, count: int) -> Canaries:
        """A whole release; its claim is the method's own."""
        config = step_canaries.config_for(cls.method, epsilon, delta, count)
        return step_canaries.of_training(cls(config, step_canaries.facts(count)))

    def parse_settings(self) -> PrivateTraining:
        """The user's settings over the defaults for this data."""
        return settings_for(self.config, self.facts, PrivateTraining)
