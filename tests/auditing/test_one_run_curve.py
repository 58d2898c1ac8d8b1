"""One run against a whole trade-off curve: the theorem on mechanisms whose probabilities are known exactly."""

from __future__ import annotations

import math
from functools import cache

import dp_accounting as dpa
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from airlock.accounting import Claim, TradeOff, compute_epsilon
from airlock.auditing import judge_one_run, one_run_audit
from airlock.auditing.bounds import Floats
from airlock.auditing.one_run_audit import Coins
from airlock.auditing.one_run_curve import (
    MOST,
    CurveLook,
    divided_by,
    exceeds,
    fewest_correct,
    guesses_of,
    look_at_curve,
    p_value,
)
from airlock.cli.court import one_run_in_words
from airlock.mechanisms import Stream
from airlock.methods import Canaries
from airlock.methods.case import LessNoise, less_noise

NOISE = 3.7311  # for (1, 1e-5)
RUNS, ALLOWED = 400, 20


@cache
def gaussian(noise: float = NOISE) -> TradeOff:
    return TradeOff.of_event(dpa.GaussianDpEvent(noise), 2e-3)


def family(noise: float = NOISE) -> LessNoise:
    found = less_noise(dpa.GaussianDpEvent(noise), 1e-5)
    assert found is not None
    return found


def levels(noise: float, count: int = 400) -> tuple[Floats, Floats]:
    """Gaussian noise as answers to a coin that are right with a probability q that everybody sees: the law of q.

    Of an output with privacy loss ±l the coin's posterior is q = 1/(1 + e^-l); these are the probabilities of l, put
    together in cells of equal probability at their mean q, which tells no more.
    """
    x = np.linspace(-9, 9, 400_001) + 0.5 / noise
    weight = np.exp(-((x - 1 / noise) ** 2) / 2) + np.exp(-(x**2) / 2)
    q = 1 / (1 + np.exp(-np.abs(x / noise - 0.5 / noise**2)))
    order = np.argsort(q)
    q, weight = q[order], weight[order] / weight.sum()
    cell = np.minimum((np.cumsum(weight) * count).astype(int), count - 1)
    mass = np.bincount(cell, weight, count)
    return np.bincount(cell, weight * q, count) / mass, mass


def most_surprising(noise: float, guesses: int, correct: int) -> float:
    """P[W ≥ v] of the worst mechanism tried whose curve is that of this noise: all canaries share what is seen of q.

    Either as it is, or with everything above a level put together: then in that share of the runs all guesses are
    right with the mean probability.
    """
    q, mass = levels(noise)
    found = float((mass * binom.sf(correct - 1, guesses, q)).sum())
    for start in range(0, len(q), 5):
        top = float((mass[start:] * q[start:]).sum() / mass[start:].sum())
        low = float((mass[:start] * q[:start]).sum() / max(mass[:start].sum(), 1e-300))
        both = mass[start:].sum() * binom.sf(correct - 1, guesses, top)
        found = max(found, float(both + mass[:start].sum() * binom.sf(correct - 1, guesses, low)))
    return found


@pytest.mark.parametrize(("noise", "canaries"), [(NOISE, 100), (NOISE, 1000), (1.0, 100), (0.5, 40)])
def test_no_mechanism_with_the_curve_exceeds_the_bound(noise: float, canaries: int) -> None:
    """Exactly, for mechanisms whose canaries share their luck; and some come close to it."""
    closest = 0.0
    for correct in range(canaries // 2, canaries + 1, max(1, canaries // 25)):
        bound = p_value(gaussian(noise), canaries, canaries, correct)
        worst = most_surprising(noise, canaries, correct)
        assert worst <= bound * (1 + 1e-6) + 1e-12
        closest = max(closest, worst / bound if bound < 0.5 else 0.0)
    assert closest > 0.4


def test_the_means_of_the_curve_are_reached() -> None:
    """With every canary guessed about, no mechanism has more right guesses on average than the curve's fixed point."""
    q, mass = levels(NOISE)
    assert float((q * mass).sum()) == pytest.approx(ndtr(0.5 / NOISE), abs=1e-6)


@given(st.floats(0.0, 3.0), st.integers(2, 300), st.integers(0, 300))
def test_of_pure_privacy_it_is_the_binomial_tail_within_a_guess(epsilon: float, guesses: int, correct: int) -> None:
    correct = min(correct, guesses)
    bound, q = p_value(TradeOff.of_point(epsilon, 0.0), guesses, guesses, correct), 1 / (1 + math.exp(-epsilon))
    assert bound >= binom.sf(correct - 1, guesses, q) * (1 - 1e-9)
    if binom.sf(correct - 1, guesses, q) < 0.05:
        assert bound <= binom.sf(correct - 2, guesses, q) * (1 + 1e-9)


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-3), (0.5, 1e-2), (0.0, 0.05)])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_leak_with_probability_delta_is_within_the_bound(epsilon: float, delta: float, at_once: bool) -> None:
    """All coins told at once with probability δ, or each by its own: P[W ≥ v] is known."""
    q, guesses, curve = 1 / (1 + math.exp(-epsilon)), 200, TradeOff.of_point(epsilon, delta)
    for correct in range(90, 201, 10):
        tail = binom.sf(correct - 1, guesses, q)
        real = delta + (1 - delta) * tail if at_once else binom.sf(correct - 1, guesses, delta + (1 - delta) * q)
        assert real <= p_value(curve, guesses, guesses, correct) * (1 + 1e-9)


