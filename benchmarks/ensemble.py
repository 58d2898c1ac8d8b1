"""Many models trained together versus one after another in plain PyTorch, in one process.

A row is one network on one device: the time of a step of all models together relative to the same steps in a plain
PyTorch loop (`torch.optim`, the records resident, batches by index), and how far apart the models are after a few steps
in full precision. Both take turns and medians are compared; on a CPU both wall time and processor time are reported,
because a busy machine affects the first.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from airlock.data import Records
from airlock.training import Ensemble, Recipe, Resident, Run, train_together
from airlock.training.ensembles.ensemble import Make, makes, model_seed
from airlock.training.loop import mix
from airlock.training.sampling import order

# network, shape, classes, records, models, batch size, steps, goal; by device
CASES: dict[str, list[tuple[str, tuple[int, ...], int, int, int, int, int, float | None]]] = {
    "cpu": [
        ("mlp", (446,), 30, 1200, 50, 32, 38, 2.0),
        ("mnist-net", (1, 28, 28), 10, 400, 4, 32, 5, None),
    ],
    "cuda": [
        ("mlp", (446,), 30, 1200, 50, 32, 200, None),
        ("mnist-net", (1, 28, 28), 10, 10_000, 50, 128, 200, 8.0),
        ("cifar-net", (3, 32, 32), 10, 10_000, 50, 128, 200, None),
    ],
}
ROUNDS = {"cpu": 5, "cuda": 2}
SEED, APART = 3, 5
Precision = Literal["fp32", "tf32"]


def run() -> list[dict[str, Any]]:
    """One row per network on the CPU, and on the GPU if there is one."""
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    return [_row(torch.device(device), *case) for device in devices for case in CASES[device]]


def _row(
    device: torch.device,
    name: str,
    shape: tuple[int, ...],
    classes: int,
    records: int,
    models: int,
    batch: int,
    steps: int,
    goal: float | None,
) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    data = Resident(Records(rng.random((records, *shape), np.float32), rng.integers(0, classes, records)), device)
    members = [rng.permutation(records)[: records // 2].astype(np.int64) for _ in range(models)]
    make = makes(name, shape, classes, SEED)

    def together(steps: int, precision: Precision = "tf32") -> Ensemble:
        recipe = Recipe(steps=steps, learning_rate=0.05, precision=precision)
        return train_together(make, models, data, members, recipe, SEED, Run(device=device), batch_size=batch)

    def alone(steps: int) -> list[nn.Module]:
        recipe = Recipe(steps=steps, learning_rate=0.05)
        return [_train(make, i, data, members[i], recipe, batch) for i in range(models)]

    together(2), alone(2)  # warm up: kernels are compiled
    torch.backends.cudnn.allow_tf32 = False
    apart = _apart(together(APART, "fp32"), alone(APART))
    torch.backends.cudnn.allow_tf32 = True  # torch's own default
    works = {"together": lambda: together(steps), "alone": lambda: alone(steps)}
    wall, processor = _times(works, device)
    row = {"net": name, "device": device.type, "threads": torch.get_num_threads(), "models": models, "batch": batch}
    row |= {f"{key}, ms a step": round(1000 * seconds / steps, 2) for key, seconds in wall.items()}
    row["times faster"] = round(wall["alone"] / wall["together"], 2)
    row["by processor time"] = round(processor["alone"] / processor["together"], 2) if device.type == "cpu" else "-"
    return row | {"goal": goal or "-", f"furthest apart after {APART} steps": apart}


def _train(make: Make, model: int, data: Resident, own: np.ndarray[Any, Any], recipe: Recipe, batch: int) -> nn.Module:
    """Model by model, in plain PyTorch."""
    seed, device = model_seed(SEED, model), data.x.device
    net = make(model).to(device).train()
    optimiser = torch.optim.SGD(net.parameters(), lr=recipe.learning_rate, momentum=recipe.momentum)
    batches = -(-len(own) // batch)
    for step in range(recipe.steps):
        epoch, place = divmod(step, batches)
        if not place:
            places = torch.from_numpy(own[order(seed, epoch, len(own))]).to(device)
        where = places[place * batch : (place + 1) * batch]
        torch.manual_seed(mix(seed, step))
        optimiser.zero_grad()
        F.cross_entropy(net(data.x[where]), data.y[where]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return net


def _times(works: dict[str, Callable[[], object]], device: torch.device) -> tuple[dict[str, float], dict[str, float]]:
    """Medians of wall and processor time over rounds in which each has one turn."""
    wall: dict[str, list[float]] = {key: [] for key in works}
    processor: dict[str, list[float]] = {key: [] for key in works}
    for _ in range(ROUNDS[device.type]):
        for key, work in works.items():
            _wait(device)
            start = time.perf_counter(), time.process_time()
            work()
            _wait(device)
            wall[key].append(time.perf_counter() - start[0])
            processor[key].append(time.process_time() - start[1])
    medians = ({key: statistics.median(values) for key, values in times.items()} for times in (wall, processor))
    return next(medians), next(medians)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _apart(found: Ensemble, wanted: list[nn.Module]) -> float:
    """The largest difference of a parameter between a model of the ensemble and the same model alone."""
    apart = [
        float((p.detach().cpu() - q.detach()).abs().max())
        for i, net in enumerate(wanted)
        for p, q in zip(net.parameters(), found.model(i).parameters(), strict=True)
    ]
    return float(f"{max(apart):.1e}")
