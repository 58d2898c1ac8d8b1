"""From events and δ to ε: PLD by default, RDP where PLD does not support the event; the answer says which.

The convention in this package for every event: `noise_multiplier` is the noise's standard deviation divided by the
mechanism's L2 sensitivity *under the guarantee's own relation*. dp-accounting's two accountants disagree here (under
REPLACE_ONE its PLD accountant doubles the sensitivity of an unsampled Gaussian and its RDP accountant does not), so
both are always run with ADD_OR_REMOVE_ONE, whose reading of an unsampled event is exactly "sensitivity one". Sampled
events are only accountable under add-remove.

Accountants of other packages (entry points `airlock.accountants`) are functions `epsilon(event, delta) -> float`. The
rule for them: one can raise a stated ε but never lower it. `compute_epsilon` always asks dp-accounting, as "auto" does,
and gives the larger of the two figures; an event that dp-accounting does not bound stays refused, whatever the other
one says.

Guarantee: what is proven with a foreign accountant is proven without it. Proof. Let ε₀ be dp-accounting's bound at δ
and ε ≥ ε₀ the figure that is stated. Whatever is (ε₀, δ)-DP is (ε, δ)-DP, since e^ε₀ P[M(D') ∈ S] ≤ e^ε P[M(D') ∈ S]. ∎
So `verify` needs no foreign code: it computes ε₀ again from the recorded events and fails if less is stated. The
version says who raised the figure (`raised_by`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from typing import Literal, TypeVar, cast

import dp_accounting as dpa
from dp_accounting import pld, rdp

from airlock import plugins
from airlock.accounting.events import contains_sampling, from_json, repeat, to_json, without_failure
from airlock.accounting.pld import LossAccountant, smallest_epsilon
from airlock.accounting.renyi import RenyiAccountant, quiet
from airlock.accounting.terms import Relation
from airlock.config import ACCOUNTANTS
from airlock.errors import AccountingError

Accountant = str  # "auto", "pld", "rdp", or the name of one from another package

# PLD rounds privacy losses up to a grid, so ε is an upper bound whatever the interval. A finer grid is tighter where ε
# is small and hundreds of roundings would be a visible part of it. A large ε does not need one as fine and could not
# afford it, since the grid has to hold every loss. Above LARGEST, ε is reported as infinite.
_COARSE, _FINE, _FINE_BELOW = 1e-4, 1e-5, 1.0
_RELATIVE = 1e-5
_ROUGH = 2e-3
_ALONG, _ALONG_FINEST = 2e-4, 5e-5  # as fractions of the final ε, for a curve
LARGEST = 1000.0
# Up to this ε both grids are at their finest, so a closer estimate is not needed. Integer orders are cheap.
_SMALL = min(_COARSE / _RELATIVE, _ROUGH / (20 * _RELATIVE))
_FEW_ORDERS = (*range(2, 17), 20, 24, 32, 48, 64)


@dataclass(frozen=True)
class EpsilonBound:
    """An ε with the accountant that bounded it, and the version; where a foreign one raised it, that one's name too."""

    epsilon: float
    accountant: Literal["PLD", "RDP"]
    version: str


def compute_epsilon(
    event: dpa.DpEvent, delta: float, relation: Relation = "add-remove", accountant: Accountant = "auto"
) -> EpsilonBound:
    """The ε of the event at δ; infinite above LARGEST.

    By the accountant of another package: the larger of its ε and dp-accounting's, never less.

    Raises:
        AccountingError: No accountant supports the event, δ is not in (0, 1), or the event is sampled under
            replace-one.
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
    if accountant in OWN:
        return _bounded(content, delta, accountant)
    return _raised(_bounded(content, delta, "auto"), _foreign(content, delta, accountant), accountant)


@lru_cache(maxsize=4096)
def _bounded(content: str, delta: float, accountant: Accountant) -> EpsilonBound:
    """Cached: plan, release, card and verification need the same ε, and computing it takes seconds."""
    event, failed = without_failure(from_json(json.loads(content)))
    delta -= failed
    if delta <= 0:
        return EpsilonBound(math.inf, "PLD" if accountant != "rdp" else "RDP", accounting_version())
    if accountant != "rdp" and pld.PLDAccountant().supports(event):
        return EpsilonBound(_pld_epsilon(event, delta, _scale(event, delta)), "PLD", accounting_version())
    if accountant != "pld" and RenyiAccountant().supports(event):
        return EpsilonBound(_rdp_epsilon(event, delta), "RDP", accounting_version())
    raise AccountingError(f"an event that the accountant '{accountant}' supports", type(event).__name__)


# Accountants of other packages.

Epsilon = Callable[[dpa.DpEvent, float], float]
F = TypeVar("F", bound=Epsilon)
OWN = ACCOUNTANTS
_RAISED = "; raised by the "


def register(name: str) -> Callable[[F], F]:
    """Make an accountant known to this process under a name; a decorator of `epsilon(event, delta) -> float`."""

    def known(epsilon: F) -> F:
        OTHERS.register(name, epsilon)
        return epsilon

    return known


def raised_by(accountant_version: str) -> tuple[str, str | None]:
    """The version of dp-accounting, and who raised the ε above its figure; None where nobody did."""
    plain, raised, whose = accountant_version.partition(_RAISED)
    return plain, whose if raised else None


def _function(thing: object, name: str) -> Epsilon:
    if not callable(thing) or isinstance(thing, type):
        raise AccountingError(
            f"a function from an event and δ to ε as the accountant '{name}'", f"{type(thing).__name__}"
        )
    return cast(Epsilon, thing)


OTHERS = plugins.Registry(plugins.ACCOUNTANTS, "accountant", OWN, _function, AccountingError)


def _raised(own: EpsilonBound, theirs: float, name: str) -> EpsilonBound:
    """The larger of both; dp-accounting's as it is where the other one has nothing to add."""
    if theirs <= own.epsilon:
        return own
    return EpsilonBound(theirs, own.accountant, f"{own.version}{_RAISED}{OTHERS.whose(name)}")


