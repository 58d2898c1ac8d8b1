"""The figures of Lu et al. 2021 ("convexified loss"), as the paper computes them from the sizes of a network alone.

They are what `published` has to use and what is claimed, not what is true: Δω divides a bound on the whole weight
vector by √|W| as if every weight moved alike, hidden activations are treated as fixed, and the loss of a network with a
hidden layer is not convex. docs/answers.md says what is wrong with the claim.

The network is m – 128 (tanh) – C (softmax); n records. The paper's figures follow from λ = 5e-4, half of the factor
0.001 of its regulariser; training adds 0.001‖W‖².

The paper compares its noise with that of DP-SGD, after Jayaraman and Evans 2019. `naive_noise`, `advanced_noise`,
`zcdp_noise` and `rdp_noise` are those noise multipliers, standard deviation over clip norm, for E epochs at (ε, δ) in
total:

* naive composition: every epoch is one Gaussian mechanism at (ε/E, δ/E) by the classical bound, which holds only for
  ε/E ≤ 1; used beyond that, as it was, it is not a bound.
* advanced composition: E such mechanisms at (ε₀, δ/2E), where ε₀ solves ε = ε₀ √(2E L) + E ε₀² with L = ln(2/δ). The
  theorem has e^ε₀ − 1 in place of the second ε₀: this is not a bound either, where ε₀ is not small.
* zCDP: E Gaussian mechanisms have ρ = E/2σ², and ρ + 2√(ρ ln 1/δ) = ε.
* RDP: n/batch steps per epoch on Poisson lots, by the accountant; the only one of the four that counts sampling.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import dp_accounting as dpa
from scipy.optimize import brentq
from scipy.stats import norm

from airlock.accounting import calibrate, repeat
from airlock.training.sampling import sampled

HIDDEN = 128
STRONG_CONVEXITY = 5e-4


@dataclass(frozen=True)
class Sensitivities:
    """What the paper states of a network on data of these sizes (its Table 6).

    Args:
        inputs: m, the number of features.
        classes: C.
        records: n.
        strong_convexity: λ, half of the factor on the squared weights.
    """

    inputs: int
    classes: int
    records: int
    strong_convexity: float = STRONG_CONVEXITY

    @property
    def lipschitz(self) -> float:
        """ρ, by Eq. 21 with every input and every hidden activation at most 1."""
        return math.sqrt(self.inputs * HIDDEN) * (self.classes - 1) / (HIDDEN * self.classes)

    @property
    def weights(self) -> int:
        """|W|: edges of the network, without biases."""
        return HIDDEN * (self.inputs + self.classes)

    @property
    def of_all_weights(self) -> float:
        """Δ₂W = 2ρ/(λn), by Theorem 4: true for the exact minimiser of a strongly convex objective."""
        return 2 * self.lipschitz / (self.strong_convexity * self.records)

    @property
    def of_one_weight(self) -> float:
        """Δω = Δ₂W/√|W|, by Eq. 18: nothing keeps one weight from moving by all of Δ₂W."""
        return self.of_all_weights / math.sqrt(self.weights)

    @property
    def of_a_logit(self) -> float:
        """Δz = 128 Δω, by Corollary 1 with tanh bounded by 1."""
        return HIDDEN * self.of_one_weight

    @property
    def of_a_probability(self) -> float:
        """Δp = min(1, e^(2Δz) − 1), by Corollary 2."""
        return probability_sensitivity(self.of_a_logit)

    @property
    def stability(self) -> float:
        """The bound 2ρ²/(λn) on on-average-remove-one stability, by Theorem 4."""
        return self.of_all_weights * self.lipschitz


def probability_sensitivity(of_a_logit: float) -> float:
    """min(1, e^(2Δz) − 1)."""
    return min(1.0, math.expm1(2 * of_a_logit))


def neuron_budget(epsilon: float, classes: int, noise: Literal["laplace", "gaussian", "gaussian-code"]) -> float:
    """The share of a query's ε that the paper gives to sampling the neuron, and again to the noise on it.

    "laplace": ε/(2C + 1), by Theorem 6. "gaussian": ε/√(4C + 1). "gaussian-code": ε/(2√C + 1), as the authors' code has
    it.
    """
    parts = {
        "laplace": 2 * classes + 1,
        "gaussian": math.sqrt(4 * classes + 1),
        "gaussian-code": 2 * math.sqrt(classes) + 1,
    }
    return epsilon / parts[noise]


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The ε at δ of μ-GDP (Dong, Roth and Su 2022, Corollary 1): what the paper calls ε = μ with Gaussian noise."""

    def excess(epsilon: float) -> float:
        far = math.exp(epsilon + float(norm.logcdf(-mu / 2 - epsilon / mu)))
        return float(norm.cdf(mu / 2 - epsilon / mu)) - far - delta

    most = mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta)) + 1
    return float(brentq(excess, 0.0, most)) if excess(0.0) > 0 else 0.0


def naive_noise(epochs: int, epsilon: float, delta: float) -> float:
    """E √(2 ln(1.25 E/δ)) / ε."""
    return epochs * math.sqrt(2 * math.log(1.25 * epochs / delta)) / epsilon


def advanced_noise(epochs: int, epsilon: float, delta: float) -> float:
    """√(E ln(2.5 E/δ)) (√(L + 2ε) + √L) / ε with L = ln(2/δ)."""
    log = math.log(2 / delta)
    spread = math.sqrt(log + 2 * epsilon) + math.sqrt(log)
    return math.sqrt(epochs * math.log(2.5 * epochs / delta)) * spread / epsilon


def zcdp_noise(epochs: int, epsilon: float, delta: float) -> float:
    """√(E/2) (√(L + ε) + √L) / ε with L = ln(1/δ)."""
    log = math.log(1 / delta)
    return math.sqrt(epochs / 2) * (math.sqrt(log + epsilon) + math.sqrt(log)) / epsilon


def rdp_noise(epochs: int, epsilon: float, delta: float, records: int, batch_size: int) -> float:
    """The smallest noise multiplier, to 1e-3, that the RDP accountant accepts; add-remove, Poisson lots."""
    steps = epochs * math.ceil(records / batch_size)

    def events(noise_multiplier: float) -> dpa.DpEvent:
        return repeat(sampled(batch_size / records, dpa.GaussianDpEvent(noise_multiplier)), steps)

    return calibrate(events, epsilon, delta, accountant="rdp")
