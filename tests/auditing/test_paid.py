"""An attack's AUC that is paid for: what one record moves, its noise, its interval, and planted faults."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from airlock.accounting import spend
from airlock.auditing.metrics import roc
from airlock.auditing.paid import PaidFigure, attack_event, paid_auc, slotted_auc
from airlock.data import Records
from airlock.mechanisms import Stream
from airlock.methods.features.rows import keep

Floats = NDArray[np.float64]
Auc = Callable[[Floats, Floats, int, int], float]


def test_full_slots_are_the_usual_auc_and_empty_ones_draw_it_to_chance() -> None:
    chance = np.random.default_rng(1)
    members, others = chance.integers(0, 9, 60) / 4.0, chance.integers(0, 7, 40) / 4.0
    whole = slotted_auc(members, others, 60, 40)
    assert whole == pytest.approx(roc(members, others).auc, abs=1e-12)
    assert slotted_auc(members, others, 120, 40) == pytest.approx((whole + 0.5) / 2)
    assert slotted_auc(members[:0], others, 60, 40) == 0.5
    assert slotted_auc(np.array([1.0, np.nan]), np.array([0.5]), 2, 1) == 0.5  # no number, no win
    with pytest.raises(ValueError, match="slots"):
        slotted_auc(members, others, 59, 40)


def scores(records: Records) -> Floats:
    """A score that depends on its own record alone."""
    return np.asarray(records.x[:, 0], np.float64)


def kept(records: Records, count: int) -> Floats:
    return scores(records.take(keep(records, count, b"secret" * 6)))


def people(count: int, seed: int) -> Records:
    return Records(np.random.default_rng(seed).integers(0, 6, (count, 3)).astype(np.float32), np.zeros(count, np.int64))


def moves(auc: Auc, count: int, beside: int, m: int, n: int, seed: int) -> tuple[float, float]:
    """How far taking away one member, and one other, moves an AUC at most."""
    members, others = people(count, seed), people(beside, seed + 1)
    whole = auc(kept(members, m), kept(others, n), m, n)
    of_members = [
        auc(kept(members.take(np.delete(np.arange(count), place)), m), kept(others, n), m, n) for place in range(count)
    ]
    of_others = [
        auc(kept(members, m), kept(others.take(np.delete(np.arange(beside), place)), n), m, n)
        for place in range(beside)
    ]
    return float(np.abs(np.subtract(of_members, whole)).max()), float(np.abs(np.subtract(of_others, whole)).max())


@given(st.integers(1, 14), st.integers(1, 14), st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**31))
def test_one_record_moves_it_by_its_share_of_the_slots(count: int, beside: int, m: int, n: int, seed: int) -> None:
    by_member, by_other = moves(slotted_auc, count, beside, m, n, seed)
    assert by_member <= 1 / m + 1e-12
    assert by_other <= 1 / n + 1e-12


def counted_auc(members: Floats, others: Floats, m: int, n: int) -> float:
    """A fault: over the records that are there, so that their number decides what one of them moves."""
    return roc(members, others).auc if len(members) and len(others) else 0.5


def test_an_auc_over_the_real_number_of_records_moves_further() -> None:
    assert max(moves(counted_auc, 4, 3, 12, 12, 0)) > 1 / 12


def noises(m: int, n: int, epsilon: float, count: int = 1200) -> Floats:
    """The noise on an AUC of one half."""
    nobody = np.empty(0)
    stream = Stream.from_seed(7)
    drawn = [_uncut(paid_auc("x", nobody, nobody, m, n, epsilon, stream.child(i))) - 0.5 for i in range(count)]
    return np.array(drawn)


def _uncut(figure: PaidFigure) -> float:
    assert 0.0 < figure.value < 1.0
    return figure.value


def test_the_noise_is_laplace_scaled_to_the_larger_share() -> None:
    m, n, epsilon = 300, 200, 0.5
    found, scale = noises(m, n, epsilon), 1 / (200 * 0.5)
    assert stats.kstest(found / scale, "laplace").pvalue > 1e-4
    assert stats.kstest(found / scale / 2, "laplace").pvalue < 1e-6
    assert stats.kstest(found / (1 / (300 * 0.5)), "laplace").pvalue < 1e-6  # scaled to the smaller one


def test_the_event_is_that_of_all_attacks() -> None:
    assert spend(attack_event(0.2, 1), 1e-9).epsilon == pytest.approx(0.2, rel=1e-3)
    assert spend(attack_event(0.2, 2), 1e-9).epsilon == pytest.approx(0.4, rel=1e-3)


@pytest.mark.parametrize(
    ("m", "epsilon", "gap"), [(100, 0.2, 0.0), (100, 2.0, 0.5), (1000, 0.05, 0.2), (400, 1.0, 1.5)]
)
def test_intervals_hold(m: int, epsilon: float, gap: float) -> None:
    """Members' scores lie `gap` deviations above the others': the true AUC is Φ(gap/√2)."""
    chance, stream, runs = np.random.default_rng(3), Stream.from_seed(4), 400
    truth, held = stats.norm.cdf(gap / math.sqrt(2)), 0
    for run in range(runs):
        made = paid_auc("x", chance.normal(gap, 1, m), chance.normal(0, 1, m), m, m, epsilon, stream.child(run))
        held += made.low <= truth <= made.high
    assert held >= 0.94 * runs


def test_a_figure_lies_within_its_interval_even_when_noise_throws_it_out() -> None:
    for seed in range(50):
        made = paid_auc("x", np.ones(3), np.zeros(3), 3, 3, 0.1, Stream.from_seed(seed))
        assert made.low <= made.value <= made.high
