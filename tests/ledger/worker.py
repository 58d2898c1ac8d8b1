"""Processes that spend, die and run out of disk: run by the tests as `python -m tests.ledger.worker WHAT …`.

It forks while it has one thread, so that a child costs milliseconds, and prints what happened as JSON. By hand, at full
size: `crash PLACE MARK 200` and `share PLACE MARK 8 500`.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import resource
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airlock.errors import AirlockError, Exhausted, KeyReused
from airlock.ledger import Charge, Ledger, Register, RegisterTerms, Replay, Spend, Terms, digest, tables
from airlock.ledger.mark import HighWaterMark
from airlock.ledger.transaction import Transaction
from tests.waiting import LONG

REQUEST = digest("a request")
tables.LOCK_SECONDS = int(LONG)  # a busy machine may hold a lock for long; only a hang holds it for ever


def fork(work: Callable[[], None]) -> int:
    """A child that does the work and ends without cleaning up."""
    child = os.fork()
    if child:
        return child
    try:
        work()
        os._exit(0)
    except BaseException as error:  # noqa: BLE001 - a child must not go on as its parent
        print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)


def prepared(place: str, mark: str, cap: int) -> None:
    with Ledger.open(place, Path(mark), Terms("r", cap, "u")) as ledger:
        ledger.set_quota("ann", None)


def share(place: str, mark: str, processes: str, spends: str) -> dict[str, Any]:
    """Many processes on a budget of three quarters of what they ask for; each has its own mark."""
    asked = int(processes) * int(spends)
    cap = asked * 3 // 4
    prepared(place, mark, cap)
    ends = [os.pipe() for _ in range(int(processes))]

    def work(number: int) -> None:
        paid = refused = 0
        with Ledger.open(place, Path(f"{mark}-{number}"), new_mark=True) as ledger:
            for _ in range(int(spends)):
                try:
                    paid += ledger.spend(Spend("ann", 1, REQUEST)).units  # type: ignore[union-attr]
                except Exhausted:
                    refused += 1
        os.write(ends[number][1], json.dumps([paid, refused]).encode())

    children = [fork(lambda number=number: work(number)) for number in range(int(processes))]  # type: ignore[misc]
    codes = [os.waitpid(child, 0)[1] for child in children]
    told = [json.loads(os.read(end, 100)) for end, _ in ends] if not any(codes) else []
    with Ledger.open(place, Path(mark)) as ledger:
        verdict = ledger.verify()
        return {
            "codes": codes,
            "cap": cap,
            "paid": sum(paid for paid, _ in told),
            "refused": sum(refused for _, refused in told),
            "spent": ledger.balance().spent,
            "ok": verdict.ok,
        }


def crash(place: str, mark: str, rounds: str) -> dict[str, Any]:
    """Kill a process under load after some number of answers, again and again, on one ledger."""
    prepared(place, mark, 10**9)
    chance = random.Random(0)
    answered, lost, checked = 0, [], 0
    for number in range(int(rounds)):
        before = _spent(place, mark)
        lines = _killed_under_load(place, mark, number, chance.randint(3, 60))
        told = sum(units for units, _ in lines)
        with Ledger.open(place, Path(mark)) as ledger:
            # A server may still carry out the commit that its client sent last; whoever gets the lock has seen its end.
            ledger.forget_answers()
            verdict = ledger.verify()
            assert verdict.ok, verdict
            charged = ledger.balance().spent - before
            assert charged >= told, f"round {number}: charged {charged}, answered {told}"
            for units, key in lines[-3:]:
                again = ledger.spend(Spend("ann", units, REQUEST, key=key))
                assert again == Replay(again.entry, key.encode()), again
                checked += 1
            assert ledger.balance().spent == before + charged
        answered += told
        lost.append(charged - told)
    return {"answered": answered, "lost": sum(lost), "most_lost": max(lost), "replayed": checked}


def _spent(place: str, mark: str) -> int:
    with Ledger.open(place, Path(mark)) as ledger:
        return ledger.balance().spent


def _killed_under_load(place: str, mark: str, number: int, answers: int) -> list[tuple[int, str]]:
    """What a child with eight threads had answered, killed after so many answers: units and key of each answer."""
    read, write = os.pipe()

    def work() -> None:
        ledger = Ledger.open(place, Path(mark))

        def ask(thread: int) -> None:
            chance = random.Random(f"{number}-{thread}")
            for count in range(10**9):
                units, key = chance.randint(1, 3), f"{number}-{thread}-{count}"
                charge = ledger.spend(Spend("ann", units, REQUEST, key=key))
                assert isinstance(charge, Charge)
                assert ledger.keep(charge, key.encode())
                os.write(write, f"{units} {key}\n".encode())

        def ask_or_end(thread: int) -> None:
            try:
                ask(thread)
            except BaseException as error:  # noqa: BLE001 - the parent waits for answers, and must hear of the end
                print(repr(error), file=sys.stderr, flush=True)
                os._exit(1)

        threads = [threading.Thread(target=ask_or_end, args=(thread,)) for thread in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    child = fork(work)
    os.close(write)
    with os.fdopen(read) as lines:
        heard = list(itertools.islice(lines, answers))
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        heard += [line for line in lines if line.endswith("\n")]
    assert len(heard) >= answers
    return [(int(units), key) for units, key in (line.split() for line in heard)]


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def before(owner: Any, name: str) -> None:
    setattr(owner, name, die)


def after(owner: Any, name: str) -> None:
    original = getattr(owner, name)

    def both(*arguments: Any, **options: Any) -> None:
        original(*arguments, **options)
        die()

    setattr(owner, name, both)


# Each step of a spend, and whether a process that dies there has charged.
STEPS: dict[str, tuple[Callable[[], None], bool]] = {
    "before the lock": (lambda: before(Transaction, "open"), False),
    "with the lock": (lambda: after(Transaction, "_load"), False),
    "decided": (lambda: after(Transaction, "charge"), False),
    "before writing": (lambda: before(Transaction, "flush"), False),
    "before the commit": (lambda: after(Transaction, "flush"), False),
    "before the mark": (lambda: before(HighWaterMark, "raise_to"), True),
    "while the mark is written": (lambda: before(os, "replace"), True),
    "before the caller hears of it": (lambda: after(HighWaterMark, "raise_to"), True),
    "before the answer is stored": (lambda: before(Ledger, "keep"), True),
    "before the answer is sent": (lambda: after(Ledger, "keep"), True),
}


def steps(place: str, mark: str) -> dict[str, Any]:
    """Die at each step of a spend; the ledger opens, verifies, and has charged or not as the step says."""
    prepared(place, mark, 1000)
    found = {}
    for number, (name, (arrange, _)) in enumerate(STEPS.items()):

        def work(number: int = number, arrange: Callable[[], None] = arrange) -> None:
            ledger = Ledger.open(place, Path(mark))
            arrange()
            ledger.keep(ledger.spend(Spend("ann", 1, REQUEST, key=str(number))), b"answer")  # type: ignore[arg-type]

        start = _spent(place, mark)
        status = os.waitpid(fork(work), 0)[1]
        with Ledger.open(place, Path(mark)) as ledger:
            charged = ledger.balance().spent - start
            try:
                again = type(ledger.spend(Spend("ann", 1, REQUEST, key=str(number)))).__name__
            except KeyReused:
                again = "KeyReused"
            found[name] = [status == signal.SIGKILL, charged, again, ledger.verify().ok]
    return found


def full(place: str, mark: str, limit: str) -> dict[str, Any]:
    """Spend until no file may grow (`limit` bytes; 0: until the disk is full), then go on with room again."""
    prepared(place, mark, 10**9)
    paid, refusals = 0, []
    with Ledger.open(place, Path(mark)) as ledger:
        if int(limit):
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), resource.RLIM_INFINITY))
        for count in range(100_000):
            try:
                charge = ledger.spend(Spend("ann", 1, REQUEST, key=f"{count}"))
                paid += 1
                ledger.keep(charge, os.urandom(4000))  # type: ignore[arg-type]
            except AirlockError as error:
                refusals.append(type(error).__name__)
                if len(refusals) == 5:
                    break
        during = ledger.verify().ok
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        with contextlib.suppress(FileNotFoundError):
            Path(place).with_name("ballast").unlink()
        ledger.spend(Spend("ann", 1, REQUEST))
    with Ledger.open(place, Path(mark)) as ledger:
        spent = ledger.balance().spent
        return {
            "paid": paid + 1,
            "spent": spent,
            "refusals": sorted(set(refusals)),
            "during": during,
            "ok": ledger.verify().ok,
        }


def register_terms(cap: int) -> RegisterTerms:
    return RegisterTerms("register of people", cap, "1e-06", "people", 10.0, 1e-5, 3, "record")


def race(place: str, mark: str, processes: str, units: str, cap: str) -> dict[str, Any]:
    """Processes that each reserve the same, at once; each has its own mark, as if on its own machine."""
    Register.open(place, Path(mark), register_terms(int(cap))).close()
    ends = [os.pipe() for _ in range(int(processes))]

    def work(number: int) -> None:
        with Register.open(place, Path(f"{mark}-{number}"), new_mark=True) as register:
            try:
                register.start(register.reserve(int(units), {"by": number}))
                os.write(ends[number][1], b"1")
            except Exhausted:
                os.write(ends[number][1], b"0")

    children = [fork(lambda number=number: work(number)) for number in range(int(processes))]  # type: ignore[misc]
    codes = [os.waitpid(child, 0)[1] for child in children]
    won = [os.read(end, 1) for end, _ in ends] if not any(codes) else []
    with Register.open(place, Path(mark)) as register:
        spent, ok = register.balance().spent, register.verify().ok
    return {"codes": codes, "won": won.count(b"1"), "refused": won.count(b"0"), "spent": spent, "ok": ok}


# Each step of a release, what is charged by a process that dies there, and how its reservation stands.
REGISTER_STEPS: dict[str, tuple[Callable[[Register], None], int, str | None]] = {
    "before the reservation": (lambda register: before(Transaction, "flush"), 0, None),
    "reserved, before the mark": (lambda register: before(HighWaterMark, "raise_to"), 7, "reserved"),
    "reserved": (lambda register: after(Register, "reserve"), 7, "reserved"),
    "before the start": (lambda register: before(Register, "start"), 7, "reserved"),
    "started": (lambda register: after(Register, "start"), 7, "started"),
    "before the release": (lambda register: before(Register, "release"), 7, "started"),
    "released": (lambda register: after(Register, "release"), 7, "released"),
}


def register(place: str, mark: str) -> dict[str, Any]:
    """Die at each step of a release; what is charged stays so."""
    Register.open(place, Path(mark), register_terms(1000)).close()
    found = {}
    for name, (arrange, _, _) in REGISTER_STEPS.items():

        def work(name: str = name, arrange: Callable[[Register], None] = arrange) -> None:
            opened = Register.open(place, Path(mark))
            arrange(opened)
            held = opened.reserve(7, {"step": name})
            opened.start(held)
            opened.release(held, "id")

        with Register.open(place, Path(mark)) as opened:
            start = opened.balance().spent
        status = os.waitpid(fork(work), 0)[1]
        with Register.open(place, Path(mark)) as opened:
            mine = [one for one in opened.history() if one.about["step"] == name]
            state = mine[0].state if mine else None
            found[name] = [status == signal.SIGKILL, opened.balance().spent - start, state, opened.verify().ok]
    return found


if __name__ == "__main__":
    works = {"share": share, "crash": crash, "steps": steps, "full": full, "race": race, "register": register}
    print(json.dumps(works[sys.argv[1]](*sys.argv[2:])))
