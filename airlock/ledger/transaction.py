"""What a caller can order from the ledger, and the transaction that decides on it.

Costs are whole units: a cost is rounded up, a budget down, so that rounding never gives privacy away. The ledger adds
whole numbers and knows nothing about privacy. The cost must therefore be one that composes by addition: the ε of pure
DP, or the ρ of zero-concentrated DP; never the ε of an (ε, δ) computed for one query.

Orders. An order says whose rows it needs and is applied to a `Transaction`, together with other orders. Amounts and
names are checked when it is created, so that nothing free or negative reaches a transaction.

The transaction holds the lock, and what may be charged is decided in it. `Transaction` reads the rows that a batch of
orders needs, decides one order after another in memory, and writes the changes at the end. An order that is refused
raises before it has changed anything, so it does not affect the others in its batch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Protocol

import sqlalchemy as sa

from airlock.errors import ConfigError, Exhausted, KeyReused, LedgerBroken, UnknownKey
from airlock.ledger import tables
from airlock.ledger.chain import QUOTA, SPENT, Entry, Position, digest

# Whole units.

LARGEST = 2**62
Amount = int | float | str | Fraction


def cost_in_units(cost: Amount, unit: Amount) -> int:
    """The smallest number of units that pays for `cost`, at least 1.

    Numbers are taken exactly: the float 0.3 is a little less than three tenths, and 0.1 + 0.2 a little more than it,
    which then costs one unit more. Pass text ("0.3") or a Fraction where that unit matters.

    Raises:
        ConfigError: A number is not positive and finite, or the cost is more units than a ledger can count.
    """
    return _counted(math.ceil(_exact(cost, "cost") / _exact(unit, "unit")))


def budget_in_units(budget: Amount, unit: Amount) -> int:
    """The largest number of units that `budget` covers: the cap of a ledger.

    Raises:
        ConfigError: A number is not positive and finite, or the budget is less than one unit.
    """
    return _counted(math.floor(_exact(budget, "budget") / _exact(unit, "unit")))


def _exact(amount: Amount, name: str) -> Fraction:
    try:
        value = Fraction(amount)
    except (ValueError, OverflowError, ZeroDivisionError) as error:
        raise ConfigError(f"a positive number as {name}", repr(amount)[:40]) from error
    if value <= 0:
        raise ConfigError(f"a positive number as {name}", repr(amount)[:40], "Every answer costs something.")
    return value


def _counted(units: int) -> int:
    if not 1 <= units <= LARGEST:
        raise ConfigError(f"1 to {LARGEST:,} units", f"{units:,}", do="Choose another unit.")
    return units


# Orders.

LARGEST_ANSWER = 16 << 20
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_SHA = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Rules:
    """How long idempotency keys work.

    Attributes:
        replay_seconds: How long a stored answer can be replayed; after that, its key counts as unused.
        answer_seconds: How long a charged request without an answer counts as in progress; after that, its process is
            presumed dead, and the same request is charged again.
    """

    replay_seconds: float = 24 * 3600
    answer_seconds: float = 60


@dataclass(frozen=True)
class Charge:
    """What was paid for: draw noise for this many rows, once.

    Attributes:
        entry: Its number in the log.
        client: Who paid.
        rows: Answers that were paid for.
        units: What they cost in total.
        key: SHA-256 of the idempotency key, or empty.
        left: Units the client can still spend.
    """

    entry: int
    client: str
    rows: int
    units: int
    key: str
    left: int


@dataclass(frozen=True)
class Replay:
    """An answer that was given before, to be returned unchanged; nothing was charged."""

    entry: int
    body: bytes


class Order(Protocol):
    """Something to be done in a transaction, together with other orders."""

    @property
    def client(self) -> str:
        """Whose row is needed; empty for none."""

    @property
    def key_digest(self) -> str:
        """Which idempotency key's row is needed; empty for none."""

    def apply(self, transaction: Transaction) -> object:
        """Carry it out; a refusal is raised before anything is changed."""


