"""Private k-means: its noise is what is accounted for, its centroids are useful, and bad input is refused."""

from __future__ import annotations

import math
from itertools import pairwise

import dp_accounting as dpa
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from airlock.accounting.epsilon import compute_epsilon
from airlock.accounting.events import from_json, to_json
from airlock.errors import ConfigError, DataError
from airlock.mechanisms import LaplaceNoise, PrivateKMeans, Stream
from airlock.mechanisms.kmeans import assign_nearest, pack


def blobs(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Points around four corners of a square, and the corners."""
    rng = np.random.default_rng(seed)
    corners = np.array([[-0.6, -0.6], [-0.6, 0.6], [0.6, -0.6], [0.6, 0.6]])
    return corners[rng.integers(0, 4, count)] + 0.05 * rng.normal(size=(count, 2)), corners


def test_the_iterations_and_the_split_are_those_of_the_paper() -> None:
    """Figures by hand for d = 2, k = 4, N = 10,000: ε_m = 0.081, and T = ε/ε_m between 2 and 7."""
    share = (4 * 2 * 0.225**2) ** (1 / 3)
    least = math.sqrt(500 * 4**3 / 10_000**2 * (2 + share) ** 3)
    assert least == pytest.approx(0.081, abs=0.002)
    for epsilon, wanted in [(0.01, 2), (3.5 * least, 3), (5.1 * least, 5), (10.0, 7)]:
        found = PrivateKMeans(4, epsilon, 10_000, dimensions=2)
        assert found.iterations == wanted
        count, sums = 1 / found.count_noise.noise_multiplier, 1 / found.sum_noise.noise_multiplier
        assert count / (sums / 2) == pytest.approx(share)
        assert wanted * (count + sums) == pytest.approx(epsilon)


@given(st.floats(0.05, 8.0), st.integers(1, 6), st.integers(1, 3))
@settings(max_examples=15, deadline=None)
def test_the_event_costs_epsilon(epsilon: float, clusters: int, dimensions: int) -> None:
    event = PrivateKMeans(clusters, epsilon, 1000, dimensions=dimensions).event
    assert compute_epsilon(event, 1e-12).epsilon == pytest.approx(epsilon, rel=0.01)
    assert from_json(to_json(event)) == event


def test_the_noise_that_is_drawn_is_the_noise_that_is_accounted_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call of a noise is noted: together they are the event."""
    drawn: list[dpa.DpEvent] = []
    add = LaplaceNoise.add

    def noted(self: LaplaceNoise, value: np.ndarray, stream: Stream) -> np.ndarray:
        drawn.append(self.event)
        return add(self, value, stream)

    monkeypatch.setattr(LaplaceNoise, "add", noted)
    kmeans = PrivateKMeans(4, 2.0, 500, dimensions=2)
    kmeans.fit(blobs(500)[0], Stream.from_seed(0))
    assert isinstance(kmeans.event, dpa.SelfComposedDpEvent)
    assert isinstance(kmeans.event.event, dpa.ComposedDpEvent)
    assert drawn == list(kmeans.event.event.events) * kmeans.event.count


def last_centroids(kmeans: PrivateKMeans, points: np.ndarray, runs: int) -> np.ndarray:
    return np.array([kmeans.fit(points, Stream.from_seed(seed))[0, 0] for seed in range(runs)])


def plausible(centroids: np.ndarray, kmeans: PrivateKMeans, total: float, count: float) -> bool:
    """Whether centroids of one cluster are (sum + noise) / (count + noise): compared with numpy's Laplace, at 1e-4."""
    rng = np.random.default_rng(1)
    unit = kmeans.epsilon / kmeans.iterations / (1 + (4 * 0.225**2) ** (1 / 3))
    sums = total + rng.laplace(scale=1 / unit, size=100_000)
    counts = count + rng.laplace(scale=1 / (unit * (4 * 0.225**2) ** (1 / 3)), size=100_000)
    return bool(stats.ks_2samp(centroids, np.clip(sums / np.maximum(counts, 1), -1, 1)).pvalue > 1e-4)


def test_the_distribution_of_a_centroid_is_the_papers_and_half_the_noise_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kmeans = PrivateKMeans(1, 0.5, 400)
    points = np.full(400, 0.25)
    assert plausible(last_centroids(kmeans, points, 400), kmeans, 100.0, 400.0)
    scale = LaplaceNoise.scale
    monkeypatch.setattr(LaplaceNoise, "scale", lambda self, dimension: scale(self, dimension) / 2)
    assert not plausible(last_centroids(kmeans, points, 400), kmeans, 100.0, 400.0)


def test_one_point_moves_counts_and_sums_by_no_more_than_the_sensitivity(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first iteration starts from the same centroids, so its sums can be compared."""
    seen: list[tuple[LaplaceNoise, np.ndarray]] = []
    add = LaplaceNoise.add

    def noted(self: LaplaceNoise, value: np.ndarray, stream: Stream) -> np.ndarray:
        seen.append((self, value.copy()))
        return add(self, value, stream)

    monkeypatch.setattr(LaplaceNoise, "add", noted)
    kmeans = PrivateKMeans(3, 1.0, 50, lower=-2.0, upper=5.0, dimensions=2)
    points = np.random.default_rng(0).uniform(-9, 9, (50, 2))
    for extra in (points, np.concatenate([points, [[1e9, -math.inf]]])):
        kmeans.fit(extra, Stream.from_seed(0))
    half = len(seen) // 2
    for (noise, one), (_, other) in zip(seen[:2], seen[half : half + 2], strict=True):
        assert 0 < np.abs(one - other).sum() <= noise.sensitivity + 1e-9


def test_with_a_large_budget_the_centroids_are_found() -> None:
    points, corners = blobs(2000)
    found = PrivateKMeans(4, 20.0, 2000, dimensions=2).fit(points, Stream.from_seed(3))
    assert np.abs(found[np.lexsort(found.T[::-1].round(1))] - corners).max() < 0.05


def test_the_points_own_units_are_kept() -> None:
    points = np.concatenate([np.full(500, 12.0), np.full(500, 18.0)])
    found = PrivateKMeans(2, 10.0, 1000, 10.0, 20.0).fit(points, Stream.from_seed(0))
    assert sorted(found[:, 0]) == pytest.approx([12.0, 18.0], abs=0.2)


def test_starting_points_are_apart_and_do_not_depend_on_data() -> None:
    assert pack(4, 1, 0)[:, 0].tolist() == [-0.75, -0.25, 0.25, 0.75]
    found = pack(8, 2, 5)
    apart = np.sqrt(((found[:, None] - found) ** 2).sum(2))[~np.eye(8, dtype=bool)].min()
    border = (1 - np.abs(found)).min()
    assert apart > 0.5
    assert border >= 0.25
    assert np.array_equal(found, pack(8, 2, 5))
    assert all(not np.array_equal(a, b) for a, b in pairwise([found, pack(8, 2, 6)]))


@given(st.integers(0, 2**32), st.integers(1, 9))
def test_on_a_line_the_nearest_is_found_by_sorting(seed: int, clusters: int) -> None:
    rng = np.random.default_rng(seed)
    points, centroids = rng.normal(size=(50, 1)), rng.normal(size=(clusters, 1))
    found = np.abs(points - centroids[assign_nearest(points, centroids), 0][:, None])
    assert np.array_equal(found[:, 0], np.abs(points - centroids.T).min(1))


def test_bad_input_is_refused() -> None:
    with pytest.raises(ConfigError, match="1 to 3 clusters"):
        PrivateKMeans(4, 1.0, 3)
    for epsilon in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ConfigError, match="an ε above 0"):
            PrivateKMeans(2, epsilon, 10)
    with pytest.raises(ConfigError, match="lower < upper"):
        PrivateKMeans(2, 1.0, 10, 1.0, 1.0)
    kmeans = PrivateKMeans(2, 1.0, 10)
    for points in (np.empty(0), np.zeros((3, 2)), np.zeros((2, 1, 1))):
        with pytest.raises(DataError, match="at least one point of 1 dimensions"):
            kmeans.fit(points, Stream.from_seed(0))
    with pytest.raises(DataError, match="NaN"):
        kmeans.fit(np.array([0.0, math.nan]), Stream.from_seed(0))
