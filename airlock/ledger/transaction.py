"""What a caller can order from the ledger, and the transaction that decides on it.

Orders. An order says whose rows it needs and is applied to a `Transaction`, together with other orders. Amounts and
names are checked when it is created, so that nothing free or negative reaches a transaction.

The transaction holds the lock, and what may be charged is decided in it. `Transaction` takes the totals from the state
that the log adds up to, compares the rows that a batch of orders needs with it, decides one order after another in
memory, and writes the changes at the end. An order that is refused raises before it has changed anything, so it does
not affect the others in its batch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import sqlalchemy as sa

from airlock.errors import ConfigError, Exhausted, KeyReused, LedgerBroken, UnknownKey
from airlock.ledger import tables
from airlock.ledger.chain import KEY, KEYED, QUOTA, SPENT, Entry, Seal, digest
from airlock.ledger.reservations import OpenReservation
from airlock.ledger.state import Key, State, Wrong, bring_up_to_date, hash_of, keys_in
from airlock.ledger.units import LARGEST

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
class SetKey:
    """Write a key into the log: a new one, or one that is revoked."""

    key: Key
    token: str
    client: str = ""
    key_digest: str = ""

    def apply(self, transaction: Transaction) -> None:
        """Write it into the log and its row."""
        transaction.set_key(self.key, self.token)


@dataclass(frozen=True)
class Forget:
    """Drop stored answers that have expired."""

    client: str = ""
    key_digest: str = ""

    def apply(self, transaction: Transaction) -> int:
        """How many were dropped."""
        return transaction.forget()


@dataclass(frozen=True)
class Touch:
    """Write something that changes nothing, to find out whether that is possible."""

    client: str = ""
    key_digest: str = ""

    def apply(self, transaction: Transaction) -> None:
        """Write the ledger's row as it is."""
        transaction.connection.execute(sa.update(tables.ledger).values(one=1))


@dataclass(frozen=True)
class Upgrade:
    """Key the hashes of a ledger from before there was a secret, and bring its keys into the log."""

    client: str = ""
    key_digest: str = ""

    def apply(self, transaction: Transaction) -> None:
        """One entry that covers all before it, and one or two for each key."""
        transaction.upgrade()


# The rows inside one transaction.

# Built once: building a statement costs as much as running it.
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
    for table in (tables.clients, tables.answers, tables.keys)
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


@dataclass(frozen=True)
class Unanswered:
    """A charge that was made, or may have been, and that nobody was told of: no noise was drawn for it."""

    charge: Charge
    request: str
    hash: str


Names = tuple[str, str]  # a client, and the digest of its idempotency key


