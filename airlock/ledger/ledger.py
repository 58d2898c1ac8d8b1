"""The ledger of a service: every answer is paid for before noise is drawn, and no budget is spent twice.

Guarantee. When `spend` returns a `Charge`, the debit is committed and on disk, and so is the high-water mark. The sum
of all charges never exceeds the cap, nor a client's charges its quota, no matter how many threads, processes or
machines share the database. A crash can leave a charge without an answer, never an answer without a charge, provided
that the caller draws noise only for a `Charge` that it holds, and only once for each. There are no refunds.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import sqlalchemy as sa

from airlock.errors import AirlockError, ConfigError, LedgerBroken, LedgerError, LedgerUnavailable
from airlock.ledger import tables, verify
from airlock.ledger.chain import FIRST_HASH, OPENED, Entry, HighWaterMark, Position
from airlock.ledger.transaction import LARGEST, Charge, Forget, Keep, Order, Replay, Rules, SetQuota, Spend, Transaction
from airlock.ledger.writer import Writer


@dataclass(frozen=True)
class Terms:
    """What a ledger was opened for; it never changes.

    Attributes:
        release: The identity of the release whose answers are sold.
        cap: The most that can ever be spent, in whole units.
        unit: What one unit is, in words: "0.0001 rho".
    """

    release: str
    cap: int
    unit: str

    def __post_init__(self) -> None:
        if type(self.cap) is not int or not 1 <= self.cap <= LARGEST:
            raise ConfigError(f"a cap from 1 to {LARGEST:,} units", repr(self.cap)[:40])

    def to_json(self) -> str:
        """The form in which the first entry of the log holds them."""
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True)
class Balance:
    """A limit and what was spent of it; an empty `client` means all clients together."""

    client: str
    limit: int | None
    spent: int
    left: int


class Ledger:
    """A database, its mark and the thread that writes. Open it after forking, and close it when done."""

    def __init__(
        self,
        engine: sa.Engine,
        mark: HighWaterMark,
        seen: Position,
        rules: Rules,
        clock: Callable[[], float],
        batch: int,
    ) -> None:
        self.engine, self.mark = engine, mark
        self._seen, self._marked = seen, seen
        self._rules, self._clock = rules, clock
        self._pid = os.getpid()
        self._writer = Writer(self._settle, batch)

    @classmethod
    def open(
        cls,
        place: str | Path,
        mark: Path,
        terms: Terms | None = None,
        *,
        new_mark: bool = False,
        rules: Rules | None = None,
        clock: Callable[[], float] = time.time,
        batch: int = 256,
    ) -> Ledger:
        """Open the ledger at `place`, or start one if there is none and terms are given.

        Args:
            place: A SQLite file, or postgresql://….
            mark: The high-water mark's file, out of reach of the database's backups.
            terms: The terms that it must have been opened with.
            new_mark: Create a mark for a ledger that has already spent: for a new replica, or after a mark was lost.
            rules: How long idempotency keys work.
            clock: Seconds since 1970.
            batch: The most orders in one transaction; 1 turns group commit off.

        Raises:
            ConfigError: There is no ledger and no terms are given, or it was opened with other terms.
            LedgerBroken: It was rewound or replaced, or it has already spent and its mark is missing.
            LedgerUnavailable: The database or the mark cannot be reached.
        """
        engine = tables.connect(str(place), create=terms is not None)
        try:
            kept = HighWaterMark(mark)
            held = kept.read()
            if not tables.has_ledger(engine):
                _begin(engine, terms, held, clock)
            seen = _admitted(engine, terms, kept, held, new_mark)
            kept.raise_to(seen)
            return cls(engine, kept, seen, rules or Rules(), clock, batch)
        except BaseException:
            engine.dispose()
            raise

    def spend(self, spend: Spend) -> Charge | Replay:
        """Pay for answers, or get the answer that the same request received before; on disk when this returns.

        Raises:
            Exhausted: The quota or the cap does not cover all rows; nothing was charged.
            UnknownKey: There is no such client.
            KeyReused: The idempotency key belongs to another request, or to one in progress.
            LedgerUnavailable: The database fails, or the queue is full; nothing may be answered.
            LedgerBroken: The ledger was rewound or replaced; nothing may be answered.
        """
        return self.submit(spend).result()

    def submit(self, spend: Spend) -> Future[Charge | Replay]:
        """`spend` without waiting: the future is set once the charge is on disk."""
        return cast("Future[Charge | Replay]", self._submit(spend))

    def look_up(self, spend: Spend) -> Replay | None:
        """The answer that the same request received before, if it is still stored; nothing is charged.

        Raises:
            KeyReused: As `spend` does.
        """
        with tables.reading(self.engine) as connection:
            return Transaction.look_up(connection, self.now(), self._rules, spend)

    def keep(self, charge: Charge, body: bytes) -> bool:
        """Store an answer for replays; False if its key was charged again, or there is no key."""
        return self.submit_keep(charge, body).result() if charge.key else False

    def submit_keep(self, charge: Charge, body: bytes) -> Future[bool]:
        """`keep` without waiting, for a charge that has a key."""
        return cast("Future[bool]", self._submit(Keep(charge, body)))

    def set_quota(self, client: str, quota: int | None) -> None:
        """Register a client, or change its limit; None means no limit below the cap."""
        self._submit(SetQuota(client, quota)).result()

    def forget_answers(self) -> int:
        """Drop the stored answers that have expired; the log keeps their charges."""
        return cast("int", self._submit(Forget()).result())

    def balance(self, client: str = "") -> Balance:
        """The balance of the whole budget, or of one client.

        Raises:
            UnknownKey: There is no such client.
        """
        with tables.reading(self.engine) as connection:
            transaction = Transaction.read(connection, self._rules, client)
            return Balance(client, *transaction.balance(client))

    def verify(self) -> verify.LedgerVerification:
        """Walk the whole log: hashes, totals, limits and the mark."""
        return verify.walk(self.engine, self.mark)

    @property
    def id(self) -> str:
        """Random and unique, chosen when the ledger was created."""
        return self._seen.ledger

    def now(self) -> int:
        """Milliseconds since 1970."""
        return int(self._clock() * 1000)

    def close(self) -> None:
        """Settle the queued orders, then release the database."""
        if os.getpid() == self._pid:
            self._writer.close()
        self.engine.dispose(close=os.getpid() == self._pid)

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _submit(self, order: Order) -> Future[object]:
        if os.getpid() != self._pid:
            raise LedgerUnavailable(
                "a ledger that this process opened", "one opened before a fork", do="Open it again."
            )
        return self._writer.submit(order)

    def _settle(self, orders: Sequence[Order]) -> list[object]:
        """Settle all orders in one transaction, then raise the mark, then notify the callers.

        If the mark cannot be written, the charged callers get an error. Nobody else is charged until it has caught up.
        """
        self._catch_up()
        with tables.writing(self.engine) as connection:
            transaction = Transaction.open(connection, self.now(), self._rules, orders)
            verify.check_mark(self._seen, transaction.position, transaction.hash_of)
            outcomes = [_outcome(order, transaction) for order in orders]
            transaction.flush()
        if transaction.moved:
            self._seen = transaction.position
            self._catch_up()
        return outcomes

    def _catch_up(self) -> None:
        if self._marked != self._seen:
            self.mark.raise_to(self._seen)
            self._marked = self._seen


def verify_at(place: str | Path, mark: Path) -> verify.LedgerVerification:
    """Verify the ledger at `place` without writing to it, even one that `Ledger.open` refuses.

    Raises:
        ConfigError: There is no ledger.
    """
    engine = tables.connect(str(place))
    try:
        if not tables.has_ledger(engine):
            raise ConfigError("a ledger in this place", "none")
        return verify.walk(engine, HighWaterMark(mark))
    finally:
        engine.dispose()


def _outcome(order: Order, transaction: Transaction) -> object:
    """Apply an order; a refusal is an outcome and changes nothing, any other error fails the transaction."""
    try:
        return order.apply(transaction)
    except LedgerError:
        raise
    except AirlockError as refusal:
        return refusal


def _begin(engine: sa.Engine, terms: Terms | None, held: Position | None, clock: Callable[[], float]) -> None:
    """Create the tables and the first entry; if another process was faster, keep its own."""
    if terms is None:
        raise ConfigError("a ledger in this place", "none", "A new one needs the terms of a release.")
    with tables.writing(engine) as connection:
        tables.create_tables(connection)
        if connection.execute(sa.select(tables.ledger.c.one)).first() is not None:
            return
        if held is not None:
            raise LedgerBroken(
                f"the ledger that its mark knows, with {held.entries:,} entries",
                "no ledger",
                "With a new one the budget could be spent a second time.",
                "Restore the newest database; remove the mark only if that release is no longer served.",
            )
        first = Entry(1, int(clock() * 1000), OPENED, "", 0, 0, "", "", terms.to_json(), FIRST_HASH)
        connection.execute(sa.insert(tables.log), [vars(first) | {"hash": first.hash}])
        row = {"one": 1, "id": secrets.token_hex(16), "terms": first.note, "cap": terms.cap, "spent": 0}
        connection.execute(sa.insert(tables.ledger), [row | {"entries": 1, "head": first.hash}])


def _admitted(
    engine: sa.Engine, terms: Terms | None, kept: HighWaterMark, held: Position | None, new_mark: bool
) -> Position:
    """The ledger's position, if it is the one that the terms and the mark expect."""
    with tables.reading(engine) as connection:
        transaction = Transaction.read(connection, Rules())
        if terms is not None and transaction.terms != terms.to_json():
            raise ConfigError(
                f"a ledger opened for {terms.to_json()}", transaction.terms, "A ledger's terms never change."
            )
        if held is not None:
            verify.check_mark(held, transaction.position, transaction.hash_of)
        if held is not None or not transaction.spent or new_mark:
            return transaction.position
    if (written := kept.read()) is not None:  # by another process, since `held` was read
        return _admitted(engine, terms, kept, written, new_mark)
    raise LedgerBroken(
        "the high-water mark of a ledger that has spent",
        "none",
        "Without it, a rewound budget cannot be detected.",
        "Find it; for a new replica run airlock ledger verify --new-mark.",
    )
