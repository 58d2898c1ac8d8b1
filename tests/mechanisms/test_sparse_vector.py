"""The sparse vector technique: its exact probabilities keep its ε, zeros do not pass, and half the noise is noticed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from airlock.accounting import pure
from airlock.mechanisms import AboveThreshold, GridNoise, Stream

Floats = NDArray[np.float64]


def masses(noise: GridNoise, coarse: int) -> tuple[Floats, Floats]:
    """Whole steps of 1/coarse and their chances, near enough: the grid is a million times finer."""
    scale = noise.scale * noise.grid * coarse
    y = np.arange(-math.ceil(40 * scale), math.ceil(40 * scale) + 1)
    mass = np.exp(-np.abs(y) / scale)
    return y / coarse, mass / mass.sum()


def yeses_then_no(session: AboveThreshold, values: list[int], coarse: int = 4) -> Floats:
    """The chance of 0, 1, … yeses before the first no, and of yeses alone."""
    levels, mass = masses(session._once, coarse)
    noise, each = masses(session._each, coarse)
    above = np.cumsum(each[::-1])[::-1]
    chances, going = [], mass.copy()
    for value in values:
        need = np.searchsorted(noise, session.threshold + levels - value - 1e-9)
        yes = np.append(above, 0.0)[np.minimum(need, len(noise))]
        chances.append(float((going * (1 - yes)).sum()))
        going = going * yes
    return np.array([*chances, float(going.sum())])


@pytest.mark.parametrize("offset", [-3, *(pytest.param(offset, marks=pytest.mark.long) for offset in (0, 4))])
def test_sessions_end_as_often_as_they_should_and_half_the_noise_is_noticed(offset: int) -> None:
    session, values = AboveThreshold(50, 0.4, 0.6), np.full(6, 50 + offset)
    counts = np.zeros(7)
    for i in range(3000):
        own = Stream.from_seed(i)
        counts[session.passed(session.start(own.child("level")), values, own.child("values"))] += 1

    def fits(other: AboveThreshold) -> bool:
        return bool(stats.chisquare(counts, 3000 * yeses_then_no(other, list(values), 16)).pvalue > 1e-4)

    assert fits(session)
    assert not fits(AboveThreshold(50, 0.8, 1.2)) or offset == 0
    assert not fits(AboveThreshold(50, 40.0, 0.6))
    assert not fits(AboveThreshold(50, 0.4, 40.0))


@given(
    st.lists(st.tuples(st.integers(40, 60), st.integers(-1, 1)), min_size=1, max_size=12),
    st.floats(0.1, 1.5),
    st.floats(0.1, 1.5),
)
@settings(max_examples=40, deadline=None)
def test_every_end_keeps_epsilon_whatever_the_numbers_and_their_moves(
    moves: list[tuple[int, int]], first: float, second: float
) -> None:
    session = AboveThreshold(50, first, second)
    one, other = (yeses_then_no(session, values) for values in ([v for v, _ in moves], [v + d for v, d in moves]))
    seen = (one > 1e-12) & (other > 1e-12)
    losses = np.abs(np.log(one[seen]) - np.log(other[seen]))
    assert losses.max() <= (first + second) * (1 + 1e-6)


def test_epsilon_is_needed_in_the_worst_case() -> None:
    """Many numbers that move one way and one that moves the other: more than four fifths of ε are really lost."""
    session = AboveThreshold(50, 0.4, 0.6)
    one = yeses_then_no(session, [*([46] * 60), 40])[-2]
    other = yeses_then_no(session, [*([47] * 60), 39])[-2]
    assert 0.8 < math.log(other / one) <= 1.0


def test_zeros_do_not_pass_more_often_than_stated() -> None:
    for probability in (0.3, 0.01):
        session = AboveThreshold.above_zero(1.0, 3, 20, probability)
        alone = 1 - yeses_then_no(session, [0] * 20)[0]
        some = 1 - sum(self_no(session, 20))
        assert 3 * max(alone, some) <= probability
        half = AboveThreshold(session.threshold // 2, session.first, session.second)
        assert 3 * (1 - sum(self_no(half, 20))) > probability
    assert AboveThreshold.above_zero(1.0, 3, 20, 1e-6).threshold > 60


def self_no(session: AboveThreshold, numbers: int) -> list[float]:
    """The chance that all of so many zeros get a no, had the session gone on."""
    levels, mass = masses(session._once, 4)
    noise, each = masses(session._each, 4)
    above = np.append(np.cumsum(each[::-1])[::-1], 0.0)
    yes = above[np.minimum(np.searchsorted(noise, session.threshold + levels - 1e-9), len(noise))]
    return [float((mass * (1 - yes) ** numbers).sum())]


def test_the_event_is_pure_and_tiny_budgets_are_refused() -> None:
    assert AboveThreshold(5, 0.25, 0.5).event == pure(0.75)
    assert AboveThreshold.above_zero(0.7, 5, 100, 1e-6).event == pure(0.7)
    with pytest.raises(ValueError, match="too small"):
        AboveThreshold(5, 1e-8, 1.0)
