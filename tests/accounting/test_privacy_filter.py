"""The filter's costs and its cap, against dp-accounting; and adversaries who choose by what they have seen."""

from __future__ import annotations

import math
from fractions import Fraction

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting import rdp
from dp_accounting.dp_event import DiscreteLaplaceDpEvent
from hypothesis import given
from hypothesis import strategies as st

from airlock.accounting import FailureDpEvent, PrivacyFilter, compute_epsilon, pure
from airlock.accounting.privacy_filter import UNIT, _cap, best_order, divergence
from airlock.errors import AccountingError, ConfigError

TEN = PrivacyFilter.make(10.0, 1e-5)
GAUSSIAN = st.builds(dpa.GaussianDpEvent, st.floats(0.5, 50))
EVENTS = st.one_of(
    GAUSSIAN,
    st.builds(dpa.LaplaceDpEvent, st.floats(0.5, 50)),
    st.builds(dpa.ZCDpEvent, st.floats(1e-4, 2.0), st.just(0.0)),
    st.builds(dpa.PoissonSampledDpEvent, st.floats(0.001, 0.5), GAUSSIAN),
    st.builds(dpa.SelfComposedDpEvent, GAUSSIAN, st.integers(1, 20)),
)


def composed(events: list[dpa.DpEvent], order: int) -> rdp.RdpAccountant:
    return rdp.RdpAccountant([order]).compose(dpa.ComposedDpEvent(events))


def cost_is_never_below_the_divergence() -> None:
    """In exact arithmetic, of a cost that is a hair above a whole number of units."""
    for noise in (0.7, 1.0, 3.3, 20.0, 1000.0):
        exact = Fraction(TEN.order) / (2 * Fraction(noise) ** 2)
        assert TEN.cost([dpa.GaussianDpEvent(noise)]) * UNIT > exact


def test_the_cost_is_rounded_up() -> None:
    cost_is_never_below_the_divergence()
    assert TEN.cost([dpa.NoOpDpEvent()]) == 1


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-5), (3.0, 1e-8), (10.0, 1e-5), (50.0, 1e-5)])
def test_the_cap_is_what_dp_accounting_converts_to_the_epsilon(epsilon: float, delta: float) -> None:
    made = PrivacyFilter.make(epsilon, delta)
    spent, _ = rdp.rdp_privacy_accountant.compute_epsilon([made.order], [made.cap], delta)
    assert spent == pytest.approx(epsilon, rel=1e-9)
    assert made.units * UNIT < made.cap
    gaussian = [_cap(epsilon, delta, order) / order for order in near(made.order)]
    assert max(gaussian) == made.cap / made.order


def near(order: int) -> list[int]:
    return [one for one in (order - 1, order, order + 1) if one >= 2]


@given(st.lists(EVENTS, min_size=1, max_size=6), st.sampled_from([2, 4, 16, 128]))
def test_the_divergence_is_dp_accountings(events: list[dpa.DpEvent], order: int) -> None:
    theirs = float(composed(events, order)._rdp[0])
    assert divergence(dpa.ComposedDpEvent(events), order) == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize("epsilon", [1e-3, 0.3, 2.0, 40.0])
@pytest.mark.parametrize("order", [2, 4, 50])
def test_pure_privacy_costs_the_divergence_of_randomised_response(epsilon: float, order: int) -> None:
    p = np.exp(np.longdouble(epsilon)) / (1 + np.exp(np.longdouble(epsilon)))
    q = 1 / (1 + np.exp(np.longdouble(epsilon)))
    exact = np.log(p**order * q ** (1 - order) + q**order * p ** (1 - order)) / (order - 1)
    assert divergence(pure(epsilon), order) == pytest.approx(float(exact), rel=1e-6)
    assert divergence(pure(epsilon), order) <= epsilon + 1e-12


def test_a_discrete_laplace_of_any_sensitivity_costs_at_least_its_own_divergence() -> None:
    for parameter, sensitivity, order in ((0.5, 3, 4), (0.1, 10, 8)):
        k = np.arange(-400, 401)
        mass = np.exp(-parameter * np.abs(k)) * math.tanh(parameter / 2)
        shifted = np.exp(-parameter * np.abs(k - sensitivity)) * math.tanh(parameter / 2)
        exact = math.log(np.sum(mass**order * shifted ** (1 - order))) / (order - 1)
        assert divergence(DiscreteLaplaceDpEvent(parameter, sensitivity), order) >= exact


@pytest.mark.parametrize(
    "event",
    [
        dpa.NonPrivateDpEvent(),
        FailureDpEvent(1e-9),
        dpa.ComposedDpEvent([dpa.GaussianDpEvent(1.0), FailureDpEvent(1e-9)]),
        dpa.PoissonSampledDpEvent(0.1, dpa.LaplaceDpEvent(1.0)),
        dpa.GaussianDpEvent(0.0),
    ],
)
def test_what_has_no_divergence_is_refused(event: dpa.DpEvent) -> None:
    with pytest.raises(AccountingError, match="Rényi divergence"):
        TEN.cost([event])


