"""Class weights beside balanced lots, in which records of a rare class are drawn more often: DP-SGD at the same ε.

    python docs/results/tables_peers.py FOLDER prepare                  # in an environment of the peers
    python docs/results/balanced_lots.py FOLDER > docs/results/balanced_lots.jsonl
    python docs/results/balanced_lots.py docs/results/balanced_lots.jsonl --page

A record of class c counts v_c in its lot, or enters the lot with probability q v_c in place of q; both are accounted at
q, as the largest probability costs most. Figures are exact, on the test part: without privacy, for this page alone.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from scipy.stats import rankdata

from airlock import data
from airlock.config import load
from airlock.data import Split
from airlock.mechanisms import Randomness
from airlock.methods.weights.gaussian import Gaussian
from airlock.training import Poisson, Run
from airlock.training.outcomes import Outcomes
from airlock.training.sampling import Index

TABLES = {"nassCDS": 20.0, "HMDA": 7.0}  # how much rarer "yes" is, about
EPSILONS, SEEDS, DRAWS = (1.0, 8.0), (0, 1), (1, 2, 3, 4)
WAYS = ("none", "class weights", "balanced lots")
Row = dict[str, Any]


@dataclass(frozen=True)
class Balanced(Poisson):
    """A Poisson lot that keeps a record of each class with its own probability.

    Args:
        kept: That probability for every record; at most 1, so that nobody is drawn more often than is accounted for.
    """

    kept: Any = None

    def draw(self, step: int, records: int) -> Index:
        """The positions of one lot."""
        drawn = super().draw(step, records)
        stay = self.stream.child("class", step).uniform(len(drawn)) < self.kept[drawn]
        return np.asarray(drawn[stay])


class BalancedLots(Gaussian):
    """DP-SGD on such lots; for this comparison alone."""

    relative: tuple[float, float] = (1.0, 1.0)

    def parts(self, net: Any, split: Split, data: Any, figures: Any, randomness: Randomness, run: Run) -> Any:
        """The sampler of the method, thinned."""
        gradients, sampler = super().parts(net, split, data, figures, randomness, run)
        kept = np.asarray(self.relative)[split.private.y]
        return gradients, Balanced(sampler.sampling_probability, sampler.stream, kept)


def main() -> None:
    """Do what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("place", type=Path)
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    if given.page:
        print(page([json.loads(line) for line in given.place.read_text("utf-8").splitlines()]))
        return
    warnings.simplefilter("ignore")
    for row in measured(given.place):
        print(json.dumps(row), flush=True)


def measured(folder: Path) -> Iterator[Row]:
    """Every table in every way."""
    for name, rarer in TABLES.items():
        for epsilon in EPSILONS:
            for seed in SEEDS:
                for way in WAYS:
                    for draw in DRAWS:
                        asked = {
                            "channel": "weights", "method": "gaussian", "epsilon": epsilon, "delta": 1e-5, "seed": seed,
                            **({"class_weights": [1.0, rarer]} if way == "class weights" else {}),
                        }  # fmt: skip
                        config = load(folder / f"{name}.toml", asked)
                        kind = BalancedLots if way == "balanced lots" else Gaussian
                        made = kind(config, data.describe(config))
                        if isinstance(made, BalancedLots):
                            made.relative = (1.0 / rarer, 1.0)
                        split = data.load(config)
                        found = made.release(split, Randomness.make(seed, insecure_seed=draw), Run()).utility
                        own = {"data": name, "epsilon": epsilon, "seed": seed, "draw": draw, "way": way}
                        yield {**own, **figures(found)}


def figures(found: Outcomes) -> Row:
    """Recall of both classes, and the AUC."""
    yes = found.labels == 1
    assert found.scores is not None
    places, count = rankdata(found.scores), int(yes.sum())
    area = (places[yes].sum() - count * (count + 1) / 2) / (count * (len(yes) - count))
    return {
        "recall_yes": float(found.right[yes].mean()),
        "recall_no": float(found.right[~yes].mean()),
        "auc": float(area),
    }


def page(rows: list[Row]) -> str:
    """Means over seeds and draws, and how much the mean recall moves from draw to draw."""
    lines = ["| data, ε | way | recall of `yes` | recall of `no` | mean recall, ± over draws | AUC |"]
    lines.append("|---|---|---|---|---|---|")
    for name in TABLES:
        for epsilon in EPSILONS:
            for way in WAYS:
                own = [row for row in rows if (row["data"], row["epsilon"], row["way"]) == (name, epsilon, way)]
                both = {(row["seed"], row["draw"]): (row["recall_yes"] + row["recall_no"]) / 2 for row in own}
                spread = fmean(stdev(both[seed, draw] for draw in DRAWS) for seed in SEEDS)
                yes, no, area = (fmean(row[key] for row in own) for key in ("recall_yes", "recall_no", "auc"))
                mean = fmean(both.values())
                lines.append(
                    f"| {name}, {epsilon:g} | {way} | {yes:.1%} | {no:.1%} | {mean:.1%} ± {spread:.1%} | {area:.3f} |"
                )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
