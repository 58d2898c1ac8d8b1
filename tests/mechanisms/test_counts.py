"""Counts with noise: their exact distribution, what an adversary makes of them, and planted faults."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from airlock.accounting import compute_epsilon, pure
from airlock.mechanisms import NoisyCounts, Stream

Floats = NDArray[np.float64]


def chances(epsilon: float, reach: int) -> Floats:
    """P(x) from −reach to reach, then what lies before and after."""
    inner = math.tanh(epsilon / 2) * np.exp(-epsilon * np.abs(np.arange(-reach, reach + 1)))
    return np.concatenate([[(1 - inner.sum()) / 2], inner, [(1 - inner.sum()) / 2]])


def fits(noise: NDArray[np.int64], epsilon: float) -> bool:
    """Whether noise of this ε is plausible, at 1e-4."""
    reach = math.ceil(4 / epsilon)
    counts = np.bincount(np.clip(noise, -reach - 1, reach + 1) + reach + 1, minlength=2 * reach + 3)
    return bool(stats.chisquare(counts, chances(epsilon, reach) * noise.size).pvalue > 1e-4)


def noise_of(epsilon: float, cells: int = 40_000, seed: int = 3) -> NDArray[np.int64]:
    return NoisyCounts(epsilon).add(np.zeros(cells, np.int64), Stream.from_seed(seed))


@pytest.mark.parametrize("epsilon", [0.05, 0.2, 0.6, 1.0, 1.7, 3.0])
def test_the_noise_is_two_sided_geometric(epsilon: float) -> None:
    noise = noise_of(epsilon)
    assert fits(noise, epsilon)
    assert not fits(noise // 2, epsilon)
    assert not fits(noise_of(1.1 * epsilon), epsilon)
    assert noise.var() == pytest.approx(NoisyCounts(epsilon).variance, rel=0.05)


def guesses(epsilon_used: float, moved: int, count: int = 40_000) -> float:
    """How often the likelihood names the right one of two tables of which one record moves `moved` cells."""
    right = 0
    for there in (0, 1):
        noise = noise_of(epsilon_used, count * moved, seed=there).reshape(count, moved) + there
        loss = (np.abs(noise) - np.abs(noise - 1)).sum(1)
        right += ((loss > 0) if there else (loss < 0)).sum() + 0.5 * (loss == 0).sum()
    return float(right / (2 * count))


def test_an_adversary_is_right_as_often_as_epsilon_allows_and_faults_are_noticed() -> None:
    epsilon, error = 0.5, 5 * 0.5 / math.sqrt(80_000)
    allowed = math.exp(epsilon) / (1 + math.exp(epsilon))
    assert abs(guesses(epsilon, 1) - allowed) < error
    assert guesses(2 * epsilon, 1) > allowed + error  # half the noise
    assert guesses(epsilon, 3) > allowed + error  # a record in three cells


def test_event_shape_and_streams() -> None:
    counts = NoisyCounts(0.7)
    assert counts.event == pure(0.7)
    assert compute_epsilon(counts.event, 1e-9).epsilon == pytest.approx(0.7, rel=1e-3)
    stream = Stream.from_seed(1)
    table = counts.add(np.arange(6).reshape(2, 3), stream)
    assert table.shape == (2, 3)
    assert table.dtype == np.int64
    assert stream.drawn_on == ("cpu",)
    with pytest.raises(RuntimeError, match="never be used twice"):
        counts.add(np.arange(6), stream)
    assert np.array_equal(NoisyCounts(60.0).add(np.arange(6), Stream.from_seed(2)), np.arange(6))
    assert len(counts.add(np.empty(0, np.int64), Stream.from_seed(2))) == 0


def test_the_same_words_make_the_same_noise_whatever_the_counts_are() -> None:
    first, second = (
        NoisyCounts(0.3).add(counts, Stream.from_seed(5)) - counts for counts in (np.zeros(50, int), np.arange(50))
    )
    assert np.array_equal(first, second)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, 1e-8, 1e5, math.nan, math.inf])
def test_no_epsilon_no_noise(epsilon: float) -> None:
    with pytest.raises(ValueError, match="between"):
        NoisyCounts(epsilon)
