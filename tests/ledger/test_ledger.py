"""Check and debit, idempotency, group commit: on SQLite and on PostgreSQL."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import sqlalchemy as sa

from airlock.errors import (
    ConfigError,
    Exhausted,
    KeyReused,
    LedgerBroken,
    LedgerError,
    LedgerUnavailable,
    UnknownKey,
)
from airlock.ledger import Charge, Ledger, Replay, Rules, Spend, Terms, digest, tables
from airlock.ledger.transaction import Transaction
from airlock.ledger.writer import Writer
from tests.waiting import LONG, wait_until

ONE, OTHER = digest("one request"), digest("another")
TERMS = Terms("a-release", 100, "0.01 rho")


def spent(ledger: Ledger, client: str = "") -> int:
    return ledger.balance(client).spent


def test_a_charge_debits_the_budget_and_the_client(ledger: Ledger) -> None:
    charge = ledger.spend(Spend("bob", 2, ONE, rows=3))
    assert isinstance(charge, Charge)
    assert (charge.units, charge.rows, charge.left) == (6, 3, 4)
    assert (spent(ledger), spent(ledger, "bob"), spent(ledger, "ann")) == (6, 6, 0)
    assert ledger.balance("bob").left == 4
    assert ledger.verify().ok


def test_a_batch_is_paid_whole_or_not_at_all(ledger: Ledger) -> None:
    with pytest.raises(Exhausted) as refusal:
        ledger.spend(Spend("bob", 1, ONE, rows=11))
    assert (refusal.value.asked, refusal.value.left, refusal.value.exit_code) == (11, 10, 1)
    ledger.spend(Spend("ann", 95, ONE))
    with pytest.raises(Exhausted, match="5 units, what is left of the budget, found 6"):
        ledger.spend(Spend("bob", 3, ONE, rows=2))
    assert ledger.spend(Spend("bob", 1, ONE, rows=5)).entry == ledger.verify().entries
    assert spent(ledger) == 100
    with pytest.raises(Exhausted):
        ledger.spend(Spend("ann", 1, ONE))
    assert ledger.verify().ok


def test_who_is_not_known_cannot_spend(ledger: Ledger) -> None:
    for name in ("eve", "", "ann\0", "x" * 1000):
        with pytest.raises(UnknownKey):
            ledger.spend(Spend(name, 1, ONE, key="k"))
    with pytest.raises(UnknownKey):
        ledger.balance("eve")
    assert spent(ledger) == 0


@pytest.mark.parametrize(
    "wrong", [{"units": 0}, {"units": -5}, {"units": 1.5}, {"units": True}, {"rows": 0}, {"request": "x"}, {"key": ""}]
)
def test_no_order_is_free_or_negative(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Spend(**({"client": "ann", "units": 1, "request": ONE} | wrong))  # type: ignore[arg-type]


def test_a_quota_below_what_is_spent_leaves_nothing(ledger: Ledger) -> None:
    ledger.spend(Spend("bob", 7, ONE))
    ledger.set_quota("bob", 3)
    assert ledger.balance("bob").left == 0
    ledger.set_quota("bob", 8)
    ledger.spend(Spend("bob", 1, ONE))
    assert ledger.verify().ok


def test_the_terms_never_change(ledger: Ledger, place: str, mark: Path) -> None:
    for other in (Terms("a-release", 101, "0.01 rho"), Terms("another", 100, "0.01 rho")):
        with pytest.raises(ConfigError, match="never change"):
            Ledger.open(place, mark, other)


def test_without_terms_no_ledger_is_begun(place: str, mark: Path) -> None:
    with pytest.raises(ConfigError, match="none"):
        Ledger.open(place, mark)


class Clock:
    def __init__(self) -> None:
        self.seconds = 1e9

    def __call__(self) -> float:
        return self.seconds


class TestIdempotency:
    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    def timed(self, place: str, mark: Path, clock: Clock):  # type: ignore[no-untyped-def]
        with Ledger.open(
            place, mark, TERMS, clock=clock, rules=Rules(replay_seconds=1000, answer_seconds=10)
        ) as ledger:
            ledger.set_quota("ann", None)
            ledger.set_quota("bob", None)
            yield ledger

    def test_the_stored_answer_comes_again_and_is_free(self, timed: Ledger) -> None:
        charge = timed.spend(Spend("ann", 5, ONE, key="k"))
        assert timed.keep(charge, b"answer")
        again = timed.spend(Spend("ann", 5, ONE, key="k"))
        assert again == Replay(charge.entry, b"answer")
        assert spent(timed) == 5
        assert not timed.keep(charge, b"another"), "an answer is never replaced"

    def test_a_key_is_for_one_request_of_one_client(self, timed: Ledger) -> None:
        timed.keep(timed.spend(Spend("ann", 5, ONE, key="k")), b"answer")
        with pytest.raises(KeyReused):
            timed.spend(Spend("ann", 5, OTHER, key="k"))
        assert isinstance(timed.spend(Spend("bob", 5, ONE, key="k")), Charge)
        assert spent(timed) == 10

    def test_a_charge_without_an_answer_is_never_answered_again_for_free(self, timed: Ledger, clock: Clock) -> None:
        lost = timed.spend(Spend("ann", 5, ONE, key="k"))
        with pytest.raises(KeyReused, match="not in progress"):
            timed.spend(Spend("ann", 5, ONE, key="k"))
        clock.seconds += 10
        again = timed.spend(Spend("ann", 5, ONE, key="k"))
        assert isinstance(again, Charge)
        assert spent(timed) == 10
        assert not timed.keep(lost, b"late"), "the key stands for the second charge now"
        assert timed.keep(again, b"second")
        assert timed.spend(Spend("ann", 5, ONE, key="k")).body == b"second"

    def test_an_exhausted_budget_still_replays(self, timed: Ledger) -> None:
        timed.keep(timed.spend(Spend("ann", 100, ONE, key="k")), b"all")
        with pytest.raises(Exhausted):
            timed.spend(Spend("ann", 1, OTHER))
        assert timed.spend(Spend("ann", 100, ONE, key="k")).body == b"all"

    def test_a_forgotten_answer_is_charged_again(self, timed: Ledger, clock: Clock) -> None:
        timed.keep(timed.spend(Spend("ann", 5, ONE, key="k")), b"answer")
        clock.seconds += 999
        assert timed.forget_answers() == 0
        assert isinstance(timed.spend(Spend("ann", 5, ONE, key="k")), Replay)
        clock.seconds += 1
        assert isinstance(timed.spend(Spend("ann", 5, ONE, key="k")), Charge)
        clock.seconds += 1000
        assert timed.forget_answers() == 1
        assert isinstance(timed.spend(Spend("ann", 5, OTHER, key="k")), Charge)
        assert spent(timed) == 15
        assert timed.verify().ok

    def test_two_equal_requests_in_one_batch_are_charged_once(self, timed: Ledger) -> None:
        with paused(timed):
            futures = [timed.submit(Spend("ann", 5, ONE, key="k")) for _ in range(3)]
        assert isinstance(futures[0].result(), Charge)
        assert all(isinstance(future.exception(), KeyReused) for future in futures[1:])
        assert spent(timed) == 5

    def test_neither_keys_nor_requests_nor_answers_are_in_the_log(self, timed: Ledger) -> None:
        timed.keep(timed.spend(Spend("ann", 5, digest("my input"), key="my key")), b"my answer")
        with tables.reading(timed.engine) as connection:
            text = repr(connection.execute(sa.select(tables.log)).all())
        assert "my " not in text
        assert digest("my input") in text


@dataclass(frozen=True)
class Blocking:
    """Holds the writer until it is let go."""

    started: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)
    client: str = ""
    key_digest: str = ""

    def apply(self, transaction: Transaction) -> None:
        self.started.set()
        assert self.go.wait(LONG)


class paused:  # noqa: N801
    """While it lasts, orders gather; then they are settled together."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger, self.order = ledger, Blocking()

    def __enter__(self) -> None:
        self.ledger._submit(self.order)
        assert self.order.started.wait(LONG)

    def __exit__(self, *_: object) -> None:
        self.order.go.set()


