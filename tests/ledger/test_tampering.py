"""What `verify` and the high-water mark catch, each by doing it."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from airlock.errors import LedgerBroken, LedgerUnavailable
from airlock.ledger import Ledger, Spend, Terms, digest, tables
from airlock.ledger.chain import Entry, Position, Seal
from airlock.ledger.mark import HighWaterMark
from tests.ledger.conftest import forging

REQUEST = digest("a request")
TERMS = Terms("a-release", 100, "0.01 rho")
LOG, STATE, CLIENTS = tables.log, tables.ledger, tables.clients


def change(ledger: Ledger, *statements: sa.Executable) -> None:
    with forging(ledger.engine) as connection:
        for statement in statements:
            connection.execute(statement)


def rehash(ledger: Ledger, since: int, seal: Seal | None = None) -> None:
    """What a forger does: make every hash from an entry on agree again, under the ledger's secret or another."""
    seal = seal or ledger.mark.seal(ledger.id)
    assert seal is not None
    with forging(ledger.engine) as connection:
        columns = [column for column in LOG.c if column.name != "hash"]
        rows = connection.execute(sa.select(*columns).order_by(LOG.c.seq)).mappings().all()
        head = connection.scalar(sa.select(LOG.c.hash).where(LOG.c.seq == since - 1))
        for row in rows[since - 1 :]:
            entry = Entry(**(dict(row) | {"previous": head}))
            head = seal.hash(entry.packed())
            connection.execute(sa.update(LOG).where(LOG.c.seq == entry.seq).values(previous=entry.previous, hash=head))
        connection.execute(sa.update(STATE).values(head=head))


def rewind(ledger: Ledger, entries: int) -> None:
    """Put the database back to where it stood after so many entries, as a restored backup does."""
    with forging(ledger.engine) as connection:
        connection.execute(sa.delete(LOG).where(LOG.c.seq > entries))
        head = connection.scalar(sa.select(LOG.c.hash).where(LOG.c.seq == entries))
        spent = connection.scalar(sa.select(sa.func.coalesce(sa.func.sum(LOG.c.units), 0)))
        connection.execute(sa.update(STATE).values(entries=entries, head=head, spent=spent))
        connection.execute(sa.update(CLIENTS).where(CLIENTS.c.name == "ann").values(spent=spent))


@pytest.fixture
def used(ledger: Ledger) -> Ledger:
    """Entries 1 to 3 open it and set quotas, 4 to 8 charge ann 1 to 5 units."""
    for units in range(1, 6):
        ledger.spend(Spend("ann", units, REQUEST))
    assert ledger.verify().ok
    return ledger


@pytest.mark.parametrize("statement", [sa.delete(LOG), sa.update(LOG).values(units=0)])
def test_the_log_is_append_only(used: Ledger, statement: sa.Executable) -> None:
    with pytest.raises(LedgerBroken), tables.writing(used.engine) as connection:
        connection.execute(statement)
    assert used.verify().ok


