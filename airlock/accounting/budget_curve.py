"""How the cost of a release accumulates: `BudgetSchedule`, a public list of its steps, and the curve of ε along it.

A method that spends its budget in equal steps (training steps, queries) puts a schedule into its plan. Everything in
it is known before any record is read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import dp_accounting as dpa

from airlock.accounting.epsilon import compute_epsilon_along
from airlock.accounting.events import compose, repeat, to_json
from airlock.accounting.guarantee import Guarantee
from airlock.accounting.terms import Status
from airlock.errors import AccountingError

_POINTS = 25


@dataclass(frozen=True)
class BudgetSchedule:
    """An optional initial event, then equal steps; repeated in each of the runs that are paid for.

    Args:
        step: What one step costs.
        steps: How many there are.
        before: What is spent before the first step, if anything.
        runs: How many times all of this is done before one result is picked.
        unit: The unit of the horizontal axis: "epochs", "steps", "queries".
        per_step: How much of the unit one step is; for epochs, the sampling probability.
    """

    step: dpa.DpEvent
    steps: int
    before: dpa.DpEvent | None = None
    runs: int = 1
    unit: str = "steps"
    per_step: float = 1.0

    def events(self) -> dpa.DpEvent:
        """The whole schedule as one event, the form in which a guarantee records it."""
        once = [] if self.before is None else [self.before]
        return repeat(compose([*once, repeat(self.step, self.steps)]), self.runs)


@dataclass(frozen=True)
class CurvePoint:
    """The ε after `steps` steps (of each run), at position `at` on the axis."""

    steps: int
    at: float
    epsilon: float


@dataclass(frozen=True)
class Curve:
    """ε at δ along a schedule: non-decreasing, every point an upper bound, the last one the guarantee's own ε."""

    unit: str
    delta: float
    status: Status
    runs: int
    points: tuple[CurvePoint, ...]

    @property
    def says(self) -> str:
        """What is plotted, in one line."""
        runs = f", {self.runs} runs together" if self.runs > 1 else ""
        doubt = "" if self.status == "proven" else f" ({self.status}, NOT proven)"
        delta = f"{self.delta:g}".replace("e-0", "e-")
        return f"ε at δ = {delta} by number of {self.unit}{runs}{doubt}"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return {
            "says": self.says,
            "unit": self.unit,
            "delta": self.delta,
            "status": self.status,
            "runs": self.runs,
            "points": [{"steps": p.steps, "at": p.at, "epsilon": p.epsilon} for p in self.points],
        }


def trace(schedule: BudgetSchedule | None, guarantee: Guarantee) -> Curve | None:
    """The curve of ε along the schedule of a guarantee; None if there is no schedule or no bound.

    Raises:
        AccountingError: The schedule does not lead to the guarantee's events.
    """
    if schedule is None or not math.isfinite(guarantee.epsilon):
        return None
    if to_json(schedule.events()) != to_json(guarantee.events):
        raise AccountingError(
            "a schedule that leads to the guarantee's events", "another", "The curve would belong to something else."
        )
    counts = _counts(schedule)
    before = dpa.NoOpDpEvent() if schedule.before is None else repeat(schedule.before, schedule.runs)
    on_the_way = compute_epsilon_along(
        before,
        schedule.step,
        [count * schedule.runs for count in counts[:-1]],
        guarantee.delta,
        guarantee.accountant_used,
        guarantee.epsilon,
        guarantee.accountant,
    )
    points = [
        CurvePoint(count, count * schedule.per_step, epsilon)
        for count, epsilon in zip(counts, _never_falling([*on_the_way, guarantee.epsilon]), strict=True)
    ]
    return Curve(schedule.unit, guarantee.delta, guarantee.status, schedule.runs, tuple(points))


def _counts(schedule: BudgetSchedule) -> list[int]:
    """The steps at which ε is computed: denser at the start, where ε grows like a square root; the last is the end."""
    ahead = {1 + round((schedule.steps - 1) * (i / (_POINTS - 1)) ** 2) for i in range(_POINTS)}
    return sorted(ahead | ({0} if schedule.before is not None else set()))


def _never_falling(bounds: list[float]) -> list[float]:
    """ε cannot fall with more steps, so a bound on a later point also holds for earlier ones."""
    for i in reversed(range(len(bounds) - 1)):
        bounds[i] = min(bounds[i], bounds[i + 1])
    return bounds
