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
# that they bear. Starting points of the usual size, fixed before any text was looked at.
_RATES: Mapping[Tune, float] = {"full": 5e-4, "lora": 2e-3, "bias": 4e-3, "last": 1e-2}
_FRESH_RATE = 1e-3  # where it starts from random weights


class FineTuningSettings(DpSgdSettings):
    """The settings of DP-SGD, and what it trains of a network of transformers.

    Args:
        tune: What is trained of a network of transformers: "full", "last" (the head), "bias" (the head and all biases)
            or "lora" (the head and narrow matrices beside the dense layers). "lora" if left out and it brings weights.
        lora_rank: The inner width of these matrices.
    """

    tune: Tune | None = None
    lora_rank: Annotated[int, Field(ge=1, le=1024)] = 16


def fine_tuning(records: int, net: str, tune: object) -> dict[str, Any]:
    """For networks of transformers: Adam, with large lots, and a learning rate by what is trained."""
    fresh = not hugging_face.has_weights(net)
    asked = tune if tune in _RATES else tune_of(net, None)
    rate = _FRESH_RATE if fresh else _RATES[asked]  # type: ignore[index]
    lot = max(min(records, 256), records // 8)
    how = {"optimiser": "adam", "learning_rate": rate, "schedule": "linear", "warmup": 0.05}
    return {"steps": 150, "lot_size": lot, "clip_norm": 0.1, **how}


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
