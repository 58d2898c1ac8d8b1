"""Scattering in float64 on a CPU: matrices versus convolutions, processor time of one thread, in one run."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from airlock.nets.scattering import Scattering, by_matrices

IMAGES, ROUNDS = 250, 3
SHAPES = ((1, 28, 28), (3, 32, 32))


def run() -> list[dict[str, Any]]:
    """One row per shape: milliseconds per image, the ratio, and the largest difference."""
    torch.set_num_threads(1)
    return [_row(shape) for shape in SHAPES]


def _row(shape: tuple[int, ...]) -> dict[str, Any]:
    front = nn.Sequential(Scattering(shape)).double().eval()
    start = time.process_time()
    quick = by_matrices(front)
    built = time.process_time() - start
    images = torch.rand(IMAGES, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        apart = float((quick(images) - front(images)).abs().max())
        slow, fast = (_milliseconds(net, images) for net in (front, quick))
    size = "×".join(map(str, shape))
    return {
        "shape": size,
        "convolutions (ms)": round(slow, 2),
        "matrices (ms)": round(fast, 2),
        "ratio": round(slow / fast, 1),
        "to make them (s)": round(built, 2),
        "apart": f"{apart:.0e}",
    }


def _milliseconds(net: nn.Module, images: torch.Tensor) -> float:
    """Milliseconds for one image; the best of a few rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.process_time()
        net(images)
        best = min(best, time.process_time() - start)
    return 1000 * best / len(images)
