"""The case of methods over shards: made-up records of which one, or one person's, reverses the vector of its shard.

Half of the shards hold records that say "−a", the others one that says "+a", so that a release can go either way. A
shard that says −a holds two records of label 1 whose sum is a/2, and two of label 0 that cancel out; the record that
differs is a itself with label 0. The penalty is so large that a head is the sum of its records, and the radius so small
that every vector is clipped: from −a/2 to +a/2 is from one side of the ball to the other. Records are scaled until they
lie in the shard where they are wanted; features have norm 1, so the scale does not matter otherwise.

Where a number is predicted, label 1 is the upper end of the range and label 0 the lower one: distances from the middle
are what centred labels are, so that everything else is the same.

Of people, everybody has one record, and the one who differs has many, of different scales: together they weigh as one
record, and her identifier puts them into one shard. By what they say they would be in shards all over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import numpy as np

from airlock.config import ReleaseConfig, TargetRange, from_table
from airlock.data import Facts, Records, joined, shard
from airlock.data.split import Task

CASE_SHARDS = 50
CASE_RADIUS = 1e-4
CASE_FACTS = Facts("court", (2,), ("0", "1"), 1000, 1, "made up for the court")
VISITS = 50  # records of the person who differs
CASE_RANGE = TargetRange(min=0, max=1)
CASE_FACTS_OF_NUMBERS = replace(CASE_FACTS, classes=(), target=CASE_RANGE)
CASE_FACTS_OF_PEOPLE = replace(CASE_FACTS, records=2000, people=1000, records_per_person=VISITS)
PAIR = (
    f"{CASE_SHARDS} shards of which half say −a and half +a, with and without one {{who}} that turns one of them from "
    "−a to +a, all clipped"
)
STATISTICS = ("how much more likely what leaves is with the record, or the person",)
_CASE_RIDGE = 1e3
_SIDE = math.sqrt(1 - 0.25**2)  # two vectors (1/4, ±_SIDE) add up to a/2
_AGAINST = (((0.25, _SIDE), 1), ((0.25, -_SIDE), 1), ((0.0, 1.0), 0), ((0.0, -1.0), 0))
_FOR = ((1.0, 0.0), 0)
_TRIES = 2000

Kind = tuple[tuple[float, float], int]


def case_config(
    method: str, epsilon: float, delta: float, task: Task = "classification", **changes: int | None
) -> ReleaseConfig:
    """Heads on the records themselves."""
    settings = {"features": "pixels", "ridge": _CASE_RIDGE, "radius": CASE_RADIUS, "dimensions": 2}
    table = {"channel": "twin", "method": method, "data": "court", "epsilon": epsilon, "delta": delta, "device": "cpu"}
    if task == "regression":
        table |= {"task": task, "data": {"source": "court", "target": CASE_RANGE.model_dump()}}
    table |= {"split": {"test": 0.0, "holdout": 0.0}, "settings": {**settings, "shards": CASE_SHARDS, **changes}}
    return from_table(table)


def pair_of(facts: Facts) -> str:
    """The two data sets in words."""
    return PAIR.format(who="record" if facts.people is None else f"person with {VISITS} records")


def neighbours(seed: int, visits: int | None = None, top: int = 1) -> tuple[Records, Records]:
    """With and without the record, or the person with so many, that lies in the first shard and comes last.

    Args:
        seed: Of the shards.
        visits: Records of the person who differs, where people are protected.
        top: What stands for label 1: `STEPS` where a number is predicted.
    """
    half = CASE_SHARDS // 2
    wanted = [*((kind, range(half)) for kind in _AGAINST), (_FOR, [*range(half, CASE_SHARDS), 0])]
    both = reduce(
        joined, (_placed(kind, places, seed, visits and _TRIES * i, top) for i, (kind, places) in enumerate(wanted))
    )
    others, last = both.take(np.arange(len(both) - 1)), both.take(np.full(visits or 1, len(both) - 1))
    sizes = np.linspace(1, 2, len(last), dtype=np.float32)[:, None]
    return joined(others, replace(last, x=np.asarray(last.x, np.float32) * sizes)), others


def _placed(kind: Kind, places: Sequence[int], seed: int, first: int | None, top: int) -> Records:
    """Multiples of the vector, one in each of these shards; of people who are numbered from `first` on."""
    (vector, label), scale = kind, np.linspace(1, 2, _TRIES)[:, None]
    whose = None if first is None else np.arange(first, first + _TRIES)
    every = Records((scale * np.array(vector)).astype(np.float32), np.full(_TRIES, top * label, np.int64), whose)
    own = shard(every, CASE_SHARDS, seed)
    return every.take(np.array([own[place][0] for place in places]))
