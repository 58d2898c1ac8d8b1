"""`answers`/`neighbours` at several ε and numbers of questions: one row of JSON each, to neighbours.jsonl.

The votes of a seed are counted once, since neither ε nor Q has a part in them; every row is answered with noise from
the operating system.

    python docs/results/neighbours.py DATA mnist 0 1 2
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

from airlock import data, methods
from airlock.config import ReleaseConfig, from_table
from airlock.errors import ConfigError
from airlock.mechanisms import Randomness
from airlock.methods.answers.neighbours import Neighbours
from airlock.methods.interface import ask_all
from airlock.threads import one_thread
from airlock.training import Run

ROWS = Path(__file__).with_suffix(".jsonl")
ASKED = [(1.0, 100), (1.0, 1000), (1.0, 10_000), (0.3, 1000), (3.0, 1000), (8.0, 1000)]  # ε and Q


def config(source: str, epsilon: float, queries: int, public: float, seed: int) -> ReleaseConfig:
    """A release with the defaults."""
    return from_table(
        {
            "channel": "answers",
            "method": "neighbours",
            "data": source,
            "epsilon": epsilon,
            "delta": 1e-5,
            "seed": seed,
            "split": {"public": public},
            "settings": {"queries": queries},
        }
    )


def rows(folder: Path, source: str, public: float, seed: int) -> None:
    """All rows of one seed, as they are measured."""
    first = config(source, *ASKED[0], public, seed)
    split = data.load(first, folder)
    kept = None
    for epsilon, queries in ASKED:
        channel = methods.build(config(source, epsilon, queries, public, seed), split.facts)
        assert isinstance(channel, Neighbours)
        try:
            plan = channel.plan()
        except ConfigError as refused:
            print(json.dumps({"data": source, "epsilon": epsilon, "queries": queries, "refused": str(refused)}))
            continue
        kept = kept or channel.kept(channel.ready(), split.private, split.public, Run())
        answerer = channel.answerer(channel.interface(), kept)
        found = ask_all(answerer, split.test, Randomness.make(seed).privacy.child("utility"))
        row = {
            "data": source, "public": public, "seed": seed, "epsilon": epsilon, "queries": queries,
            "neighbours": plan.details["neighbours"], "noise": round(float(plan.details["noise_multiplier"]), 2),
            "accuracy": round(100 * found.accuracy, 2), "tests": found.records,
        }  # fmt: skip
        assert math.isclose(plan.guarantee.epsilon or 0.0, epsilon, rel_tol=1e-2)
        print(json.dumps(row), flush=True)
        with ROWS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("source")
    parser.add_argument("seeds", type=int, nargs="+")
    parser.add_argument("--public", type=float, default=0.2)
    asked = parser.parse_args()
    with one_thread():
        for one in asked.seeds:
            rows(asked.folder, asked.source, asked.public, one)
