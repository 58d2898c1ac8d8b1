"""The cost of privacy noise for MNIST-Net's 1.2 million parameters, as a fraction of an ordinary training step.

Both are timed in turns in one process, so that a busy machine slows both equally; the medians are compared. Batch 256
on the CPU, with torch's default number of threads.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from airlock.mechanisms import GaussianNoise, Stream
from airlock.nets import build
from airlock.training import PlainGradients

BATCH, ROUNDS = 256, 7


def run() -> list[dict[str, Any]]:
    """One row: seconds of a step, seconds of its noise, and their ratio; the goal is a ratio below 0.15."""
    torch.manual_seed(0)
    net = build("mnist-net", (1, 28, 28), 10)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.01)
    x, y = torch.rand(BATCH, 1, 28, 28), torch.randint(0, 10, (BATCH,))
    gradients = PlainGradients()
    value = np.zeros(sum(p.numel() for p in net.parameters()), np.float32)
    noise = GaussianNoise(sensitivity=1.0, noise_multiplier=1.0)

    def step() -> None:
        gradients(net, x, y, 0)
        optimiser.step()

    def add_noise() -> None:
        noise.add(value, Stream.from_system())

    step_times, noise_times = [], []
    for _ in range(ROUNDS):
        step_times.append(_seconds(step))
        noise_times.append(_seconds(add_noise))
    plain, noisy = statistics.median(step_times), statistics.median(noise_times)
    return [
        {
            "what": "noise for MNIST-Net / CPU training step at batch 256",
            "threads": torch.get_num_threads(),
            "step_seconds": round(plain, 4),
            "noise_seconds": round(noisy, 4),
            "ratio": round(noisy / plain, 4),
            "goal": 0.15,
        }
    ]


def _seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
