"""A charge that may have been made: nobody is told that nothing was charged, and repeating it is charged once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from airlock.errors import Exhausted, KeyReused, LedgerUnavailable
from airlock.ledger import Charge, Ledger, Replay, Spend, Terms, digest
from airlock.ledger.transaction import Transaction
from tests.ledger.test_ledger import paused

ONE, OTHER = digest("one request"), digest("another")


@contextmanager
def no_mark(mark: Path) -> Iterator[None]:
    """While it lasts, the mark cannot be written, as when its disk is full."""
    aside = mark.parent.with_name("aside")
    mark.parent.rename(aside)
    mark.parent.write_text("in the way")
    try:
        yield
    finally:
        mark.parent.unlink()
        aside.rename(mark.parent)


def test_repeated_with_its_key_it_is_charged_once(ledger: Ledger, mark: Path) -> None:
    order = Spend("ann", 2, ONE, rows=3, key="k")
    with no_mark(mark):
        with pytest.raises(LedgerUnavailable, match="may have been made") as first:
            ledger.spend(order)
        assert first.value.uncertain
        with pytest.raises(LedgerUnavailable) as second:
            ledger.spend(order)
        assert not second.value.uncertain, "nothing is charged until the mark can be written"
    assert ledger.balance().spent == 6
    charge = ledger.spend(order)
    assert isinstance(charge, Charge)
    assert (charge.units, charge.rows, ledger.balance().spent) == (6, 3, 6)
    with pytest.raises(KeyReused, match="progress"):
        ledger.spend(order)
    assert ledger.keep(charge, b"answer")
    assert ledger.spend(order) == Replay(charge.entry, b"answer")
    assert ledger.verify().ok


@pytest.mark.parametrize("other", [{"request": OTHER}, {"units": 3}, {"rows": 2}, {"key": "l"}, {"key": None}])
def test_another_request_gets_nothing_of_it(ledger: Ledger, mark: Path, other: dict[str, object]) -> None:
    order = {"client": "ann", "units": 2, "request": ONE, "rows": 3, "key": "k"}
    with no_mark(mark), pytest.raises(LedgerUnavailable):
        ledger.spend(Spend(**order))  # type: ignore[arg-type]
    before = ledger.balance().spent
    try:
        charge = ledger.spend(Spend(**(order | other)))  # type: ignore[arg-type]
        assert ledger.balance().spent == before + charge.units  # type: ignore[union-attr]
    except KeyReused:
        assert ledger.balance().spent == before


def test_it_is_handed_out_once_even_in_one_batch(ledger: Ledger, mark: Path) -> None:
    order = Spend("ann", 2, ONE, key="k")
    with no_mark(mark), pytest.raises(LedgerUnavailable):
        ledger.spend(order)
    with paused(ledger):
        futures = [ledger.submit(order) for _ in range(3)]
    assert [type(future.exception()) for future in futures] == [type(None), KeyReused, KeyReused]
    assert ledger.balance().spent == 2


def test_only_what_was_charged_is_uncertain(ledger: Ledger, mark: Path) -> None:
    charge = ledger.spend(Spend("ann", 1, ONE, key="old"))
    assert isinstance(charge, Charge)
    ledger.keep(charge, b"answer")
    with paused(ledger):
        orders = [Spend("ann", 1, ONE, key="old"), Spend("bob", 99, ONE), Spend("ann", 1, ONE)]
        futures = [ledger.submit(order) for order in orders]
        aside = mark.parent.with_name("aside")
        mark.parent.rename(aside)
        mark.parent.write_text("in the way")
    assert futures[0].result() == Replay(charge.entry, b"answer")
    assert isinstance(futures[1].exception(), Exhausted)
    assert isinstance(futures[2].exception(), LedgerUnavailable)
    mark.parent.unlink()
    aside.rename(mark.parent)


@pytest.mark.parametrize("committed", [True, False])
def test_a_commit_that_nobody_heard_of(new_database, mark: Path, committed: bool) -> None:  # type: ignore[no-untyped-def]
    """The connection breaks before or after the server has committed: either way it is charged once."""
    with Ledger.open(new_database(), mark, Terms("r", 100, "u")) as ledger, pytest.MonkeyPatch.context() as patch:
        ledger.set_quota("ann", None)
        commit, lose = sa.engine.Transaction.commit, sa.exc.OperationalError("COMMIT", {}, Exception("lost"))

        def commit_and_lose(transaction: sa.engine.Transaction) -> None:
            if committed:
                commit(transaction)
            raise lose

        patch.setattr(sa.engine.RootTransaction, "commit", commit_and_lose)
        with pytest.raises(LedgerUnavailable) as told:
            ledger.spend(Spend("ann", 2, ONE, key="k"))
        assert told.value.uncertain
        patch.undo()
        assert ledger.balance().spent == (2 if committed else 0)
        assert isinstance(ledger.spend(Spend("ann", 2, ONE, key="k")), Charge)
        assert ledger.balance().spent == 2
        assert ledger.verify().ok


def test_whether_it_can_be_written_is_found_by_writing(ledger: Ledger, mark: Path) -> None:
    ledger.check_writable()
    before = mark.stat().st_mtime_ns
    ledger.check_writable()
    assert mark.stat().st_mtime_ns > before
    with no_mark(mark), pytest.raises(LedgerUnavailable, match="mark"):
        ledger.check_writable()
    ledger.check_writable()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Transaction, "flush", _full)
        with pytest.raises(LedgerUnavailable):
            ledger.check_writable()
    assert ledger.verify().entries == 3


def _full(_: Transaction) -> None:
    raise LedgerUnavailable("space", "none left")
