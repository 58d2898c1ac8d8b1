"""The court's statistics: they reject what is false, and a true claim no more often than they say."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from airlock.accounting import Claim
from airlock.audit import court, judge, trial
from airlock.audit.bounds import Floats, epsilon_lower_bound
from airlock.channels import Case
from airlock.cli.court import in_words
from airlock.errors import ConfigError
from airlock.mechanisms import Stream

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


TIGHT: dict[str, tuple[float, float, Callable[[Rng, int], Pair]]] = {
    "a Gaussian at small epsilon": (0.3, gaussian_delta(1.0, 0.3), lambda rng, n: gaussian(1.0, rng, n)),
    "a Gaussian at epsilon 1": (1.0, gaussian_delta(1.0, 1.0), lambda rng, n: gaussian(1.0, rng, n)),
    "randomised response": (1.0, 0.0, lambda rng, n: answers(1.0, rng, n)),
    "rounded scores": (1.0, gaussian_delta(1.0, 1.0), lambda rng, n: tuple(map(np.round, gaussian(1.0, rng, n)))),  # type: ignore[return-value,dict-item]
}


@pytest.mark.parametrize(("epsilon", "pairs"), [(0.1, 14), (1.0, 28), (3.0, 181), (8.0, 26_123)])
def test_a_perfect_distinguisher_needs_so_many_pairs(epsilon: float, pairs: int) -> None:
    test = court.Sequential(epsilon, 0.0, 1e-3)
    in_all, in_none = np.ones(30_000, bool), np.zeros(30_000, bool)
    assert not test.bet(in_all[: pairs - 1], in_none[: pairs - 1])
    assert test.bet(in_all[:1], in_none[:1])
    assert test.rejected_after == pairs
    assert court.could_refute(pairs, 0.0, 1e-3) >= epsilon > court.could_refute(pairs - 1, 0.0, 1e-3)


def test_true_epsilon_zero_rarely_gives_a_positive_bound() -> None:
    rng = np.random.default_rng(1)
    assert sum(court.fixed(*gaussian(0.0, rng, 400), 1e-5) > 0 for _ in range(RUNS)) <= ALLOWED


def test_many_statistics_and_thresholds_do_not_add_up_to_a_bound() -> None:
    """The largest of many bounds on the same runs is no bound; here all of them compete on one half only."""
    rng = np.random.default_rng(2)
    ours, largest = 0, 0
    for _ in range(100):
        one, other = rng.normal(size=(200, 20)), rng.normal(size=(200, 20))
        ours += court.fixed(one, other, 1e-5) > 0
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
    for _ in range(RUNS):
        one, other = gaussian(0.0, rng, 200)
        event = court.choose(one, other, court.largest_bound(1e-5, 0.95))
        p, q = event.hits(one, other)
        reused += epsilon_lower_bound(int(p.sum()), 200, int(q.sum()), 200, 1e-5) > 0
        ours += court.fixed(one, other, 1e-5) > 0
    assert ours <= ALLOWED < reused
    one, other = np.zeros(200), np.ones(200)
    one[::2], other[::2] = 1.0, 0.0  # the halves contradict each other
    assert court.fixed(one, other, 1e-5) == 0.0


@pytest.mark.parametrize("name", TIGHT)
def test_a_true_claim_at_the_boundary_is_rarely_refuted_by_a_fixed_number_of_runs(name: str) -> None:
    epsilon, delta, draw = TIGHT[name]
    rng = np.random.default_rng(4)
    bounds = [court.fixed(*draw(rng, 800), delta) for _ in range(RUNS)]
    assert sum(bound > epsilon for bound in bounds) <= ALLOWED
    assert np.mean(bounds) > 0 or epsilon < 0.5


@pytest.mark.parametrize("name", TIGHT)
def test_a_true_claim_at_the_boundary_is_rarely_refuted_however_often_one_looks(name: str) -> None:
    epsilon, delta, draw = TIGHT[name]
    rng = np.random.default_rng(5)
    refuted = sum(court.curve(*draw(rng, 1600), [(epsilon, delta)]) is not None for _ in range(RUNS))
    assert refuted <= ALLOWED


def test_the_event_at_the_boundary_itself_is_rarely_refuted() -> None:
    """The hardest true claim: the bets are on the very event where it is tight."""
    rng = np.random.default_rng(6)
    refuted, over = 0, 0
    for _ in range(RUNS):
        one, other = answers(1.0, rng, 2000)
        refuted += court.Sequential(1.0, 0.0, 0.05).bet(one > 0, other > 0)
        over += court.anytime(one[:500] > 0, other[:500] > 0, 0.0, 0.05) >= 1.0
    assert 0 < refuted <= ALLOWED
    assert over <= ALLOWED


def test_the_whole_curve_is_rarely_refuted_and_half_the_noise_is() -> None:
    points = [(epsilon, gaussian_delta(0.5, epsilon)) for epsilon in (0.0, 0.25, 0.5, 1.0)]
    rng = np.random.default_rng(7)
    assert sum(court.curve(*gaussian(0.5, rng, 1000), points) is not None for _ in range(RUNS)) <= ALLOWED
    half = [court.curve(*gaussian(1.0, rng, 1000), points) for _ in range(20)]
    assert None not in half
    assert set(half) <= set(points)


def test_a_bound_comes_close_with_many_runs() -> None:
    rng = np.random.default_rng(8)
    one, other = answers(1.0, rng, 40_000)
    assert 0.9 < court.fixed(one, other, 0.0) <= 1.0
    assert 0.9 < court.anytime(one > 0, other > 0, 0.0, 0.05) <= 1.0


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf])
def test_equal_scores_refute_nothing(value: float) -> None:
    same = np.full(1000, value)
    assert court.fixed(same, same, 0.0) == 0.0
    assert court.curve(same, same, [(0.0, 0.0), (0.1, 0.0)]) is None
    assert not judge(
        case_of(lambda rng, n: (np.full(n, value), np.full(n, value)), 0.01, 0.0), Stream.from_seed(0), 500
    ).refuted


def test_an_event_contains_its_threshold_on_both_sides() -> None:
    scores = np.array([1.0, 2.0, 2.0, 3.0])
    for above, wanted in ((True, 3), (False, 3)):
        p, q = court.Event(0, 2.0, above, False).hits(scores, scores)
        assert (p.sum(), q.sum()) == (wanted, wanted)


def test_no_score_and_too_few_runs_say_nothing() -> None:
    lost = np.full(100, math.nan)
    assert court.fixed(lost, lost, 0.0) == 0.0
    assert court.fixed(np.ones(1), np.zeros(1), 0.0) == 0.0


def test_what_would_show_does() -> None:
    """At the stated real ε, randomised response is refuted about half of the time, and nearly always well above."""
    rng, pairs = np.random.default_rng(9), 1000
    shown = court.would_show(pairs, 1.0, 0.0, 0.05)

    def caught(epsilon: float) -> int:
        drawn = (answers(epsilon, rng, pairs) for _ in range(100))
        return sum(court.Sequential(1.0, 0.0, 0.05).bet(one > 0, other > 0) for one, other in drawn)

    assert 40 <= caught(shown) <= 90
    assert caught(shown + 0.3) >= 99
    assert caught(1.0) <= 5
    assert math.isinf(court.would_show(10, 1.0, 0.0, 0.05))


def case_of(draw: Callable[[Rng, int], Pair], epsilon: float, delta: float, *curve: court.Point) -> Case:
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

    class Watched(court.Curve):
        def learn(self, one: Floats, other: Floats) -> None:
            seen.update(one[:, 0])
            super().learn(one, other)

        def bet(self, one: Floats, other: Floats) -> bool:
            assert not seen & set(one[:, 0])
            return super().bet(one, other)

    monkeypatch.setattr(trial, "Curve", Watched)
    judge(case_of(lambda rng, n: gaussian(0.5, rng, n), 1.0, 1e-5), Stream.from_seed(0), 400)
    assert len(seen) > 100


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
    assert trial.FIRST <= verdict.pairs < 10**9
