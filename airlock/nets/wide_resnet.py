"""Wide residual networks for training under noise: WRN-16-4 and WRN-40-4 (De et al. 2022, arXiv 2204.13650).

Zagoruyko and Komodakis' networks with two changes. GroupNorm takes the place of BatchNorm, which mixes records. And
convolutions standardise their weights (Qiao et al. 2019): every filter has mean 0 and norm 1, whatever the noise did to
the weight that is trained. The signal then keeps its size through all layers, and a filter cannot grow by noise alone.

What is trained, clipped and released is the weight itself. The standardised one is a function of it alone, so that the
gradient of the one follows from that of the other by a fixed linear map, `StandardisedConv2d.pull_back`.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

SMALLEST = 8  # pixels per side: the last maps then have two
LAYOUTS = {"wrn-16-4": (16, 4), "wrn-40-4": (40, 4)}  # depth and width
_STEM, _GROUPS = 16, 16
_EPSILON = 1e-4  # added to a filter's squared norm


class StandardisedConv2d(nn.Conv2d):
    """A convolution whose filters are shifted to mean 0 and scaled to norm 1 before they are used."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps to maps."""
        unit = standardised(self.weight.flatten(1))[0].view_as(self.weight)
        return F.conv2d(x, unit, self.bias, self.stride, self.padding, self.dilation, self.groups)

    def pull_back(self, gradients: Tensor, weight: Tensor) -> Tensor:
        """From gradients of the standardised weight to those of the weight; overwrites its argument.

        A filter w becomes u = c/s, with c = w − mean(w) and s = √(‖c‖² + ε). The gradient g of u becomes
        (g − mean(g) − u ⟨u, g⟩)/s: linear in g, and a function of the filter's own g and w.

        Args:
            gradients: (records, filters, numbers of a filter).
            weight: (filters, numbers of a filter), in the same order.
        """
        unit, size = standardised(weight)
        along = (gradients * unit).sum(2, keepdim=True)  # the same for a shifted g, as mean(u) is 0
        gradients -= gradients.mean(2, keepdim=True)
        return gradients.addcmul_(along, unit, value=-1.0).div_(size)


def standardised(filters: Tensor) -> tuple[Tensor, Tensor]:
    """Filters, one per row, with mean 0 and norm 1, and what they were divided by."""
    centred = filters - filters.mean(1, keepdim=True)
    size = (centred.square().sum(1, keepdim=True) + _EPSILON).sqrt()
    return centred / size, size


class _Block(nn.Module):
    """Normalise, activate, convolve, twice; beside it the input, or one convolution of it where its shape changes."""

    def __init__(self, found: int, width: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = _norm(found), _conv(found, width, 3, stride)
        self.norm2, self.conv2 = _norm(width), _conv(width, width, 3, 1)
        self.short = _conv(found, width, 1, stride) if (found, stride) != (width, 1) else None

    def forward(self, x: Tensor) -> Tensor:
        """Maps to maps."""
        active = F.relu(self.norm1(x))
        beside = x if self.short is None else self.short(active)
        added: Tensor = beside + self.conv2(F.relu(self.norm2(self.conv1(active))))
        return added


def wide_resnet(shape: tuple[int, ...], classes: int, depth: int, width: int) -> nn.Module:
    """A stem, three stages of (depth − 4)/6 blocks of width 16, 32 and 64 times `width`, the average, a dense head."""
    layers: list[nn.Module] = [_conv(shape[0], _STEM, 3, 1)]
    found = _STEM
    for stage in range(3):
        wanted = _STEM * width * 2**stage
        for place in range((depth - 4) // 6):
            layers.append(_Block(found, wanted, 2 if stage and not place else 1))
            found = wanted
    ending = (_norm(found), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(found, classes))
    return nn.Sequential(*layers, *ending)


def _conv(found: int, wanted: int, kernel: int, stride: int) -> StandardisedConv2d:
    layer = StandardisedConv2d(found, wanted, kernel, stride, kernel // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, nonlinearity="linear")
    return layer


def _norm(width: int) -> nn.GroupNorm:
    return nn.GroupNorm(min(_GROUPS, width // 4), width)
