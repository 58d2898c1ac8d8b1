"""BaVarIA against its formulas written out record by record, LiRA as its limit, and known laws."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import polygamma

from airlock.auditing.attacks import balanced, bavaria
from airlock.auditing.attacks.bavaria import _near, _Side, _trigamma_inverse, offline, online
from airlock.auditing.attacks.lira import online as lira_online
from airlock.auditing.attacks.signals import scaled_logit
from airlock.errors import ConfigError
from airlock.training import predict
from tests.auditing.attacks.toy import at_chance, auc, beats_chance, world

Kind = Literal["online", "offline"]


def drawn(records: int, models: int, seed: int, shape: float = 4.0) -> tuple[np.ndarray, ...]:
    """Signals of records whose means and variances differ, of one target and of shadow models; who was a member."""
    rng = np.random.default_rng(seed)
    inside, member = balanced(models, records, seed), rng.random(records) < 0.5
    out = rng.normal(5, 3, records)
    mean = np.stack([out, out + 2.0 * stats.norm.sf(out, 3, 2) + rng.normal(0, 0.2, records)])
    sd = 1 / np.sqrt(rng.gamma(shape, 1 / shape, (2, records)))

    def signals(side: np.ndarray) -> np.ndarray:
        return np.where(side, mean[1], mean[0]) + np.where(side, sd[1], sd[0]) * rng.normal(size=side.shape)

    return signals(member), signals(inside), inside, member


def area(scores: np.ndarray, member: np.ndarray) -> float:
    return float(stats.mannwhitneyu(scores[member], scores[~member]).statistic / member.sum() / (~member).sum())


def test_a_posterior_is_what_its_definition_says() -> None:
    """One record at a time, by the textbook's update and predictive law."""
    _, shadows, inside, _ = drawn(200, 12, 1)
    side = _Side.of(shadows, ~inside)
    guide, centre = side.shrunk(), np.full(200, side.mean.mean())
    free, place, scale = side.predicts(guide, centre)
    nu, square = side.alike(), side.pooled()
    kappa = np.clip(square / np.maximum(_near(guide, (side.mean - centre) ** 2 - square / 6, guide), 1e-300), 1e-4, 1e4)
    for record in range(200):
        own = shadows[~inside[:, record], record]
        mean, known, shape, rate = centre[0], kappa[record], nu / 2, nu * square / 2
        for signal in own:  # one signal after another
            rate += known * (signal - mean) ** 2 / (2 * (known + 1))
            mean, known, shape = (known * mean + signal) / (known + 1), known + 1, shape + 0.5
        assert free[record] == pytest.approx(2 * shape)
        assert place[record] == pytest.approx(mean)
        assert scale[record] == pytest.approx(np.sqrt(rate / shape * (known + 1) / known))


@pytest.mark.parametrize("shape", [1.5, 4.0, 20.0])
def test_how_alike_variances_are_is_recovered(shape: float) -> None:
    """The precisions are gamma with this shape, so ν is twice that."""
    found = [_Side.of(signals, inside).alike() for _, signals, inside, _ in (drawn(4000, 16, s, shape) for s in (2, 3))]
    assert 0.7 * 2 * shape < np.mean(found) < 1.5 * 2 * shape
    same = np.random.default_rng(4).normal(size=(16, 4000))
    assert _Side.of(same, balanced(16, 4000, 4)).alike() > 200


def test_the_trigamma_function_is_inverted() -> None:
    for x in (1e-4, 0.01, 0.5, 1.0, 7.0, 1e3, 1e7):
        assert _trigamma_inverse(float(polygamma(1, x))) == pytest.approx(x, rel=1e-3)


def test_a_local_line_is_exact_on_a_line_and_follows_a_curve() -> None:
    x = np.random.default_rng(5).normal(size=1000)
    assert np.abs(_near(x, 3 * x - 2, x) - (3 * x - 2)).max() < 1e-9
    assert np.abs(_near(x, x**2, x) - x**2)[np.abs(x) < 2].max() < 0.2
    assert np.abs(_near(np.ones(40), x[:40], np.ones(40)) - x[:40].mean()).max() < 1e-9


def test_it_beats_lira_where_there_are_few_models_and_variances_differ() -> None:
    gains = []
    for seed in range(5):
        target, shadows, inside, member = drawn(3000, 8, 10 + seed)
        ours = area(online(target, shadows, inside), member)
        gains.append([ours - area(lira_online(target, shadows, inside, v), member) for v in ("global", "record")])
    assert np.mean(gains, 0).min() > 0.005
    assert min(min(both) for both in gains) > 0


def test_with_many_models_it_is_lira_with_each_records_own_variance() -> None:
    target, shadows, inside, _ = drawn(400, 1500, 20)
    many = stats.spearmanr(online(target, shadows, inside), lira_online(target, shadows, inside, "record")).statistic
    assert many > 0.999


def test_uninformative_signals_tell_nothing() -> None:
    rng = np.random.default_rng(22)
    areas = []
    for _ in range(20):
        inside, member = balanced(8, 500, int(rng.integers(99))), rng.random(500) < 0.5
        areas.append(area(online(rng.normal(size=500), rng.normal(size=(8, 500)), inside), member))
    assert abs(np.mean(areas) - 0.5) < 0.02


@given(st.permutations(range(9)), st.integers(0, 99))
def test_permuted_records_have_permuted_scores(order: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    inside, shadows, target = balanced(6, 9, seed), rng.normal(size=(6, 9)), rng.normal(size=9)
    for score in (online, offline):
        whole = score(target, shadows, inside)
        assert np.isfinite(whole).all()
        assert np.allclose(score(target[order], shadows[:, order], inside[:, order]), whole[order], atol=1e-9)


@pytest.mark.parametrize("predictive", ["student", "normal"])
@pytest.mark.parametrize("kind", ["online", "offline"])
def test_it_finds_what_a_net_remembers_and_nothing_else(kind: Kind, predictive: Literal["student", "normal"]) -> None:
    here = world()
    found = bavaria(kind, predict(here.target, here.pool).numpy(), here.member, here.shadows, predictive)
    assert beats_chance(found), auc(found)
    assert at_chance(bavaria(kind, predict(here.stranger, here.pool).numpy(), here.member, here.shadows, predictive))
    assert found.name == f"BaVarIA, {kind}"
    assert found.member_repeats is not None
    assert found.member_repeats.shape == (2, len(found.members))


@pytest.mark.parametrize("kind", ["online", "offline"])
def test_a_record_whose_models_agree_exactly_has_a_finite_score(kind: Kind) -> None:
    here = world()
    own, signals = scaled_logit(predict(here.target, here.pool).numpy(), here.pool.y), here.shadows.each(scaled_logit)
    signals[:, 3] = 1.0
    score = {"online": online, "offline": offline}[kind]
    assert np.isfinite(score(own, signals, here.shadows.inside)).all()
    assert np.isfinite(score(own, np.zeros_like(signals), here.shadows.inside)).all()


def test_too_few_models_are_refused() -> None:
    with pytest.raises(ConfigError, match="for some record two"):
        online(np.zeros(4), np.zeros((2, 4)), balanced(2, 4, 0))
    with pytest.raises(ConfigError, match="with and one without"):
        offline(np.zeros(4), np.zeros((4, 4)), np.ones((4, 4), bool))
