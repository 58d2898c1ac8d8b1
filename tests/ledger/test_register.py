"""A register's reservations, on both databases: charged first, returned once and only unread, released once."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from airlock.errors import ConfigError, Exhausted, LedgerBroken, LedgerUnavailable, Refused
from airlock.ledger import Held, Ledger, Register, RegisterTerms, Terms, digest, tables
from airlock.ledger.chain import Entry
from airlock.ledger.register import Advance, Reserve
from tests.bundle.test_register import STEPS, House, killed_at
from tests.ledger.conftest import MEMORY, forging
from tests.ledger.test_processes import work
from tests.ledger.worker import REGISTER_STEPS, register_terms

ABOUT = {"what": "weights/gaussian"}


@pytest.fixture
def register(place: str, mark: Path) -> Iterator[Register]:
    with Register.open(place, mark, register_terms(100)) as opened:
        yield opened


def test_a_reservation_is_charged_and_stays_so(register: Register, place: str, mark: Path) -> None:
    held = register.reserve(40, ABOUT)
    assert (held.units, held.spent, register.balance().left) == (40, 40, 60)
    with pytest.raises(Exhausted):
        register.reserve(61, ABOUT)
    register.start(held)
    register.release(held, "a" * 32)
    with Register.open(place, mark) as again:
        (one,) = again.history()
        assert (one.state, one.spent, one.release, one.about) == ("released", 40, "a" * 32, ABOUT)
        assert again.verify().ok


def test_a_return_gives_the_units_back_once(register: Register) -> None:
    held, other = register.reserve(40, ABOUT), register.reserve(10, ABOUT)
    register.give_back(held)
    assert register.balance().spent == 10
    for again in (register.give_back, register.start):
        with pytest.raises(Refused):
            again(held)
    assert register.balance().spent == 10
    assert register.reserve(90, ABOUT).spent == 100
    assert register.is_open(other)
    assert not register.is_open(held)
    assert register.verify().ok


def nothing_is_returned_after_reading_started(folder: Path) -> None:
    """The check of a planted fault too."""
    with Register.open(folder / "register.db", folder / "vault" / "mark", register_terms(100)) as register:
        held = register.reserve(40, ABOUT)
        register.start(held)
        with pytest.raises(Refused):
            register.give_back(held)
        assert register.balance().spent == 40


def test_nothing_is_returned_after_reading_started(folder: Path) -> None:
    nothing_is_returned_after_reading_started(folder)


def test_a_reservation_releases_once(register: Register) -> None:
    held = register.reserve(40, ABOUT)
    with pytest.raises(Refused):  # it reads nothing before it has started, so it has nothing to release
        register.release(held, "a")
    register.start(held)
    register.start(held)  # resumed
    register.release(held, "a")
    for again in (register.start, register.give_back, lambda one: register.release(one, "b")):
        with pytest.raises(Refused):
            again(held)


def test_only_who_has_the_token_starts_or_returns(register: Register) -> None:
    held = register.reserve(40, ABOUT)
    for other in (replace(held, token="0" * 64), replace(held, entry=1), replace(held, entry=99)):
        for step in (register.start, register.give_back):
            with pytest.raises(Refused):
                step(other)
    assert not register.is_open(replace(held, token="0" * 64))
    assert held.token not in json.dumps([vars(entry) for entry in register.ledger.history()])


def test_orders_of_one_transaction_see_each_other(register: Register) -> None:
    """Group commit takes a reservation and what follows it together."""
    held = register.reserve(60, ABOUT)
    token = digest(held.token)
    orders = [
        Advance("returned", held.entry, token, {}),
        Advance("returned", held.entry, token, {}),
        Advance("started", held.entry, token, {}),
        Reserve(90, token, "{}"),
        Reserve(20, token, "{}"),
    ]
    outcomes = register.ledger._settle(orders)  # type: ignore[arg-type]
    assert outcomes[0] is None
    assert [type(one) for one in outcomes[1:3]] == [Refused, Refused]
    assert outcomes[3][1] == 90  # type: ignore[index]
    assert isinstance(outcomes[4], Exhausted)
    assert register.balance().spent == 90
    assert register.verify().ok


def test_a_services_ledger_gives_nothing_back(ledger: Ledger) -> None:
    with pytest.raises(ConfigError, match="register"):
        Register(ledger)
    with pytest.raises(ConfigError, match="register"):
        ledger.order(Reserve(1, "0" * 64, "{}"))
    with pytest.raises(Refused):
        ledger.order(Advance("returned", 3, "", {}))
    assert ledger.verify().ok


def test_a_forged_return_is_refused(register: Register, place: str, mark: Path) -> None:
    """By someone who has the secret's hashes for everything but the rules: a return after the start, and one twice."""
    held = register.reserve(40, ABOUT)
    register.start(held)
    ledger = register.ledger
    last = ledger.history()[-1]
    head = ledger._state.head
    note = json.dumps({"of": held.entry})
    forged = Entry(last.seq + 1, last.at, "returned", "", 0, 0, "", digest(held.token), note, head)
    its_hash = ledger._seal.hash(forged.packed())
    with forging(ledger.engine) as connection:
        connection.execute(sa.insert(tables.log), [vars(forged) | {"hash": its_hash}])
        connection.execute(sa.update(tables.ledger).values(spent=0, entries=forged.seq, head=its_hash))
    with pytest.raises(LedgerBroken, match="no reservation that is open"):
        register.reserve(1, ABOUT)
    with pytest.raises(LedgerBroken):
        Register.open(place, mark)


