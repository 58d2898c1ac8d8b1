"""Several cells at once, each in its own process, which ends with this one and can be killed at a deadline.

Processes are spawned and reused from cell to cell, since starting one takes seconds; several may share a GPU. Only
tasks and figures pass between them.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, Literal, TypeVar

T = TypeVar("T")
R = TypeVar("R")

Ended = Literal["crashed", "overtime"]


@dataclass
class _Worker:
    process: Any
    line: Connection
    task: Any = None
    since: float = field(default_factory=time.monotonic)


class Pool(Generic[T, R]):
    """A fixed number of processes, each of which calls `work` on one task after another.

    Args:
        jobs: The number of processes.
        work: A module-level function, called in the process; an exception ends the process.
        start: How processes are started.
    """

    def __init__(self, jobs: int, work: Callable[[T], R], start: Literal["spawn", "fork"] = "spawn") -> None:
        self._context = multiprocessing.get_context(start)
        self._jobs, self._work = jobs, work
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
        while sum(worker.task is not None for worker in self._workers) < self._jobs:
            task = next_task()
            if task is None:
                break
            worker = next((one for one in self._workers if one.task is None), None) or self._hire()
            worker.task, worker.since = task, time.monotonic()
            worker.line.send(task)
        return any(worker.task is not None for worker in self._workers)

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
            task, worker.task = worker.task, None
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
