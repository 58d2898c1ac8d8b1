"""What a release costs as it grows: processor time against records, parameters, models, queries and processes.

A row is one size of one thing, the others fixed: processor seconds (the median of a few turns, in which all sizes of
that thing take turns) and bytes where they are what grows. The last row of each thing has the slope of the logarithms
between its two largest sizes, where 1 means in proportion. Everything has one thread, so a row does not hang on how
many cores there are; on a busy machine it still hangs on what shares the caches.

`docs/scale.md` keeps a run, and makes a plan from it.
"""

from __future__ import annotations

import datetime
import math
import multiprocessing
import os
import socket
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from airlock import data, methods
from airlock.config import SplitConfig, from_table
from airlock.data import Facts, Records, divide
from airlock.data.limits import Storage
from airlock.mechanisms import GaussianNoise, Randomness, Stream
from airlock.methods.interface import as_queries, ask
from airlock.nets import create
from airlock.threads import one_thread
from airlock.training import Poisson, PrivateGradients, Recipe, Resident, Run, fit, train_together
from airlock.training.distributed import joined
from airlock.training.ensembles.ensemble import makes

TURNS, STEPS, WIDTH, WIDE, LOT = 3, 3, 100, 512, 256
CPU = torch.device("cpu")
Work = Callable[[], object]


def run() -> list[dict[str, Any]]:
    """The rows of each thing, and its slope."""
    found = []
    with one_thread(), tempfile.TemporaryDirectory() as folder:
        for thing in _things(Path(folder)):
            found += _measured(*thing)
        return [*found, _remembered(Path(folder)), *_processes()]


def _things(folder: Path) -> Iterator[tuple[str, str, dict[int, Work], int]]:
    """What is measured, against what, the work of each size, and how many times that does it."""
    pool = _records(200_000, WIDE)
    for what, storage in (("divide records", None), ("divide records, in a file", folder)):
        yield what, "records", {n: _divided(pool, n, storage) for n in (25_000, 50_000, 100_000, 200_000)}, 1
    yield "draw a lot", "records", {10**k: _drawn(10**k) for k in (4, 5, 6, 7, 8)}, 1
    sizes = (10_000, 100_000, 1_000_000)
    yield f"a step, lot {LOT}", "records", {n: _step(n, (WIDTH,), "mlp", LOT) for n in sizes}, STEPS
    widths = (16, 64, 256, 1024, 3072)
    nets = {_parameters(net): net for net in map(_dense, widths)}
    yield (
        f"a step, lot {LOT}",
        "parameters",
        {size: _step(2000, (WIDTH,), net, LOT) for size, net in nets.items()},
        STEPS,
    )
    yield "noise of a step", "parameters", {10**k: _noise(10**k) for k in (4, 5, 6, 7)}, 1
    yield "a step", "records in a lot", {n: _step(40_000, (WIDTH,), "mlp", n) for n in (64, 256, 1024, 4096)}, STEPS
    yield "a step of all", "models", {n: _together(n) for n in (1, 4, 16, 64)}, STEPS
    yield "answers, votes of 50 heads", "queries", _answered((100, 1000, 10_000)), 1


def _measured(what: str, against: str, works: dict[int, Work], repeats: int) -> list[dict[str, Any]]:
    times: dict[int, list[float]] = {size: [] for size in works}
    for turn in range(TURNS + 1):
        for size, work in works.items():
            start = time.process_time()
            work()
            if turn:
                times[size].append(time.process_time() - start)
    return _rows(what, against, {size: statistics.median(took) / repeats for size, took in times.items()})


def _rows(what: str, against: str, took: dict[int, float]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {"what": what, "against": against, "size": size, "seconds": float(f"{seconds:.3g}")}
        for size, seconds in took.items()
    ]
    (small, less), (large, more) = list(took.items())[-2:]
    slope = math.log(max(more, 1e-9) / max(less, 1e-9)) / math.log(large / small)
    return [*rows, {"what": what, "against": against, "slope": round(slope, 2)}]


def _records(count: int, width: int = WIDTH) -> Records:
    rng = np.random.default_rng(0)
    return Records(rng.random((count, width), np.float32), rng.integers(0, 10, count))


def _divided(pool: Records, count: int, folder: Path | None) -> Work:
    facts = Facts("made up", (WIDE,), tuple("0123456789"), count, None, "")
    own = Records(pool.x[:count], pool.y[:count])
    return lambda: divide(facts, own, None, SplitConfig(), 0, Storage(folder))


