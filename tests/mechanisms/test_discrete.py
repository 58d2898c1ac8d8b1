"""Discrete noise: exactly the stated distribution, never off the grid, and half of it is noticed."""

from __future__ import annotations

import math

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting.dp_event import DiscreteLaplaceDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from airlock.accounting import compute_epsilon
from airlock.mechanisms import GridNoise, Stream
from airlock.mechanisms.discrete import LARGEST_SCALE, Coins, Kind, sample

KINDS: tuple[Kind, ...] = ("gaussian", "laplace")


def weights(kind: Kind, scale: float, y: NDArray[np.int64]) -> NDArray[np.float64]:
    """The exact mass function on these whole numbers, which must hold almost all of it."""
    mass = np.exp(-(y**2) / (2 * scale**2)) if kind == "gaussian" else np.exp(-np.abs(y) / scale)
    return np.asarray(mass / mass.sum())


def fits(kind: Kind, scale: float, found: NDArray[np.int64]) -> bool:
    """A χ² test of the counts against the exact mass function, at 1e-4; rare values are one bin on each side."""
    y = np.arange(-60 * math.ceil(scale), 60 * math.ceil(scale) + 1)
    expected = weights(kind, scale, y) * len(found)
    common = y[expected >= 10]
    inner = np.clip(found, common[0], common[-1])
    counts = np.array([(inner == v).sum() for v in common])
    wanted = expected[expected >= 10]
    wanted[0] += expected[y < common[0]].sum()
    wanted[-1] += expected[y > common[-1]].sum()
    return bool(stats.chisquare(counts, wanted * counts.sum() / wanted.sum()).pvalue > 1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [1, 2, 7, 30])
def test_the_distribution_is_the_stated_one_and_half_the_noise_is_noticed(kind: Kind, scale: int) -> None:
    found = sample(kind, scale, 100_000, Stream.from_seed(11 + scale))
    assert fits(kind, scale, found)
    assert not fits(kind, scale / 2, found)
    assert not fits(kind, scale * 1.1, found)
    assert not fits("laplace" if kind == "gaussian" else "gaussian", scale, found)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [2**20 + 3, LARGEST_SCALE])
def test_large_scales_are_near_the_continuous_distribution_down_to_the_last_bit(kind: Kind, scale: int) -> None:
    found = sample(kind, scale, 50_000, Stream.from_seed(5))
    name = "norm" if kind == "gaussian" else "laplace"
    assert stats.kstest(found / scale, name).pvalue > 1e-4
    assert stats.kstest(found / scale / 2, name).pvalue < 1e-4
    for bit in range(8):
        assert stats.binomtest(int((found >> bit & 1).sum()), len(found)).pvalue > 1e-5


