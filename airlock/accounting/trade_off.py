"""A mechanism's trade-off curve: how well any test can tell whether one record is in the data (Dong et al. 2022).

An (ε, δ) is one line that bounds this curve; the curve is all of them. Here it is kept as a ROC curve F of the best
tests in both directions: of a test that says "in" and one that says "out", with false alarms at the rates x₁ and x₀,
the mean power is at most F((x₁ + x₀)/2).

Formal guarantee. `of_event` gives an F that is nowhere below the mechanism's own: it is read off dp-accounting's
pessimistic privacy loss distribution, whose δ(ε) is an upper bound at every ε, in either direction. A pair of
distributions with losses l and masses w has the ROC curve made of segments of height w and width w e^−l, the steepest
first (Neyman and Pearson), after a vertical one for the losses that are infinite. The mean of two such curves at rates
with a given mean is largest if segments of both, at half their size, are put together, the steepest first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from airlock.accounting.pld import LossAccountant

if TYPE_CHECKING:
    import dp_accounting as dpa

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class TradeOff:
    """A concave curve from false to true positive rates, as corners that straight lines connect; ends at (1, 1).

    Args:
        false: The corners' false positive rates, rising from 0.
        true: Their true positive rates, rising.
    """

    false: Floats
    true: Floats

    @classmethod
    def of_point(cls, epsilon: float, delta: float) -> TradeOff:
        """What (ε, δ) alone allows."""
        corner = (1.0 - delta) / (1.0 + np.exp(epsilon))
        return cls(np.array([0.0, corner, 1.0 - delta, 1.0]), np.array([delta, 1.0 - corner, 1.0, 1.0]))

    @classmethod
    def of_event(cls, event: dpa.DpEvent, interval: float) -> TradeOff:
        """What the accounting of an event allows, by privacy losses rounded up to multiples of the interval."""
        accountant = LossAccountant(interval)
        accountant.compose(event)
        return cls.of_losses(accountant)

    @classmethod
    def of_losses(cls, accountant: LossAccountant) -> TradeOff:
        """The same from an accountant that has composed the event."""
        both = accountant._pld
        directions = [both._pmf_remove] if both._symmetric else [both._pmf_remove, both._pmf_add]
        dense = [one.to_dense_pmf() for one in directions]
        losses = np.concatenate([(one._lower_loss + np.arange(one.size)) * one._discretization for one in dense])
        masses = np.concatenate([one._probs for one in dense]) / len(dense)
        infinite = sum(float(one._infinity_mass) for one in dense) / len(dense)
        return cls._of_segments(losses, masses, infinite)

    @classmethod
    def _of_segments(cls, losses: Floats, masses: Floats, infinite: float) -> TradeOff:
        order = np.argsort(-losses, kind="stable")
        order = order[masses[order] > 0]
        with np.errstate(over="ignore"):
            widths = masses[order] * np.exp(-losses[order])
        true = np.concatenate([[0.0], np.cumsum(masses[order])]) + infinite
        false = np.concatenate([[0.0], np.cumsum(widths)])
        inside = false < 1.0
        return cls(np.append(false[inside], 1.0), np.append(np.minimum(true[inside], 1.0), 1.0))

    @cached_property
    def _corners(self) -> tuple[Sequence[float], Sequence[float]]:
        return self.false.tolist(), self.true.tolist()

    def least_false(self, true: float) -> float:
        """The smallest false positive rate of a test with at least this true positive rate."""
        x, y = self._corners
        if true <= y[0]:
            return 0.0
        place = bisect_left(y, true)
        if place >= len(y):
            return 1.0
        rise = y[place] - y[place - 1]
        return x[place - 1] + (true - y[place - 1]) / rise * (x[place] - x[place - 1])

    def most_true(self, false: float) -> float:
        """The largest true positive rate of a test with at most this false positive rate."""
        return float(np.interp(false, self.false, self.true))
