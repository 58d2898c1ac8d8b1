"""The number of runs has its distribution, the best run wins, and the divergence of all of it is within the theorem."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting import rdp
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import logsumexp
from scipy.stats import chisquare

from airlock.accounting import pure
from airlock.accounting.renyi import RenyiAccountant
from airlock.mechanisms import RepeatAndSelect, Stream

SHAPES = [(10.0, 1.0), (3.0, 0.0), (3.0, 0.5), (4.0, 2.0), (4.0, 2.5), (1.5, 1.0)]
DRAWS, FARTHEST = 2000, 2000
Floats = NDArray[np.float64]


def draws(chosen: RepeatAndSelect, count: int = DRAWS) -> NDArray[np.int64]:
    stream = Stream.from_seed(7)
    return np.array([chosen.draw(stream.child(number)) for number in range(count)])


@pytest.mark.parametrize(("mean", "shape"), SHAPES)
def test_the_number_of_runs_has_the_stated_distribution(mean: float, shape: float) -> None:
    chosen = RepeatAndSelect(mean, shape)
    stated = chosen.probabilities(FARTHEST)
    assert stated.sum() == pytest.approx(1.0, abs=1e-9)
    assert stated @ np.arange(1, FARTHEST + 1) == pytest.approx(mean, rel=1e-6)
    seen = np.bincount(draws(chosen), minlength=FARTHEST + 1)[1 : FARTHEST + 1]
    assert seen.sum() == DRAWS
    ends = np.flatnonzero(DRAWS * stated >= 10)
    assert (np.diff(ends) == 1).all()
    last = ends[-1] + 1
    observed, expected = (np.append(side[:last], side[last:].sum()) for side in (seen, DRAWS * stated))
    assert chisquare(observed, expected * DRAWS / expected.sum()).pvalue > 1e-3


@pytest.mark.parametrize(("mean", "shape"), SHAPES)
def test_gamma_is_never_below_the_one_that_is_accounted_for(mean: float, shape: float) -> None:
    own = RepeatAndSelect(mean, shape)._parts / 2**32
    accounted = rdp.rdp_privacy_accountant._gamma_truncated_negative_binomial(shape, mean)
    assert accounted * (1 - 1e-15) <= own <= accounted * (1 + 1e-8)


@pytest.mark.parametrize(("mean", "shape"), [(1.0, 1.0), (1001.0, 1.0), (5.0, -0.1), (5.0, 11.0), (5.0, np.pi)])
def test_what_has_no_exact_sampler_is_refused(mean: float, shape: float) -> None:
    with pytest.raises(ValueError, match="a shape"):
        RepeatAndSelect(mean, shape)


def test_the_first_of_the_best_runs_wins_and_each_has_randomness_of_its_own() -> None:
    chosen, keys = RepeatAndSelect(20.0), []

    def run(number: int, stream: Stream) -> tuple[int, int]:
        keys.append(stream.take_key())
        return [1, 3, 2, 3][number % 4], number

    assert chosen.select(run, Stream.from_seed(3)) == 1
    assert len(keys) == chosen.draw(Stream.from_seed(3).child("runs")) > 4
    assert len(set(keys)) == len(keys)


def best_of(chosen: RepeatAndSelect, one: Floats) -> Floats:
    """The distribution of the largest of K draws from `one`, exactly: Σ P[K = k] (F(y)^k − F(y−)^k)."""
    counts, weights = np.arange(1, FARTHEST + 1), chosen.probabilities(FARTHEST)
    below = np.concatenate([[0.0], np.minimum(np.cumsum(one), 1.0)])
    powers = np.array([weights @ level**counts for level in below])
    return np.diff(powers)


def divergence(one: Floats, other: Floats, order: float) -> float:
    return float(logsumexp(order * np.log(one) + (1 - order) * np.log(other)) / (order - 1))


def pairs() -> list[tuple[Floats, Floats]]:
    """Randomised response where the rare answer is the best, the worst, or either; and one with more answers."""
    epsilon, found = 0.7, []
    for rare in (0.02, 0.2, 0.5):
        one, other = np.array([1 - rare, rare]), np.array([1 - rare * np.exp(-epsilon), rare * np.exp(-epsilon)])
        if np.exp(-epsilon) <= other[0] / one[0] <= np.exp(epsilon):
            found += [(one, other), (one[::-1], other[::-1])]
    steps = np.exp(-epsilon * np.abs(np.arange(-12, 14)))
    found.append((steps / steps.sum(), np.exp(-epsilon * np.abs(np.arange(-13, 13))) / steps.sum()))
    return [(one / one.sum(), other / other.sum()) for one, other in found]


@pytest.mark.parametrize(("mean", "shape"), SHAPES)
def test_the_exact_divergence_of_the_best_is_within_the_bound_of_the_theorem(mean: float, shape: float) -> None:
    chosen, orders = RepeatAndSelect(mean, shape), np.array([1.5, 2.0, 4.0, 8.0, 32.0, 256.0])
    for (p, q), order in itertools.product(pairs(), orders):
        for one, other in ((p, q), (q, p)):
            runs = float(np.abs(np.log(one / other)).max())
            bound = RenyiAccountant(orders).compose(chosen.event(pure(runs)))._rdp[list(orders).index(order)]
            assert divergence(best_of(chosen, one), best_of(chosen, other), order) <= bound


def test_a_fixed_number_of_runs_is_beyond_it() -> None:
    """That the exact divergence can exceed the bound at all: ten runs, every time, of a rare good answer."""
    chosen, epsilon = RepeatAndSelect(2.0), 0.7
    one, other = np.array([0.5, 0.5]), np.array([1 - 0.5 * np.exp(-epsilon), 0.5 * np.exp(-epsilon)])
    fixed = [np.diff(np.append(0.0, np.cumsum(side)) ** 10) for side in (one, other)]
    bound = RenyiAccountant(np.array([32.0])).compose(chosen.event(pure(epsilon)))._rdp[0]
    assert divergence(fixed[1], fixed[0], 32.0) > bound


@pytest.mark.parametrize(("mean", "shape"), [(10.0, 1.0), (30.0, 0.0), (5.0, 2.0)])
def test_a_gaussian_costs_what_dp_accounting_says(mean: float, shape: float) -> None:
    event = RepeatAndSelectDpEvent(dpa.GaussianDpEvent(3.0), mean, shape)
    assert RepeatAndSelect(mean, shape).event(dpa.GaussianDpEvent(3.0)) == event
    own, theirs = (kind().compose(event).get_epsilon(1e-6) for kind in (RenyiAccountant, rdp.RdpAccountant))
    assert own == theirs > rdp.RdpAccountant().compose(dpa.GaussianDpEvent(3.0)).get_epsilon(1e-6)


def test_a_pure_mechanism_costs_two_plus_the_shape_times_as_much() -> None:
    """The limit of large orders (Papernot and Steinke 2022, section 3.3): three times for geometric runs."""
    for shape in (0.0, 1.0, 2.0):
        order = np.array([1e7])
        cost = RenyiAccountant(order).compose(RepeatAndSelect(10.0, shape).event(pure(0.3)))._rdp[0]
        assert cost == pytest.approx((2 + shape) * 0.3, rel=1e-4)


def of_gaussian(rho: float, mean: float, shape: float, orders: Floats) -> Floats:
    """Theorem 2 for ρ-zCDP, minimised by hand: λ̂ = √(log(1/γ)/ρ), and no order costs more than a larger one.

    ρλ + (1 + η)(ρ(λ̂ − 1) + log(1/γ)/λ̂) + log(E[K])/(λ − 1), of which the last two terms in λ are smallest at
    λ − 1 = √(log(E[K])/ρ).
    """
    gamma = RepeatAndSelect(mean, shape)._parts / 2**32
    away = np.maximum(orders - 1.0, np.sqrt(np.log(mean) / rho))
    once = 2 * (1 + shape) * np.sqrt(-rho * np.log(gamma)) - shape * rho
    return np.asarray(rho * away + np.log(mean) / away + once)


@pytest.mark.parametrize("sigma", [1.0, 3.0, 10.0])
@pytest.mark.parametrize(("mean", "shape"), [(10.0, 1.0), (30.0, 0.0), (100.0, 2.0), (3.0, 0.5)])
def test_a_gaussian_costs_what_the_theorem_says_in_closed_form(sigma: float, mean: float, shape: float) -> None:
    orders = 1.0 + np.geomspace(0.05, 500.0, 4000)
    event = RepeatAndSelect(mean, shape).event(dpa.GaussianDpEvent(sigma))
    own, stated = RenyiAccountant(orders).compose(event)._rdp, of_gaussian(0.5 / sigma**2, mean, shape, orders)
    assert (own >= stated * (1 - 1e-9)).all(), "less than the theorem allows"
    np.testing.assert_allclose(own, stated, rtol=1e-3)


def at_delta(delta: float, divergence: Callable[[Floats], Floats]) -> float:
    """ε at δ, by the conversion of Canonne, Kamath and Steinke 2020, proposition 12."""
    orders = 1.0 + np.geomspace(0.05, 5000.0, 20_000)
    found = divergence(orders) + np.log1p(-1 / orders) - (np.log(delta) + np.log(orders)) / (orders - 1)
    return float(found.min())


def test_the_table_in_the_docs_follows_from_the_closed_form() -> None:
    """Each figure of docs/tune.md, without dp-accounting: what the best of so many runs costs, where one costs 1."""
    page = (Path(__file__).resolve().parents[2] / "docs/tune.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", page, re.M)
    assert [row[0] for row in rows] == ["3", "10", "30", "100"]
    rho = brentq(lambda rho: at_delta(1e-5, lambda orders: rho * orders) - 1.0, 1e-4, 1.0)
    for mean, *figures, every in ([float(cell) for cell in row] for row in rows):
        for shape, figure in enumerate(figures):
            cost = at_delta(1e-5, lambda orders, mean=mean, shape=shape: of_gaussian(rho, mean, shape, orders))
            assert figure == pytest.approx(cost, abs=0.0051), (mean, shape)
        assert every == pytest.approx(at_delta(1e-5, lambda orders, mean=mean: mean * rho * orders), abs=0.0051)
