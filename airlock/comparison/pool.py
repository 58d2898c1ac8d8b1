"""Several cells at once, each in its own process, which ends with this one and can be killed at a deadline.

Processes are spawned and reused from cell to cell, since starting one takes seconds; several may share a GPU. Only
tasks and figures pass between them. They are on this machine (`Pool`) or the workers of a Ray cluster (`RayPool`).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, Literal, TypeVar

from airlock.training.loop import Progress

T = TypeVar("T")
R = TypeVar("R")

Ended = Literal["crashed", "overtime"]


@dataclass
class _Worker:
    process: Any
    line: Connection
    task: Any = None
    last: Any = None
    since: float = field(default_factory=time.monotonic)


class Pool(Generic[T, R]):
    """A fixed number of processes, each of which calls `work` on one task after another.

    Args:
        jobs: The number of processes.
        work: A module-level function, called in the process; an exception ends the process.
        start: How processes are started.
        follow: What the process that had this task is to do next, whatever is first in line; None leaves it to the
            line. For tasks that share what is expensive to make.
    """

    def __init__(
        self,
        jobs: int,
        work: Callable[[T], R],
        start: Literal["spawn", "fork"] = "spawn",
        follow: Callable[[T], T | None] = lambda task: None,
    ) -> None:
        self._context = multiprocessing.get_context(start)
        self._jobs, self._work, self._follow = jobs, work, follow
        self._workers: list[_Worker] = []

    def run(self, next_task: Callable[[], T | None], deadline: float | None = None) -> Iterator[tuple[T, R | Ended]]:
        """Yield tasks with their results as they finish, until `next_task` returns None and all are done.

        A task whose process dies gives "crashed", and another process takes its place; one that is still running at the
        deadline (by the monotonic clock) is killed and gives "overtime".
        """
        try:
            while self._feed(next_task):
                yield from self._collect(deadline)
        finally:
            for worker in self._workers:
                self._end(worker)
            self._workers.clear()

    def _feed(self, next_task: Callable[[], T | None]) -> bool:
        """Give every idle process a task; returns whether any process is busy."""
        for worker in self._workers:
            if worker.task is None:
                task = self._follow(worker.last)
                self._give(worker, next_task() if task is None else task)
        while len(self._workers) < self._jobs and (task := next_task()) is not None:
            self._give(self._hire(), task)
        return any(worker.task is not None for worker in self._workers)

    @staticmethod
    def _give(worker: _Worker, task: T | None) -> None:
        if task is not None:
            worker.task, worker.since = task, time.monotonic()
            worker.line.send(task)

    def _hire(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, ours, self._work), daemon=True)  # type: ignore[attr-defined]
        process.start()
        theirs.close()
        self._workers.append(_Worker(process, ours))
        return self._workers[-1]

    def _collect(self, deadline: float | None) -> Iterator[tuple[T, R | Ended]]:
        busy = {worker.line: worker for worker in self._workers if worker.task is not None}
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = wait(list(busy), timeout=left)
        if not ready:
            for worker in busy.values():
                yield self._dismiss(worker), "overtime"
        for line in ready:
            worker = busy[line]  # type: ignore[index]
            try:
                found = worker.line.recv()
            except (EOFError, OSError):
                yield self._dismiss(worker), "crashed"
                continue
            task, worker.task, worker.last = worker.task, None, worker.task
            yield task, found

    def _dismiss(self, worker: _Worker) -> T:
        self._workers.remove(worker)
        self._end(worker)
        task: T = worker.task
        return task

    @staticmethod
    def _end(worker: _Worker) -> None:
        worker.process.kill()
        worker.process.join()
        worker.line.close()


class RayPool(Generic[T, R]):
    """The same on the workers of a Ray cluster: every task is one of Ray's, with a core and a share of a GPU.

    Args:
        ray: The module, connected to a cluster.
        jobs: The number of tasks at once.
        work: Called in a worker; an exception counts as a crash.
        gpus: GPUs of each task, possibly a fraction.
    """

    def __init__(self, ray: Any, jobs: int, work: Callable[[T], R], gpus: float = 0.0) -> None:
        def once(task: T) -> R:  # Ray takes no partial
            return work(task)

        self._ray, self._jobs = ray, jobs
        self._work = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)(once)
        self._under_way: dict[Any, T] = {}

    def run(self, next_task: Callable[[], T | None], deadline: float | None = None) -> Iterator[tuple[T, R | Ended]]:
        """Yield tasks with their results as they finish, as `Pool.run` does; a worker that dies gives "crashed"."""
        try:
            while self._feed(next_task):
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                ready, _ = self._ray.wait(list(self._under_way), num_returns=1, timeout=left)
                if not ready:
                    for ref in list(self._under_way):
                        yield self._dismiss(ref), "overtime"
                for ref in ready:
                    task = self._under_way.pop(ref)
                    yield task, self._result(ref)
        finally:
            for ref in list(self._under_way):
                self._dismiss(ref)

    def _feed(self, next_task: Callable[[], T | None]) -> bool:
        """Start as many tasks as may run; returns whether any is under way."""
        while len(self._under_way) < self._jobs and (task := next_task()) is not None:
            self._under_way[self._work.remote(task)] = task
        return bool(self._under_way)

    def _result(self, ref: Any) -> R | Ended:
        try:
            found: R = self._ray.get(ref)
        except self._ray.exceptions.RayError:
            return "crashed"
        return found

    def _dismiss(self, ref: Any) -> T:
        """End a task with its process."""
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.cancel(ref, force=True)
        return self._under_way.pop(ref)


def _serve(line: Connection, other: Connection, work: Callable[[T], R]) -> None:
    """The main loop of a process: Ctrl-C is handled by the parent, and this process ends when the parent does."""
    other.close()  # if this end stayed open here, the parent's exit would go unnoticed
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow_parent, daemon=True).start()
    while True:
        try:
            task = line.recv()
        except EOFError:
            return
        line.send(work(task))


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


# A deadline for work in this process.


class OutOfTimeError(BaseException):
    """The deadline has passed, noticed between two training steps; no failure of what was trained."""


def until(deadline: float | None, progress: Progress | None) -> Progress | None:
    """A progress callback that ends training at the deadline."""
    if deadline is None:
        return progress

    def report(label: str, done: int, total: int) -> None:
        if time.monotonic() > deadline:
            raise OutOfTimeError
        if progress:
            progress(label, done, total)

    return report
