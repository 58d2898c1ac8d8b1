"""Services and database servers that are killed under load, after some number of answers: nothing is lost."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airlock.ledger import KeyStore, Ledger, digest, tables
from airlock.serve.ledger_paths import terms_of
from tests.ledger.conftest import Server, wait_for
from tests.serve.selling import RELEASE, Nursery, Priced, ask, connect, question
from tests.waiting import wait_until

CAP, ASKERS = 10**6, 8
Answered = tuple[str, int, Any]  # an idempotency key, the rows, and the outputs


@contextlib.contextmanager
def serving(nursery: Nursery, folder: Path, place: str) -> Iterator[tuple[int, str]]:
    """A service, and its end whatever happens: a test that fails must not wait for it."""
    pid, where = nursery.start(folder, CAP, place=place)
    try:
        yield pid, where
    except BaseException:
        nursery.end(pid, signal.SIGKILL)
        raise


def begun(place: str, mark: Path) -> str:
    """A ledger of many units, and ann's token."""
    with Ledger.open(place, mark, terms_of(RELEASE, Priced(CAP).interface)) as ledger:
        return KeyStore(ledger).add("ann")[1]


def charged(place: str, mark: Path) -> int:
    """What was charged, after the whole log was verified."""
    with Ledger.open(place, mark) as ledger:
        ledger.forget_answers()  # a server may still carry out a commit; whoever gets the lock has seen its end
        verdict = ledger.verify()
        assert verdict.ok, verdict
        assert ledger.balance().spent >= verdict.spent, "a service that runs may have charged more meanwhile"
        return verdict.spent


class Askers:
    """Clients that ask on and on; each request has a key of its own, and `repeat` says when it is asked once more."""

    def __init__(self, where: str, token: str, name: str, repeat: Callable[[int], bool]) -> None:
        self.answered: list[Answered] = []
        self.repeated = 0
        self._where, self._token, self._repeat = where, token, repeat
        self.enough, self._over = threading.Event(), threading.Event()
        self._pool = ThreadPoolExecutor(ASKERS)
        self._asking = [self._pool.submit(self._ask_on, f"{name}-{number}") for number in range(ASKERS)]

    def wait_for(self, more: int) -> None:
        """Until there are so many more answers than now."""
        wanted = len(self.answered) + more
        wait_until(lambda: len(self.answered) >= wanted or self._failed(), f"{wanted} answers")

    def end(self) -> None:
        """Let each finish its request, or notice that the service is gone."""
        self.enough.set()
        for one in self._asking:
            one.result()
        self._pool.shutdown()

    def __enter__(self) -> Askers:
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever happened, nobody asks on."""
        self.enough.set()
        self._over.set()
        self._pool.shutdown()

    def units(self) -> int:
        return sum(rows for _, rows, _ in self.answered)

    def _failed(self) -> bool:
        return any(one.done() and one.exception() for one in self._asking)

    def _ask_once(self, connection: Any, rows: int, key: str) -> tuple[int, Any] | None:
        """An answer, or None if it is worth asking again."""
        status, body = ask(connection, self._token, question(rows), key)
        if self._repeat(status) and not self._over.is_set():
            self.repeated += 1
            return None
        return status, body

    def _ask_on(self, name: str) -> None:
        connection, chance = connect(self._where), random.Random(name)
        try:
            for count in range(10**6):
                rows, key = chance.randint(1, 3), f"{name}-{count}"
                status, body = wait_until(partial(self._ask_once, connection, rows, key), "an answer")
                assert status == 200, body
                self.answered.append((key, rows, body["outputs"]))
                if self.enough.is_set():
                    return
        except (OSError, HTTPException, json.JSONDecodeError):
            assert self.enough.is_set(), "only a killed service hangs up"
        finally:
            connection.close()


def replay(where: str, token: str, answers: list[Answered]) -> None:
    connection = connect(where)
    for key, rows, outputs in answers:
        status, body = ask(connection, token, question(rows), key)
        assert (status, body.get("outputs")) == (200, outputs)
    connection.close()


def stored(place: str, mark: Path, answers: list[Answered]) -> list[Answered]:
    """Those that can be replayed: an answer is sent even if it could not be stored."""
    t = tables.answers
    with Ledger.open(place, mark) as ledger, tables.reading(ledger.engine) as connection:
        there = set(connection.scalars(sa.select(t.c.key).where(t.c.body.is_not(None))))
    return [one for one in answers if digest(one[0]) in there]


@pytest.mark.parametrize("kills", [4, pytest.param(200, marks=pytest.mark.long)])
def test_a_killed_service_has_charged_what_it_answered(nursery: Nursery, place: str, folder: Path, kills: int) -> None:
    token, chance = begun(place, folder / "mark"), random.Random(0)
    total, lost, replayed, last = 0, 0, 0, list[Answered]()
    for number in range(kills):
        with serving(nursery, folder, place) as (pid, where):
            before = charged(place, folder / "mark")
            replay(where, token, last)
            replayed += len(last)
            assert charged(place, folder / "mark") == before, "a replay is free"
            with Askers(where, token, str(number), lambda _: False) as askers:
                askers.wait_for(chance.randint(1, 60))
                askers.enough.set()
                nursery.end(pid, signal.SIGKILL)
                askers.end()
        assert nursery.wait(pid) == -signal.SIGKILL
        total += askers.units()
        now = charged(place, folder / "mark")
        assert now - before >= askers.units(), f"kill {number}"
        lost = max(lost, now - before - askers.units())
        last = askers.answered[-3:]
    assert lost <= ASKERS * 3, "no more than what was under way"
    print(f"{kills} kills: {total} units answered, {now - total} charged without an answer, {replayed} replayed")


@pytest.mark.parametrize("kills", [2, pytest.param(200, marks=pytest.mark.long)])
def test_a_killed_database_server_loses_nothing(nursery: Nursery, server: Server, folder: Path, kills: int) -> None:
    """Whoever repeats with the same key what the service could not say is charged for it exactly once."""
    place, mark, chance = server.place, folder / "mark", random.Random(0)
    token = begun(place, mark)
    with serving(nursery, folder, place) as (pid, where):
        with Askers(where, token, "all", lambda status: status == 503) as askers:
            for number in range(kills):
                askers.wait_for(chance.randint(1, 40))
                server.kill()
                told = askers.units()
                server.start()
                wait_for(server.home).close()
                assert charged(place, mark) >= told, f"kill {number}"
            askers.wait_for(ASKERS)
            askers.end()
        now = charged(place, mark)
        assert now == askers.units()
        kept = stored(place, mark, askers.answered)
        replay(where, token, kept[-100:])
        assert charged(place, mark) == now, "a replay is free"
    nursery.end(pid, signal.SIGTERM)
    assert nursery.wait(pid) == 0
    print(
        f"{kills} kills: {now} units answered and charged, {askers.repeated} repeats, "
        f"{len(askers.answered) - len(kept)} of {len(askers.answered)} answers not stored"
    )