@dataclass
class Transaction:
    """The rows of one transaction; `open` takes the lock, `flush` writes.

    Attributes:
        state: What the log says; changed by `flush`'s caller once the commit has succeeded (`entries_written`).
        unanswered: Charges that may be handed out instead of new ones; those that were are in `taken`.
    """

    connection: sa.Connection
    now: int
    rules: Rules
    state: State
    seal: Seal | None = None
    unanswered: Mapping[Names, Unanswered] = field(default_factory=dict)
    taken: set[Names] = field(default_factory=set)
    cap: int = 0
    spent: int = 0
    entries: int = 0
    head: str = ""
    _accounts: dict[str, _Account] = field(default_factory=dict)
    _answers: dict[Names, _Answer] = field(default_factory=dict)
    _keys: dict[str, tuple[Key, str]] = field(default_factory=dict)
    reservations: dict[int, OpenReservation] = field(default_factory=dict)
    _log: list[tuple[Entry, str]] = field(default_factory=list)
    _touched_accounts: set[str] = field(default_factory=set)
    _touched_answers: set[Names] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.cap, self.spent = self.state.cap, self.state.spent
        self.entries, self.head = self.state.entries, self.state.head
        self.reservations = dict(self.state.reservations)

    @classmethod
    def open(
        cls,
        connection: sa.Connection,
        now: int,
        rules: Rules,
        state: State,
        seal: Seal | None,
        orders: Sequence[Order] = (),
        unanswered: Mapping[Names, Unanswered] | None = None,
    ) -> Transaction:
        """Take the lock, bring the state up to date, then read what the orders need.

        Raises:
            LedgerBroken: The ledger was tampered with, rewound or replaced since its state was verified.
        """
        bring_up_to_date(connection, state, seal, state.entries, lock=True)
        transaction = cls(connection, max(now, state.at), rules, state, seal, unanswered or {})
        transaction._load(orders)
        return transaction

    @classmethod
    def look_up(cls, connection: sa.Connection, now: int, rules: Rules, spend: Spend) -> Replay | None:
        """The answer that a request received before, without the lock; raises `KeyReused` as `charge` does."""
        transaction = cls(connection, now, rules, State(""))
        transaction._load_answers([spend])
        held = transaction._held(spend)
        return Replay(held.entry, held.body) if held is not None and held.body is not None else None

    @property
    def entries_written(self) -> list[tuple[Entry, str]]:
        """What this transaction adds to the log, with the hashes."""
        return self._log

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
        if (made := self._unanswered(spend, held, total)) is not None:
            return replace(made, left=self._left(account))
        if account.quota is not None and total > account.quota - account.spent:
            raise Exhausted(total, account.quota - account.spent, "this client's quota")
        if total > self.cap - self.spent:
            raise Exhausted(total, self.cap - self.spent, "the budget")
        self.spent += total
        account = self._put(replace(account, spent=account.spent + total))
        seq = self.append(SPENT, spend.client, spend.rows, total, spend.request, spend.key_digest)
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
        waits = (spend.client, spend.key_digest) in self.unanswered
        if held.body is None and not waits and self.now - held.at < self.rules.answer_seconds * 1000:
            raise _in_progress()
        return held

    def _unanswered(self, spend: Spend, held: _Answer | None, total: int) -> Charge | None:
        """The charge that this very request made before and was not told of; it is handed out once."""
        names = (spend.client, spend.key_digest)
        made = self.unanswered.get(names) if spend.key is not None else None
        if made is None or held is None or held.entry != made.charge.entry:
            return None
        same = (made.request, made.charge.units, made.charge.rows) == (spend.request, total, spend.rows)
        if not same or hash_of(self.connection, made.charge.entry) != made.hash:
            return None
        if names in self.taken:
            raise _in_progress()
        self.taken.add(names)
        return made.charge

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
        self.append(QUOTA, name, note="" if limit is None else str(limit))

    def set_key(self, key: Key, token: str) -> None:
        """Issue a key, or revoke one; what another process has revoked stays as it is."""
        held, stored = self._keys.get(key.id) or self.state.keys.get(key.id) or (None, token)
        if stored != token or (held is not None and key.revoked is None):
            raise ConfigError("a key's name that is not in use", "one that is", do="Issue another.")
        if held is not None and held.revoked is not None:
            return
        if key.client and key.client not in self.state.accounts and key.client not in self._accounts:
            raise unknown_client()
        self._keys[key.id] = (key, token)
        self.append(KEY, key.client, key=token, note=key.note())

    def upgrade(self) -> None:
        """Cover all entries so far by one whose hash is keyed; the keys of that time come into the log as they are."""
        if self.state.keyed:
            return
        self.append(KEYED, "")
        for key, token in keys_in(self.connection).values():
            self.set_key(key, token)

    def forget(self) -> int:
        """Drop stored answers that have expired."""
        old = self.now - int(self.rules.replay_seconds * 1000)
        return self.connection.execute(sa.delete(tables.answers).where(tables.answers.c.at <= old)).rowcount

    def flush(self) -> None:
        """Write the changes; the state row only if nobody else changed it, which the lock rules out."""
        if self._touched_accounts:
            self._replace_rows(tables.clients, [vars(self._accounts[name]) for name in self._touched_accounts])
        if self._touched_answers:
            self._replace_rows(tables.answers, [vars(self._answers[names]) for names in self._touched_answers])
        if self._keys:
            self._replace_rows(tables.keys, [vars(key) | {"hash": token} for key, token in self._keys.values()])
        if not self._log:
            return
        self.connection.execute(_APPEND, [vars(entry) | {"hash": its_hash} for entry, its_hash in self._log])
        before = {"entries_before": self.state.entries, "head_before": self.state.head}
        after = {"spent": self.spent, "entries": self.entries, "head": self.head}
        changed = self.connection.execute(_ADVANCE, before | after)
        if changed.rowcount != 1:
            raise LedgerBroken("the ledger's lock to hold", "that another changed the ledger", "Nothing was charged.")
        self._check_written()

    def _check_written(self) -> None:
        """Read the new entries back: a trigger of whoever can write the database may have dropped or changed them."""
        t = tables.log
        found = self.connection.execute(sa.select(t.c.seq, t.c.hash).where(t.c.seq > self.state.entries))
        if {row.seq: row.hash for row in found} != {entry.seq: its_hash for entry, its_hash in self._log}:
            raise LedgerBroken(
                "what was written to the log to be in it",
                "something else",
                "Nothing was charged.",
                "Remove what changes it in the database: a trigger or a rule that is not Airlock's.",
            )

    def _replace_rows(self, table: sa.Table, rows: Sequence[Mapping[str, object]]) -> None:
        delete, insert = _REPLACE[table.name]
        self.connection.execute(
            delete, [{f"its_{key.name}": row[key.name] for key in table.primary_key} for row in rows]
        )
        self.connection.execute(insert, list(rows))

    def _load(self, orders: Sequence[Order]) -> None:
        """Read the rows of the orders' clients and keys; a client's must be what the log says.

        Raises:
            LedgerBroken: One is not.
        """
        names = {order.client for order in orders if NAME.fullmatch(order.client)}
        if names:
            found = self.connection.execute(sa.select(tables.clients).where(tables.clients.c.name.in_(sorted(names))))
            stored = {row.name: (row.quota, row.spent) for row in found}
            known = {name: self.state.accounts[name] for name in names if name in self.state.accounts}
            if stored != known:
                raise Wrong("the clients' totals do not match the log").told()
            self._accounts = {name: _Account(name, *values) for name, values in known.items()}
        self._load_answers(orders)

    def _load_answers(self, orders: Sequence[Order]) -> None:
        if wanted := {
            (order.client, order.key_digest) for order in orders if order.key_digest and NAME.fullmatch(order.client)
        }:
            t = tables.answers
            found = self.connection.execute(sa.select(t).where(sa.tuple_(t.c.client, t.c.key).in_(sorted(wanted))))
            self._answers = {
                (row.client, row.key): _Answer(row.client, row.key, row.request, row.entry, row.at, row.body)
                for row in found
            }

    def _account(self, name: str) -> _Account:
        if name not in self._accounts:
            raise unknown_client()
        return self._accounts[name]

    def _left(self, account: _Account) -> int:
        return left_of(self.cap - self.spent, account.quota, account.spent)

    def _is_over(self, held: _Answer) -> bool:
        return self.now - held.at >= self.rules.replay_seconds * 1000

    def _put(self, account: _Account) -> _Account:
        self._accounts[account.name] = account
        self._touched_accounts.add(account.name)
        return account

    def _put_answer(self, answer: _Answer) -> None:
        self._answers[answer.client, answer.key] = answer
        self._touched_answers.add((answer.client, answer.key))

    def append(
        self, kind: str, client: str, rows: int = 0, units: int = 0, request: str = "", key: str = "", note: str = ""
    ) -> int:
        """Add an entry to the log; its number."""
        assert self.seal is not None
        entry = Entry(self.entries + 1, self.now, kind, client, rows, units, request, key, note, self.head)
        its_hash = self.seal.hash(entry.packed())
        self._log.append((entry, its_hash))
        self.entries, self.head = entry.seq, its_hash
        return entry.seq


def left_of(left: int, quota: int | None, spent: int) -> int:
    """What a client can still spend, of what is left of the budget."""
    return left if quota is None else min(left, quota - spent)


def unknown_client() -> UnknownKey:
    """The refusal of a client that the log does not name."""
    return UnknownKey("a client of this ledger", "an unknown one", "Nothing was charged.", "Add it: airlock keys add.")


def _in_progress() -> KeyReused:
    return KeyReused(
        "an idempotency key whose request is not in progress", "one that is", "Nothing was charged.", "Wait."
    )