@dataclass(frozen=True)
class Bad:
    """Breaks its transaction: by a mistake in Python, in a statement, or by losing the connection."""

    how: str
    client: str = "ann"
    key_digest: str = ""

    def apply(self, transaction: Transaction) -> None:
        if self.how == "bug":
            transaction.spent += 1
            raise ZeroDivisionError
        if self.how == "overdraw":
            transaction.connection.execute(sa.update(tables.ledger).values(spent=tables.ledger.c.cap + 1))
        if self.how == "terminate":
            transaction.connection.execute(sa.text("SELECT pg_terminate_backend(pg_backend_pid())"))


@pytest.mark.parametrize("how", ["bug", "overdraw"])
def test_one_bad_order_does_not_fail_the_others(ledger: Ledger, how: str) -> None:
    with paused(ledger):
        good = [ledger.submit(Spend("ann", 1, ONE)) for _ in range(3)]
        bad = ledger._submit(Bad(how))
        more = ledger.submit(Spend("bob", 1, ONE))
    assert isinstance(bad.exception(), LedgerError)
    assert all(isinstance(future.result(), Charge) for future in [*good, more])
    assert spent(ledger) == 4
    assert ledger.verify().ok


def test_refusals_leave_the_rest_of_their_batch_alone(ledger: Ledger) -> None:
    with paused(ledger):
        futures = [ledger.submit(Spend("bob", 4, ONE)) for _ in range(4)]
        unknown = ledger.submit(Spend("eve", 1, ONE))
    assert isinstance(unknown.exception(), UnknownKey)
    assert [future.exception() is None for future in futures] == [True, True, False, False]
    assert spent(ledger, "bob") == 8


