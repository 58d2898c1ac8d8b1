"""Small convolutional networks that learn well under noise: few parameters, bounded or normalised activations."""

from __future__ import annotations

from torch import nn


def digits_net(shape: tuple[int, ...], classes: int) -> nn.Module:
    """For 8 × 8 images: one convolution, group normalisation per record without parameters, and a dense head.

    Normalising before the head gives every record's gradient about the same norm, so that clipping loses little.
    The head starts at zero: the first steps then move every class alike.
    """
    channels, height, width = shape
    head = nn.Linear(32 * (height // 2) * (width // 2), classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, padding=1),
        nn.GroupNorm(4, 32, affine=False),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.GroupNorm(8, 32, affine=False),
        nn.Flatten(),
        head,
    )


def tanh_net(shape: tuple[int, ...], classes: int) -> nn.Module:
    """For 28 × 28 or 32 × 32 images: two strided convolutions with tanh (Papernot et al. 2021, table 1)."""
    channels, height, width = shape
    side = [((n + 6 - 8) // 2 + 1 - 1 - 4) // 2 for n in (height, width)]
    return nn.Sequential(
        nn.Conv2d(channels, 16, 8, stride=2, padding=3),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(32 * side[0] * side[1], 32),
        nn.Tanh(),
        nn.Linear(32, classes),
    )
