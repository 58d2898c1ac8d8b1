"""Intervals for proportions of noisy counts: the laws they rest on, and how often they hold."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from airlock.auditing.bounds import proportion_interval
from airlock.auditing.noisy_proportion import CountNoise, _binomial, _Law, noisy_interval

Interval = Callable[[int, int, float], tuple[float, float]]


@lru_cache(maxsize=100_000)
def interval(hits: int, misses: int, epsilon: float) -> tuple[float, float]:
    cell = CountNoise(epsilon, 1)
    return noisy_interval(hits, hits + misses, ((cell, 1.0, 1.0), (cell, 0.0, 1.0)), CountNoise(epsilon, 2))


def law(epsilon: float, cells: int, reach: int) -> NDArray[np.float64]:
    """P(x) from −reach to reach, by adding cells one by one."""
    one = math.tanh(epsilon / 2) * np.exp(-epsilon * np.abs(np.arange(-reach, reach + 1)))
    return one if cells == 1 else np.convolve(one, one, "same")


@pytest.mark.parametrize("cells", [1, 2])
@pytest.mark.parametrize("epsilon", [0.1, 0.6, 4.0])
def test_the_law_of_the_noise(epsilon: float, cells: int) -> None:
    reach = math.ceil(60 / epsilon)
    places = np.arange(-reach, reach + 1)
    chances, noise = law(epsilon, cells, reach), CountNoise(epsilon, cells)
    for value in (-5.0, -1.0, 0.0, 0.5, 1.0, 7.0):
        assert noise.at_least(np.array([value]))[0] == pytest.approx(chances[places >= value].sum(), abs=1e-9)
    assert noise.variance == pytest.approx(chances @ places**2, rel=1e-6)
    far = noise.reach(0.01)
    assert chances[np.abs(places) > far].sum() <= 0.01 < chances[np.abs(places) > far - 1].sum()


@settings(max_examples=40, deadline=None)
@given(st.floats(0.05, 5.0), st.floats(0.05, 5.0), st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.floats(-20, 20))
def test_the_table_bounds_the_law_of_both_parts_and_not_by_much(
    first: float, second: float, one: float, two: float, place: float
) -> None:
    parts = ((CountNoise(first, 1), one), (CountNoise(second, 2), two))
    found = _Law(parts)
    noises = np.random.default_rng(1)
    draws = [
        weight * sum(noises.geometric(-math.expm1(-noise.epsilon), (2, noise.cells, 20_000)) * [[[1]], [[-1]]]).sum(0)
        for noise, weight in parts
    ]
    bound = float(found.at_least(np.array([place]))[0])
    seen, error = float((draws[0] + draws[1] >= place).mean()), 5 * 0.5 / math.sqrt(20_000)
    assert bound >= seen - error
    sooner = place - 2.5 * found.step - one * max(1.0, 0.05 / first)  # the blocks that it is rounded by
    assert bound <= float((draws[0] + draws[1] >= sooner).mean()) + error


def test_without_noise_it_is_clopper_and_pearsons() -> None:
    for hits, total in ((0, 5), (3, 8), (17, 20), (298, 350), (1500, 1500)):
        low, high = noisy_interval(hits, total, (), CountNoise(60.0, 2))
        wanted = proportion_interval(hits, total, 0.952)
        assert (low, high) == pytest.approx(wanted, abs=3e-6)


def test_chances_of_counts() -> None:
    assert _binomial(np.array([[-1.0, 0.0, 2.0, 3.0]]), np.array([[3]]), 0.25)[0].tolist() == pytest.approx(
        [0, 0.75**3, 3 * 0.25**2 * 0.75, 0.25**3]
    )
    assert _binomial(np.array([[0.0, 3.0]]), np.array([[3]]), 1.0)[0].tolist() == [0.0, 1.0]
    assert _binomial(np.array([[0.0, 3.0]]), np.array([[3]]), 0.0)[0].tolist() == [1.0, 0.0]


def coverage(how: Interval, size: int, p: float, epsilon: float, runs: int = 200) -> float:
    chance = np.random.default_rng([size, int(1000 * p), int(1000 * epsilon)])
    hits = chance.binomial(size, p, runs)
    noise = np.diff(chance.geometric(-math.expm1(-epsilon), (2, 2, runs)), axis=0)[0]
    found = [how(int(a), int(b), epsilon) for a, b in zip(hits + noise[0], size - hits + noise[1], strict=True)]
    return float(np.mean([low <= p <= high for low, high in found]))


CASES = [
    (20, 0.5, 0.6), (20, 0.85, 4.8), (100, 0.85, 0.6), (100, 0.98, 4.8),
    (350, 0.5, 0.6), (350, 0.85, 0.6), (350, 0.85, 0.1), (2000, 0.98, 0.6),
]  # fmt: skip


@pytest.mark.parametrize(("size", "p", "epsilon"), CASES)
def test_intervals_hold_at_every_size(size: int, p: float, epsilon: float) -> None:
    assert coverage(interval, size, p, epsilon) >= 0.94


def forgetful(hits: int, misses: int, epsilon: float) -> tuple[float, float]:
    """A fault: the noise is forgotten."""
    hits, misses = max(0, hits), max(0, misses)
    return proportion_interval(hits, hits + misses) if hits + misses else (0.0, 1.0)


def halved(hits: int, misses: int, epsilon: float) -> tuple[float, float]:
    """A fault: the noise is taken for half as large."""
    return interval(hits, misses, 2 * epsilon)


def test_an_interval_that_forgets_noise_is_noticed() -> None:
    assert coverage(forgetful, 350, 0.85, 0.1) < 0.8
    assert coverage(halved, 350, 0.85, 0.1) < 0.94


def test_noise_costs_little_where_it_is_small() -> None:
    """At ε = 1 (0.6 of it for this table) and 350 records the interval is hardly wider than without noise."""
    low, high = interval(298, 52, 0.6)
    plain = proportion_interval(298, 350)
    assert high - low < 1.05 * (plain[1] - plain[0])
    assert low <= 298 / 350 <= high


@settings(max_examples=40, deadline=None)
@given(st.integers(-200, 2000), st.integers(-200, 2000), st.sampled_from([0.002, 0.06, 0.6, 6.0]))
def test_any_counts_give_an_interval(hits: int, misses: int, epsilon: float) -> None:
    low, high = interval(hits, misses, epsilon)
    assert 0.0 <= low <= high <= 1.0
    mirrored = interval(misses, hits, epsilon)
    assert (1 - mirrored[1], 1 - mirrored[0]) == pytest.approx((low, high), abs=1e-5)
