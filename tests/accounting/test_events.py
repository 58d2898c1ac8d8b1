"""Events survive JSON, and nothing but a row of the table comes back."""

from __future__ import annotations

import json
import math

import dp_accounting as dpa
import pytest
from dp_accounting.dp_event import DiscreteLaplaceDpEvent
from hypothesis import given
from hypothesis import strategies as st

from airlock.accounting import FailureDpEvent, compose, compute_epsilon, from_json, pure, repeat, to_json
from airlock.accounting.epsilon import deltas
from airlock.accounting.events import without_failure
from airlock.errors import AccountingError

leaves = st.one_of(
    st.builds(dpa.GaussianDpEvent, st.floats(0.01, 100)),
    st.builds(dpa.LaplaceDpEvent, st.floats(0.01, 100)),
    st.builds(DiscreteLaplaceDpEvent, st.floats(0.01, 100), st.integers(1, 100)),
    st.builds(dpa.ZCDpEvent, st.floats(0, 10), st.floats(0, 1)),
    st.just(dpa.NoOpDpEvent()),
    st.just(dpa.NonPrivateDpEvent()),
)
events = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(dpa.SelfComposedDpEvent, inner, st.integers(1, 10**6)),
        st.builds(dpa.PoissonSampledDpEvent, st.floats(0, 1), inner),
        st.builds(dpa.ComposedDpEvent, st.lists(inner, max_size=3)),
    ),
    max_leaves=6,
)


@given(events)
def test_json_and_back_is_the_same_event(event: dpa.DpEvent) -> None:
    assert from_json(json.loads(json.dumps(to_json(event)))) == event


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        "gaussian",
        {},
        {"type": "os.system", "noise_multiplier": 1.0},
        {"type": "gaussian"},
        {"type": "gaussian", "noise_multiplier": -1.0},
        {"type": "gaussian", "noise_multiplier": float("nan")},
        {"type": "gaussian", "noise_multiplier": float("inf")},
        {"type": "gaussian", "noise_multiplier": True},
        {"type": "gaussian", "noise_multiplier": "1"},
        {"type": "gaussian", "noise_multiplier": 1.0, "extra": 1},
        {"type": "repeated", "event": {"type": "no-op"}, "count": 0},
        {"type": "repeated", "event": {"type": "no-op"}, "count": 1.5},
        {"type": "poisson-sampled", "sampling_probability": 1.5, "event": {"type": "no-op"}},
        {"type": "composed", "events": "ab"},
        {"type": "discrete-laplace", "noise_parameter": 1.0, "sensitivity": 1.5},
        {"type": "discrete-laplace", "noise_parameter": 1.0, "sensitivity": 0},
        {"type": "discrete-laplace", "noise_parameter": 1.0},
    ],
)
def test_anything_else_is_refused(value: object) -> None:
    with pytest.raises(AccountingError):
        from_json(value)


def test_endless_nesting_is_refused() -> None:
    value: dict[str, object] = {"type": "no-op"}
    for _ in range(50):
        value = {"type": "repeated", "event": value, "count": 2}
    with pytest.raises(AccountingError):
        from_json(value)


def test_an_event_outside_the_table_cannot_be_written() -> None:
    with pytest.raises(AccountingError, match="RandomizedResponse"):
        to_json(dpa.RandomizedResponseDpEvent(0.5, 2))


def test_small_compositions_stay_simple() -> None:
    one = dpa.GaussianDpEvent(1.0)
    assert repeat(one, 1) == one
    assert compose([one]) == one
    assert compose([]) == dpa.NoOpDpEvent()
    assert compose([one, one]) == dpa.ComposedDpEvent([one, one])


@pytest.mark.parametrize("noise", [dpa.GaussianDpEvent(2.0), pure(0.5), dpa.ZCDpEvent(0.02, 0.0)])
def test_a_failure_is_taken_off_delta_wherever_it_stands(noise: dpa.DpEvent) -> None:
    event = repeat(compose([FailureDpEvent(1e-6), repeat(noise, 3)]), 2)
    assert from_json(to_json(event)) == event
    rest = repeat(repeat(noise, 3), 2)
    assert compute_epsilon(event, 1e-5).epsilon == pytest.approx(compute_epsilon(rest, 8e-6).epsilon, rel=1e-9)
    assert compute_epsilon(event, 1e-5).epsilon > compute_epsilon(rest, 1e-5).epsilon
    assert math.isinf(compute_epsilon(event, 2e-6).epsilon)
    assert deltas(event, [0.3])[0] == pytest.approx(deltas(rest, [0.3])[0] + 2e-6, rel=1e-6)
    assert without_failure(rest) == (rest, 0.0)


def test_a_failure_below_a_sampled_event_is_refused() -> None:
    with pytest.raises(AccountingError, match="failure"):
        compute_epsilon(dpa.PoissonSampledDpEvent(0.1, FailureDpEvent(1e-6)), 1e-5)
    with pytest.raises(AccountingError, match="probability"):
        from_json({"type": "failure", "probability": 1.5})