def test_a_history_that_was_changed_is_refused(register: Register) -> None:
    register.reserve(40, ABOUT)
    register.reserve(10, ABOUT)
    with forging(register.ledger.engine) as connection:
        other = json.dumps({"what": "something else"})
        connection.execute(sa.update(tables.log).where(tables.log.c.seq == 2).values(note=other))
    with pytest.raises(LedgerBroken, match="content was changed"):
        register.history()


def test_a_mark_that_cannot_be_written_reserves_nothing_that_is_used(folder: Path) -> None:
    with Register.open(folder / "register.db", folder / "vault" / "mark", register_terms(100)) as register:
        blocked = folder / "vault" / ".mark.part"
        blocked.unlink(missing_ok=True)
        blocked.mkdir()
        with pytest.raises(LedgerUnavailable):
            register.reserve(10, ABOUT)
        blocked.rmdir()
        assert register.balance().spent == 10, "what may have been charged stays charged"


def test_a_state_kept_beside_the_mark_knows_what_is_open(folder: Path) -> None:
    place, mark = folder / "register.db", folder / "vault" / "mark"
    with Register.open(place, mark, register_terms(10**9)) as register:
        held = register.reserve(40, ABOUT)
        ledger = register.ledger
        ledger.mark.save_state(ledger._state.to_dict(), ledger._seal)
    with Register.open(place, mark) as again:
        assert again.is_open(held)
        again.give_back(held)
        assert again.balance().spent == 0
        assert again.verify().ok


def test_the_terms_are_read_back(register: Register) -> None:
    assert register.terms == register_terms(100)
    with pytest.raises(ConfigError, match="service"):
        RegisterTerms.from_json(Terms("r", 1, "u").to_json())


def test_eight_processes_race_for_the_last_units(place: str, mark: Path) -> None:
    """Each wants a seventh of what is left and a little more: exactly six fit, whoever they are."""
    found = work("race", place, mark, 8, 14, 90)
    assert found == {"codes": [0] * 8, "won": 6, "refused": 2, "spent": 84, "ok": True}


def test_killed_at_each_step_of_a_release(place: str, mark: Path) -> None:
    """After every step, what is charged covers what may have been read, and the log verifies."""
    found = work("register", place, mark)
    assert list(found) == list(REGISTER_STEPS)
    for name, (_, charged, state) in REGISTER_STEPS.items():
        killed, spent, was, ok = found[name]
        assert killed, name
        assert (spent, was) == (charged, state), name
        assert ok, name


@pytest.mark.parametrize("step", ["start", "release", "record"])
def test_a_release_that_is_killed_stays_charged_on_a_server_too(
    new_database: Callable[[], str], folder: Path, step: str
) -> None:
    owner, name, state = STEPS[step]
    house = House(folder, new_database())
    killed_at(owner, name, house)
    assert house.states() == [state]
    house.release(resume=True)
    assert house.states() == (["released"] if state != "released" else ["released", "released"])


@given(st.lists(st.tuples(st.sampled_from(["reserve", "start", "return", "release"]), st.integers(0, 5)), max_size=30))
@settings(max_examples=30)
def test_any_sequence_is_that_of_a_model_of_a_few_lines(steps: list[tuple[str, int]]) -> None:
    with (
        tempfile.TemporaryDirectory(dir=MEMORY) as folder,
        Register.open(Path(folder) / "r.db", Path(folder) / "v" / "mark", register_terms(60)) as register,
    ):
        held: list[Held] = []
        model: list[str] = []
        for what, which in steps:
            if what == "reserve":
                fits = 20 * sum(one != "returned" for one in model) + 20 <= 60
                if fits:
                    held.append(register.reserve(20, ABOUT))
                    model.append("reserved")
                else:
                    with pytest.raises(Exhausted):
                        register.reserve(20, ABOUT)
            elif which < len(held):
                _follow(register, held[which], model, which, what)
            assert register.balance().spent == 20 * sum(one != "returned" for one in model)
        assert [one.state for one in register.history()] == model
        assert register.verify().ok


def _follow(register: Register, held: Held, model: list[str], which: int, what: str) -> None:
    calls = {"start": register.start, "return": register.give_back, "release": lambda one: register.release(one, "x")}
    may = {"start": ("reserved", "started"), "return": ("reserved",), "release": ("started",)}[what]
    after = {"start": "started", "return": "returned", "release": "released"}[what]
    if model[which] in may:
        calls[what](held)
        model[which] = after
    else:
        with pytest.raises(Refused):
            calls[what](held)
