"""Training on records in a file, by a process that could not hold them, versus on records in memory.

A row is one network. Two processes take turns at the same steps of private training, with the same lots: one has the
records in memory; the other has them in a file ten times larger than the private memory that the system grants it
beyond what it held before (RLIMIT_DATA; `records ÷ limit` also counts what it held: Python, torch). Speeds are ratios
of the medians over the turns: of wall time, and of processor time, which includes the thread that reads ahead. Rows
"cold" empty the system's cache of the file before every turn, so that every lot comes from the disk.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import resource
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from airlock.data import Records
from airlock.mechanisms import Stream
from airlock.nets import create
from airlock.threads import one_thread
from airlock.training import Poisson, PrivateGradients, Recipe, Resident, Run, fit

# network, shape and type of a record, records, records in a lot
CASES = (("mlp", (784,), np.float32, 250_000, 128), ("mlp", (784,), np.float32, 250_000, 512))
STEPS, TURNS, TIMES = 8, 7, 10
_BLOCK = 1000


def run() -> list[dict[str, Any]]:
    """Two rows per network: with the file in the system's cache as far as it is there, and from the disk."""
    return [row for case in CASES for row in _rows(*case)]


def _rows(net: str, shape: tuple[int, ...], kind: type, count: int, lot: int) -> list[dict[str, Any]]:
    few = Records(np.zeros((lot, *shape), kind), np.arange(lot) % 10)
    _turn(Resident(few, torch.device("cpu")), net, shape, lot, 0)  # everything is imported before the processes part
    context, links, started = multiprocessing.get_context("fork"), {}, []
    for place in ("memory", "file"):
        links[place], there = context.Pipe()
        work = (there, place == "file", net, shape, kind, count, lot)
        started.append(context.Process(target=_serve, args=work, daemon=True))
        started[-1].start()
        there.close()
    told = {place: link.recv() for place, link in links.items()}
    found = []
    for cold in (False, True):
        times: dict[str, list[tuple[float, float]]] = {place: [] for place in links}
        for turn in range(TURNS + 1):
            for place, link in links.items():
                link.send((turn, cold))
                took = link.recv()
                if turn:
                    times[place].append(took)
        wall, processor = (
            {place: statistics.median(one[which] for one in rows) for place, rows in times.items()} for which in (0, 1)
        )
        found.append(
            {
                "net": net,
                "cache": "cold" if cold else "warm",
                "places told": "in advance",  # rows of docs/results say otherwise where they were not yet
                "records": count,
                "bytes": told["file"]["bytes"],
                "records ÷ allowance": TIMES,
                "records ÷ limit": round(told["file"]["bytes"] / told["file"]["limit"], 2),
                "lot": lot,
                "step in memory, ms": round(1000 * wall["memory"] / STEPS, 1),
                "speed, wall": round(wall["memory"] / wall["file"], 2),
                "speed, processor": round(processor["memory"] / processor["file"], 2),
            }
        )
    for link, process in zip(links.values(), started, strict=True):
        link.send(None)
        process.join()
    return found


def _serve(link: Connection, in_file: bool, net: str, shape: tuple[int, ...], kind: type, count: int, lot: int) -> None:
    """One process: makes its records, then trains a turn whenever it is asked to."""
    torch.set_num_threads(1)
    size = count * int(np.prod(shape)) * np.dtype(kind).itemsize
    limit = _held() + size // TIMES
    file = tempfile.TemporaryFile(dir=".") if in_file else None  # noqa: SIM115 - it ends with this process
    if file is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))
    x, y = _written(file, shape, kind, count), np.arange(count) % 10
    data = Resident(Records(x, y), torch.device("cpu"))
    link.send({"bytes": size, "limit": limit})
    while (asked := link.recv()) is not None:
        turn, cold = asked
        if file is not None and cold:
            _forget(x, file)
        link.send(_turn(data, net, shape, lot, turn))


def _turn(data: Resident, name: str, shape: tuple[int, ...], lot: int, turn: int) -> tuple[float, float]:
    net, stream = create(name, shape, 10, 0), Stream.from_seed(turn)
    sampler = Poisson(lot / len(data), stream.child("lots"))
    gradients = PrivateGradients(1.0, 1.0, float(lot), stream.child("noise"))
    with one_thread():
        wall, processor = time.perf_counter(), time.process_time()
        fit(net, data, sampler, gradients, Recipe(steps=STEPS, learning_rate=0.1), 0, Run())
        return time.perf_counter() - wall, time.process_time() - processor


def _written(file: IO[bytes] | None, shape: tuple[int, ...], kind: type, count: int) -> Any:
    """Random records; in the file the same ones."""
    rng = np.random.default_rng(0)
    found: Any = np.empty((count if file is None else 0, *shape), kind)
    for start in range(0, count, _BLOCK):
        part = rng.integers(0, 256, (min(_BLOCK, count - start), *shape), np.uint8)
        block = part if kind is np.uint8 else (part / np.float32(255)).astype(kind)
        if file is None:
            found[start : start + len(block)] = block
        else:
            file.write(block.tobytes())
    if file is None:
        return found
    file.flush()
    os.fsync(file.fileno())
    return np.memmap(file, kind, "r", shape=(count, *shape))


def _forget(x: Any, file: IO[bytes]) -> None:
    """The system reads the file from the disk again."""
    x._mmap.madvise(mmap.MADV_DONTNEED)
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _held() -> int:
    """The private memory of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmData")).split()[1]) << 10
