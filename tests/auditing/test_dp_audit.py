"""The court's statistics: they reject what is false, and a true claim no more often than they say."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import dp_accounting as dpa
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from airlock.accounting import Claim, pure
from airlock.auditing import audit_game, dp_audit, judge
from airlock.auditing.bounds import Floats, epsilon_lower_bound
from airlock.auditing.dp_audit import fixed_in_family
from airlock.auditing.one_run_audit import membership_bound
from airlock.cli.court import in_words
from airlock.errors import ConfigError
from airlock.mechanisms import Stream
from airlock.methods import Case
from airlock.methods.case import LessNoise, less_noise, scaled

RUNS, ALLOWED = 400, 20  # 5% of the runs may be wrong
Rng = np.random.Generator
Pair = tuple[Floats, Floats]


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The exact curve of a Gaussian mechanism with sensitivity over noise of mu (Balle and Wang 2018)."""
    return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


def gaussian(mu: float, rng: Rng, runs: int) -> Pair:
    return rng.normal(mu, 1.0, runs), rng.normal(0.0, 1.0, runs)


def answers(epsilon: float, rng: Rng, runs: int) -> Pair:
    """Randomised response: exactly ε-private, and its scores are all ties."""
    true = 1 / (1 + math.exp(-epsilon))
    return (rng.random(runs) < true).astype(float), (rng.random(runs) >= true).astype(float)


def leaky(epsilon: float, delta: float, rng: Rng, runs: int) -> Pair:
    """Exactly (ε, δ)-private: randomised response, but the truth outright with probability δ; all scores differ."""
    told = rng.random((2, runs)) < delta
    one, other = answers(epsilon, rng, runs)
    return (
        np.where(told[0], 9.0, one) + 0.1 * rng.random(runs),
        np.where(told[1], -9.0, other) + 0.1 * rng.random(runs),
    )


def one_sided(delta: float, rng: Rng, runs: int) -> Pair:
    """Exactly (0, δ)-private, with tails as heavy as they come: nothing differs but a leak with probability δ."""
    one, other = rng.standard_cauchy((2, runs))
    return np.where(rng.random(runs) < delta, 1e9 * (1 + rng.random(runs)), one), other


def laplace(epsilon: float, rng: Rng, runs: int) -> Pair:
    """Exactly ε-private, and tight in both tails all the way."""
    return rng.laplace(epsilon, 1.0, runs), rng.laplace(0.0, 1.0, runs)


TIGHT: dict[str, tuple[float, float, Callable[[Rng, int], Pair]]] = {
    "a Gaussian at small epsilon": (0.3, gaussian_delta(1.0, 0.3), lambda rng, n: gaussian(1.0, rng, n)),
    "a Gaussian at epsilon 1": (1.0, gaussian_delta(1.0, 1.0), lambda rng, n: gaussian(1.0, rng, n)),
    "randomised response": (1.0, 0.0, lambda rng, n: answers(1.0, rng, n)),
    "randomised response with a delta": (1.0, 0.02, lambda rng, n: leaky(1.0, 0.02, rng, n)),
    "a leak outright with probability delta": (0.0, 0.01, lambda rng, n: one_sided(0.01, rng, n)),
    "a rare leak": (0.5, 0.002, lambda rng, n: leaky(0.5, 0.002, rng, n)),
    "Laplace noise": (1.0, 0.0, lambda rng, n: laplace(1.0, rng, n)),
    "rounded scores": (1.0, gaussian_delta(1.0, 1.0), lambda rng, n: tuple(map(np.round, gaussian(1.0, rng, n)))),  # type: ignore[return-value,dict-item]
}


@pytest.mark.parametrize(("epsilon", "pairs"), [(0.1, 14), (1.0, 28), (3.0, 181), (8.0, 26_123)])
def test_a_perfect_distinguisher_needs_so_many_pairs(epsilon: float, pairs: int) -> None:
    test = dp_audit.Sequential(epsilon, 0.0, 1e-3)
    in_all, in_none = np.ones(30_000, bool), np.zeros(30_000, bool)
    assert not test.bet(in_all[: pairs - 1], in_none[: pairs - 1])
    assert test.bet(in_all[:1], in_none[:1])
    assert test.rejected_after == pairs
    assert dp_audit.could_refute(pairs, 0.0, 1e-3) >= epsilon > dp_audit.could_refute(pairs - 1, 0.0, 1e-3)


