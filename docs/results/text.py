"""Accuracy of `weights`/`head` on SST-2 over a range of ε; the encoder runs once, the private part once per release.

python docs/results/text.py DATA [--runs 5] [--private 20000] > docs/results/text.jsonl

DATA holds sst2_train.tsv.gz and sst2_test.tsv.gz. Every line is one release of runs/sst2-head.toml at another ε: the
events of the real method with noise from the operating system, and the accuracy on the 872 official test sentences.
The split is that of seed 0 throughout, so runs differ by their noise alone. The line without ε is the same head without
noise or clipping, by scikit-learn's logistic regression (C = 10) on the same features.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from airlock import data, methods
from airlock.config import load
from airlock.mechanisms import Randomness
from airlock.methods.contract import check_executed
from airlock.methods.weights.head import Head
from airlock.training import Run
from airlock.training.front_ends.features import compute

CONFIG = Path(__file__).resolve().parents[2] / "runs" / "sst2-head.toml"
EPSILONS = (0.1, 0.3, 1.0, 3.0, 8.0)


def main() -> None:
    """Print one line per release."""
    asked = argparse.ArgumentParser()
    asked.add_argument("folder", type=Path)
    asked.add_argument("--runs", type=int, default=5)
    asked.add_argument("--private", type=int, help="train on so many of the private records, and declare as many")
    given = asked.parse_args()
    whole = load(CONFIG)
    count = round((given.private or 0) / (1 - whole.split.holdout)) or None
    config = load(CONFIG, {"data.records": count} if count else {})
    split = data.load(config, given.folder)
    if given.private is not None:  # in the order of their hashes: a random sample
        split = replace(split, private=split.private.take(np.arange(given.private)))
    run = Run(progress=lambda label, done, whole: print(f"{label}: {done} of {whole}", file=sys.stderr))
    first = methods.build(config, split.facts)
    assert isinstance(first, Head)
    net = first.front.ready(None, run)
    kept = first.prepared(net, split.private, run)
    tests = torch.cat([block for _, block in compute(net.front, split.test, run, "features of test")])
    plain = LogisticRegression(C=10.0, max_iter=1000).fit(kept.raw.numpy(), split.private.y)
    right = float(np.mean(plain.predict(tests.numpy()) == split.test.y))
    print(json.dumps({"epsilon": None, "accuracy": right, "private": len(split.private)}), flush=True)
    quiet = replace(run, progress=None)
    for epsilon in EPSILONS:
        channel = methods.build(config.model_copy(update={"epsilon": epsilon}), split.facts)
        assert isinstance(channel, Head)
        for place in range(given.runs):
            kept.reset()
            check_executed(channel.planned, channel.train(kept, channel.planned.figures, Randomness.make(place), quiet))
            with torch.no_grad():
                found = net.head(net.centre(tests)).argmax(1).numpy()
            row = {
                "epsilon": epsilon,
                "stated": channel.planned.guarantee.epsilon,
                "delta": config.delta,
                "run": place,
                "accuracy": float(np.mean(found == split.test.y)),
                "noise_multiplier": channel.planned.figures.noise_multiplier,
            }
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
