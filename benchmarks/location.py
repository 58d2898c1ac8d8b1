"""Membership inference on Location-30 in the settings of Lu et al. 2021 (tables 3 to 5), and later attacks.

A net 446-128(tanh)-30 learns from 1,200 records: Adam 0.001, L2 0.001, batches of 100, 100 epochs, with plain
cross-entropy or with the paper's convexified loss. The attacks are scored on these and 1,200 other records; 30 shadow
models are each trained on 1,200 of the remaining 2,610. Offline attacks use these; online ones use 30 more, each
trained on half of the 2,400 scored records. There are three targets, each with its own division of the records.

A row is one attack on one target: AUC, TPR at 1% FPR, and for the shadow-model attack the paper's leakage, TPR − FPR at
its networks' own decision. Needs the file of Location-30 (AIRLOCK_DATA). About ten minutes on two free cores.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from airlock.auditing.attacks import (
    AnsweredRecords,
    LabelSettings,
    Shadows,
    ShadowSettings,
    balanced,
    gradient_norm,
    label_only,
    lira,
    rmia,
    shadow_attack,
    subsets,
)
from airlock.auditing.attacks.label_only import labels_of
from airlock.auditing.attacks.signals import Mask, as_scores, loss
from airlock.auditing.bounds import auc_interval
from airlock.auditing.result import Scores
from airlock.data import Records
from airlock.data.sources import named
from airlock.training import Ensemble, Recipe, Resident, Run, train_together
from airlock.training.devices import choose_device
from airlock.training.ensembles.ensemble import makes
from airlock.training.gradients import Convexified

TRAINED, SHADOWS, EPOCHS, BATCH, SEEDS = 1200, 30, 100, 100, (0, 1, 2)
RECIPE = Recipe(
    steps=EPOCHS * TRAINED // BATCH, optimiser="adam", learning_rate=0.001, weight_decay=0.001, precision="fp32"
)
CONVEXIFIED = Convexified(alpha=1.0, over="elements", l2=0.001)  # as in the authors' code
SHAPE, CLASSES = (446,), 30

Says = tuple[NDArray[np.float32], NDArray[np.float32]]
"""The target's logits on the scored records and on the rest."""


def run() -> list[dict[str, Any]]:
    """One row per attack, target and loss."""
    known = named("location30", None)
    place = known[0].find(known[1]) if known else None
    if place is None:
        return [{"attack": "none: the Location-30 file was not found (AIRLOCK_DATA)"}]
    raw, _ = place.read()
    records, device = Records(raw.x, raw.y.astype(np.int64)), choose_device("auto")
    work = [(way, seed) for way in ("plain", "convexified") for seed in SEEDS]
    return [row for way, seed in work for row in target_rows(records, way, seed, Run(device=device))]


def target_rows(records: Records, way: str, seed: int, run: Run) -> list[dict[str, Any]]:
    """All attacks on one target."""
    order = np.random.default_rng(seed).permutation(len(records))
    pool, rest = records.take(order[: 2 * TRAINED]), records.take(order[2 * TRAINED :])
    member = np.arange(2 * TRAINED) < TRAINED
    train = together if way == "plain" else convexified
    away = subsets(SHADOWS, len(rest), TRAINED, seed)
    outside = train(rest, away, 3 * seed, run)
    online = np.concatenate([member[None], balanced(SHADOWS, len(pool), seed)] if way == "plain" else [member[None]])
    models = train(pool, online, 3 * seed + 1, run)
    target, beside = (models.logits(Resident(side, run.device)).numpy() for side in (pool, rest))
    right = target[0].argmax(1) == pool.y
    row = {"loss": way, "seed": seed, "train": _short(right[member].mean()), "test": _short(right[~member].mean())}
    found = offline_attacks(outside, pool, rest, away, (target[0], beside[0]), member, way, seed, run)
    if way == "plain":
        never = np.zeros((SHADOWS, len(rest)), bool)
        shadows = Shadows(online[1:], target[1:], pool.y), Shadows(never, beside[1:], rest.y)
        found += online_attacks(*shadows, (target[0], beside[0]), member)
        found += white_attacks(models, pool, member, seed, run)
    return [row | figures(scores) for scores in found]