@dataclass(frozen=True)
class Spend:
    """Pay for the answers to one request.

    Args:
        client: Who pays.
        units: The cost of one row, in whole units.
        rows: How many rows; all of them are paid for, or none.
        request: SHA-256 of the canonical request (model, inputs, parameters), 64 hexadecimal digits.
        key: The client's idempotency key, if any.
    """

    client: str
    units: int
    request: str
    rows: int = 1
    key: str | None = None

    def __post_init__(self) -> None:
        for name, value in (("units", self.units), ("rows", self.rows)):
            if type(value) is not int or not 1 <= value <= LARGEST:
                raise ConfigError(f"a whole number from 1 as {name}", repr(value)[:40], "There is no free answer.")
        if not _SHA.fullmatch(self.request):
            raise ConfigError("64 hexadecimal digits as request", "something else", "The log keeps a digest only.")
        if self.key is not None and not 1 <= len(self.key) <= 255:
            raise ConfigError("an idempotency key of 1 to 255 characters", f"{len(self.key)}")

    @property
    def key_digest(self) -> str:
        """The log and the tables hold only a digest: how a client names its requests is private to it."""
        return digest(self.key) if self.key is not None else ""

    def apply(self, transaction: Transaction) -> Charge | Replay:
        """Charge, or find the answer given before."""
        return transaction.charge(self)


@dataclass(frozen=True)
class Keep:
    """Store the answer to a charge, so that its idempotency key replays it."""

    charge: Charge
    body: bytes

    def __post_init__(self) -> None:
        if len(self.body) > LARGEST_ANSWER:
            raise ConfigError(f"an answer of at most {LARGEST_ANSWER:,} bytes", f"{len(self.body):,}")

    @property
    def client(self) -> str:
        """The client whose answer it is."""
        return self.charge.client

    @property
    def key_digest(self) -> str:
        """The key under which it is stored."""
        return self.charge.key

    def apply(self, transaction: Transaction) -> bool:
        """Whether it was stored: not if the key has been charged again since, or already holds an answer."""
        return transaction.keep(self.charge, self.body)


@dataclass(frozen=True)
class SetQuota:
    """Register a client, with a limit of its own or (None) no limit below the cap."""

    client: str
    quota: int | None
    key_digest: str = ""

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.client):
            raise ConfigError("1 to 64 letters, digits and . _ @ - as a client's name", repr(self.client)[:80])
        if self.quota is not None and not (type(self.quota) is int and 0 <= self.quota <= LARGEST):
            raise ConfigError("a whole number of units as quota", repr(self.quota)[:40])

    def apply(self, transaction: Transaction) -> None:
        """Write it into the log and the client's row."""
        transaction.set_quota(self.client, self.quota)


@dataclass(frozen=True)
class Forget:
    """Drop stored answers that have expired."""

    client: str = ""
    key_digest: str = ""

    def apply(self, transaction: Transaction) -> int:
        """How many were dropped."""
        return transaction.forget()


# The rows inside one transaction.

# Built once: building a statement costs as much as running it.
_LOCKED = sa.select(tables.ledger).with_for_update()
_APPEND = sa.insert(tables.log)
_ADVANCE = (
    sa.update(tables.ledger)
    .where(
        tables.ledger.c.entries == sa.bindparam("entries_before"), tables.ledger.c.head == sa.bindparam("head_before")
    )
    .values({name: sa.bindparam(name) for name in ("spent", "entries", "head")})
)
_REPLACE = {
    table.name: (
        sa.delete(table).where(*(column == sa.bindparam(f"its_{column.name}") for column in table.primary_key)),
        sa.insert(table),
    )
    for table in (tables.clients, tables.answers)
}


@dataclass(frozen=True)
class _Account:
    name: str
    quota: int | None
    spent: int


@dataclass(frozen=True)
class _Answer:
    client: str
    key: str
    request: str
    entry: int
    at: int
    body: bytes | None