def test_orders_that_gather_are_committed_together(ledger: Ledger) -> None:
    commits: list[object] = []
    sa.event.listen(ledger.engine, "commit", commits.append)
    with paused(ledger):
        futures = [ledger.submit(Spend("ann", 1, ONE)) for _ in range(50)]
    assert {future.result().units for future in futures} == {1}
    assert len(commits) == 2
    assert spent(ledger) == 50


def test_threads_never_overspend(ledger: Ledger) -> None:
    def work(number: int) -> int:
        try:
            return ledger.spend(Spend("bob" if number % 4 == 0 else "ann", 1 + number % 3, ONE)).units
        except Exhausted:
            return 0

    with ThreadPoolExecutor(16) as pool:
        paid = sum(pool.map(work, range(120)))
    assert paid == spent(ledger) <= 100
    assert spent(ledger, "bob") <= 10
    verdict = ledger.verify()
    assert (verdict.ok, verdict.spent) == (True, paid)


def test_the_database_itself_refuses_to_overdraw(ledger: Ledger) -> None:
    for change in (
        sa.update(tables.ledger).values(spent=101),
        sa.update(tables.clients).where(tables.clients.c.name == "bob").values(spent=11),
    ):
        with pytest.raises(LedgerBroken), tables.writing(ledger.engine) as connection:
            connection.execute(change)


def test_a_closed_ledger_refuses(ledger: Ledger) -> None:
    ledger.close()
    with pytest.raises(LedgerUnavailable, match="closed"):
        ledger.spend(Spend("ann", 1, ONE))


def test_closing_settles_what_waits(ledger: Ledger, place: str, mark: Path) -> None:
    with paused(ledger):
        futures = [ledger.submit(Spend("ann", 1, ONE)) for _ in range(5)]
    ledger.close()
    assert all(future.result().units == 1 for future in futures)
    with Ledger.open(place, mark) as again:
        assert spent(again) == 5


def test_a_lock_that_others_keep_is_waited_for_only_so_long(
    place: str, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "LOCK_SECONDS", 1)
    with Ledger.open(place, mark, TERMS) as ledger, Ledger.open(place, mark) as other:
        ledger.set_quota("ann", None)
        with tables.writing(other.engine) as connection:
            Transaction.open(connection, 0, Rules(), other._state, other._seal)
            with pytest.raises(LedgerUnavailable, match="lock"):
                ledger.spend(Spend("ann", 1, ONE))
        assert spent(ledger) == 0
        ledger.spend(Spend("ann", 1, ONE))
        assert spent(ledger) == 1


