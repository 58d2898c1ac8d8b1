"""`weights`/`gaussian`: DP-SGD, and all weights leave. Proof and plan are those of `methods.dp_sgd`.

The defaults depend on public facts alone. Those of the named image sets were tuned on those very sets, which are public
benchmarks; on private data, choosing a setting by its result costs budget (`tuning_runs`).

`TrainedWeights` and `settings_for` serve every method of this channel that trains a whole network.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from torch import nn

from airlock.config import MINILM, TRANSFORMERS, ReleaseConfig, parse
from airlock.data import Facts
from airlock.errors import ConfigError
from airlock.methods import dp_sgd_case
from airlock.methods.case import Canaries, Case
from airlock.methods.contract import Details
from airlock.methods.dp_sgd import ONE_STEP, DpSgd, NoisyTrainingSettings
from airlock.methods.fine_tuning import FineTuningSettings, fine_tuning, tune_of
from airlock.nets import default_name, hugging_face
from airlock.nets.registry import tuned

S = TypeVar("S", bound=NoisyTrainingSettings)
Defaults = Mapping[str, Mapping[str, Any]]

_BY_NAME: dict[str, dict[str, Any]] = {
    "digits": {"steps": 40, "lot_size": 1797, "learning_rate": 0.3, "clip_norm": 1.0},
    "mnist": {"steps": 300, "lot_size": 2048, "learning_rate": 8.0, "clip_norm": 0.1, "ema": 0.95},
}


_FEWEST_NUMBERS = 3  # of a text that can be predicted: no token, and two tokens


class GaussianSettings(FineTuningSettings):
    """The settings of DP-SGD for a network whose weights leave."""


def settings_for(config: ReleaseConfig, facts: Facts, model: type[S], by_name: Defaults = _BY_NAME) -> S:
    """The user's settings over the defaults for this data.

    Args:
        config: What was asked for.
        facts: What is public about the data.
        model: The method's settings.
        by_name: The method's defaults by data set.
    """
    defaults, records = by_name.get(facts.name), facts.expected("private", config.split)
    net = default_name(facts.shape, facts.vocabulary) if config.net == "auto" else config.net
    if hugging_face.is_named(net):
        defaults = fine_tuning(records, net, config.settings.get("tune"))
    elif defaults is None:
        defaults = _general(records)
    if facts.target is not None and not hugging_face.is_named(net):
        # squared errors curve more than cross-entropies; chosen on made-up tables
        defaults = {**defaults, "learning_rate": 0.1}
    return parse(model, {**defaults, **config.settings}, where="settings")


def _general(records: int) -> dict[str, Any]:
    """Large lots and a few hundred steps: what does well under noise whatever the data."""
    lot = max(min(records, 256), records // 10)
    return {"steps": 300, "lot_size": lot, "learning_rate": 4.0, "clip_norm": 0.1, "ema": 0.95}


class TrainedWeights(dp_sgd_case.TriedTraining):
    """A network that is trained under noise leaves with all its weights."""

    channel: ClassVar[str] = "weights"
    distributed: ClassVar[bool] = True
    leaves: ClassVar[str] = (
        "A trained model with all its weights. Each step of its training saw the private records only through "
        "bounded contributions with random noise on top."
    )

    @classmethod
    def step_in_court(cls, epsilon: float, delta: float, facts: Facts) -> Case:
        """One step on a lot that every record enters with probability 1/2."""
        return dp_sgd_case.step_case(cls(dp_sgd_case.step_config(cls.method, epsilon, delta), facts))

    @classmethod
    def training_in_court(cls, epsilon: float, delta: float, count: int, facts: Facts) -> Canaries:
        """A whole release."""
        config = dp_sgd_case.canary_config(cls.method, epsilon, delta, count)
        return dp_sgd_case.training_canaries(cls(config, facts))


class Gaussian(DpSgd, TrainedWeights):
    """DP-SGD; status proven, unit record or person, relation add-remove."""

    method: ClassVar[str] = "gaussian"
    title: ClassVar[str] = "a network by plain DP-SGD"
    rank: ClassVar[int] = 30
    tasks: ClassVar[frozenset[str]] = frozenset({"classification", "regression", "language"})
    texts: ClassVar[bool] = True
    reads_files: ClassVar[bool] = True
    fine_tunes: ClassVar[bool] = True
    small: ClassVar[Mapping[str, object] | None] = ONE_STEP
    settings: GaussianSettings

    def __init__(self, config: ReleaseConfig, facts: Facts) -> None:
        if facts.task == "language":
            _check_language(config, facts)
        super().__init__(config, facts)
        self.tune = tune_of(self.net_name, self.settings.tune)

    def parse_settings(self) -> GaussianSettings:
        """The user's settings over the defaults for this data."""
        return settings_for(self.config, self.facts, GaussianSettings)

    def untrained(self) -> nn.Module:
        """With adapters, and with what is not trained frozen."""
        return tuned(super().untrained(), self.tune, self.settings.lora_rank, self.config.seed)

    def extras(self) -> Details:
        """What is trained, where that is less than everything."""
        how = f"lora, rank {self.settings.lora_rank}" if self.tune == "lora" else self.tune
        return {**super().extras(), **({"tune": how} if self.tune != "full" else {})}


def _check_language(config: ReleaseConfig, facts: Facts) -> None:
    """Refuse what is no language model, before anything else is said about it."""
    if not hugging_face.is_named(config.net) or config.net == TRANSFORMERS + MINILM:
        raise ConfigError(
            f'a net "{TRANSFORMERS}FOLDER" for task = "language"',
            f"'{config.net}'",
            "The next token is predicted by a causal language model, and none comes with the package.",
            "Name a folder that AutoModelForCausalLM opens, such as a GPT-2 or a Llama.",
        )
    if (facts.vocabulary or 0) < _FEWEST_NUMBERS:
        raise ConfigError(
            "a tokenizer of at least two tokens",
            "one token",
            "Of one token the next is always known.",
            "Take another tokenizer.",
        )
