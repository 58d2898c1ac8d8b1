"""Attacks by the number of shadow models they have: `python docs/results/attacks.py ROWS` writes JSON lines.

Networks of one hidden layer that know their records by heart: 64 shadow models in a balanced design and eight targets,
trained together, each on half of the pool. An attack with fewer shadows has some of these 64; with 4, 8 and 16 it is
made with four disjoint sets of them. Quantile regression learns from records that no model sees, which are also RMIA's
population. A row is one attack: the mean over targets and sets of shadows, and the standard error over the targets.

`simulated` has no networks: the signals of 5,000 records are drawn from the law that BaVarIA assumes (`normal`), or
with Student's t of five degrees of freedom in place of the normal law (`tails`); `truth` knows every record's own law.

AIRLOCK_DATA has to hold mnist.npz. One thread, about five minutes.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from scipy.stats import norm, t

from airlock.auditing.attacks import (
    AnsweredRecords,
    Shadows,
    balanced,
    bavaria,
    lira,
    loss_threshold,
    quantile_regression,
    rmia,
)
from airlock.auditing.attacks.bavaria import online as bavaria_online
from airlock.auditing.attacks.lira import online as lira_online
from airlock.auditing.attacks.signals import Mask, loss
from airlock.auditing.bounds import Floats, auc_interval
from airlock.auditing.result import Scores
from airlock.data import Records
from airlock.data.sources import named
from airlock.training import Recipe, Resident, Run, train_together
from airlock.training.ensembles.ensemble import makes

Row = dict[str, Any]
Sides = tuple[Floats, Floats]  # scores of members and of others
SHADOWS, TARGETS, SEED = 64, 8, 11
NUMBERS = {4: 4, 8: 4, 16: 4, 32: 2, 64: 1}  # of shadows, and how many disjoint sets of so many
# Data set: records in the pool, records that no model sees, epochs.
SETS = {"digits": (1440, 350, 60), "mnist": (10_000, 5000, 25)}
BATCH, RATE = 64, 0.1
KINDS: tuple[Literal["online", "offline"], ...] = ("online", "offline")


def trained(name: str) -> tuple[Records, Records, Any, Floats, Floats, float]:
    """Pool, records beside it, who was trained on what, and all logits on both."""
    size, beside, epochs = SETS[name]
    known = named(name, None)
    place = known[0].find(known[1]) if known else None
    if place is None:
        raise SystemExit(f"{name} is not in AIRLOCK_DATA")
    raw, _ = place.read()
    order = np.random.default_rng(SEED).permutation(len(raw.x))[: size + beside]
    every = Records(raw.x[order], np.asarray(raw.y[order], np.int64))
    pool, rest = every.take(np.arange(size)), every.take(np.arange(size, size + beside))
    chance = np.random.default_rng(SEED + 1)
    targets = np.stack([chance.permutation(size) < size // 2 for _ in range(TARGETS)])
    inside = np.concatenate([targets, balanced(SHADOWS, size, SEED)])
    recipe = Recipe(steps=epochs * (size // 2 // BATCH), learning_rate=RATE, schedule="cosine", warmup=0.05)
    make, run = makes("mlp", pool.x.shape[1:], 10, SEED), Run(torch.device("cpu"))
    begin = time.process_time()
    models = train_together(
        make, len(inside), Resident(pool, run.device), inside, recipe, SEED, run, None, name, batch_size=BATCH
    )
    seconds = time.process_time() - begin
    logits, others = (models.logits(Resident(part, run.device)).numpy() for part in (pool, rest))
    return pool, rest, inside, logits, others, seconds


def networks(name: str) -> Iterator[Row]:
    """All attacks on networks for one data set."""
    pool, rest, inside, logits, others, seconds = trained(name)
    right = logits.argmax(2) == pool.y
    row = {"data": name, "pool": len(pool), "targets": TARGETS, "seed": SEED, "training s": round(seconds, 1)}
    row |= {"train": round(float(right[inside].mean()), 4), "test": round(float(right[~inside].mean()), 4)}
    never = np.zeros((len(inside), len(rest)), bool)
    every, beside = Shadows(inside, logits, pool.y), Shadows(never, others, rest.y)

    def some(models: Shadows, first: int, count: int) -> Shadows:
        own = slice(TARGETS + first, TARGETS + first + count)
        return Shadows(models.inside[own], models.logits[own], models.y)

    def single(target: int, attack: str) -> Sides:
        member, says = inside[target], logits[target]
        known, *sides = (
            AnsweredRecords(rest, others[target]),
            *(AnsweredRecords(pool.take(np.flatnonzero(m)), says[m]) for m in (member, ~member)),
        )
        if attack == "loss threshold":
            one, other = (loss(side.logits, side.records.y) for side in sides)
            return both(loss_threshold(one, other, sides[0].records.y, sides[1].records.y))
        return both(quantile_regression(known, sides[0], sides[1], SEED + target, Run(torch.device("cpu"))))

    for attack in ("loss threshold", "quantile regression"):
        begin = time.process_time()
        found = [[single(target, attack)] for target in range(TARGETS)]
        yield row | {"attack": attack, "shadows": 0} | figures(found, time.process_time() - begin)
    for count, sets in NUMBERS.items():
        made: dict[str, Callable[[int, Shadows, Shadows], Scores]] = {}
        for kind in KINDS:
            lira_of, bavaria_of, rmia_of = partial(lira, kind), partial(bavaria, kind), partial(rmia, kind)
            made |= {
                f"LiRA, {kind}": _alone(lira_of, logits, inside),
                f"LiRA, {kind}, own variance": _alone(partial(lira_of, variance="record"), logits, inside),
                f"BaVarIA, {kind}": _alone(bavaria_of, logits, inside),
                f"BaVarIA, {kind}, normal": _alone(partial(bavaria_of, predictive="normal"), logits, inside),
                f"RMIA, {kind}": _with_others(rmia_of, logits, inside, others),
            }
        for attack, make in made.items():
            begin = time.process_time()
            found = [
                [
                    both(make(k, some(every, first, count), some(beside, first, count)))
                    for first in range(0, sets * count, count)
                ]
                for k in range(TARGETS)
            ]
            yield row | {"attack": attack, "shadows": count} | figures(found, time.process_time() - begin)


def _alone(way: Any, logits: Floats, inside: Mask) -> Callable[[int, Shadows, Shadows], Scores]:
    """An attack that makes no use of records that no model has seen."""
    return lambda target, shadows, _: way(logits[target], inside[target], shadows)


def _with_others(way: Any, logits: Floats, inside: Mask, others: Floats) -> Callable[[int, Shadows, Shadows], Scores]:
    """One that does."""
    return lambda target, shadows, beside: way(logits[target], inside[target], shadows, beside, others[target])


def both(scores: Scores) -> Sides:
    """The scores of either side."""
    return scores.members, scores.others


def figures(found: list[list[Sides]], seconds: float) -> Row:
    """Means over targets and sets of shadows; the error of a mean is over the targets."""
    row: Row = {"sets": len(found[0]), "seconds": round(seconds, 1)}
    named_by: dict[str, Callable[[Sides], float]] = {
        "AUC": lambda s: auc_interval(*s)[0],
        "TPR at 0.1%": lambda s: found_at(s, 0.001),
        "TPR at 1%": lambda s: found_at(s, 0.01),
    }
    for name, figure in named_by.items():
        each = np.array([np.mean([figure(one) for one in same]) for same in found])
        row |= {name: round(float(each.mean()), 5), f"{name}, error": round(float(each.std(ddof=1)) / TARGETS**0.5, 5)}
    return row


def found_at(sides: Sides, rate: float) -> float:
    """The true positive rate at this false positive rate; below 1,000 non-members nobody may be accused at 0.1%."""
    members, others = sides
    return float((members > np.sort(others)[::-1][int(rate * len(others))]).mean())


def simulated(tails: bool) -> Iterator[Row]:
    """Signals of records with their own means and variances."""
    rng, records = np.random.default_rng(SEED + tails), 5000
    out = rng.normal(6.0, 3.0, records)
    mean = np.stack([out, out + 0.2 + 2.0 * norm.sf(out, 1.5, 1.5) + rng.normal(0, 0.2, records)])
    sd = 1.2 / np.sqrt(rng.gamma(4.0, 1 / 4.0, (2, records)))

    def drawn(inside: Mask) -> Floats:
        noise = rng.standard_t(5.0, inside.shape) * (3 / 5) ** 0.5 if tails else rng.normal(size=inside.shape)
        return np.asarray(np.where(inside, mean[1], mean[0]) + np.where(inside, sd[1], sd[0]) * noise)

    def log_density(signal: Floats, side: int) -> Floats:
        if tails:
            return np.asarray(t.logpdf(signal, 5.0, mean[side], sd[side] * (3 / 5) ** 0.5))
        return np.asarray(norm.logpdf(signal, mean[side], sd[side]))

    inside, member = balanced(SHADOWS, records, SEED), rng.random((TARGETS, records)) < 0.5
    shadows, targets = drawn(inside), drawn(member)
    row = {"data": "simulated", "law": "tails" if tails else "normal", "pool": records, "targets": TARGETS}
    truth = [[(ratio[m], ratio[~m])] for s, m in zip(targets, member, strict=True)
             for ratio in [log_density(s, 1) - log_density(s, 0)]]  # fmt: skip
    yield row | {"attack": "truth", "shadows": 0, "seed": SEED} | figures(truth, 0.0)
    ways: dict[str, Callable[[Floats, Floats, Mask], Floats]] = {
        "LiRA, online": lira_online,
        "LiRA, online, own variance": lambda t, s, m: lira_online(t, s, m, "record"),
        "BaVarIA, online": bavaria_online,
        "BaVarIA, online, normal": lambda t, s, m: bavaria_online(t, s, m, "normal"),
    }
    for count, sets in NUMBERS.items():
        for attack, way in ways.items():
            found = [
                [
                    (score[m], score[~m])
                    for first in range(0, sets * count, count)
                    for score in [way(s, shadows[first : first + count], inside[first : first + count])]
                ]
                for s, m in zip(targets, member, strict=True)
            ]
            yield row | {"attack": attack, "shadows": count, "seed": SEED} | figures(found, 0.0)


def main() -> None:
    """Write all rows."""
    with Path(sys.argv[1]).open("w", encoding="utf-8") as file:
        for rows in (simulated(False), simulated(True), *(networks(name) for name in SETS)):
            for row in rows:
                print(json.dumps(row), file=file, flush=True)


if __name__ == "__main__":
    main()
