"""Dense networks for records without a spatial shape."""

from __future__ import annotations

import math

from torch import nn


def mlp(shape: tuple[int, ...], classes: int) -> nn.Module:
    """One hidden layer of 128 tanh units (bounded activations keep gradients small; Papernot et al. 2021)."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 128), nn.Tanh(), nn.Linear(128, classes))


def linear(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Multinomial logistic regression, started at zero."""
    layer = nn.Linear(math.prod(shape), classes)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)
