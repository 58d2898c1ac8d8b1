"""The privacy losses that are found at once are those that dp-accounting finds one after the other."""

from __future__ import annotations

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld import privacy_loss_distribution as theirs
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airlock.accounting import pld
from airlock.accounting.pld import LossAccountant


@settings(max_examples=60)
@given(noise=st.floats(0.3, 50), rate=st.floats(1e-6, 1.0), interval=st.sampled_from([1e-2, 2e-3, 1e-3]))
@example(noise=1.0, rate=1.0, interval=1e-3)
@example(noise=1.0, rate=0.5, interval=1e-3)
@example(noise=0.5, rate=1 - np.exp(-1.0), interval=1e-2)  # the pole lies on the grid
@example(noise=0.5, rate=1 - 1e-9, interval=1e-2)
@example(noise=20.0, rate=1e-12, interval=1e-2)
def test_the_distribution_is_that_of_dp_accounting(noise: float, rate: float, interval: float) -> None:
    own = pld._gaussian(noise, rate, interval)
    other = theirs.from_gaussian_mechanism(noise, value_discretization_interval=interval, sampling_prob=rate)
    assert own._symmetric == other._symmetric
    for mine, yours in ((own._pmf_remove, other._pmf_remove), (own._pmf_add, other._pmf_add)):
        mine, yours = mine.to_dense_pmf(), yours.to_dense_pmf()
        assert mine._lower_loss == yours._lower_loss
        # The same bits on most machines; where not, δ is rounded otherwise and differences of it are over the interval.
        assert mine._infinity_mass == pytest.approx(yours._infinity_mass, rel=1e-9, abs=1e-15)
        np.testing.assert_allclose(mine._probs, yours._probs, rtol=1e-9, atol=1e-11)


EVENTS = {
    "sampled": dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(0.05, dpa.GaussianDpEvent(0.9)), 60),
    "whole": dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(9.0), 20),
    "sampled surely": dpa.PoissonSampledDpEvent(1.0, dpa.GaussianDpEvent(2.0)),
    "one after the other": dpa.ComposedDpEvent(
        [dpa.GaussianDpEvent(3.0), dpa.PoissonSampledDpEvent(0.1, dpa.GaussianDpEvent(1.0)), dpa.LaplaceDpEvent(5.0)]
    ),
    "laplace, sampled": dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(0.05, dpa.LaplaceDpEvent(2.0)), 5),
    "never drawn": dpa.PoissonSampledDpEvent(0.0, dpa.GaussianDpEvent(1.0)),
    "no noise": dpa.PoissonSampledDpEvent(0.1, dpa.GaussianDpEvent(0.0)),
    "nothing": dpa.NoOpDpEvent(),
}


@pytest.mark.parametrize("name", EVENTS)
def test_epsilon_and_delta_are_those_of_dp_accounting(name: str) -> None:
    own = LossAccountant(1e-3).compose(EVENTS[name])
    other = PLDAccountant(value_discretization_interval=1e-3).compose(EVENTS[name])
    assert own.get_epsilon(1e-5) == pytest.approx(other.get_epsilon(1e-5), rel=1e-9)
    assert own.get_delta(1.0) == pytest.approx(other.get_delta(1.0), rel=1e-9)


@pytest.mark.parametrize("count", [1, 60])
@pytest.mark.parametrize(("noise", "rate"), [(1.1, 0.2), (4.0, 1.0), (20.0, 0.9)])
def test_epsilon_is_read_off_to_the_last_bit_as_dp_accounting_does(noise: float, rate: float, count: int) -> None:
    losses = pld._gaussian(noise, rate, 1e-3).self_compose(count)  # of fewer points than a block, and of many blocks
    for delta in (0.7, 0.1, 1e-3, 1e-6, 1e-12, 1e-30):
        assert pld.smallest_epsilon(losses, delta) == losses.get_epsilon_for_delta(delta)


def test_what_dp_accounting_does_not_take_is_not_taken() -> None:
    event = dpa.PoissonSampledDpEvent(0.1, dpa.ZCDpEvent(0.1))
    assert not LossAccountant(1e-3).supports(event)
