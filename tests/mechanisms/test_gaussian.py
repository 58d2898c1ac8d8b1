"""The Gaussian mechanism: its scale, its grid, and that half the noise is noticed."""

from __future__ import annotations

import itertools
import math

import dp_accounting as dpa
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from airlock.mechanisms import GaussianNoise, Stream, gaussian


def has_scale(noise: np.ndarray, scale: float) -> bool:
    """Whether zero-mean normal noise of this scale is plausible: a χ² test of the variance and a KS test, at 1e-4."""
    statistic = float((noise**2).sum()) / scale**2
    p = 2 * min(stats.chi2.cdf(statistic, noise.size), stats.chi2.sf(statistic, noise.size))
    return p > 1e-4 and stats.kstest(noise / scale, "norm").pvalue > 1e-4


@pytest.mark.parametrize(("sensitivity", "noise_multiplier"), [(1.0, 1.0), (0.1, 7.7), (4.0, 0.3)])
def test_the_noise_has_the_scale_that_is_accounted_for(sensitivity: float, noise_multiplier: float) -> None:
    mechanism = GaussianNoise(sensitivity, noise_multiplier)
    noise = mechanism.add(np.zeros(50_000, np.float32), Stream.from_seed(3))
    scale = sensitivity * noise_multiplier
    assert has_scale(noise, scale)
    assert not has_scale(noise / 2, scale)
    assert not has_scale(noise * 0.97, scale)
    assert mechanism.event == dpa.GaussianDpEvent(noise_multiplier)


def test_the_value_is_kept() -> None:
    value = np.linspace(-100, 100, 10_000)
    noisy = GaussianNoise(1.0, 1e-3).add(value, Stream.from_seed(1))
    assert np.abs(noisy - value).max() < 0.01


@given(st.floats(1e-3, 1e3), st.floats(0.05, 100), st.integers(0, 2**32))
def test_every_output_lies_on_the_public_grid(sensitivity: float, noise_multiplier: float, seed: int) -> None:
    mechanism = GaussianNoise(sensitivity, noise_multiplier)
    value = np.random.default_rng(seed).normal(size=64) * sensitivity
    steps = mechanism.add(value, Stream.from_seed(seed)) / mechanism.grid
    assert np.array_equal(steps, np.rint(steps))
    assert np.log2(mechanism.grid) == math.floor(np.log2(mechanism.grid))


@given(st.floats(1e-3, 1e3), st.floats(0.05, 100), st.integers(1, 2_000_000))
def test_the_stretch_by_rounding_is_paid_for_and_small(sensitivity: float, multiplier: float, dimension: int) -> None:
    mechanism = GaussianNoise(sensitivity, multiplier)
    stretched = sensitivity + mechanism.grid * math.sqrt(dimension)
    assert mechanism.scale(dimension) >= multiplier * stretched * (1 - 1e-12)
    assert mechanism.scale(dimension) <= multiplier * sensitivity * 1.001


def test_shaped_noise_has_the_scale_of_its_coordinate() -> None:
    """u·z·C in every coordinate; half of it, or the equal noise, is noticed."""
    shape = np.repeat([0.25, 1.0, 3.0], 20_000)
    noise = GaussianNoise(0.5, 2.0).add(np.zeros(60_000), Stream.from_seed(2), shape)
    for u, part in zip((0.25, 1.0, 3.0), np.split(noise, 3), strict=True):
        assert has_scale(part, u)
        assert not has_scale(part / 2, u)
        assert u == 1 or not has_scale(part, 1.0)


def test_a_shape_of_one_is_no_shape_and_none_of_zero() -> None:
    mechanism, value = GaussianNoise(0.5, 2.0), torch.randn(1000)
    plain = mechanism.add_and_divide(value, 4.0, Stream.from_seed(5))
    assert torch.equal(mechanism.add_and_divide(value, 4.0, Stream.from_seed(5), torch.ones(1000)), plain)
    silent = mechanism.add_and_divide(value, 4.0, Stream.from_seed(5), torch.zeros(1000))
    torch.testing.assert_close(silent, value / 4.0)