def _foreign(content: str, delta: float, name: str) -> float:
    """What another package's accountant says of an event; 0 where failures alone use up δ, and nothing is bounded."""
    event, failed = without_failure(from_json(json.loads(content)))
    if delta - failed <= 0:
        return 0.0
    epsilon, rest = OTHERS.get(name), json.dumps(to_json(event))
    with OTHERS.blamed(name, "bound ε", quote=True):
        found = _ask(epsilon, rest, delta - failed)
    if math.isnan(found) or found < 0:
        raise AccountingError(
            f"an ε of at least 0 from the {OTHERS.whose(name)}", f"{found}", "It would say nothing about the release."
        )
    return found if found <= LARGEST else math.inf


@lru_cache(maxsize=4096)
def _ask(epsilon: Epsilon, content: str, delta: float) -> float:
    """Remembered, as dp-accounting's own answers are."""
    return float(epsilon(from_json(json.loads(content)), delta))


# Less than the whole answer, or more of it.


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
    before: dpa.DpEvent,
    step: dpa.DpEvent,
    counts: Sequence[int],
    delta: float,
    accountant: str,
    end: float,
    asked: Accountant = "auto",
) -> list[float]:
    """Upper bounds on the ε of `before` followed by `count` times `step`, for each of the counts.

    The privacy loss of one step is computed once and serves every count, on a grid that suits an ε of about `end`.

    Args:
        before: What is spent first.
        step: What one step costs.
        counts: How many steps; each at least 0.
        delta: The δ at which they are stated.
        accountant: "PLD" or "RDP": the one that bounded the end.
        end: The ε after the last step, finite.
        asked: The accountant of the guarantee; one from another package raises each of the points, as it did the end.
    """
    found = _along(before, step, counts, delta, accountant, end)
    if asked not in OTHERS:
        return found
    events = [json.dumps(to_json(_followed(before, step, count))) for count in counts]
    return [max(own, _foreign(event, delta, asked)) for own, event in zip(found, events, strict=True)]


def _along(
    before: dpa.DpEvent, step: dpa.DpEvent, counts: Sequence[int], delta: float, accountant: str, end: float
) -> list[float]:
    before, failed = without_failure(before)
    delta -= failed
    if accountant == "RDP":
        return [_rdp_epsilon(_followed(before, step, count), delta) for count in counts]
    interval = max(_ALONG_FINEST, _ALONG * end)
    # The accountant composes the event as in `compute_epsilon`; only its distribution can be composed further.
    first, one = (LossAccountant(interval).compose(e)._pld for e in (before, step))
    composed = (first.compose(one.self_compose(count)) if count else first for count in counts)
    return [smallest_epsilon(loss, delta) for loss in composed]


def deltas(event: dpa.DpEvent, epsilons: Sequence[float]) -> list[float]:
    """Upper bounds on δ at each of these ε, under add-remove: the curve of which `compute_epsilon` reads one point.

    By PLD, or by RDP where PLD does not support the event (zCDP), which is looser but still a bound.

    Raises:
        AccountingError: Neither supports the event.
    """
    to_json(event)
    event, failed = without_failure(event)
    if pld.PLDAccountant().supports(event):
        by_losses = LossAccountant(_COARSE).compose(event)
        return [float(by_losses.get_delta(epsilon)) + failed for epsilon in epsilons]
    if RenyiAccountant().supports(event):
        with quiet():
            by_orders = RenyiAccountant().compose(event)
            return [float(by_orders.get_delta(epsilon)) + failed for epsilon in epsilons]
    raise AccountingError("an event that PLD or RDP supports", type(event).__name__)


def _followed(before: dpa.DpEvent, step: dpa.DpEvent, count: int) -> dpa.DpEvent:
    return dpa.ComposedDpEvent([before, repeat(step, count)]) if count else before


def accounting_version() -> str:
    """The version of dp-accounting in use."""
    return f"dp-accounting {version('dp-accounting')}"


def _scale(event: dpa.DpEvent, delta: float) -> float:
    """A cheap upper bound on ε where there is one: 0 where there is none, infinity above LARGEST."""
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
    with quiet():
        return float(RenyiAccountant(orders).compose(event).get_epsilon(delta))
