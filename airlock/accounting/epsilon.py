"""From events and δ to ε: PLD by default, RDP where PLD does not take the event; the answer says which.

The convention of this house for every event: `noise_multiplier` is the noise's standard deviation divided by the
mechanism's L2 sensitivity *under the guarantee's own relation*. dp-accounting's two accountants disagree here (under
REPLACE_ONE its PLD accountant doubles the sensitivity of an unsampled Gaussian and its RDP accountant does not), so
both are always run with ADD_OR_REMOVE_ONE, whose reading of an unsampled event is exactly "sensitivity one". Sampled
events are only accountable under add-remove.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from typing import Literal

import dp_accounting as dpa
from absl import logging as absl_logging
from dp_accounting import pld, rdp

from airlock.accounting.events import contains_sampling, from_json, repeat, to_json, without_failure
from airlock.accounting.pld import LossAccountant
from airlock.errors import AccountingError

Accountant = Literal["auto", "pld", "rdp"]
Relation = Literal["add-remove", "replace-one"]

# PLD rounds privacy losses up to a grid, so ε is an upper bound whatever the interval. A finer one is tighter where ε
# is small and hundreds of roundings would be a visible part of it; a large ε needs none as fine, and could not afford
# it: the grid has to hold every loss. Above LARGEST nothing is promised that a grid could tell.
_COARSE, _FINE, _FINE_BELOW = 1e-4, 1e-5, 1.0
_RELATIVE = 1e-5
_ROUGH = 2e-3
_ALONG, _ALONG_FINEST = 2e-4, 5e-5  # of ε at the end, for a curve
LARGEST = 1000.0
# Up to this ε both grids are as fine as they get, so that its size need not be known better. Whole orders are cheap.
_SMALL = min(_COARSE / _RELATIVE, _ROUGH / (20 * _RELATIVE))
_FEW_ORDERS = (*range(2, 17), 20, 24, 32, 48, 64)


@dataclass(frozen=True)
class EpsilonBound:
    """An ε with the accountant that bounded it."""

    epsilon: float
    accountant: Literal["PLD", "RDP"]
    version: str


def compute_epsilon(
    event: dpa.DpEvent, delta: float, relation: Relation = "add-remove", accountant: Accountant = "auto"
) -> EpsilonBound:
    """The ε of the event at δ; infinite above LARGEST.

    Raises:
        AccountingError: No accountant takes the event, δ is not in (0, 1), or a sampled event under replace-one.
    """
    if not 0 < delta < 1:
        raise AccountingError("a δ between 0 and 1", f"{delta}", "At δ ≥ 1 every mechanism is private.")
    content = json.dumps(to_json(event))  # refuses what is not in the table
    if relation == "replace-one" and contains_sampling(event):
        raise AccountingError(
            "unsampled events under replace-one",
            "a sampled one",
            "Its ε would depend on how dp-accounting reads the noise multiplier.",
            "State the guarantee under add-remove.",
        )
    return _bounded(content, delta, accountant)


@lru_cache(maxsize=4096)
def _bounded(content: str, delta: float, accountant: Accountant) -> EpsilonBound:
    """Remembered: plan, release, card and verification ask for the same ε, and it takes seconds."""
    event, failed = without_failure(from_json(json.loads(content)))
    delta -= failed
    if delta <= 0:
        return EpsilonBound(math.inf, "PLD" if accountant != "rdp" else "RDP", accounting_version())
    if accountant != "rdp" and pld.PLDAccountant().supports(event):
        return EpsilonBound(_pld_epsilon(event, delta, _scale(event, delta)), "PLD", accounting_version())
    if accountant != "pld" and rdp.RdpAccountant().supports(event):
        return EpsilonBound(_rdp_epsilon(event, delta), "RDP", accounting_version())
    raise AccountingError(f"an event that the accountant '{accountant}' takes", type(event).__name__)


def compute_epsilon_roughly(event: dpa.DpEvent, delta: float, accountant: Accountant) -> float:
    """An upper bound on ε in a fraction of the time, for a search that ends with `compute_epsilon`."""
    event, failed = without_failure(event)
    delta -= failed
    if delta <= 0:
        return math.inf
    if accountant != "rdp" and pld.PLDAccountant().supports(event):
        scale = _scale(event, delta)
        if math.isinf(scale):
            return scale
        interval = max(_ROUGH, 20 * _RELATIVE * scale)
        return float(LossAccountant(interval).compose(event).get_epsilon(delta))
    return _rdp_epsilon(event, delta)


def compute_epsilon_along(
    before: dpa.DpEvent, step: dpa.DpEvent, counts: Sequence[int], delta: float, accountant: str, end: float
) -> list[float]:
    """Upper bounds on the ε of `before` followed by `step` so many times, for each of the counts.

    The privacy loss of one step is computed once and serves every count, on a grid that suits an ε of about `end`.

    Args:
        before: What is spent first.
        step: What one step costs.
        counts: How many steps; each at least 0.
        delta: The δ they are stated at.
        accountant: "PLD" or "RDP": the one that bounded the end.
        end: The ε after the last step, finite.
    """
    before, failed = without_failure(before)
    delta -= failed
    if accountant == "RDP":
        return [_rdp_epsilon(_followed(before, step, count), delta) for count in counts]
    interval = max(_ALONG_FINEST, _ALONG * end)
    # The accountant takes the event as `compute_epsilon` does; only its distribution can be composed without starting
    # anew.
    first, one = (LossAccountant(interval).compose(e)._pld for e in (before, step))
    composed = (first.compose(one.self_compose(count)) if count else first for count in counts)
    return [float(loss.get_epsilon_for_delta(delta)) for loss in composed]


def deltas(event: dpa.DpEvent, epsilons: Sequence[float]) -> list[float]:
    """Upper bounds on δ at each of these ε, under add-remove: the curve of which `compute_epsilon` reads one point.

    By PLD, or by RDP where PLD does not take the event (zCDP), which is looser and a bound all the same.

    Raises:
        AccountingError: Neither takes the event.
    """
    to_json(event)
    event, failed = without_failure(event)
    if pld.PLDAccountant().supports(event):
        by_losses = LossAccountant(_COARSE).compose(event)
        return [float(by_losses.get_delta(epsilon)) + failed for epsilon in epsilons]
    if rdp.RdpAccountant().supports(event):
        with _quiet():
            by_orders = rdp.RdpAccountant().compose(event)
            return [float(by_orders.get_delta(epsilon)) + failed for epsilon in epsilons]
    raise AccountingError("an event that PLD or RDP takes", type(event).__name__)


def _followed(before: dpa.DpEvent, step: dpa.DpEvent, count: int) -> dpa.DpEvent:
    return dpa.ComposedDpEvent([before, repeat(step, count)]) if count else before


def accounting_version() -> str:
    """Which release of dp-accounting is at work."""
    return f"dp-accounting {version('dp-accounting')}"


def _scale(event: dpa.DpEvent, delta: float) -> float:
    """How large ε is at most, cheaply, where that can be said: 0 where it cannot, infinity above LARGEST."""
    if not rdp.RdpAccountant().supports(event):
        return 0.0
    bound = _rdp_epsilon(event, delta, _FEW_ORDERS)
    if bound > _SMALL:
        bound = _rdp_epsilon(event, delta)
    return bound if bound <= LARGEST else math.inf


def _pld_epsilon(event: dpa.DpEvent, delta: float, scale: float) -> float:
    if math.isinf(scale):
        return math.inf
    epsilon = math.inf
    for interval in (max(_COARSE, _RELATIVE * scale), _FINE):
        accountant = LossAccountant(interval)
        epsilon = min(epsilon, float(accountant.compose(event).get_epsilon(delta)))
        if epsilon >= _FINE_BELOW:
            break
    return epsilon


def _rdp_epsilon(event: dpa.DpEvent, delta: float, orders: Sequence[int] | None = None) -> float:
    with _quiet():
        return float(rdp.RdpAccountant(orders).compose(event).get_epsilon(delta))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """RDP skips orders that do not converge, which is sound, and warns about each: keep that off the terminal."""
    before = absl_logging.get_verbosity()
    absl_logging.set_verbosity(absl_logging.ERROR)
    try:
        yield
    finally:
        absl_logging.set_verbosity(before)
