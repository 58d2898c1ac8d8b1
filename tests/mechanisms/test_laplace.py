"""The Laplace mechanism: its scale, its grid, its exact distribution, and that half the noise is noticed."""

from __future__ import annotations

import math

import dp_accounting as dpa
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from airlock.accounting.epsilon import compute_epsilon
from airlock.errors import AccountingError
from airlock.mechanisms import LaplaceNoise, Stream
from airlock.mechanisms.laplace import _limits, discrete


def has_scale(noise: np.ndarray, scale: float) -> bool:
    """Whether Laplace noise of this scale is plausible: |noise| sums to a Gamma number, and a KS test, at 1e-4."""
    p = stats.gamma(noise.size, scale=scale).cdf(np.abs(noise).sum())
    return 2 * min(p, 1 - p) > 1e-4 and stats.kstest(noise / scale, "laplace").pvalue > 1e-4


@pytest.mark.parametrize(("sensitivity", "noise_multiplier"), [(1.0, 1.0), (0.1, 7.7), (4.0, 0.3)])
def test_the_noise_has_the_scale_that_is_accounted_for(sensitivity: float, noise_multiplier: float) -> None:
    mechanism = LaplaceNoise(sensitivity, noise_multiplier)
    noise = mechanism.add(np.zeros(50_000), Stream.from_seed(3))
    assert has_scale(noise, sensitivity * noise_multiplier)
    assert not has_scale(noise / 2, sensitivity * noise_multiplier)
    assert not has_scale(noise * 0.97, sensitivity * noise_multiplier)
    assert mechanism.event == dpa.LaplaceDpEvent(noise_multiplier)
    assert compute_epsilon(mechanism.event, 1e-12).epsilon == pytest.approx(1 / noise_multiplier, rel=1e-3)


@pytest.mark.parametrize("scale", [0.4, 1.3, 5.0])
def test_small_scales_show_the_exact_distribution(scale: float) -> None:
    """With few steps a scale every probability can be counted: tanh(1/2s) exp(-|x|/s)."""
    drawn = discrete(40_000, scale, Stream.from_seed(8)).astype(int)
    reach = int(4 * scale) + 1
    chances = np.tanh(0.5 / scale) * np.exp(-np.abs(np.arange(-reach, reach + 1)) / scale)
    counts = np.bincount(np.clip(drawn, -reach - 1, reach + 1) + reach + 1, minlength=2 * reach + 3)
    chances = np.concatenate([[(1 - chances.sum()) / 2], chances, [(1 - chances.sum()) / 2]])
    assert stats.chisquare(counts, chances * drawn.size).pvalue > 1e-4
    halved = discrete(40_000, scale / 2, Stream.from_seed(8)).astype(int)
    counts = np.bincount(np.clip(halved, -reach - 1, reach + 1) + reach + 1, minlength=2 * reach + 3)
    assert stats.chisquare(counts, chances * halved.size).pvalue < 1e-6


@given(st.floats(0.3, 50.0), st.integers(1, 40))
def test_the_bits_make_a_geometric_number(scale: float, number: int) -> None:
    """P(n) of independent bits is (1 - q) q^n, from the very limits that words are compared with."""
    chances = _limits(scale, 12).astype(float) / 2**64
    bits = [number >> i & 1 for i in range(12)]
    found = math.prod(p if bit else 1 - p for p, bit in zip(chances, bits, strict=True))
    q = math.exp(-1 / scale)
    assert found == pytest.approx((1 - q) * q**number / (1 - q**4096), rel=1e-9, abs=1e-15)


def test_the_privacy_loss_of_the_steps_is_below_epsilon() -> None:
    """The sharp part of the proof: s steps apart, the largest ratio of probabilities is exp(s g / b) < exp(ε)."""
    for dimension in (1, 100, 10_000):
        mechanism = LaplaceNoise(1.0, 0.5)
        apart = math.floor(1.0 / mechanism.grid) + dimension
        assert apart * mechanism.grid / mechanism.scale(dimension) < 2.0
        assert mechanism.scale(dimension) <= 0.5 * 1.001


def test_the_whole_curve_is_that_of_the_event() -> None:
    """δ of discrete noise, s steps apart, is below that of the continuous mechanism with a step to spare."""
    a, s = 2.0**-20, 2**20
    b = (s + 1) * a  # ε that the event has
    for share in (0.0, 0.1, 0.5, 0.9):
        x = math.floor(share * s / 2) + 0.5  # between two whole numbers, where the chord is furthest above
        epsilon = a * (s - 2 * x)
        low, high = 1 - math.exp(-a * (x - 0.5)), 1 - math.exp(-a * (x + 0.5))
        e_low, e_high = math.exp(a * (s - 2 * (x - 0.5))), math.exp(a * (s - 2 * (x + 0.5)))
        discrete_delta = high + (low - high) * (math.exp(epsilon) - e_high) / (e_low - e_high)
        assert discrete_delta <= 1 - math.exp((epsilon - b) / 2)


@given(st.floats(1e-3, 1e3), st.floats(0.05, 100), st.integers(0, 2**32))
def test_every_output_lies_on_the_public_grid(sensitivity: float, noise_multiplier: float, seed: int) -> None:
    mechanism = LaplaceNoise(sensitivity, noise_multiplier)
    value = np.random.default_rng(seed).normal(size=16) * sensitivity
    steps = mechanism.add(value, Stream.from_seed(seed)) / mechanism.grid
    assert np.array_equal(steps, np.rint(steps))
    assert np.log2(mechanism.grid) == math.floor(np.log2(mechanism.grid))


def test_the_value_is_kept_and_low_order_bits_say_nothing() -> None:
    value = np.linspace(-100, 100, 10_000).reshape(100, 100)
    mechanism = LaplaceNoise(1.0, 1e-3)
    noisy = mechanism.add(value, Stream.from_seed(1))
    assert noisy.shape == value.shape
    assert np.abs(noisy - value).max() < 0.02
    nearly = mechanism.add(np.rint(value / mechanism.grid) * mechanism.grid * (1 + 1e-16), Stream.from_seed(1))
    assert np.array_equal(noisy, nearly)


def test_noise_is_never_used_twice_and_blocks_differ() -> None:
    mechanism, stream = LaplaceNoise(1.0, 1.0), Stream.from_seed(1)
    noise = mechanism.add(np.zeros(20_000), stream)
    assert len(np.unique(noise)) > 19_900
    assert stream.drawn_on == ("cpu",)
    with pytest.raises(RuntimeError, match="never be used twice"):
        mechanism.add(np.zeros(3), stream)


def test_huge_values_are_clamped_and_nan_is_refused() -> None:
    mechanism = LaplaceNoise(1.0, 1.0)
    assert np.isfinite(mechanism.add(np.array([1e300, -math.inf]), Stream.from_seed(1))).all()
    with pytest.raises(AccountingError, match="NaN"):
        mechanism.add(np.array([math.nan]), Stream.from_seed(1))


@pytest.mark.parametrize(("sensitivity", "multiplier"), [(0.0, 1.0), (1.0, 0.0), (math.inf, 1.0), (1.0, math.nan)])
def test_no_scale_no_noise(sensitivity: float, multiplier: float) -> None:
    with pytest.raises(AccountingError, match="above 0"):
        LaplaceNoise(sensitivity, multiplier)
