"""Which learning rates suit networks of transformers under noise: tried on public texts that no result is reported on.

python docs/results/text_rates.py FOLDER [--device cuda] [--seconds 300] > docs/results/text_rates.jsonl

FOLDER holds amazonReviewSnippets_GroundTruth.txt, nytEditorialSnippets_GroundTruth.txt and tweets_GroundTruth.txt from
the source package of vaderSentiment 3.3.2 (Hutto and Gilbert, ICWSM 2014): product reviews, opinion pieces and tweets
with the mean of twenty readers' ratings. Ratings beyond ±0.5 are the two classes. (Its film reviews are left out,
because SST-2 comes from the same reviews.) 6,144 texts are learnt from, all of them in every step, with the noise that
a release of 60,647 records (the private part of SST-2) with this sampling probability, number of steps and ε would have
on its mean gradient; the others are the test. Every line is one training. numpy's generator of seed 0 divides the
texts, and the seed in the line draws adapters and head. Noise comes from the operating system.
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

from airlock.accounting import calibrate
from airlock.data import Records
from airlock.data.remarks import Faults
from airlock.data.text import parse_tokenizer, read_tokenizer
from airlock.mechanisms import Clip, Stream
from airlock.nets import create
from airlock.nets.domain import declare
from airlock.nets.registry import tuned
from airlock.training import Poisson, PrivateGradients, Recipe, Resident, Run, fit, outcomes_of
from airlock.training.sampling import sampled

SOURCES = ("amazonReviewSnippets", "nytEditorialSnippets", "tweets")
RATED, LEARNT, RECORDS, DELTA, TOKENS = 0.5, 6144, 60_647, 1e-5, 48
BASE: dict[str, Any] = {
    "tune": "lora", "rank": 16, "optimiser": "adam", "rate": 1e-3, "epsilon": 3.0, "share": 0.125, "steps": 150,
    "clip": 0.1, "dropout": False, "schedule": "linear", "ema": 0.0, "seed": 0,
}  # fmt: skip


def trials() -> list[dict[str, Any]]:
    """What is tried: one thing at a time."""
    changes: list[dict[str, Any]] = [
        *({"rate": rate} for rate in (1e-3, 2e-3, 4e-3, 5e-4)),
        {"optimiser": "adam-bc", "rate": 1e-3},
        {"steps": 300},
        {"dropout": True},
        {"epsilon": 8.0, "rate": 2e-3},
        {"epsilon": 8.0},
        {"epsilon": 1.0},
        {"optimiser": "adam-bc", "rate": 3e-4},
        {"tune": "full", "rate": 5e-4},
        {"rank": 4},
        {"schedule": "constant", "ema": 0.95},
        {"tune": "bias", "rate": 4e-3},
        {"tune": "last", "rate": 1e-2},
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
def _made(tune: Any, rank: int, dropout: bool, seed: int) -> tuple[nn.Module, dict[str, Tensor]]:
    vocabulary = parse_tokenizer(read_tokenizer("minilm"), TOKENS).vocabulary
    net = declare(create("transformers:minilm", (TOKENS,), 2, seed=seed), vocabulary)
    net = tuned(net, tune, rank, seed)
    for layer in net.modules():
        if isinstance(layer, nn.Dropout) and dropout:
            layer.p = 0.1  # as MiniLM was trained
    return net, copy.deepcopy(net.state_dict())


def untrained(tune: str, rank: int, dropout: bool, seed: int) -> nn.Module:
    """The same network each time, with its weights as they were: how it is computed need not be found out again."""
    net, start = _made(tune, rank, dropout, seed)
    net.load_state_dict(start)
    return net


def trained(trial: dict[str, Any], learnt: Records, test: Records, run: Run) -> dict[str, Any]:
    """One training and its accuracy."""
    begun = time.monotonic()

    def event(noise: float) -> dpa.DpEvent:
        return dpa.SelfComposedDpEvent(sampled(trial["share"], dpa.GaussianDpEvent(noise)), trial["steps"])

    noise = calibrate(event, trial["epsilon"], DELTA)
    net = untrained(trial["tune"], trial["rank"], trial["dropout"], trial["seed"])
    recipe = Recipe(
        steps=trial["steps"],
        optimiser=trial["optimiser"],
        learning_rate=trial["rate"],
        schedule=trial["schedule"],
        warmup=0.05 if trial["schedule"] == "linear" else 0.0,
        ema=trial["ema"],
    )
    here = noise * len(learnt) / (trial["share"] * RECORDS)
    stream = Stream.from_system()
    gradients = PrivateGradients(Clip(trial["clip"]), here, float(len(learnt)), stream.child("noise"), sampled=False)
    sampler = Poisson(1.0, stream.child("lots"))
    fit(net, Resident(learnt, run.device), sampler, gradients, recipe, trial["seed"], run, secret=stream.child("rest"))
    right = outcomes_of(net, test).accuracy
    seconds = round(time.monotonic() - begun, 1)
    return {**trial, "noise_multiplier": noise, "accuracy": round(right, 4), "tests": len(test), "seconds": seconds}


def main() -> None:
    """Print one line per trial, until the time is up."""
    asked = argparse.ArgumentParser()
    asked.add_argument("folder", type=Path)
    asked.add_argument("--device", default="cpu")
    asked.add_argument("--seconds", type=float, default=float("inf"))
    given = asked.parse_args()
    learnt, test = read(given.folder)
    run, begun = Run(device=torch.device(given.device)), time.monotonic()
    for trial in trials():
        if time.monotonic() - begun < given.seconds:
            print(json.dumps(trained(trial, learnt, test, run)), flush=True)


if __name__ == "__main__":
    main()
