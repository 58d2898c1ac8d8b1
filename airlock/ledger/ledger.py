"""The ledger of a service: every answer is paid for before noise is drawn, and no budget is spent twice.

Guarantee. When `spend` returns a `Charge`, the debit is committed and on disk, and so is the high-water mark. The sum
of all charges never exceeds the cap, nor a client's charges its quota, no matter how many threads, processes or
machines share the database. A crash can leave a charge without an answer, never an answer without a charge, provided
that the caller draws noise only for a `Charge` that it holds, and only once for each. There are no refunds.

What the ledger goes by is the log, whose hashes are keyed by a secret that is not in the database. It is verified when
the ledger is opened and whenever another process has added to it, and the other tables must agree with it. Whoever can
write the database alone can stop the service, but neither raise its budget nor let anybody in.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import cast

import sqlalchemy as sa

from airlock.errors import AirlockError, ConfigError, LedgerBroken, LedgerError, LedgerUnavailable
from airlock.ledger import tables, verify
from airlock.ledger.chain import FIRST_HASH, OPENED, Entry, Seal
from airlock.ledger.mark import HighWaterMark
from airlock.ledger.reservations import OpenReservation
from airlock.ledger.state import Key, State, Wrong, bring_up_to_date, hash_of, rewound
from airlock.ledger.transaction import (
    Charge,
    Forget,
    Keep,
    Names,
    Order,
    Replay,
    Rules,
    SetKey,
    SetQuota,
    Spend,
    Touch,
    Transaction,
    Unanswered,
    Upgrade,
    left_of,
    unknown_client,
)
from airlock.ledger.units import LARGEST
from airlock.ledger.writer import Writer

_SAVE_EVERY = 10_000  # entries between two states that are kept beside the mark
_MOST_UNANSWERED = 4096
_EVERY = sa.select(*[tables.log.c[name] for name in Entry.__dataclass_fields__], tables.log.c.hash).order_by(
    tables.log.c.seq
)


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
        state: State,
        seal: Seal,
        rules: Rules,
        clock: Callable[[], float],
        batch: int,
    ) -> None:
        self.engine, self.mark = engine, mark
        self._state, self._seal = state, seal
        self._marked, self._due, self._saved = 0, 0, 0
        self._rules, self._clock, self._latest = rules, clock, state.at
        self._unanswered: dict[Names, Unanswered] = {}
        self._held = (
            state.position
        )  # what the mark was last seen to hold: by another process, perhaps further than this
        self._pid = os.getpid()
        self._writer = Writer(self._settle, batch)

    @classmethod
    def open(
        cls,
        place: str | Path,
        mark: Path,
        terms: Terms | None = None,
        *,
        known: str | None = None,
        new_mark: bool = False,
        older: bool = False,
        rules: Rules | None = None,
        clock: Callable[[], float] = time.time,
        batch: int = 256,
    ) -> Ledger:
        """Open the ledger at `place`, or start one if there is none and terms are given.

        Args:
            place: A SQLite file, or postgresql://….
            mark: The high-water mark's file, out of reach of the database's backups; the secret lies beside it.
            terms: The terms that it must have been opened with.
            known: The identity that it must have; then none is started.
            new_mark: Create a mark for a ledger that has none here: for a new replica, or after a mark was lost. The
                whole log is walked, but nothing tells whether it is the newest.
            older: With `new_mark`, take a log of plain hashes, which anyone can make: it is from before there were
                secrets.
            rules: How long idempotency keys work.
            clock: Seconds since 1970.
            batch: The most orders in one transaction; 1 turns group commit off.

        Raises:
            ConfigError: There is no ledger and no terms are given, or it was opened with other terms.
            LedgerBroken: It was tampered with, rewound or replaced, or its mark or its secret is missing.
            LedgerUnavailable: The database or the mark cannot be reached.
        """
        engine = tables.connect(str(place), create=terms is not None)
        try:
            kept = HighWaterMark(mark)
            if not tables.has_ledger(engine):
                _begin(engine, terms, kept, known, clock)
            state, begun, seen = _admitted(engine, terms, kept, known, new_mark, older)
            ledger = cls(engine, kept, state, kept.make_secret(state.ledger), rules or Rules(), clock, batch)
        except BaseException:
            engine.dispose()
            raise
        try:
            ledger._begin_work(begun, seen)
        except BaseException:
            ledger.close()
            raise
        return ledger

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

    def set_key(self, key: Key, token: str) -> None:
        """Write a key into the log, with the digest of its token: a new one, or one that is revoked."""
        self._submit(SetKey(key, token)).result()

    def list_keys(self) -> list[tuple[Key, str]]:
        """Every key that the log names, with the digest of its token; the table of keys has no say."""
        state = self._current()
        with state.lock:
            return list(state.keys.values())

    def find_key(self, name: str) -> tuple[Key, str] | None:
        """The key of this name that the log names, with the digest of its token."""
        return self._current().keys.get(name)

    def check_writable(self) -> None:
        """Write to the database and to the mark without changing anything.

        Raises:
            LedgerUnavailable: One of them cannot be written.
            LedgerBroken: The ledger is not intact.
        """
        self._submit(Touch()).result()

    def balance(self, client: str = "") -> Balance:
        """The balance of the whole budget, or of one client.

        Raises:
            UnknownKey: There is no such client.
            LedgerBroken: The ledger is not intact.
        """
        state = self._current()
        with state.lock:
            left = state.cap - state.spent
            if not client:
                return Balance(client, state.cap, state.spent, left)
            if client not in state.accounts:
                raise unknown_client()
            quota, spent = state.accounts[client]
            return Balance(client, quota, spent, left_of(left, quota, spent))

    def verify(self) -> verify.LedgerVerification:
        """Walk the whole log: hashes, totals, limits, keys and the mark."""
        return verify.walk(self.engine, self.mark)

    def order(self, order: Order) -> object:
        """Carry out any order, on disk when this returns; what a register orders is in `register`.

        Raises:
            LedgerUnavailable: As `spend`.
            LedgerBroken: As `spend`.
        """
        return self._submit(order).result()

    def history(self) -> list[Entry]:
        """All entries, oldest first, each verified against the one before it and the ledger's secret.

        Raises:
            LedgerBroken: One was changed, or the log is not what it was.
        """
        current = self._current().position
        with tables.reading(self.engine) as connection:
            rows = [tuple(row) for row in connection.execute(_EVERY)]
        walked = State(self.id)
        try:
            walked.extend(rows, self._seal)
        except Wrong as wrong:
            raise wrong.told() from wrong
        if walked.entries < current.entries or rows[current.entries - 1][-1] != current.head:
            raise rewound(current, "fewer entries, or another at that number")
        return [Entry(*row[:-1]) for row in rows]

    def reservations(self) -> dict[int, OpenReservation]:
        """Of a register: those that are open, by the number of their entry."""
        state = self._current()
        with state.lock:
            return dict(state.reservations)

    @property
    def terms(self) -> str:
        """What the first entry of the log says, as JSON."""
        return self._state.terms

    @property
    def id(self) -> str:
        """Random and unique, chosen when the ledger was created."""
        return self._state.ledger

    def now(self) -> int:
        """Milliseconds since 1970; never less than it or the log has said before, whatever the system's clock says."""
        self._latest = max(self._latest, self._state.at, int(self._clock() * 1000))
        return self._latest

    def remember_time(self) -> None:
        """Write the current time into the mark, so that no clock brings back what has expired."""
        with self._state.lock:
            position = self._state.position
        self.mark.raise_to(replace(position, at=self.now()))

    def close(self) -> None:
        """Settle the queued orders, then release the database."""
        if os.getpid() == self._pid:
            self._writer.close()
            with contextlib.suppress(LedgerError):
                if self._marked:
                    self.remember_time()
                self._save_state(_SAVE_EVERY // 10)
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

    def _begin_work(self, begun: int, seen: int) -> None:
        """After opening: key the hashes of an old ledger, then raise the mark to what was verified."""
        self._latest = max(self._latest, seen)
        self._saved = begun
        if not self._state.keyed:
            self._submit(Upgrade()).result()
        self._raise_mark()
        self._save_state(_SAVE_EVERY // 10)

    def _current(self) -> State:
        """The state, after whatever other processes have added to the log."""
        known = self._state.entries
        with tables.reading(self.engine) as connection:
            bring_up_to_date(connection, self._state, self._seal, known)
        return self._state

    def _settle(self, orders: Sequence[Order]) -> list[object]:
        """Settle all orders in one transaction, then raise the mark, then notify the callers.

        If the mark cannot be written, the charged callers get an error. Nobody else is charged until it has caught up.
        A charge that was made, or may have been, and was not handed out is remembered for whoever repeats the request.
        """
        if self._marked < self._due:
            self._raise_mark()
        outcomes: list[object] = []
        transaction: Transaction | None = None
        try:
            with tables.writing(self.engine) as connection:
                transaction = Transaction.open(
                    connection, self.now(), self._rules, self._state, self._seal, orders, self._unanswered
                )
                self._check_held(connection)
                outcomes = [_outcome(order, transaction) for order in orders]
                transaction.flush()
        except LedgerUnavailable as error:
            if error.uncertain and transaction is not None:
                self._remember(transaction, orders, outcomes)
            raise
        return self._finish(transaction, orders, outcomes)

    def _check_held(self, connection: sa.Connection) -> None:
        """Refuse a copy of the ledger that lacks an entry which another process on this machine saw committed."""
        held = self._held
        if held.entries > self._marked and hash_of(connection, held.entries) != held.head:
            raise rewound(held, "a copy of the ledger that went another way")

    def _finish(self, transaction: Transaction, orders: Sequence[Order], outcomes: list[object]) -> list[object]:
        """After the commit: count what was written, raise the mark, and say what may be answered."""
        with self._state.lock:
            for entry, its_hash in transaction.entries_written:
                if entry.seq > self._state.entries:
                    self._state.count(entry, its_hash)
                self._due = entry.seq
        touched = any(isinstance(order, Touch) for order in orders)
        if transaction.entries_written or transaction.taken or touched:
            try:
                self._raise_mark(test=touched)
            except LedgerUnavailable as error:
                self._remember(transaction, orders, outcomes)
                return [_uncertain(outcome, error) for outcome in outcomes]
        for outcome in outcomes:
            if isinstance(outcome, Charge):
                self._unanswered.pop((outcome.client, outcome.key), None)
        self._save_state(_SAVE_EVERY)
        return outcomes

    def _remember(self, transaction: Transaction, orders: Sequence[Order], outcomes: Sequence[object]) -> None:
        """Keep the charges of a transaction that nobody is told of."""
        hashes = {entry.seq: its_hash for entry, its_hash in transaction.entries_written}
        for order, outcome in zip(orders, outcomes, strict=False):
            if isinstance(order, Spend) and isinstance(outcome, Charge) and outcome.key and outcome.entry in hashes:
                made = Unanswered(outcome, order.request, hashes[outcome.entry])
                self._unanswered[outcome.client, outcome.key] = made
        while len(self._unanswered) > _MOST_UNANSWERED:
            del self._unanswered[next(iter(self._unanswered))]

    def _raise_mark(self, *, test: bool = False) -> None:
        with self._state.lock:
            position = self._state.position
        self._held = self.mark.raise_to(replace(position, at=self.now()), test=test)
        self._marked = position.entries

    def _save_state(self, least: int) -> None:
        """Keep the state beside the mark if it has grown by so many entries."""
        with self._state.lock:
            if self._state.entries - self._saved < least:
                return
            content, self._saved = self._state.to_dict(), self._state.entries
        self.mark.save_state(content, self._seal)


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


def _uncertain(outcome: object, error: LedgerUnavailable) -> object:
    """What is said of an outcome if the mark could not be written after the commit: what was changed is not certain."""
    if isinstance(outcome, AirlockError | Replay | int):
        return outcome
    why = "The charge may have been made; nothing was answered."
    return LedgerUnavailable(error.expected, error.found, why, error.do, uncertain=True)


def _begin(
    engine: sa.Engine, terms: Terms | None, kept: HighWaterMark, known: str | None, clock: Callable[[], float]
) -> None:
    """Create the tables and the first entry; if another process was faster, keep its own."""
    if known is not None:
        raise _another("no ledger in this place")
    if terms is None:
        raise ConfigError("a ledger in this place", "none", "A new one needs the terms of a release.")
    at = int(clock() * 1000)
    with kept.beginning(at) as (identity, seal), tables.writing(engine) as connection:
        tables.create_tables(connection)
        there = connection.execute(sa.select(tables.ledger.c.id)).scalar()
        if there is None:
            first = Entry(1, at, OPENED, "", 0, 0, "", "", terms.to_json(), FIRST_HASH)
            head = seal.hash(first.packed())
            connection.execute(sa.insert(tables.log), [vars(first) | {"hash": head}])
            row = {"one": 1, "id": identity, "terms": first.note, "cap": terms.cap, "spent": 0}
            connection.execute(sa.insert(tables.ledger), [row | {"entries": 1, "head": head}])
    if there not in (None, identity):
        kept.abandon(identity)


def _admitted(
    engine: sa.Engine, terms: Terms | None, kept: HighWaterMark, known: str | None, new_mark: bool, older: bool
) -> tuple[State, int, int]:
    """What the ledger's log says, if it is the one that is expected.

    Returns:
        The state, how many of its entries were known before, and the latest time that the mark has seen.
    """
    held = kept.read()
    with tables.reading(engine) as connection:
        row = connection.execute(sa.select(tables.ledger)).one()
        if known is not None and row.id != known:
            raise _another("another")
        if terms is not None and row.terms != terms.to_json():
            raise ConfigError(f"a ledger opened for {terms.to_json()}", row.terms, "A ledger's terms never change.")
        if held is None and not new_mark:
            raise LedgerBroken(
                "the high-water mark of a ledger that was opened before",
                "none",
                "Without it, a rewound budget cannot be detected.",
                "Find it; for a new replica run airlock ledger verify --new-mark.",
            )
        state, begun = verify.opened(connection, kept, held, row.id)
    if not state.keyed and held is None:
        _refuse_plain(kept.seal(row.id) is not None, older)
    return state, begun, held.at if held is not None else 0


def _refuse_plain(has_secret: bool, older: bool) -> None:
    """Without a mark, a log of plain hashes may be a keyed one that was replaced, with its budget back."""
    if has_secret:
        raise LedgerBroken(
            "hashes that are keyed",
            "plain ones",
            "The ledger has a secret, so its log was replaced, or it is a very old copy.",
            "Restore the newest database.",
        )
    if not older:
        raise LedgerBroken(
            "hashes that are keyed",
            "plain ones, and neither a mark nor a secret here",
            "Anyone who can write the database can make such a log, with its budget back.",
            "Restore the newest database; if the ledger is from before there were secrets, add --older to --new-mark.",
        )


def _another(found: str) -> LedgerBroken:
    return LedgerBroken(
        "the ledger that was opened first",
        found,
        "A second ledger would be a second budget for the same records.",
        "Name the place of the first one, with its newest database.",
    )
