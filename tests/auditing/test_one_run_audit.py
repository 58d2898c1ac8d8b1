"""One run with many canaries: the theorem on exact posteriors, and coverage at its boundary."""

from __future__ import annotations

import itertools
import math

import dp_accounting as dpa
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm

from airlock.accounting import Claim
from airlock.auditing import dp_audit, judge_one_run, one_run_audit
from airlock.auditing.bounds import Floats
from airlock.auditing.one_run_audit import Coins
from airlock.errors import ConfigError, Refused
from airlock.mechanisms import Stream
from airlock.methods import Canaries
from airlock.methods.case import less_noise

RUNS, ALLOWED = 400, 20  # 5% of the runs may be wrong
Rng = np.random.Generator


def answers(coins: Coins, epsilon: float, rng: Rng) -> Floats:
    """Randomised response to every coin: exactly ε-private, and the theorem is tight for it."""
    kept = rng.random(len(coins)) < 1 / (1 + math.exp(-epsilon))
    return np.where(coins == kept, 1.0, 0.0)


def tossed(rng: Rng, canaries: int) -> Coins:
    return rng.random(canaries) < 0.5


def p_value_of_the_paper(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Steinke, Nasr and Jagielski 2023, Theorem 5.2, from its formula."""
    q, i = 1 / (1 + math.exp(-epsilon)), np.arange(1, correct + 1)
    tail = binom.sf(correct - 1, guesses, q)
    return float(min(1.0, tail + 2 * canaries * delta * ((binom.sf(correct - 1 - i, guesses, q) - tail) / i).max()))


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 7), st.floats(0.0, 3.0), st.floats(0.1, 6.0), st.integers(0, 2**31))
def test_no_posterior_has_more_hits_than_its_excess_allows(r: int, epsilon: float, spread: float, seed: int) -> None:
    """Steps 2 to 4 of the proof, on arbitrary posteriors over all hits: P[W ≥ v] ≤ f(v) + D f(v)(1 − f(v))/(v b_v)."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, spread, (2,) * r) + rng.normal(0, 2) * sum(np.indices((2,) * r))
    posterior = np.exp(logits - logits.max())
    posterior /= posterior.sum()
    excess, hits = 0.0, np.zeros(r + 1)
    for s in itertools.product((0, 1), repeat=r):
        hits[sum(s)] += posterior[s]
        for i in np.flatnonzero(s):
            without = (*s[:i], 0, *s[i + 1 :])
            excess += max(0.0, posterior[s] - math.exp(epsilon) * posterior[without])
    for v in range(1, r + 1):
        allowed = one_run_audit.p_value(1, r, v, epsilon, excess)
        assert hits[v:].sum() <= allowed * (1 + 1e-9) + 1e-12


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_the_p_value_is_exact_without_delta_and_never_above_the_papers_where_it_matters(data: st.DataObject) -> None:
    r = data.draw(st.integers(1, 400))
    v, extra = data.draw(st.integers(1, r)), data.draw(st.integers(0, 600))
    epsilon, delta = data.draw(st.floats(0.0, 6.0)), 10 ** data.draw(st.floats(-9.0, -3.0))
    exact = binom.sf(v - 1, r, 1 / (1 + math.exp(-epsilon)))
    assert one_run_audit.p_value(r + extra, r, v, epsilon, 0.0) == pytest.approx(exact, rel=1e-7, abs=1e-300)
    ours = one_run_audit.p_value(r + extra, r, v, epsilon, delta)
    paper = p_value_of_the_paper(r + extra, r, v, epsilon, delta)
    assert ours >= exact * (1 - 1e-9)
    assert ours <= paper * (1 + 1e-9) or paper > 0.5


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 300), st.integers(0, 300), st.floats(0.0, 1e-4), st.floats(0.6, 0.99))
def test_bounds_grow_with_correct_guesses_and_confidence_costs(r: int, v: int, delta: float, confidence: float) -> None:
    v = min(v, r)
    bound = one_run_audit.lower_bound(r, r, v, delta, confidence)
    assert 0.0 <= bound <= one_run_audit.lower_bound(r, r, r, delta, confidence)
    if v:
        assert one_run_audit.lower_bound(r, r, v - 1, delta, confidence) <= bound
    assert one_run_audit.lower_bound(r, r, v, delta, (1 + confidence) / 2) <= bound
    assert one_run_audit.lower_bound(r + 10, r, v, 2 * delta, confidence) <= bound
    if bound > 0:
        assert one_run_audit.p_value(r, r, v, bound, delta) < 1 - confidence
        assert one_run_audit.p_value(r, r, v, bound + 1e-9, delta) >= (1 - confidence) * (1 - 1e-6)


