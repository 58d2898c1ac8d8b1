"""The defaults of private training by data set.

They depend on public facts alone. Those of the named image sets were looked up on those very sets, which are public
benchmarks; on private data a setting that is chosen by its result costs budget (`tuning_runs`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from airlock.config import ReleaseConfig, parse
from airlock.data import Facts
from airlock.methods.noisy_settings import PrivateTraining

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
