"""DP-AdamBC: Adam without noise; with noise, steps by what is not noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from airlock.data import Records
from airlock.errors import TrainingError
from airlock.mechanisms import Clip, Stream
from airlock.nets import create
from airlock.training import PlainGradients, PrivateGradients, Recipe, Resident, Run, Shuffled, fit
from airlock.training.adam_bc import AdamBC, uncertainty
from airlock.training.private import put_gradient


def steps(optimiser: torch.optim.Optimizer, parameter: nn.Parameter, gradients: torch.Tensor) -> None:
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimiser.step()


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_without_noise_it_is_adam(decay: float) -> None:
    gradients = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    one, other = (nn.Parameter(torch.ones(4)) for _ in range(2))
    corrected = AdamBC([one], lr=0.01, weight_decay=decay)
    corrected.noise_variances = [torch.zeros(())]
    steps(corrected, one, gradients)
    steps(torch.optim.Adam([other], lr=0.01, weight_decay=decay), other, gradients)
    assert torch.allclose(one, other, atol=1e-6)


def test_a_small_signal_under_noise_gets_the_step_that_it_would_get_without() -> None:
    """Adam divides by the noise: coordinates then move the faster the larger their signals are."""
    signal, count, spread = torch.tensor([0.3, 3.0]), 4000, 1.0
    noise = torch.randn(count, 2, generator=torch.Generator().manual_seed(1)) * spread
    moved = {}
    for kind, variance in (("adam", 0.0), ("adam-bc", spread**2)):
        parameter = nn.Parameter(torch.zeros(2))
        optimiser = AdamBC([parameter], lr=1e-3)
        optimiser.noise_variances = [torch.tensor(variance)]
        steps(optimiser, parameter, signal + noise)
        moved[kind] = float(parameter.detach()[1] / parameter.detach()[0])
    assert moved["adam"] > 3.0
    assert 0.6 < moved["adam-bc"] < 1.5


def test_what_is_left_is_not_trusted_below_the_error_of_the_noises_own_share() -> None:
    """Pure noise: the second moments of many coordinates spread by as much as is said, and no step explodes."""
    for taken in (1, 10, 200):
        draws = torch.randn(taken, 20000, generator=torch.Generator().manual_seed(taken)).square()
        weights = 0.001 * 0.999 ** torch.arange(taken - 1, -1, -1)
        share = (weights[:, None] * draws).sum(0) / weights.sum()
        assert float(share.std()) == pytest.approx(uncertainty(taken), rel=0.05)
        parameter = nn.Parameter(torch.zeros(20000))
        optimiser = AdamBC([parameter], lr=1.0)
        optimiser.noise_variances = [torch.ones(())]
        steps(optimiser, parameter, torch.randn(taken, 20000, generator=torch.Generator().manual_seed(taken)))
        assert float(parameter.detach().abs().max()) < 6.0 * taken / math.sqrt(uncertainty(taken))


@pytest.mark.parametrize("scaled", [False, True])
def test_the_noise_is_as_large_as_it_is_said_to_be(scaled: bool) -> None:
    """An empty lot gives pure noise, on every coordinate with the variance that is taken off."""
    torch.manual_seed(0)
    net = nn.Linear(200, 20)
    scale = {"weight": torch.tensor(3.0), "bias": torch.linspace(1, 2, 20)} if scaled else None
    gradients = PrivateGradients(Clip(0.5, scale=scale), 2.0, 10.0, Stream.from_seed(3))
    gradients(net, torch.zeros(0, 200), torch.zeros(0, dtype=torch.int64), 0)
    assert net.weight.grad is not None
    assert float(net.weight.grad.var()) == pytest.approx(float(gradients.noise_variance("weight").mean()), rel=0.1)
    assert float(gradients.noise_variance("bias").mean()) > 0
    put_gradient(net, torch.zeros(4020))


class Silent(PlainGradients):
    """Gradients that do not say how noisy they are."""

    noise_variance = None  # type: ignore[assignment]


def test_gradients_of_unknown_noise_are_refused_before_the_first_step() -> None:
    records = Records(np.zeros((4, 3), np.float32), np.zeros(4, np.int64))
    recipe = Recipe(steps=1, learning_rate=0.1, optimiser="adam-bc")
    with pytest.raises(TrainingError, match="noise of a known size"):
        fit(create("linear", (3,), 2, 0), Resident(records, torch.device("cpu")), Shuffled(2, 0), Silent(), recipe, 0,
            Run())  # fmt: skip