@given(st.floats(0.3, 4.0), st.integers(1, 60), st.integers(0, 60), st.floats(0.001, 0.3))
def test_more_right_guesses_and_more_noise_reject_more(noise: float, guesses: int, v: int, chance: float) -> None:
    v = min(v, guesses)
    curve = gaussian(round(noise, 1))
    if exceeds(curve, 100, guesses, v, chance):
        assert v == guesses or exceeds(curve, 100, guesses, v + 1, chance)
        assert exceeds(gaussian(round(noise, 1) + 0.5), 100, guesses, v, chance)
        assert exceeds(curve, 100, guesses, v, min(1.0, 1.5 * chance))
    fewest = fewest_correct(curve, 100, guesses, chance)
    assert exceeds(curve, 100, guesses, v, chance) == (v >= fewest)


def test_a_gaussians_curve_is_the_known_one() -> None:
    x = np.linspace(1e-6, 1 - 1e-6, 1001)
    for noise in (0.5, 1.0, NOISE):
        found = np.array([gaussian(noise).most_true(at) for at in x])
        assert (found >= ndtr(ndtri(x) + 1 / noise) - 1e-12).all()
        assert np.abs(found - ndtr(ndtri(x) + 1 / noise)).max() < 1e-6
        back = np.array([gaussian(noise).least_false(at) for at in found])
        assert np.abs(back - x).max() < 1e-9


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_a_sampled_gaussians_curve_covers_both_directions(rate: float) -> None:
    """Any two tests, one for each direction, have a mean power of at most F at their mean error."""
    event = dpa.PoissonSampledDpEvent(rate, dpa.GaussianDpEvent(1.0))
    curve, at = TradeOff.of_event(event, 1e-3), np.linspace(-6, 7, 300)
    without, with_it = ndtr(-at), (1 - rate) * ndtr(-at) + rate * ndtr(1 - at)
    mean_error = (without[:, None] + (1 - with_it)[None, :]) / 2
    mean_power = (with_it[:, None] + (1 - without)[None, :]) / 2
    found = np.interp(mean_error, curve.false, curve.true)
    assert (found >= mean_power - 1e-9).all()
    assert (found - mean_power).min() < 1e-6  # and it is not too large


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (1.0, 0.01), (3.0, 1e-5)])
def test_the_curve_of_a_point_is_its_two_lines(epsilon: float, delta: float) -> None:
    curve = TradeOff.of_point(epsilon, delta)
    for x in np.linspace(0, 1, 101):
        lines = min(1.0, delta + math.exp(epsilon) * x, 1 - math.exp(-epsilon) * (1 - delta - x))
        assert curve.most_true(x) == pytest.approx(lines, abs=1e-12)


def noisy(divisor: float, count: int, seed: int, noise: float = NOISE) -> tuple[Floats, Coins]:
    rng = np.random.default_rng((21, seed))
    coins = rng.random(count) < 0.5
    return coins + rng.normal(0, noise / divisor, count), coins


@pytest.mark.parametrize("divisor", [1.0, 2.0])
def test_true_noise_is_rarely_said_to_be_less(divisor: float) -> None:
    """Coverage of the lower bound on what the noise is divided by: it exceeds the truth where the true curve falls."""
    curve, guesses = gaussian(NOISE / divisor), guesses_of(1000)
    fewest, wrong = fewest_correct(curve, 1000, guesses, 0.05), 0
    for seed in range(RUNS):
        scores, coins = noisy(divisor, 1000, seed)
        wrong += one_run_audit.hits(scores, coins, guesses) >= fewest
    assert wrong <= ALLOWED
    just = CurveLook(guesses, fewest - 1, 0.05, exceeds(gaussian(), 1000, guesses, fewest - 1, 0.05))
    assert divided_by(family(), 1000, just) <= divisor * 1.001


