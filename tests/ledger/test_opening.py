"""What is noticed when a ledger is opened and while it runs: SQL on its tables, old backups, lost marks, the clock."""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from airlock.errors import ExpiredKey, LedgerBroken, UnknownKey
from airlock.ledger import KeyStore, Ledger, Spend, Terms, digest, tables
from airlock.ledger.chain import Seal
from airlock.ledger.mark import HighWaterMark
from airlock.ledger.state import Row, State
from tests.ledger.conftest import forging

REQUEST = digest("a request")
TERMS = Terms("a-release", 100, "0.01 rho")
STATE, CLIENTS, KEYS = tables.ledger, tables.clients, tables.keys
TOKEN = f"airlock_{'ab' * 6}_{'A' * 43}"
PLANTED = {
    "id": "ab" * 6, "hash": digest(TOKEN), "client": "ann", "admin": False, "created": 0,
    "expires": None, "revoked": None,
}  # fmt: skip


DATA = Path(__file__).parent / "data"
OLD_TOKENS = (
    "airlock_a66a34c2a233_hvGQg1qnI7jTZ1Odu9eph_OzywXD2mvExx7wc_csG1k",
    "airlock_8dc6d0a6c991_idPVe0cK-KDCCeGeYlaBRRYqChEReV9A3TLj4Ew_QZo",
    "airlock_5ca2ac3fa246_HdemtYfPU4cHEq5YDH_1iiCe1xRJKUVt7Oq1rA-Fa3Q",
    "airlock_f0013eeb8436_HBldsCJE0qS9msQRJggGLSUFRiPoWMWXbiKchpBfbYE",
)


def old_ledger(folder: Path) -> tuple[Path, Path]:
    """A copy of the ledger in data/: 17 of 100 units spent, keys of bob, cat and the admin, and a revoked one."""
    (folder / "vault").mkdir()
    shutil.copy(DATA / "unkeyed.mark", folder / "vault" / "mark")
    return Path(shutil.copy(DATA / "unkeyed.db", folder / "ledger.db")), folder / "vault" / "mark"


def change(ledger: Ledger, *statements: sa.Executable) -> None:
    with forging(ledger.engine) as connection:
        for statement in statements:
            connection.execute(statement)


@pytest.fixture
def used(ledger: Ledger) -> Ledger:
    """Spent: by ann 40 of the 100 units, by bob 5 of his 10; each has a key, and one of bob's is revoked."""
    keys = KeyStore(ledger)
    for name in ("ann", "bob"):
        keys.add(name)
    keys.revoke(keys.add("bob", expires=datetime(2100, 1, 1, tzinfo=UTC))[0].id)
    ledger.spend(Spend("ann", 40, REQUEST))
    ledger.spend(Spend("bob", 5, REQUEST))
    return ledger


SQL: dict[str, Callable[[], list[sa.Executable]]] = {
    "nothing spent": lambda: [sa.update(STATE).values(spent=0), sa.update(CLIENTS).values(spent=0)],
    "the sum": lambda: [sa.update(STATE).values(spent=44)],
    "the cap": lambda: [sa.update(STATE).values(cap=100_000)],
    "cap and terms": lambda: [
        sa.update(STATE).values(cap=100_000, terms=Terms("a-release", 100_000, "0.01 rho").to_json())
    ],
    "a client's sum": lambda: [sa.update(CLIENTS).where(CLIENTS.c.name == "bob").values(spent=0)],
    "a quota": lambda: [sa.update(CLIENTS).where(CLIENTS.c.name == "bob").values(quota=99)],
    "no quota": lambda: [sa.update(CLIENTS).where(CLIENTS.c.name == "bob").values(quota=None)],
    "a new client": lambda: [sa.insert(CLIENTS).values(name="eve", quota=None, spent=0)],
    "a planted key": lambda: [sa.insert(KEYS).values(**PLANTED)],
    "an admin's key": lambda: [sa.update(KEYS).where(KEYS.c.client == "ann").values(admin=True)],
    "another's key": lambda: [sa.update(KEYS).where(KEYS.c.client == "ann").values(client="bob")],
    "another token": lambda: [sa.update(KEYS).where(KEYS.c.client == "ann").values(hash=digest(TOKEN))],
    "no revocation": lambda: [sa.update(KEYS).values(revoked=None)],
    "no expiry": lambda: [sa.update(KEYS).values(expires=None)],
    "no keys": lambda: [sa.delete(KEYS)],
}


@pytest.mark.parametrize("what", SQL)
def test_sql_on_the_tables_is_noticed_at_opening(used: Ledger, place: str, mark: Path, what: str) -> None:
    change(used, *SQL[what]())
    with pytest.raises(LedgerBroken):
        Ledger.open(place, mark)
    with pytest.raises(LedgerBroken):
        Ledger.open(place, mark, new_mark=True)
    verdict = used.verify()
    assert not verdict.ok


