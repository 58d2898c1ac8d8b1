"""Is the log whole? Every hash is computed anew, every total added up anew, and the mark must lie on the chain."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import sqlalchemy as sa

from airlock.errors import LedgerBroken
from airlock.ledger import tables
from airlock.ledger.chain import FIRST_HASH, OPENED, QUOTA, SPENT, Entry, HighWaterMark, Position

_COLUMNS = [column for column in tables.log.c if column.name != "hash"]
_PAGE = 2000


@dataclass(frozen=True)
class LedgerVerification:
    """What a walk over the log found.

    Attributes:
        ok: Whether everything agrees.
        entries: How many entries agree, from the first on.
        spent: What they charge together.
        cap: What may be spent.
        broken_entry: The first entry that is wrong, if one is.
        says: What is wrong, or that nothing is.
        marked: The entry that the high-water mark names; None without a mark.
    """

    ok: bool
    entries: int
    spent: int
    cap: int
    broken_entry: int | None
    says: str
    marked: int | None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


class _Wrong(Exception):
    """The first thing that is wrong."""

    def __init__(self, says: str, entry: int | None = None) -> None:
        super().__init__(says)
        self.says, self.entry = says, entry


@dataclass
class _Totals:
    """What the entries so far add up to."""

    terms: str = ""
    cap: int = 0
    entries: int = 0
    head: str = FIRST_HASH
    spent: int = 0
    quotas: dict[str, int | None] = field(default_factory=dict)
    by_client: dict[str, int] = field(default_factory=dict)

    def add(self, entry: Entry, stored_hash: str) -> None:
        if entry.seq != self.entries + 1:
            raise _Wrong(f"entry {self.entries + 1} is missing", self.entries + 1)
        if entry.previous != self.head:
            raise _Wrong("it does not follow the entry before", entry.seq)
        if entry.hash != stored_hash:
            raise _Wrong("its content was changed", entry.seq)
        self._count(entry)
        self.entries, self.head = entry.seq, stored_hash

    def _count(self, entry: Entry) -> None:
        if (entry.kind == OPENED) != (entry.seq == 1):
            raise _Wrong("a log is opened once, at its beginning", entry.seq)
        if entry.kind == OPENED:
            self.terms, self.cap = entry.note, _cap(entry)
        elif entry.kind == QUOTA:
            self.quotas[entry.client] = int(entry.note) if entry.note else None
            self.by_client.setdefault(entry.client, 0)
        elif entry.kind == SPENT:
            self._spend(entry)
        else:
            raise _Wrong("its kind is unknown", entry.seq)

    def _spend(self, entry: Entry) -> None:
        if entry.units < 1 or entry.rows < 1 or entry.client not in self.by_client:
            raise _Wrong("it charges nothing, or nobody", entry.seq)
        self.spent += entry.units
        self.by_client[entry.client] += entry.units
        quota = self.quotas[entry.client]
        if self.spent > self.cap or (quota is not None and self.by_client[entry.client] > quota):
            raise _Wrong("it spends more than there was", entry.seq)


def walk(engine: sa.Engine, mark: HighWaterMark) -> LedgerVerification:
    """Verify a whole ledger in one consistent reading; it may be in use.

    The mark is read first: it never runs ahead of the database, so a later reading has its entry.
    """
    totals = _Totals()
    held = mark.read()
    marked = held.entries if held else None
    try:
        with tables.reading(engine) as connection:
            for entry, stored in _entries(connection):
                totals.add(entry, stored)
                if held is not None and entry.seq == held.entries and stored != held.head:
                    raise _Wrong("the high-water mark knows another entry in this place", entry.seq)
            _compare(connection, totals, held)
    except _Wrong as wrong:
        return LedgerVerification(False, totals.entries, totals.spent, totals.cap, wrong.entry, wrong.says, marked)
    return LedgerVerification(
        True, totals.entries, totals.spent, totals.cap, None, "hashes, totals and limits agree", marked
    )


def check_mark(mark: Position, at: Position, hash_of: Callable[[int], str | None]) -> None:
    """Refuse a ledger that is behind a mark, or has another entry in its place.

    Raises:
        LedgerBroken: It was rewound or replaced.
    """
    if mark == at or (mark.ledger == at.ledger and mark.entries < at.entries and hash_of(mark.entries) == mark.head):
        return
    found = "another ledger" if mark.ledger != at.ledger else f"{at.entries:,} entries, or another in its place"
    raise LedgerBroken(
        f"entry {mark.entries:,} as the high-water mark has it",
        found,
        "The database was restored from a backup or replaced: its budget is not what was spent.",
        "Nothing is answered. Restore the newest database, or retire this release.",
    )


def _entries(connection: sa.Connection) -> Iterator[tuple[Entry, str]]:
    """All entries in order, some thousand at a time."""
    last = -(2**63)
    query = sa.select(*_COLUMNS, tables.log.c.hash).order_by(tables.log.c.seq).limit(_PAGE)
    while rows := connection.execute(query.where(tables.log.c.seq > last)).all():
        for *fields, stored in rows:
            yield Entry(*fields), stored
        last = rows[-1].seq


def _cap(entry: Entry) -> int:
    try:
        return int(json.loads(entry.note)["cap"])
    except (ValueError, KeyError, TypeError) as error:
        raise _Wrong("its terms cannot be read", entry.seq) from error


def _compare(connection: sa.Connection, totals: _Totals, held: Position | None) -> None:
    """The tables beside the log say what the log says, and the mark is no further than the log."""
    row = connection.execute(sa.select(tables.ledger)).one_or_none()
    if row is None:
        raise _Wrong("there is no ledger")
    if totals.entries < row.entries:
        raise _Wrong("the log ends too early", totals.entries + 1)
    if (row.entries, row.head) != (totals.entries, totals.head):
        raise _Wrong("the ledger's head is not the last entry", row.entries + 1)
    if (row.spent, row.cap, row.terms) != (totals.spent, totals.cap, totals.terms):
        raise _Wrong("the ledger's totals are not those of the log")
    stored = {one.name: (one.spent, one.quota) for one in connection.execute(sa.select(tables.clients))}
    if stored != {name: (spent, totals.quotas[name]) for name, spent in totals.by_client.items()}:
        raise _Wrong("the clients' totals are not those of the log")
    if held is not None and (held.ledger != row.id or held.entries > totals.entries):
        raise _Wrong("the high-water mark is ahead: the database was rewound or replaced", totals.entries + 1)
