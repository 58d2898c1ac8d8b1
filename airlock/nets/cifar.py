"""CIFAR-Net: the Keras example network for 32 × 32 colour images, 1,250,858 parameters with ten classes (Mao 2020)."""

from __future__ import annotations

from torch import nn


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
