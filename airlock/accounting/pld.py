"""dp-accounting's PLD accountant, with the loops over the grid of privacy losses done for the whole grid at once.

dp-accounting inverts the privacy loss of a Gaussian, sampled or not, connects the dots and reads ε off the distribution
in Python, one grid point after another, which takes most of the time of a plan. Here the same formulas are applied to
all points together, with sums in the same order; the grid bounds, composition and every other event are dp-accounting's
own. A test compares the two.
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
_BLOCK = 4096  # points of the grid that are looked at together
_EXPONENT = 700.0  # above, exp(-loss) may vanish


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

    def get_epsilon(self, target_delta: float) -> float:
        """The smallest ε at δ; infinite where no finite one will do."""
        return math.inf if self._contains_non_dp_event else smallest_epsilon(self._pld, target_delta)


def smallest_epsilon(losses: PrivacyLossDistribution, delta: float) -> float:
    """`losses.get_epsilon_for_delta`: the larger of both directions."""
    directions = (losses._pmf_remove,) if losses._symmetric else (losses._pmf_remove, losses._pmf_add)
    return max(_epsilon(pmf, delta) for pmf in directions)


def _epsilon(pmf: pld_pmf.PLDPmf, delta: float) -> float:
    """`pmf.get_epsilon_for_delta`, a block of losses at a time, from the largest on and with the same partial sums.

    Where ε lies between two losses, δ = upper - exp(ε) lower with the masses of all losses above it under the one
    distribution and under the other.
    """
    top = (pmf.size - 1 + getattr(pmf, "_lower_loss", 0)) * pmf._discretization
    if not isinstance(pmf, pld_pmf.DensePLDPmf) or pmf._infinity_mass > delta or top > _EXPONENT:
        return float(pmf.get_epsilon_for_delta(delta))
    upper, lower, loss = pmf._infinity_mass, 0.0, top
    for end in range(pmf.size, 0, -_BLOCK):
        probabilities = pmf._probs[max(end - _BLOCK, 0) : end][::-1]
        losses = _sums(loss, np.full(len(probabilities), -pmf._discretization))
        losses, loss = losses[:-1], losses[-1]
        factors = np.fromiter(map(math.exp, (-losses).tolist()), float)  # the last bits of numpy's are others
        uppers, lowers = _sums(upper, probabilities), _sums(lower, factors * probabilities)
        found = _reached(uppers, lowers, losses, delta)
        upper, lower = uppers[found], lowers[found]
        if found < len(losses):
            break
    return 0.0 if upper <= lower + delta else math.log((upper - delta) / lower)


def _sums(start: float, terms: Floats) -> Floats:
    """Partial sums, each term added to the one before it; one more than there are terms."""
    return np.cumsum(np.append(start, terms))


def _reached(upper: Floats, lower: Floats, losses: Floats, delta: float) -> int:
    """The first loss that is at most the ε of all losses before it; as many as there are where none is."""
    with np.errstate(divide="ignore", invalid="ignore"):
        epsilons = np.log((upper - delta) / lower)[:-1]  # not a number where the masses above are within δ still
    for point in np.flatnonzero(epsilons >= losses - 1e-9 * (1 + np.abs(losses))):
        ahead = upper[point] - delta
        if ahead > 0 < lower[point] and math.log(ahead / lower[point]) >= losses[point]:
            return int(point)
    return len(losses)


def _gaussian(noise: float, rate: float, interval: float) -> PrivacyLossDistribution:
    """As `from_gaussian_mechanism` makes it: for a record removed and, where sampling tells them apart, one added."""
    types = (AdjacencyType.REMOVE,) if rate == 1.0 else (AdjacencyType.REMOVE, AdjacencyType.ADD)
    losses = [GaussianPrivacyLoss(noise, sampling_prob=rate, adjacency_type=each) for each in types]
    return PrivacyLossDistribution(*(_rounded(loss, interval) for loss in losses))


def _rounded(loss: GaussianPrivacyLoss, interval: float) -> pld_pmf.PLDPmf:
    ends = loss.connect_dots_bounds()
    low, high = math.floor(ends.epsilon_lower / interval), math.ceil(ends.epsilon_upper / interval)
    divergence = _divergence(loss, np.arange(low, high + 1) * interval)
    if len(divergence) <= pld_pmf._MAX_PMF_SPARSE_SIZE:
        return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, low, high, divergence)
    return _dots_connected(interval, low, divergence)


def _dots_connected(interval: float, low: int, divergence: Floats) -> pld_pmf.DensePLDPmf:
    """`create_pmf_pessimistic_connect_dots_fixed_gap` without a dictionary of every point on the way.

    Doroshenko, Ghazi, Kamath, Kumar and Manurangsi, "Connect the Dots" (2022), algorithm 1, for equal distances.
    """
    if (np.diff(divergence) > pld_pmf._DELTA_DIFF_TOLERANCE).any():
        raise ValueError("a hockey-stick divergence that grows with ε")
    divergence = np.minimum.accumulate(divergence)
    steps = np.diff(divergence)
    masses = np.empty_like(divergence)
    masses[0] = 1 - divergence[0] + steps[0] / math.expm1(interval)
    masses[1:-1] = (steps[1:] - steps[:-1] * math.exp(interval)) / math.expm1(interval)
    masses[-1] = steps[-1] / math.expm1(-interval)
    return pld_pmf.DensePLDPmf(interval, low, np.maximum(0.0, masses), divergence[-1], pessimistic_estimate=True)


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
