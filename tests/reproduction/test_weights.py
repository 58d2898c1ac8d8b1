"""Xiang et al. again: noise is what it is said to be, networks have the paper's depths, and small runs go through."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from airlock.accounting import compute_epsilon
from airlock.papers.weights.optimised_noise import budget
from airlock.reproduction import Found, KeptRow, Trial, reproduce
from airlock.reproduction.paper import Workplace
from airlock.reproduction.weights import DATA, PAPER, NoisyRun, WeightsWorld, _outputs, _slopes, best
from airlock.training import Run

MNIST = NoisyRun(1000, 55_000, 1650, 4.0, 1.0, 1e-5)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made-up files in the form of SVHN: the label is the place of a bright stripe."""
    folder, chance = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    parts: dict[str, Any] = {}
    for part, count in (("train", 400), ("test", 120)):
        y = chance.integers(0, 10, count)
        x = chance.integers(0, 60, (count, 32, 32, 3)).astype(np.uint8)
        for image, label in zip(x, y, strict=True):
            image[3 * label : 3 * label + 3] = 250
        parts |= {f"x_{part}": x, f"y_{part}": y.astype(np.uint8)}
    np.savez(folder / "svhn.npz", **parts)
    return folder


def test_equal_noise_is_the_papers_and_gaussian_noise_costs_what_it_says() -> None:
    assert MNIST.noise_multiplier("equal") == budget(1.0, 1e-5, 1 / 55, 1650, None).noise_multiplier
    assert MNIST.noise_multiplier("optimised") == MNIST.noise_multiplier("equal")
    cost = compute_epsilon(MNIST.event(MNIST.noise_multiplier("gaussian")), 1e-5, accountant="rdp").epsilon
    assert 0.99 < cost <= 1.0


def test_a_slope_of_the_perceptron_is_that_of_its_cost() -> None:
    chance = torch.Generator().manual_seed(0)
    theta = torch.randn(9, generator=chance, dtype=torch.float64)
    x, y = torch.rand(20, 2, generator=chance, dtype=torch.float64), torch.zeros(20, dtype=torch.float64)
    hidden = torch.sigmoid(x @ theta[[0, 2]] + theta[6]), torch.sigmoid(x @ theta[[1, 3]] + theta[7])
    assert torch.allclose(_outputs(theta, x), theta[4] * hidden[0] + theta[5] * hidden[1] + theta[8])
    for place in range(9):
        step = torch.zeros(9, dtype=torch.float64)
        step[place] = 1e-6
        rise = (_slopes(theta + step, x, y)[0] - _slopes(theta - step, x, y)[0]) / 2e-6
        assert float(_slopes(theta, x, y)[1][place]) == pytest.approx(float(rise), rel=1e-5, abs=1e-9)


def test_frozen_convolutions_come_from_the_private_records_and_the_rest_starts_anew(images: Path) -> None:
    world = WeightsWorld("svhn", 0, True, Workplace(images, Run()))
    fresh = world.start()
    layers = [*world.convolutions().modules(), *fresh.modules()]
    depths = tuple(sum(isinstance(layer, kind) for layer in layers) for kind in (nn.Conv2d, nn.Linear))
    assert depths == DATA["svhn"].layers
    assert world.private.x.ndim == 2  # what the convolutions gave
    assert world.private.x.shape[1] == next(p for p in fresh.parameters()).shape[1]
    assert set(world.pretraining) == {"others", "again"}
    again, same = world.start(again=True), world.start()
    assert torch.equal(next(fresh.parameters()), next(same.parameters()))
    assert not torch.equal(next(fresh.parameters()), next(again.parameters()))


def test_a_quick_run_of_frozen_features_and_of_digits_keeps_rows_of_every_mechanism(
    images: Path, tmp_path: Path
) -> None:
    found = reproduce("weights", tmp_path, ["figure-4c", "digits"], quick=True, data_dir=images, device="cpu")
    rows = tuple(map(KeptRow.from_json, found.rows.read_text("utf-8").splitlines()))
    assert (found.ran, found.left) == (7, 0)
    svhn = [row for row in rows if row.trial["data"] == "svhn"]
    assert [row.trial["mechanism"] for row in svhn] == ["optimised", "gaussian", "equal"]  # what is printed comes first
    for row in rows:
        assert 0.0 <= row.figures["others"] <= 1.0
        assert ("smallest_factor" in row.figures) == (row.trial["mechanism"] == "optimised")
    assert all(row.figures["smallest_factor"] <= 1.0 for row in rows if "smallest_factor" in row.figures)
    noise = {row.trial["mechanism"]: row.figures["noise_multiplier"] for row in svhn}
    assert noise["optimised"] == noise["equal"] < noise["gaussian"]
    assert found.shown["digits"].status == "beside it"
    assert len(found.shown["figure-4c"].rows) == 3


def test_the_best_rate_is_the_one_with_the_best_accuracy_on_others() -> None:
    rows = [
        KeptRow(
            Trial.of("training", seed, data="mnist", epsilon=1.0, mechanism="equal", learning_rate=rate),
            {"own": own, "others": others},
            "abc",
            "CPU",
            1.0,
        )
        for rate, own, others in ((0.01, 0.9, 0.5), (0.1, 0.7, 0.6), (1.0, 0.1, 0.1))
        for seed in (0, 1)
    ]
    found = best(Found(tuple(rows)), "mnist", DATA["mnist"].rates, "own", epsilon=1.0, mechanism="equal")
    assert found is not None
    assert found[0].mean == pytest.approx(0.7)
    assert found[1] == 0.1
    assert best(Found(()), "mnist", DATA["mnist"].rates, "own", epsilon=1.0, mechanism="equal") is None


def test_every_figure_of_the_text_belongs_to_an_item() -> None:
    names = {item.name for item in PAPER.items}
    assert {"table-1", "table-2", "figure-2", "figure-3", "figure-4ab", "figure-4c", "figure-4d"} <= names
    assert {f"figure-5{part}" for part in "abcd"} <= names
