"""The bound on reconstruction is the power of the best test, and no blind guess does better than is said."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from airlock.mechanisms import LocalGaussian
from airlock.mechanisms.reconstruction import blind_guess, bound, multiplier_for, recovery


def test_it_is_the_power_of_the_best_test() -> None:
    """Guess 'near' when the row lies in the half-space of probability κ under the centre: that reaches it."""
    for blind, z in ((0.01, 0.6), (0.2, 3.7)):
        cut = stats.norm.isf(blind)
        power = stats.norm.sf(cut - 1 / (2 * z))  # R/σ further along
        assert bound(blind, z) == pytest.approx(power)
    assert bound(1.0, 0.5) == 1.0
    assert bound(0.1, 1.0, runs=4) == pytest.approx(bound(0.1, 0.5))


def test_the_inverse_gives_the_wanted_probability() -> None:
    z = multiplier_for(0.02, 0.1, runs=3)
    assert bound(0.02, z, runs=3) == pytest.approx(0.1)
    assert bound(0.02, z / 2, runs=3) > 0.2  # half the noise


def test_no_attacker_on_a_discrete_prior_does_better() -> None:
    """The best attacker there is, Bayes', on pictures that are told apart by one pixel each."""
    rng, count, z = np.random.default_rng(0), 8, 0.8
    features = np.eye(count)  # norm 1, so R = 1
    truth = rng.integers(0, count, 20_000)
    seen = features[truth] + 2 * z * rng.normal(size=(len(truth), count))
    right = (seen.argmax(1) == truth).mean()
    assert 1 / count < right <= bound(1 / count, z)


def test_no_attacker_does_better_who_has_all_rows_of_a_person() -> None:
    """Her pictures are all the same: four noisy rows tell twice as much as one, and the noise is twice as large."""
    rng, count, z, rows = np.random.default_rng(0), 8, 0.8, 4
    truth = rng.integers(0, count, 20_000)
    sigma = LocalGaussian(1.0, z, rows).sigma
    seen = np.eye(count)[truth] + sigma * rng.normal(size=(rows, len(truth), count))
    right, of_one = ((one.argmax(1) == truth).mean() for one in (seen.mean(0), seen[0]))
    assert of_one < right <= bound(1 / count, z)
    assert right > bound(1 / count, sigma / 2)  # as if a picture had one row, with the same noise


def test_the_labels_of_her_other_rows_help_a_blind_guess_and_are_allowed_for() -> None:
    """Pictures of one class, and which of three each is follows from two other labels: whoever sees those names it."""
    rng = torch.Generator().manual_seed(0)
    others = torch.randint(0, 2, (3000, 2), generator=rng).sum(1)  # how many of both labels are 1
    pictures = torch.tensor([0.1, 0.5, 0.9])[others][:, None, None, None].expand(-1, 1, 4, 4)
    (one,) = blind_guess(pictures, [30.0], 0, 2, torch.zeros(3000))
    (three,) = blind_guess(pictures, [30.0], 0, 2, torch.zeros(3000), rows=3)
    assert 0.5 <= one < 0.6  # the most frequent picture; a guess that sees the other labels is always right
    assert three == 1.0
    torch.manual_seed(1)
    (few,) = blind_guess(torch.rand(3000, 1, 6, 6), [30.0], 0, 2, torch.zeros(3000))
    (many,) = blind_guess(torch.rand(3000, 1, 6, 6), [30.0], 0, 2, torch.zeros(3000), rows=3)
    assert many == pytest.approx(6 * few)  # none, 0, 1, 00, 01 or 11


def test_a_blind_guess_is_bounded_from_above() -> None:
    """A tenth of the pictures are one and the same: whoever names it is right that often."""
    torch.manual_seed(0)
    pictures = torch.rand(1200, 1, 6, 6)
    pictures[::10] = 0.5
    for level in (20.0, 40.0):
        (found,) = blind_guess(pictures, [level], 0, 1)
        assert 0.1 <= found < 0.2
    assert blind_guess(pictures, [3.0], 0, 1) == [1.0]


def test_labels_help_a_blind_guess() -> None:
    """Two pictures that a tenth each are, in a class each: with labels both are named, without them one."""
    pictures, labels = torch.rand(3000, 1, 6, 6), torch.randint(0, 5, (3000,))
    pictures[::10], labels[::10] = 0.4, 1
    pictures[5::10], labels[5::10] = 0.9, 2
    (unlabelled,) = blind_guess(pictures, [30.0], 0, 1)
    (whatever,) = blind_guess(pictures, [30.0], 0, 5)
    (known,) = blind_guess(pictures, [30.0], 0, 5, labels)
    assert 0.1 <= unlabelled < 0.15
    assert whatever == pytest.approx(5 * unlabelled)
    assert 0.2 <= known < 0.3
    (one_class,) = blind_guess(pictures, [30.0], 0, 5, torch.zeros(3000))
    assert 0.1 <= one_class < 0.16
    (row,) = recovery([0.2], [24.0], 0.6, 1)
    assert (row.blind, row.bound) == (0.2, bound(0.2, 0.6))


def test_the_bound_on_a_blind_guess_holds_as_often_as_it_says() -> None:
    """Of 60 sets from one distribution, some three bounds may be too small if it is as tight as can be."""
    draws = torch.Generator().manual_seed(0)
    below = 0
    for seed in range(60):
        labels = torch.randint(0, 2, (150,), generator=draws)
        same = torch.rand(150, generator=draws) < 0.3
        pictures = torch.where(same[:, None], labels[:, None].float(), torch.rand(150, 40, generator=draws))
        below += blind_guess(pictures, [30.0], seed, 2, labels)[0] < 0.3
    assert below <= 7
