"""A privacy filter: releases that are chosen one after the other, and together stay within (ε, δ).

What a later release does may depend on what earlier ones showed, so their parameters are not fixed in advance. Theorems
that compose fixed parameters (PLD, the best of several Rényi orders) do not apply then. A filter does: it fixes one
order α and a cap B, takes the Rényi divergence of order α of each release as its cost, and refuses a release whose cost
would bring the sum above B (Feldman and Zrnic, "Individual privacy accounting via a Rényi filter", 2021; Lécuyer,
"Practical privacy filters and odometers with Rényi differential privacy", 2021).

Guarantee. Let somebody choose mechanisms M_1, M_2, … one after the other, each by all earlier outputs and by choices of
their own, and let them run on data sets D_1, D_2, … with the records of one more person in each, or without them. If
every M_t, given what was before, has Rényi divergence of order α at most ρ_t between the two, and Σ ρ_t ≤ B however it
goes, then everything that came out is (ε, δ)-DP for that person, for the ε and δ of which B was made (`PrivacyFilter`).

Proof. (1) Let P and Q be the distributions of all outputs y = (y_1, y_2, …) with the person and without, L_t = Π_{i≤t}
P(y_i | y_{<i}) / Q(y_i | y_{<i}), and S_t = Σ_{i≤t} ρ_i, where ρ_t and M_t are functions of y_{<t}. By assumption
E_Q[(P(y_t | y_{<t}) / Q(y_t | y_{<t}))^α | y_{<t}] ≤ exp((α−1) ρ_t), so X_t = L_t^α exp(−(α−1) S_t) has E_Q[X_t |
y_{<t}] ≤ X_{t−1}, and X_0 = 1: it is a supermartingale, and E_Q[X_t] ≤ 1 at every t, at every stopping time, and in the
limit by Fatou's lemma. Since S_t ≤ B, E_Q[L_t^α] ≤ exp((α−1) B): the whole has divergence at most B. With P and Q
exchanged the same holds. (2) With the loss l = log L, E_P[exp((α−1) l)] = E_Q[L^α] ≤ exp((α−1) B). For every x, 1 −
e^{ε−x} ≤ c e^{(α−1) x} with c = max_u u^{α−1} (1−u) · e^{−(α−1) ε} = ((α−1)/α)^{α−1} / α · e^{−(α−1) ε}, where u =
e^{ε−x}. So δ = E_P[(1 − e^{ε−l})₊] ≤ c exp((α−1) B), and solved for ε: ε = B + log(1 − 1/α) − (log δ + log α)/(α−1)
(Canonne, Kamath and Steinke 2020, proposition 12). B is this, solved for B. ∎

- *Several at once.* Releases that run side by side are steps in the order in which they come out; a step may ignore
  what came before. A served budget is charged as a whole when it is released, and each of its answers is a step whose
  cost is part of that charge, however answers of several services alternate: at every moment the steps that were made
  cost at most what was charged.
- *Records that change.* D_t may be chosen by earlier outputs too, and grow: whoever was ever in it is covered, since
  the divergence of each step is bounded for every data set and every person.
- *Parts.* A keyed hash puts a record into one part in each release, and only the events of that part
  involve it. So a release costs the largest divergence over its parts, not the sum (`cost`).
- *Many orders.* One order alone: the minimum over orders of sums that were not fixed in advance is not covered by (1).

So far (`loss_bound`): by Ville's inequality for the supermartingale exp((α−1)(l_t − S_t)) under P, with probability at
least 1 − δ the loss at all times at once is at most S_t + log(1/δ)/(α−1). That holds for the sum as it turned out (an
odometer), which the formula of (2) with B replaced by S_t does not.

What has no divergence of this order is refused: an event without privacy, one that may fail (`FailureDpEvent`: without
the failure's δ nothing is bounded, and its δ is not the filter's), sampling of anything but Gaussian noise. Guarantees
under replace-one and for another unit are refused by whoever charges (`bundle.register`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import dp_accounting as dpa
from dp_accounting.dp_event import RepeatAndSelectDpEvent

from airlock.accounting.epsilon import compute_epsilon
from airlock.accounting.events import FailureDpEvent, to_json
from airlock.accounting.renyi import RenyiAccountant
from airlock.errors import AccountingError, ConfigError

UNIT = Fraction(1, 10**6)  # of Rényi divergence: what a register counts in
# What is added to a computed divergence. dp-accounting's sums of logarithms are right to about 1e-14 for each step, so
# a millionth of the sum and one unit are more than all steps of a release can be off together.
_MARGIN = Fraction(1, 10**6)
LARGEST_ORDER = 1024
_FEWEST_UNITS = 1000


@dataclass(frozen=True)
class PrivacyFilter:
    """A cap on the Rényi divergence of one order, such that everything below it is (ε, δ)-DP.

    The order is a whole number: the divergence of sampled Gaussian noise is a finite sum then, and not a series.

    Args:
        epsilon: Of everything together.
        delta: Of everything together.
        order: α, from 2 on.
    """

    epsilon: float
    delta: float
    order: int

    def __post_init__(self) -> None:
        if not (0 < self.epsilon <= 1000 and 0 < self.delta < 1):
            raise ConfigError("an ε above 0, at most 1000, and a δ between 0 and 1", f"({self.epsilon}, {self.delta})")
        if type(self.order) is not int or not 2 <= self.order <= LARGEST_ORDER:
            raise ConfigError(f"a whole order from 2 to {LARGEST_ORDER:,}", f"{self.order}")
        if self.cap < _FEWEST_UNITS * UNIT:
            raise ConfigError(
                f"an order that leaves something of ({self.epsilon:g}, {self.delta:g})",
                f"{self.order}",
                "Its conversion to ε alone takes more.",
                f"Leave the order out, which takes {best_order(self.epsilon, self.delta)}.",
            )

    @classmethod
    def make(cls, epsilon: float, delta: float, order: int | None = None) -> PrivacyFilter:
        """The filter for (ε, δ), of the best order for Gaussian noise unless one is given."""
        return cls(epsilon, delta, best_order(epsilon, delta) if order is None else order)

    @property
    def cap(self) -> float:
        """B: the largest divergence that everything together may have."""
        return _cap(self.epsilon, self.delta, self.order)

    @property
    def units(self) -> int:
        """The cap in whole units, rounded down, after a margin for rounding."""
        return math.floor(Fraction(self.cap) * (1 - _MARGIN) / UNIT)

    def cost(self, parts: Sequence[dpa.DpEvent]) -> int:
        """What a release costs, in whole units, rounded up.

        Args:
            parts: The events of each part of the records: a record is in one of them.

        Raises:
            AccountingError: An event has no divergence of this order.
        """
        largest = max(divergence(event, self.order) for event in parts)
        return math.ceil(Fraction(largest) * (1 + _MARGIN) / UNIT) + 1

    def share(self, units: int) -> float:
        """Units on a scale on which the whole cap is ε, for people: costs on it add up."""
        return self.epsilon * units / self.units

    def loss_bound(self, spent: int) -> float:
        """What the privacy loss of everything so far is at most, with probability at least 1 − δ at all times at once.

        With all spent it is a little more than ε, by what (ε, δ)-DP says less than this.
        """
        return float(spent * UNIT) + math.log(1 / self.delta) / (self.order - 1)

    def so_far(self, spent: int) -> float:
        """An ε for everything so far at the filter's δ: `loss_bound`, or the ε for all that is to come if smaller."""
        return min(self.epsilon, self.loss_bound(spent))

    def gaussian_epsilon(self, left: int, delta: float) -> float:
        """The ε at `delta` of the Gaussian mechanism that costs this many units: what would still fit."""
        if left < 3:
            return 0.0
        noise = math.sqrt(self.order / (2 * float((left - 2) * UNIT)))
        return compute_epsilon(dpa.GaussianDpEvent(noise), delta).epsilon


