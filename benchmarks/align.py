"""What alignment does to independently initialised models: their average, and the path between two of them.

A row is one collection of models trained together (`train_together`, SGD with momentum 0.9). Accuracies are on test
records: of a single model (mean), of the average of all models, and of a model that takes each parameter from a random
model, which is the worst case of sampling coordinate by coordinate; before and after `align`. The barrier is how far
the loss on the path between two models rises above the interpolation of their losses (largest of nine points, mean over
pairs). MNIST is needed for all but the digits, in $AIRLOCK_DATA or ./data; the full-size runs are for a GPU.
"""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from airlock.data import Records
from airlock.data.sources import SOURCES, data_folder
from airlock.training import Ensemble, Recipe, Resident, Run, align, train_together
from airlock.training.ensembles.ensemble import Make, makes
from airlock.training.gradients import Named

SEED, PAIRS, POINTS = 3, 4, 9
TESTED = {"cpu": 2000, "cuda": 10_000}  # test records at most


class Case(NamedTuple):
    """One collection: network, data, models, training records, epochs, batch size, learning rate, weight decay."""

    net: str
    data: str
    models: int
    records: int
    epochs: int
    batch: int
    rate: float
    decay: float = 0.0
    shared: bool = False


CASES = {
    "cpu": [
        Case("dense-16", "digits", 10, 1200, 15, 64, 0.1),
        Case("dense-64", "digits", 10, 1200, 15, 64, 0.1),
        Case("dense-256", "digits", 10, 1200, 15, 64, 0.1),
        Case("dense-64", "digits", 10, 1200, 60, 64, 0.1),
        Case("dense-64", "digits", 10, 1200, 15, 64, 0.1, decay=1e-3),
        Case("dense-64", "digits", 10, 1200, 15, 64, 0.1, shared=True),
        Case("mlp", "mnist", 10, 5000, 10, 64, 0.05),
        Case("tanh-net", "mnist", 16, 12_000, 6, 64, 0.05),
        Case("mnist-net", "mnist", 6, 5000, 5, 64, 0.05),
    ],
    "cuda": [
        Case("mnist-net", "mnist", 50, 60_000, 11, 128, 0.05),
        Case("mnist-net", "mnist", 50, 60_000, 11, 128, 0.05, shared=True),
        Case("mnist-net", "mnist", 50, 60_000, 11, 128, 0.05, decay=5e-4),
    ],
}


def run() -> list[dict[str, Any]]:
    """One row per collection: small ones on a CPU, full-size ones on a GPU if there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    there = SOURCES["mnist"].find(data_folder(None)) is not None
    return [_row(case, torch.device(device)) for case in CASES[device] if there or case.data == "digits"] or [
        {"net": "-", "note": "MNIST was not found: put it into ./data or name its folder in AIRLOCK_DATA"}
    ]


def _row(case: Case, device: torch.device) -> dict[str, Any]:
    train, test = _records(case, TESTED[device.type])
    steps = case.epochs * math.ceil(len(train) / case.batch)
    recipe = Recipe(steps=steps, learning_rate=case.rate, weight_decay=case.decay)
    everything = [np.arange(len(train))] * case.models
    make, data = _makes(case, train.x.shape[1:]), Resident(train, device)
    found = train_together(make, case.models, data, everything, recipe, SEED, Run(device), batch_size=case.batch)
    row = {"net": case.net, "data": f"{case.data}, {len(train)}", "models": case.models, "epochs": case.epochs}
    row |= {"rate": case.rate, "decay": case.decay, "start": "shared" if case.shared else "own"}
    return row | _measure(found, Resident(test, device), device)


def _measure(found: Ensemble, test: Resident, device: torch.device) -> dict[str, Any]:
    start = time.perf_counter()
    aligned = align(found, device=device)
    seconds = time.perf_counter() - start
    row: dict[str, Any] = {"single": _percent(found.correct(test))}
    both = {"": found, ", aligned": aligned.ensemble}
    row |= {f"average{key}": _percent(_average(own).correct(test)) for key, own in both.items()}
    row |= {f"mixed{key}": _percent(_mixed(own).correct(test)) for key, own in both.items()}
    row |= {f"barrier{key}": round(_barrier(own, test), 3) for key, own in both.items()}
    row |= {f"cosine{key}": round(value, 3) for key, value in zip(both, aligned.closeness, strict=True)}
    return row | {"align, s": round(seconds, 2)}


def _records(case: Case, tested: int) -> tuple[Records, Records]:
    place = SOURCES[case.data].find(data_folder(None))
    assert place is not None
    raw, test = place.read()
    cut = case.records
    other = (raw.x[cut:], raw.y[cut:]) if test is None else (test.x, test.y)
    return _shaped(raw.x[:cut], raw.y[:cut]), _shaped(*(part[:tested] for part in other))


def _shaped(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> Records:
    return Records(np.ascontiguousarray(x), y.astype(np.int64))


def _makes(case: Case, shape: tuple[int, ...]) -> Make:
    if not case.net.startswith("dense-"):
        return makes(case.net, shape, 10, SEED, case.shared)
    return lambda model: _dense(int(case.net.removeprefix("dense-")), math.prod(shape), 0 if case.shared else model)


def _dense(width: int, inputs: int, seed: int) -> nn.Module:
    """Two hidden ReLU layers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        hidden = [nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
        return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(width, 10))


def _percent(correct: np.ndarray[Any, Any]) -> float:
    return round(100 * float(correct.mean()), 2)


def _average(found: Ensemble) -> Ensemble:
    return Ensemble(found.net, {name: value.float().mean(0, keepdim=True) for name, value in found.values.items()})


def _mixed(found: Ensemble) -> Ensemble:
    """Each parameter from a random model."""
    chance = torch.Generator().manual_seed(SEED)

    def mix(value: torch.Tensor) -> torch.Tensor:
        return value.gather(0, torch.randint(len(value), (1, *value.shape[1:]), generator=chance))

    return Ensemble(found.net, {name: mix(value) for name, value in found.values.items()})


def _barrier(found: Ensemble, data: Resident) -> float:
    return float(np.mean([_rise(found, 2 * i, 2 * i + 1, data) for i in range(min(PAIRS, len(found) // 2))]))


def _rise(found: Ensemble, one: int, other: int, data: Resident) -> float:
    """The largest rise of the loss above the straight line, on the path from one model to the other."""
    shares = torch.linspace(0, 1, POINTS + 2)
    way: Named = {
        name: torch.stack([torch.lerp(value[one], value[other], float(share)) for share in shares])
        for name, value in found.values.items()
    }
    losses = Ensemble(found.net, way).losses(data).mean(1)
    return float((losses - np.linspace(losses[0], losses[-1], len(losses))).max())