def offline_attacks(
    outside: Ensemble, pool: Records, rest: Records, away: Mask, says: Says, member: Mask, way: str, seed: int, run: Run
) -> list[Scores]:
    """With shadow models that never saw a scored record; their own records are RMIA's population."""
    target, beside = says
    there = Shadows(away, outside.logits(Resident(rest, run.device)).numpy(), rest.y)
    never = np.zeros((SHADOWS, len(pool)), bool)
    here = Shadows(never, outside.logits(Resident(pool, run.device)).numpy(), pool.y)
    members, others = (AnsweredRecords(pool.take(np.flatnonzero(m)), target[m]) for m in (member, ~member))
    kinds = [ShadowSettings(repeats=2)]
    if way == "convexified":  # the paper's text says "an attack model", its reference uses one per class
        kinds.append(ShadowSettings(repeats=1, by_class=False))
    return [
        *(shadow_attack(there, members, others, seed, run, kind) for kind in kinds),
        as_scores("loss threshold", "black-box", -loss(target, pool.y), member, pool.y),
        lira("offline", target, member, here),
        rmia("offline", target, member, here, there, beside),
    ]


def online_attacks(shadows: Shadows, population: Shadows, says: Says, member: Mask) -> list[Scores]:
    """With shadow models that saw half of the scored records."""
    own_variance = lira("online", says[0], member, shadows, "record")
    return [
        lira("online", says[0], member, shadows),
        replace(own_variance, name="LiRA, online, each record's own variance"),
        rmia("online", says[0], member, shadows, population, says[1]),
    ]


def white_attacks(models: Ensemble, pool: Records, member: Mask, seed: int, run: Run) -> list[Scores]:
    """Attacks with access to the weights, and label-only attacks."""
    net = models.model(0).to(run.device)
    sides = [pool.take(np.flatnonzero(m)) for m in (member, ~member)]
    flips = LabelSettings(kind="flip", queries=100, levels=(0.01, 0.02, 0.05, 0.1))
    return [
        gradient_norm(net, sides[0], sides[1]),
        label_only(labels_of(net), sides[0], sides[1], flips, seed, run.device),
    ]


def figures(scores: Scores) -> dict[str, Any]:
    """AUC, TPR at 1% FPR, and the leakage if the attack makes its own decision."""
    row: dict[str, Any] = {"attack": scores.name, "AUC": _short(auc_interval(scores.members, scores.others)[0])}
    threshold = np.sort(scores.others)[::-1][len(scores.others) // 100]
    row["TPR at 1%"] = _short((scores.members > threshold).mean())
    own = scores.name.startswith("shadow models")
    row["leakage"] = _short((scores.members > 0).mean() - (scores.others > 0).mean()) if own else "-"
    return row


def _short(value: Any) -> float:
    return round(float(value), 4)


def together(records: Records, inside: Mask, seed: int, run: Run) -> Ensemble:
    """Models with plain cross-entropy."""
    make, data = makes("mlp", SHAPE, CLASSES, seed), Resident(records, run.device)
    return train_together(make, len(inside), data, inside, RECIPE, seed, run, batch_size=BATCH)


def convexified(records: Records, inside: Mask, seed: int, run: Run) -> Ensemble:
    """Models with the paper's loss as in its authors' code, initialised as in Keras.

    They use a loop of their own, so that the figures in docs/results/audit.md are reproduced: `train_together` has
    another order of batches and other initial weights.
    """
    make, data = makes("mlp", SHAPE, CLASSES, seed), Resident(records, run.device)
    first = Ensemble.empty(make(0), len(inside))
    torch.manual_seed(seed)
    stacked = [value.clone().to(run.device) for value in first.values.values()]
    for value in stacked:
        if value.dim() == 3:
            value.uniform_(-1, 1).mul_(math.sqrt(6 / (value.shape[1] + value.shape[2])))
        value.requires_grad_()
    optimiser, chance = torch.optim.Adam(stacked, lr=0.001), np.random.default_rng(seed)
    own = np.stack([np.flatnonzero(row) for row in inside])
    for _ in range(EPOCHS):
        order = torch.from_numpy(chance.permuted(own, axis=1)).to(run.device)
        for batch in torch.split(order, BATCH, 1):
            optimiser.zero_grad()
            _convex_loss(stacked, data.x[batch], data.y[batch]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    first.put(range(len(inside)), dict(zip(first.values, (v.detach().cpu() for v in stacked), strict=True)))
    return first


def _convex_loss(stacked: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
    """The sum over models, each with its own batch."""
    one, two, three, four = stacked
    hidden = torch.tanh(torch.baddbmm(two[:, None], x, one.transpose(1, 2)))
    logits = torch.baddbmm(four[:, None], hidden, three.transpose(1, 2))
    weights = torch.full(y.shape, 1 / y.shape[1], device=y.device)
    return CONVEXIFIED(logits, y, weights, {"one": one, "three": three})
