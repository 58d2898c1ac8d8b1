"""Seconds to open a SQLite ledger of a million entries: the whole log walked, and only what follows a kept state.

The log is written as the ledger writes it (50 clients, every other charge with an idempotency key) but in few
transactions. The whole walk is what a new mark or a lost state costs, and what `airlock ledger verify` does.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from airlock.ledger import Ledger, Spend, Terms, digest, tables
from airlock.ledger.chain import SPENT, Entry

ENTRIES, CLIENTS, ROUNDS = 1_000_000, 50, 3


def run() -> list[dict[str, Any]]:
    """One row per way of opening: seconds of wall clock, and of this process's processor time; the best of three."""
    with tempfile.TemporaryDirectory(dir=".") as name:
        place, mark = Path(name) / "ledger.db", Path(name) / "vault" / "mark"
        _write(place, mark)
        state = mark.with_name(f"{mark.name}.state")

        def whole() -> None:
            state.unlink(missing_ok=True)
            Ledger.open(place, mark).close()

        def rest() -> None:
            Ledger.open(place, mark).close()

        return [
            _row(f"opened with all of {ENTRIES:,} entries walked", whole),
            _row("opened again, from the state kept beside the mark", rest),
        ]


def _row(what: str, work: Callable[[], None]) -> dict[str, Any]:
    walls, works = [], []
    for _ in range(ROUNDS):
        wall, used = time.perf_counter(), time.process_time()
        work()
        walls.append(time.perf_counter() - wall)
        works.append(time.process_time() - used)
    return {"what": what, "seconds": round(min(walls), 2), "processor_seconds": round(min(works), 2)}


def _write(place: Path, mark: Path) -> None:
    with Ledger.open(place, mark, Terms("bench", 10**9, "unit")) as ledger:
        for number in range(CLIENTS):
            ledger.set_quota(f"client-{number}", None)
        last = ledger.spend(Spend("client-0", 1, digest("a request")))
        seal = ledger.mark.seal(ledger.id)
        assert seal is not None
        with tables.writing(ledger.engine) as connection:
            head = connection.scalar(sa.select(tables.ledger.c.head))
            for first in range(last.entry + 1, ENTRIES + 1, 50_000):
                rows = []
                for seq in range(first, min(first + 50_000, ENTRIES + 1)):
                    key = digest(str(seq)) if seq % 2 else ""
                    client, request = f"client-{seq % CLIENTS}", digest(f"request {seq}")
                    entry = Entry(seq, 1_800_000_000_000 + seq, SPENT, client, 1, 2, request, key, "", str(head))
                    head = seal.hash(entry.packed())
                    rows.append(vars(entry) | {"hash": head})
                connection.execute(sa.insert(tables.log), rows)
            spent = connection.scalar(sa.select(sa.func.sum(tables.log.c.units)))
            connection.execute(sa.update(tables.ledger).values(entries=ENTRIES, head=head, spent=spent))
            for number in range(CLIENTS):
                name = f"client-{number}"
                its = sa.select(sa.func.sum(tables.log.c.units)).where(tables.log.c.client == name)
                connection.execute(
                    sa.update(tables.clients).where(tables.clients.c.name == name).values(spent=connection.scalar(its))
                )
