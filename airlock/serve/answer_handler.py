"""How a query is answered: reserve, charge, answer, keep, in exactly this order.

A charge is on disk before noise is drawn. What was charged and could not be answered stays charged. An answer is stored
for its idempotency key before it is sent, so that a repeated request gets the same answer and not a second draw. If it
cannot be stored, it is sent all the same, since it is paid for and its noise is drawn; the client is told that its key
does not replay it, so that nobody repeats the request in the belief that it is free.

Answers are computed off the event loop, many requests at a time (`Batcher`). While a thread answers, requests queue
up, and it then takes them all at once, clients in turns: a hop between threads costs as much as a small network. Free
answers are computed in one batch; each paid one is answered separately, with a stream of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from airlock.errors import AirlockError
from airlock.ledger.ledger import Ledger
from airlock.ledger.transaction import Charge, Replay, Spend
from airlock.mechanisms import Stream
from airlock.methods.interface import Answerer, Answers, Reservation
from airlock.serve.problems import Problem, failed
from airlock.serve.protocol import Query, write_outputs

# Off the event loop.

_MOST_ROWS = 1024  # computed at once


@dataclass(frozen=True)
class _Asked:
    x: NDArray[np.float32]
    reservation: Reservation
    future: asyncio.Future[Answers]


class Batcher:
    """Answers queries in a dedicated thread; used from one event loop."""

    def __init__(self, answerer: Answerer) -> None:
        self._answerer = answerer
        self._waiting: dict[str, deque[_Asked]] = {}  # in the order of the clients' turns
        self._working: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "airlock-answers")

    async def answer(self, x: NDArray[np.float32], reservation: Reservation, client: str = "") -> Answers:
        """The answers to a client's paid reservation; raises whatever the answerer raises."""
        asked = _Asked(x, reservation, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(client, deque()).append(asked)
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work())
        return await asked.future

    def close(self) -> None:
        """Stop the thread after its current work."""
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
        """The next requests, one of each client in turn, up to the limit of rows; at least one."""
        rows, taken = 0, list[_Asked]()
        while self._waiting:
            client, queue = next(iter(self._waiting.items()))
            if taken and rows + len(queue[0].x) > _MOST_ROWS:
                break
            del self._waiting[client]
            rows += len(queue[0].x)
            taken.append(queue.popleft())
            if queue:
                self._waiting[client] = queue  # behind the others
        return taken

    def _answers(self, batch: list[_Asked]) -> list[Answers] | list[Answers | Exception]:
        if self._answerer.interface.units is None and len(batch) > 1:
            x = np.concatenate([one.x for one in batch])
            outcome = self._one(x, Reservation(len(x), 0))
            if isinstance(outcome, Answers):
                return _split(outcome, [len(one.x) for one in batch])
        return [self._one(one.x, one.reservation) for one in batch]

    def _one(self, x: NDArray[np.float32], reservation: Reservation) -> Answers | Exception:
        """Answer one request with its own randomness: a stream keyed by the operating system, used only here."""
        try:
            return self._answerer.answer(x, reservation, Stream.from_system())
        except Exception as error:  # noqa: BLE001 - the client is waiting for it
            return error


def _split(answers: Answers, sizes: list[int]) -> list[Answers]:
    ends = np.cumsum(sizes)[:-1]
    labels = np.split(answers.labels, ends)
    if answers.values is None:
        return [Answers(one) for one in labels]
    return [Answers(one, values) for one, values in zip(labels, np.split(answers.values, ends), strict=True)]


# The handler.

_log = logging.getLogger("airlock.serve")


@dataclass(frozen=True)
class PaidAnswer:
    """An answer that may leave.

    Attributes:
        outputs: Its tensors as JSON.
        units: What it cost this time; 0 for a replay.
        left: Units the client can still spend; None if unknown, or if answers are free.
        replayed: Whether it is a replay.
        stored: Whether its idempotency key gives it again.
    """

    outputs: bytes
    units: int
    left: int | None = None
    replayed: bool = False
    stored: bool = False


class AnswerHandler:
    """Answers what is asked of one answerer, each answer paid to one ledger first."""

    def __init__(self, answerer: Answerer, ledger: Ledger) -> None:
        self._answerer, self._ledger = answerer, ledger
        self._batcher = Batcher(answerer)

    def close(self) -> None:
        """Stop the answering thread; the ledger is closed by its owner."""
        self._batcher.close()

    async def handle(self, client: str, query: Query, key: str | None) -> PaidAnswer:
        """Answer a query, paid by a client.

        Raises:
            Refused: The ledger refuses to pay; nothing was charged.
            LedgerError: The ledger fails; nothing was answered.
            Problem: Answering failed after the charge, which stays.
        """
        reservation = self._answerer.reserve(len(query.x))
        try:
            outcome = await self._pay(client, reservation, query, key)
        except BaseException:
            self._answerer.cancel(reservation)
            raise
        if isinstance(outcome, Replay):
            self._answerer.cancel(reservation)
            return PaidAnswer(outcome.body, 0, replayed=True, stored=True)
        outputs = await self._answer(query, reservation, client)
        if outcome is None:
            return PaidAnswer(outputs, 0)
        stored = await self._keep(outcome, outputs)
        return PaidAnswer(outputs, outcome.units, outcome.left, stored=stored)

    async def _pay(
        self, client: str, reservation: Reservation, query: Query, key: str | None
    ) -> Charge | Replay | None:
        """A charge, or the answer stored under the key; None if there is nothing to pay and no such answer."""
        if reservation.units:
            return await asyncio.wrap_future(self._ledger.submit(_spend(client, reservation, query, key)))
        if key is None or self._answerer.interface.units is None:
            return None
        asked = Spend(client, 1, query.digest, reservation.rows, key)
        return await asyncio.to_thread(self._ledger.look_up, asked)

    async def _answer(self, query: Query, reservation: Reservation, client: str = "") -> bytes:
        try:
            answers = await self._batcher.answer(query.x, reservation, client)
            return write_outputs(answers, query, self._answerer.interface)
        except Problem:  # a row has no number, which only free answers are
            raise
        except Exception as error:  # noqa: BLE001 - its message may contain inputs: only its type is reported
            _log.error("answering failed: %s", type(error).__name__)
            raise failed() from None

    async def _keep(self, charge: Charge, outputs: bytes) -> bool:
        """Store the answer for its key; returns whether it is known to be stored."""
        if not charge.key:
            return False
        try:
            return await asyncio.wrap_future(self._ledger.submit_keep(charge, outputs))
        except AirlockError as error:
            _log.warning("an answer was not stored: %s", type(error).__name__)
            return False


def _spend(client: str, reservation: Reservation, query: Query, key: str | None) -> Spend:
    """Charge per row if every row costs the same; else as one amount, because part of it was already paid."""
    each, rest = divmod(reservation.units, reservation.rows)
    units, rows = (reservation.units, 1) if rest else (each, reservation.rows)
    return Spend(client, units, query.digest, rows, key)
