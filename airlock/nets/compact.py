"""The all-convolutional family of RONA (Wang et al. 2019): teachers of millions of parameters, students of thousands.

Convolutions of 3 × 3 with leaky ReLU 0.1 and two pools among them, the last one without padding as in Conv-Large (Laine
and Aila 2017), then some of 1 × 1, the average over all places and a dense layer; nine in all in the paper's CIFAR-10
networks. No batch normalisation: no layer looks at two records at once. Teachers drop half of what a pool gives,
students nothing: they have no width to spare.

The widths for CIFAR-10 and of the SVHN teacher are the paper's, by its parameter counts; the paper gives neither widths
nor depth for MNIST and of the SVHN students: the ones here have its counts to within two percent. These students
are laid out to be fast: widths are multiples of 8 or 16, which vector units take at once, and few convolutions
see the whole image. Layers have names (`conv6`, `leaky6`, `pool1`), so that one can be named as hint or as guide.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

from torch import nn

SMALLEST = 4  # pixels a side: two pools leave one
_SLOPE = 0.1


class CompactLayout(NamedTuple):
    """Widths of the 3 × 3 convolutions before the first pool, before the second and after it, and of those of 1 × 1."""

    first: tuple[int, ...]
    second: tuple[int, ...]
    third: tuple[int, ...]
    points: tuple[int, ...]

    @property
    def guide(self) -> str:
        """The layer that learns from a teacher's first pool: the last one whose maps have the size of that pool's."""
        return f"leaky{len(self.first) + len(self.second)}"


def nine(first: int, second: int, seventh: int, eighth: int, ninth: int) -> CompactLayout:
    """Three convolutions before each pool, and three after: one of 3 × 3, two of 1 × 1."""
    return CompactLayout((first,) * 3, (second,) * 3, (seventh,), (eighth, ninth))


# By name, with how much a pool drops; parameters with the data set's own shape and ten classes.
FAMILY: dict[str, tuple[CompactLayout, float]] = {
    "rona-cifar-teacher": (nine(128, 256, 512, 256, 128), 0.5),  # 3,119,754
    "rona-cifar-s1": (nine(32, 64, 64, 32, 32), 0.0),  # 152,138
    "rona-cifar-s2": (nine(64, 128, 64, 32, 32), 0.0),  # 521,930
    "rona-svhn-teacher": (nine(96, 192, 192, 192, 192), 0.5),  # 1,406,794
    "rona-svhn-s1": (CompactLayout((16, 16), (32, 32, 32), (32,), (64, 32)), 0.0),  # 39,674
    "rona-svhn-s2": (CompactLayout((16, 16), (32, 32, 32), (48, 48), (64, 80)), 0.0),  # 69,706
    "rona-mnist-teacher": (nine(32, 64, 64, 64, 32), 0.5),  # 154,666
    "rona-mnist-s1": (CompactLayout((16,), (8, 16), (8, 16), ()), 0.0),  # 4,986
    "rona-mnist-s2": (CompactLayout((16,), (8, 16), (16, 32), ()), 0.0),  # 9,778
    "rona-digits-teacher": (nine(16, 32, 32, 32, 32), 0.0),  # 39,626
    "rona-digits-student": (nine(6, 12, 12, 12, 12), 0.0),  # 5,746
}


def compact_net(shape: tuple[int, ...], classes: int, layout: CompactLayout, dropout: float = 0.0) -> nn.Module:
    """One network of the family, for images of at least 4 pixels a side."""
    channels, height, width = shape
    borders = min(height, width) // 4 >= 3  # small images have no border to lose
    pools = {len(layout.first): "1", len(layout.first) + len(layout.second): "2"}
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for place, (size, kernel, padding) in enumerate(_convolutions(layout, borders), 1):
        layers[f"conv{place}"] = _convolution(channels, size, kernel, padding)
        layers[f"leaky{place}"] = nn.LeakyReLU(_SLOPE)
        if place in pools:
            layers[f"pool{pools[place]}"] = nn.MaxPool2d(2)
            if dropout:
                layers[f"dropout{pools[place]}"] = nn.Dropout(dropout)
        channels = size
    layers |= {"average": nn.AdaptiveAvgPool2d(1), "flat": nn.Flatten(), "dense": nn.Linear(channels, classes)}
    return nn.Sequential(layers)


def _convolutions(layout: CompactLayout, borders: bool) -> Iterator[tuple[int, int, int]]:
    """Width, kernel and padding of each; the last of 3 × 3 has no padding where there are borders to lose."""
    threes = (*layout.first, *layout.second, *layout.third)
    for place, size in enumerate(threes, 1):
        yield size, 3, 0 if borders and place == len(threes) else 1
    for size in layout.points:
        yield size, 1, 0


def _convolution(into: int, out: int, kernel: int, padding: int) -> nn.Conv2d:
    """Weights whose size keeps the signal's through nine layers: torch's own default would lose it."""
    layer = nn.Conv2d(into, out, kernel, padding=padding)
    nn.init.kaiming_normal_(layer.weight, a=_SLOPE, nonlinearity="leaky_relu")
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer
