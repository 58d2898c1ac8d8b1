"""What the log says: totals, limits and keys, from entries whose hashes were verified.

The tables of totals, clients and keys are a cache for readers of the database. What may be charged, and who may ask, is
decided by this state, which is made from the log alone: walked in full, or from a state that was verified before and
kept beside the mark. A table that disagrees was changed by someone else (`differs`), and the ledger is refused.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import sqlalchemy as sa

from airlock.errors import LedgerBroken
from airlock.ledger import tables
from airlock.ledger.chain import FIRST_HASH, KEY, KEYED, OPENED, QUOTA, RESERVED, SPENT, Entry, Position, Seal
from airlock.ledger.reservations import FOLLOWING, NotOpen, OpenReservation, advanced, of_entry

Row = tuple[Any, ...]  # the fields of an entry, then its stored hash

_PAGE = 20_000
_NOBODY: tuple[int | None, int] = (0, -1)
# Built once: building a statement costs as much as running it.
_CURRENT = sa.select(tables.ledger)
_LOCKED = _CURRENT.with_for_update()
_AFTER = (
    sa.select(*[tables.log.c[name] for name in Entry.__dataclass_fields__], tables.log.c.hash)
    .where(tables.log.c.seq > sa.bindparam("after"))
    .order_by(tables.log.c.seq)
    .limit(_PAGE)
)


@dataclass(frozen=True)
class Key:
    """What is known about a key; times in milliseconds since 1970. An admin key has no client and cannot spend."""

    id: str
    client: str
    admin: bool
    created: int
    expires: int | None
    revoked: int | None

    def state(self, now: int) -> str:
        """`valid`, `expired` or `revoked`."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and now >= self.expires else "valid"

    def note(self) -> str:
        """What an entry holds about it beside its client and the digest of its token."""
        return json.dumps({name: value for name, value in asdict(self).items() if name != "client"}, sort_keys=True)


class Wrong(Exception):
    """The first thing that is wrong with a log, and the number of its entry if it is in one."""

    def __init__(self, says: str, entry: int | None = None) -> None:
        super().__init__(says)
        self.says, self.entry = says, entry

    def told(self) -> LedgerBroken:
        """The refusal of such a ledger."""
        where = "" if self.entry is None else f" at entry {self.entry:,}"
        return LedgerBroken(
            "a log and tables that agree with each other",
            f"that {self.says}{where}",
            "Someone else has written to the database: its budget is not what was spent.",
            "Nothing is answered. Run airlock ledger verify, and restore the newest database.",
        )


@dataclass
class State:
    """What the entries so far add up to.

    Attributes:
        ledger: The ledger's identity.
        keyed: Whether the hashes are keyed from here on.
        entries: How many entries it knows.
        head: The hash of the last one.
        at: The largest time in one.
        terms: What the first one says.
        cap: The most that may be spent, from the terms.
        spent: What was charged in total.
        accounts: Each client's quota and what it has spent.
        keys: Each key by its name, with the digest of its token.
        reservations: In a register, those that are neither returned nor released, by the number of their entry.
        lock: Held by a thread that extends it.
    """

    ledger: str
    keyed: bool = False
    entries: int = 0
    head: str = FIRST_HASH
    at: int = 0
    terms: str = ""
    cap: int = 0
    spent: int = 0
    accounts: dict[str, tuple[int | None, int]] = field(default_factory=dict)
    keys: dict[str, tuple[Key, str]] = field(default_factory=dict)
    reservations: dict[int, OpenReservation] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def position(self) -> Position:
        """Where it stands."""
        return Position(self.ledger, self.entries, self.head, self.at, self.keyed)

    def extend(self, rows: Iterable[Row], seal: Seal | None) -> None:
        """Verify the rows that follow and count them; the hashes of a ledger's first rows may be plain.

        Raises:
            Wrong: A row is missing, was changed, or may not follow; what was before it is counted.
        """
        rows = iter(rows)
        try:
            for row in rows:
                if not self.keyed and not (seal is not None and self._keys_begin(row, seal)):
                    self._extend_plain(row)
                    continue
                self.keyed = True
                assert seal is not None
                self._extend_keyed(itertools.chain([row], rows), seal)
        except TypeError as error:  # SQLite stores text in a column for numbers, if someone wants it to
            raise Wrong("a field has the wrong type", self.entries + 1) from error

    def _keys_begin(self, row: Row, seal: Seal) -> bool:
        """Whether the keyed part begins here: at the first entry, or at one of the kind `keyed`."""
        if row[2] == KEYED:
            return True
        return not self.entries and seal.hash("\n".join(map(str, row[:-1])).encode()) == row[-1]

    def _extend_plain(self, row: Row) -> None:
        entry = Entry(*row[:-1])
        if entry.seq != self.entries + 1 or entry.previous != self.head:
            raise _broken_link(entry.seq, self.entries + 1)
        if entry.plain_hash() != row[-1] or entry.kind in (KEYED, KEY):
            raise Wrong("its content was changed", entry.seq)
        self.count(entry, row[-1])

    def _extend_keyed(self, rows: Iterator[Row], seal: Seal) -> None:
        """The walk itself, a million times: in local names, and with charges counted here, since nearly all are."""
        inner_of, outer_of, accounts = seal.inner.copy, seal.outer.copy, self.accounts
        entries, head, latest, total, cap = self.entries, self.head, self.at, self.spent, self.cap
        try:
            for seq, at, kind, client, count, units, request, key, note, previous, stored in rows:
                if seq != entries + 1 or previous != head:
                    raise _broken_link(seq, entries + 1)
                inner, outer = inner_of(), outer_of()
                inner.update(
                    f"{seq}\n{at}\n{kind}\n{client}\n{count}\n{units}\n{request}\n{key}\n{note}\n{head}".encode()
                )
                outer.update(inner.digest())
                if outer.hexdigest() != stored:
                    raise Wrong("its content was changed", seq)
                if kind == SPENT:
                    quota, spent = accounts.get(client, _NOBODY)
                    if units < 1 or count < 1 or spent < 0:
                        raise Wrong("it charges nothing, or no client", seq)
                    if total + units > cap or (quota is not None and spent + units > quota):
                        raise Wrong("it spends more than was left", seq)
                    total += units
                    accounts[client] = (quota, spent + units)
                else:
                    self.spent = total
                    self._count_rare(Entry(seq, at, kind, client, count, units, request, key, note, previous))
                    total, cap = self.spent, self.cap
                if at > latest:
                    latest = at
                entries, head = seq, stored
        finally:
            self.entries, self.head, self.at, self.spent = entries, head, latest, total

    def count(self, entry: Entry, its_hash: str) -> None:
        """Count an entry whose hash is known to be right.

        Raises:
            Wrong: It may not follow.
        """
        if entry.kind == SPENT:
            self._spend(entry.seq, entry.client, entry.rows, entry.units)
        else:
            self._count_rare(entry)
        self.at = max(self.at, entry.at)
        self.entries, self.head = entry.seq, its_hash

    def _spend(self, seq: int, client: str, rows: int, units: int) -> None:
        quota, spent = self.accounts.get(client, _NOBODY)
        if units < 1 or rows < 1 or spent < 0:
            raise Wrong("it charges nothing, or no client", seq)
        if self.spent + units > self.cap or (quota is not None and spent + units > quota):
            raise Wrong("it spends more than was left", seq)
        self.spent += units
        self.accounts[client] = (quota, spent + units)

    def _count_rare(self, entry: Entry) -> None:
        if (entry.kind == OPENED) != (entry.seq == 1):
            raise Wrong("only the first entry may open the log", entry.seq)
        try:
            if entry.kind == OPENED:
                self.terms, self.cap = entry.note, int(json.loads(entry.note)["cap"])
            elif entry.kind == QUOTA:
                limit = int(entry.note) if entry.note else None
                self.accounts[entry.client] = (limit, self.accounts.get(entry.client, (None, 0))[1])
            elif entry.kind == KEY:
                self._set_key(entry)
            elif entry.kind == KEYED:
                self.keyed = True
            elif entry.kind == RESERVED or entry.kind in FOLLOWING:
                self._count_reservation(entry)
            else:
                raise Wrong("its kind is unknown", entry.seq)
        except (ValueError, KeyError) as error:
            raise Wrong("its note cannot be read", entry.seq) from error

    def _count_reservation(self, entry: Entry) -> None:
        """What a register reserves, and what became of it; a service's ledger has none, so it returns nothing."""
        if not self.is_register:
            raise Wrong("it reserves in a ledger that is no register", entry.seq)
        if entry.kind == RESERVED:
            if entry.units < 1 or self.spent + entry.units > self.cap:
                raise Wrong("it spends nothing, or more than was left", entry.seq)
            self.spent += entry.units
            self.reservations[entry.seq] = of_entry(entry)
            return
        number = int(json.loads(entry.note)["of"])
        try:
            self.spent -= advanced(self.reservations, number, entry.kind, entry.key)
        except NotOpen as error:
            raise Wrong("it follows no reservation that is open for it", entry.seq) from error
        if entry.units:
            raise Wrong("it has units of its own", entry.seq)

    @property
    def is_register(self) -> bool:
        """Whether the terms are those of a register, which reserves; any other ledger spends at once."""
        return "register" in json.loads(self.terms or "{}")

    def _set_key(self, entry: Entry) -> None:
        """A key is issued once, for a client that is known or for the admin; after that it can only be revoked."""
        key = Key(client=entry.client, **json.loads(entry.note))
        held = self.keys.get(key.id)
        if key.admin == bool(key.client) or (key.client and key.client not in self.accounts):
            raise Wrong("it is a key of no client", entry.seq)
        if held is not None and (held[1] != entry.key or not _only_revoked(held[0], key)):
            raise Wrong("it changes a key other than by revoking it", entry.seq)
        self.keys[key.id] = (key, entry.key)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, to be kept beside the mark."""
        plain = {name: value for name, value in vars(self).items() if name not in ("keys", "reservations", "lock")}
        plain |= {"keys": [[asdict(key), token] for key, token in self.keys.values()]}
        return plain | {"reservations": [asdict(one) for one in self.reservations.values()]}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> State:
        """The inverse of `to_dict`."""
        accounts = {name: (quota, spent) for name, (quota, spent) in content["accounts"].items()}
        keys = {fields["id"]: (Key(**fields), token) for fields, token in content["keys"]}
        held = [OpenReservation(**fields) for fields in content.get("reservations", [])]
        open_ones = {"reservations": {one.entry: one for one in held}}
        return cls(**(content | {"accounts": accounts, "keys": keys} | open_ones))


def _broken_link(seq: int, expected: int) -> Wrong:
    if seq != expected:
        return Wrong(f"entry {expected} is missing", expected)
    return Wrong("it does not follow from the previous entry", seq)


def _only_revoked(held: Key, key: Key) -> bool:
    return held.revoked is None and key.revoked is not None and asdict(held) == asdict(key) | {"revoked": None}


def follow(connection: sa.Connection, state: State, seal: Seal | None) -> None:
    """Walk the entries that a state does not know yet; one pass, a page at a time.

    Raises:
        Wrong: As `State.extend` does.
    """
    while True:
        before = state.entries
        result = connection.execute(_AFTER, {"after": before})
        rows: Any = result.cursor  # the driver's own rows: SQLAlchemy's cost as much as the hashes
        state.extend(rows, seal)
        result.close()
        if state.entries - before < _PAGE:
            return


def bring_up_to_date(
    connection: sa.Connection, state: State, seal: Seal | None, known: int, *, lock: bool = False
) -> None:
    """Read the ledger's row, walk the entries that a state does not know yet, and compare the row with it.

    Args:
        connection: A transaction; whoever writes takes the lock with its first read.
        state: Shared by the threads of a process; it may already be newer than this transaction.
        seal: The seal of the ledger's hashes.
        known: How many entries the state knew before the transaction began.
        lock: Take the ledger's lock.

    Raises:
        LedgerBroken: The ledger was removed, tampered with, rewound or replaced.
    """
    row = connection.execute(_LOCKED if lock else _CURRENT).one_or_none()
    if row is None:
        raise LedgerBroken("a ledger in this database", "none", "It was removed.", "Restore it, or start a new one.")
    with state.lock:
        if row.id != state.ledger:
            raise rewound(state.position, "another ledger")
        if row.entries < known:
            raise rewound(state.position, f"{row.entries:,} entries")
        if known <= row.entries < state.entries:
            return
        try:
            _catch_up(connection, row, state, seal)
        except Wrong as wrong:
            raise wrong.told() from wrong


def _catch_up(connection: sa.Connection, row: sa.Row[tuple[Any, ...]], state: State, seal: Seal | None) -> None:
    if row.entries == state.entries and row.head != state.head:
        raise rewound(state.position, "another entry at that number")
    if row.entries > state.entries:
        if hash_of(connection, state.entries) != state.head:
            raise rewound(state.position, "another entry at that number")
        follow(connection, state, seal)
    check_row(row, state)


def hash_of(connection: sa.Connection, seq: int) -> str | None:
    """The stored hash of an entry."""
    found: str | None = connection.scalar(sa.select(tables.log.c.hash).where(tables.log.c.seq == seq))
    return found


def rewound(mark: Position, found: str) -> LedgerBroken:
    """The refusal of a ledger that is not where it was."""
    return LedgerBroken(
        f"entry {mark.entries:,} as the high-water mark has it",
        found,
        "The database was restored from a backup or replaced: its budget is not what was spent.",
        "Nothing is paid from it. Restore the newest database; where it is lost, retire the release, or the data set, "
        "that it is for.",
    )


def differs(connection: sa.Connection, state: State) -> None:
    """Compare every table with what the log says.

    Raises:
        Wrong: One says something else.
    """
    row = connection.execute(sa.select(tables.ledger)).one_or_none()
    if row is None:
        raise Wrong("there is no ledger")
    check_row(row, state)
    clients = {one.name: (one.quota, one.spent) for one in connection.execute(sa.select(tables.clients))}
    if clients != state.accounts:
        raise Wrong("the clients' totals do not match the log")
    if state.keyed and keys_in(connection) != state.keys:
        raise Wrong("the keys do not match the log")


def check_row(row: sa.Row[tuple[Any, ...]], state: State) -> None:
    """Compare the ledger's own row with what the log says up to the same entry.

    Raises:
        Wrong: It says something else.
    """
    if state.entries < row.entries:
        raise Wrong("the log ends too early", state.entries + 1)
    if (row.entries, row.head) != (state.entries, state.head):
        raise Wrong("the ledger's head is not the last entry", row.entries + 1)
    if (row.spent, row.cap, row.terms) != (state.spent, state.cap, state.terms):
        raise Wrong("the ledger's totals do not match the log")


def keys_in(connection: sa.Connection) -> dict[str, tuple[Key, str]]:
    """The rows of the table of keys, as a state holds them."""
    rows = connection.execute(sa.select(tables.keys).order_by(tables.keys.c.created, tables.keys.c.id))
    found = [(Key(r.id, r.client, r.admin, r.created, r.expires, r.revoked), r.hash) for r in rows]
    return {key.id: (key, token) for key, token in found}
