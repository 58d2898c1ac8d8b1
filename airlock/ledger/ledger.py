"""The ledger of a service: every answer is paid for before noise is drawn, and no budget is paid from twice.

Guarantee. When `spend` returns a `Charge`, the debit is committed and on the disk, and so is the high-water mark. The
sum of all charges never exceeds the cap, nor a client's charges its quota, whatever number of threads, processes or
machines share the database. A crash can leave a charge without an answer, never an answer without a charge, provided
that the caller draws noise only for a `Charge` that it holds, once. There are no refunds.
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
        cap: All that can ever be spent, in whole units.
        unit: What one unit is, in words: "0.0001 rho".
    """

    release: str
    cap: int
    unit: str

    def __post_init__(self) -> None:
        if type(self.cap) is not int or not 1 <= self.cap <= LARGEST:
            raise ConfigError(f"a cap from 1 to {LARGEST:,} units", repr(self.cap)[:40])

    def to_json(self) -> str:
        """As the first entry of the log holds them."""
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True)
class Balance:
    """What was spent of what; `client` may be empty for all."""

    client: str
    limit: int | None
    spent: int
    left: int


class Ledger:
    """A database, a mark beside it and the thread that writes. Open it after forking, and close it."""

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
        """Open the ledger at `place`, or begin one there where there is none and terms are given.

        Args:
            place: A SQLite file, or postgresql://….
            mark: The high-water mark's file, out of reach of the database's backups.
            terms: What it must have been opened for.
            new_mark: Begin a mark for a ledger that has spent already: a new replica, or a mark that was lost.
            rules: How long idempotency keys work.
            clock: Seconds since 1970.
            batch: Orders in one transaction at most; 1 turns group commit off.

        Raises:
            ConfigError: There is none and no terms, or it was opened for other terms.
            LedgerBroken: It was rewound or replaced, or it has spent and its mark is missing.
            LedgerUnavailable: Database or mark cannot be reached.
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
        """Pay for answers, or get the answer that the same request had before; on the disk when this returns.

        Raises:
            Exhausted: Quota or cap cannot pay for all rows; nothing was charged.
            UnknownKey: There is no such client.
            KeyReused: The idempotency key belongs to another request, or to one under way.
            LedgerUnavailable: The database fails, or too many wait; nothing may be answered.
            LedgerBroken: The ledger was rewound or replaced; nothing may be answered.
        """
        return self.submit(spend).result()

    def submit(self, spend: Spend) -> Future[Charge | Replay]:
        """`spend` without waiting: the future is set once the charge is on the disk."""
        return cast("Future[Charge | Replay]", self._submit(spend))

    def look_up(self, spend: Spend) -> Replay | None:
        """The answer that the same request had before, if it can still be had; nothing is charged.

        Raises:
            KeyReused: As `spend` does.
        """
        with tables.reading(self.engine) as connection:
            return Transaction.look_up(connection, self.now(), self._rules, spend)

    def keep(self, charge: Charge, body: bytes) -> bool:
        """Store an answer for replays; False where its key was charged again, or there is no key."""
        return self.submit_keep(charge, body).result() if charge.key else False

    def submit_keep(self, charge: Charge, body: bytes) -> Future[bool]:
        """`keep` without waiting, for a charge that has a key."""
        return cast("Future[bool]", self._submit(Keep(charge, body)))

    def set_quota(self, client: str, quota: int | None) -> None:
        """Make a client known, or change its limit; None is no limit below the cap."""
        self._submit(SetQuota(client, quota)).result()

    def forget_answers(self) -> int:
        """Drop the stored answers whose time is over; the log keeps their charges."""
        return cast("int", self._submit(Forget()).result())

    def balance(self, client: str = "") -> Balance:
        """Of the whole budget, or of one client.

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
        """Random, from its beginning; no other ledger has it."""
        return self._seen.ledger

    def now(self) -> int:
        """Milliseconds since 1970."""
        return int(self._clock() * 1000)

    def close(self) -> None:
        """Settle what waits, then let go of the database."""
        if os.getpid() == self._pid:
            self._writer.close()
        self.engine.dispose(close=os.getpid() == self._pid)

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _submit(self, order: Order) -> Future[object]:
        if os.getpid() != self._pid:
            raise LedgerUnavailable("a ledger that this process opened", "one from before a fork", do="Open it anew.")
        return self._writer.submit(order)

    def _settle(self, orders: Sequence[Order]) -> list[object]:
        """All orders in one transaction; then the mark; then the callers hear of it.

        A mark that could not be written fails those who were charged. Until it has caught up nobody else is charged.
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
    """Verify the ledger at `place` as it lies there, also one that `Ledger.open` refuses; nothing is written.

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
    """A refusal is an outcome, and left no trace; anything else fails the transaction."""
    try:
        return order.apply(transaction)
    except LedgerError:
        raise
    except AirlockError as refusal:
        return refusal


def _begin(engine: sa.Engine, terms: Terms | None, held: Position | None, clock: Callable[[], float]) -> None:
    """The tables and the first entry; where another process was faster, its own stand."""
    if terms is None:
        raise ConfigError("a ledger in this place", "none", "It is opened with the terms of a release.")
    with tables.writing(engine) as connection:
        tables.create_tables(connection)
        if connection.execute(sa.select(tables.ledger.c.one)).first() is not None:
            return
        if held is not None:
            raise LedgerBroken(
                f"the ledger that its mark knows, with {held.entries:,} entries",
                "no ledger",
                "With a new one the budget would be spent again.",
                "Restore the newest database; remove the mark only if that release is no longer served.",
            )
        first = Entry(1, int(clock() * 1000), OPENED, "", 0, 0, "", "", terms.to_json(), FIRST_HASH)
        connection.execute(sa.insert(tables.log), [vars(first) | {"hash": first.hash}])
        row = {"one": 1, "id": secrets.token_hex(16), "terms": first.note, "cap": terms.cap, "spent": 0}
        connection.execute(sa.insert(tables.ledger), [row | {"entries": 1, "head": first.hash}])


def _admitted(
    engine: sa.Engine, terms: Terms | None, kept: HighWaterMark, held: Position | None, new_mark: bool
) -> Position:
    """Where the ledger stands, if it is the one that terms and mark expect."""
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
        "Without it a budget that was rewound looks like any other.",
        "Find it; for a new replica run airlock ledger verify --new-mark.",
    )
