"""Extracts features from records into shards, computing and writing concurrently; memory stays bounded.

In: a front end, a `Source` of records, and what is done to their features before they are written (`Protect`). Out:
finished shards. Features are computed here, by processes on this machine (`workers`) or by Ray; in any case they are
clipped and get their noise in this process, in one thread, right before they are written, so no feature without noise
is ever on disk. At most `QUEUE` blocks wait for the writer.

An interrupted run continues with the missing shards. Finished ones are kept unchanged, so that a record has only one
noisy version; an unfinished shard, which never left the folder, is discarded and gets fresh noise. A folder's mark
records which records, front end and settings it belongs to, and all others are refused.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from airlock.data import Records
from airlock.data.feature_files import Layout, Shard, ShardWriter, describe_shard, remove_all, remove_unfinished
from airlock.errors import Interrupted, TrainingError
from airlock.mechanisms import Stream
from airlock.training.devices import to_input
from airlock.training.ensembles.ray_cluster import connected, import_ray
from airlock.training.loop import Run, watch_interrupt
from airlock.training.per_sample import outputs

EngineName = Literal["local", "ray"]
Labels = NDArray[np.int64]

NOBODY = -1  # in place of a record, and of its label
QUEUE = 4  # blocks that wait for the writer
AHEAD = 2  # blocks that wait for each worker
MARK = "features.mark"
_BLOCK, _BLOCK_GPU = 256, 1024  # records at a time
_BLOCK_BYTES = 16 << 20
_PATIENCE = 0.2  # seconds between two checks of the other thread


class RecordSource(Protocol):
    """Where records come from: an array in memory or on disk, or generated on the fly."""

    def __len__(self) -> int:
        """The number of records."""

    def block(self, where: slice) -> Records:
        """Some of them, in order."""


@dataclass(frozen=True)
class Ordered:
    """Records in another order; only those requested are read.

    Where the order says NOBODY there is no record: it is replaced by a blank one whose label is NOBODY.
    """

    records: Records
    order: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.order)

    def block(self, where: slice) -> Records:
        """Some of them, in this order."""
        own = self.order[where]
        x, y = np.zeros((len(own), *self.records.x.shape[1:]), self.records.x.dtype), np.full(len(own), NOBODY)
        there = own != NOBODY
        x[there], y[there] = self.records.x[own[there]], self.records.y[own[there]]
        return Records(x, y)


class Protect(Protocol):
    """What is done to a block before it is written; its output may leave."""

    def __call__(self, features: Tensor, labels: Labels, stream: Stream) -> tuple[NDArray[np.floating[Any]], Labels]:
        """Map features (on the CPU) and labels to what is written, with fresh randomness for this block alone."""


@dataclass(frozen=True)
class Extraction:
    """How features are computed and written; nothing here changes what is written or the distribution of its noise.

    Args:
        workers: Processes that compute features; 0 computes them in this one.
        engine: "local", or "ray" for the workers of a Ray cluster.
        queue: The most blocks that wait for the writer.
    """

    workers: int = 0
    engine: EngineName = "local"
    queue: int = QUEUE


@dataclass
class _Block:
    """Some records of one shard, being processed."""

    shard: int
    number: int
    last: bool
    labels: Labels
    features: Tensor = field(default_factory=lambda: torch.empty(0))


def feature_shape(front: nn.Module, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of one record's features."""
    device = next((p.device for p in (*front.parameters(), *front.buffers())), torch.device("cpu"))
    with torch.no_grad():
        return tuple(front(torch.zeros(1, *shape, device=device)).shape[1:])


def extract(
    front: nn.Module,
    source: RecordSource,
    layout: Layout,
    folder: Path,
    run: Run,
    *,
    mark: str,
    protect: Protect | None = None,
    stream: Stream | None = None,
    how: Extraction | None = None,
) -> list[Shard]:
    """Write the features of all records.

    Args:
        front: Maps records to features, each from its own record alone.
        source: The records.
        layout: The layout of the files.
        folder: A folder for these files alone, private to this user.
        run: Device, progress, whether to continue with what is there.
        mark: Identifies records, front end and settings: a resumed run must have the same.
        protect: Clipping and noise; None writes features unchanged.
        stream: Fresh randomness for `protect`.
        how: How features are computed.

    Raises:
        TrainingError: The folder belongs to another extraction, or a worker died.
        Interrupted: Ctrl-C; finished shards are kept.
    """
    how, parts = how or Extraction(), layout.shards(len(source))
    prepare(folder, mark, run.resume)
    missing = [number for number in range(len(parts)) if not (folder / layout.name(number)).exists()]
    found = {
        number: describe_shard(folder / layout.name(number), len(parts[number]))
        for number in range(len(parts))
        if number not in missing
    }
    if found and protect is not None and stream is not None:
        stream.note_drawn("cpu")  # by the earlier run that computed them
    writer = _Writer(folder, layout, protect, stream, how.queue)
    done = sum(shard.records for shard in found.values())
    with watch_interrupt() as interrupted, writer:
        for block in _computed(front, source, _cut(parts, missing, layout, run.device), run.device, how):
            writer.put(block)
            done += len(block.labels)
            if run.progress:
                run.progress("features", done, len(source))
            if interrupted() and done < len(source):
                raise Interrupted(
                    "to finish the features",
                    f"Ctrl-C after {done:,} of {len(source):,} records",
                    "Nothing was released.",
                    "Run the same command with --resume to continue." if run.checkpoint else "",
                )
    found |= writer.made
    return [found[number] for number in sorted(found)]


