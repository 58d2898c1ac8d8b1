"""The shadow-model attack (Shokri et al. 2017): one small network a class learns to tell members by the model's answer.

The settings are those of Lu et al. 2021, tables 3 and 4: 64 hidden tanh units, L2 1e-6, Adam with 0.01, batches of 100,
100 epochs; an attack network sees the whole vector of probabilities and says "member" or "not".

The attack networks learn from the shadows' records alone, and records that are scored must not be among those: they are
compared by content and refused. A score above 0 is the attack's own "member" (its network's probability is above 1/2),
so that TPR − FPR at 0 is the leakage that Lu et al. report; no threshold is chosen on the scored records.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from torch import nn

from airlock.auditing.attacks.shadows import Shadows, refuse_overlap
from airlock.auditing.attacks.signals import QUESTION_ANSWERS
from airlock.auditing.bounds import Floats
from airlock.auditing.scores import Ints, Scores
from airlock.config import Frozen
from airlock.data import Records
from airlock.errors import DataError
from airlock.nets.registry import seed_torch
from airlock.training import Ensemble, Recipe, Resident, Run, train_together
from airlock.training.ensembles.ensemble import Make, model_seed


class ShadowSettings(Frozen):
    """How the attack networks are trained.

    Args:
        hidden: Units of the one hidden layer.
        weight_decay: The gradient's L2 term: 2e-6 · w is the gradient of an L2 penalty of 1e-6 · ‖w‖².
        learning_rate: Of Adam.
        batch_size: Answers in a step.
        epochs: Over the answers of an average class.
        repeats: How many times the attack is made, each with its own seed; the first one gives the scores.
        most: Answers that a network learns from at most, drawn by chance; None for all.
        by_class: One network a class, or one for all, which is not told the record's class.
    """

    hidden: int = 64
    weight_decay: float = 2e-6
    learning_rate: float = 0.01
    batch_size: int = 100
    epochs: int = 100
    repeats: int = 3
    most: int | None = None
    by_class: bool = True


@dataclass(frozen=True)
class Answers:
    """What the attacked model says about records: their contents, labels and its logits.

    Args:
        records: The records, to be compared with the shadows' own.
        logits: (records, classes).
    """

    records: Records
    logits: Floats


def shadow_attack(
    shadows: Shadows,
    known: Records,
    members: Answers,
    others: Answers,
    seed: int,
    run: Run,
    settings: ShadowSettings | None = None,
    nets: Ensemble | None = None,
) -> Scores:
    """Learn from the shadows, then score what the attacked model says.

    Args:
        shadows: Models with known members on `known`.
        known: The shadows' records.
        members: The attacked model's answers about its training records.
        others: Its answers about records that it never saw.
        seed: Of the attack networks and of which of the shadows' non-members they learn from.
        run: Device, progress, checkpoints.
        settings: How the attack networks are trained; those of the paper unless told.
        nets: What `train_attack` made of the same shadows and settings, where several models are attacked.

    Raises:
        DataError: A scored record is among the shadows' own.
    """
    chosen = settings or ShadowSettings()
    refuse_overlap(known, members.records, "the shadow models' records")
    refuse_overlap(known, others.records, "the shadow models' records")
    nets = nets or train_attack(shadows, seed, run, chosen)
    repeats = chosen.repeats
    found = [_ask(nets, side.logits, _groups(side.records.y, chosen), repeats, run) for side in (members, others)]
    return Scores(
        "shadow models" if chosen.by_class else "shadow models, one network",
        QUESTION_ANSWERS,
        "black-box",
        found[0][0],
        found[1][0],
        members.records.y,
        others.records.y,
        *(found if repeats > 1 else ()),
    )


def train_attack(shadows: Shadows, seed: int, run: Run, settings: ShadowSettings) -> Ensemble:
    """All attack networks at once: network r · groups + c is that of class c in the r-th repeat."""
    classes = shadows.logits.shape[2]
    answers, inside, own = _lessons(shadows, seed)
    own, groups = _groups(own, settings), classes if settings.by_class else 1
    each = [_draw(np.flatnonzero(own == c), settings.most, seed + c) for c in range(groups)]
    if any(not {True, False} <= set(inside[places].tolist()) for places in each):
        raise DataError(
            "answers about members and about others of every class from the shadow models",
            "a class without",
            "There is one attack network a class.",
            "Train more shadow models, or give them a larger pool.",
        )
    typical = float(np.mean([len(places) for places in each]))
    recipe = Recipe(
        steps=settings.epochs * max(1, round(typical / settings.batch_size)),
        optimiser="adam",
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        precision="fp32",
    )
    data = Resident(Records(answers, inside.astype(np.int64)), run.device)
    make = _attack_net(classes, settings.hidden, seed)
    count, label = groups * settings.repeats, "training attack models"
    members = each * settings.repeats
    return train_together(make, count, data, members, recipe, seed, run, None, label, batch_size=settings.batch_size)


def _attack_net(classes: int, hidden: int, seed: int) -> Make:
    def make(model: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            seed_torch(model_seed(seed, model))
            return nn.Sequential(nn.Linear(classes, hidden), nn.Tanh(), nn.Linear(hidden, 2))

    return make


def _lessons(shadows: Shadows, seed: int) -> tuple[NDArray[np.float32], NDArray[np.bool_], Ints]:
    """Answers of all shadows about as many members as others, whether they were members, and their classes."""
    chance = np.random.default_rng(seed)
    places = []
    for model, row in enumerate(shadows.inside):
        sides = [chance.permutation(np.flatnonzero(row == side)) for side in (True, False)]
        size = min(len(side) for side in sides)
        places += [np.stack([np.full(size, model), side[:size]]) for side in sides]
    models, records = np.concatenate(places, 1)
    answers = softmax(shadows.logits[models, records], axis=1).astype(np.float32)
    return answers, shadows.inside[models, records], shadows.y[records]


def _groups(y: Ints, settings: ShadowSettings) -> Ints:
    """Which network each record belongs to."""
    return y if settings.by_class else np.zeros_like(y)


def _draw(places: NDArray[np.int64], most: int | None, seed: int) -> NDArray[np.int64]:
    if most is None or len(places) <= most:
        return places
    return np.random.default_rng(seed).permutation(places)[:most]


def _ask(nets: Ensemble, logits: Floats, y: Ints, repeats: int, run: Run) -> Floats:
    """(repeats, records): the log-odds of "member" by the network of the record's class."""
    found, classes = np.empty((repeats, len(y))), len(nets) // repeats
    answers = softmax(np.asarray(logits, np.float64), axis=1).astype(np.float32)
    for c in range(classes):
        own = np.flatnonzero(y == c)
        if not len(own):
            continue
        data = Resident(Records(answers[own], np.zeros(len(own), np.int64)), run.device)
        nets_of_class = Ensemble(nets.net, {name: value[c::classes] for name, value in nets.values.items()})
        odds = nets_of_class.logits(data).double().numpy()
        found[:, own] = odds[:, :, 1] - odds[:, :, 0]
    return found
