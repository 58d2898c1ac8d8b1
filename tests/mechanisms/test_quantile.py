"""A moving clip norm: what sum and count cost together, the count's noise, and that the quantile is found."""

from __future__ import annotations

import math

import dp_accounting as dpa
import numpy as np
import pytest
import torch
from dp_accounting import rdp
from hypothesis import given
from hypothesis import strategies as st

from airlock.accounting import compute_epsilon
from airlock.errors import AccountingError
from airlock.mechanisms import Clip, QuantileBound, Stream
from tests.mechanisms.test_gaussian import has_scale


@given(st.floats(0.3, 100), st.floats(1.001, 1000))
def test_sum_and_count_together_cost_what_one_gaussian_costs(noise: float, times: float) -> None:
    """Whitened, one record moves the pair by 1/z: the root of the sum of squares of its two parts."""
    count_noise = times * noise / 2
    bound = QuantileBound(0.5, 0.2, count_noise)
    gradients = bound.gradient_noise(noise)
    assert gradients > noise
    assert bound.together(gradients) == pytest.approx(noise, rel=1e-9)
    assert math.hypot(1 / gradients, 0.5 / count_noise) == pytest.approx(1 / noise, rel=1e-9)


@pytest.mark.parametrize(("noise", "count_noise"), [(1.0, 0.8), (4.0, 10.0), (0.7, 0.4)])
def test_the_accountant_agrees_on_the_two_parts(noise: float, count_noise: float) -> None:
    bound = QuantileBound(0.5, 0.2, count_noise)
    parts = [dpa.GaussianDpEvent(bound.gradient_noise(noise)), bound.noise.event]
    assert parts[1] == dpa.GaussianDpEvent(2 * count_noise)
    whole = compute_epsilon(dpa.GaussianDpEvent(noise), 1e-5).epsilon
    assert compute_epsilon(dpa.ComposedDpEvent(parts), 1e-5).epsilon == pytest.approx(whole, rel=1e-3)
    half = [dpa.GaussianDpEvent(bound.gradient_noise(noise)), dpa.GaussianDpEvent(count_noise)]
    assert compute_epsilon(dpa.ComposedDpEvent(half), 1e-5).epsilon > 1.02 * whole


def test_sampling_amplifies_the_pair_as_a_whole() -> None:
    """Two Gaussians on one lot are one, for an accountant that takes them as a pair inside of the sampling."""
    bound = QuantileBound(0.5, 0.2, 1.5)
    pair = dpa.ComposedDpEvent([dpa.GaussianDpEvent(bound.gradient_noise(2.0)), bound.noise.event])
    epsilons = []
    for event in (pair, dpa.GaussianDpEvent(2.0)):
        sampled = dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(0.1, event), 20)
        epsilons.append(rdp.RdpAccountant().compose(sampled).get_epsilon(1e-5))
    assert epsilons[0] == pytest.approx(epsilons[1], rel=1e-6)


@pytest.mark.parametrize("count_noise", [0.5, 1.0])
def test_a_count_that_costs_everything_is_refused(count_noise: float) -> None:
    with pytest.raises(AccountingError, match=r"noise on the count above 1, .*clip_count_noise"):
        QuantileBound(0.5, 0.2, count_noise).gradient_noise(2.0)


def test_the_count_gets_the_noise_that_is_accounted_for() -> None:
    bound, stream = QuantileBound(0.5, 0.2, 3.0), Stream.from_seed(1)
    shares = np.array([bound.share(7.5, 40.0, stream.child(i)) for i in range(4000)])
    noise = (shares - 0.5) * 40.0 - 7.5
    assert has_scale(noise, 3.0)
    assert not has_scale(noise / 2, 3.0)


@given(st.lists(st.floats(0, 10) | st.sampled_from([math.nan, math.inf]), min_size=1, max_size=20), st.floats(0.1, 9))
def test_one_record_moves_the_count_by_a_half(norms: list[float], bound: float) -> None:
    squares = {"a": torch.tensor(norms).square()}
    sides = Clip(bound).balance(squares)
    assert set(sides.tolist()) <= {0.5, -0.5}
    norm = squares["a"].sqrt()
    assert torch.equal(sides > 0, torch.isfinite(norm) & (norm <= bound))


@pytest.mark.parametrize(("quantile", "start"), [(0.5, 100.0), (0.9, 0.01), (0.2, 1.0)])
def test_the_bound_goes_to_the_quantile_and_stays(quantile: float, start: float) -> None:
    rng = np.random.default_rng(0)
    bound, norm, lot, stream = QuantileBound(quantile, 0.2, 20.0), start, 400, Stream.from_seed(2)
    trace = []
    for step in range(300):
        norms = rng.lognormal(0, 1, rng.poisson(lot))
        balance = float((norms <= norm).sum()) - len(norms) / 2
        norm = bound.following(norm, start, bound.share(balance, lot, stream.child(step)))
        trace.append(norm)
    wanted = float(np.quantile(rng.lognormal(0, 1, 100_000), quantile))
    assert np.exp(np.log(trace[200:]).mean()) == pytest.approx(wanted, rel=0.05)
    assert max(trace[200:]) / min(trace[200:]) < 1.7


def test_the_bound_stays_a_number() -> None:
    """All gradients zero for ever, or none finite: the bound stops at a public limit."""
    bound = QuantileBound(0.5, 0.2, 1.0)
    for share, limit in ((1.0, 2.0**-20), (0.0, 2.0**20)):
        norm = 3.0
        for _ in range(1000):
            norm = bound.following(norm, 3.0, share)
        assert norm == pytest.approx(3.0 * limit)
