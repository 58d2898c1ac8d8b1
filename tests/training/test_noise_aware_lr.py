"""How far noise alone carries weights, and how small steps must be so that a network bears it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from airlock.data import Records
from airlock.training import Recipe
from airlock.training.noise_aware_lr import bearable, wandering

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 20)).astype(np.float32)
LOSS = 0.02
PUBLIC = Records(X, (X[:, 0] > 0).astype(np.int64))


def steps(count: int = 100, **changes: object) -> Recipe:
    return Recipe.model_validate({"steps": count, "learning_rate": 0.1, "momentum": 0.0, **changes})


def net() -> nn.Module:
    """It tells the classes apart by their first number."""
    made = nn.Linear(20, 2)
    with torch.no_grad():
        made.weight.zero_()
        made.bias.zero_()
        made.weight[1, 0] = 1.0
    return made


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 0.1 * 3 * 10),  # η σ √steps
        ({"momentum": 0.9}, 0.1 * 3 * math.sqrt(sum(((1 - 0.9**k) / 0.1) ** 2 for k in range(1, 101)))),
        ({"schedule": "linear"}, 0.1 * 3 * math.sqrt(sum((1 - k / 100) ** 2 for k in range(100)))),
    ],
)
def test_noise_wanders_as_the_optimiser_says(changes: dict[str, object], expected: float) -> None:
    assert wandering(3.0, steps(**changes), 0) == pytest.approx(expected, rel=0.05)


def test_an_average_wanders_less() -> None:
    assert wandering(3.0, steps(ema=0.95), 0) < 0.97 * wandering(3.0, steps(), 0)


def test_steps_are_as_large_as_noise_allows_and_the_network_stays() -> None:
    own = net()
    before = own.weight.detach().clone()
    factors = [bearable(own, PUBLIC, noise, steps(), LOSS, 0) for noise in (1e-6, 0.1, 1.0, 1e9)]
    assert torch.equal(own.weight, before)
    assert factors[0] == 1.0
    assert sorted(factors, reverse=True) == factors
    assert len(set(factors)) == 4
    assert bearable(own, PUBLIC, 1.0, steps(), LOSS, 0) == factors[2]  # the seed decides
    assert bearable(own, PUBLIC, 1.0, steps(), 0.2, 0) > factors[2]
    wander = (
        2 * factors[1] * wandering(0.1, steps(), 0)
    )  # one step more would cost too much: 2 points, by a wide margin
    torch.manual_seed(0)
    right = []
    for _ in range(20):
        shaken = net()
        for value in shaken.parameters():
            value.data += wander * torch.randn_like(value)
        right.append(float((shaken(torch.from_numpy(X)).argmax(1).numpy() == PUBLIC.y).mean()))
    assert np.mean(right) < 1 - LOSS


def test_frozen_weights_get_no_noise() -> None:
    own = net()
    own.requires_grad_(False)
    assert bearable(own, PUBLIC, 1e9, steps(), LOSS, 0) == 1.0
