"""The image classification network of PrivyNet (Li et al. 2017): what the receiver of features trains on them.

Convolution 5 × 5 to 64, pool 3/2, local response normalisation, convolution 5 × 5 to 64, normalisation, pool 3/2, then
dense layers of 384, 192 and one a class. Pools round up, so that maps of any size fit, down to one pixel.
"""

from __future__ import annotations

import math

from torch import Tensor, nn

from airlock.errors import NetError

_WIDTH, _DENSE = 64, (384, 192)
_POOLS = 2
_REACH, _ALPHA, _BETA = 4, 1e-3, 0.75


class Icn(nn.Module):
    """Feature maps (n, D, h, w) to logits.

    Args:
        shape: Of one record's features: channels, height, width.
        classes: How many.
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
    """Local response normalisation over four channels to either side, with the strength of the network that was taken.

    What torch's layer of this name computes, as one product with a band of ones: it takes many networks at once.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Maps to maps."""
        band = x.new_ones(x.shape[-3], x.shape[-3]).tril(_REACH).triu(-_REACH)
        around = (band @ x.square().flatten(-2)).view(x.shape)
        return x * (1 + _ALPHA / (2 * _REACH + 1) * around) ** -_BETA
