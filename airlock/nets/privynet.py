"""The two networks of PrivyNet (Li et al. 2017): `Icn` classifies features, `Irn` reconstructs images from them.

`Icn`, the image classification network, is what the receiver of features trains on them. Convolution 5 × 5 to 64, pool
3/2, local response normalisation, convolution 5 × 5 to 64, normalisation, pool 3/2, then dense layers of 384, 192 and
one unit per class. Pools round up, so that maps of any size fit, down to one pixel.

`Irn`, the image reconstruction network, is what an attacker with pairs of images and features trains to invert the
front end. A residual generator after Ledig et al. (2016): a convolution to 64 channels, two clusters of eight residual
blocks, each with a skip connection, one pixel shuffle for every time the front end halved the image, and a convolution
to the colours. Blocks have no BatchNorm: their second convolution starts small instead, and a reconstruction depends on
its own record alone.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from airlock.errors import NetError

_WIDTH, _DENSE = 64, (384, 192)
_POOLS = 2
_REACH, _ALPHA, _BETA = 4, 1e-3, 0.75


class Icn(nn.Module):
    """Maps feature maps (n, D, h, w) to logits.

    Args:
        shape: The shape of one record's features: channels, height, width.
        classes: The number of classes.
    """

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        if len(shape) != 3 or min(shape) < 1:
            raise NetError("feature maps (channels × height × width)", f"shape {' × '.join(map(str, shape))}")
        if classes < 2:
            raise NetError("at least two classes", f"{classes}")
        channels, height, width = shape
        places = math.prod(math.ceil(side / 2**_POOLS) for side in (height, width))
        self.maps = nn.Sequential(
            nn.Conv2d(channels, _WIDTH, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
            ResponseNorm(),
            nn.Conv2d(_WIDTH, _WIDTH, 5, padding=2),
            nn.ReLU(),
            ResponseNorm(),
            nn.MaxPool2d(3, 2, 1),
        )
        first, second = _DENSE
        self.dense = nn.Sequential(
            nn.Flatten(), nn.Linear(_WIDTH * places, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU()
        )
        self.last = nn.Linear(second, classes)
        for layer in self.modules():
            if isinstance(layer, (nn.Conv2d, nn.Linear)) and layer is not self.last:
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.last(self.dense(self.maps(x)))
        return logits


class ResponseNorm(nn.Module):
    """Local response normalisation over four channels to either side, with the strength used in that network.

    Computes what torch's layer of this name does, as one product with a band of ones, so that it works for many
    networks at once.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Maps to maps."""
        band = x.new_ones(x.shape[-3], x.shape[-3]).tril(_REACH).triu(-_REACH)
        around = (band @ x.square().flatten(-2)).view(x.shape)
        return x * (1 + _ALPHA / (2 * _REACH + 1) * around) ** -_BETA


CLUSTERS, BLOCKS, WIDTH = 2, 8, 64
_START = 0.1  # how small a block's second convolution starts


class Irn(nn.Module):
    """Maps feature maps (n, D, h, w) to images (n, colours, height, width), nominally in [0, 1] but not clipped.

    Args:
        feature_shape: The shape of one record's features: channels, height, width.
        image_shape: The shape of the original image.
        clusters: The number of clusters of residual blocks.
        blocks: The number of blocks per cluster.
        width: Channels in the blocks.
    """

    def __init__(
        self,
        feature_shape: tuple[int, ...],
        image_shape: tuple[int, ...],
        clusters: int = CLUSTERS,
        blocks: int = BLOCKS,
        width: int = WIDTH,
    ) -> None:
        super().__init__()
        if len(feature_shape) != 3 or len(image_shape) != 3 or min(feature_shape) < 1:
            raise NetError(
                "feature maps and images (channels × height × width)",
                f"shapes {' × '.join(map(str, feature_shape))} and {' × '.join(map(str, image_shape))}",
            )
        self.size = image_shape[1:]
        ratio = max(image / maps for image, maps in zip(self.size, feature_shape[1:], strict=True))
        doublings = max(0, math.ceil(math.log2(ratio) - 1e-9))
        self.first = nn.Sequential(nn.Conv2d(feature_shape[0], width, 3, padding=1), nn.ReLU())
        self.clusters = nn.ModuleList(_Cluster(blocks, width) for _ in range(clusters))
        self.grow = nn.Sequential(*(_Doubling(width) for _ in range(doublings)))
        self.last = nn.Conv2d(width, image_shape[0], 3, padding=1)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d) and layer is not self.last:
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)
        for layer in self.modules():
            if isinstance(layer, _Block):
                with torch.no_grad():
                    layer.second.weight *= _START
        nn.init.zeros_(self.last.weight)
        assert self.last.bias is not None
        nn.init.constant_(self.last.bias, 0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Images."""
        x = self.first(x)
        for cluster in self.clusters:
            x = cluster(x)
        x = self.last(self.grow(x))
        if x.shape[-2:] != self.size:
            x = F.interpolate(x, size=self.size, mode="bilinear", align_corners=False)
        return x


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU())
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.second(self.first(x))
        return y


class _Cluster(nn.Module):
    def __init__(self, blocks: int, width: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_Block(width) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for block in self.blocks:
            y = block(y)
        return x + y


class _Doubling(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, 4 * width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(F.pixel_shuffle(self.conv(x), 2))
