"""Selecting query samples: the time of one selection from a student's outputs, versus Algorithm 3 in a loop.

The loop recomputes the distances of all remaining samples to all chosen ones for every sample, as Algorithm 3 is
written; it is run at a twentieth of the size, where both choose the same samples, in float64.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from airlock.training.distillation.selection import Name, k_centre, select

SAMPLES, QUERIES, CLASSES = 40_000, 8_000, 10
NAMES: tuple[Name, ...] = ("k-centre", "random", "margin", "diverse")


def run() -> list[dict[str, Any]]:
    """One row per selection and device, and one for the loop."""
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    rows = [_row(name, device) for device in devices for name in NAMES]
    return [*rows, *_beside_the_loop()]


def _logits(samples: int, device: str = "cpu") -> Tensor:
    return (3 * torch.randn(samples, CLASSES, generator=torch.Generator().manual_seed(0))).to(device)


def _row(name: Name, device: str) -> dict[str, Any]:
    logits = _logits(SAMPLES, device)
    select(name, logits[:1000], 100, 0)
    seconds = _seconds(lambda: select(name, logits, QUERIES, 0))
    return _written(name, device, SAMPLES, QUERIES, seconds)


def _beside_the_loop() -> list[dict[str, Any]]:
    logits, queries = _logits(SAMPLES // 20), QUERIES // 20
    torch.set_num_threads(1)  # as `k_centre` does
    assert np.array_equal(_by_a_loop(logits, queries), k_centre(logits.double(), queries, 0))
    loop = _seconds(lambda: _by_a_loop(logits, queries))
    ours = _seconds(lambda: k_centre(logits, queries, 0))
    return [
        _written("k-centre", "cpu", len(logits), queries, ours),
        _written("Algorithm 3 in a loop", "cpu", len(logits), queries, loop),
    ]


def _by_a_loop(logits: Tensor, count: int) -> np.ndarray:
    log_p = torch.log_softmax(logits.double(), 1)
    p = log_p.exp()
    chosen = [0]
    for _ in range(count - 1):
        distance = (p * log_p).sum(1, keepdim=True) - p @ log_p[chosen].t()
        nearest = distance.amin(1)
        nearest[chosen] = -torch.inf
        chosen.append(int(nearest.argmax()))
    return np.array(chosen)


def _seconds(work: Any) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _written(name: str, device: str, samples: int, queries: int, seconds: float) -> dict[str, Any]:
    threads = torch.get_num_threads() if device == "cpu" else ""
    return {
        "selection": name,
        "device": device,
        "threads": threads,
        "samples": samples,
        "selected": queries,
        "seconds": round(seconds, 3),
    }
