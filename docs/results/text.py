"""Accuracy of `weights`/`head` on SST-2 over a range of ε; the encoder runs once, the private part once per release.

python docs/results/text.py DATA [--private 10000] [--runs 3] [--keep features.npz] >> docs/results/text.jsonl

DATA holds sst2_train.tsv.gz and sst2_test.tsv.gz. Every line is one release of runs/sst2-head.toml at another ε, on so
many of its private records, which is also the number that is declared: the events of the real method with noise from
the operating system, and the accuracy on the 872 official test sentences. The split is that of seed 0, and the records
are drawn from its private part by numpy's generator of seed 0, so runs differ by their noise alone. The line without ε
is the same head without noise or clipping: scikit-learn's logistic regression (C = 10) on these features. The encoder
takes minutes; --keep writes its features to a file, or takes them from there.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from airlock import data, methods
from airlock.config import load
from airlock.data import Records
from airlock.mechanisms import Randomness
from airlock.methods.contract import check_executed
from airlock.methods.weights.features import Features
from airlock.methods.weights.head import Head
from airlock.nets.frontend import Framed, Unit
from airlock.training import Run
from airlock.training.per_sample import outputs

CONFIG = Path(__file__).resolve().parents[2] / "runs" / "sst2-head.toml"
EPSILONS = (1.0, 8.0)


class Kept(Features):
    """Features that are there already: the records hold them."""

    def read(self, records: Records, run: Run) -> Tensor:
        """Scaled to norm 1, as the front end does it last."""
        found: Tensor = Unit()(torch.from_numpy(records.x.astype(np.float32)))
        return found


def computed(net: Framed, folder: Path, count: int) -> dict[str, np.ndarray]:
    """The encoder's vectors of so many private records and of the test records, and their labels."""
    split = data.load(load(CONFIG), folder)
    chosen = split.private.take(np.random.default_rng(0).choice(len(split.private), count, replace=False))
    assert isinstance(net.front, torch.nn.Sequential)
    a, b = (outputs(net.front[0], torch.from_numpy(part.x)).numpy() for part in (chosen, split.test))
    return {"a": a, "ya": chosen.y, "b": b, "yb": split.test.y}


def main() -> None:
    """Print one line per release."""
    asked = argparse.ArgumentParser()
    asked.add_argument("folder", type=Path)
    asked.add_argument("--private", type=int, default=10_000)
    asked.add_argument("--runs", type=int, default=3)
    asked.add_argument("--keep", type=Path)
    given = asked.parse_args()
    whole = load(CONFIG)
    config = load(CONFIG, {"data.records": round(given.private / (1 - whole.split.holdout))})
    facts, run = data.describe(config), Run()
    first = methods.build(config, facts)
    assert isinstance(first, Head)
    net = first.front.ready(None, run)
    if given.keep is not None and given.keep.exists():
        with np.load(given.keep) as kept_there:
            found = dict(kept_there)
    else:
        found = computed(net, given.folder, given.private)
        if given.keep is not None:
            np.savez(given.keep, a=found["a"], ya=found["ya"], b=found["b"], yb=found["yb"])
    assert len(found["a"]) == given.private
    kept, tests = Kept(net, Records(found["a"], found["ya"]), run), Unit()(torch.from_numpy(found["b"]))
    plain = LogisticRegression(C=10.0, max_iter=1000).fit(kept.raw.numpy(), found["ya"])
    right = float(np.mean(plain.predict(tests.numpy()) == found["yb"]))
    print(json.dumps({"epsilon": None, "private": given.private, "accuracy": right}), flush=True)
    for epsilon in EPSILONS:
        channel = methods.build(config.model_copy(update={"epsilon": epsilon}), facts)
        assert isinstance(channel, Head)
        for place in range(given.runs):
            kept.reset()
            executed = channel.train(kept, channel.planned.figures, Randomness.make(place), run)
            check_executed(channel.planned, executed)
            with torch.no_grad():
                said = net.head(net.centre(tests)).argmax(1).numpy()
            row = {
                "epsilon": epsilon,
                "stated": channel.planned.guarantee.epsilon,
                "delta": config.delta,
                "private": given.private,
                "run": place,
                "accuracy": float(np.mean(said == found["yb"])),
                "noise_multiplier": channel.planned.figures.noise_multiplier,
            }
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