@given(st.floats(0.1, 10.0), st.integers(0, 2**32))
def test_shaped_outputs_lie_on_the_public_grid(largest: float, seed: int) -> None:
    """Post-processing of the ideal mechanism: the shape changes the noise, not where the outputs can lie."""
    rng, mechanism = np.random.default_rng(seed), GaussianNoise(1.0, 0.7)
    steps = mechanism.add(rng.normal(size=64), Stream.from_seed(seed), rng.random(64) * largest) / mechanism.grid
    assert np.array_equal(steps, np.rint(steps))


def kernel(
    value: torch.Tensor, key: bytes, scale: float, grid: float, divisor: float, shape: torch.Tensor | None = None
) -> torch.Tensor:
    """What the GPU's kernel computes, on the CPU and from the same key."""
    noise = Stream(key, secure=False).normal(value.numel()) * (scale / grid)
    noise = np.rint(noise if shape is None else noise * shape.numpy())
    return torch.from_numpy((np.rint(value.double().numpy() / grid) + noise) * (grid / divisor)).float()


def test_the_place_is_the_one_that_made_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism, value, shape = GaussianNoise(0.7, 1.3), torch.randn(50), torch.rand(50)
    on_cpu, on_gpu = Stream.from_seed(4), Stream.from_seed(4)
    here = mechanism.add_and_divide(value, 3.0, on_cpu, shape)
    monkeypatch.setattr(gaussian, "gpu_takes", lambda value: True)
    monkeypatch.setattr(gaussian, "gpu_add_noise", kernel)
    there = mechanism.add_and_divide(value, 3.0, on_gpu, shape)
    assert torch.equal(here, there)
    assert (on_cpu.drawn_on, on_gpu.drawn_on) == (("cpu",), ("gpu",))


def test_a_kernel_that_fails_made_no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> torch.Tensor:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(gaussian, "gpu_takes", lambda value: True)
    monkeypatch.setattr(gaussian, "gpu_add_noise", broken)
    stream = Stream.from_seed(4)
    with pytest.raises(RuntimeError, match="no compiler"):
        GaussianNoise(1.0, 1.0).add_and_divide(torch.zeros(3), 1.0, stream)
    assert stream.drawn_on == ()
    assert not gaussian._gpu_agrees.__wrapped__(torch.device("cpu"))  # so it would not have been taken


def test_a_kernel_is_taken_only_if_its_noise_is_that_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cpu")
    monkeypatch.setattr(gaussian, "gpu_add_noise", kernel)
    assert gaussian._gpu_agrees.__wrapped__(device)
    monkeypatch.setattr(gaussian, "gpu_add_noise", lambda *args: kernel(*args) / 2)
    assert not gaussian._gpu_agrees.__wrapped__(device)
    assert not gaussian.gpu_takes(torch.zeros(3))  # not on a GPU


def test_low_order_bits_say_nothing_about_the_value() -> None:
    """Values that differ by less than the grid lead to the same set of outputs, bit for bit."""
    mechanism = GaussianNoise(1.0, 1.0)
    a = mechanism.add(np.full(1000, 0.1), Stream.from_seed(9))
    b = mechanism.add(np.full(1000, 0.1 + mechanism.grid * 1e-3), Stream.from_seed(9))
    assert np.array_equal(a, b)


@pytest.mark.parametrize("ends", [(0, 5000), (0, 1, 1, 2499, 2500, 5000), (0, 1200, 5000)])
def test_pieces_get_the_noise_of_the_whole(ends: tuple[int, ...]) -> None:
    """Of its scale too, which includes the rounding of all coordinates."""
    mechanism = GaussianNoise(0.7, 1.3)
    value = torch.from_numpy(np.random.default_rng(0).normal(size=5000))
    wanted = mechanism.add_and_divide(value, 3.0, Stream.from_seed(2))
    normals = Stream.from_seed(2).normals(len(value))
    pieces = [
        mechanism.add_to_piece(value[start:stop], 3.0, normals, start) for start, stop in itertools.pairwise(ends)
    ]
    assert torch.allclose(torch.cat(pieces), wanted, rtol=0, atol=1e-7)
    assert has_scale((3.0 * torch.cat(pieces) - value).numpy(), 0.7 * 1.3)