def _remembered(folder: Path, count: int = 20_000) -> dict[str, Any]:
    """The most bytes in memory of each record while records in a file are put in order; blocks do not count."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(_records(count, WIDE).x.tobytes())
        file.flush()
        x = np.memmap(file, np.float32, "r", shape=(count, WIDE))
        own = Records(x, np.arange(count) % 10)
        facts = Facts("made up", (WIDE,), tuple("0123456789"), count, None, "")
        tracemalloc.start()
        divide(facts, Records(own.x[:1000], own.y[:1000]), None, SplitConfig(), 0, Storage(folder))
        little = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        divide(facts, own, None, SplitConfig(), 0, Storage(folder))
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return {"what": "divide records, in a file", "against": "records", "bytes a record": round((most - little) / count)}


def _drawn(count: int) -> Work:
    return lambda: Poisson(min(1.0, LOT / count), Stream.from_seed(0)).draw(0, count)


def _dense(width: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


def _parameters(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def _step(count: int, shape: tuple[int, ...], net: nn.Module | str, lot: int) -> Work:
    """Private steps: the lot, the clipped sum, the noise and the optimiser."""
    few = _records(10_000)
    own = Records(np.resize(few.x, (count, *shape)), np.resize(few.y, count))
    resident, trained = Resident(own, CPU), create(net, shape, 10, 0) if isinstance(net, str) else net

    def work() -> None:
        stream = Stream.from_seed(0)
        sampler = Poisson(lot / count, stream.child("lots"))
        gradients = PrivateGradients(1.0, 1.0, float(lot), stream.child("noise"))
        fit(trained, resident, sampler, gradients, Recipe(steps=STEPS, learning_rate=0.01), 0, Run())

    return work


def _noise(count: int) -> Work:
    noise, total = GaussianNoise(1.0, 1.0), torch.zeros(count, dtype=torch.float64)
    return lambda: noise.add_and_divide(total, float(LOT), Stream.from_seed(0))


def _together(models: int) -> Work:
    resident, make = Resident(_records(2000), CPU), makes("mlp", (WIDTH,), 10, 0)
    members = [np.arange(2000, dtype=np.int64)] * models
    recipe = Recipe(steps=STEPS, learning_rate=0.01)
    return lambda: train_together(make, models, resident, members, recipe, 0, Run(), batch_size=32)


def _answered(counts: tuple[int, ...]) -> dict[int, Work]:
    asked = {"channel": "answers", "method": "votes", "data": "digits", "epsilon": 3.0, "delta": 1e-4}
    config = from_table({**asked, "split": {"public": 0.2}})
    split = data.load(config)
    channel = methods.build(config, split.facts)
    made = channel.release(split, Randomness.make(0, 0), Run())
    answerer = channel.answerer(made.artefact, made.secrets)  # type: ignore[arg-type]
    queries = as_queries(split.test)
    every = {count: np.resize(queries, (count, *queries.shape[1:])) for count in counts}
    return {count: lambda x=x: ask(answerer, x, Stream.from_seed(0)) for count, x in every.items()}  # type: ignore[misc]


# Processes that train together: gloo on this machine.


def _processes() -> list[dict[str, Any]]:
    """Processor seconds of a step in each process, and what one network of dense layers of them costs in all."""
    alone = {world: _of_group(world) for world in (1, 2, 4)}
    return [
        *_rows("a step, lot 4096, per process", "processes", {n: max(took) for n, took in alone.items()}),
        *_rows("a step, lot 4096, of all processes", "processes", {n: sum(took) for n, took in alone.items()}),
    ]


def _of_group(world: int) -> list[float]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context, links, started = multiprocessing.get_context("fork"), [], []
    for rank in range(world):
        here, there = context.Pipe()
        started.append(context.Process(target=_member, args=(there, rank, world, port), daemon=True))
        started[-1].start()
        there.close()
        links.append(here)
    took = [link.recv() for link in links]
    for process in started:
        process.join()
    return took


def _member(link: Connection, rank: int, world: int, port: int) -> None:
    place = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()})
    torch.set_num_threads(1)
    resident, net, lot, steps = Resident(_records(40_000), CPU), _dense(256), 4096, 6
    with joined("cpu", datetime.timedelta(minutes=5)) as group:
        took = []
        for turn in range(TURNS + 1):
            stream = Stream.from_seed(turn)
            sampler = Poisson(lot / len(resident), stream.child("lots"))
            gradients = PrivateGradients(1.0, 1.0, float(lot), stream.child("noise"))
            start = time.process_time()
            fit(net, resident, sampler, gradients, Recipe(steps=steps, learning_rate=0.01), 0, Run(group=group))
            took.append((time.process_time() - start) / steps)
        link.send(statistics.median(took[1:]))
