"""Who should vote on a question: records in a ball, or in cells that a walk comes to? One row of JSON each.

The graph, the cells and the noise of `answers`/`neighbours` at ε = 1 and 1,000 questions, on the first test records.

    python docs/results/neighbours_tried.py DATA mnist 0
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from airlock import data, methods
from airlock.config import from_table
from airlock.mechanisms import ExponentialMechanism, Stream
from airlock.methods.answers.answerer import GUMBEL
from airlock.methods.answers.neighbours import Neighbours
from airlock.threads import one_thread
from airlock.training import Run
from airlock.training.front_ends.front import embed
from airlock.training.neighbours import UNIT, PublicGraph, _placed, tally

ROWS, TESTS, DRAWS = Path(__file__).with_suffix(".jsonl"), 2000, 3


def main(folder: Path, source: str, seed: int) -> None:
    """All rows."""
    table = {"channel": "answers", "method": "neighbours", "data": source, "epsilon": 1.0, "delta": 1e-5}
    config = from_table({**table, "seed": seed, "split": {"public": 0.2}})
    split = data.load(config, folder)
    channel = methods.build(config, split.facts)
    assert isinstance(channel, Neighbours)
    net, tests = channel.ready(), split.test.take(np.arange(TESTS))
    graph = PublicGraph.of(embed(net, split.public, Run()), seed)
    cells = graph.cells(embed(net, split.private, Run()))
    votes = tally(cells, split.private.y, np.ones(len(cells)), len(graph.points), len(split.facts.classes)) / UNIT
    features = embed(net, tests, Run())
    ways = {
        "walk": graph.reached(features),
        "ball": (_placed(features, graph.weight, graph.bias) @ graph.points.double().T).numpy(),
    }
    choice = ExponentialMechanism(1.0, GUMBEL / channel.noise.multiplier, True)
    for way, near in ways.items():
        for share in (0.005, 0.01, 0.02, 0.04, 0.08, 0.16):
            size = round(share * near.shape[1])
            counts = np.stack([votes[own].sum(0) for own in np.argpartition(-near, size - 1, 1)[:, :size]])
            drawn = [choice.pick(counts, Stream.from_seed(i)) for i in range(DRAWS)]
            row = {
                "data": source, "seed": seed, "tests": TESTS, "who": way, "share": share,
                "times_the_noise": round(share * channel.records / channel.noise.multiplier, 1),
                "without_noise": round(100 * float((counts.argmax(1) == tests.y).mean()), 2),
                "accuracy": round(100 * float(np.mean([(one == tests.y).mean() for one in drawn])), 2),
            }  # fmt: skip
            print(json.dumps(row), flush=True)
            with ROWS.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    with one_thread():
        main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
