"""How tight is DP-SGD's ε? Black-box and white-box attackers who choose the worst case, beside the average case.

    python docs/results/worst_case.py --data digits > docs/results/worst_case.jsonl
    python docs/results/worst_case.py --data mnist --file mnist.npz --device cuda --seconds 500

One line for each start and attacker. The set-up is that of Annamalai and De Cristofaro (NeurIPS 2024): every record in
every step, clip norm 1, δ = 1e-5, one fixed start for all trainings, a blank record, and minus the final loss on it as
the score. On MNIST it is theirs in everything: their network, weights trained on the first half of the training records
for five epochs, 999 others from the second half, 100 steps with the learning rate 1.33e-4 on the sum of gradients. On
digits a network of one hidden layer, 1,297 records to fit, 500 others and 20 steps, with the learning rate that gives
the weights the same noise in all. MNIST is read from a file of arrays x_train and y_train.

Bounds: `alone` with 95% for this figure by itself (a quarter of the runs chooses the threshold), `none` without any
assumption, likewise; `published` as in that paper: the best of all thresholds on the runs that certify it, each rate at
95%, which is higher than the true ε more often than that; `published_100` is its mean over groups of 100 runs a side,
as many as there.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Iterator
from statistics import fmean
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.special import ndtri
from torch import Tensor, nn

from airlock import accounting, data
from airlock.auditing.attacks.worst_case import (
    ANSWERS,
    EVERY_STEP,
    WEIGHTS,
    Crafted,
    crafted,
    gather,
    measured,
    of_steps,
    of_trainings,
    started,
)
from airlock.auditing.bounds import Floats, proportion_interval
from airlock.config import from_table
from airlock.data import Facts, Records
from airlock.mechanisms import Stream
from airlock.methods.weights.gaussian import Gaussian
from airlock.training import Recipe, Run

DELTA, CLASSES, GROUP = 1e-5, 10, 100
WALK = 1.33e-4 * 100  # learning rate on the sum of gradients × steps
STEPS = {"mnist": 100, "digits": 20}
FITTED = {"mnist": 30_000, "digits": 1297}
OTHERS = {"mnist": 999, "digits": 500}
FIT = {
    "mnist": Recipe(steps=5 * 938, learning_rate=0.01, momentum=0.0, precision="fp32"),
    "digits": Recipe(steps=1200, optimiser="adam", learning_rate=1e-3, precision="fp32"),
}
Row = dict[str, Any]


class SmallNetwork(nn.Module):
    """The published network for MNIST."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 16, 5), nn.Conv2d(16, 32, 4)
        self.fc1, self.fc2 = nn.Linear(512, 32), nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = torch.tanh(F.max_pool2d(self.conv1(x), 2))
        x = torch.tanh(F.max_pool2d(self.conv2(x), 2))
        x = torch.tanh(self.fc1(x.flatten(1)))
        return F.linear(x, self.fc2.weight, self.fc2.bias)


def small_net(shape: tuple[int, ...], classes: int) -> nn.Module:
    """It, initialised as published."""
    net = SmallNetwork()
    for layer in (net.conv1, net.conv2, net.fc1, net.fc2):
        nn.init.xavier_normal_(layer.weight)
        layer.bias.data.fill_(0.01)  # type: ignore[union-attr]
    return net


def records(name: str, file: str | None) -> tuple[Records, Records]:
    """Those to fit, and the others."""
    if name == "digits":
        table = {"channel": "weights", "data": "digits", "epsilon": 1.0, "delta": DELTA}
        split = data.load(from_table(table))
        every = data.joined(data.joined(split.private, split.test), split.holdout)
        order = np.random.default_rng(0).permutation(len(every))
        every = Records(every.x[order].astype(np.float32), every.y[order])
    else:
        arrays = np.load(file or "mnist.npz")
        x = (arrays["x_train"].astype(np.float32)[:, None] / 255 - 0.1307) / 0.3081
        every = Records(x, arrays["y_train"].astype(np.int64))
    fitted, rest = every.take(np.arange(FITTED[name])), np.arange(FITTED[name], len(every))
    return fitted, every.take(np.sort(np.random.default_rng(1).permutation(rest)[: OTHERS[name]]))