def prepare(folder: Path, mark: str, resume: bool) -> None:
    """Prepare the folder: empty, or with the finished shards of this very extraction.

    Raises:
        TrainingError: Its shards belong to another one.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = folder / MARK
    if resume and file.exists():
        if file.read_text(encoding="utf-8") != mark:
            raise TrainingError(
                "shards of this very extraction",
                "some of other records, another front end or other settings",
                "A record would have two noisy versions, or its noise would not be the accounted one.",
                "Use the settings that it was started with, or begin anew: --again.",
            )
        remove_unfinished(folder)
        return
    remove_all(folder)
    file.touch(mode=0o600)
    file.write_text(mark, encoding="utf-8")


def _cut(
    parts: list[range], missing: list[int], layout: Layout, device: torch.device
) -> Iterator[tuple[int, int, bool, slice]]:
    """Blocks of the missing shards: shard, number within it, whether it is the last one, and its slice."""
    size = _at_once(layout.shape, device)
    for shard in missing:
        starts = range(parts[shard].start, max(parts[shard].stop, parts[shard].start + 1), size)
        for number, start in enumerate(starts):
            where = slice(start, min(start + size, parts[shard].stop))
            yield shard, number, number == len(starts) - 1, where


def _at_once(shape: tuple[int, ...], device: torch.device) -> int:
    """How many records to process at a time if features have this shape."""
    most = _BLOCK_GPU if device.type == "cuda" else _BLOCK
    return max(1, min(most, _BLOCK_BYTES // (4 * math.prod(shape))))


class _Front:
    """A front end on its device."""

    def __init__(self, front: nn.Module, device: torch.device) -> None:
        self.device = device
        self.form = torch.channels_last if device.type == "cuda" else torch.contiguous_format
        self.front = front.to(device=device, memory_format=self.form).eval()  # type: ignore[call-overload]
        self._at_once: int | None = None

    def __call__(self, x: NDArray[np.generic]) -> Tensor:
        if self._at_once is None:
            self._at_once = _at_once(feature_shape(self.front, x.shape[1:]), self.device)
        inputs = to_input(torch.from_numpy(np.ascontiguousarray(x)).to(self.device))
        inputs = inputs.contiguous(memory_format=self.form) if inputs.dim() == 4 else inputs
        return outputs(self.front, inputs, self._at_once).float().cpu()


def _computed(
    front: nn.Module,
    source: RecordSource,
    cuts: Iterator[tuple[int, int, bool, slice]],
    device: torch.device,
    how: Extraction,
) -> Iterator[_Block]:
    """Blocks with their features, in order."""
    with contextlib.ExitStack() as stack:
        begin, end, ahead = _hands(front, device, how, stack)
        waiting: deque[tuple[_Block, Any]] = deque()
        for shard, number, last, where in cuts:
            records = source.block(where)
            waiting.append((_Block(shard, number, last, np.asarray(records.y)), begin(records.x)))
            if len(waiting) > ahead:
                yield _ended(waiting.popleft(), end)
        while waiting:
            yield _ended(waiting.popleft(), end)


def _ended(waiting: tuple[_Block, Any], end: Callable[[Any], Tensor]) -> _Block:
    block, work = waiting
    block.features = end(work)
    return block


def _hands(
    front: nn.Module, device: torch.device, how: Extraction, stack: contextlib.ExitStack
) -> tuple[Callable[[Any], Any], Callable[[Any], Tensor], int]:
    """How to start a block, how to wait for its features, and how many may be in progress."""
    if how.engine == "ray":
        return _by_ray(front, how.workers, stack)
    if how.workers > 0:
        return _by_processes(front, device, how.workers, stack)
    made = _Front(front, device)
    return made, lambda features: features, 0


_HERE: list[_Front] = []  # of a worker process


def _open(front: nn.Module, device: str, threads: int) -> None:
    torch.set_num_threads(threads)
    _HERE[:] = [_Front(front, torch.device(device))]


def _work(x: NDArray[np.generic]) -> NDArray[np.float32]:
    return np.asarray(_HERE[0](x).numpy())


def _by_processes(
    front: nn.Module, device: torch.device, workers: int, stack: contextlib.ExitStack
) -> tuple[Callable[[Any], Any], Callable[[Any], Tensor], int]:
    threads = max(1, (os.cpu_count() or 1) // workers)
    pool = ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), _open, (front.cpu(), str(device), threads)
    )
    stack.callback(pool.shutdown, cancel_futures=True)

    def end(work: Future[NDArray[np.float32]]) -> Tensor:
        try:
            return torch.from_numpy(work.result())
        except BrokenProcessPool as error:
            raise TrainingError(
                "workers that survive until the features are computed",
                "one that did not",
                "Often it ran out of memory, or the front end cannot be imported in another process.",
                "Run again with --resume and fewer --workers.",
            ) from error

    return lambda x: pool.submit(_work, x), end, AHEAD * workers


def _by_ray(
    front: nn.Module, workers: int, stack: contextlib.ExitStack
) -> tuple[Callable[[Any], Any], Callable[[Any], Tensor], int]:
    """Tasks on a Ray cluster; Ray restarts a task whose worker dies."""
    ray = import_ray()
    stack.enter_context(contextlib.redirect_stdout(sys.stderr))
    size = sum(t.nbytes for t in (*front.parameters(), *front.buffers())) + (64 << 20)
    stack.enter_context(connected(ray, None, workers or None, size))

    def work(made: nn.Module, x: NDArray[np.generic]) -> NDArray[np.float32]:
        torch.set_num_threads(1)
        return np.asarray(_Front(made, torch.device("cpu"))(x).numpy())

    remote, there = ray.remote(num_cpus=1)(work), ray.put(front.cpu())
    slots = max(1, int(ray.cluster_resources().get("CPU", 1)))

    def end(task: Any) -> Tensor:
        try:
            return torch.from_numpy(np.array(ray.get(task)))
        except ray.exceptions.RayError as error:
            raise TrainingError(
                "workers that can compute features",
                f"an error ({type(error).__name__}: {str(error).strip().splitlines()[-1]})",
                do="Install the same Airlock on every machine of the cluster.",
            ) from error

    return lambda x: remote.remote(there, x), end, AHEAD * slots


class _Writer:
    """The thread that protects and writes blocks; its errors are raised where blocks are put."""

    def __init__(
        self, folder: Path, layout: Layout, protect: Protect | None, stream: Stream | None, waiting: int
    ) -> None:
        self.folder, self.layout, self.protect, self.stream = folder, layout, protect, stream
        self.made: dict[int, Shard] = {}
        self._queue: queue.Queue[_Block | None] = queue.Queue(max(1, waiting))
        self._error: BaseException | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="features", daemon=True)

    def __enter__(self) -> _Writer:
        self._thread.start()
        return self

    def put(self, block: _Block) -> None:
        """Pass on a block; blocks while the queue is full."""
        self._offer(block)

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._stopped = kind is not None
        if kind is None:
            self._offer(None)
        while self._thread.is_alive():
            self._thread.join(_PATIENCE)
        if kind is None and self._error is not None:
            raise self._error

    def _offer(self, block: _Block | None) -> None:
        while self._error is None:
            with contextlib.suppress(queue.Full):
                self._queue.put(block, timeout=_PATIENCE)
                return
        raise self._error

    def _take(self) -> _Block | None:
        while not self._stopped:
            with contextlib.suppress(queue.Empty):
                return self._queue.get(timeout=_PATIENCE)
        raise _Stopped

    def _run(self) -> None:
        try:
            while (block := self._take()) is not None:
                self._shard(block)
        except _Stopped:
            return
        except BaseException as error:  # noqa: BLE001 - it is raised again where blocks are put
            self._error = error

    def _shard(self, block: _Block) -> None:
        """Write a whole shard, starting with its first block."""
        with ShardWriter(self.folder, block.shard, self.layout) as writer:
            writer.add(*self._protected(block))
            while not block.last:
                following = self._take()
                assert following is not None
                assert following.shard == block.shard
                block = following
                writer.add(*self._protected(block))
        self.made[block.shard] = describe_shard(writer.path, writer.records)

    def _protected(self, block: _Block) -> tuple[NDArray[np.floating[Any]], Labels]:
        if self.protect is None:
            return block.features.numpy(), block.labels
        assert self.stream is not None
        return self.protect(block.features, block.labels, self.stream.child("block", block.shard, block.number))


class _Stopped(Exception):
    """The other thread gave up."""