def test_true_epsilon_zero_rarely_gives_a_positive_bound() -> None:
    rng = np.random.default_rng(1)
    assert sum(dp_audit.fixed(*gaussian(0.0, rng, 400), 1e-5) > 0 for _ in range(RUNS)) <= ALLOWED


def test_many_statistics_and_thresholds_do_not_add_up_to_a_bound() -> None:
    """The largest of many bounds on the same runs is no bound; here all of them compete on one half only."""
    rng = np.random.default_rng(2)
    ours, largest = 0, 0
    for _ in range(100):
        one, other = rng.normal(size=(200, 20)), rng.normal(size=(200, 20))
        ours += dp_audit.fixed(one, other, 1e-5) > 0
        bounds = [
            epsilon_lower_bound(int((one[:, j] >= t).sum()), 200, int((other[:, j] >= t).sum()), 200, 1e-5)
            for j in range(20)
            for t in (-1.0, 0.0, 1.0)
        ]
        largest += max(bounds) > 0
    assert ours <= 5
    assert largest > 10  # the defect that this guards against


def test_runs_that_chose_the_event_are_not_counted() -> None:
    """Choosing and certifying on the same runs overstates; `fixed` certifies on the other half."""
    rng = np.random.default_rng(3)
    ours, reused = 0, 0
    for _ in range(RUNS // 2):
        one, other = rng.normal(size=(2, 200, 8))
        event = dp_audit.choose(one, other, dp_audit.largest_bound(1e-5, 0.95))
        p, q = event.hits(one, other)
        reused += epsilon_lower_bound(int(p.sum()), 200, int(q.sum()), 200, 1e-5) > 0
        ours += dp_audit.fixed(one, other, 1e-5) > 0
    assert ours <= ALLOWED // 2 < reused
    one, other = np.zeros(200), np.ones(200)
    one[::2], other[::2] = 1.0, 0.0  # the halves contradict each other
    assert dp_audit.fixed(one, other, 1e-5) == 0.0


@pytest.mark.parametrize("name", TIGHT)
def test_a_true_claim_at_the_boundary_is_rarely_refuted_by_a_fixed_number_of_runs(name: str) -> None:
    epsilon, delta, draw = TIGHT[name]
    rng = np.random.default_rng(4)
    bounds = [dp_audit.fixed(*draw(rng, 800), delta) for _ in range(RUNS)]
    assert sum(bound > epsilon for bound in bounds) <= ALLOWED
    assert np.mean(bounds) > 0 or epsilon <= 0.5


def refuted_point(one: Floats, other: Floats, points: list[dp_audit.Point]) -> dp_audit.Point | None:
    """The point of a claimed curve that these runs refute, if any; those at even places choose, the others bet."""
    test = dp_audit.PrivacyCurve(points, 0.05)
    test.learn(one[::2], other[::2])
    pairs = min(len(one), len(other)) // 2
    test.bet(one[1::2][:pairs], other[1::2][:pairs])
    return test.refuted


@pytest.mark.parametrize("name", TIGHT)
def test_a_true_claim_at_the_boundary_is_rarely_refuted_however_often_one_looks(name: str) -> None:
    epsilon, delta, draw = TIGHT[name]
    rng = np.random.default_rng(5)
    refuted = sum(refuted_point(*draw(rng, 1600), [(epsilon, delta)]) is not None for _ in range(RUNS))
    assert refuted <= ALLOWED


def test_the_event_at_the_boundary_itself_is_rarely_refuted() -> None:
    """The hardest true claim: the bets are on the very event where it is tight."""
    rng = np.random.default_rng(6)
    refuted, over = 0, 0
    for _ in range(RUNS):
        one, other = answers(1.0, rng, 2000)
        refuted += dp_audit.Sequential(1.0, 0.0, 0.05).bet(one > 0, other > 0)
        over += dp_audit.anytime(one[:500] > 0, other[:500] > 0, 0.0, 0.05) >= 1.0
    assert 0 < refuted <= ALLOWED
    assert over <= ALLOWED


def test_the_whole_curve_is_rarely_refuted_and_half_the_noise_is() -> None:
    points = [(epsilon, gaussian_delta(0.5, epsilon)) for epsilon in (0.0, 0.25, 0.5, 1.0)]
    rng = np.random.default_rng(7)
    assert sum(refuted_point(*gaussian(0.5, rng, 1000), points) is not None for _ in range(RUNS)) <= ALLOWED
    half = [refuted_point(*gaussian(1.0, rng, 1000), points) for _ in range(20)]
    assert None not in half
    assert set(half) <= set(points)


def one_percent(seed: int, records: int = 10_000) -> Pair:
    """One in a hundred is found outright, with no false alarm; nothing is known of the others."""
    rng = np.random.default_rng(seed)
    one, other = rng.normal(size=(2, records))
    one[rng.permutation(records)[: records // 100]] += 20.0
    return one, other


def test_what_shows_in_a_tail_alone_gives_a_bound() -> None:
    """Thresholds at equal steps alone gave 0.08 on average: the tail lies between two of them."""
    bounds = [dp_audit.fixed(*one_percent(seed), 1e-5) for seed in range(10)]
    assert np.mean(bounds) > 1.9
    assert min(bounds) > 1.0
    swapped = [dp_audit.fixed(*one_percent(seed)[::-1], 1e-5) for seed in range(3)]
    below = [dp_audit.fixed(*(-side for side in one_percent(seed)), 1e-5) for seed in range(3)]
    assert bounds[:3] == pytest.approx(swapped)
    assert bounds[:3] == pytest.approx(below)


def test_thresholds_reach_every_rank_of_both_tails_within_a_factor_and_the_middle_of_gaps() -> None:
    rng = np.random.default_rng(11)
    a, b = np.sort(rng.normal(size=1000)), np.sort(rng.normal(3.0, 1.0, 700))
    levels = dp_audit._levels(a, b)
    for side in (a, b):
        for above in (True, False):
            reached = np.unique(dp_audit._within(side, levels, above))
            reached = reached[reached > 0]
            assert reached[0] == 1
            assert (reached[1:] <= 2 * reached[:-1]).all()
    apart = dp_audit.choose(np.array([5.0, 6.0]), np.array([1.0, 2.0]), dp_audit.fastest_growth(0.1, 0.0))
    assert apart.threshold == 3.5
    assert np.isfinite(dp_audit._levels(np.array([-np.inf, 1.0]), np.array([np.inf, 1e308]))).sum() >= 2


def test_a_run_without_a_score_tells_too() -> None:
    """Scores that are no number, with the record alone, are an event as good as any."""
    rng = np.random.default_rng(12)
    one, other = rng.normal(size=(2, 2000))
    one[rng.random(2000) < 0.2] = np.nan
    assert dp_audit.fixed(one, other, 0.0) > 2.0
    assert refuted_point(one, other, [(1.0, 0.0)]) is not None
    assert dp_audit.fixed(one, np.roll(one, 1), 0.0) == 0.0


def test_a_bound_comes_close_with_many_runs() -> None:
    rng = np.random.default_rng(8)
    one, other = answers(1.0, rng, 40_000)
    assert 0.9 < dp_audit.fixed(one, other, 0.0) <= 1.0
    assert 0.9 < dp_audit.anytime(one > 0, other > 0, 0.0, 0.05) <= 1.0


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf])
def test_equal_scores_refute_nothing(value: float) -> None:
    same = np.full(1000, value)
    assert dp_audit.fixed(same, same, 0.0) == 0.0
    assert refuted_point(same, same, [(0.0, 0.0), (0.1, 0.0)]) is None
    assert not judge(
        case_of(lambda rng, n: (np.full(n, value), np.full(n, value)), 0.01, 0.0), Stream.from_seed(0), 500
    ).refuted


def test_an_event_contains_its_threshold_on_both_sides() -> None:
    scores = np.array([1.0, 2.0, 2.0, 3.0])
    for above, wanted in ((True, 3), (False, 3)):
        p, q = dp_audit.Event(0, 2.0, above, False).hits(scores, scores)
        assert (p.sum(), q.sum()) == (wanted, wanted)


def test_no_score_and_too_few_runs_say_nothing() -> None:
    lost = np.full(100, math.nan)
    assert dp_audit.fixed(lost, lost, 0.0) == 0.0
    assert dp_audit.fixed(np.ones(1), np.zeros(1), 0.0) == 0.0


def test_what_would_show_of_randomised_response_does() -> None:
    """At the stated real ε it is refuted about half of the time, and nearly always well above."""
    rng, pairs = np.random.default_rng(9), 1000
    shown = dp_audit.would_show(pairs, [(1.0, 0.0)], 0.05, dp_audit.randomised_response)
    assert shown is not None

    def caught(epsilon: float) -> int:
        drawn = (answers(epsilon, rng, pairs) for _ in range(100))
        return sum(dp_audit.Sequential(1.0, 0.0, 0.05).bet(one > 0, other > 0) for one, other in drawn)

    assert 40 <= caught(shown) <= 90
    assert caught(shown + 0.3) >= 99
    assert caught(1.0) <= 5
    assert dp_audit.would_show(10, [(1.0, 0.0)], 0.05, dp_audit.randomised_response) is None


def case_of(draw: Callable[[Rng, int], Pair], epsilon: float, delta: float, *curve: dp_audit.Point) -> Case:
    def run(with_record: bool, count: int, stream: Stream) -> Floats:
        rng = np.random.default_rng(np.frombuffer(stream.take_key(), np.uint32))
        return draw(rng, count)[0 if with_record else 1][:, None]

    return Case(Claim(epsilon, delta, "a test"), "a pair", ("a score",), run, curve)


def test_a_trial_rarely_refutes_what_is_true() -> None:
    curve = [(epsilon, gaussian_delta(0.6, epsilon)) for epsilon in (1.0, 0.0, 0.5)]
    case = case_of(lambda rng, n: gaussian(0.6, rng, n), *curve[0], *curve[1:])
    verdicts = [judge(case, Stream.from_seed(i), 600) for i in range(100)]
    assert sum(v.refuted or v.epsilon_lower_bound > 1.0 for v in verdicts) <= 5
    assert all(
        v.pairs == 600 and v.says.startswith("not refuted (could have refuted ε ≥ 1.")
        for v in verdicts
        if not v.refuted
    )


def test_a_trial_stops_at_the_first_refutation_with_a_true_bound() -> None:
    case = case_of(lambda rng, n: answers(3.0, rng, n), 1.0, 0.0)
    verdicts = [judge(case, Stream.from_seed(i), 5000) for i in range(40)]
    assert all(v.refuted and v.pairs < 1000 and v.refuted_at == (1.0, 0.0) for v in verdicts)
    assert sum(v.epsilon_lower_bound > 3.0 for v in verdicts) <= 2
    assert verdicts[0].to_dict()["verdict"] == "refuted"


def test_a_trial_bets_on_no_run_that_chose_the_event(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[float] = set()

    class Watched(dp_audit.PrivacyCurve):
        def learn(self, one: Floats, other: Floats) -> None:
            seen.update(one[:, 0])
            super().learn(one, other)

        def bet(self, one: Floats, other: Floats) -> bool:
            assert not seen & set(one[:, 0])
            return super().bet(one, other)

    monkeypatch.setattr(audit_game, "PrivacyCurve", Watched)
    judge(case_of(lambda rng, n: gaussian(0.5, rng, n), 1.0, 1e-5), Stream.from_seed(0), 400)
    assert len(seen) > 100


@pytest.mark.parametrize("seed", range(6))
def test_a_leak_in_one_run_of_two_hundred_is_caught(seed: int) -> None:
    """Thresholds at equal steps alone missed it six times of six."""

    def draw(rng: Rng, runs: int) -> Pair:
        one, other = rng.normal(size=(2, runs))
        return np.where(rng.random(runs) < 0.005, one + 20.0, one), other

    assert judge(case_of(draw, 1.0, 1e-5), Stream.from_seed(seed), 20_000, seconds=600).refuted


def test_a_trial_rarely_refutes_a_leak_that_its_delta_allows() -> None:
    case = case_of(lambda rng, n: leaky(0.5, 0.005, rng, n), 0.5, 0.005, (0.0, gap(0.5, 0.005)))
    verdicts = [judge(case, Stream.from_seed(i), 1500, seconds=600) for i in range(120)]
    assert sum(v.refuted or v.epsilon_lower_bound > 0.5 for v in verdicts) <= 6


def gap(epsilon: float, delta: float) -> float:
    """The δ of `leaky` at ε = 0."""
    return delta + (1 - delta) * math.tanh(epsilon / 2)


def less_noisy(divisor: float) -> Case:
    """Gaussian noise for (1, 1e-5) in the claim, less of it in the runs; five points of the exact curve are tested."""
    noise = 3.7311  # over the sensitivity
    points = [(1.0, 1e-5), *((epsilon, gaussian_delta(1 / noise, epsilon)) for epsilon in (0.0, 0.25, 0.5, 0.75))]
    case = case_of(lambda rng, n: gaussian(divisor / noise, rng, n), *points[0], *points[1:])
    return replace(case, family=less_noise(dpa.GaussianDpEvent(noise), 1e-5))


@pytest.mark.parametrize("pairs", [1000, pytest.param(4000, marks=pytest.mark.long)])
def test_what_would_show_of_the_noise_itself_does(pairs: int) -> None:
    """At the printed ε about half of all trials refute, at 1.3 times the excess most do; of the true noise none."""
    stands = judge(less_noisy(1.0), Stream.from_seed(0), pairs, seconds=600)
    assert not stands.refuted
    assert stands.less_noise is not None
    assert stands.would_show is not None
    family = stands.case.family
    assert family is not None
    assert gaussian_delta(stands.less_noise / 3.7311, stands.would_show) == pytest.approx(1e-5, rel=0.05)
    further = 1.0 + 1.3 * (stands.would_show - 1.0)
    steps = np.linspace(stands.less_noise, 3.0, 200)
    higher = next(float(r) for r in steps if family.at(float(r)).epsilon >= further)
    caught = [
        sum(judge(less_noisy(r), Stream.from_seed(seed), pairs, seconds=600).refuted for seed in range(40))
        for r in (stands.less_noise, higher)
    ]
    assert 12 <= caught[0] <= 38
    assert caught[1] >= 30
    words = stands.sentence("a/b")
    assert f"ε ≥ {stands.would_show:.2f}, which this mechanism has with its noise divided by" in words
    assert stands.to_dict()["noise_divided_by"] == stands.less_noise


def test_a_power_says_of_which_mechanism_it_is() -> None:
    plain = judge(case_of(lambda rng, n: gaussian(0.1, rng, n), 1.0, 1e-5), Stream.from_seed(0), 2000)
    assert plain.less_noise is None
    assert "of randomised response" in plain.sentence("a/b")
    assert "of randomised response" in plain.to_dict()["could_refute_of"]
    bounded = replace(less_noisy(1.0), family=less_noise(dpa.ZCDpEvent(0.5 / 3.7311**2), 1e-5))
    assert "just meets the claimed zCDP" in judge(bounded, Stream.from_seed(0), 2000).sentence("a/b")


def test_a_family_is_what_accounting_says_of_the_noise() -> None:
    for divisor in (1.0, 1.7, 6.0):
        found = LessNoise(dpa.GaussianDpEvent(2.0), 1e-5).at(divisor)
        mu = divisor / 2.0
        assert gaussian_delta(mu, found.epsilon) == pytest.approx(1e-5, rel=0.05)
        exact = norm.cdf(norm.ppf(found.other.clip(1e-12, 1 - 1e-12)) + mu)
        assert np.abs(exact - found.one).max() < 0.01
        assert (np.diff(found.one) >= 0).all()
        reached = LessNoise(dpa.GaussianDpEvent(2.0), 1e-5, reach=0.5).at(divisor)
        assert reached.epsilon == found.epsilon
        assert np.abs(norm.cdf(norm.ppf(reached.other.clip(1e-12, 1 - 1e-12)) + mu / 2) - reached.one).max() < 0.01
    tiny = LessNoise(dpa.GaussianDpEvent(400.0), 1e-5).at(2.0)
    assert np.abs(norm.cdf(norm.ppf(tiny.other.clip(1e-12, 1 - 1e-12)) + 1 / 200) - tiny.one).max() < 1e-4
    assert math.isfinite(LessNoise(dpa.GaussianDpEvent(0.2), 1e-5).at(64.0).epsilon)
    twice = dpa.ComposedDpEvent([dpa.GaussianDpEvent(3.0), dpa.SelfComposedDpEvent(dpa.LaplaceDpEvent(2.0), 2)])
    halved = scaled(dpa.PoissonSampledDpEvent(0.1, twice), 0.5)
    assert repr(halved) == repr(
        dpa.PoissonSampledDpEvent(
            0.1, dpa.ComposedDpEvent([dpa.GaussianDpEvent(1.5), dpa.SelfComposedDpEvent(dpa.LaplaceDpEvent(1.0), 2)])
        )
    )
    assert less_noise(pure(1.0), 1e-5) is None
    assert less_noise(dpa.NonPrivateDpEvent(), 1e-5) is None


def test_too_few_pairs_say_so() -> None:
    verdict = judge(case_of(lambda rng, n: gaussian(9.0, rng, n), 8.0, 0.0), Stream.from_seed(0), 64)
    assert not verdict.refuted
    assert verdict.says == "not refuted (too few pairs to refute anything)"
    assert verdict.to_dict()["could_refute"] is None
    told = in_words("a/b", replace(verdict, seconds=24.2))
    assert "could not have refuted it" in told
    assert "--seconds 250" in told
    enough = judge(case_of(lambda rng, n: gaussian(0.1, rng, n), 1.0, 1e-5), Stream.from_seed(0), 2000)
    assert "--seconds" not in in_words("a/b", enough)


@pytest.mark.parametrize("wrong", [{"pairs": 10}, {"confidence": 1.0}, {"confidence": 0.1}, {"seconds": 0.0}])
def test_a_trial_that_cannot_be_held_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        judge(case_of(lambda rng, n: gaussian(0.5, rng, n), 1.0, 1e-5), Stream.from_seed(0), **wrong)  # type: ignore[arg-type]


def test_the_clock_ends_a_trial() -> None:
    verdict = judge(case_of(lambda rng, n: gaussian(0.0, rng, n), 1.0, 1e-5), Stream.from_seed(0), 10**9, seconds=0.05)
    assert audit_game.FIRST <= verdict.pairs < 10**9


ODD = st.floats(allow_nan=True, allow_infinity=True, width=32) | st.sampled_from([0.0, 1.0, -0.0, 1e308, -1e308])


@settings(max_examples=150, deadline=None)
@given(st.lists(ODD, max_size=40), st.lists(ODD, max_size=40), st.sampled_from([0.0, 1e-5, 0.3]))
def test_no_scores_are_too_odd(one: list[float], other: list[float], delta: float) -> None:
    """No numbers, infinite ones, ties, none at all, one side longer: bounds are finite, and warnings are errors."""
    a, b = np.array(one, float), np.array(other, float)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for left, right in ((a, b), (b, a), (a, a)):
            assert 0.0 <= dp_audit.fixed(left, right, delta) <= 20.0
            refuted_point(left, right, [(0.0, delta), (1.0, delta)])
            for relation in ("add-remove", "replace-one"):
                assert 0.0 <= membership_bound(left, right, delta, 0.95, relation=relation) <= 20.0  # type: ignore[arg-type]
        assert dp_audit.fixed(a, a, delta) == 0.0 or len(a) < 2


def test_a_constant_column_and_sides_of_other_lengths_do_no_harm() -> None:
    rng = np.random.default_rng(17)
    one, other = rng.normal(3.0, 1.0, (3000, 1)), rng.normal(size=(400, 1))
    padded = [np.hstack([np.full((len(side), 2), np.nan), side, np.ones((len(side), 1))]) for side in (one, other)]
    assert dp_audit.fixed(*padded, 1e-5) == dp_audit.fixed(one, other, 1e-5) > 2.0
    assert dp_audit.fixed(one[:3], other, 1e-5) == 0.0
    assert dp_audit.fixed(one, other[:2], 1e-5) <= dp_audit.fixed(one, other, 1e-5)


def gaussian_family(mu: float) -> Callable[[float], tuple[Floats, Floats]]:
    """Gaussian noise of which member 1 has this distance."""
    without = np.concatenate([np.logspace(-12, -2, 200), np.linspace(0.01, 1, 400)])
    return lambda member: (norm.sf(norm.isf(without) - mu * member), without)


@pytest.mark.parametrize("leak", ["gaussian", "rounded", "either way"])
def test_a_family_member_at_least_as_noisy_as_the_truth_is_rarely_excluded(leak: str) -> None:
    chance, family, wrong = np.random.default_rng(11), gaussian_family(1.0), 0
    for _ in range(400):
        one, other = chance.normal(1.0, 1.0, 200), chance.normal(0.0, 1.0, 200)
        if leak == "rounded":
            one, other = one.round(), other.round()
        if leak == "either way":  # scores that are higher without the record are as good
            one, other = -one, -other
        wrong += fixed_in_family(one, other, family) > 1.0
    assert wrong <= 20


def test_runs_of_a_family_come_near_its_member() -> None:
    chance, family = np.random.default_rng(12), gaussian_family(2.0)
    found = [fixed_in_family(chance.normal(2, 1, n), chance.normal(0, 1, n), family) for n in (100, 1000, 10_000)]
    assert found[0] < found[1] < found[2] <= 1.0
    assert found[2] > 0.94
    less = fixed_in_family(chance.normal(1, 1, 4000), chance.normal(0, 1, 4000), family)
    assert 0.4 < less <= 0.5  # twice the noise


def test_nothing_is_excluded_by_nothing() -> None:
    family = gaussian_family(1.0)
    assert fixed_in_family(np.zeros(100), np.zeros(100), family) == 0.0
    assert fixed_in_family(np.full(100, np.nan), np.full(100, np.nan), family) == 0.0
    assert fixed_in_family(np.zeros(1), np.ones(1), family) == 0.0
    assert fixed_in_family(np.ones(1000), np.zeros(1000), family) > 5.0


def test_the_truth_of_a_sampled_and_composed_family_is_rarely_excluded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores are the best there are: log-likelihood ratios of ten steps on lots of a fifth."""
    monkeypatch.setattr(dp_audit, "_CLOSE", 4.0)  # 1/64, 1/32, …, 1, …: the truth itself is tried
    noise, share, steps, runs = 1.0, 0.2, 10, 100
    step = dpa.PoissonSampledDpEvent(share, dpa.GaussianDpEvent(noise))
    family = less_noise(dpa.SelfComposedDpEvent(step, steps), 1e-5)
    assert family is not None
    found = cache(lambda member: family.at(member).chances)
    chance, wrong, half = np.random.default_rng(13), 0, 0

    def scores(with_record: bool) -> Floats:
        drawn = (chance.random((runs, steps)) < share) & with_record
        seen = drawn + noise * chance.normal(size=(runs, steps))
        return np.asarray(np.log1p(share * np.expm1((seen - 0.5) / noise**2)).sum(1))

    for _ in range(400):
        excluded = fixed_in_family(scores(True), scores(False), found)
        wrong, half = wrong + (excluded >= 1.0), half + (excluded >= 0.125)
    assert wrong <= 20
    assert half > 100  # and what is far from the truth often is