FORGERIES: dict[str, tuple[Callable[[], list[sa.Executable]], int | None, str]] = {
    "an amount": (lambda: [sa.update(LOG).where(LOG.c.seq == 6).values(units=1)], 6, "content"),
    "a client": (lambda: [sa.update(LOG).where(LOG.c.seq == 5).values(client="bob")], 5, "content"),
    "a hash": (lambda: [sa.update(LOG).where(LOG.c.seq == 6).values(hash="0" * 64)], 6, "content"),
    "a link": (lambda: [sa.update(LOG).where(LOG.c.seq == 6).values(previous="0" * 64)], 6, "follow"),
    "a missing entry": (lambda: [sa.delete(LOG).where(LOG.c.seq == 6)], 6, "missing"),
    "a missing end": (lambda: [sa.delete(LOG).where(LOG.c.seq == 8)], 8, "too early"),
    "a closed gap": (
        lambda: [sa.delete(LOG).where(LOG.c.seq == 7), sa.update(LOG).where(LOG.c.seq == 8).values(seq=7)],
        7,
        "follow",
    ),
    "the sum": (lambda: [sa.update(STATE).values(spent=0)], None, "totals"),
    "the cap": (lambda: [sa.update(STATE).values(cap=1000)], None, "totals"),
    "a client's sum": (lambda: [sa.update(CLIENTS).where(CLIENTS.c.name == "ann").values(spent=0)], None, "clients"),
    "a quota": (lambda: [sa.update(CLIENTS).where(CLIENTS.c.name == "bob").values(quota=99)], None, "clients"),
    "a head": (lambda: [sa.update(STATE).values(entries=7)], 8, "head"),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_change_is_found_at_the_first_entry_that_is_wrong(used: Ledger, forgery: str) -> None:
    statements, entry, word = FORGERIES[forgery]
    change(used, *statements())
    verdict = used.verify()
    assert not verdict.ok
    assert verdict.broken_entry == entry
    assert word in verdict.says


def test_hashes_made_to_agree_again_without_the_secret_are_found(used: Ledger, place: str, mark: Path) -> None:
    """Neither a mark that is lost nor one that is behind helps the forger: the entries after it are keyed too."""
    held = json.loads(mark.read_text())
    with tables.reading(used.engine) as connection:
        early = connection.scalar(sa.select(LOG.c.hash).where(LOG.c.seq == 3))
    change(used, sa.update(LOG).where(LOG.c.seq == 8).values(units=1), sa.update(STATE).values(spent=11))
    change(used, sa.update(CLIENTS).where(CLIENTS.c.name == "ann").values(spent=11))
    rehash(used, 8, Seal(bytes(32)))
    mark.unlink()
    assert used.verify().broken_entry == 8
    assert "content" in used.verify().says
    with pytest.raises(LedgerBroken, match="changed at entry 8"):
        Ledger.open(place, mark, new_mark=True)
    mark.write_text(json.dumps(held | {"entries": 3, "head": early}))
    with pytest.raises(LedgerBroken, match="changed at entry 8"):
        Ledger.open(place, mark)


def test_hashes_made_to_agree_again_are_caught_by_the_mark(used: Ledger, place: str, mark: Path) -> None:
    change(used, sa.update(LOG).where(LOG.c.seq == 8).values(units=1), sa.update(STATE).values(spent=11))
    change(used, sa.update(CLIENTS).where(CLIENTS.c.name == "ann").values(spent=11))
    rehash(used, 8)
    assert used.verify().broken_entry == 8
    assert "mark" in used.verify().says
    with pytest.raises(LedgerBroken):
        used.spend(Spend("ann", 1, REQUEST))
    with pytest.raises(LedgerBroken):
        Ledger.open(place, mark)


def test_an_entry_that_overspends_is_found_even_where_hashes_agree(used: Ledger, mark: Path) -> None:
    change(used, sa.update(LOG).where(LOG.c.seq == 7).values(units=99))
    rehash(used, 7)
    mark.unlink()
    verdict = used.verify()
    assert (verdict.broken_entry, verdict.marked) == (7, None)
    assert "more than was left" in verdict.says


@pytest.mark.parametrize("entries", [3, 5, 7])
def test_a_rewound_budget_is_refused(used: Ledger, place: str, mark: Path, entries: int) -> None:
    rewind(used, entries)
    with pytest.raises(LedgerBroken, match="entry 8 as the high-water mark has it"):
        used.spend(Spend("ann", 1, REQUEST))
    with pytest.raises(LedgerBroken, match="backup"):
        Ledger.open(place, mark)
    with pytest.raises(LedgerBroken, match="backup"):
        Ledger.open(place, mark, new_mark=True)
    verdict = used.verify()
    assert not verdict.ok
    assert "rewound" in verdict.says


def test_a_rewound_budget_that_was_spent_on_elsewhere_is_refused(used: Ledger, place: str, mark: Path) -> None:
    """It has more entries than the mark, but others: a replica without this mark has gone on."""
    rewind(used, 5)
    with Ledger.open(place, mark.with_name("other"), new_mark=True) as other:
        for _ in range(6):
            other.spend(Spend("ann", 1, REQUEST))
        assert other.verify().ok
    with pytest.raises(LedgerBroken):
        used.spend(Spend("ann", 1, REQUEST))
    assert used.verify().broken_entry == 8
    with pytest.raises(LedgerBroken):
        Ledger.open(place, mark)


TRIGGERS = {
    "dropped": "CREATE TRIGGER t BEFORE INSERT ON airlock_log BEGIN SELECT RAISE(IGNORE); END",
    "deleted at the end": "CREATE TRIGGER t AFTER UPDATE ON airlock_ledger "
    "BEGIN DELETE FROM airlock_log WHERE seq > OLD.entries; END",
}


@pytest.mark.parametrize("what", TRIGGERS)
def test_a_trigger_that_drops_entries_is_noticed(folder: Path, mark: Path, what: str) -> None:
    place = folder / "ledger.db"
    with Ledger.open(place, mark, TERMS) as ledger:
        ledger.set_quota("ann", None)
        with contextlib.closing(sqlite3.connect(place)) as database, database:
            database.execute("DROP TRIGGER airlock_log_no_delete")
            database.execute(TRIGGERS[what])
        with pytest.raises(LedgerBroken, match="written to the log"):
            ledger.spend(Spend("ann", 5, REQUEST))
        with contextlib.closing(sqlite3.connect(place)) as database, database:
            database.execute("DROP TRIGGER t")
        assert ledger.verify().ok
        assert ledger.balance().spent == 0


def test_a_restored_file_is_refused(tmp_path: Path, mark: Path) -> None:
    place, backup = tmp_path / "ledger.db", tmp_path / "backup.db"
    with Ledger.open(place, mark, TERMS) as ledger:
        ledger.set_quota("ann", None)
        ledger.spend(Spend("ann", 1, REQUEST))
    shutil.copy(place, backup)
    with Ledger.open(place, mark) as ledger:
        ledger.spend(Spend("ann", 90, REQUEST))
    for leftover in tmp_path.glob("ledger.db*"):
        leftover.unlink()
    shutil.copy(backup, place)
    with pytest.raises(LedgerBroken, match="backup"):
        Ledger.open(place, mark)
    place.unlink()
    with pytest.raises(LedgerBroken, match="no ledger"):
        Ledger.open(place, mark, TERMS)
    with Ledger.open(tmp_path / "new.db", mark.with_name("new"), TERMS):
        pass
    with pytest.raises(LedgerBroken, match="another ledger"):
        Ledger.open(tmp_path / "new.db", mark, TERMS)


def test_a_lost_mark_is_said_and_not_passed_over(used: Ledger, place: str, mark: Path) -> None:
    mark.unlink()
    with pytest.raises(LedgerBroken, match="high-water mark of a ledger that was opened before"):
        Ledger.open(place, mark)
    with Ledger.open(place, mark, new_mark=True) as again:
        assert again.verify().marked == 8
    mark.write_text("{")
    with pytest.raises(LedgerBroken, match="readable"):
        Ledger.open(place, mark)


def test_a_mark_that_is_behind_accuses_nobody(used: Ledger, place: str, mark: Path) -> None:
    """As a crash between the commit and the mark leaves it."""
    held = json.loads(mark.read_text())
    with tables.reading(used.engine) as connection:
        early = connection.scalar(sa.select(LOG.c.hash).where(LOG.c.seq == 5))
    mark.write_text(json.dumps(held | {"entries": 5, "head": early}))
    assert used.verify().ok
    with Ledger.open(place, mark) as again:
        assert again.mark.read().entries == 8


def test_a_mark_only_rises_and_keeps_to_its_ledger(mark: Path) -> None:
    kept = HighWaterMark(mark)
    kept.raise_to(Position("a", 5, "five"))
    kept.raise_to(Position("a", 4, "four"))
    assert kept.read() == Position("a", 5, "five")
    with pytest.raises(LedgerBroken, match="another"):
        kept.raise_to(Position("b", 6, "six"))
    assert mark.stat().st_mode & 0o777 == 0o600


def test_a_mark_that_cannot_be_written_stops_the_service_after_one_charge(used: Ledger, mark: Path) -> None:
    aside = mark.parent.with_name("aside")
    mark.parent.rename(aside)
    mark.parent.write_text("in the way")
    for _ in range(3):
        with pytest.raises(LedgerUnavailable, match="high-water mark"):
            used.spend(Spend("ann", 1, REQUEST))
    assert used.balance().spent == 16, "the first was charged before the mark failed, the others were not"
    mark.parent.unlink()
    aside.rename(mark.parent)
    used.spend(Spend("ann", 1, REQUEST))
    assert used.balance().spent == 17
    assert used.verify().ok


def test_replicas_have_a_mark_each(used: Ledger, place: str, mark: Path) -> None:
    with contextlib.closing(Ledger.open(place, mark.with_name("second"), new_mark=True)) as second:
        for ledger in (second, used, second, used):
            ledger.spend(Spend("ann", 1, REQUEST))
        assert used.verify().ok
        assert second.verify().ok
        assert (second.mark.read().entries, used.mark.read().entries) == (11, 12)


@pytest.mark.parametrize("more", [0, 1])
def test_two_copies_in_use_on_one_machine_are_noticed(folder: Path, mark: Path, more: int) -> None:
    """A forked database is two budgets; the mark that both raise sees one of them go another way."""
    place, copy = folder / "ledger.db", folder / "copy.db"
    with Ledger.open(place, mark, TERMS) as ledger:
        ledger.set_quota("ann", None)
    shutil.copy(place, copy)
    with Ledger.open(place, mark) as first, Ledger.open(copy, mark) as second:
        for _ in range(1 + more):
            first.spend(Spend("ann", 1, REQUEST))
        futures = []
        for _ in range(2):
            futures.append(second.submit(Spend("ann", 2, REQUEST)))
            futures[-1].exception()
        assert isinstance(futures[-1].exception(), LedgerBroken)
