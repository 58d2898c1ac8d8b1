"""Network `wide-tanh`: one wide hidden layer, for records of any shape."""

import math

from torch import nn


def wide_tanh(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 128), nn.Tanh(), nn.Linear(128, classes))
