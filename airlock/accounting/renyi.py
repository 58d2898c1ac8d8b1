"""dp-accounting's RDP accountant with two more events: one of several mechanisms, and any ε-DP mechanism.

Rényi divergence of order λ > 1 throughout: D_λ(P‖Q) = log(E_Q[(P/Q)^λ])/(λ − 1).

One of several. Let a draw θ that reads no record say which of the mechanisms M_1, …, M_m runs, and let both θ and M_θ's
output leave. Guarantee: at every order λ, the divergence is at most the largest of theirs at λ. Proof. θ has the same
distribution on both sides, so the joint density ratio at (θ, y) is that of M_θ at y, and E[(P/Q)^λ] is the mean over θ
of exp((λ − 1) D_λ(M_θ)), which is at most the largest of them. ∎ The maximum is taken at each order separately: the
mechanism that is the worst at one need not be so at another. What has no bound at an order is infinite there.

Any ε-DP mechanism is a random function of randomised response (`events.pure`), whose likelihood ratio is e^ε with
probability e^ε/(1 + e^ε) and e^−ε otherwise. So at every order its divergence is at most

    log((e^(λε) + e^((1 − λ)ε)) / (1 + e^ε)) / (λ − 1)  =  (log cosh((λ − ½)ε) − log cosh(ε/2)) / (λ − 1),

by data processing (van Erven and Harremoës 2014). `DiscreteLaplaceDpEvent(a, s)` is a·s-DP.

The best of a random number of runs is dp-accounting's own (`mechanisms.repeat_and_select` has the theorem).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import dp_accounting as dpa
import numpy as np
from absl import logging as absl_logging
from dp_accounting import rdp
from dp_accounting.dp_event import DiscreteLaplaceDpEvent
from numpy.typing import NDArray

from airlock.accounting.events import ChoiceDpEvent

Floats = NDArray[np.float64]


class RenyiAccountant(rdp.RdpAccountant):  # type: ignore[misc]
    """`rdp.RdpAccountant` under add-remove, which also supports the events above."""

    _rdp: Floats

    def compose(self, event: dpa.DpEvent, count: int = 1) -> RenyiAccountant:
        """As the original, without its warnings (`quiet`)."""
        with quiet():
            return super().compose(event, count)  # type: ignore[no-any-return]

    def _maybe_compose(self, event: dpa.DpEvent, count: int, do_compose: bool) -> Any:
        if isinstance(event, ChoiceDpEvent):
            return self._compose_largest(event, count, do_compose)
        if isinstance(event, DiscreteLaplaceDpEvent):
            if do_compose:
                self._rdp += count * pure_divergence(event.noise_parameter * event.sensitivity, self._orders)
            return None
        return super()._maybe_compose(event, count, do_compose)

    def _compose_largest(self, event: ChoiceDpEvent, count: int, do_compose: bool) -> Any:
        before, found = self._rdp, []
        for one in event.events:
            self._rdp = np.zeros_like(before)
            refused = self._maybe_compose(one, 1, do_compose)
            found.append(self._rdp)
            self._rdp = before
            if refused is not None:
                return refused
        if do_compose and found:
            self._rdp = before + count * np.max(found, axis=0)
        return None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """RDP skips orders that do not converge, which is sound, but warns about each: silence these warnings."""
    before = absl_logging.get_verbosity()
    absl_logging.set_verbosity(absl_logging.ERROR)
    try:
        yield
    finally:
        absl_logging.set_verbosity(before)


def pure_divergence(epsilon: float, orders: Floats) -> Floats:
    """The largest Rényi divergence of an ε-DP mechanism at each of these orders, all above 1."""
    far = _log_cosh((orders - 0.5) * epsilon)
    return np.asarray((far - _log_cosh(np.array(epsilon / 2.0))) / (orders - 1.0))


def _log_cosh(x: Floats) -> Floats:
    """Without overflow, and exact to the last digits where x is small."""
    near = np.log1p(2.0 * np.sinh(np.minimum(x, 1.0) / 2.0) ** 2)
    return np.asarray(np.where(x < 1.0, near, x + np.log1p(np.exp(-2.0 * x)) - math.log(2.0)))
