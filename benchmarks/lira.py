"""LiRA, BaVarIA, RMIA, the shadow-model attack and the loss threshold on real networks, with the same shadow models.

Each of 64 shadow models (a balanced design) and each of four targets is trained on half of the pool; no attack learns
from the targets. A fifth of the pool is set aside: the shadow-model attack learns only from the shadows' answers about
these records, and all attacks are scored on the other four fifths. RMIA's population is the test set (without one, a
part of the records that no model saw). Nothing is tuned on scored records.

A row is one attack on one network: the mean over the targets of the AUC and of the TPR at 0.1% and 1% FPR, with the
lowest and highest target. On a GPU: MNIST-Net and CIFAR-Net, without augmentation; on a CPU a small trial on digits.
Files of MNIST and CIFAR-10 are looked for in AIRLOCK_DATA. AIRLOCK_BENCH_NETS (comma-separated names) and
AIRLOCK_BENCH_EPOCHS change what is run; AIRLOCK_BENCH_FOLDER keeps checkpoints and resumes from them.

Memory for 68 CIFAR-Nets: about 11 GB on the GPU in training; 0.4 GB for weights and 0.2 GB for logits on the CPU.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from airlock.auditing.attacks import AnsweredRecords, Shadows, ShadowSettings, balanced, rmia, shadow_attack
from airlock.auditing.attacks.bavaria import online
from airlock.auditing.attacks.lira import from_score, from_signals
from airlock.auditing.attacks.shadows import train_attack
from airlock.auditing.attacks.signals import Mask, as_scores, loss, scaled_logit
from airlock.auditing.bounds import auc_interval
from airlock.auditing.result import Scores
from airlock.data import Records
from airlock.data.sources import named
from airlock.training import Ensemble, Recipe, Resident, Run, train_together
from airlock.training.devices import choose_device
from airlock.training.ensembles.ensemble import makes

SEED = 11


class Case(NamedTuple):
    """One network on one data set.

    Args:
        net: Its name.
        source: The data set's name.
        records: The size of the pool.
        shadows: The number of shadow models, even.
        targets: The number of targets.
        epochs: Epochs over the half of the pool that a model learns from.
        learning_rate: For SGD with momentum 0.9, with cosine decay.
        batch: The batch size of one model.
        lessons: The most answers that a class's attack network learns from.
        population: The most records in RMIA's population.
    """

    net: str
    source: str
    records: int
    shadows: int = 64
    targets: int = 4
    epochs: int = 20
    learning_rate: float = 0.05
    batch: int = 128
    lessons: int = 5000
    population: int = 10_000


CASES = {
    "cpu": [Case("mlp", "digits", 1200, 16, 2, 40, 0.1, 64)],
    "cuda": [Case("mnist-net", "mnist", 60_000, epochs=10), Case("cifar-net", "cifar10", 50_000)],
}


def run() -> list[dict[str, Any]]:
    """One row per attack and network."""
    device = choose_device("auto")
    wanted = [name for name in os.environ.get("AIRLOCK_BENCH_NETS", "").split(",") if name]
    known = {case.net: case for case in (*CASES["cpu"], *CASES["cuda"])}
    cases = [known[name] for name in wanted] if wanted else CASES[device.type]
    epochs = os.environ.get("AIRLOCK_BENCH_EPOCHS")
    return [
        row
        for case in cases
        for row in case_rows(case._replace(epochs=int(epochs)) if epochs else case, _run(device, case.net))
    ]


def _run(device: torch.device, name: str) -> Run:
    folder = os.environ.get("AIRLOCK_BENCH_FOLDER")
    return Run(device, _progress(), Path(folder) / name if folder else None, resume=folder is not None)


def _progress() -> Callable[[str, int, int], None]:
    """A line on stderr every ten seconds."""
    last = [time.monotonic()]

    def report(label: str, done: int, steps: int) -> None:
        if time.monotonic() - last[0] > 10 or done == steps:
            last[0] = time.monotonic()
            print(f"{label}: {done} of {steps}", file=sys.stderr, flush=True)

    return report


def case_rows(case: Case, run: Run) -> list[dict[str, Any]]:
    """All attacks on all targets of one network."""
    pool, beside = read(case)
    inside = design(case, len(pool))
    start = time.perf_counter()
    models = train(case, pool, inside, run)
    trained = time.perf_counter() - start
    logits, population = (models.logits(Resident(records, run.device)).numpy() for records in (pool, beside))
    right = logits.argmax(2) == pool.y
    row = {"net": case.net, "device": run.device.type, "records": len(pool) // 2, "shadows": case.shadows}
    row |= {"epochs": case.epochs, "train": _short(right[inside].mean()), "test": _short(right[~inside].mean())}
    never = np.zeros((len(inside), len(beside)), bool)
    by = prepare(case, Shadows(inside, logits, pool.y), Shadows(never, population, beside.y), pool, run)
    rest = slice(len(pool) - len(by.scored), None)
    found = [
        attacks(case, by, logits[target, rest], population[target], inside[target, rest], run)
        for target in range(case.targets)
    ]
    row["training s"], row["all s"] = round(trained, 1), round(time.perf_counter() - start, 1)
    return [row | figures(list(same)) for same in zip(*found, strict=True)]


def read(case: Case) -> tuple[Records, Records]:
    """The pool, shuffled, and records that no model sees."""
    known = named(case.source, None)
    place = known[0].find(known[1]) if known else None
    if place is None:
        raise FileNotFoundError(f"{case.source} is not in AIRLOCK_DATA")
    raw, test = place.read()
    records = distinct(Records(raw.x, np.asarray(raw.y, np.int64)))
    order = np.random.default_rng(SEED).permutation(len(records))
    pool, rest = records.take(order[: case.records]), records.take(order[case.records :])
    beside = rest if test is None else Records(test.x, np.asarray(test.y, np.int64))
    return pool, beside.take(np.arange(min(case.population, len(beside))))


def distinct(records: Records) -> Records:
    """Remove duplicates: of two equal records one could be set aside and the other scored, or one in and one out."""
    rows = np.ascontiguousarray(records.x).reshape(len(records), -1)
    first = {hashlib.blake2b(row.tobytes(), digest_size=16).digest(): i for i, row in reversed(list(enumerate(rows)))}
    return records.take(np.sort(np.fromiter(first.values(), np.int64)))


def design(case: Case, records: int) -> Mask:
    """Which record is in which training set: the targets first, each with its own half, then the shadows."""
    chance = np.random.default_rng(SEED + 1)
    targets = np.stack([chance.permutation(records) < records // 2 for _ in range(case.targets)])
    return np.concatenate([targets, balanced(case.shadows, records, SEED)])


def train(case: Case, pool: Records, inside: Mask, run: Run) -> Ensemble:
    """Train targets and shadows together."""
    steps = case.epochs * -(-(len(pool) // 2) // case.batch)
    recipe = Recipe(steps=steps, learning_rate=case.learning_rate, schedule="cosine", warmup=0.05)
    make = makes(case.net, pool.x.shape[1:], int(pool.y.max()) + 1, SEED)
    label = f"training {len(inside)} {case.net}s"
    data = Resident(pool, run.device)
    return train_together(make, len(inside), data, inside, recipe, SEED, run, None, label, batch_size=case.batch)


class Attacker(NamedTuple):
    """What does not depend on the target: the shadows on the scored records and on the population, the attack nets.

    Args:
        known: The records that the shadow-model attack learns from: the first fifth of the pool.
        lessons: The shadows' outputs on them.
        nets: The networks of the shadow-model attack.
        scored: The other records.
        here: The shadows' outputs on those.
        signals: Their scaled logits.
        beside: The shadows' outputs on the population.
    """

    known: Records
    lessons: Shadows
    nets: Ensemble
    scored: Records
    here: Shadows
    signals: NDArray[np.floating]
    beside: Shadows


def prepare(case: Case, models: Shadows, beside: Shadows, pool: Records, run: Run) -> Attacker:
    """Prepare the attacks from the shadows alone."""
    shadows = [Shadows(s.inside[case.targets :], s.logits[case.targets :], s.y) for s in (models, beside)]
    first, rest = np.arange(len(pool) // 5), np.arange(len(pool) // 5, len(pool))
    lessons, here = shadows[0].take(first), shadows[0].take(rest)
    nets = train_attack(lessons, SEED, replace(run, checkpoint=None), _settings(case))
    return Attacker(pool.take(first), lessons, nets, pool.take(rest), here, here.each(scaled_logit), shadows[1])


def _settings(case: Case) -> ShadowSettings:
    return ShadowSettings(repeats=1, most=case.lessons)


def attacks(
    case: Case, by: Attacker, says: NDArray[np.float32], beside: NDArray[np.float32], member: Mask, run: Run
) -> list[Scores]:
    """Every attack on one target, from its logits on the scored records and on the population."""
    y, inside = by.here.y, by.here.inside
    sides = [AnsweredRecords(by.scored.take(np.flatnonzero(m)), says[m]) for m in (member, ~member)]
    found = [
        as_scores("loss threshold", "black-box", -loss(says, y), member, y),
        shadow_attack(by.lessons, sides[0], sides[1], SEED, run, _settings(case), by.nets),
    ]
    own = scaled_logit(says, y)
    for kind in ("online", "offline"):
        one, each = (from_signals(kind, own, member, by.signals, inside, y, v) for v in ("global", "record"))
        found += [one, replace(each, name=f"{each.name}, own variance")]
    found.append(from_score("BaVarIA, online", partial(online, own), member, by.signals, inside, y))
    return found + [rmia(kind, says, member, by.here, by.beside, beside) for kind in ("online", "offline")]


def figures(same: list[Scores]) -> dict[str, Any]:
    """One attack's figures: the mean over the targets, and the range if there are several."""
    row: dict[str, Any] = {"attack": same[0].name, "targets": len(same), "non-members": len(same[0].others)}
    row |= _range("AUC", [auc_interval(s.members, s.others)[0] for s in same])
    row |= _range("TPR at 0.1%", [found_at(s, 0.001) for s in same])
    return row | _range("TPR at 1%", [found_at(s, 0.01) for s in same])


def found_at(scores: Scores, rate: float) -> float:
    """The true positive rate at this false positive rate; ties count against the attack."""
    threshold = np.sort(scores.others)[::-1][int(rate * len(scores.others))]
    return float((scores.members > threshold).mean())


def _range(name: str, values: list[float]) -> dict[str, Any]:
    return {name: _short(np.mean(values)), f"{name}, range": f"{min(values):.4f} to {max(values):.4f}"}


def _short(value: Any) -> float:
    return round(float(value), 4)
