"""Events to JSON and back, through a fixed table.

An event read from a bundle can only be one of the types below with exactly its numeric fields: names found in the data
select a row of the table and are never imported. Randomised response is deliberately left out: dp-accounting 0.6
composes it once, whatever its count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dp_accounting as dpa
from dp_accounting.dp_event import DiscreteLaplaceDpEvent, RepeatAndSelectDpEvent

from airlock.errors import AccountingError

Json = dict[str, Any]


@dataclass(frozen=True)
class FailureDpEvent(dpa.DpEvent):  # type: ignore[misc]
    """A failure that happens with at most this probability on either of two neighbouring data sets.

    Without the failure, the other events account for what leaves; with it, nothing is guaranteed. If P[M(D) ∈ S] ≤
    P[M(D) ∈ S and no failure] + p, and without failure M is what (ε, δ) was computed for, then M is (ε, δ + p)-DP: so p
    is subtracted from δ before ε is computed.
    """

    probability: float


@dataclass(frozen=True)
class ChoiceDpEvent(dpa.DpEvent):  # type: ignore[misc]
    """One of several mechanisms, whichever a draw that reads no record says; the draw leaves as well.

    Its Rényi divergence of any order is at most the largest of theirs at this order (`renyi`), so that it is accounted
    for by RDP alone.
    """

    events: Sequence[dpa.DpEvent]

    def __post_init__(self) -> None:
        object.__setattr__(self, "events", tuple(self.events))


_TABLE: dict[str, tuple[type[Any], tuple[str, ...]]] = {
    "no-op": (dpa.NoOpDpEvent, ()),
    "non-private": (dpa.NonPrivateDpEvent, ()),
    "gaussian": (dpa.GaussianDpEvent, ("noise_multiplier",)),
    "laplace": (dpa.LaplaceDpEvent, ("noise_multiplier",)),
    "discrete-laplace": (DiscreteLaplaceDpEvent, ("noise_parameter", "sensitivity")),
    "zcdp": (dpa.ZCDpEvent, ("rho", "xi")),
    "failure": (FailureDpEvent, ("probability",)),
    "poisson-sampled": (dpa.PoissonSampledDpEvent, ("sampling_probability", "event")),
    "repeated": (dpa.SelfComposedDpEvent, ("event", "count")),
    "composed": (dpa.ComposedDpEvent, ("events",)),
    "choice": (ChoiceDpEvent, ("events",)),
    "repeat-and-select": (RepeatAndSelectDpEvent, ("event", "mean", "shape")),
}
_NAMES = {kind: name for name, (kind, _) in _TABLE.items()}
_MAX_DEPTH = 20
MOST_RUNS, LARGEST_SHAPE = 1e6, 100.0  # what an event of another's file may say of the number of runs


def to_json(event: dpa.DpEvent) -> Json:
    """The event as plain JSON values."""
    if type(event) not in _NAMES:
        known = ", ".join(_TABLE)
        raise AccountingError(
            f"one of the events {known}", type(event).__name__, "An unknown event cannot be accounted for."
        )
    name = _NAMES[type(event)]
    return {"type": name} | {field: _field_to_json(getattr(event, field)) for field in _TABLE[name][1]}


def _field_to_json(value: Any) -> Any:
    if isinstance(value, dpa.DpEvent):
        return to_json(value)
    if isinstance(value, list | tuple):
        return [to_json(inner) for inner in value]
    return value


def from_json(value: object, depth: int = 0) -> dpa.DpEvent:
    """The event that the JSON describes; anything that is not exactly a row of the table is an error."""
    if depth > _MAX_DEPTH or not isinstance(value, Mapping) or value.get("type") not in _TABLE:
        raise AccountingError(f"an event of type {', '.join(_TABLE)}", "something else", _WHY)
    kind, fields = _TABLE[str(value["type"])]
    if set(value) != {"type", *fields}:
        raise AccountingError(f"the fields {sorted(fields)} in a '{value['type']}' event", f"{sorted(value)}", _WHY)
    if kind is ChoiceDpEvent and not value["events"]:
        raise AccountingError("at least one event to choose", "none", _WHY)
    return kind(**{field: _field_from_json(field, value[field], depth + 1) for field in fields})


_WHY = "ε is recomputed from the recorded events, so they must be complete."


def _field_from_json(field: str, value: object, depth: int) -> object:
    if field == "event":
        return from_json(value, depth)
    if field == "events" and isinstance(value, Sequence) and not isinstance(value, str):
        return [from_json(inner, depth) for inner in value]
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    whole = field not in ("count", "sensitivity") or (isinstance(value, int) and value >= 1)
    share = field not in ("sampling_probability", "probability") or (number and value <= 1)  # type: ignore[operator]
    runs = field != "mean" or (number and 1 <= value <= MOST_RUNS)  # type: ignore[operator]
    shape = field != "shape" or (number and value <= LARGEST_SHAPE)  # type: ignore[operator]
    if not (number and whole and share and runs and shape):
        raise AccountingError(f"a usable number as '{field}' of an event", f"{value!r}"[:60], _WHY)
    return value


def repeat(event: dpa.DpEvent, count: int) -> dpa.DpEvent:
    """`event`, `count` times; one time is the event itself."""
    return event if count == 1 else dpa.SelfComposedDpEvent(event, count)


def pure(epsilon: float) -> dpa.DpEvent:
    """Any ε-DP mechanism, represented by the worst of them: the discrete Laplace mechanism at sensitivity 1.

    Its privacy loss is ε with probability e^ε/(1 + e^ε) and −ε otherwise. Every ε-DP mechanism is a random function of
    it, and so is every adaptive composition of a composition of it (Kairouz, Oh and Viswanath 2015).
    """
    return DiscreteLaplaceDpEvent(epsilon, 1)


def compose(events: Sequence[dpa.DpEvent]) -> dpa.DpEvent:
    """The composition of the events; a single one is returned unchanged, none gives the empty event."""
    if len(events) == 1:
        return events[0]
    return dpa.ComposedDpEvent(list(events)) if events else dpa.NoOpDpEvent()


def choose(events: Sequence[dpa.DpEvent]) -> dpa.DpEvent:
    """One of the events, each of them listed once; a single one is returned unchanged."""
    different = {str(to_json(event)): event for event in events}
    return ChoiceDpEvent(list(different.values())) if len(different) > 1 else events[0]


def repeat_and_select(event: dpa.DpEvent, mean: float, shape: float) -> dpa.DpEvent:
    """The best of a secret random number of runs (`mechanisms.repeat_and_select`)."""
    return RepeatAndSelectDpEvent(event, mean, shape)


def without_failure(event: dpa.DpEvent) -> tuple[dpa.DpEvent, float]:
    """The event without its failures, and a bound on the probability of any of them.

    Raises:
        AccountingError: One is inside a sampled, chosen or selected event, where its meaning is undefined.
    """
    if isinstance(event, FailureDpEvent):
        return dpa.NoOpDpEvent(), event.probability
    if isinstance(event, dpa.SelfComposedDpEvent):
        rest, failed = without_failure(event.event)
        return (dpa.SelfComposedDpEvent(rest, event.count), event.count * failed) if failed else (event, 0.0)
    if isinstance(event, dpa.ComposedDpEvent):
        parts = [without_failure(one) for one in event.events]
        failed = sum(part[1] for part in parts)
        return (compose([part[0] for part in parts]), failed) if failed else (event, 0.0)
    if any(without_failure(one)[1] for one in _inside(event)):
        raise AccountingError("no failure inside a sampled, chosen or selected event", "one", _WHY)
    return event, 0.0


def contains_sampling(event: dpa.DpEvent) -> bool:
    """Whether some part of the event is amplified by sampling."""
    return isinstance(event, dpa.PoissonSampledDpEvent) or any(contains_sampling(one) for one in _inside(event))


def _inside(event: dpa.DpEvent) -> list[dpa.DpEvent]:
    """The events that an event is made of."""
    return [*getattr(event, "events", ()), *filter(None, [getattr(event, "event", None)])]
