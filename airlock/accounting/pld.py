"""dp-accounting's PLD accountant, with the Gaussian mechanism's privacy losses computed on the whole grid at once.

dp-accounting inverts the privacy loss of a Gaussian, sampled or not, in Python, one grid point after another, which
takes most of the time of a plan. Here the same formula is applied to all points together; the grid bounds, connecting
the dots, composition and every other event are dp-accounting's own. A test compares the two.
"""

from __future__ import annotations

import math
from typing import Any

import dp_accounting as dpa
import numpy as np
from dp_accounting import pld
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class LossAccountant(pld.PLDAccountant):  # type: ignore[misc]
    """`pld.PLDAccountant` under add-remove: it supports the same events and gives the same bounds."""

    def __init__(self, interval: float) -> None:
        super().__init__(value_discretization_interval=interval)

    def _maybe_compose(self, event: dpa.DpEvent, count: int, do_compose: bool) -> Any:
        sampled = isinstance(event, dpa.PoissonSampledDpEvent)
        inner = event.event if sampled else event
        rate = event.sampling_probability if sampled else 1.0
        if not isinstance(inner, dpa.GaussianDpEvent) or not do_compose or not (inner.noise_multiplier and rate):
            return super()._maybe_compose(event, count, do_compose)
        if sampled:
            losses = _gaussian(inner.noise_multiplier, rate, self._value_discretization_interval).self_compose(count)
        else:
            losses = _gaussian(inner.noise_multiplier / math.sqrt(count), 1.0, self._value_discretization_interval)
        self._pld: PrivacyLossDistribution = self._pld.compose(losses)
        return None


def _gaussian(noise: float, rate: float, interval: float) -> PrivacyLossDistribution:
    """As `from_gaussian_mechanism` makes it: for a record removed and, where sampling tells them apart, one added."""
    types = (AdjacencyType.REMOVE,) if rate == 1.0 else (AdjacencyType.REMOVE, AdjacencyType.ADD)
    losses = [GaussianPrivacyLoss(noise, sampling_prob=rate, adjacency_type=each) for each in types]
    return PrivacyLossDistribution(*(_rounded(loss, interval) for loss in losses))


def _rounded(loss: GaussianPrivacyLoss, interval: float) -> pld_pmf.PLDPmf:
    ends = loss.connect_dots_bounds()
    low, high = math.floor(ends.epsilon_lower / interval), math.ceil(ends.epsilon_upper / interval)
    divergence = _divergence(loss, np.arange(low, high + 1) * interval)
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, low, high, divergence)


def _divergence(loss: GaussianPrivacyLoss, epsilons: Floats) -> Floats:
    """The hockey-stick divergence at every ε: `loss.get_delta_for_epsilon`."""
    found = np.zeros_like(epsilons)
    within = np.ones_like(epsilons, dtype=bool)
    if loss.sampling_prob < 1.0 and loss.adjacency_type == AdjacencyType.ADD:
        within = epsilons < -math.log1p(-loss.sampling_prob)
    elif loss.sampling_prob < 1.0:
        within = epsilons > math.log1p(-loss.sampling_prob)
        found[~within] = -np.expm1(epsilons[~within])
    inside = epsilons[within]
    x = _inverse(loss, inside)
    found[within] = loss.mu_upper_cdf(x) - np.exp(inside + loss.mu_lower_log_cdf(x))
    return np.clip(found, 0, 1)


def _inverse(loss: GaussianPrivacyLoss, losses: Floats) -> Floats:
    """The largest x with at least each of these privacy losses: `loss.inverse_privacy_loss`."""
    added = loss.adjacency_type == AdjacencyType.ADD
    sign = -1.0 if added else 1.0
    if loss.sampling_prob < 1.0:
        losses = sign * _unsampled(sign * losses, loss.sampling_prob)
    x: Floats = loss._inverse_privacy_loss_without_subsampling_remove(losses)
    return loss.sensitivity + x if added else x


def _unsampled(losses: Floats, rate: float) -> Floats:
    """log(1 + (exp(loss) - 1) / rate), and -∞ at its pole log(1 - rate) or where dp-accounting treats it as reached."""
    pole = math.log(1 - rate)
    at_pole = np.abs(losses - pole) <= 1e-9 * np.maximum(np.abs(losses), abs(pole))
    factor, shift = 1 / rate, 1 - 1 / rate
    above, rest = np.where(at_pole, np.inf, losses + np.log(factor)), np.log(-shift)
    if (above <= rest).any():
        raise ValueError("a privacy loss below that of a record that is never drawn")
    found = np.where(at_pole, -np.inf, above + np.log1p(-np.exp(rest - above)))
    return np.where(losses == 0, np.log(factor + shift), found)
