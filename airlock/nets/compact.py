"""The all-convolutional family of RONA (Wang et al. 2019): teachers of millions of parameters, students of thousands.

Nine convolutions with leaky ReLU 0.1: three and a pool, three and a pool, one without padding as in Conv-Large (Laine
and Aila 2017), two of 1 × 1; then the average over all places and a dense layer. No batch normalisation: no layer looks
at two records at once. Teachers drop half of what a pool gives, students nothing: they have no width to spare.

The widths for CIFAR-10 and of the SVHN teacher are the paper's, by its parameter counts; the paper does not give those
for MNIST and of the SVHN students: the ones here have its counts to within half a percent. Layers have names (`conv6`,
`leaky6`, `pool1`), so that one can be named as hint or as guide.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from torch import nn

SMALLEST = 4  # pixels a side: two pools leave one
_SLOPE = 0.1


class Widths(NamedTuple):
    """Of the three convolutions before the first pool, the three before the second, and each of the last three."""

    first: int
    second: int
    seventh: int
    eighth: int
    ninth: int


# By name; parameters with the data set's own shape and ten classes.
FAMILY: dict[str, tuple[Widths, float]] = {
    "rona-cifar-teacher": (Widths(128, 256, 512, 256, 128), 0.5),  # 3,119,754
    "rona-cifar-s1": (Widths(32, 64, 64, 32, 32), 0.0),  # 152,138
    "rona-cifar-s2": (Widths(64, 128, 64, 32, 32), 0.0),  # 521,930
    "rona-svhn-teacher": (Widths(96, 192, 192, 192, 192), 0.5),  # 1,406,794
    "rona-svhn-s1": (Widths(16, 32, 32, 32, 32), 0.0),  # 39,914
    "rona-svhn-s2": (Widths(20, 40, 64, 32, 24), 0.0),  # 70,146
    "rona-mnist-teacher": (Widths(32, 64, 64, 64, 32), 0.5),  # 154,666
    "rona-mnist-s1": (Widths(5, 10, 16, 16, 16), 0.0),  # 4,960
    "rona-mnist-s2": (Widths(8, 16, 16, 12, 12), 0.0),  # 9,866
    "rona-digits-teacher": (Widths(16, 32, 32, 32, 32), 0.0),  # 39,626
    "rona-digits-student": (Widths(6, 12, 12, 12, 12), 0.0),  # 5,746
}


def compact_net(shape: tuple[int, ...], classes: int, widths: Widths, dropout: float = 0.0) -> nn.Module:
    """One network of the family, for images of at least 4 pixels a side."""
    channels, height, width = shape
    padding = 0 if min(height, width) // 4 >= 3 else 1  # small images have no border to lose
    sizes = [widths.first] * 3 + [widths.second] * 3 + list(widths[2:])
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for place, size in enumerate(sizes, 1):
        kernel = 1 if place > 7 else 3
        own = (padding if place == 7 else 1) if kernel == 3 else 0
        layers[f"conv{place}"] = _convolution(channels, size, kernel, own)
        layers[f"leaky{place}"] = nn.LeakyReLU(_SLOPE)
        if place in (3, 6):
            layers[f"pool{place // 3}"] = nn.MaxPool2d(2)
            if dropout:
                layers[f"dropout{place // 3}"] = nn.Dropout(dropout)
        channels = size
    layers |= {"average": nn.AdaptiveAvgPool2d(1), "flat": nn.Flatten(), "dense": nn.Linear(channels, classes)}
    return nn.Sequential(layers)


def _convolution(into: int, out: int, kernel: int, padding: int) -> nn.Conv2d:
    """Weights whose size keeps the signal's through nine layers: torch's own default would lose it."""
    layer = nn.Conv2d(into, out, kernel, padding=padding)
    nn.init.kaiming_normal_(layer.weight, a=_SLOPE, nonlinearity="leaky_relu")
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer
