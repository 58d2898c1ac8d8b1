"""Answers off the event loop, many requests at a time.

While a thread answers, requests gather, and it takes them all at once: a hop between threads costs as much as a small
network. Answers that are free are computed in one batch; each that was paid for is answered by itself, with a stream of
its own.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from airlock.mechanisms import Stream
from airlock.methods.interface import Answerer, Answers, Reservation

_MOST_ROWS = 1024  # that are computed at once


@dataclass(frozen=True)
class _Asked:
    x: NDArray[np.float32]
    reservation: Reservation
    future: asyncio.Future[Answers]


class Gatherer:
    """Answers queries in one thread of its own; used from one event loop."""

    def __init__(self, answerer: Answerer) -> None:
        self._answerer = answerer
        self._waiting: list[_Asked] = []
        self._working: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "airlock-answers")

    async def answer(self, x: NDArray[np.float32], reservation: Reservation) -> Answers:
        """The answers to a reservation that was paid; whatever the answerer raises."""
        asked = _Asked(x, reservation, asyncio.get_running_loop().create_future())
        self._waiting.append(asked)
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work())
        return await asked.future

    def close(self) -> None:
        """End the thread, after what it is doing."""
        self._thread.shutdown()

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            batch = self._take()
            outcomes = await loop.run_in_executor(self._thread, self._answers, batch)
            for asked, outcome in zip(batch, outcomes, strict=True):
                if asked.future.cancelled():
                    continue
                if isinstance(outcome, Exception):
                    asked.future.set_exception(outcome)
                else:
                    asked.future.set_result(outcome)

    def _take(self) -> list[_Asked]:
        """In the order of asking, up to so many rows; at least one request."""
        rows, count = 0, 0
        while count < len(self._waiting) and (not count or rows + len(self._waiting[count].x) <= _MOST_ROWS):
            rows += len(self._waiting[count].x)
            count += 1
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken

    def _answers(self, batch: list[_Asked]) -> list[Answers] | list[Answers | Exception]:
        if self._answerer.interface.units is None and len(batch) > 1:
            x = np.concatenate([one.x for one in batch])
            outcome = self._one(x, Reservation(len(x), 0))
            if isinstance(outcome, Answers):
                return _split(outcome, [len(one.x) for one in batch])
        return [self._one(one.x, one.reservation) for one in batch]

    def _one(self, x: NDArray[np.float32], reservation: Reservation) -> Answers | Exception:
        """With randomness of its own: a stream keyed by the operating system, for these answers alone."""
        try:
            return self._answerer.answer(x, reservation, Stream.from_system())
        except Exception as error:  # noqa: BLE001 - whoever asked is waiting for it
            return error


def _split(answers: Answers, sizes: list[int]) -> list[Answers]:
    ends = np.cumsum(sizes)[:-1]
    labels = np.split(answers.labels, ends)
    if answers.values is None:
        return [Answers(one) for one in labels]
    return [Answers(one, values) for one, values in zip(labels, np.split(answers.values, ends), strict=True)]
