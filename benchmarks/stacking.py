"""Gradients of several networks on a CPU: stacked by vmap versus one network after another.

A row is one network: processor time of a step of all, medians over rounds in which each way has a turn, and which way
`choose` picks. It should pick the faster one.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

from airlock.nets import create
from airlock.training.ensembles.stacked import Dropouts, Looped, Vmapped, choose, stack

# network, shape, classes
CASES = [
    ("mlp", (446,), 30),
    ("digits-net", (1, 8, 8), 10),
    ("tanh-net", (1, 28, 28), 10),
    ("mnist-net", (1, 28, 28), 10),
    ("cifar-net", (3, 32, 32), 10),
]
MODELS, BATCH, ROUNDS = 4, 32, 7
CPU = torch.device("cpu")


def run() -> list[dict[str, Any]]:
    """One row per network."""
    return [_row(*case) for case in CASES]


def _row(name: str, shape: tuple[int, ...], classes: int) -> dict[str, Any]:
    nets = [create(name, shape, classes, seed) for seed in range(MODELS)]
    dropouts, held = Dropouts(nets[0], shape, CPU), stack(nets)
    ways: dict[str, Vmapped | Looped] = {
        "stacked": Vmapped(nets[0], dropouts, fills=True),
        "one after another": Looped(nets[0]),
    }
    x, y = torch.rand(MODELS, BATCH, *shape), torch.randint(classes, (MODELS, BATCH))
    times: dict[str, list[float]] = {key: [] for key in ways}
    for turn in range(ROUNDS + 1):
        for key, way in ways.items():
            start = time.process_time()
            way(held, x, y, [BATCH] * MODELS, list(range(MODELS)))
            if turn:
                times[key].append(time.process_time() - start)
    medians = {key: statistics.median(values) for key, values in times.items()}
    row: dict[str, Any] = {"net": name, "models": MODELS, "batch": BATCH, "threads": torch.get_num_threads()}
    row |= {f"{key}, ms": round(1000 * seconds, 2) for key, seconds in medians.items()}
    row["stacked is times faster"] = round(medians["one after another"] / medians["stacked"], 2)
    return row | {"taken": "stacked" if isinstance(choose(nets, shape, CPU), Vmapped) else "one after another"}
