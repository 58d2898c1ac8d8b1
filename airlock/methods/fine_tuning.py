"""Fine-tuning a network of transformers under noise: what of it is trained, and the settings for that.

The defaults follow from public facts alone: how many records there are, whether the network brings weights, and what of
it is trained (`nets.hugging_face`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from airlock.config import TRANSFORMERS
from airlock.errors import ConfigError
from airlock.methods.dp_sgd import DpSgdSettings
from airlock.nets import hugging_face
from airlock.nets.hugging_face import Tune

# Adam's learning rate by what is trained of a network that brings weights: the fewer parameters, the longer the steps
# that they bear. That of adapters, their rank, and that weights are averaged was looked up on the public texts of
# docs/results/text_rates.py; the others are of the usual size.
_RATES: Mapping[Tune, float] = {"full": 5e-4, "lora": 2e-3, "bias": 4e-3, "last": 1e-2}
FRESH_RATE = 1e-3  # where it starts from random weights

_MUCH_NOISE, _LITTLE_NOISE = 2.0, 5.0  # ε below which adapters are narrow, and above which lots are larger


class FineTuningSettings(DpSgdSettings):
    """The settings of DP-SGD, and what it trains of a network of transformers.

    Args:
        tune: What is trained of a network of transformers: "full", "last" (the head), "bias" (the head and all biases)
            or "lora" (the head and narrow matrices beside the dense layers). "lora" if left out and it brings weights.
        lora_rank: The inner width of these matrices: 16 if left out, and 4 for ε below 2.
    """

    tune: Tune | None = None
    lora_rank: Annotated[int, Field(ge=1, le=1024)] = 16


def fine_tuning(records: int, epsilon: float, net: str, tune: object) -> dict[str, Any]:
    """For networks of transformers: Adam, with large lots, and a learning rate by what is trained.

    Above an ε of about 5 the noise on a sum is no longer small beside what sampling hides, and larger lots get more out
    of the same budget.
    """
    lot = max(min(records, 256), records // (4 if epsilon > _LITTLE_NOISE else 8))
    common = {"steps": 150, "lot_size": lot, "clip_norm": 0.1, "optimiser": "adam"}
    if not hugging_face.has_weights(net):
        return {**common, "learning_rate": FRESH_RATE, "schedule": "linear", "warmup": 0.05}
    asked = tune if tune in _RATES else tune_of(net, None)
    rate, rank = _RATES[asked], 4 if epsilon < _MUCH_NOISE else 16  # type: ignore[index]
    return {**common, "learning_rate": rate, "ema": 0.95, "lora_rank": rank}


def tune_of(net: str, asked: Tune | None) -> Tune:
    """What is trained of a network of this name.

    Raises:
        ConfigError: Part of one that is not of transformers.
    """
    if not hugging_face.is_named(net) and asked not in (None, "full"):
        raise ConfigError(
            f'a net "{TRANSFORMERS}FOLDER" for settings.tune = "{asked}"',
            f"'{net}'",
            "Of other networks it is not known which layer is the head.",
            "Leave tune out; your own network may freeze parameters itself (requires_grad_(False)).",
        )
    if asked is not None or not hugging_face.is_named(net):
        return asked or "full"
    return "lora" if hugging_face.has_weights(net) else "full"
