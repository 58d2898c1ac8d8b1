"""Which learning rates suit networks of transformers under noise: tried on public texts that no result is reported on.

python docs/results/text_rates.py FOLDER [--device cuda] [--seconds 300] [--rank 4] >> docs/results/text_rates.jsonl

FOLDER holds amazonReviewSnippets_GroundTruth.txt, nytEditorialSnippets_GroundTruth.txt and tweets_GroundTruth.txt from
the source package of vaderSentiment 3.3.2 (Hutto and Gilbert, ICWSM 2014): product reviews, opinion pieces and tweets
with the mean of twenty readers' ratings. Ratings beyond ±0.5 are the two classes. (Its film reviews are left out,
because SST-2 comes from the same reviews.) 6,144 texts are learnt from, with the noise that a release of 60,647 records
(the private part of SST-2) with this sampling probability, number of steps and ε would have on its mean gradient; the
others are the test. `lot` of them are expected in a step. Every line is one training. numpy's generator of seed 0
divides the texts, and the seed in the line draws adapters and head. Noise comes from the operating system.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from functools import cache
from pathlib import Path
from typing import Any

import dp_accounting as dpa
import numpy as np
import torch
from torch import Tensor, nn

from airlock.accounting import calibrate, compose
from airlock.data import Facts, Records
from airlock.data.remarks import Faults
from airlock.data.text import parse_tokenizer, read_tokenizer
from airlock.mechanisms import Clip, Stream
from airlock.methods.weights.head_first import HeadFirst, noise_for
from airlock.nets import create
from airlock.nets.domain import declare
from airlock.nets.registry import tuned
from airlock.training import Poisson, PrivateGradients, Recipe, Resident, Run, fit, outcomes_of
from airlock.training.sampling import sampled

SOURCES = ("amazonReviewSnippets", "nytEditorialSnippets", "tweets")
RATED, LEARNT, RECORDS, DELTA, TOKENS = 0.5, 6144, 60_647, 1e-5, 48
BASE: dict[str, Any] = {
    "tune": "lora", "rank": 16, "optimiser": "adam", "rate": 2e-3, "epsilon": 3.0, "share": 0.125, "steps": 150,
    "clip": 0.1, "schedule": "constant", "ema": 0.95, "head_share": 0.05, "lot": 1536, "seed": 0,
}  # fmt: skip
FACTS = Facts("texts", (TOKENS,), ("negative", "positive"), RECORDS, None, "public texts")


def trials() -> list[dict[str, Any]]:
    """What is tried: one thing at a time."""
    changes: list[dict[str, Any]] = [
        *({"rank": 16, "rate": rate} for rate in (2e-3, 4e-3)),
        *({"rank": 4, "rate": rate} for rate in (4e-3, 8e-3)),
        *({"rank": 16, "rate": rate, "epsilon": 8.0} for rate in (2e-3, 4e-3)),
        *({"rank": 4, "rate": rate, "epsilon": 8.0} for rate in (4e-3, 8e-3)),
        *({"rank": 16, "rate": rate, "epsilon": 1.0} for rate in (1e-3, 2e-3)),
        *({"rank": 4, "rate": rate, "epsilon": 1.0} for rate in (2e-3, 4e-3)),
        {"head_share": 0.0, "schedule": "linear", "ema": 0.0},
        {"rank": 4, "rate": 4e-3, "ema": 0.9},
        *({"tune": "full", "rate": rate} for rate in (5e-4, 1e-3)),
        {"schedule": "linear", "ema": 0.0},
        {"rank": 4, "rate": 4e-3, "share": 0.25, "epsilon": 8.0},
        {"rank": 4, "rate": 4e-3, "steps": 300},
        {"rank": 4, "rate": 4e-3, "ema": 0.98},
        {"tune": "bias", "rate": 4e-3},
    ]
    return [{**BASE, **change} for change in changes]


def read(folder: Path) -> tuple[Records, Records]:
    """What is learnt from, and the test."""
    lines = [
        line.rstrip("\n").split("\t")
        for source in SOURCES
        for line in (folder / f"{source}_GroundTruth.txt").open(encoding="utf-8", errors="replace")
    ]
    rated = [(text, float(rating)) for _, rating, text in lines if abs(float(rating)) > RATED]
    tokenizer = parse_tokenizer(read_tokenizer("minilm"), TOKENS)
    x = tokenizer.encode("text", [text for text, _ in rated], Faults())
    y = np.array([rating > 0 for _, rating in rated], np.int64)
    order = np.random.default_rng(0).permutation(len(y))
    first, rest = order[:LEARNT], order[LEARNT:]
    return Records(x[first], y[first]), Records(x[rest], y[rest])


@cache
def _made(tune: Any, rank: int, seed: int) -> tuple[nn.Module, dict[str, Tensor]]:
    vocabulary = parse_tokenizer(read_tokenizer("minilm"), TOKENS).vocabulary
    net = declare(create("transformers:minilm", (TOKENS,), 2, seed=seed), vocabulary)
    net = tuned(net, tune, rank, seed)
    return net, copy.deepcopy(net.state_dict())


def untrained(tune: str, rank: int, seed: int) -> nn.Module:
    """One network for all seeds, with the weights of this one: how it is computed need not be found out again."""
    net, _ = _made(tune, rank, 0)
    net.load_state_dict(_made(tune, rank, seed)[1])
    return net


def noise_of(trial: dict[str, Any]) -> float:
    """The noise multiplier of the steps, with the last layer's beside them."""
    share, steps, first = trial["share"], trial["steps"], trial["head_share"]

    def event(noise: float) -> dpa.DpEvent:
        training = dpa.SelfComposedDpEvent(sampled(share, dpa.GaussianDpEvent(noise)), steps)
        if not first:
            return training
        return compose([HeadFirst(noise_for(first, noise, share, steps), RECORDS, FACTS).event, training])

    return calibrate(event, trial["epsilon"], DELTA)