def test_right_guesses_throughout_refute_what_the_formula_says() -> None:
    """Without δ: q^r = β, and ε = ln(q / (1 − q))."""
    for guesses in (10, 100, 1000):
        q = 0.05 ** (1 / guesses)
        wanted = math.log(q / (1 - q))
        assert one_run_audit.lower_bound(guesses, guesses, guesses, 0.0, 0.95) == pytest.approx(wanted, abs=1e-9)
    assert one_run_audit.p_value(5000, 5000, 5000, 0.0, 1e-4) == pytest.approx(1e-4)  # 0.5^5000 is no float


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_randomised_response_at_the_boundary_is_rarely_refuted(epsilon: float) -> None:
    rng = np.random.default_rng(1)
    single, several = 0, 0
    for _ in range(RUNS):
        coins = tossed(rng, 400)
        scores = answers(coins, epsilon, rng) + rng.random(400) * 0.01
        right = int(((scores > 0.5) == coins).sum())  # a guess for every canary, not half of each kind
        single += one_run_audit.lower_bound(400, 400, right, 0.0, 0.95) > epsilon
        several += one_run_audit.best_look(one_run_audit.look_at_guesses(scores, coins, 0.0, 0.95)).bound > epsilon
    assert 0 < single <= ALLOWED
    assert several <= ALLOWED


def test_true_epsilon_zero_rarely_gives_a_positive_bound() -> None:
    rng = np.random.default_rng(2)
    found = [one_run_audit.look_at_guesses(rng.normal(size=400), tossed(rng, 400), 1e-5, 0.95) for _ in range(RUNS)]
    assert sum(one_run_audit.best_look(looks).bound > 0 for looks in found) <= ALLOWED


def test_the_best_of_many_numbers_of_guesses_without_a_share_of_the_error_would_overstate() -> None:
    """The defect that fixed numbers with Bonferroni guard against."""
    rng = np.random.default_rng(3)
    over = 0
    for _ in range(100):
        scores, coins = rng.normal(size=200), tossed(rng, 200)
        tried = [(r, one_run_audit.hits(scores, coins, r)) for r in range(5, 201, 5)]
        over += max(one_run_audit.lower_bound(200, r, v, 0.0, 0.95) for r, v in tried) > 0
    assert over > 10


def test_a_much_larger_epsilon_is_refuted() -> None:
    rng = np.random.default_rng(4)
    for _ in range(20):
        coins = tossed(rng, 1000)
        assert (
            one_run_audit.best_look(one_run_audit.look_at_guesses(answers(coins, 3.0, rng), coins, 1e-5, 0.95)).bound
            > 2.0
        )


def leaky(coins: Coins, delta: float, rng: Rng, all_at_once: bool) -> Floats:
    """(1, δ)-private: randomised response, but the truth with probability δ, for all coins at once or one by one."""
    told = np.full(len(coins), rng.random() < delta) if all_at_once else rng.random(len(coins)) < delta
    return np.where(told, np.where(coins, 2.0, -1.0), answers(coins, 1.0, rng))


@pytest.mark.parametrize("all_at_once", [True, False])
def test_a_leak_of_everything_with_probability_delta_gives_no_bound_above_its_epsilon(all_at_once: bool) -> None:
    rng, delta, canaries = np.random.default_rng(5), 0.04, 100
    ours, without = 0, 0
    for _ in range(RUNS):
        coins = tossed(rng, canaries)
        right = one_run_audit.hits(leaky(coins, delta, rng, all_at_once), coins, 50)
        ours += one_run_audit.lower_bound(canaries, 50, right, delta, 0.95) > 1.0
        without += one_run_audit.lower_bound(canaries, 50, right, 0.0, 0.95) > 1.0
    assert ours <= ALLOWED
    assert without > ALLOWED  # the δ-term is what keeps it


def test_the_leak_of_everything_is_within_the_theorem_exactly() -> None:
    """P[W ≥ v] = δ + (1 − δ) f(v) for it; the p-value is never below."""
    q = 1 / (1 + math.exp(-1.0))
    for r, delta in itertools.product((1, 5, 60, 400), (1e-5, 0.01, 0.3)):
        for v in range(1, r + 1):
            real = delta + (1 - delta) * binom.sf(v - 1, r, q)
            assert one_run_audit.p_value(r, r, v, 1.0, delta) >= real * (1 - 1e-9)


