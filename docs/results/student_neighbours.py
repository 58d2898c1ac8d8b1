"""`student`/`neighbours` at several ε: one row of JSON each, to student_neighbours.jsonl.

The cells and the votes of a seed are found once, since ε has no part in them; every row has noise of its own from the
operating system, and a student of its own.

    python docs/results/student_neighbours.py runs/student-neighbours-mnist-eps1.97.toml DATA 0 1 2 --epsilons 1 1.97
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from airlock import data, methods
from airlock.config import ReleaseConfig, load
from airlock.mechanisms import Randomness
from airlock.methods.student.neighbours import Cells, NeighboursStudent
from airlock.threads import one_thread
from airlock.training import Run, outcomes_of
from airlock.training.neighbours import Whole
from airlock.training.stages import Stages

ROWS = Path(__file__).with_suffix(".jsonl")


def rows(first: ReleaseConfig, folder: Path, seed: int, epsilons: list[float]) -> None:
    """All rows of one seed, as they are measured."""
    split = data.load(first.model_copy(update={"seed": seed}), folder)
    known: tuple[Cells, Whole] | None = None
    for epsilon in epsilons:
        config = first.model_copy(update={"seed": seed, "epsilon": epsilon})
        channel = methods.build(config, split.facts)
        assert isinstance(channel, NeighboursStudent)
        if known is None:
            cells = channel.cells(split.public, Run())
            known = cells, channel.votes(split.private, cells, Run())
        cells, votes = known
        began, plan = time.monotonic(), channel.plan()
        noisy, _ = channel.publish(votes, Randomness.make(seed).privacy.child("votes"))
        labels = channel.labels(noisy, cells)
        net = channel._taught(split.public, labels, seed, Stages(Run(), {}))
        met = float((labels == split.public.y).mean())
        row = {
            "data": split.facts.name, "public": config.split.public, "net": channel.net_name, "seed": seed,
            "epsilon": epsilon, "noise": round(float(plan.details["noise_multiplier"]), 3),
            "goes_on": channel.chance(cells.graph), "public_labels_met": round(100 * met, 2),
            "accuracy": round(100 * outcomes_of(net, split.test, split.facts.task).accuracy, 2),
            "tests": len(split.test), "epochs": channel.settings.epochs, "seconds": round(time.monotonic() - began),
        }  # fmt: skip
        print(json.dumps(row), flush=True)
        with ROWS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("seeds", type=int, nargs="+")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.97])
    asked = parser.parse_args()
    with one_thread():
        for one in asked.seeds:
            rows(load(asked.config), asked.folder, one, asked.epsilons)
