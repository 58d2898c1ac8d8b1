"""VGG16 and VGG19 (Simonyan and Zisserman 2014): their layers one by one, and a trunk to train with BatchNorm.

Layers are numbered as in the paper, a convolution with its ReLU or a pooling each: 1 conv1_1, 2 conv1_2, 3 pool1,
4 conv2_1, 5 conv2_2, 6 pool2, and so on. State dicts have the usual layout: `features.0.weight`, `features.0.bias`,
`features.2.weight`, ... The trunk has BatchNorm, without which a VGG hardly trains; `usual` folds it into the
convolutions, so that what is kept has the usual layout too.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn

from airlock.nets.stages import ByChannel, Convolution, Layer, Plain, Weights, folded

_WIDTHS = (64, 128, 256, 512, 512)
_REPEATS = {"vgg16": (2, 2, 3, 3, 3), "vgg19": (2, 2, 4, 4, 4)}


def layout(name: str) -> Iterator[tuple[str, int, int, int]]:
    """Every layer: its name, channels in and out, and its place in `features`; a pooling has as many in as out."""
    place, found = 0, 3
    for stage, (width, repeats) in enumerate(zip(_WIDTHS, _REPEATS[name], strict=True), 1):
        for number in range(1, repeats + 1):
            yield f"conv{stage}_{number}", found, width, place
            place, found = place + 2, width
        yield f"pool{stage}", width, width, place
        place += 1


def vgg_layers(name: str, weights: Weights, count: int) -> dict[str, Layer]:
    """The first `count` layers by name."""
    layers: dict[str, Layer] = {}
    for layer, found, width, place in list(layout(name))[:count]:
        if layer.startswith("pool"):
            layers[layer] = ByChannel(nn.MaxPool2d(2))
        else:
            layers[layer] = Convolution(weights.conv(f"features.{place}", (found, width, 3)), nn.ReLU())
    return layers


class VggTrunk(nn.Module):
    """Images in [0, 1] to the averages over the last map, with BatchNorm: what is trained on public images.

    Args:
        name: vgg16 or vgg19.
        count: How many of its layers.
    """

    def __init__(self, name: str, count: int) -> None:
        super().__init__()
        self.plain = Plain.imagenet()
        layers: list[nn.Module] = []
        self.places = []
        for layer, found, width, place in list(layout(name))[:count]:
            if layer.startswith("pool"):
                layers.append(nn.MaxPool2d(2))
                continue
            conv = nn.Conv2d(found, width, 3, padding=1)
            nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
            layers += [conv, nn.BatchNorm2d(width), nn.ReLU()]
            self.places.append(place)
            self.learnt = self.dimensions = width
        self.features = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, convolve, average."""
        maps: Tensor = self.features(self.plain(x))
        return maps.mean((2, 3))

    def usual(self) -> dict[str, Tensor]:
        """The state dict in the usual layout, with BatchNorm folded in."""
        tensors: dict[str, Tensor] = {}
        pairs = [(a, b) for a, b in pairwise(self.features) if isinstance(a, nn.Conv2d)]
        for place, (conv, norm) in zip(self.places, pairs, strict=True):
            assert isinstance(norm, nn.BatchNorm2d)
            with torch.no_grad():
                made = folded(conv, norm)
            assert made.bias is not None
            tensors |= {f"features.{place}.weight": made.weight.detach(), f"features.{place}.bias": made.bias.detach()}
        return tensors