def test_guesses_are_the_ends_of_the_scores_and_the_rest_abstains() -> None:
    made = one_run_audit.guess(np.array([0.3, -1.0, 5.0, 0.0, np.nan, 2.0]), 3)
    assert made.tolist() == [0, -1, 1, 0, 0, 1]
    assert np.abs(one_run_audit.guess(np.zeros(10), 10)).sum() == 10
    coins = np.array([True, False] * 5)
    assert one_run_audit.hits(np.where(coins, 1.0, 0.0), coins, 10) == 10
    assert one_run_audit.hits(np.where(coins, 0.0, 1.0), coins, 10) == 0


def test_equal_scores_know_nothing() -> None:
    rng = np.random.default_rng(6)
    right = [one_run_audit.hits(np.zeros(400), tossed(rng, 400), 400) for _ in range(RUNS)]
    assert abs(np.mean(right) - 200) < 4


def canaries_of(epsilon: float, claimed: float, count: int = 400) -> Canaries:
    def run(coins: Coins, stream: Stream) -> Floats:
        return answers(coins, epsilon, np.random.default_rng(stream.key_stream(8).tolist()))

    return Canaries(Claim(claimed, 1e-5, "a theorem"), count, "answers to coins", "the answer", run)


def test_a_verdict_says_what_it_could_have_seen() -> None:
    stands = judge_one_run(canaries_of(1.0, 1.0), Stream.from_seed(0))
    assert not stands.refuted
    assert stands.says == f"not refuted (could have refuted ε ≥ {stands.would_show:.2f})"
    assert stands.epsilon_lower_bound < 1.0 < float(stands.would_show or 0) < stands.could_refute
    falls = judge_one_run(canaries_of(float(stands.would_show or 0) + 0.5, 1.0), Stream.from_seed(0))
    assert falls.refuted
    assert falls.to_dict()["verdict"] == "refuted"
    assert falls.to_dict()["guesses"] in one_run_audit.numbers(400)
    beyond = judge_one_run(canaries_of(9.0, 9.0), Stream.from_seed(0))
    assert beyond.says == "not refuted (too few canaries to refute it)"


def test_what_is_expected_to_show_shows_about_half_of_the_time() -> None:
    shown = one_run_audit.would_show(400, 1.0, 1e-5, 0.95, dp_audit.randomised_response)
    assert shown is not None
    at, above = (
        sum(judge_one_run(canaries_of(real, 1.0), Stream.from_seed(seed)).refuted for seed in range(60))
        for real in (shown, shown + 0.5)
    )
    assert 12 <= at <= 52
    assert above >= 55


def noisy_canaries(divisor: float) -> Canaries:
    """Gaussian noise for (1, 1e-5) in the claim, and less of it on the canaries."""
    noise = 3.7311

    def run(coins: Coins, stream: Stream) -> Floats:
        return coins + np.random.default_rng(stream.key_stream(8).tolist()).normal(0, noise / divisor, len(coins))

    claim, family = Claim(1.0, 1e-5, "a theorem"), less_noise(dpa.GaussianDpEvent(noise), 1e-5)
    return Canaries(claim, 400, "coins with noise", "their sum", run, family)


def test_what_is_expected_of_less_noise_is_so() -> None:
    verdict = judge_one_run(noisy_canaries(1.0), Stream.from_seed(0))
    assert verdict.less_noise is not None
    assert verdict.would_show is not None
    assert verdict.would_show > 2  # randomised response would show at 1.26
    assert f"noise divided by {verdict.less_noise:.2f}" in verdict.of_what
    assert verdict.to_dict()["could_refute_of"] == verdict.of_what
    at, above = (
        sum(judge_one_run(noisy_canaries(r), Stream.from_seed(seed)).refuted for seed in range(60))
        for r in (verdict.less_noise, 1.3 * verdict.less_noise)
    )
    assert 18 <= at <= 50
    assert above >= 55
    assert "randomised response" in judge_one_run(canaries_of(1.0, 1.0), Stream.from_seed(0)).of_what


def test_the_expected_share_of_right_guesses_is_what_scores_give() -> None:
    rng, coins = np.random.default_rng(16), np.arange(200_000) % 2 == 0
    for mu in (0.3, 2.0):
        at = np.linspace(8, -8, 400)
        chances = norm.sf(at - mu), norm.sf(at)
        scores = rng.normal(size=len(coins)) + mu * coins
        for share in (1.0, 0.25, 0.05):
            guesses = round(share * len(coins))
            seen = one_run_audit.hits(scores, coins, guesses) / guesses
            assert one_run_audit._accuracy(share, *chances) == pytest.approx(seen, abs=0.02)
    assert one_run_audit._accuracy(0.25, *dp_audit.randomised_response(1.0)) == pytest.approx(1 / (1 + math.exp(-1)))