@pytest.mark.parametrize(("epsilon", "delta", "order"), [(0.0, 1e-5, 4), (1.0, 0.0, 4), (1.0, 1.0, 4), (1.0, 1e-5, 1),
                                                         (1.0, 1e-5, 2), (0.1, 1e-9, 20)])  # fmt: skip
def test_a_budget_that_leaves_nothing_is_refused(epsilon: float, delta: float, order: int) -> None:
    with pytest.raises(ConfigError):
        PrivacyFilter(epsilon, delta, order)


def test_parts_cost_the_largest_and_not_the_sum() -> None:
    small, large = dpa.GaussianDpEvent(8.0), dpa.GaussianDpEvent(2.0)
    assert TEN.cost([small, large, dpa.NoOpDpEvent()]) == TEN.cost([large])


@given(st.lists(EVENTS, min_size=1, max_size=40))
def test_whatever_the_filter_accepts_composes_to_at_most_its_epsilon(asked: list[dpa.DpEvent]) -> None:
    """Those that fit, in the order in which they are asked for; what is refused is not run, and the next is tried."""
    spent, run = 0, []
    for event in asked:
        cost = TEN.cost([event])
        if spent + cost <= TEN.units:
            spent, run = spent + cost, [*run, event]
    if run:
        assert composed(run, TEN.order).get_epsilon(TEN.delta) <= TEN.epsilon


def test_an_adversary_who_chooses_by_what_it_saw_stays_within_the_delta() -> None:
    """Randomised response about one bit; the next ε follows from the last answer. The exact δ is a sum over paths.

    Paths of the same cost, loss and last answer go on alike, so that they are counted together.
    """
    made = PrivacyFilter.make(2.0, 1e-3)
    costs = {tenths: made.cost([pure(tenths / 10)]) for tenths in (1, 2)}
    paths, ended = {(0, 0, True): 1.0}, 0.0  # cost, loss in tenths, last answer: probability with the person
    while paths:
        spent, loss, won = min(paths)
        p = paths.pop((spent, loss, won))
        tenths = 2 if won else 1
        if spent + costs[tenths] > made.units:
            ended += p * max(0.0, 1 - math.exp(made.epsilon - loss / 10))
            continue
        up = 1 / (1 + math.exp(-tenths / 10))
        for after, chance in (((spent + costs[tenths], loss + tenths, True), up),
                              ((spent + costs[tenths], loss - tenths, False), 1 - up)):  # fmt: skip
            paths[after] = paths.get(after, 0.0) + p * chance
    assert 0 < ended <= made.delta


def test_the_bound_so_far_holds_at_all_times_at_once() -> None:
    """Of 20,000 adversaries who stop at their worst moment, no more than δ see a loss above what is said so far."""
    made = PrivacyFilter.make(4.0, 0.05)
    chance = np.random.default_rng(0)
    loss, spent = np.zeros(20_000), np.zeros(20_000, np.int64)
    over = np.zeros(20_000, bool)
    loud, quiet = (made.cost([dpa.GaussianDpEvent(noise)]) for noise in (1.5, 6.0))
    for _ in range(60):
        noise = np.where(loss > 1.0, 1.5, 6.0)  # the adversary presses on where it is winning
        cost = np.where(loss > 1.0, loud, quiet)
        fits = spent + cost <= made.units
        mean = 1 / noise
        loss += fits * (mean * (chance.standard_normal(20_000) + mean) - mean**2 / 2)
        spent += fits * cost
        over |= loss > made.loss_bound(0) + float(UNIT) * spent
    assert 0 < over.mean() <= made.delta


def test_what_would_still_fit_is_what_fits() -> None:
    left = 250_000
    fits = TEN.gaussian_epsilon(left, 1e-5)
    noise = math.sqrt(TEN.order / (2 * float(left * UNIT)))
    assert fits == pytest.approx(compute_epsilon(dpa.GaussianDpEvent(noise), 1e-5).epsilon, rel=1e-3)
    assert TEN.cost([dpa.GaussianDpEvent(math.sqrt(TEN.order / (2 * float((left - 2) * UNIT))))]) <= left
    assert TEN.gaussian_epsilon(0, 1e-5) == 0.0


def test_the_scale_for_people_adds_up() -> None:
    assert TEN.share(TEN.units) == 10.0
    assert TEN.share(300) + TEN.share(500) == pytest.approx(TEN.share(800))
    assert TEN.so_far(TEN.units) == 10.0 < TEN.loss_bound(TEN.units)
    assert best_order(10.0, 1e-5) == 3
