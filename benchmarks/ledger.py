"""Spends per second by 32 concurrent callers on a SQLite ledger on this disk, with and without group commit.

In both, every spend is on disk before its caller continues; the two take turns in one process, so that a busy machine
slows both equally, and the medians of the rounds are compared.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from airlock.ledger import Ledger, Spend, Terms, digest

CALLERS, ROUNDS = 32, 5
SPENDS = {256: 1600, 1: 160}


def run() -> list[dict[str, Any]]:
    """One row: spends per second with group commit, without it, and their ratio."""
    rates: dict[int, list[float]] = {batch: [] for batch in SPENDS}
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for _ in range(ROUNDS):
            for batch, spends in SPENDS.items():
                rates[batch].append(_rate(Path(folder), batch, spends))
    together, alone = (statistics.median(rates[batch]) for batch in SPENDS)
    return [
        {
            "what": f"durable spends a second, {CALLERS} callers, SQLite",
            "group_commit": round(together),
            "one_by_one": round(alone),
            "ratio": round(together / alone, 2),
        }
    ]


def _rate(folder: Path, batch: int, spends: int) -> float:
    with Ledger.open(folder / "ledger.db", folder / "mark", Terms("bench", 10**9, "unit"), batch=batch) as ledger:
        ledger.set_quota("ann", None)
        order = Spend("ann", 1, digest("a request"))
        with ThreadPoolExecutor(CALLERS) as pool:
            start = time.perf_counter()
            for charge in pool.map(ledger.spend, [order] * spends):
                assert charge.entry
            return spends / (time.perf_counter() - start)