def test_a_run_without_a_score_for_each_canary_and_an_odd_confidence_are_refused() -> None:
    few = Canaries(Claim(1.0, 1e-5, "a theorem"), 40, "", "", lambda coins, stream: np.zeros(3))
    with pytest.raises(Refused, match="40 canaries"):
        judge_one_run(few, Stream.from_seed(0))
    with pytest.raises(ConfigError, match="confidence"):
        judge_one_run(few, Stream.from_seed(0), confidence=1.0)


# Members and non-members of one release.

Sides = tuple[Floats, Floats]


def told(kind: str, coins: Coins, delta: float, rng: Rng) -> Coins:
    """Who is given away outright: each with probability δ, in one of three ways."""
    if kind == "one by one":
        return rng.random(len(coins)) < delta
    if kind == "all at once":
        return np.full(len(coins), rng.random() < delta)
    often = 10.0  # in bursts: in one run of ten, ten times as many
    return (rng.random(len(coins)) < often * delta) & (rng.random() < 1 / often)


def release(kind: str, epsilon: float, delta: float, rng: Rng, records: int = 1000) -> Sides:
    """Scores of members and others of a release that is exactly (ε, δ)-private for adding or removing a record."""
    coins = tossed(rng, records)
    known = told(kind, coins, delta, rng)
    scores = np.where(known, np.where(coins, 9.0, -9.0), answers(coins, epsilon, rng)) + 0.1 * rng.random(records)
    return scores[coins], scores[~coins]


KINDS = ["one by one", "all at once", "in bursts"]


@pytest.mark.parametrize("delta", [0.0, *(pytest.param(d, marks=pytest.mark.long) for d in (1e-3, 5e-3)), 2e-2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_bound_by_members_rarely_exceeds_the_true_epsilon(kind: str, delta: float) -> None:
    rng = np.random.default_rng((7, int(1e4 * delta), KINDS.index(kind)))
    for epsilon in (0.0, 1.0):
        wrong = sum(
            one_run_audit.membership_bound(*release(kind, epsilon, delta, rng), delta, 0.95) > epsilon
            for _ in range(200)
        )
        assert wrong <= 10


def test_one_delta_off_would_not_do_and_neither_would_none() -> None:
    """What many runs would certify, with one δ taken off, is wrong of one run whose records share their luck."""
    rng, delta = np.random.default_rng(8), 2e-2
    ours = fixed = without = 0
    for _ in range(200):
        members, others = release("in bursts", 0.0, delta, rng)
        ours += one_run_audit.membership_bound(members, others, delta, 0.95) > 0
        fixed += dp_audit.fixed(members, others, delta) > 0
        without += one_run_audit.membership_bound(members, others, 0.0, 0.95) > 0
    assert ours <= 10
    assert min(fixed, without) > 15


def test_members_that_are_found_outright_give_a_useful_bound() -> None:
    """1% of 10,000, with no false alarm, at δ = 1e-5; with thresholds at equal steps it was 0.34 and less."""
    bounds = []
    for seed in range(12):
        rng = np.random.default_rng((9, seed))
        members, others = rng.normal(size=(2, 10_000))
        members[rng.permutation(10_000)[:100]] += 20.0
        bounds.append(one_run_audit.membership_bound(members, others, 1e-5, 0.95))
        if seed < 3:
            assert one_run_audit.membership_bound(-members, -others, 1e-5, 0.95) > 1.5
            assert one_run_audit.membership_bound(others, members, 1e-5, 0.95) > 1.5
    assert np.mean(bounds) > 2.2
    assert min(bounds) > 1.5


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_a_bound_by_members_comes_close_with_many_records(epsilon: float) -> None:
    rng = np.random.default_rng(10)
    bound = one_run_audit.membership_bound(*release("one by one", epsilon, 0.0, rng, 40_000), 0.0, 0.95)
    assert 0.85 * epsilon < bound <= epsilon


@pytest.mark.parametrize("delta", [0.0, 2e-3, 2e-2])
def test_pairs_bound_the_epsilon_of_a_replaced_record(delta: float) -> None:
    """Half of ε for each of two bits, and a pair is given away with probability δ: (ε, δ) for a replaced record."""
    rng, wrong = np.random.default_rng((11, int(1e4 * delta))), 0
    for _ in range(200):
        pair = rng.random(400) < delta * (rng.random() < 0.2) / 0.2  # in bursts
        noise = 0.1 * rng.random((2, 400))
        one = np.where(pair, 9.0, answers(np.ones(400, bool), 0.5, rng)) + noise[0]
        other = np.where(pair, -9.0, answers(np.zeros(400, bool), 0.5, rng)) + noise[1]
        wrong += one_run_audit.membership_bound(one, other, delta, 0.95, relation="replace-one") > 1.0
    assert wrong <= 10
    many = answers(np.ones(20_000, bool), 0.5, rng), answers(np.zeros(20_000, bool), 0.5, rng)
    assert 0.85 < one_run_audit.membership_bound(*many, 0.0, 0.95, relation="replace-one") <= 1.0


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 60), st.integers(2, 60), st.sampled_from([0.0, -1.0, math.inf, -math.inf]))
def test_members_with_equal_scores_give_no_bound(m: int, n: int, value: float) -> None:
    for relation in ("add-remove", "replace-one"):
        for delta in (0.0, 1e-3):
            same = np.full(m, value), np.full(n, value)
            assert one_run_audit.membership_bound(*same, delta, 0.95, relation=relation) == 0.0  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", ["rounded", "two values", "heavy tails", "infinite"])