@dataclass
class Transaction:
    """The rows of one transaction; `open` takes the lock, `flush` writes."""

    connection: sa.Connection
    now: int
    rules: Rules
    id: str = ""
    cap: int = 0
    spent: int = 0
    entries: int = 0
    head: str = ""
    terms: str = ""
    _before: Position | None = None
    _accounts: dict[str, _Account] = field(default_factory=dict)
    _answers: dict[tuple[str, str], _Answer] = field(default_factory=dict)
    _log: list[Entry] = field(default_factory=list)
    _touched_accounts: set[str] = field(default_factory=set)
    _touched_answers: set[tuple[str, str]] = field(default_factory=set)

    @classmethod
    def open(cls, connection: sa.Connection, now: int, rules: Rules, orders: Sequence[Order] = ()) -> Transaction:
        """Take the lock, then read what the orders need."""
        row = connection.execute(_LOCKED).one_or_none()
        if row is None:
            raise LedgerBroken(
                "a ledger in this database", "none", "It was removed.", "Restore it, or start a new one."
            )
        transaction = cls(connection, now, rules, row.id, row.cap, row.spent, row.entries, row.head, row.terms)
        transaction._before = transaction.position
        transaction._load(orders)
        return transaction

    @classmethod
    def read(cls, connection: sa.Connection, rules: Rules, client: str = "") -> Transaction:
        """The current state, without the lock: nothing may be charged in this transaction."""
        row = connection.execute(sa.select(tables.ledger)).one()
        transaction = cls(connection, 0, rules, row.id, row.cap, row.spent, row.entries, row.head, row.terms)
        transaction._load([SetQuota(client, None)] if client else [])
        return transaction

    @classmethod
    def look_up(cls, connection: sa.Connection, now: int, rules: Rules, spend: Spend) -> Replay | None:
        """The answer that a request received before, without the lock; raises `KeyReused` as `charge` does."""
        transaction = cls(connection, now, rules)
        transaction._load([spend])
        held = transaction._held(spend)
        return Replay(held.entry, held.body) if held is not None and held.body is not None else None

    def balance(self, client: str = "") -> tuple[int | None, int, int]:
        """The limit, what was spent of it and what remains, for one client or (empty) for all together."""
        if not client:
            return self.cap, self.spent, self.cap - self.spent
        account = self._account(client)
        return account.quota, account.spent, self._left(account)

    @property
    def position(self) -> Position:
        """How far the ledger has progressed, including this transaction."""
        return Position(self.id, self.entries, self.head)

    @property
    def moved(self) -> bool:
        """Whether this transaction adds to the log."""
        return bool(self._log)

    def hash_of(self, seq: int) -> str | None:
        """The stored hash of an entry from before this transaction."""
        found: str | None = self.connection.scalar(sa.select(tables.log.c.hash).where(tables.log.c.seq == seq))
        return found

    def charge(self, spend: Spend) -> Charge | Replay:
        """Check and debit: the client's quota, the cap, and whether the key was seen before.

        Raises:
            UnknownKey: There is no such client.
            KeyReused: The key was used for another request, or its request is in progress.
            Exhausted: The quota or the cap does not cover all rows.
        """
        account = self._account(spend.client)
        held = self._held(spend)
        if held is not None and held.body is not None:
            return Replay(held.entry, held.body)
        total = spend.units * spend.rows
        if account.quota is not None and total > account.quota - account.spent:
            raise Exhausted(total, account.quota - account.spent, "this client's quota")
        if total > self.cap - self.spent:
            raise Exhausted(total, self.cap - self.spent, "the budget")
        self.spent += total
        account = self._put(replace(account, spent=account.spent + total))
        seq = self._append(SPENT, spend.client, spend.rows, total, spend.request, spend.key_digest)
        if spend.key is not None:
            self._put_answer(_Answer(spend.client, spend.key_digest, spend.request, seq, self.now, None))
        return Charge(seq, spend.client, spend.rows, total, spend.key_digest, self._left(account))

    def _held(self, spend: Spend) -> _Answer | None:
        """What the key holds, if this request may use it."""
        held = self._answers.get((spend.client, spend.key_digest)) if spend.key is not None else None
        if held is None or self._is_over(held):
            return None
        if held.request != spend.request:
            raise KeyReused("a new idempotency key for a new request", "one already used", "Nothing was charged.")
        if held.body is None and self.now - held.at < self.rules.answer_seconds * 1000:
            raise KeyReused(
                "an idempotency key whose request is not in progress", "one that is", "Nothing was charged.", "Wait."
            )
        return held

    def keep(self, charge: Charge, body: bytes) -> bool:
        """Store an answer if its charge is still the key's current one and has no answer yet."""
        held = self._answers.get((charge.client, charge.key)) if charge.key else None
        if held is None or held.entry != charge.entry or held.body is not None:
            return False
        self._put_answer(replace(held, body=body, at=self.now))
        return True

    def set_quota(self, name: str, quota: int | None) -> None:
        """A limit below what is already spent leaves nothing to spend: what was charged stays charged."""
        account = self._accounts.get(name, _Account(name, None, 0))
        limit = None if quota is None else max(quota, account.spent)
        if name in self._accounts and account.quota == limit:
            return
        self._put(replace(account, quota=limit))
        self._append(QUOTA, name, note="" if limit is None else str(limit))

    def forget(self) -> int:
        """Drop stored answers that have expired."""
        old = self.now - int(self.rules.replay_seconds * 1000)
        return self.connection.execute(sa.delete(tables.answers).where(tables.answers.c.at <= old)).rowcount

    def flush(self) -> None:
        """Write the changes; the state row only if nobody else changed it, which the lock rules out."""
        if self._touched_accounts:
            self._replace_rows(tables.clients, [self._accounts[name] for name in self._touched_accounts])
        if self._touched_answers:
            self._replace_rows(tables.answers, [self._answers[key] for key in self._touched_answers])
        if not self._log or self._before is None:
            return
        self.connection.execute(_APPEND, [vars(entry) | {"hash": entry.hash} for entry in self._log])
        before = {"entries_before": self._before.entries, "head_before": self._before.head}
        after = {"spent": self.spent, "entries": self.entries, "head": self.head}
        changed = self.connection.execute(_ADVANCE, before | after)
        if changed.rowcount != 1:
            raise LedgerBroken("the ledger's lock to hold", "that another changed the ledger", "Nothing was charged.")

    def _replace_rows(self, table: sa.Table, rows: Sequence[_Account | _Answer]) -> None:
        delete, insert = _REPLACE[table.name]
        self.connection.execute(
            delete, [{f"its_{key.name}": getattr(row, key.name) for key in table.primary_key} for row in rows]
        )
        self.connection.execute(insert, [vars(row) for row in rows])

    def _load(self, orders: Sequence[Order]) -> None:
        if names := {order.client for order in orders if NAME.fullmatch(order.client)}:
            found = self.connection.execute(sa.select(tables.clients).where(tables.clients.c.name.in_(sorted(names))))
            self._accounts = {row.name: _Account(row.name, row.quota, row.spent) for row in found}
        if wanted := {
            (order.client, order.key_digest) for order in orders if order.key_digest and order.client in names
        }:
            t = tables.answers
            found = self.connection.execute(sa.select(t).where(sa.tuple_(t.c.client, t.c.key).in_(sorted(wanted))))
            self._answers = {
                (row.client, row.key): _Answer(row.client, row.key, row.request, row.entry, row.at, row.body)
                for row in found
            }

    def _account(self, name: str) -> _Account:
        if name not in self._accounts:
            raise UnknownKey(
                "a client of this ledger", "an unknown one", "Nothing was charged.", "Add it: airlock keys add."
            )
        return self._accounts[name]

    def _left(self, account: _Account) -> int:
        left = self.cap - self.spent
        return left if account.quota is None else min(left, account.quota - account.spent)

    def _is_over(self, held: _Answer) -> bool:
        return self.now - held.at >= self.rules.replay_seconds * 1000

    def _put(self, account: _Account) -> _Account:
        self._accounts[account.name] = account
        self._touched_accounts.add(account.name)
        return account

    def _put_answer(self, answer: _Answer) -> None:
        self._answers[answer.client, answer.key] = answer
        self._touched_answers.add((answer.client, answer.key))

    def _append(
        self, kind: str, client: str, rows: int = 0, units: int = 0, request: str = "", key: str = "", note: str = ""
    ) -> int:
        entry = Entry(self.entries + 1, self.now, kind, client, rows, units, request, key, note, self.head)
        self._log.append(entry)
        self.entries, self.head = entry.seq, entry.hash
        return entry.seq
