"""The noise of DP-SGD in the paper's comparison, against what each formula is made of."""

from __future__ import annotations

import math

import dp_accounting as dpa
import pytest

from airlock.accounting import compute_epsilon, repeat
from airlock.papers.answers.dp_sgd_noise import naive, rdp, zcdp
from airlock.training.sampling import sampled


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 100.0])
def test_naive_composition_gives_every_epoch_its_share_of_both(epsilon: float) -> None:
    sigma = naive(100, epsilon, 1e-5)
    assert sigma == pytest.approx(math.sqrt(2 * math.log(1.25 / 1e-7)) / (epsilon / 100))


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 100.0])
def test_zcdp_noise_spends_epsilon_exactly(epsilon: float) -> None:
    rho, delta = 100 / (2 * zcdp(100, epsilon, 1e-5) ** 2), 1e-5
    assert rho + 2 * math.sqrt(rho * math.log(1 / delta)) == pytest.approx(epsilon)


def test_rdp_noise_is_the_smallest_that_stays_within_epsilon() -> None:
    found = rdp(10, 1.0, 1e-4, 1000, 100)
    costs = [
        compute_epsilon(repeat(sampled(0.1, dpa.GaussianDpEvent(found + more)), 100), 1e-4, accountant="rdp").epsilon
        for more in (0.0, -2e-3)
    ]
    assert costs[0] <= 1.0 < costs[1]


def test_each_is_less_than_the_one_before() -> None:
    """For Location: 1,200 records, batches of 100, 100 epochs, δ = 1/(10 n)."""
    delta = 1 / 12_000
    for epsilon in (0.1, 1.0):
        assert naive(100, epsilon, delta) > zcdp(100, epsilon, delta) > rdp(100, epsilon, delta, 1200, 100)