def test_scores_that_know_nothing_rarely_give_a_bound(shape: str) -> None:
    rng, over = np.random.default_rng(12), np.zeros(2)
    for _ in range(200):
        scores, coins = rng.standard_cauchy(300), tossed(rng, 300)
        if shape == "rounded":
            scores = scores.round()
        elif shape == "two values":
            scores = (scores > 0).astype(float)
        elif shape == "infinite":
            scores[np.abs(scores) > 2] *= math.inf
        sides = scores[coins], scores[~coins]
        over += [
            one_run_audit.membership_bound(*sides, 0.0, 0.95, relation=r) > 0 for r in ("add-remove", "replace-one")
        ]  # type: ignore[arg-type]
    assert over.max() <= 10


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 7), st.floats(0.0, 2.0), st.floats(0.1, 6.0), st.floats(0.001, 0.4), st.integers(0, 2**31))
def test_the_rejection_of_a_chosen_event_is_within_its_two_levels(
    r: int, epsilon: float, spread: float, share: float, seed: int
) -> None:
    """The step that lets r depend on y: P[rejected | y] ≤ a + c D(y), on arbitrary posteriors over all hits."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, spread, (2,) * r) + rng.normal(0, 2) * sum(np.indices((2,) * r))
    posterior = np.exp(logits - logits.max())
    posterior /= posterior.sum()
    excess, hits = 0.0, np.zeros(r + 1)
    for s in itertools.product((0, 1), repeat=r):
        hits[sum(s)] += posterior[s]
        for i in np.flatnonzero(s):
            without = (*s[:i], 0, *s[i + 1 :])
            excess += max(0.0, posterior[s] - math.exp(epsilon) * posterior[without])
    level = one_run_audit._Level((1 - share) * 0.3, share * 0.3 / (r * 0.01))
    rejected = sum(hits[v] for v in range(1, r + 1) if level.bound(v, r - v) > epsilon)
    assert rejected <= (level.chance + level.leak * excess) * (1 + 1e-9) + 1e-12


def test_the_two_halves_choose_for_each_other_and_never_for_themselves() -> None:
    """Halves that contradict each other give no bound, though each by itself would."""
    n = 400
    half = np.tile([1, 2], n // 2).astype(np.int8)
    game = one_run_audit.Game(half, half, n)
    members = np.where(half == 1, 1.0, 0.0)
    others = 1.0 - members
    assert one_run_audit.membership_bound(members, others, 0.0, 0.95, game) == 0.0
    assert one_run_audit.membership_bound(np.ones(n), np.zeros(n), 0.0, 0.95, game) > 4
    nobody = one_run_audit.Game(np.zeros(n, np.int8), np.zeros(n, np.int8), n)
    assert one_run_audit.membership_bound(np.ones(n), np.zeros(n), 0.0, 0.95, nobody) == 0.0


def test_what_members_could_show_is_what_a_perfect_score_shows() -> None:
    for relation in ("add-remove", "replace-one"):
        could = one_run_audit.largest_membership_bound(2000, 1e-5, 0.95, relation)  # type: ignore[arg-type]
        shown = one_run_audit.membership_bound(np.ones(2000), np.zeros(2000), 1e-5, 0.95, relation=relation)  # type: ignore[arg-type]
        assert could == pytest.approx(shown, abs=0.1)
    for count, delta in ((40, 0.0), (2000, 1e-5), (300, 1e-2)):
        level = one_run_audit._Level.of(count, delta, 0.025)
        assert level.chance + level.leak * count * delta <= 0.025 * (1 + 1e-9) or not delta
        assert level.largest(count) == pytest.approx(level.bound(count, 0), abs=1e-9)
    assert one_run_audit.largest_membership_bound(1, 1e-5, 0.95) == 0.0
