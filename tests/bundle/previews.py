"""Small releases that are real, one of each kind of card, for tests of what people read."""

from __future__ import annotations

import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from airlock.config import from_table
from airlock.pipeline import Preview, preview

ABOUT = {
    "whose": "People who wrote digits on forms",
    "fields": "Pictures of 8 by 8 grey values, and which digit each of them shows",
    "purpose": "Sorting letters",
    "controller": "The post office",
    "recipient": "Makers of sorting machines",
    "retention": "Ten years",
}
KINDS: dict[str, dict[str, Any]] = {
    "weights": {"channel": "weights", "method": "gaussian", "epsilon": 8.0, "net": "linear", "settings": {"steps": 2}},
    "strong": {"channel": "answers", "method": "head", "epsilon": 1.0, "about": ABOUT, "attack_share": 0.2},
    "twin": {"channel": "twin", "method": "sharded", "epsilon": 8.0},
    "student": {
        "channel": "student", "method": "private-teacher", "epsilon": 3.0, "split": {"public": 0.3},
        "settings": {"rounds": 1, "private": {"steps": 1}},
    },
    "features": {
        "channel": "features", "method": "noised", "epsilon": 8.0, "split": {"public": 0.3}, "settings": {"layers": 1},
    },
    "answers": {
        "channel": "answers", "method": "per-query", "epsilon": 1.0, "settings": {"queries": 100},
    },
    "unproven": {
        "channel": "weights", "method": "published", "epsilon": 1.0, "net": "linear", "settings": {"steps": 1},
    },
}  # fmt: skip


@cache
def small(kind: str) -> Preview:
    """The card and the dossier of one of `KINDS`, made once."""
    folder = tempfile.mkdtemp()
    try:
        return preview(from_table({"data": "digits", "delta": 1e-4} | KINDS[kind]), Path(folder))
    finally:
        shutil.rmtree(folder)
