"""Accuracy of the networks behind `answers`/`published`, and what its noise costs by ε, for one config of runs/.

python docs/results/answers_published.py runs/answers-published-location30.toml --data-dir DATA --seeds 0,1,2

For every seed (of the split, the first weights and the batches) and every loss one network is trained. Prints one JSON
object each: accuracy on its own records and on the test records, and with --epsilons the accuracy loss of noisy
answers, 1 − (accuracy with noise)/(without), in the mean of --rounds answers to every test record, by the answerer of a
release. With --shadows so many shadow models are trained alike on the public and holdout records, and the leakage of
the network without noise is printed: TPR − FPR of one attack network for all classes, on as many others as members.
What it prints follows from the records without protection: it is for public benchmarks.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import nn

from airlock import data
from airlock.auditing.attacks import AnsweredRecords, Shadows, ShadowSettings, shadow_attack, subsets
from airlock.config import ReleaseConfig, load
from airlock.data import Facts, Records, Split
from airlock.data.benchmarks import ADULT_COLUMNS
from airlock.mechanisms import Stream
from airlock.papers.answers.neuron import NeuronAnswerer, keep
from airlock.papers.answers.published import Published, measure
from airlock.training import Resident, Run, count_correct, predict, train_together
from airlock.training.devices import choose_device
from airlock.training.ensembles.ensemble import model_seed
from airlock.training.gradients import start_as_keras


def main() -> None:
    """Train, answer, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--losses", type=_words, default=["elements", "mean"])
    parser.add_argument("--epsilons", type=_words, default=[])
    parser.add_argument("--seeds", type=_words, default=["0"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shadows", type=int, default=0)
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--codes", action="store_true", help="Adult with 14 numbers: categories as codes, not one-hot")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as in airlock release")
    asked = parser.parse_args()
    changes = {key: json.loads(value) for key, _, value in (item.partition("=") for item in asked.set)}
    for seed in asked.seeds:
        for loss in asked.losses:
            config = load(asked.config, {**changes, "seed": int(seed), "settings.loss": loss})
            print(json.dumps(_measure(config, asked)), flush=True)


def _words(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def _measure(config: ReleaseConfig, asked: argparse.Namespace) -> dict[str, object]:
    facts, split = data.describe(config, asked.data_dir), data.load(config, asked.data_dir)
    if asked.codes:
        facts, split = _with_codes(facts, split)
    channel = Published(config, facts)
    assert channel.alpha != "search"
    run = Run(device=choose_device(config.device), progress=_bar if sys.stderr.isatty() else None)
    begin = time.monotonic()
    net = channel.train(split.private, channel.objective(channel.alpha), run)
    own, others = (count_correct(net, part) / len(part) for part in (split.private, split.test))
    row: dict[str, object] = {"seed": config.seed, "loss": channel.settings.loss}
    row |= {} if channel.settings.loss == "mean" else {"alpha": channel.alpha}
    row |= {"records": len(split.private), "train": round(own, 4), "test": round(others, 4)}
    row["seconds"] = round(time.monotonic() - begin)
    if asked.shadows:
        row["leakage"] = round(_leakage(channel, net, split, asked.shadows, run), 4)
    kept = keep(net)
    for noise in ("laplace", "gaussian"):
        for epsilon in asked.epsilons:
            stream = Stream.from_seed(config.seed).child(noise, epsilon)
            changed = {**config.settings, "noise": noise}
            made = Published(config.model_copy(update={"epsilon": float(epsilon), "settings": changed}), facts)
            answerer = NeuronAnswerer(made.interface(), kept)
            rounds = [measure(answerer, split.test, stream.child(i)).accuracy for i in range(asked.rounds)]
            row[f"{noise} {epsilon}"] = round(1 - float(np.mean(rounds)) / others, 4)
    return row


def _leakage(channel: Published, net: nn.Module, split: Split, count: int, run: Run) -> float:
    """TPR − FPR at the attack network's own decision; it learns from records that nobody is scored by."""
    assert channel.alpha != "search"
    rest = Records(*(np.concatenate([getattr(p, k) for p in (split.public, split.holdout)]) for k in ("x", "y")))
    scored = {row.tobytes() for part in (split.private, split.test) for row in part.x}
    rest = rest.take(np.flatnonzero([row.tobytes() not in scored for row in rest.x]))  # Adult has equal records
    size, seed = len(split.private), channel.config.seed
    away = subsets(count, len(rest), size, seed)

    def make(model: int) -> nn.Module:
        fresh = channel.start()
        start_as_keras(fresh, model_seed(seed, model))
        return fresh

    models = train_together(
        make, count, Resident(rest, run.device), away, channel.recipe, seed, run,
        batch_size=channel.settings.batch_size, objective=channel.objective(channel.alpha),
    )  # fmt: skip
    there = Shadows(away, models.logits(Resident(rest, run.device)).numpy(), rest.y)
    few = min(size, len(split.test))
    members, others = (
        AnsweredRecords(part, predict(net, part).numpy())
        for part in (split.private.take(np.arange(few)), split.test.take(np.arange(few)))
    )
    scores = shadow_attack(there, members, others, seed, run, ShadowSettings(repeats=1, by_class=False))
    return float((scores.members > 0).mean() - (scores.others > 0).mean())


def _with_codes(facts: Facts, split: Split) -> tuple[Facts, Split]:
    """Adult as the paper had it, 14 numbers: a category's place in the public schema, scaled to [0, 1]."""

    def coded(records: Records) -> Records:
        columns, place = [], 0
        for column in ADULT_COLUMNS.values():
            width = len(column.categories or (None,))
            block = records.x[:, place : place + width]
            columns.append(block.argmax(1) / (width - 1) if column.categories else block[:, 0])
            place += width
        return Records(np.stack(columns, 1).astype(np.float32), records.y)

    facts = replace(facts, shape=(len(ADULT_COLUMNS),))
    private, public, test, holdout = map(coded, (split.private, split.public, split.test, split.holdout))
    return facts, Split(facts, private, public, test, holdout)


def _bar(label: str, done: int, total: int) -> None:
    print(f"\r{label} {done}/{total}", end="" if done < total else "\n", file=sys.stderr)


if __name__ == "__main__":
    main()
