"""What DP-SGD reaches by its defaults on a set that none of them was looked up on; every line is one release.

python docs/results/recipe.py --data-dir DATA [--data fashion-mnist] [--device cuda] [--seconds 600] \
    [--kinds auto,public,wrn] [--precision bf16] [--steps N] [--copies K] >> docs/results/recipe.jsonl

DATA holds the files of the set as `airlock datasets` lists them (Fashion-MNIST: four files of idx, 31 MB). `auto` is
`weights`/`gaussian` with nothing set but ε; `public` is the same with a fifth of the training records public, whose own
network is measured too (`public_alone`); `wrn` is `net = "wrn-16-4"` with nothing else set, and `wrn-public` both. No
release begins after --seconds. --steps and --copies shorten what a wide network takes, and stand in the line. Noise
comes from the operating system; the seed draws network and split.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from airlock import data, methods
from airlock.config import from_table
from airlock.mechanisms import Randomness
from airlock.methods.weights.gaussian import Gaussian
from airlock.training import Run, count_correct
from airlock.training.per_sample.sealed import USES
from airlock.training.public_start import train_openly

DELTA, EPSILONS, SEEDS = 1e-5, (3.0, 8.0), (0, 1, 2)
KINDS: dict[str, dict[str, Any]] = {
    "auto": {},
    "public": {"split": {"public": 0.2}},
    "wrn": {"net": "wrn-16-4"},
    "wrn-public": {"net": "wrn-16-4", "split": {"public": 0.2}},
}


def released(kind: str, epsilon: float, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """One release and its accuracy on all test records."""
    begun, own = time.monotonic(), KINDS[kind]
    settings: dict[str, Any] = {"precision": given.precision} if given.precision else {}
    if kind.startswith("wrn"):
        settings |= {"steps": given.steps} if given.steps else {}
        settings |= {"augment_multiplicity": given.copies} if given.copies else {}
    split = {"test": 0.0, "holdout": 0.0, **own.get("split", {})}
    table = {"channel": "weights", "method": "gaussian", "data": given.data, "epsilon": epsilon, "delta": DELTA}
    config = from_table({**table, **own, "split": split, "seed": seed, "settings": settings, "device": given.device})
    channel = methods.build(config, data.describe(config, given.data_dir))
    assert isinstance(channel, Gaussian)
    records, run = data.load(config, given.data_dir), Run(device=torch.device(given.device))
    found = channel.release(records, Randomness.make(seed), run)
    row: dict[str, Any] = {
        "kind": kind, "data": given.data, "epsilon": epsilon, "delta": DELTA, "seed": seed, "net": channel.net_name,
        "accuracy": round(found.utility.accuracy, 4), "tests": found.utility.records,
        "settings": channel.settings.model_dump(include={
            "steps", "lot_size", "clip_norm", "learning_rate", "momentum", "ema", "augment", "augment_multiplicity",
            "precision"}),
        "noise_multiplier": round(channel.planned.figures.noise_multiplier, 4),
    }  # fmt: skip
    row |= {key: value for key, value in found.plan.details.items() if key.startswith(("gain_", "after_", "public_r"))}
    row["engine"] = [
        use.reason or "fast" for use in vars(found.network.net).get(USES, {}).values() if hasattr(use, "reason")
    ]
    row["seconds"] = round(time.monotonic() - begun, 1)
    if channel.floor is not None:
        alone = channel.net().to(run.device)
        train_openly(alone, records.public, seed, run, channel.settings.augment)
        row["public_alone"] = round(count_correct(alone, records.test) / max(1, len(records.test)), 4)
    return row


def main() -> None:
    """Print one line per release, until the time is up."""
    asked = argparse.ArgumentParser()
    asked.add_argument("--data", default="fashion-mnist")
    asked.add_argument("--data-dir", type=Path)
    asked.add_argument("--device", default="cpu")
    asked.add_argument("--seconds", type=float, default=float("inf"))
    asked.add_argument("--kinds", default="auto,public,wrn")
    asked.add_argument("--precision", choices=("fp32", "tf32", "bf16"))
    asked.add_argument("--steps", type=int)
    asked.add_argument("--copies", type=int)
    given = asked.parse_args()
    begun = time.monotonic()
    for kind in given.kinds.split(","):
        for seed in SEEDS:
            for epsilon in EPSILONS:
                if time.monotonic() - begun < given.seconds:
                    print(json.dumps(released(kind, epsilon, seed, given)), flush=True)


if __name__ == "__main__":
    main()