@pytest.mark.parametrize("what", ["nothing spent", "the sum", "the cap", "a client's sum", "a quota", "no quota"])
def test_sql_on_the_tables_is_noticed_while_it_runs(used: Ledger, what: str) -> None:
    change(used, *SQL[what]())
    with pytest.raises(LedgerBroken):
        used.spend(Spend("bob", 1, REQUEST))


def test_a_client_that_the_log_does_not_name_cannot_spend(used: Ledger) -> None:
    change(used, *SQL["a new client"]())
    with pytest.raises((LedgerBroken, UnknownKey)):
        used.spend(Spend("eve", 1, REQUEST))


def test_a_planted_key_opens_nothing_while_the_service_runs(used: Ledger) -> None:
    keys = KeyStore(used)
    _, good = keys.add("ann")
    change(used, *SQL["a planted key"]())
    with pytest.raises(UnknownKey):
        keys.authenticate(TOKEN)
    change(used, *SQL["no revocation"]())
    assert keys.authenticate(good).client == "ann"


@pytest.mark.parametrize("how", ["the mark deleted", "another mark"])
def test_a_backup_from_before_the_first_spend_is_refused(tmp_path: Path, folder: Path, how: str) -> None:
    place, mark = folder / "ledger.db", folder / "vault" / "mark"
    with Ledger.open(place, mark, TERMS) as ledger:
        ledger.set_quota("ann", None)
    shutil.copy(place, folder / "backup.db")
    with Ledger.open(place, mark, TERMS) as ledger:
        ledger.spend(Spend("ann", 100, REQUEST))
    for file in folder.glob("ledger.db*"):
        file.unlink()
    shutil.copy(folder / "backup.db", place)
    if how == "another mark":
        mark = folder / "elsewhere" / "mark"
    else:
        mark.unlink()
    with pytest.raises(LedgerBroken):
        Ledger.open(place, mark, TERMS)


def test_a_ledger_from_before_there_was_a_secret_is_opened_and_keyed(folder: Path) -> None:
    """Made by the version that chained plain hashes and kept its keys in a table alone."""
    place, mark = old_ledger(folder)
    with Ledger.open(place, mark) as ledger:
        assert (ledger.balance().spent, ledger.balance("ann").spent, ledger.balance("bob").left) == (17, 15, 8)
        keys = KeyStore(ledger)
        assert [keys.authenticate(token).client for token in OLD_TOKENS[:3]] == ["bob", "cat", ""]
        with pytest.raises(UnknownKey):
            keys.authenticate(OLD_TOKENS[3])
        assert keys.revoke("cat")
        ledger.spend(Spend("bob", 8, REQUEST))
    with Ledger.open(place, mark, Terms("an-old-release", 100, "0.01 rho")) as ledger:
        verdict = ledger.verify()
        assert (verdict.ok, verdict.spent, verdict.entries) == (True, 25, 10 + 1 + 4 + 1 + 1)


def test_a_keyed_ledger_is_not_taken_for_an_old_one(folder: Path) -> None:
    place, mark = old_ledger(folder)
    shutil.copy(place, folder / "backup.db")
    Ledger.open(place, mark).close()
    os.replace(folder / "backup.db", place)
    with pytest.raises(LedgerBroken, match="backup"):
        Ledger.open(place, mark)
    held = json.loads(mark.read_text())
    old = json.loads((DATA / "unkeyed.mark").read_text())
    mark.write_text(json.dumps(held | old))  # its position, but it knows that the ledger is keyed
    with pytest.raises(LedgerBroken, match="no longer keyed"):
        Ledger.open(place, mark)
    mark.unlink()
    with pytest.raises(LedgerBroken, match="keyed"):
        Ledger.open(place, mark, new_mark=True)


def test_plain_hashes_without_a_mark_are_an_older_ledger_only_if_one_says_so(folder: Path) -> None:
    """Whoever can write the database can make a log of plain hashes in which nothing is spent."""
    place, mark = old_ledger(folder)
    mark.unlink()
    with pytest.raises(LedgerBroken, match="--older"):
        Ledger.open(place, mark, new_mark=True)
    with pytest.raises(LedgerBroken, match="high-water mark"):
        Ledger.open(place, mark, older=True)
    assert not list(mark.parent.glob("*.secret"))
    with Ledger.open(place, mark, new_mark=True, older=True) as ledger:
        assert ledger.balance().spent == 17


@pytest.mark.parametrize("change", ["units = 1 WHERE seq = 7", "client = 'bob' WHERE seq = 6"])
def test_an_old_ledger_is_verified_before_it_is_keyed(folder: Path, change: str) -> None:
    place, mark = old_ledger(folder)
    with contextlib.closing(sqlite3.connect(place)) as database, database:
        database.execute("DROP TRIGGER airlock_log_no_update")
        database.execute(f"UPDATE airlock_log SET {change}")
    with pytest.raises(LedgerBroken, match="changed at entry"):
        Ledger.open(place, mark)
    assert not list(mark.parent.glob("*.secret"))


