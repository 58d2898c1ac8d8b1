"""A made-up table of people with 1 to 50 visits each, for all tests about people."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from airlock.config import ReleaseConfig, from_table

PEOPLE = 300
DATA: Mapping[str, Any] = {
    "name": "visits",
    "label": "ill",
    "classes": ["no", "yes"],
    "columns": {"age": {"min": 0, "max": 100}, "pulse": {"min": 40, "max": 200}},
    "records": 1000,
    "person": "patient_id",
    "people": PEOPLE,
}


def identifiers(people: int = PEOPLE) -> list[str]:
    """As they are in the file."""
    return [f"QX-{7 * who:05}" for who in range(people)]


def visits_of(who: int) -> int:
    """Most have few; every hundredth has fifty."""
    return 50 if who % 100 == 99 else 1 + who % 4


def write(folder: Path, people: int = PEOPLE) -> Path:
    """The table, the visits of all people mixed; who is old with a high pulse tends to be ill."""
    chance, lines = np.random.default_rng(5), []
    for who, name in enumerate(identifiers(people)):
        age, ill = chance.uniform(20, 90), chance.random()
        for _ in range(visits_of(who)):
            pulse = chance.uniform(50, 150)
            sick = age / 100 + pulse / 200 + 0.3 * ill > 1.2
            lines.append(f"{age:.1f},{name},{pulse:.1f},{('no', 'yes')[sick]}")
    chance.shuffle(lines)
    path = folder / "visits.csv"
    path.write_text("\n".join(["age,patient_id,pulse,ill", *lines]) + "\n")
    return path


def config(source: Path, **changes: Any) -> ReleaseConfig:
    """A release of answers/head of this table; `data` is merged, None removes a key."""
    data = {**DATA, "source": str(source), **changes.pop("data", {})}
    table = {
        "channel": "answers",
        "method": "head",
        "epsilon": 4.0,
        "delta": 1e-3,
        "split": {"holdout": 0.3},
        **changes,
    }
    return from_table({**table, "data": {key: value for key, value in data.items() if value is not None}})
