"""How many steps, and how long, suit DP-SGD from random weights: tried on CIFAR-100 and on synthetic images alone.

python docs/results/recipe_lookup.py [--net tanh-net] [--data-dir DATA] [--device cuda] [--seconds 300] \
    >> docs/results/recipe_lookup.jsonl

CIFAR-100 has its twenty superclasses as labels here. Every line is one training: each step draws `drawn` records or so
by Poisson sampling from those that are there, and adds the noise that a release of `records` records, with lots of a
tenth of them, `steps` steps and this ε has on its mean gradient. `reach` is the learning rate times the clip norm over
1 − momentum: how far a step goes at most. `drift` is the noise on a weight that adds up over all steps. The seed draws
the network; noise comes from the operating system.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import dp_accounting as dpa
import numpy as np
import torch

from airlock.accounting import calibrate
from airlock.config import DataConfig
from airlock.data import Records, open_public
from airlock.mechanisms import Clip, Stream
from airlock.nets import create
from airlock.nets.synthetic import draw_classes
from airlock.training import Poisson, PrivateGradients, Recipe, Resident, Run, fit, outcomes_of
from airlock.training.augment import named
from airlock.training.sampling import sampled

DELTA, SYNTHETIC_CLASSES, SYNTHETIC = 1e-5, 20, 12_000
# The superclass of each of CIFAR-100's classes, in their order.
SUPERCLASS = (
    4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11, 6, 11, 5, 10, 7,
    6, 13, 15, 3, 15, 0, 11, 1, 10, 12, 14, 16, 9, 11, 5, 5, 19, 8, 8, 15, 13, 14, 17, 18, 10,
    16, 4, 17, 4, 2, 0, 17, 4, 18, 17, 10, 3, 2, 12, 12, 16, 12, 1, 9, 19, 2, 10, 0, 1, 16,
    12, 9, 13, 15, 13, 16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13,
)  # fmt: skip
BASE: dict[str, Any] = {
    "data": "cifar100", "epsilon": 8.0, "steps": 300, "reach": 4.0, "clip": 0.1, "momentum": 0.9, "ema": 0.95,
    "records": 50_000, "share": 0.1, "drawn": 256, "augment": "none", "copies": 1, "seed": 0,
}  # fmt: skip


def trials() -> list[dict[str, Any]]:
    """What is tried: steps and reach at a large and at a small ε, on both sets."""
    found = [
        {**BASE, "data": data, "epsilon": epsilon, "steps": steps, "reach": reach}
        for steps, reach in ((300, 4.0), (1000, 4.0), (300, 12.0), (1000, 1.3))
        for epsilon in (8.0, 1.0)
        for data in ("synthetic", "cifar100")
    ]
    more = [
        {**BASE, "data": data, "epsilon": epsilon, "steps": steps, "reach": reach}
        for epsilon, steps, reach in ((8.0, 2000, 4.0), (1.0, 100, 4.0), (8.0, 1000, 12.0), (1.0, 100, 12.0))
        for data in ("synthetic", "cifar100")
    ]
    return found + more


def read(data: str, folder: Path | None) -> tuple[Records, Records]:
    """What is learnt from, and the test."""
    if data == "synthetic":
        images, labels = draw_classes(SYNTHETIC, (1, 28, 28), SYNTHETIC_CLASSES, 0)
        whole = Records(images.numpy(), labels.numpy())
    else:
        public = open_public(DataConfig(source=data), folder).records
        whole = Records(public.x, np.array(SUPERCLASS)[public.y])
    order = np.random.default_rng(0).permutation(len(whole))
    return whole.take(order[: -len(order) // 6]), whole.take(order[-len(order) // 6 :])


def trained(net_name: str, trial: dict[str, Any], learnt: Records, test: Records, run: Run) -> dict[str, Any]:
    """One training and its accuracy."""
    begun, steps, clip = time.monotonic(), trial["steps"], trial["clip"]
    shape, classes = learnt.x.shape[1:], int(learnt.y.max()) + 1
    noise = calibrate(
        lambda z: dpa.SelfComposedDpEvent(sampled(trial["share"], dpa.GaussianDpEvent(z)), steps),
        trial["epsilon"],
        DELTA,
    )
    net, lot = create(net_name, shape, classes, trial["seed"]), trial["share"] * trial["records"]
    recipe = Recipe(
        steps=steps,
        learning_rate=trial["reach"] * (1 - trial["momentum"]) / clip,
        momentum=trial["momentum"],
        ema=trial["ema"],
    )
    stream = Stream.from_system()
    gradients = PrivateGradients(Clip(clip), noise * trial["drawn"] / lot, float(trial["drawn"]), stream.child("noise"))
    sampler = Poisson(trial["drawn"] / len(learnt), stream.child("lots"))
    augment = named(trial["augment"], trial["copies"])
    data = Resident(learnt, run.device)
    fit(net, data, sampler, gradients, recipe, trial["seed"], run, augment, secret=stream.child("rest"))
    drift = trial["reach"] * noise * math.sqrt(steps) / lot
    right = outcomes_of(net, test).accuracy
    seconds = round(time.monotonic() - begun, 1)
    return {"net": net_name, **trial, "noise_multiplier": round(noise, 4), "drift": round(drift, 4),
            "accuracy": round(right, 4), "tests": len(test), "seconds": seconds}  # fmt: skip


def main() -> None:
    """Print one line per trial, until the time is up."""
    asked = argparse.ArgumentParser()
    asked.add_argument("--net", default="tanh-net")
    asked.add_argument("--data-dir", type=Path)
    asked.add_argument("--device", default="cpu")
    asked.add_argument("--seconds", type=float, default=float("inf"))
    asked.add_argument("--only", help="part of a trial as JSON, in place of the list")
    given = asked.parse_args()
    run, begun = Run(device=torch.device(given.device)), time.monotonic()
    sets = {data: read(data, given.data_dir) for data in ("synthetic", "cifar100")}
    for trial in [{**BASE, **json.loads(given.only)}] if given.only else trials():
        if time.monotonic() - begun < given.seconds:
            print(json.dumps(trained(given.net, trial, *sets[trial["data"]], run)), flush=True)


if __name__ == "__main__":
    main()
