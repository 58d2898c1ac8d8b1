"""The life of a data set under a register, killed again and again; tests/test_life.py runs it as a process of its own.

A year has three releases, one of them a search, a budget of answers that is served, and a release that does not fit.
Whoever lives it is killed at some call of what charges, reads, keeps or writes, counted and not timed, and the next one
goes on with `resume`. Forked from a process that has imported everything: a life is short.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airlock import data
from airlock.accounting import from_json
from airlock.bundle import Vault, booking, bundle, read, register
from airlock.bundle.booking import Booking
from airlock.bundle.register import RegisterPlace, account
from airlock.config import from_table
from airlock.errors import Refused
from airlock.ledger.register import Register
from airlock.pipeline import make_release

EPSILON, DELTA = 200.0, 1e-4
COMMON = {"data": "digits", "epsilon": 0.5, "delta": 1e-5}
TRAINED = {"channel": "weights", "method": "gaussian", "net": "linear", "settings": {"steps": 2}}
YEAR: dict[str, dict[str, Any]] = {
    "spring": TRAINED,
    "summer": {**TRAINED, "settings": {"steps": 3}},
    "served": {"channel": "answers", "method": "per-query", "settings": {"queries": 5, "features": "pixels"}},
    "searched": {**TRAINED, "tune": {"mean": 2.0, "search": {"settings.learning_rate": [0.5, 1.0]}}},
}
WATCHED: tuple[tuple[Any, str], ...] = (
    (booking, "book"), (Booking, "start"), (Booking, "release"), (Booking, "forget"), (Register, "reserve"),
    (Register, "start"), (Register, "release"), (data, "load"), (Vault, "begin"), (Vault, "store"), (Vault, "record"),
    (bundle, "write"),
)  # fmt: skip
MOST = 40  # calls until a kill


class House:
    """A folder with a vault and bundles, and its register."""

    def __init__(self, folder: Path, place: str) -> None:
        self.folder, self.place = folder, RegisterPlace(place, "the config")
        self.vault = Vault.open(folder / "vault")

    def live(self, year: int) -> None:
        """All that is not there yet of one year."""
        for name, changes in YEAR.items():
            out = self.folder / f"{year}-{name}"
            if not out.exists():
                self._release({**COMMON, **changes, "seed": year}, out)
        with contextlib.suppress(Refused):
            self._release({**COMMON, **TRAINED, "epsilon": 900.0}, self.folder / "too-much")
            raise AssertionError("a release of 900 fits into 200")

    def _release(self, table: dict[str, Any], out: Path) -> None:
        asked = from_table({**table, "register": self.place.place})
        make_release(asked, out, vault=self.vault.root, resume=True)


def kill_after(calls: int) -> None:
    """From now on this process ends before or after so many calls of what is watched."""
    left = [calls]

    def tick() -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def around(*arguments: Any, **named: Any) -> Any:
            tick()
            found = call(*arguments, **named)
            tick()
            return found

        return around

    for owner, name in WATCHED:
        setattr(owner, name, watched(getattr(owner, name)))


def lived(house: House, year: int, calls: int | None) -> bool:
    """Whether a child came to the end of the year; otherwise it was killed."""
    child = os.fork()
    if not child:
        code = 3
        try:
            if calls is not None:
                kill_after(calls)
            house.live(year)
            code = 0
        finally:
            if code:
                traceback.print_exc()
                sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return False
    assert status == 0, f"a life ended with {status}"
    return True


def told(house: House) -> dict[str, Any]:
    """What the register says in the end, next to what lies in the folder."""
    found, costs, released = account(house.place, house.vault), {}, {}
    for path in sorted(house.folder.glob("[0-9]*-*/card.json")):
        card = read(path.parent).card
        parts = card.guarantee.parts
        events = [from_json(part.events) for part in (parts.private, parts.test, parts.holdout)]
        costs[card.release_id] = found.budget.cost(events)
    for one in found.charged:
        if one.release is not None:
            released.setdefault(one.release, []).append(one.units)
    return {
        "spent": found.spent,
        "states": [[one.state, one.units] for one in found.charged],
        "bundles": costs,
        "released": released,
        "hidden": sorted(path.name for path in house.folder.glob(".*")),
    }


def main(folder: Path, place: str, kills: int) -> None:
    """Kill so many times, then live the last year to its end."""
    warnings.simplefilter("ignore")
    house, chance, year, killed = House(folder, place), random.Random(0), 0, 0
    register.create(place, house.vault, "digits", epsilon=EPSILON, delta=DELTA).close()
    while killed < kills:
        done = lived(house, year, chance.randint(1, MOST))
        year, killed = (year + 1, killed) if done else (year, killed + 1)
    assert lived(house, year, None)
    print(json.dumps({"kills": killed, "years": year + 1, **told(house)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