def test_a_state_kept_beside_the_mark_shortens_the_walk(
    used: Ledger, place: str, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes before it is vouched for by the vault, not by the database."""
    entries = used.verify().entries
    with monkeypatch.context() as patch:
        patch.setattr("airlock.ledger.ledger._SAVE_EVERY", 10)
        Ledger.open(place, mark).close()
    walked: list[int] = []
    extend = State.extend

    def counted(state: State, rows: Iterable[Row], seal: Seal | None) -> None:
        before = state.entries
        extend(state, rows, seal)
        walked.append(state.entries - before)

    monkeypatch.setattr(State, "extend", counted)
    used.spend(Spend("ann", 1, REQUEST))
    with Ledger.open(place, mark) as again:
        assert again.balance().spent == 46
    assert walked == [1]
    kept = mark.with_name(f"{mark.name}.state")
    kept.write_bytes(kept.read_bytes().replace(b'"spent":45', b'"spent":0'))
    walked.clear()
    Ledger.open(place, mark).close()
    assert walked == [entries + 1], "a state that is not under the secret is not believed"


@pytest.mark.parametrize("text", ["'5'", "5.0", "x'35'", "'4' || char(10) || '1'"])
def test_a_number_that_is_text_is_no_number(folder: Path, mark: Path, text: str) -> None:
    """SQLite stores what it is given, and the packed content of 5 and '5' is the same."""
    place = folder / "ledger.db"
    with Ledger.open(place, mark, TERMS) as ledger:
        ledger.set_quota("ann", None)
        ledger.spend(Spend("ann", 5, REQUEST))
    with contextlib.closing(sqlite3.connect(place)) as database, database:
        database.execute("DROP TRIGGER airlock_log_no_update")
        database.execute("PRAGMA writable_schema = ON")
        database.execute("UPDATE sqlite_master SET sql = replace(sql, 'units BIGINT', 'units BLOB')")
    with contextlib.closing(sqlite3.connect(place)) as database, database:
        database.execute(f"UPDATE airlock_log SET units = {text} WHERE seq = 3")
    with pytest.raises(LedgerBroken, match="entry 3"):
        Ledger.open(place, mark)


def test_a_seal_is_an_hmac() -> None:
    secret, content = bytes(range(32)), b"some content\nof two lines"
    assert Seal(secret).hash(content) == hmac.new(secret, content, "sha256").hexdigest()


def test_two_machines_that_begin_at_once_make_one_ledger(place: str, folder: Path) -> None:
    """The second finds the first one's ledger, whose secret it does not have, and keeps nothing of its own."""
    here, there = folder / "here" / "mark", folder / "there" / "mark"
    with Ledger.open(place, here, TERMS) as first, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "has_ledger", lambda _: False)  # as it was when the second looked
        with pytest.raises(LedgerBroken, match="mark"):
            Ledger.open(place, there, TERMS)
        assert [path.name for path in there.parent.iterdir()] == [".mark.lock"]
        patch.undo()
        with pytest.raises(LedgerBroken, match="secret"):
            Ledger.open(place, there, TERMS, new_mark=True)
        shutil.copy(first.mark.secret_path(first.id), there.parent)
        with Ledger.open(place, there, TERMS, new_mark=True) as second:
            assert second.id == first.id


def test_a_crash_between_the_first_mark_and_the_first_entry_is_begun_again(place: str, mark: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "create_tables", _crash)
        with pytest.raises(KeyboardInterrupt):
            Ledger.open(place, mark, TERMS)
    held = HighWaterMark(mark).read()
    assert held is not None
    assert held.entries == 0
    with Ledger.open(place, mark, TERMS) as ledger:
        assert ledger.id == held.ledger
        assert ledger.verify().ok


def _crash(_: object) -> None:
    raise KeyboardInterrupt


def test_an_expired_key_stays_expired_when_the_clock_goes_back(place: str, mark: Path) -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    clock = [now.timestamp()]

    def opened() -> Ledger:
        return Ledger.open(place, mark, TERMS, clock=lambda: clock[0])

    with opened() as ledger:
        _, token = KeyStore(ledger).add("ann", expires=now + timedelta(days=1))
        clock[0] += 2 * 24 * 3600
        with pytest.raises(ExpiredKey):
            KeyStore(ledger).authenticate(token)
        clock[0] = now.timestamp()
        with pytest.raises(ExpiredKey):
            KeyStore(ledger).authenticate(token)
    with opened() as ledger, pytest.raises(ExpiredKey):
        KeyStore(ledger).authenticate(token)


@pytest.mark.parametrize("umask", [0, 0o777])
def test_files_are_the_owners_alone_whatever_the_umask(folder: Path, umask: int) -> None:
    place, mark = folder / "a" / "ledgers" / "ledger.db", folder / "b" / "marks" / "mark"
    before = os.umask(umask)
    try:
        with Ledger.open(place, mark, TERMS) as ledger:
            ledger.set_quota("ann", None)
            ledger.spend(Spend("ann", 1, REQUEST))
            modes = {path: stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
    finally:
        os.umask(before)
    assert {oct(mode) for path, mode in modes.items() if path.is_dir()} == {"0o700"}
    assert {oct(mode) for path, mode in modes.items() if path.is_file()} == {"0o600"}