def test_a_ledger_from_before_a_fork_refuses(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writer did not come along, so whoever waited for it would wait for ever."""
    with monkeypatch.context() as child:
        child.setattr("os.getpid", lambda: 1)
        with pytest.raises(LedgerUnavailable, match="fork"):
            ledger.spend(Spend("ann", 1, ONE))
    ledger.spend(Spend("ann", 1, ONE))


class TestQueue:
    def settle(self, orders):  # type: ignore[no-untyped-def]
        if isinstance(orders[0], Blocking):
            orders[0].apply(None)  # type: ignore[arg-type]
        self.batches.append([order.client for order in orders])
        return [None] * len(orders)

    @pytest.fixture(autouse=True)
    def _begin(self) -> None:
        self.batches: list[list[str]] = []

    def test_one_who_floods_it_delays_only_itself(self) -> None:
        writer, block = Writer(self.settle, batch=4), Blocking()
        writer.submit(block)
        assert block.started.wait(LONG)
        for client in ["ann"] * 20 + ["bob", "cat"]:
            writer.submit(Spend(client, 1, ONE))
        block.go.set()
        writer.close()
        assert self.batches[1] == ["ann", "bob", "cat", "ann"]
        assert sum(len(batch) for batch in self.batches) == 23

    def test_it_has_an_end(self) -> None:
        writer, block = Writer(self.settle, room=8), Blocking()
        writer.submit(block)
        assert block.started.wait(LONG)
        futures = [writer.submit(Spend("ann", 1, ONE)) for _ in range(2)]
        with pytest.raises(LedgerUnavailable, match="room"):
            writer.submit(Spend("ann", 1, ONE))
        futures += [writer.submit(Spend(f"c{number}", 1, ONE)) for number in range(6)]
        with pytest.raises(LedgerUnavailable, match="room"):
            writer.submit(Spend("bob", 1, ONE))
        futures[0].cancel()
        block.go.set()
        writer.close()
        assert [future.cancelled() for future in futures] == [True] + [False] * 7
        assert all(future.done() for future in futures)


def test_a_lost_connection_charges_nobody_and_the_next_spend_finds_a_new_one(new_database, mark: Path) -> None:  # type: ignore[no-untyped-def]
    with Ledger.open(new_database(), mark, TERMS) as ledger:
        ledger.set_quota("ann", None)
        with paused(ledger):
            bad = ledger._submit(Bad("terminate"))
            spend = ledger.submit(Spend("ann", 1, ONE))
        assert isinstance(bad.exception(), LedgerUnavailable)
        assert isinstance(spend.exception(), LedgerUnavailable)
        assert spent(ledger) == 0
        ledger.spend(Spend("ann", 1, ONE))
        assert spent(ledger) == 1


def test_a_connection_lost_while_it_commits_leaves_open_whether_it_charged(
    new_database,
    mark: Path,
    monkeypatch: pytest.MonkeyPatch,  # type: ignore[no-untyped-def]
) -> None:
    """Nobody is told that nothing was charged, and nobody is charged a second time by trying again."""
    with Ledger.open(new_database(), mark, TERMS) as ledger:
        ledger.set_quota("ann", None)
        flush, tries = Transaction.flush, []

        def flush_and_lose(transaction: Transaction) -> None:
            flush(transaction)
            tries.append(transaction.connection.scalar(sa.text("SELECT pg_backend_pid()")))
            with ledger.engine.connect() as other:
                other.execute(sa.text(f"SELECT pg_terminate_backend({tries[-1]})"))

        with paused(ledger):
            monkeypatch.setattr(Transaction, "flush", flush_and_lose)
            futures = [ledger.submit(Spend("ann", 1, ONE)) for _ in range(3)]
        errors = [future.exception() for future in futures]
        monkeypatch.setattr(Transaction, "flush", flush)
        assert all(isinstance(error, LedgerUnavailable) and error.uncertain for error in errors)
        assert "may have been made" in str(errors[0])
        assert len(tries) <= 2, "the batch that held the writer, and the one with the spends"
        ledger.spend(Spend("ann", 1, ONE))
        assert ledger.verify().ok


def test_a_server_that_does_not_wait_for_its_disk_is_made_to_or_refused(new_database, mark: Path) -> None:  # type: ignore[no-untyped-def]
    place = new_database() + "%20-csynchronous_commit%3Doff"
    with Ledger.open(place, mark, TERMS) as ledger, tables.writing(ledger.engine) as connection:
        assert connection.scalar(sa.text("SHOW synchronous_commit")) == "on"
    engine = sa.create_engine(place.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            for value in ("off", "on"):
                connection.exec_driver_sql(f"ALTER SYSTEM SET fsync = {value}")
                connection.exec_driver_sql("SELECT pg_reload_conf()")
                wait_until(
                    lambda value=value: connection.exec_driver_sql("SHOW fsync").scalar() == value, f"fsync {value}"
                )
                if value == "off":
                    with pytest.raises(LedgerError, match="fsync = off"):
                        Ledger.open(place, mark)
    finally:
        engine.dispose()


def test_a_server_that_is_not_there(mark: Path, tmp_path: Path) -> None:
    with pytest.raises(LedgerUnavailable, match="a database that answers"):
        Ledger.open(f"postgresql://postgres@/none?host={tmp_path}", mark, TERMS)


def test_other_databases_are_refused_without_their_password(mark: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        Ledger.open("mysql://root:secret@host/db", mark, TERMS)
    assert "secret" not in str(refusal.value)


def test_a_sqlite_ledger_is_its_owners_alone(tmp_path: Path, mark: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db", mark, TERMS) as ledger:
        ledger.set_quota("ann", None)
        assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("ledger.db*")} == {0o600}
        with tables.reading(ledger.engine) as connection:
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
            assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2


def test_a_file_that_is_no_database_is_refused(tmp_path: Path, mark: Path) -> None:
    (tmp_path / "ledger.db").write_bytes(b"not a database, and long enough to be taken for one" * 100)
    with pytest.raises(LedgerBroken, match="damaged"):
        Ledger.open(tmp_path / "ledger.db", mark, TERMS)
