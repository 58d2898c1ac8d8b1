"""Small classifiers that are trained from scratch: dense, from the papers, or suited to training under noise."""

from __future__ import annotations

import math

from torch import nn

# For records of any shape.


def mlp(shape: tuple[int, ...], classes: int) -> nn.Module:
    """One hidden layer of 128 tanh units (bounded activations keep gradients small; Papernot et al. 2021)."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 128), nn.Tanh(), nn.Linear(128, classes))


def linear(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Multinomial logistic regression, initialised to zero."""
    layer = nn.Linear(math.prod(shape), classes)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)


# The Keras examples that Mao et al. (2020) train: 1,199,882 and 1,250,858 parameters with ten classes.


def mnist_net(classes: int) -> nn.Module:
    """Two 3×3 convolutions (32, 64), 2×2 pool, dropout 0.25, dense 128, dropout 0.5, dense."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * 12 * 12, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, classes),
    )


def cifar_net(classes: int) -> nn.Module:
    """Two blocks of two 3×3 convolutions (32, 64), pool and dropout 0.25, dense 512, dropout 0.5, dense."""
    return nn.Sequential(
        *_block(3, 32),
        *_block(32, 64),
        nn.Flatten(),
        nn.Linear(64 * 6 * 6, 512),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(512, classes),
    )


def _block(into: int, out: int) -> list[nn.Module]:
    return [
        nn.Conv2d(into, out, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(out, out, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
    ]


# Few parameters, bounded or normalised activations: they learn well under noise.


def digits_net(shape: tuple[int, ...], classes: int) -> nn.Module:
    """For 8 × 8 images: one convolution, group normalisation per record without parameters, and a dense head.

    Normalising before the head gives every record's gradient about the same norm, so that clipping loses little. The
    head starts at zero, so that the first steps treat every class alike.
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
