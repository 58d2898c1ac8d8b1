"""The exponential mechanism: exactly the stated probabilities, its ε kept by all of them, half the noise noticed."""

from __future__ import annotations

import math

import dp_accounting as dpa
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from scipy.special import logsumexp

from airlock.accounting import pure
from airlock.mechanisms import ExponentialMechanism, Stream

Floats = NDArray[np.float64]


def chances(choice: ExponentialMechanism, scores: Floats) -> Floats:
    """The exact probabilities on the grid."""
    return np.asarray(np.exp(log_chances(choice, scores)))


def log_chances(choice: ExponentialMechanism, scores: Floats) -> Floats:
    weights = np.rint(scores / choice.grid) / choice.scale
    return np.asarray(weights - logsumexp(weights))


def renyi(choice: ExponentialMechanism, scores: Floats, move: Floats, alpha: float) -> float:
    """The divergence of order α, in logarithms: single powers of a rare option's probability overflow."""
    p, q = log_chances(choice, scores), log_chances(choice, scores + move)
    return float(logsumexp(alpha * p + (1 - alpha) * q)) / (alpha - 1)


@pytest.mark.parametrize(
    "scores", [[0.0, 0.0], [0.3, -0.2, 1.1], [-40.0, 0.0, 0.5, 0.5, 2.0, -3.0, 0.1, 0.0, 1.0, 1.5]]
)
def test_options_have_their_probabilities_and_half_the_noise_is_noticed(scores: list[float]) -> None:
    choice, count = ExponentialMechanism(1.0, 0.8, True), 40_000
    found = choice.pick(np.tile(scores, (count, 1)), Stream.from_seed(len(scores)))

    def fits(expected: Floats) -> bool:
        often = expected * count >= 10
        counts = np.bincount(found, minlength=len(scores))
        wanted = np.append(expected[often], expected[~often].sum() + 1e-9) * count
        return bool(
            stats.chisquare(np.append(counts[often], counts[~often].sum()), wanted, sum_check=False).pvalue > 1e-4
        )

    assert fits(chances(choice, np.array(scores)))
    if len(set(scores)) > 1:
        assert not fits(chances(ExponentialMechanism(1.0, 1.6, True), np.array(scores)))


@given(st.integers(2, 12), st.floats(1e-3, 1e3), st.floats(0.01, 5), st.integers(0, 2**32))
@settings(max_examples=60)
def test_every_loss_of_a_pair_lies_in_one_interval_of_length_epsilon(
    options: int, spread: float, epsilon: float, seed: int
) -> None:
    chance, choice = np.random.default_rng(seed), ExponentialMechanism(spread, epsilon, True)
    scores, move = chance.normal(size=(2, options)) * spread
    move *= spread / (move.max() - move.min())
    losses = np.log(chances(choice, scores)) - np.log(chances(choice, scores + move))
    assert losses.max() - losses.min() <= epsilon * (1 + 1e-9)
    assert losses.max() - losses.min() >= epsilon * (1 - 1e-3)
    assert np.abs(losses).max() <= epsilon


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=8), st.floats(0.05, 4), st.floats(1.01, 50), st.integers(0, 99))
@example([3.0, -2.0], 4.0, 35.0, 0)
def test_the_concentrated_bound_holds_at_every_order(
    scores: list[float], epsilon: float, alpha: float, seed: int
) -> None:
    move = np.random.default_rng(seed).uniform(size=len(scores))
    move = (move - move.min()) / (move.max() - move.min())
    divergence = renyi(ExponentialMechanism(1.0, epsilon, True), np.array(scores), move, alpha)
    # A logarithm is off by at most 1e-14 here, and what comes of it is divided by α − 1 ≥ 0.01.
    assert divergence <= alpha * epsilon**2 / 8 + 2e-12


def test_the_concentrated_bound_is_tight_enough_to_notice_half_the_noise() -> None:
    scores, move = np.array([0.0, 0.0]), np.array([0.0, 1.0])
    for epsilon in (0.1, 1.0):
        bound = 2 * epsilon**2 / 8
        assert 0.8 * bound <= renyi(ExponentialMechanism(1.0, epsilon, True), scores, move, 2) <= bound
        assert renyi(ExponentialMechanism(1.0, 2 * epsilon, True), scores, move, 2) > bound


def test_events() -> None:
    assert ExponentialMechanism(1.0, 0.4, True).event == dpa.ZCDpEvent(0.4**2 / 8, 0.0)
    assert ExponentialMechanism(1.0, 0.4, False).event == pure(0.4)


def test_what_cannot_be_weighed_is_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        ExponentialMechanism(0.0, 1.0, True)
    with pytest.raises(ValueError, match="too small"):
        ExponentialMechanism(1.0, 1e-10, True)
    for wrong in (math.nan, math.inf, 1e300):
        with pytest.raises(ValueError, match="2\\^51"):
            ExponentialMechanism(1.0, 1.0, True).pick(np.array([[0.0, wrong]]), Stream.from_seed(0))


def test_a_stream_gives_the_same_answers_and_no_rows_give_none() -> None:
    choice, scores = ExponentialMechanism(1.0, 1.0, False), np.zeros((50, 3))
    first, second = (choice.pick(scores, Stream.from_seed(4)) for _ in range(2))
    assert np.array_equal(first, second)
    assert len(choice.pick(scores[:0], Stream.from_seed(5))) == 0
