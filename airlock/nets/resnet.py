"""ResNet-18 (He et al. 2016): its stem and blocks one by one, and a trunk to train.

Layers: 1 the stem's convolution, 2 its pooling, then a residual block each: 3 and 4 of 64 channels, 5 and 6 of 128,
7 and 8 of 256, 9 and 10 of 512. State dicts have the usual layout: `conv1.weight`, `bn1.weight`,
`layer1.0.conv1.weight`, ..., `layer2.0.downsample.0.weight`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch.nn.functional as F
from torch import Tensor, nn

from airlock.nets.stages import Block, ByChannel, Convolution, Layer, Plain, Weights

_WIDTHS = (64, 128, 256, 512)
LAYERS = 2 + 2 * len(_WIDTHS)


def _blocks() -> Iterator[tuple[str, int, int, int]]:
    """Name, channels in and out, stride."""
    found = _WIDTHS[0]
    for stage, width in enumerate(_WIDTHS, 1):
        for place in range(2):
            yield f"layer{stage}.{place}", found, width, 2 if found != width else 1
            found = width


def resnet_layers(weights: Weights, count: int) -> dict[str, Layer]:
    """The first `count` layers by name."""
    stem = weights.conv("conv1", (3, _WIDTHS[0], 7), 2, "bn1")
    layers: dict[str, Layer] = {"conv1": Convolution(stem, nn.ReLU())}
    layers["pool1"] = ByChannel(nn.MaxPool2d(3, 2, 1))
    for name, found, width, stride in list(_blocks())[: max(0, count - 2)]:
        first = weights.conv(f"{name}.conv1", (found, width, 3), stride, f"{name}.bn1")
        second = weights.conv(f"{name}.conv2", (width, width, 3), 1, f"{name}.bn2")
        short: nn.Module = nn.Identity()
        if found != width:
            down = f"{name}.downsample"
            short = Convolution(weights.conv(f"{down}.0", (found, width, 1), stride, f"{down}.1"))
        layers[name] = Block([Convolution(first, nn.ReLU()), Convolution(second)], short, nn.ReLU())
    return dict(list(layers.items())[:count])


class _Basic(nn.Module):
    def __init__(self, found: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(found, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample: nn.Module = nn.Identity()
        if found != width:
            self.downsample = nn.Sequential(nn.Conv2d(found, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.downsample(x))


class ResnetTrunk(nn.Module):
    """Images in [0, 1] to the averages over the last map: what is trained on public images."""

    learnt = dimensions = _WIDTHS[-1]

    def __init__(self) -> None:
        super().__init__()
        self.plain = Plain.imagenet()
        self.conv1 = nn.Conv2d(3, _WIDTHS[0], 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(_WIDTHS[0])
        blocks = {name: _Basic(found, width, stride) for name, found, width, stride in _blocks()}
        for stage in range(1, len(_WIDTHS) + 1):
            own = [block for name, block in blocks.items() if name.startswith(f"layer{stage}.")]
            setattr(self, f"layer{stage}", nn.Sequential(*own))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, convolve, average."""
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(self.plain(x)))), 3, 2, 1)
        for stage in range(1, len(_WIDTHS) + 1):
            x = getattr(self, f"layer{stage}")(x)
        return x.mean((2, 3))

    def usual(self) -> dict[str, Tensor]:
        """The state dict in the usual layout."""
        return {key: value for key, value in self.state_dict().items() if not key.startswith("plain.")}
