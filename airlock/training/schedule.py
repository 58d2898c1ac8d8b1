"""How the learning rate moves: a linear rise, then constant, linear or cosine to zero."""

from __future__ import annotations

import math
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]


def rate(schedule: Schedule, peak: float, warmup: float, step: int, steps: int) -> float:
    """The learning rate of a step; a function of public numbers alone."""
    rise = math.ceil(warmup * steps)
    if step < rise:
        return peak * (step + 1) / (rise + 1)
    done = (step - rise) / max(1, steps - rise)
    if schedule == "linear":
        return peak * (1.0 - done)
    if schedule == "cosine":
        return peak * 0.5 * (1.0 + math.cos(math.pi * done))
    return peak
