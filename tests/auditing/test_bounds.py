"""Intervals cover what they say they cover."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_auc_score

from airlock.auditing import auc_interval, epsilon_lower_bound, proportion_interval
from airlock.auditing.bounds import about


@given(st.integers(1, 300), st.data(), st.sampled_from([0.9, 0.95, 0.99]))
def test_clopper_pearson_equals_scipys(trials: int, data: st.DataObject, confidence: float) -> None:
    successes = data.draw(st.integers(0, trials))
    expected = stats.binomtest(successes, trials).proportion_ci(confidence, method="exact")
    assert proportion_interval(successes, trials, confidence) == pytest.approx((expected.low, expected.high))


@given(st.lists(st.integers(0, 9), min_size=2, max_size=30), st.lists(st.integers(0, 9), min_size=2, max_size=30))
def test_the_auc_equals_sklearns_with_ties(members: list[int], others: list[int]) -> None:
    auc, low, high = auc_interval(np.array(members, float), np.array(others, float))
    labels = [1] * len(members) + [0] * len(others)
    assert auc == pytest.approx(roc_auc_score(labels, members + others), abs=1e-12)
    assert 0 <= low <= auc <= high <= 1


def test_the_aucs_interval_covers_chance() -> None:
    rng = np.random.default_rng(0)
    missed = 0
    for _ in range(400):
        _, low, high = auc_interval(rng.normal(size=80), rng.normal(size=80))
        missed += not low <= 0.5 <= high
    assert missed <= 400 * 0.05 + 3 * np.sqrt(400 * 0.05 * 0.95)


def test_randomised_response_is_rarely_overstated_and_found_at_half_its_noise() -> None:
    """Answers that are true with probability e^ε/(1+e^ε) are exactly ε-private."""
    rng, epsilon, count = np.random.default_rng(2), 1.0, 4000
    truth = np.exp(epsilon) / (1 + np.exp(epsilon))
    bounds = []
    for _ in range(200):
        hits, misses = rng.binomial(count, truth), rng.binomial(count, 1 - truth)
        bounds.append(epsilon_lower_bound(hits, count, misses, count, 0.0))
    assert np.mean(np.array(bounds) > epsilon) <= 0.05
    assert np.mean(bounds) > 0.85 * epsilon


@given(st.integers(2, 3000), st.data())
def test_the_quick_interval_is_near_the_exact_one(trials: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, trials))
    low, high = about(np.array([float(successes)]), trials, 0.025)
    exact = proportion_interval(successes, trials)
    assert abs(float(low[0]) - exact[0]) < 0.8 / trials**0.5
    assert abs(float(high[0]) - exact[1]) < 0.8 / trials**0.5
    assert 0 <= low[0] <= successes / trials + 1e-12
    assert successes / trials - 1e-12 <= high[0] <= 1
