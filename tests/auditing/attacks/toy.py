"""A small world for attacks: digits, an over-fitted MLP, and its shadows; made once for all tests."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from airlock.auditing.attacks import Shadows, balanced, train_shadows
from airlock.auditing.bounds import auc_interval
from airlock.auditing.result import Scores
from airlock.data import Records
from airlock.training import Ensemble, Recipe, Resident, Run, train_together
from airlock.training.ensembles.ensemble import makes

RUN = Run(device=torch.device("cpu"))
POOL, TARGETS, MODELS = 400, 2, 16
RECIPE = Recipe(steps=300, optimiser="adam", learning_rate=0.003, precision="fp32")


@dataclass(frozen=True)
class World:
    """Noisy digits: a pool that the target was trained on half of, other records, and the shadows of the pool.

    `stranger` is a model that never saw a record of the pool.
    """

    pool: Records
    elsewhere: Records
    member: np.ndarray
    target: nn.Module
    stranger: nn.Module
    shadows: Shadows
    models: Ensemble


def digits(noise: float = 0.35) -> Records:
    """Digits with noise on pixels and on a tenth of the labels: there is something to remember."""
    rng = np.random.default_rng(7)
    images, labels = load_digits(return_X_y=True)
    order = rng.permutation(len(labels))
    x = (images[order] / 16 + noise * rng.normal(size=images.shape)).astype(np.float32).reshape(-1, 1, 8, 8)
    y = labels[order].astype(np.int64)
    wrong = rng.random(len(y)) < 0.1
    y[wrong] = rng.integers(0, 10, int(wrong.sum()))
    return Records(x, y)


@cache
def world() -> World:
    everything = digits()
    pool, elsewhere = everything.take(np.arange(POOL)), everything.take(np.arange(POOL, 3 * POOL))
    member = np.random.default_rng(3).permutation(POOL) < POOL // 2
    make = makes("mlp", (1, 8, 8), 10, 100)
    targets = train_together(make, 1, Resident(pool, RUN.device), member[None], RECIPE, 100, RUN)
    half = [np.arange(POOL // 2)]
    strangers = train_together(make, 1, Resident(elsewhere, RUN.device), half, RECIPE, 100, RUN)
    inside = balanced(MODELS, POOL, 1)
    shadows, models = train_shadows(makes("mlp", (1, 8, 8), 10, 1), pool, inside, RECIPE, 1, RUN, batch_size=64)
    return World(pool, elsewhere, member, targets.model(0), strangers.model(0), shadows, models)


def auc(scores: Scores) -> tuple[float, float, float]:
    return auc_interval(scores.members, scores.others, 0.99)


def sides(here: World) -> tuple[Records, Records]:
    return here.pool.take(np.flatnonzero(here.member)), here.pool.take(np.flatnonzero(~here.member))


def beats_chance(scores: Scores) -> bool:
    return auc(scores)[1] > 0.55


def at_chance(scores: Scores) -> bool:
    _, low, high = auc(scores)
    return low <= 0.5 <= high
