"""The curve of ε: it ends where the plan ends, never falls, and every point is what direct accounting gives."""

from __future__ import annotations

import itertools
import json

import dp_accounting as dpa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airlock.accounting import BudgetSchedule, Guarantee, compose, compute_epsilon, repeat, trace
from airlock.errors import AccountingError

DELTA = 1e-5


def promise(schedule: BudgetSchedule, **changes: object) -> Guarantee:
    fields: dict[str, object] = {
        "unit": "record",
        "relation": "add-remove",
        "events": schedule.events(),
        "delta": DELTA,
        "status": "proven",
        "assumptions": (),
    }
    return Guarantee(**(fields | changes))  # type: ignore[arg-type]


def step(q: float, z: float) -> dpa.DpEvent:
    noise = dpa.GaussianDpEvent(z)
    return noise if q == 1 else dpa.PoissonSampledDpEvent(q, noise)


def on_the_way(schedule: BudgetSchedule, steps: int) -> dpa.DpEvent:
    """Written out anew: so many steps of every run."""
    once = [schedule.before] if schedule.before is not None else []
    return repeat(compose([*once, *([repeat(schedule.step, steps)] if steps else [])]), schedule.runs)


@given(
    st.sampled_from([1.0, 0.3, 0.05, 0.01]),
    st.floats(1.0, 20.0),
    st.integers(1, 400),
    st.integers(1, 3),
    st.sampled_from([None, 2.0, 30.0]),
)
@example(1.0, 1.0, 38, 1, 30.0)
@settings(max_examples=4)
def test_every_point_agrees_with_direct_accounting(q: float, z: float, k: int, runs: int, first: float | None) -> None:
    schedule = BudgetSchedule(step(q, z), k, dpa.GaussianDpEvent(first) if first else None, runs, "epochs", q)
    guarantee = promise(schedule)
    curve = trace(schedule, guarantee)
    assert curve is not None
    points = curve.points
    assert points[-1].epsilon == guarantee.epsilon
    assert (points[0].steps, points[-1].steps) == (0 if first else 1, k)
    assert [p.at for p in points] == [p.steps * q for p in points]
    assert all(a.steps < b.steps and a.epsilon <= b.epsilon for a, b in itertools.pairwise(points))
    for point in (points[0], points[len(points) // 2]):
        direct = compute_epsilon(on_the_way(schedule, point.steps), DELTA).epsilon
        # one grid for the whole curve, as fine as its last ε asks: the first points are rounded up on that scale
        assert point.epsilon == pytest.approx(direct, rel=5e-3, abs=2e-4 * max(1.0, guarantee.epsilon))
        assert point.epsilon >= direct * (1 - 1e-3) - 1e-5  # a bound: not below, but for the finer grid of the other


def test_half_the_noise_is_another_curve() -> None:
    curves = [
        trace(schedule, promise(schedule)) for schedule in (BudgetSchedule(step(0.1, z), 100) for z in (2.0, 1.0))
    ]
    assert curves[0] is not None
    assert curves[1] is not None
    assert all(b.epsilon > 1.5 * a.epsilon for a, b in zip(curves[0].points, curves[1].points, strict=True))


def test_rdp_where_the_guarantee_is_by_rdp() -> None:
    schedule = BudgetSchedule(step(0.05, 1.2), 100)
    guarantee = promise(schedule, accountant="rdp")
    curve = trace(schedule, guarantee)
    assert curve is not None
    assert curve.points[-1].epsilon == guarantee.epsilon
    for point in curve.points[:-1:8]:
        direct = compute_epsilon(on_the_way(schedule, point.steps), DELTA, accountant="rdp").epsilon
        assert point.epsilon == pytest.approx(direct, rel=1e-6)


def test_a_course_and_a_guarantee_of_different_things_are_refused() -> None:
    with pytest.raises(AccountingError, match="another"):
        trace(BudgetSchedule(step(0.1, 2.0), 100), promise(BudgetSchedule(step(0.1, 2.0), 99)))


def test_no_bound_no_curve() -> None:
    open_schedule = BudgetSchedule(dpa.NonPrivateDpEvent(), 3)
    assert trace(open_schedule, promise(open_schedule)) is None
    schedule = BudgetSchedule(step(1.0, 2.0), 3)
    assert trace(schedule, promise(schedule, unit="none", status="claimed")) is None
    assert trace(None, promise(schedule)) is None


def test_what_is_not_proven_says_so() -> None:
    schedule = BudgetSchedule(step(1.0, 2.0), 3, runs=4)
    claimed, proven = (trace(schedule, promise(schedule, status=status)) for status in ("claimed", "proven"))
    assert claimed is not None
    assert proven is not None
    assert "claimed, NOT proven" in claimed.says
    assert "NOT" not in proven.says
    assert "4 runs together" in proven.says
    assert json.loads(json.dumps(claimed.to_dict()))["status"] == "claimed"
