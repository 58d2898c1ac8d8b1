"""The cost of the paper's optimised noise (`weights`/`published`) relative to equal noise: MNIST-Net, lots of 1000.

A private step with equal noise and one with shaped noise take turns in one process; so do the two kinds of noise alone,
because a step's own time varies by more than the shape costs. On a CPU, processor time is measured, so that other load
on the machine is excluded. The shape itself is recomputed periodically from w, the mean gradient of all 55,000 records:
this is the paper's algorithm and is timed separately, on a CPU over 2,000 records and scaled up. Totals are step + (w +
shape) / refresh.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from airlock.data import Records
from airlock.mechanisms import GaussianNoise, Stream
from airlock.nets import build
from airlock.papers.weights.optimised_noise import OptimisedGradients, Solver, mean_gradient, sensitivity, solve
from airlock.training import PrivateGradients, Resident

RECORDS, LOT, CLIP, NOISE = 55_000, 1000, 4.0, 2.24
REFRESH = 50  # for the cheap setting: w from the lot
GOAL = 1.03
ROUNDS = {"cpu": 7, "cuda": 50}

Work = Callable[[], object]


def run() -> list[dict[str, Any]]:
    """The time of a step and what is added to it, on the CPU and on the GPU if there is one."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    return [row for device in devices for row in _rows(torch.device(device))]


def _rows(device: torch.device) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(0)
    count = RECORDS if device.type == "cuda" else 2000
    pixels = rng.integers(0, 256, (count, 1, 28, 28), dtype=np.uint8)
    data = Resident(Records(pixels, rng.integers(0, 10, count)), device)
    torch.manual_seed(0)
    net = build("mnist-net", (1, 28, 28), 10).to(device).train()
    x, y = data.batch(np.arange(LOT))
    equal, shaped = _steps(net, data, x, y, device)
    noise, shaped_noise = _noises(net, device)
    pieces = [(x[i : i + 128], y[i : i + 128]) for i in range(0, LOT, 128)]
    w = mean_gradient(net, pieces)
    works: dict[str, Work] = {
        "w, all": lambda: sensitivity(net, data),
        "w, lot": lambda: mean_gradient(net, pieces if device.type == "cpu" else [(x, y)]),
        "closed": lambda: solve("closed", w),
        "projected": lambda: solve("projected", w),
    }
    apart = {key: _turns({key: work}, device, 3)[key] for key, work in works.items()}
    apart["w, all"] *= RECORDS / count

    def row(what: str, seconds: float, ratio: float | None = None, goal: float | None = None) -> dict[str, Any]:
        told = {"ms": round(1000 * seconds, 3), "over equal noise": round(ratio, 4) if ratio else "-"}
        return {"what": what, "device": device.type, **told, "goal": goal or "-"}

    def total(sensitivity_from: str, solver: Solver, refresh: int) -> float:
        return equal + (shaped_noise - noise) + (apart[f"w, {sensitivity_from}"] + apart[solver]) / refresh

    def least(sensitivity_from: str) -> int:
        room = (GOAL - 1) * equal - (shaped_noise - noise)
        return max(1, math.ceil((apart[f"w, {sensitivity_from}"] + apart["closed"]) / room)) if room > 0 else 0

    yield row("step with equal noise", equal, 1.0)
    yield row("step with shaped noise, the shape kept", shaped, shaped / equal, GOAL)
    yield row("its noise: equal", noise)
    yield row("its noise: shaped", shaped_noise, 1 + (shaped_noise - noise) / equal, GOAL)
    yield from (row(f"apart: {key}", seconds) for key, seconds in apart.items())
    settings: list[tuple[str, Solver, int]] = [
        ("all", "projected", 1),
        ("all", "closed", 1),
        ("all", "closed", least("all")),
        ("lot", "closed", 1),
        ("lot", "closed", REFRESH),
        ("lot", "closed", least("lot")),
    ]
    for source, solver, refresh in settings:
        whole = total(source, solver, max(1, refresh))
        note = " (the least for the goal)" if refresh == least(source) else ""
        yield row(f"total: {solver}, w from {source}, refresh {refresh}{note}", whole, whole / equal, GOAL)


def _steps(
    net: torch.nn.Module, data: Resident, x: torch.Tensor, y: torch.Tensor, device: torch.device
) -> tuple[float, float]:
    stream, count = Stream.from_system(), iter(range(10**9))
    equal = PrivateGradients(CLIP, NOISE, float(LOT), stream.child("equal"))
    shaped = OptimisedGradients(
        data, CLIP, NOISE, float(LOT), stream.child("shaped"), "closed", 10**9, "sum", sensitivity_from="lot"
    )
    optimiser = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step(gradients: PrivateGradients | OptimisedGradients) -> None:
        gradients(net, x, y, 1 + next(count))
        optimiser.step()

    times = _turns({"equal": lambda: step(equal), "shaped": lambda: step(shaped)}, device, ROUNDS[device.type])
    return times["equal"], times["shaped"]


def _noises(net: torch.nn.Module, device: torch.device) -> tuple[float, float]:
    size = sum(p.numel() for p in net.parameters())
    noise, value, shape = GaussianNoise(CLIP, NOISE), torch.zeros(size, device=device), torch.rand(size, device=device)
    works: dict[str, Work] = {
        "equal": lambda: noise.add_and_divide(value, float(LOT), Stream.from_system()),
        "shaped": lambda: noise.add_and_divide(value, float(LOT), Stream.from_system(), shape),
    }
    times = _turns(works, device, 5 * ROUNDS[device.type])
    return times["equal"], times["shaped"]


def _turns(works: dict[str, Work], device: torch.device, rounds: int) -> dict[str, float]:
    """Medians over rounds in which each has one turn; the first round warms up."""
    seconds: dict[str, list[float]] = {key: [] for key in works}
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    for turn in range(rounds + 1):
        for key, work in works.items():
            _wait(device)
            start = clock()
            work()
            _wait(device)
            if turn:
                seconds[key].append(clock() - start)
    return {key: statistics.median(values) for key, values in seconds.items()}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
