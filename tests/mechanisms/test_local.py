"""Local mechanisms: rows stay in their ball, the noise has the stated scale, and half of it is noticed."""

from __future__ import annotations

import math

import dp_accounting as dpa
import numpy as np
import pytest
import torch
from scipy import stats

from airlock.accounting import compute_epsilon
from airlock.mechanisms import GaussianNoise, LocalGaussian, RandomisedResponse, Stream
from tests.mechanisms.test_gaussian import has_scale


def test_every_row_lies_in_the_ball_whatever_it_was() -> None:
    rows = torch.randn(50, 4, 3, 3) * torch.logspace(-6, 20, 50)[:, None, None, None]
    rows[3], rows[7, 0, 0, 0] = math.inf, math.nan
    clipped = LocalGaussian(2.5, 1.0).clip(rows)
    assert (clipped.double().norm(dim=1) <= 2.5).all()
    assert clipped[3].eq(0).all()
    assert clipped[7].eq(0).all()
    assert torch.allclose(clipped[0], rows[0].flatten())  # what is inside stays


def test_the_noise_is_that_of_two_records_as_far_apart_as_can_be() -> None:
    """σ = 2 R z: half of it, as if records were R apart, is noticed."""
    mechanism = LocalGaussian(0.7, 1.3)
    noisy = mechanism.add(torch.zeros(1000, 40), Stream.from_seed(5))
    assert mechanism.sigma == 2 * 0.7 * 1.3
    assert has_scale(noisy.ravel(), mechanism.sigma)
    assert not has_scale(noisy.ravel() / 2, mechanism.sigma)
    assert mechanism.event == dpa.GaussianDpEvent(1.3)


def test_the_noise_hides_k_rows_at_once() -> None:
    """σ = 2 R √K z: noise for a single row is noticed, and K rows as far apart as can be are 2 R √K apart."""
    mechanism = LocalGaussian(0.7, 1.3, rows=4)
    noisy = mechanism.add(torch.zeros(1000, 40), Stream.from_seed(5))
    assert mechanism.sigma == 2 * 0.7 * 2 * 1.3
    assert has_scale(noisy.ravel(), mechanism.sigma)
    assert not has_scale(noisy.ravel() / 2, mechanism.sigma)
    assert mechanism.event == dpa.GaussianDpEvent(1.3)
    far = mechanism.clip(torch.full((4, 9), 1e6)).double()
    apart = float((far + far).norm())
    assert 0.999 * mechanism.noise.sensitivity < apart <= mechanism.noise.sensitivity


def test_rounding_is_paid_for_where_the_rows_of_a_person_are_in_calls_of_their_own() -> None:
    """The noise on a block of one row allows for the rounding of all K rows, wherever the others are."""
    alone = LocalGaussian(1.0, 1.0, rows=9)
    used: list[float] = []

    class Seen(GaussianNoise):
        def scale(self, dimension: int) -> float:
            used.append(super().scale(dimension))
            return used[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalGaussian, "noise", property(lambda self: Seen(6.0, 1.0)))
        alone.add(torch.zeros(1, 16), Stream.from_seed(0))
    noise = GaussianNoise(6.0, 1.0)
    assert used == [6.0 + noise.grid * math.sqrt(9 * 16)]


def test_a_row_depends_on_its_own_record_alone() -> None:
    rows, mechanism = torch.randn(6, 5), LocalGaussian(1.0, 0.5)
    other = rows.clone()
    other[2] = 100.0
    a, b = (mechanism.add(x, Stream.from_seed(1)) for x in (rows, other))
    assert (np.flatnonzero((a != b).any(1)) == [2]).all()


def test_a_label_stays_as_often_as_stated_and_moves_anywhere_else_alike() -> None:
    mechanism, labels = RandomisedResponse(5, 1.5), np.full(40_000, 3)
    counts = np.bincount(mechanism.answer(labels, Stream.from_seed(2)), minlength=5)

    def plausible(epsilon: float) -> bool:
        kept = math.exp(epsilon) / (math.exp(epsilon) + 4)
        wanted = np.where(np.arange(5) == 3, kept, (1 - kept) / 4) * len(labels)
        return bool(stats.chisquare(counts, wanted).pvalue > 1e-4)

    assert plausible(1.5)
    assert not plausible(3.0)  # half the noise
    assert not plausible(0.75)
    assert abs(compute_epsilon(mechanism.event, 1e-9, "replace-one").epsilon - 1.5) < 1e-3
