"""Many models trained together versus one after another in plain PyTorch, in one process.

A row is one network on one device: the time of a step of all models together relative to the same steps in a plain
PyTorch loop (`torch.optim`, the records resident, batches by index), and how far apart the models are after a few steps
in full precision. Both take turns and medians are compared; on a CPU both wall time and processor time are reported,
because a busy machine affects the first. A step's time is that of a run, less that of a run of a tenth of the steps:
what both do once, such as making the networks and trying how to compute them, is in "whole run" alone. On a GPU both
compute in TF32.

Adapters are those of a transformer of the size of MiniLM-L6, on 48 tokens and one base of random weights (on a CPU, of
a much smaller one); without the package transformers these rows are left out.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from airlock.config import TRANSFORMERS
from airlock.data import Records
from airlock.nets import hugging_face
from airlock.nets.domain import numbers
from airlock.nets.registry import tuned
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
        ("cifar-net", (3, 32, 32), 10, 10_000, 50, 128, 200, 8.0),
    ],
}
# Size of a transformer with adapters of rank 16, records, models, batch size, steps, goal; by device
ADAPTERS: dict[str, tuple[dict[str, int], int, int, int, int, float | None]] = {
    "cpu": (
        {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128},
        200,
        4,
        8,
        20,
        None,
    ),
    "cuda": (
        {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
        4000,
        16,
        64,
        40,
        6.0,
    ),
}
TOKENS, VOCABULARY, RANK = 48, 30_000, 16
ROUNDS = {"cpu": 5, "cuda": 2}
SEED, APART = 3, 5
Precision = Literal["fp32", "tf32"]


def run() -> list[dict[str, Any]]:
    """One row per network on the CPU, and on the GPU if there is one."""
    return [row for device in ("cpu", "cuda") if device == "cpu" or torch.cuda.is_available() for row in rows(device)]


def rows(kind: str) -> list[dict[str, Any]]:
    """Those of one device."""
    device, found = torch.device(kind), []
    for name, shape, classes, records, models, batch, steps, goal in CASES[kind]:
        x = np.random.default_rng(0).random((records, *shape), np.float32)
        make = makes(name, shape, classes, SEED)
        found.append(measure(device, name, make, x, classes, models, batch, steps, goal))
    if importlib.util.find_spec("transformers") is not None and importlib.util.find_spec("peft") is not None:
        size, records, models, batch, steps, goal = ADAPTERS[kind]
        x = numbers(records, (TOKENS,), VOCABULARY + 1, np.random.default_rng(0))
        found.append(measure(device, "adapters", _adapters(size), x, 2, models, batch, steps, goal))
    return found


def _adapters(size: dict[str, int]) -> Make:
    """Networks with adapters of their own on one base."""
    transformers = importlib.import_module("transformers")
    config = transformers.AutoConfig.for_model("bert", vocab_size=VOCABULARY, **size)
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        config.save_pretrained(folder)
        base = hugging_face.open_net(f"{TRANSFORMERS}{folder}", (TOKENS,), 2)
    return lambda model: tuned(copy.deepcopy(base), "lora", RANK, model_seed(SEED, model))


def measure(
    device: torch.device,
    name: str,
    make: Make,
    x: np.ndarray[Any, Any],
    classes: int,
    models: int,
    batch: int,
    steps: int,
    goal: float | None,
) -> dict[str, Any]:
    """The row of one network on one device."""
    rng, records, few = np.random.default_rng(1), len(x), max(1, steps // 10)
    data = Resident(Records(x, rng.integers(0, classes, records)), device)
    members = [rng.permutation(records)[: records // 2].astype(np.int64) for _ in range(models)]

    def together(steps: int, precision: Precision = "tf32") -> Ensemble:
        recipe = Recipe(steps=steps, learning_rate=0.05, precision=precision)
        return train_together(make, models, data, members, recipe, SEED, Run(device=device), batch_size=batch)

    def alone(steps: int) -> list[nn.Module]:
        recipe = Recipe(steps=steps, learning_rate=0.05)
        return [_train(make, i, data, members[i], recipe, batch) for i in range(models)]

    together(2), alone(2)  # warm up: kernels are compiled
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    apart = _apart(together(APART, "fp32"), alone(APART))
    torch.backends.cudnn.allow_tf32 = True  # torch's own default
    works: dict[str, Callable[[], object]] = {}
    for key, work in (("together", together), ("alone", alone)):
        works |= {f"{key}, whole": partial(work, steps), f"{key}, few": partial(work, few)}
    torch.backends.cuda.matmul.allow_tf32 = True
    wall, processor = _times(works, device)
    for times in (wall, processor):
        times |= {key: times[f"{key}, whole"] - times[f"{key}, few"] for key in ("together", "alone")}
    row = {"net": name, "device": device.type, "threads": torch.get_num_threads(), "models": models, "batch": batch}
    row |= {f"{key}, ms a step": round(1000 * wall[key] / (steps - few), 2) for key in ("together", "alone")}
    row["times faster"] = round(wall["alone"] / wall["together"], 2)
    row["whole run"] = round(wall["alone, whole"] / wall["together, whole"], 2)
    row["by processor time"] = round(processor["alone"] / processor["together"], 2) if device.type == "cpu" else "-"
    return row | {"goal": goal or "-", f"furthest apart after {APART} steps": apart}


def _train(make: Make, model: int, data: Resident, own: np.ndarray[Any, Any], recipe: Recipe, batch: int) -> nn.Module:
    """Model by model, in plain PyTorch."""
    seed, device = model_seed(SEED, model), data.x.device
    net = make(model).to(device).train()
    trained = [p for p in net.parameters() if p.requires_grad]
    optimiser = torch.optim.SGD(trained, lr=recipe.learning_rate, momentum=recipe.momentum)
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