def test_uniform_numbers_are_uniform_where_words_have_to_be_drawn_again() -> None:
    """Of 2^63 + 2^62 numbers a plain remainder would hit the lower third twice as often."""
    bound = 3 * 2**61
    found = Coins(Stream.from_seed(1)).below(bound, 30_000)
    assert stats.chisquare(np.bincount((found // 2**61).astype(int), minlength=3)).pvalue > 1e-4
    assert found.min() >= 0
    assert found.max() < bound


@pytest.mark.parametrize(("a", "b"), [(0, 3), (1, 1), (1, 2), (355, 1000), (2**59, 2**61)])
def test_coins_have_their_probability(a: int, b: int) -> None:
    up = int(Coins(Stream.from_seed(a % 97)).exponential(np.full(40_000, a), b).sum())
    assert stats.binomtest(up, 40_000, math.exp(-a / b)).pvalue > 1e-4


@given(st.sampled_from(KINDS), st.floats(1e-3, 1e3), st.floats(0.05, 50), st.integers(1, 40), st.integers(0, 2**32))
@settings(max_examples=30)
def test_every_output_lies_on_the_public_grid(kind: Kind, sensitivity: float, z: float, size: int, seed: int) -> None:
    mechanism = GridNoise(kind, sensitivity, z, size)
    value = np.random.default_rng(seed).normal(size=size) * 100 * sensitivity
    steps = mechanism.add(value, Stream.from_seed(seed)) / mechanism.grid
    assert np.array_equal(steps, np.rint(steps))
    assert math.log2(mechanism.grid) == math.floor(math.log2(mechanism.grid))


@given(st.sampled_from(KINDS), st.floats(1e-3, 1e3), st.floats(0.05, 50), st.integers(1, 40), st.integers(0, 2**32))
@settings(max_examples=50)
def test_rounded_neighbours_are_within_reach_of_the_noise(
    kind: Kind, sensitivity: float, z: float, size: int, seed: int
) -> None:
    chance, mechanism = np.random.default_rng(seed), GridNoise(kind, sensitivity, z, size)
    order = 2 if kind == "gaussian" else 1
    value, shift = chance.normal(size=(2, size))
    other = value + shift * sensitivity / np.linalg.norm(shift, order) * (1 - 1e-9)
    apart = np.rint(value / mechanism.grid) - np.rint(other / mechanism.grid)
    assert np.linalg.norm(apart, order) <= mechanism.reach
    assert z * mechanism.reach <= mechanism.scale < (1 + 2**-19 * z * size) * z * sensitivity / mechanism.grid + 3


@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_have_the_same_set_of_outputs(kind: Kind) -> None:
    """On a coarse scale all of it can be seen: both neighbours reach the same grid points, with like frequencies."""
    mechanism = GridNoise(kind, 1.0, 1.0)
    values = (0.1, 0.1 + 1.0, 0.1 + mechanism.grid / 3)
    outputs = [mechanism.add(np.array([v]), Stream.from_seed(i)) for i, v in enumerate(values)]
    assert all(float(o[0] / mechanism.grid).is_integer() for o in outputs)
    noise = sample(kind, 3, 50_000, Stream.from_seed(2))
    first, second = set((0 + noise).tolist()), set((1 + noise).tolist())
    middle = set(range(-8, 9))
    assert middle <= first & second
    same = [mechanism.add(np.array([v]), Stream.from_seed(9)) for v in (0.1, 0.1 + mechanism.grid * 1e-3)]
    assert np.array_equal(*same)


@pytest.mark.parametrize("kind", KINDS)
def test_the_mechanism_adds_what_it_accounts_for(kind: Kind) -> None:
    size = 20_000
    mechanism = GridNoise(kind, 2.0, 1.5, size)
    noise = mechanism.add(np.zeros(size), Stream.from_seed(3))
    name, scale = ("norm", 3.0) if kind == "gaussian" else ("laplace", mechanism.scale * mechanism.grid)
    assert scale >= 3.0
    assert stats.kstest(noise / scale, name).pvalue > 1e-4
    assert stats.kstest(noise / scale * 2, name).pvalue < 1e-4


def test_the_gaussian_event_covers_the_exact_divergence_of_neighbours() -> None:
    """Rényi divergences of the mass function itself, and its exact δ at the ε that is stated."""
    scale, shift = 5, 3
    y = np.arange(-400, 401)
    p, q = weights("gaussian", scale, y), weights("gaussian", scale, y - shift)
    rho = shift**2 / (2 * scale**2)
    inner = (p > 1e-30) & (q > 1e-30)
    for order in (1.5, 2.0, 8.0):
        divergence = math.log((p[inner] ** order * q[inner] ** (1 - order)).sum()) / (order - 1)
        assert divergence <= rho * order * (1 + 1e-9)
        assert divergence > rho * order * 0.99
    event = GridNoise("gaussian", 1.0, scale / shift).event
    assert isinstance(event, dpa.ZCDpEvent)
    assert (event.rho, event.xi) == (pytest.approx(rho), 0.0)
    epsilon = compute_epsilon(event, 1e-4).epsilon
    assert np.maximum(p - math.exp(epsilon) * q, 0).sum() <= 1e-4


def test_a_gaussian_event_would_not_cover_the_discrete_curve() -> None:
    """Why zCDP is charged: at a coarse scale the exact δ is above the continuous mechanism's."""
    scale, y = 1.0, np.arange(-60, 61)
    p, q = weights("gaussian", scale, y), weights("gaussian", scale, y - 1)

    def continuous(epsilon: float) -> float:
        low, high = stats.norm.cdf(0.5 / scale - epsilon * scale), stats.norm.cdf(-0.5 / scale - epsilon * scale)
        return float(low - math.exp(epsilon) * high)

    excess = [np.maximum(p - math.exp(e) * q, 0).sum() - continuous(e) for e in np.linspace(0, 4, 100)]
    assert max(excess) > 1e-3


@given(st.integers(1, 50), st.integers(1, 5))
def test_the_laplace_event_covers_the_ratio_of_neighbours(scale: int, shift: int) -> None:
    y = np.arange(-500, 501)
    ratio = (np.abs(y - shift) - np.abs(y)) / scale
    event = GridNoise("laplace", 1.0, scale / shift).event
    assert isinstance(event, DiscreteLaplaceDpEvent)
    assert np.abs(ratio).max() <= event.noise_parameter * (1 + 1e-12)


def test_the_stream_is_used_once_and_the_place_is_noted() -> None:
    stream = Stream.from_seed(1)
    sample("gaussian", 4, 10, stream)
    assert stream.drawn_on == ("cpu",)
    with pytest.raises(RuntimeError, match="already used"):
        sample("gaussian", 4, 10, stream)


def test_values_far_away_are_cut_off_and_not_finite_ones_refused() -> None:
    mechanism = GridNoise("gaussian", 1.0, 1.0, 2)
    noisy = mechanism.add(np.array([1e300, -1e300]), Stream.from_seed(1))
    assert np.abs(noisy).max() <= 2.0**52 * mechanism.grid
    with pytest.raises(ValueError, match="not finite"):
        mechanism.add(np.array([0.0, math.nan]), Stream.from_seed(1))
    with pytest.raises(ValueError, match="another number"):
        mechanism.add(np.zeros(3), Stream.from_seed(1))


@pytest.mark.parametrize("scale", [0, -1, LARGEST_SCALE + 1])
def test_scales_that_are_not_proven_are_refused(scale: int) -> None:
    with pytest.raises(ValueError, match="whole number"):
        sample("gaussian", scale, 1, Stream.from_seed(1))