def trained(trial: dict[str, Any], learnt: Records, test: Records, run: Run) -> dict[str, Any]:
    """One training and its accuracy."""
    begun, noise, stream = time.monotonic(), noise_of(trial), Stream.from_system()
    net, alone = untrained(trial["tune"], trial["rank"], trial["seed"]).to(run.device), None
    if trial["head_share"]:
        own = noise_for(trial["head_share"], noise, trial["share"], trial["steps"])
        _Fewer(own, RECORDS, FACTS).train(net, learnt, stream.child("head"), trial["seed"], run)
        alone = round(outcomes_of(net, test).accuracy, 4)
    recipe = Recipe(
        steps=trial["steps"],
        optimiser=trial["optimiser"],
        learning_rate=trial["rate"],
        schedule=trial["schedule"],
        warmup=0.05 if trial["schedule"] == "linear" else 0.0,
        ema=trial["ema"],
    )
    lot = trial["lot"]
    gradients = PrivateGradients(
        Clip(trial["clip"]), noise * lot / (trial["share"] * RECORDS), lot, stream.child("noise")
    )
    sampler = Poisson(lot / len(learnt), stream.child("lots"))
    fit(net, Resident(learnt, run.device), sampler, gradients, recipe, trial["seed"], run, secret=stream.child("rest"))
    right = outcomes_of(net, test).accuracy
    seconds = round(time.monotonic() - begun, 1)
    row = {**trial, "noise_multiplier": noise, "head_alone": alone, "accuracy": round(right, 4), "tests": len(test)}
    return {**row, "seconds": seconds}


class _Fewer(HeadFirst):
    """The rate and the noise on a mean gradient are those of RECORDS; LEARNT are given."""

    def gradients(self, stream: Stream) -> PrivateGradients:
        """With less noise on a sum of fewer."""
        fewer = HeadFirst(self.noise_multiplier * LEARNT / self.records, LEARNT, self.facts)
        return fewer.gradients(stream)


def main() -> None:
    """Print one line per trial, until the time is up."""
    asked = argparse.ArgumentParser()
    asked.add_argument("folder", type=Path)
    asked.add_argument("--device", default="cpu")
    asked.add_argument("--seconds", type=float, default=float("inf"))
    asked.add_argument("--rank", type=int, help="only these")
    given = asked.parse_args()
    learnt, test = read(given.folder)
    run, begun = Run(device=torch.device(given.device)), time.monotonic()
    for trial in trials():
        if given.rank in (None, trial["rank"]) and time.monotonic() - begun < given.seconds:
            print(json.dumps(trained(trial, learnt, test, run)), flush=True)


if __name__ == "__main__":
    main()