def test_runs_that_share_their_luck_are_rarely_refuted() -> None:
    """Coverage where it is hardest: in 5% of the runs all answers are as good as the curve allows."""
    rng, (q, mass) = np.random.default_rng(22), levels(NOISE)
    guesses = fewest = 500
    fewest = fewest_correct(gaussian(), guesses, guesses, 0.05)
    start = int(0.96 * len(q))
    top = float((mass[start:] * q[start:]).sum() / mass[start:].sum())
    low = float((mass[:start] * q[:start]).sum() / mass[:start].sum())
    wrong = sum(rng.binomial(guesses, top if rng.random() < 0.04 else low) >= fewest for _ in range(RUNS))
    assert wrong <= ALLOWED
    assert 0.002 < 0.04 * binom.sf(fewest - 1, guesses, top) <= 0.05  # it does happen
    independent = int(binom.isf(0.05, guesses, ndtr(0.5 / NOISE))) + 1  # right if canaries shared nothing
    assert 0.04 * binom.sf(independent - 1, guesses, top) + 0.96 * binom.sf(independent - 1, guesses, low) > 0.06


def test_it_is_tighter_than_one_point_on_gaussian_noise() -> None:
    """With as many right guesses as are expected, at the error that the court gives either."""
    for divisor, count in ((2.0, 2000), (4.0, 1000)):
        chances = family(NOISE).at(divisor).chances
        guesses = guesses_of(count)
        right = int(guesses * one_run_audit._accuracy(guesses / count, *chances))
        look = CurveLook(guesses, right, 0.025, True)
        told = family().at(divided_by(family(), count, look)).epsilon
        points = [
            one_run_audit.lower_bound(count, r, int(r * share), 1e-5, 1 - 0.05 / 3)
            for r in one_run_audit.numbers(count)
            for share in [one_run_audit._accuracy(r / count, *chances)]
        ]
        true = family().at(divisor).epsilon
        assert max(points) < told < true
        assert told > 0.45 * true
        assert told > 1.4 * max(points)


def canaries_with(divisor: float, count: int, known: bool = True) -> Canaries:
    def run(coins: Coins, stream: Stream) -> Floats:
        return coins + np.random.default_rng(stream.key_stream(8).tolist()).normal(0, NOISE / divisor, len(coins))

    return Canaries(Claim(1.0, 1e-5, "a theorem"), count, "coins", "their sum", run, family() if known else None)


def test_the_court_catches_half_of_the_noise_in_one_run() -> None:
    found = [judge_one_run(canaries_with(2.0, 4000), Stream.from_seed(seed)) for seed in range(12)]
    assert sum(verdict.refuted for verdict in found) >= 10
    verdict = next(one for one in found if one.refuted)
    assert verdict.on_curve is not None
    assert verdict.on_curve.refuted
    assert verdict.epsilon_lower_bound < 1.0  # the point alone still stands
    assert 1.0 < float(verdict.noise_divided_by or 0) < 2.0
    assert (
        1.0 < float(verdict.epsilon_of_less_noise or 0) < compute_epsilon(dpa.GaussianDpEvent(NOISE / 2), 1e-5).epsilon
    )
    assert verdict.to_dict()["curve"]["noise_divided_by_at_least"] == verdict.noise_divided_by
    assert float(verdict.less_noise or 0) < 2.0
    words = one_run_in_words("weights/some", verdict)
    assert "by a proof that fails, with 95% confidence" in words.splitlines()[0]
    assert f"at most {1 / float(verdict.noise_divided_by or 0):.2f} times as claimed" in words
    assert not any(judge_one_run(canaries_with(1.0, 4000), Stream.from_seed(seed)).refuted for seed in range(12))


def test_where_the_noise_is_not_known_there_is_no_curve() -> None:
    verdict = judge_one_run(canaries_with(1.0, 100, known=False), Stream.from_seed(0))
    assert verdict.on_curve is verdict.noise_divided_by is verdict.epsilon_of_less_noise is None
    assert verdict.to_dict()["curve"] is None
    bounded = less_noise(dpa.ZCDpEvent(0.1), 1e-5)
    assert bounded is not None
    assert look_at_curve(bounded, 100, 15, 0.05) is None


def test_odd_numbers_of_guesses_say_nothing_false() -> None:
    assert not exceeds(gaussian(), 100, 10, 0, 0.05)
    assert fewest_correct(gaussian(), 100, 1, 0.05) == 2  # one guess cannot reject it
    assert p_value(gaussian(), 100, 10, 0) == 1.0
    nothing = CurveLook(15, 0, 0.025, False)
    assert divided_by(family(), 100, nothing) == 0.0
    everything = divided_by(family(), 1000, CurveLook(150, 150, 0.025, True))
    assert 3 < everything <= MOST
