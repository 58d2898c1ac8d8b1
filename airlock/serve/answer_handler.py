"""The sale of answers: reserve, charge, answer, keep, in this order and no other.

A charge is on the disk before noise is drawn. What was charged and could not be answered stays charged. An answer is
stored for its idempotency key before it is sent, so that whoever asks again gets the same one and not a second draw.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from airlock.errors import AirlockError
from airlock.ledger.ledger import Ledger
from airlock.ledger.orders import Charge, Replay, Spend
from airlock.methods.interface import Answerer, Reservation
from airlock.serve.batcher import Gatherer
from airlock.serve.problems import failed
from airlock.serve.protocol import Query, write_outputs

_log = logging.getLogger("airlock.serve")


@dataclass(frozen=True)
class Sold:
    """An answer that may leave.

    Attributes:
        outputs: Its tensors as JSON.
        units: What it cost now; 0 for a replay.
        left: Units the client can still spend; None where that is not known, or nothing costs anything.
        replayed: Whether it was given before.
    """

    outputs: bytes
    units: int
    left: int | None = None
    replayed: bool = False


class Sale:
    """Sells the answers of one answerer against one ledger."""

    def __init__(self, answerer: Answerer, ledger: Ledger) -> None:
        self._answerer, self._ledger = answerer, ledger
        self._gatherer = Gatherer(answerer)

    def close(self) -> None:
        """End the thread that answers; the ledger is its owner's."""
        self._gatherer.close()

    async def sell(self, client: str, query: Query, key: str | None) -> Sold:
        """Answer a query, paid by a client.

        Raises:
            Refused: The ledger does not pay; nothing was charged.
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
            return Sold(outcome.body, 0, replayed=True)
        outputs = await self._answer(query, reservation)
        if outcome is None:
            return Sold(outputs, 0)
        await self._keep(outcome, outputs)
        return Sold(outputs, outcome.units, outcome.left)

    async def _pay(
        self, client: str, reservation: Reservation, query: Query, key: str | None
    ) -> Charge | Replay | None:
        """A charge, or the answer that the key had before; None where there is nothing to pay and no such answer."""
        if reservation.units:
            return await asyncio.wrap_future(self._ledger.submit(_spend(client, reservation, query, key)))
        if key is None or self._answerer.interface.units is None:
            return None
        asked = Spend(client, 1, query.digest, reservation.rows, key)
        return await asyncio.to_thread(self._ledger.look_up, asked)

    async def _answer(self, query: Query, reservation: Reservation) -> bytes:
        try:
            answers = await self._gatherer.answer(query.x, reservation)
            return write_outputs(answers, query, self._answerer.interface)
        except Exception as error:  # noqa: BLE001 - the inputs may stand in its message: its kind is all that is told
            _log.error("answering failed: %s", type(error).__name__)
            raise failed() from None

    async def _keep(self, charge: Charge, outputs: bytes) -> None:
        """Store the answer for its key; if that fails, it is answered all the same, and not replayed."""
        if not charge.key:
            return
        try:
            await asyncio.wrap_future(self._ledger.submit_keep(charge, outputs))
        except AirlockError as error:
            _log.warning("an answer was not stored: %s", type(error).__name__)


def _spend(client: str, reservation: Reservation, query: Query, key: str | None) -> Spend:
    """By the row where every row costs the same; else as one amount, since part of it was paid before."""
    each, rest = divmod(reservation.units, reservation.rows)
    units, rows = (reservation.units, 1) if rest else (each, reservation.rows)
    return Spend(client, units, query.digest, rows, key)
