"""Quantile regression: its quantiles on records with known ones, and on nets that do and do not remember."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm

from airlock.auditing.attacks import AnsweredRecords, QuantileSettings, quantile_regression
from airlock.auditing.attacks.quantile import LEVELS, _pinball, _rising, place
from airlock.data import Records
from airlock.errors import DataError
from airlock.training import predict
from tests.auditing.attacks.toy import RUN, at_chance, auc, sides, world


def test_a_place_among_quantiles_is_a_normal_score() -> None:
    marks = norm.ppf(LEVELS)
    quantiles = np.tile(3 + 2 * marks, (5, 1))
    assert np.allclose(place(np.array([-9.0, 1.0, 3.0, 4.5, 30.0]), quantiles), [-6, -1, 0, 0.75, 13.5], atol=1e-6)
    assert np.isfinite(place(np.array([-1.0, 0.0, 1.0]), np.zeros((3, len(LEVELS))))).all()
    steps = np.sort(np.random.default_rng(0).normal(size=(50, len(LEVELS))), 1)
    rising = np.stack([place(np.full(50, at), steps) for at in np.linspace(-4, 4, 81)])
    assert (np.diff(rising, axis=0) > 0).all()


def test_quantiles_never_cross_and_the_loss_is_least_at_the_true_ones() -> None:
    raw = torch.from_numpy(np.random.default_rng(1).normal(0, 5, (100, len(LEVELS))))
    assert (torch.diff(_rising(raw), dim=1) > 0).all()
    signals = torch.from_numpy(np.random.default_rng(2).normal(size=200_000))
    true = torch.from_numpy(norm.ppf(LEVELS))
    least = float(_pinball(true.repeat(len(signals), 1), signals))
    for level in range(len(LEVELS)):
        for shift in (-0.1, 0.1):
            moved = true.clone()
            moved[level] += shift
            assert float(_pinball(moved.repeat(len(signals), 1), signals)) > least


def answered(count: int, seed: int, extra: float = 0.0) -> AnsweredRecords:
    """Records whose signal is normal, with a mean and a deviation that follow from the record."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (count, 3)).astype(np.float32)
    y = rng.integers(0, 2, count)
    signal = 3 * x[:, 0] + 2 * y + (0.3 + 0.7 * (x[:, 1] > 0)) * (rng.normal(size=count) + extra)
    logits = np.zeros((count, 2))
    logits[np.arange(count), y] = signal
    return AnsweredRecords(Records(x, y), logits)


def test_scores_of_non_members_are_standard_normal_and_members_stand_out() -> None:
    known, members, others = answered(4000, 3), answered(3000, 4, 1.0), answered(3000, 5)
    found = quantile_regression(known, members, others, 0, RUN, QuantileSettings(repeats=1))
    assert abs(found.others.mean()) < 0.1
    assert 0.9 < found.others.std() < 1.2
    assert 0.005 < (found.others > norm.ppf(0.99)).mean() < 0.025
    assert found.members.mean() - found.others.mean() > 0.85  # 1 by the truth
    assert found.member_repeats is None


def test_it_finds_what_a_net_remembers_and_nothing_else() -> None:
    here = world()
    for net, known in ((here.target, here.elsewhere), (here.stranger, here.elsewhere.take(np.arange(200, 800)))):
        asked = [AnsweredRecords(side, predict(net, side).numpy()) for side in (known, *sides(here))]
        found = quantile_regression(*asked, 1, RUN)
        if net is here.target:
            assert auc(found)[1] > 0.55, auc(found)
            assert found.member_repeats is not None
            assert found.member_repeats.shape == (2, len(found.members))
            assert np.array_equal(found.members, quantile_regression(*asked, 1, RUN).members)
        else:
            assert at_chance(found)


def test_too_few_known_records_are_refused() -> None:
    few = answered(199, 6)
    with pytest.raises(DataError, match="at least 200 known records"):
        quantile_regression(few, few, few, 0, RUN)


def test_features_that_never_change_and_odd_ones_do_no_harm() -> None:
    known, other = answered(300, 7), answered(50, 8)
    known.records.x[:, 2] = 1.0
    other.records.x[0, 2] = 1e6
    found = quantile_regression(known, other, other, 0, RUN, QuantileSettings(epochs=2))
    assert np.isfinite(found.members).all()
