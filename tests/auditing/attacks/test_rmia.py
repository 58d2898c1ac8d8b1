"""RMIA against a loop over all pairs, and on nets that do and do not remember."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlock.auditing.attacks import Shadows, balanced, rmia
from airlock.auditing.attacks.rmia import at_large, pairwise
from airlock.auditing.attacks.signals import probability_of
from airlock.errors import ConfigError, DataError
from airlock.training import Resident, predict
from tests.auditing.attacks.toy import RUN, World, at_chance, auc, beats_chance, world

Kind = Literal["online", "offline"]


def population(here: World) -> Shadows:
    apart = here.elsewhere.take(np.arange(400, 800))
    logits = here.models.logits(Resident(apart, RUN.device)).numpy()
    return Shadows(np.zeros((len(here.shadows), len(apart)), bool), logits, apart.y)


def slow(x: np.ndarray, p_x: np.ndarray, z: np.ndarray, p_z: np.ndarray, gamma: float) -> np.ndarray:
    share = np.zeros(len(x))
    for i in range(len(x)):
        for j in range(len(z)):
            share[i] += (x[i] / p_x[i]) >= gamma * (z[j] / p_z[j])
    return share / len(z)


@given(st.integers(0, 999), st.sampled_from([0.7, 1.0, 2.0]), st.sampled_from([None, 0.0, 0.3, 1.0]))
def test_scores_equal_a_loop_over_pairs(seed: int, gamma: float, a: float | None) -> None:
    rng = np.random.default_rng(seed)
    inside = balanced(6, 8, seed)
    own, x, z, p_z = rng.random((6, 8)), rng.random(8), rng.random(11), rng.random(11)
    p_x = np.zeros(8)
    for r in range(8):
        with_it, without = own[inside[:, r], r].mean(), own[~inside[:, r], r].mean()
        p_x[r] = (with_it + without) / 2 if a is None else ((1 + a) * without + 1 - a) / 2
    assert np.allclose(at_large(own, inside, a), p_x, atol=1e-12)
    found = pairwise(x / at_large(own, inside, a), z / p_z, gamma)
    assert np.abs(found - slow(x, at_large(own, inside, a), z, p_z, gamma)).max() < 1e-9


def test_equal_ratios_count() -> None:
    assert pairwise(np.array([1.0, 2.0, 0.5]), np.array([1.0, 1.0, 2.0]), 1.0) == pytest.approx([2 / 3, 1, 0])


@pytest.mark.parametrize("kind", ["online", "offline"])
def test_it_finds_what_a_net_remembers_and_nothing_else(kind: Kind) -> None:
    here = world()
    beside = population(here)
    apart = here.elsewhere.take(np.arange(400, 800))
    for net, judge in ((here.target, beats_chance), (here.stranger, at_chance)):
        logits = [predict(net, records).numpy() for records in (here.pool, apart)]
        found = rmia(kind, logits[0], here.member, here.shadows, beside, logits[1])
        assert judge(found), auc(found)
    assert found.other_repeats is not None
    assert found.other_repeats.shape == (2, len(found.others))


def test_the_whole_attack_equals_the_slow_one_and_ignores_constants() -> None:
    here = world()
    beside, apart = population(here), here.elsewhere.take(np.arange(400, 800))
    x, z = (predict(here.target, records).numpy() for records in (here.pool, apart))
    found = rmia("offline", x + 3, here.member, here.shadows, beside, z - 2, a=0.3)
    own, others = here.shadows.each(probability_of), beside.each(probability_of)
    p_x, p_z = at_large(own, here.shadows.inside, 0.3), at_large(others, beside.inside, 0.3)
    expected = slow(probability_of(x, here.pool.y), p_x, probability_of(z, apart.y), p_z, 1.0)
    assert np.abs(found.members - expected[here.member]).mean() < 1e-3


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(DataError, match="at least one shadow model with"):
        at_large(np.ones((2, 3)), np.zeros((2, 3), bool), None)
    with pytest.raises(ConfigError, match="a of RMIA"):
        at_large(np.ones((2, 3)), np.zeros((2, 3), bool), 1.5)
    with pytest.raises(ConfigError, match="positive"):
        pairwise(np.ones(2), np.ones(2), 0.0)
