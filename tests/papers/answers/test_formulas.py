"""The paper's figures, from the sizes of its data sets alone."""

from __future__ import annotations

import math

import dp_accounting as dpa
import pytest

from airlock.accounting import compute_epsilon, repeat
from airlock.papers.answers.formulas import (
    HIDDEN,
    Sensitivities,
    naive_noise,
    neuron_budget,
    probability_sensitivity,
    rdp_noise,
    zcdp_noise,
)
from airlock.training.sampling import sampled

# Sizes (m, C, n), then the printed ρ, Δω, Δz, Δp with its unbounded value (Table 6) and the stability (Table 5).
TABLE = {
    "US Adult": ((14, 2, 10_000), 0.1654, 0.0015, 0.1871, 0.4538, 0.4538, 0.0109),
    "MNIST": ((784, 10, 10_000), 2.2274, 0.0028, 0.3577, 1.0, 1.0450, 1.9845),
    "Location": ((446, 30, 1_200), 1.8044, 0.0244, 3.1190, 1.0, 510.8338, 10.8532),
    "Purchase-2": ((594, 2, 10_000), 1.0771, 0.0016, 0.2000, 0.4918, 0.4918, 0.4641),
    "Purchase-10": ((594, 10, 10_000), 1.9388, 0.0028, 0.3570, 1.0, 1.0421, 1.5036),
    "Purchase-20": ((594, 20, 10_000), 2.0465, 0.0029, 0.3738, 1.0, 1.1119, 1.6750),
    "Purchase-50": ((594, 50, 10_000), 2.1111, 0.0029, 0.3765, 1.0, 1.1234, 1.7827),
    "Purchase-100": ((594, 100, 10_000), 2.1327, 0.0029, 0.3664, 1.0, 1.0809, 1.8193),
    "CIFAR-10": ((3072, 10, 10_000), 4.4091, 0.0028, 0.3594, 1.0, 1.0520, 7.7760),
    "CIFAR-100": ((3072, 100, 10_000), 4.8500, 0.0030, 0.3897, 1.0, 1.1802, 9.4090),
    "Texas Hospital": ((6169, 100, 10_000), 6.8729, 0.0031, 0.3928, 1.0, 1.1937, 18.8945),
}
UNLIKE_THE_OTHERS = ("Purchase-2",)  # printed with |W| = 128 m, without the output layer; see the test below


@pytest.mark.parametrize("name", TABLE)
def test_the_lipschitz_constant_and_one_weight_are_those_of_the_paper(name: str) -> None:
    sizes, rho, weight, *_ = TABLE[name]
    found = Sensitivities(*sizes)
    assert (round(found.lipschitz, 4), round(found.of_one_weight, 4)) == (rho, weight)


@pytest.mark.parametrize("name", [n for n in TABLE if n not in UNLIKE_THE_OTHERS])
def test_logits_and_probabilities_are_those_of_the_paper(name: str) -> None:
    """The paper computes Δp from Δz as printed: 510.8338 for Location is e^(2 · 3.1190) − 1."""
    sizes, _, _, logit, probability, unbounded, _ = TABLE[name]
    found = Sensitivities(*sizes)
    assert round(found.of_a_logit, 4) == logit
    assert round(math.expm1(2 * round(found.of_a_logit, 4)), 4) == unbounded
    assert round(probability_sensitivity(round(found.of_a_logit, 4)), 4) == probability
    assert found.of_a_probability == pytest.approx(probability, abs=1e-4)


def test_one_row_counts_the_edges_otherwise() -> None:
    """Purchase-2: Eq. 18 gives 0.1997; the printed 0.2000 and 0.4918 are those of |W| without the output layer."""
    sizes, _, _, logit, _, unbounded, _ = TABLE["Purchase-2"]
    found = Sensitivities(*sizes)
    assert round(found.of_a_logit, 4) == 0.1997
    without_output = HIDDEN * found.of_all_weights / math.sqrt(HIDDEN * found.inputs)
    assert round(without_output, 4) == logit
    assert round(math.expm1(2 * without_output), 4) == unbounded


@pytest.mark.parametrize("name", TABLE)
def test_the_stability_is_that_of_the_paper(name: str) -> None:
    """Purchase-20 is printed 0.0003 lower than its own ρ gives."""
    *_, printed = TABLE[name]
    tolerance = 3.5e-4 if name == "Purchase-20" else 5.1e-5
    assert Sensitivities(*TABLE[name][0]).stability == pytest.approx(printed, abs=tolerance)


def test_a_query_is_split_as_the_paper_says_and_as_its_code_does() -> None:
    assert neuron_budget(1.0, 10, "laplace") == pytest.approx(1 / 21)
    assert neuron_budget(1.0, 10, "gaussian") == pytest.approx(41**-0.5)
    assert neuron_budget(1.0, 10, "gaussian-code") == pytest.approx(1 / (2 * 10**0.5 + 1))
    assert neuron_budget(8.0, 2, "laplace") == 8 * neuron_budget(1.0, 2, "laplace")


# The noise of DP-SGD in the paper's comparison, against what each formula is made of.


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 100.0])
def test_naive_composition_gives_every_epoch_its_share_of_both(epsilon: float) -> None:
    sigma = naive_noise(100, epsilon, 1e-5)
    assert sigma == pytest.approx(math.sqrt(2 * math.log(1.25 / 1e-7)) / (epsilon / 100))


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 100.0])
def test_zcdp_noise_spends_epsilon_exactly(epsilon: float) -> None:
    rho, delta = 100 / (2 * zcdp_noise(100, epsilon, 1e-5) ** 2), 1e-5
    assert rho + 2 * math.sqrt(rho * math.log(1 / delta)) == pytest.approx(epsilon)


def test_rdp_noise_is_the_smallest_that_stays_within_epsilon() -> None:
    found = rdp_noise(10, 1.0, 1e-4, 1000, 100)
    costs = [
        compute_epsilon(repeat(sampled(0.1, dpa.GaussianDpEvent(found + more)), 100), 1e-4, accountant="rdp").epsilon
        for more in (0.0, -2e-3)
    ]
    assert costs[0] <= 1.0 < costs[1]


def test_each_is_less_than_the_one_before() -> None:
    """For Location: 1,200 records, batches of 100, 100 epochs, δ = 1/(10 n)."""
    delta = 1 / 12_000
    for epsilon in (0.1, 1.0):
        assert (
            naive_noise(100, epsilon, delta)
            > zcdp_noise(100, epsilon, delta)
            > rdp_noise(100, epsilon, delta, 1200, 100)
        )
