"""Sample and aggregate: what is bounded is bounded, the noise has its distribution, half of it would show."""

from __future__ import annotations

import math

import dp_accounting as dpa
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from airlock.mechanisms import ShardDensity, ShardMean, ShardVotes, Stream, bounded, probable

NUMBERS = st.floats(allow_nan=True, allow_infinity=True, width=32)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=1, max_size=5), st.floats(1e-6, 1e6))
def test_every_row_ends_in_the_ball(rows: list[list[float]], radius: float) -> None:
    found = bounded(torch.tensor(rows), radius)
    assert torch.isfinite(found).all()
    assert (found.norm(dim=1) <= radius * (1 - 2.0**-17)).all()


def test_short_rows_stay_as_they_are_and_broken_ones_become_zero() -> None:
    rows = torch.tensor([[0.3, 0.4], [30.0, 40.0], [math.nan, 1.0], [math.inf, 1.0]])
    found = bounded(rows, 1.0)
    assert found[0].tolist() == rows[0].double().tolist()
    assert found[1].tolist() == pytest.approx([0.6, 0.8], rel=1e-4)
    assert not found[2:].any()


def test_the_noise_on_the_mean_is_normal_with_two_radii_over_the_shards() -> None:
    mechanism = ShardMean(radius=3.0, shards=20, noise_multiplier=1.5)
    vectors = torch.ones(20, 4000) * 0.01
    noise = mechanism.release(vectors, Stream.from_seed(1)) - 0.01
    spread = 1.5 * 2 * 3.0 / 20
    assert stats.kstest(noise, stats.norm(0, spread).cdf).pvalue > 0.01
    assert stats.kstest(2 * noise, stats.norm(0, spread).cdf).pvalue < 1e-6  # half the noise
    assert mechanism.event == dpa.GaussianDpEvent(1.5)


def test_one_vector_moves_the_mean_by_at_most_what_the_noise_is_made_for() -> None:
    """From one side of the ball to the other, and no further."""
    mechanism = ShardMean(radius=1.0, shards=4, noise_multiplier=1e-3)
    ends = [torch.zeros(4, 2), torch.zeros(4, 2)]
    ends[0][0], ends[1][0] = torch.tensor([900.0, 0.0]), torch.tensor([-7.0, 0.0])
    a, b = (mechanism.release(end, Stream.from_seed(1)) for end in ends)
    assert 0.499 < np.linalg.norm(a - b) <= 0.5


def test_the_noise_on_a_count_of_votes_is_normal_with_the_root_of_two() -> None:
    mechanism, votes = ShardVotes(classes=4000, noise_multiplier=1.5), torch.arange(4000)
    noise = mechanism.release(votes, Stream.from_seed(1)) - 1.0
    spread = 1.5 * math.sqrt(2)
    assert stats.kstest(noise, stats.norm(0, spread).cdf).pvalue > 0.01
    assert stats.kstest(2 * noise, stats.norm(0, spread).cdf).pvalue < 1e-6  # half the noise
    assert mechanism.event == dpa.GaussianDpEvent(1.5)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=9), st.integers(0, 4))
def test_one_shard_that_changes_its_mind_moves_the_votes_by_at_most_the_root_of_two(row: list[int], other: int) -> None:
    mechanism = ShardVotes(classes=5, noise_multiplier=1e-3)
    a, b = (mechanism.release(torch.tensor(own), Stream.from_seed(1)) for own in (row, [other, *row[1:]]))
    assert np.linalg.norm(a - b) == pytest.approx(0.0 if row[0] == other else math.sqrt(2), abs=1e-6)


def density(epsilon: float = 0.8, shards: int = 12) -> ShardDensity:
    return ShardDensity(reach=2.0, points=41, bandwidth=0.5, window=0.4, epsilon=epsilon, shards=shards)


def test_the_score_is_the_mean_probability_of_the_window() -> None:
    mechanism, values = density(), torch.tensor([[0.3], [-1.1], [0.8]] * 4)
    found = mechanism._scores(values.double())[0].numpy()
    grid = mechanism.grid.numpy()
    wanted = np.mean(
        [stats.norm.cdf((grid + 0.2 - v) / 0.5) - stats.norm.cdf((grid - 0.2 - v) / 0.5) for v in values[:, 0].numpy()],
        axis=0,
    )
    assert np.allclose(found, wanted, atol=1e-12)
    kappa = 2 * stats.norm.cdf(0.4 / (2 * 0.5)) - 1
    assert mechanism.sensitivity == pytest.approx(kappa / 12)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-5, 5), min_size=12, max_size=12), st.floats(-5, 5), st.integers(0, 11))
def test_one_shard_moves_log_probabilities_within_the_bounded_range(row: list[float], other: float, place: int) -> None:
    """The largest minus the smallest log ratio over the grid is at most ε0: bounded range, so ε0²/8-zCDP."""
    mechanism, values = density(), torch.tensor(row, dtype=torch.float64)[:, None]
    changed = values.clone()
    changed[place] = other
    ratio = mechanism.log_probabilities(values) - mechanism.log_probabilities(changed)
    assert float(ratio.max() - ratio.min()) <= 0.8 + 1e-9


def test_the_bound_on_the_range_is_nearly_reached() -> None:
    """So a smaller sensitivity would break the promise."""
    mechanism, values = density(), torch.zeros(12, 1, dtype=torch.float64)
    ends = [values.clone(), values.clone()]
    ends[0][0], ends[1][0] = 2.0, -2.0
    ratio = mechanism.log_probabilities(ends[0]) - mechanism.log_probabilities(ends[1])
    assert float(ratio.max() - ratio.min()) > 0.79


def test_points_are_drawn_with_their_probabilities() -> None:
    mechanism, values = density(epsilon=3.0), torch.tensor([[0.5]] * 9 + [[-1.0]] * 3)
    chances = mechanism.log_probabilities(values)
    drawn = mechanism.sample(chances.expand(20_000, -1), Stream.from_seed(2))
    places = np.rint((drawn + 2.0) / 0.1).astype(int)
    counts = np.bincount(places, minlength=41)
    assert stats.chisquare(counts, 20_000 * chances[0].exp().numpy() / chances[0].exp().sum().item()).pvalue > 0.01
    flat = density(epsilon=1.5).log_probabilities(values)[0].exp().numpy()  # half the weight on the score
    assert stats.chisquare(counts, 20_000 * flat / flat.sum()).pvalue < 1e-6


def test_all_coordinates_are_paid_for() -> None:
    assert density(epsilon=0.2).event(600) == dpa.ZCDpEvent(600 * 0.2**2 / 8)


@given(arrays(np.float32, (2, 5), elements=st.floats(width=32, allow_nan=True, allow_infinity=True)))
def test_rows_of_probabilities_differ_by_less_than_the_root_of_two(x):
    rows = probable(torch.from_numpy(x))
    assert (rows >= 0).all()
    assert torch.allclose(rows.sum(1), torch.ones(2, dtype=torch.float64))
    assert float((rows[0] - rows[1]).norm()) < math.sqrt(2)


def test_two_sure_rows_of_probabilities_are_as_far_apart_as_accounted_for():
    rows = probable(torch.eye(5)[:2])
    assert float((rows[0] - rows[1]).norm()) > 0.9999 * math.sqrt(2)
