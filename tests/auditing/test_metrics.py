"""Figures of attacks: equal to scikit-learn's, right about ties, and honest about what was chosen on which records."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score, roc_curve

from airlock.auditing import AttackResult, Audit, Scores, measure, measure_all, roc
from airlock.auditing.bounds import Floats, auc_interval
from airlock.auditing.metrics import GRID, RATES, advantage, per_class, rate_at, stability, thinned
from airlock.auditing.one_run_audit import Game, largest_membership_bound, membership_bound
from airlock.errors import DataError

TIED = st.lists(st.integers(0, 6).map(float), min_size=2, max_size=40)
ANY = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40)


def scores(members: Floats, others: Floats, **more: object) -> Scores:
    settings: dict[str, object] = {
        "name": "a score",
        "question": "Was it in?",
        "view": "black-box",
        "members": members,
        "others": others,
        "member_classes": np.zeros(len(members), int),
        "other_classes": np.zeros(len(others), int),
    }
    return Scores(**(settings | more))  # type: ignore[arg-type]


def measured(members: Floats, others: Floats, delta: float = 1e-5, **more: object) -> AttackResult:
    return measure(scores(members, others, **more), delta)


@given(TIED | ANY, TIED | ANY)
def test_the_curve_is_scikit_learns(members: list[float], others: list[float]) -> None:
    curve = roc(np.array(members), np.array(others))
    labels = [1] * len(members) + [0] * len(others)
    fpr, tpr, thresholds = roc_curve(labels, members + others, drop_intermediate=False)
    np.testing.assert_allclose(curve.false_positive_rates, fpr, atol=1e-9)
    np.testing.assert_allclose(curve.true_positive_rates, tpr, atol=1e-9)
    np.testing.assert_allclose(curve.thresholds[1:], thresholds[1:])
    assert curve.auc == pytest.approx(roc_auc_score(labels, members + others), abs=1e-9)


@given(TIED | ANY, TIED | ANY)
def test_the_curve_rises_to_one_one_and_turns_round_when_the_sides_are_swapped(
    members: list[float], others: list[float]
) -> None:
    a, b = np.array(members), np.array(others)
    curve = roc(a, b)
    assert (np.diff(curve.false_positive_rates) >= 0).all()
    assert (np.diff(curve.true_positive_rates) >= 0).all()
    assert (curve.false_positive_rates[0], curve.true_positive_rates[0]) == (0, 0)
    assert (curve.false_positive_rates[-1], curve.true_positive_rates[-1]) == (1, 1)
    assert roc(b, a).auc == pytest.approx(1 - curve.auc, abs=1e-12)
    assert curve.auc == pytest.approx(auc_interval(a, b)[0], abs=1e-12)


@given(st.integers(2, 50), st.integers(2, 50), st.floats(-10, 10))
def test_a_constant_score_is_worth_nothing(m: int, n: int, value: float) -> None:
    curve = roc(np.full(m, value), np.full(n, value))
    assert curve.auc == 0.5
    assert [curve.at(rate) for rate in GRID] == pytest.approx(GRID)
    result = measured(np.full(m, value), np.full(n, value))
    assert (result.value, result.epsilon_lower_bound) == (0.5, 0.0)
    assert result.low <= 0.5 <= result.high
    assert result.advantage
    assert result.advantage.value == 0
    assert result.advantage.low <= 0 <= result.advantage.high


def test_infinite_scores_are_ranked_and_missing_ones_refused() -> None:
    assert roc(np.array([np.inf, 0.0]), np.array([-np.inf, 0.0])).auc == 0.875
    with pytest.raises(DataError, match="NaN"):
        roc(np.array([np.nan]), np.zeros(3))
    with pytest.raises(DataError, match="at least one record"):
        roc(np.zeros(0), np.zeros(3))


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("rate", RATES)
def test_members_found_at_a_rate_are_the_empirical_curves(rate: float, rounded: bool) -> None:
    rng = np.random.default_rng(5)
    members, others = rng.normal(0.7, 1.2, 1500), rng.normal(size=12_300)
    if rounded:
        members, others = members.round(1), others.round(1)
    fpr, tpr, _ = roc_curve([1] * 1500 + [0] * 12_300, np.concatenate([members, others]), drop_intermediate=False)
    found = rate_at(members, others, rate)
    assert found.value == pytest.approx(tpr[fpr <= rate].max(), abs=1e-9)
    assert found.refused is None
    assert found.low < found.value < found.high or found.value == found.low == 0
    assert found.false_positive_rate_high > rate


def test_rates_are_refused_with_an_explanation_below_1000_non_members() -> None:
    rng = np.random.default_rng(6)
    few = measured(rng.normal(size=5000), rng.normal(size=999))
    for rate in few.rates:
        assert rate.value is rate.low is rate.high is rate.false_positive_rate_high is None
        assert rate.refused
        assert "999 non-members" in rate.refused
        assert f"at least {max(1000, round(1 / rate.false_positive_rate)):,}" in rate.refused
    assert min(at for at, _ in few.curve) > 0.01
    enough = measured(rng.normal(size=50), rng.normal(size=1000))
    assert [rate.value is None for rate in enough.rates] == [True, False, False]
    assert [rate.refused is None for rate in enough.rates] == [False, True, True]
    assert "at least 10,000" in str(enough.rates[0].refused)
    assert all(rate.value is not None for rate in measured(rng.normal(size=50), rng.normal(size=10_000)).rates)
    assert [at for at, _ in enough.curve] == list(GRID)


def test_intervals_of_rates_cover_the_real_rates() -> None:
    """The threshold follows the non-members; both rates at it are known here, and both are covered."""
    from scipy.stats import norm

    rng, missed_true, missed_false = np.random.default_rng(7), 0, 0
    for _ in range(400):
        members, others = rng.normal(1.0, 1.0, 300), rng.normal(size=1000)
        found = rate_at(members, others, 0.01)
        bar = np.sort(others)[-11]
        missed_true += not found.low <= norm.sf(bar - 1.0) <= found.high
        missed_false += norm.sf(bar) > found.false_positive_rate_high
    assert missed_true <= 20 + 3 * np.sqrt(19)
    assert 5 <= missed_false <= 20 + 3 * np.sqrt(19)  # exact, so a bound that is too cautious fails too


def test_the_advantage_is_that_of_a_threshold_which_other_records_chose() -> None:
    rng, values, largest, missed = np.random.default_rng(8), [], [], 0
    for _ in range(300):
        found = advantage(rng.normal(size=60), rng.normal(size=60))
        assert found
        values.append(found.value)
        largest.append(found.largest)
        missed += not found.low <= 0 <= found.high
        assert found.balanced_accuracy == pytest.approx((1 + found.value) / 2)
        assert found.value == pytest.approx(found.true_positive_rate - found.false_positive_rate)
    assert abs(np.mean(values)) < 0.03  # a score that knows nothing gains nothing
    assert np.mean(largest) > 0.1  # while the best of all thresholds seems to
    assert missed <= 15


def test_the_largest_advantage_is_what_other_tools_print() -> None:
    rng = np.random.default_rng(9)
    members, others = rng.normal(0.5, 1, 500).round(1), rng.normal(size=400).round(1)
    fpr, tpr, _ = roc_curve([1] * 500 + [0] * 400, np.concatenate([members, others]))
    found = advantage(members, others)
    assert found
    assert found.largest == pytest.approx((tpr - fpr).max(), abs=1e-9)


def test_a_true_epsilon_of_zero_is_rarely_refuted() -> None:
    rng = np.random.default_rng(1)
    positive = sum(measured(rng.normal(size=200), rng.normal(size=200)).epsilon_lower_bound > 0 for _ in range(400))
    assert positive <= 20


def test_the_bounds_of_several_attacks_share_the_error() -> None:
    """The largest of their bounds is what a card acts on, so it must hold with the stated confidence."""
    rng = np.random.default_rng(2)
    several = [scores(rng.normal(1.5, 1, 2000), rng.normal(size=2000)) for _ in range(6)]
    for one, together in zip(several, measure_all(several, 1e-5), strict=True):
        alone = measure(one, 1e-5)
        assert together.epsilon_lower_bound == membership_bound(one.members, one.others, 1e-5, 1 - 0.05 / 6)
        assert 0 < together.epsilon_lower_bound < alone.epsilon_lower_bound
        assert together.could_refute < alone.could_refute
        assert (together.value, together.low, together.high) == (alone.value, alone.low, alone.high)


def test_a_model_that_remembers_is_caught() -> None:
    rng = np.random.default_rng(3)
    result = measured(-rng.exponential(0.01, 500), -rng.exponential(1.0, 500))
    assert result.value > 0.95
    assert result.low > result.smallest_effect > 0.5
    assert result.advantage
    assert result.advantage.low > 0.7
    assert 1 < result.epsilon_lower_bound <= result.could_refute


def test_what_could_have_been_refuted_is_what_a_perfect_score_refutes() -> None:
    result = measured(np.ones(1000), np.zeros(1000))
    assert result.could_refute == largest_membership_bound(1000, 1e-5, 0.95)
    assert result.could_refute - 0.1 < result.epsilon_lower_bound <= result.could_refute
    few = Game(np.tile([1, 2, 0, 0], 250).astype(np.int8), np.tile([1, 2, 0, 0], 250).astype(np.int8), 490)
    fewer = measure(scores(np.ones(1000), np.zeros(1000)), 1e-5, game=few)
    assert fewer.could_refute == fewer.epsilon_lower_bound == largest_membership_bound(490, 1e-5, 0.95)


def test_members_in_the_tail_alone_give_a_bound() -> None:
    """1% of 10,000 found outright, and no false alarm."""
    rng = np.random.default_rng(13)
    members, others = rng.normal(size=(2, 10_000))
    members[rng.permutation(10_000)[:100]] += 20.0
    assert 1.9 < measured(members, others).epsilon_lower_bound < 3.5


def test_a_release_that_gives_away_what_its_delta_allows_is_rarely_refuted() -> None:
    """(0, δ)-private: in one run of ten, each of 500 members is given away with probability 10 δ."""
    rng, delta, wrong = np.random.default_rng(14), 0.01, 0
    for _ in range(100):
        members, others = rng.normal(size=(2, 500))
        given = (rng.random(500) < 10 * delta) & (rng.random() < 0.1)
        wrong += measured(np.where(given, members + 20, members), others, delta).epsilon_lower_bound > 0
    assert wrong <= 5


def test_a_replaced_record_is_another_relation() -> None:
    rng = np.random.default_rng(15)
    both = scores(rng.normal(1.0, 1, 4000), rng.normal(size=4000))
    added = measure(both, 1e-5).epsilon_lower_bound
    replaced = measure(both, 1e-5, relation="replace-one").epsilon_lower_bound
    assert added > 0
    assert replaced > 0
    assert added != replaced


def test_classes_are_measured_on_a_public_number_of_records() -> None:
    rng = np.random.default_rng(4)
    member_classes, other_classes = rng.choice(4, 2000, p=[0.5, 0.3, 0.18, 0.02]), rng.integers(0, 4, 2000)
    members, others = rng.normal(size=2000) + 1.5 * (member_classes == 1), rng.normal(size=2000)
    given_scores = scores(members, others, member_classes=member_classes, other_classes=other_classes)
    first, second, third, last = per_class(given_scores, ("a", "b", "c", "d"))
    expected = auc_interval(members[member_classes == 1][:250], others[other_classes == 1][:250])
    assert (second.name, second.value, second.low, second.high) == ("b", *expected)
    assert second.low
    assert first.high
    assert second.low > first.high
    assert third.value is not None
    assert (last.value, last.low, last.high) == (None, None, None)
    assert per_class(given_scores, ()) == ()


def test_stability_over_seeds() -> None:
    rng = np.random.default_rng(10)
    truth = rng.normal(size=2000)
    same = stability(np.stack([truth, truth * 3 + 1, np.exp(truth)]))
    assert same
    assert same.rank_correlation == pytest.approx(1)
    assert same.stays_on_top == 1
    noise = stability(rng.normal(size=(5, 2000)))
    assert noise
    assert abs(noise.rank_correlation or 0) < 0.05
    assert noise.stays_on_top == 0
    constant = stability(np.ones((3, 2000)))
    assert constant
    assert constant.rank_correlation is None
    assert constant.stays_on_top == 0
    few = stability(rng.normal(size=(3, 999)))
    assert few
    assert few.stays_on_top is None
    assert stability(truth[None]) is None
    assert measured(truth, truth, member_repeats=np.stack([truth, truth])).stability is not None


def test_the_curve_leaves_on_a_fixed_grid_only() -> None:
    rng = np.random.default_rng(11)
    members, others = rng.normal(1, 1, 5000), rng.normal(size=5000)
    points = thinned(roc(members, others), 5000)
    assert tuple(at for at, _ in points) == GRID
    assert points[-1] == (1.0, 1.0)
    assert dict(points)[0.01] == pytest.approx(rate_at(members, others, 0.01).value)


def test_what_is_written_is_rounded_to_the_safe_side() -> None:
    rng = np.random.default_rng(12)
    result = measured(rng.normal(1, 1, 1234), rng.normal(size=1234), member_repeats=rng.normal(size=(2, 1234)))
    table = dataclasses.asdict(result.rounded())
    assert table["low"] <= result.low
    assert table["high"] >= result.high
    assert 0 <= result.epsilon_lower_bound - table["epsilon_lower_bound"] < 1e-4
    for told, rate in zip(table["rates"], result.rates, strict=True):
        assert rate.value is None or told["low"] <= rate.low
        assert rate.value is None or told["false_positive_rate_high"] >= rate.false_positive_rate_high
    assert table["curve"][0][0] == 0.001
    assert table["stability"]["seeds"] == 2


def test_an_audit_of_nothing_rarely_says_that_an_attack_does_better_than_chance() -> None:
    """Eight attacks with scores of pure chance, 300 times: at most the stated error of the audits names one."""
    rng = np.random.default_rng(7)
    one, jointly, singly = measured(rng.normal(size=100), rng.normal(size=100)), 0, 0
    for _ in range(300):
        found = [auc_interval(rng.normal(size=100), rng.normal(size=100)) for _ in range(8)]
        attacks = tuple(dataclasses.replace(one, value=value, low=low, high=high) for value, low, high in found)
        audit = Audit(attacks, ())
        assert audit.tries == 8
        jointly += bool(audit.beating)
        singly += any(attack.beats_chance() for attack in attacks)
    assert jointly <= 0.05 * 300 < singly


def test_rare_finds_of_pure_chance_are_rarely_named() -> None:
    rng, named = np.random.default_rng(8), 0
    for _ in range(200):
        rates = [rate_at(rng.normal(size=1200), rng.normal(size=1200), rate) for rate in RATES]
        named += any(rate.beats_chance(1200, 1200, 0.95, 3) for rate in rates)
    assert named <= 0.05 * 200
    sure = rate_at(rng.normal(size=1200) + 1.0, rng.normal(size=1200), 0.01)
    assert sure.beats_chance(1200, 1200, 0.95, 30)