def best_order(epsilon: float, delta: float) -> int:
    """The order at which the most Gaussian noise fits (ε, δ): its divergence is α ρ, so that with the largest B/α."""
    return max(range(2, LARGEST_ORDER + 1), key=lambda order: _cap(epsilon, delta, order) / order)


def _cap(epsilon: float, delta: float, order: int) -> float:
    return epsilon - math.log1p(-1 / order) + (math.log(delta) + math.log(order)) / (order - 1)


def divergence(event: dpa.DpEvent, order: int) -> float:
    """The Rényi divergence of this order between neighbouring data sets under add-remove, at most.

    dp-accounting's, with what `renyi` adds: pure ε-DP, and one of several mechanisms.

    Raises:
        AccountingError: It has none, or none is known.
    """
    to_json(event)  # refuses what is not in the table
    found = _divergence(event, order)
    if not math.isfinite(found) or found < 0:
        raise _without("one without privacy")
    return found


def _divergence(event: dpa.DpEvent, order: int) -> float:
    if isinstance(event, dpa.ComposedDpEvent):
        return math.fsum(_divergence(one, order) for one in event.events)
    if isinstance(event, dpa.SelfComposedDpEvent):
        return int(event.count) * _divergence(event.event, order)
    if isinstance(event, FailureDpEvent):
        raise _without("one that may fail")
    # The best of a random number of runs has a bound at one order that follows from several.
    others = RenyiAccountant()._orders if isinstance(event, RepeatAndSelectDpEvent) else ()
    accountant = RenyiAccountant([order, *others])
    if not accountant.supports(event):
        raise _without(f"{type(event).__name__}, whose divergence is not known")
    return float(accountant.compose(event)._rdp[0])


def _without(found: str) -> AccountingError:
    return AccountingError(
        "events with a Rényi divergence of the register's order",
        found,
        "A register could not bound what it reveals together with all else.",
        "Take another method.",
    )