def channel(name: str, shape: tuple[int, ...], epsilon: float) -> Gaussian:
    """DP-SGD as published."""
    steps, count = STEPS[name], OTHERS[name] + 1
    settings = {
        "steps": steps, "lot_size": count, "learning_rate": WALK / steps * count, "momentum": 0.0, "ema": 0.0,
        "clip_norm": 1.0, "precision": "fp32",
    }  # fmt: skip
    table = {
        "channel": "weights", "method": "gaussian", "data": name, "epsilon": epsilon, "delta": DELTA,
        "net": "mlp" if name == "digits" else "worst_case:small_net", "settings": settings,
        "split": {"test": 0.0, "holdout": 0.0},
    }  # fmt: skip
    facts = Facts(name, shape, tuple(map(str, range(CLASSES))), count, 1, "public")
    return Gaussian(from_table(table), facts)


def as_published(one: Floats, other: Floats) -> float:
    """The bound by μ-GDP, over all thresholds at once, each rate at 95%."""
    best = 0.0
    for threshold in np.unique(np.concatenate([one, other])):
        found, accused = int((one >= threshold).sum()), int((other >= threshold).sum())
        low = proportion_interval(found, len(one), 0.9)[0]
        high = proportion_interval(accused, len(other), 0.9)[1]
        best = max(best, float(ndtri(low) - ndtri(high)))
    return gdp_epsilon(best)


def in_groups(one: Floats, other: Floats) -> float:
    """The same as a mean over groups of runs."""
    starts = range(0, len(one) - GROUP + 1, GROUP)
    return fmean(as_published(one[at : at + GROUP], other[at : at + GROUP]) for at in starts)


def gdp_epsilon(mu: float) -> float:
    """The ε of μ-GDP at δ."""
    import dp_accounting as dpa

    return accounting.compute_epsilon(dpa.GaussianDpEvent(1 / mu), DELTA).epsilon if mu > 0 else 0.0


def of_start(given: argparse.Namespace, start: str, method: Gaussian, made: Crafted) -> Iterator[Row]:
    """What every attacker shows from one start."""
    run, stream = Run(torch.device(given.device)), Stream.from_seed(given.seed)
    common = {
        "data": given.data, "epsilon": given.epsilon, "delta": DELTA, "seed": given.seed, "start": start,
        "reach": round(made.reach, 4), "device": given.device,
    }  # fmt: skip
    work: dict[str, Iterator[Any]] = {"trainings": of_trainings(made, given.seed, stream.child("trainings"), run)}
    if start == "fitted":  # seen step by step, the start makes no difference
        work["steps"] = of_steps(made, stream.child("steps"), run)
    for label, pairs in work.items():
        begin = time.monotonic()
        one, other = gather(pairs, given.pairs, label, run, given.seconds / 3)
        seconds = round(time.monotonic() - begin)
        for column, name in enumerate((EVERY_STEP,) if label == "steps" else (WEIGHTS, ANSWERS)):
            yield {**common, "attacker": name, "seconds": seconds, **figures(method, one[:, column], other[:, column])}


def figures(method: Gaussian, one: Floats, other: Floats) -> Row:
    """Every bound of these scores."""
    alone = measured(method, EVERY_STEP, one, other, shares=1)
    spread = math.sqrt((one.var(ddof=1) + other.var(ddof=1)) / 2)
    return {
        "pairs": len(one),
        "alone": round(alone.epsilon_lower_bound_of_noise or 0.0, 3),
        "none": round(alone.epsilon_lower_bound, 3),
        "published": round(as_published(one, other), 3),
        "published_100": None if len(one) < GROUP else round(in_groups(one, other), 3),
        "distance": round(float(one.mean() - other.mean()) / spread, 4),
        "mu": round(math.sqrt(method.settings.steps) / method.planned.figures.noise_multiplier, 4),
    }


def main() -> None:
    """Do what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=sorted(STEPS), default="digits")
    parser.add_argument("--file", help="of MNIST")
    parser.add_argument("--epsilon", type=float, default=10.0)
    parser.add_argument("--pairs", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=math.inf, help="for all, without fitting the start")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    fitted, others = records(given.data, given.file)
    method, run = channel(given.data, others.x.shape[1:], given.epsilon), Run(torch.device(given.device))
    batch = 32 if given.data == "mnist" else 64
    for start in ("fitted", "drawn"):
        net = started(method, fitted if start == "fitted" else None, given.seed, run, FIT[given.data], batch)
        for row in of_start(given, start, method, crafted(method, net, others, run)):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
