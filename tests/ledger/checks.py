"""What a ledger must notice or refuse, as functions of an empty folder: for tests and for planted faults."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from airlock.errors import ExpiredKey, KeyReused, LedgerBroken, LedgerUnavailable, UnknownKey
from airlock.ledger import KeyStore, Ledger, Spend, Terms, digest, tables
from airlock.ledger.chain import Entry, Seal
from tests.ledger.conftest import forging
from tests.ledger.test_ledger import paused

REQUEST, TERMS = digest("a request"), Terms("a-release", 100, "0.01 rho")


def _used(folder: Path) -> Ledger:
    ledger = Ledger.open(folder / "ledger.db", folder / "vault" / "mark", TERMS)
    ledger.set_quota("ann", None)
    ledger.spend(Spend("ann", 40, REQUEST))
    return ledger


def _is_refused(folder: Path, **options: bool) -> None:
    with pytest.raises(LedgerBroken):
        Ledger.open(folder / "ledger.db", folder / "vault" / "mark", **options).close()  # type: ignore[arg-type]


def totals_set_back_are_refused(folder: Path) -> None:
    with _used(folder) as ledger, forging(ledger.engine) as connection:
        connection.execute(sa.update(tables.ledger).values(spent=0))
        connection.execute(sa.update(tables.clients).values(spent=0))
    _is_refused(folder)


def forged_hashes_are_refused(folder: Path) -> None:
    """The last charge is made small, and its hash made anew by someone who knows how but not the secret."""
    with _used(folder) as ledger, forging(ledger.engine) as connection:
        columns = [tables.log.c[name] for name in Entry.__dataclass_fields__]
        row = connection.execute(sa.select(*columns).where(tables.log.c.seq == 3)).mappings().one()
        forged = Entry(**(dict(row) | {"units": 1}))
        head = Seal(bytes(32)).hash(forged.packed())
        connection.execute(sa.update(tables.log).where(tables.log.c.seq == 3).values(units=1, hash=head))
        connection.execute(sa.update(tables.ledger).values(spent=1, head=head))
        connection.execute(sa.update(tables.clients).values(spent=1))
    (folder / "vault" / "mark").unlink()
    _is_refused(folder, new_mark=True)


def a_planted_key_opens_nothing(folder: Path) -> None:
    token = f"airlock_{'ab' * 6}_{'A' * 43}"
    row = {"id": "ab" * 6, "hash": digest(token), "client": "ann", "admin": False, "created": 0}
    with _used(folder) as ledger:
        with forging(ledger.engine) as connection:
            connection.execute(sa.insert(tables.keys).values(**row))
        with pytest.raises(UnknownKey):
            KeyStore(ledger).authenticate(token)


def an_expired_key_stays_expired(folder: Path) -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    clock = [now.timestamp()]
    with Ledger.open(folder / "ledger.db", folder / "mark", TERMS, clock=lambda: clock[0]) as ledger:
        _, token = KeyStore(ledger).add("ann", expires=now + timedelta(days=1))
        for days in (2, -2):
            clock[0] += days * 24 * 3600
            with pytest.raises(ExpiredKey):
                KeyStore(ledger).authenticate(token)


def an_uncertain_charge_is_handed_out_once(folder: Path) -> None:
    order = Spend("ann", 2, REQUEST, key="k")
    with _used(folder) as ledger:
        blocked = folder / "vault" / ".mark.part"
        blocked.unlink(missing_ok=True)
        blocked.mkdir()
        with pytest.raises(LedgerUnavailable):
            ledger.spend(order)
        blocked.rmdir()
        charged = ledger.balance().spent
        with paused(ledger):
            futures = [ledger.submit(order) for _ in range(2)]
        assert futures[0].exception() is None
        assert isinstance(futures[1].exception(), KeyReused)
        assert ledger.balance().spent == charged
