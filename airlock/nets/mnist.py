"""MNIST-Net: the Keras example network for 28 × 28 grey images, 1,199,882 parameters with ten classes (Mao 2020)."""

from __future__ import annotations

from torch import nn


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
