"""What DP-SGD is run with where a user says nothing: lots, steps, clip norm and learning rate, from public facts alone.

In: ε, δ, the public number of records, the shape of a record and the name of the network. Out: settings. No result on
anybody's records goes into them; docs/results/defaults.md says where each number was looked up. Tables keep large lots
and a few hundred steps at one rate: by the rule below, which is for images, a linear model of 900 records learnt
nothing.

The learning rate η follows from the noise. Over k steps with noise multiplier z, clip norm C, expected lot L and
momentum m, a weight drifts by about η·√k·z·C/((1−m)·L) through noise alone, and a step goes at most η·C/(1−m) far, its
reach. The rate is the largest at which neither exceeds a constant of the kind of network: with much noise the drift
decides, with little the reach. The z of this rule is that of a central limit theorem (Bu et al. 2020), which takes no
time; the noise that is added is calibrated exactly, later and elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airlock.accounting import gaussian_multiplier
from airlock.config import ReleaseConfig
from airlock.data import Facts
from airlock.nets.wide_resnet import LAYOUTS

_FEW = 256  # records of which a lot takes all


@dataclass(frozen=True)
class Pace:
    """How far training may go.

    Args:
        reach: The largest step, η·C/(1−m).
        drift: The largest noise that adds up on a weight.
        share: Of the records in a lot.
        steps: At ε = 1; at other ε, √ε times as many.
        most: The most steps.
    """

    reach: float
    drift: float
    share: float
    steps: int
    most: int

    def lot(self, records: int) -> int:
        """The expected number of records in a lot."""
        return max(min(records, _FEW), round(self.share * records))

    def count(self, epsilon: float) -> int:
        """How many steps."""
        return max(_LEAST_STEPS, min(self.most, round(self.steps * math.sqrt(epsilon))))


_LEAST_STEPS = 100
SMALL = Pace(reach=4.0, drift=0.3, share=0.05, steps=500, most=1500)
WIDE = Pace(reach=2.0, drift=0.15, share=1 / 12, steps=875, most=2500)


def pace_of(net: str) -> Pace:
    """That of wide residual networks, or of all others."""
    return WIDE if net in LAYOUTS else SMALL


def defaults(net: str, records: int, epsilon: float, facts: Facts, asked: Mapping[str, Any]) -> dict[str, Any]:
    """All settings but the learning rate; for records that are no images, which the rule was never tried on, that too.

    Args:
        net: Its name.
        records: The public number of private records.
        epsilon: The asked ε.
        facts: The shape of a record.
        asked: What the user sets; what goes along with it follows.
    """
    if len(facts.shape) != 3:
        lot = max(min(records, _FEW), records // 10)
        return {"steps": 300, "lot_size": lot, "learning_rate": 4.0, "clip_norm": 0.1, "ema": 0.95}
    pace = pace_of(net)
    common = {"steps": pace.count(epsilon), "lot_size": pace.lot(records)}
    if pace is SMALL:
        return {**common, "clip_norm": 0.1, "ema": 0.95}
    augment = asked.get("augment", "shift+flip" if facts.shape[0] > 1 else "shift")
    copies = {"augment": augment, "augment_multiplicity": 1 if augment == "none" else 4}
    return {**common, **copies, "clip_norm": 1.0, "momentum": 0.0, "ema": 0.9999, "channels_last": True}


def learning_rate(net: str, config: ReleaseConfig, records: int, settings: Any) -> float:
    """The rate by the rule above, for the steps, lot, clip norm and momentum that are set."""
    pace, steps, share = pace_of(net), settings.steps, min(1.0, settings.lot_size / records)
    noise = noise_multiplier(config.epsilon, config.delta, share, steps * config.tuning_runs)
    reach = min(pace.reach, pace.drift * share * records / (noise * math.sqrt(steps)))
    return float(f"{reach * (1 - settings.momentum) / settings.clip_norm:.4g}")


def noise_multiplier(epsilon: float, delta: float, sampling_probability: float, steps: int) -> float:
    """Roughly the z of so many steps: μ² = q²·k·(e^(1/z²) − 1), or k/z² where every record is in every step."""
    squared = gaussian_multiplier(epsilon, delta) ** -2 / (sampling_probability**2 * steps)
    return math.sqrt(1 / (squared if sampling_probability >= 1 else math.log1p(squared)))
