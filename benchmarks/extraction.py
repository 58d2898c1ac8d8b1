"""Extraction: records per second with writing, relative to the front end alone, in one run; and its memory use.

The front end is the first six layers of a VGG16 with 8 of 128 channels, on 32 × 32 images generated on the fly. Its own
throughput is that of the same blocks when the features are discarded. Both are measured in turns, so that a busy
machine slows both. The memory is the growth of this process's peak size while features of many more records are
written, by a front end that does almost nothing.
"""

from __future__ import annotations

import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from airlock.data import Records
from airlock.data.feature_files import Layout
from airlock.mechanisms import LocalGaussian, Stream
from airlock.methods.rows import permutation
from airlock.nets.prefix import narrow, open_prefix
from airlock.training import Run
from airlock.training.devices import choose_device
from airlock.training.front_ends.extract import Extraction, extract, feature_shape
from airlock.training.front_ends.features import compute

SHAPE, CHANNELS, ROUNDS = (3, 32, 32), 8, 3
FEW, FEW_GPU, MANY = 1000, 100_000, 1_000_000


class Pictures:
    """Random images, one thousand of them repeated; nothing is kept."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.some = np.random.default_rng(0).integers(0, 256, (1000, *SHAPE), np.uint8)

    def __len__(self) -> int:
        return self.count

    def block(self, where: slice) -> Records:
        """A slice of the images."""
        places = np.arange(where.start, where.stop) % len(self.some)
        return Records(self.some[places], places % 10)


def run() -> list[dict[str, Any]]:
    """One row per way of writing, and one for the memory."""
    device = choose_device("auto")
    kept = sorted(permutation(128, Stream.from_seed(0))[:CHANNELS].tolist())
    front = narrow(open_prefix("vgg16", 6, SHAPE), kept).to(device)
    memory = _memory()  # first, because the peak size of a process never falls
    return [*(_row(front, device, name, more) for name, more in _ways().items()), memory]


def _ways() -> dict[str, dict[str, Any]]:
    noise = LocalGaussian(1.0, 1.0)
    return {
        "parquet": {},
        "npz": {"form": "npz"},
        "parquet, with noise": {"protect": lambda x, y, stream: (noise.add(x, stream), y)},
    }


def _row(front: nn.Module, device: torch.device, name: str, more: dict[str, Any]) -> dict[str, Any]:
    count = FEW if device.type == "cpu" else FEW_GPU
    source, here = Pictures(count), Run(device=device)
    everything = source.block(slice(0, count))
    own, written = [], []
    for number in range(ROUNDS + 1):
        own.append(_seconds(lambda: _through(front, everything, here)))
        with tempfile.TemporaryDirectory() as folder:
            written.append(_seconds(lambda: _extract(front, source, Path(folder), here, **more)))
        if number == 0:
            own.clear()
            written.clear()
    ratio = statistics.median(a / b for a, b in zip(own, written, strict=True))
    return {
        "writes": name,
        "records": count,
        "device": device.type,
        "records a second": f"{count / statistics.median(written):,.0f}",
        "over the front end's own": f"{ratio:.2f}",
        "memory": "",
    }


def _through(front: nn.Module, records: Records, run: Run) -> None:
    for _, features in compute(front, records, run, ""):
        features.cpu()


def _extract(front: nn.Module, source: Pictures, folder: Path, run: Run, form: Any = "parquet", **more: Any) -> None:
    layout = Layout(feature_shape(front, SHAPE), form)
    extract(front, source, layout, folder, run, mark="bench", stream=Stream.from_seed(0), how=Extraction(), **more)


def _memory() -> dict[str, Any]:
    """An image's pixels pooled to 8 × 8 × 8 numbers: as many bytes as VGG's, at almost no cost."""
    front = nn.Sequential(nn.AvgPool2d(4), nn.Conv2d(3, CHANNELS, 1)).requires_grad_(False)
    with tempfile.TemporaryDirectory() as folder:
        _extract(front, Pictures(10_000), Path(folder), Run())
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        seconds = _seconds(lambda: _extract(front, Pictures(MANY), Path(folder), Run()))
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {
        "writes": f"parquet, {size / 2**30:.2f} GiB",
        "records": MANY,
        "device": "cpu",
        "records a second": f"{MANY / seconds:,.0f}",
        "over the front end's own": "",
        "memory": f"{grown / 1024:,.0f} MiB more than for 10,000",
    }


def _seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
