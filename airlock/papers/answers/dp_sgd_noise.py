"""The noise of DP-SGD that Lu et al. 2021 compare with, after Jayaraman and Evans 2019: by ε, δ and epochs.

All three are noise multipliers, standard deviation over clip norm, for E epochs at (ε, δ) in all.

* naive composition: every epoch is one Gaussian mechanism at (ε/E, δ/E) by the classical bound, which holds for
  ε/E ≤ 1 only; used beyond that, as it was, it is no bound.
* zCDP: E Gaussian mechanisms have ρ = E/2σ², and ρ + 2√(ρ ln 1/δ) = ε.
* RDP: n/batch steps an epoch on Poisson lots, by the accountant, the only one of the three that counts sampling.
"""

from __future__ import annotations

import math

import dp_accounting as dpa

from airlock.accounting import calibrate, repeat
from airlock.training.sampling import sampled


def naive(epochs: int, epsilon: float, delta: float) -> float:
    """E √(2 ln(1.25 E/δ)) / ε."""
    return epochs * math.sqrt(2 * math.log(1.25 * epochs / delta)) / epsilon


def zcdp(epochs: int, epsilon: float, delta: float) -> float:
    """√(E/2) (√(L + ε) + √L) / ε with L = ln(1/δ)."""
    log = math.log(1 / delta)
    return math.sqrt(epochs / 2) * (math.sqrt(log + epsilon) + math.sqrt(log)) / epsilon


def rdp(epochs: int, epsilon: float, delta: float, records: int, batch_size: int) -> float:
    """The smallest noise multiplier, to 1e-3, that the RDP accountant accepts; add-remove, Poisson lots."""
    steps = epochs * math.ceil(records / batch_size)

    def events(noise_multiplier: float) -> dpa.DpEvent:
        return repeat(sampled(batch_size / records, dpa.GaussianDpEvent(noise_multiplier)), steps)

    return calibrate(events, epsilon, delta, accountant="rdp")
