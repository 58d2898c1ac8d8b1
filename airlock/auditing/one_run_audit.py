"""What one run with many canaries says about ε. Statistics only; nothing here depends on a mechanism.

The game (Steinke, Nasr and Jagielski 2023, "Privacy auditing with one (1) training run"). There are m canaries: records
that are each included or left out by a fair, secret and independent coin. One run of the mechanism gives output y, and
from y alone the auditor guesses the coins of r canaries, abstaining on the others. r is fixed in advance; which
canaries are guessed may depend on y in any way. W is the number of correct guesses.

Guarantee. If the mechanism is (ε, δ)-private when one record is added or removed, and the other records do not depend
on the coins, then with B ~ Binomial(r, e^ε/(e^ε + 1)) and f(v) = P[B ≥ v], for every v ≥ 1:

    P[W ≥ v]  ≤  f(v) + m δ · f(v) (1 − f(v)) / (v P[B = v]).

At δ = 0 this is their bound. Their δ-term is 2 m δ max_i P[v > B ≥ v − i]/i; wherever the whole bound is below 1/2, the
δ-term here was never found to exceed theirs (tests). The proof:

1. Fix y and encode each coin by whether the guess made from y is correct (a hit): π(s) is the posterior of the hits s ∈
   {0, 1}^r, which is proportional to the likelihood, the coins being fair and independent. By privacy, for each canary
   i and all other coins, ∫ (M_s(y) − e^ε M_s'(y))₊ dy ≤ δ, s and s' differing in i alone, in both orders. So D(y), the
   sum over guessed i and over s with a hit at i of (π(s) − e^ε π(s without it))₊, has mean at most m δ: for each pair,
   y counts one of the two orders; a pair has weight 2^-m in either order, and there are m 2^(m-1) pairs.
2. Let ρ_k be the posterior probability of k hits. Adding up the differences between the levels k and k − 1 gives
   x_k = k ρ_k − e^ε (r − k + 1) ρ_{k−1} with Σ_k (x_k)₊ ≤ D. For B's own probabilities b_k these differences are 0. So
   k b_k (g_k − g_{k−1}) = x_k for g_k = ρ_k / b_k.
3. P[W ≥ v | y] = Σ_{k≥v} b_k g_k, and Σ b_k g_k = 1, hence it is f(v) + Σ_k (g_k − g_{k−1}) c_k with
   c_k = Cov(1[B ≥ v], 1[B ≥ k]) ≥ 0. That is at most f(v) + D max_k c_k/(k b_k).
4. For k ≤ v: c_k/(k b_k) = f(v) P[B < k]/(k b_k), which grows with k; for k ≥ v: (1 − f(v)) f(k)/(k b_k), which falls:
   binomial probabilities are log-concave. The maximum is at k = v. Take the mean over y.

A p-value for a larger ε is also valid for a smaller true one, since privacy at ε implies privacy at every larger value.
So `lower_bound`, which finds an ε that is rejected, exceeds the true ε with probability at most 1 − confidence, whether
or not the p-value is monotone in ε.

Records of a real release (`membership_bound`). Members and non-members of one model form the same game, because a keyed
hash assigns each record to its part: the coins are those of the split, and every attacked record is a canary. A
multi-run bound that subtracts δ once would be wrong here: there is one run, and an (ε, δ)-private mechanism may expose
each of m records with probability δ. Without random membership nothing could be said: if the members are fixed, even a
constant output can name them. Two things differ from the canaries of the court.

* A threshold decides which records are guessed, so r depends on y. Fix a and c with a + c m δ ≤ β. Rejecting ε where
  f_r(W) ≤ a and f_r(W)/(W P[B = W]) ≤ c is wrong with probability at most β: both fall as W grows, so for each y this
  is an event W ≥ v, of probability at most a + c D by steps 2 to 4; take the mean. (a and c must not depend on y, or
  they could be large exactly where D is.)
* One half of the records, drawn independently of coins and scores, chooses the threshold and its direction; the other
  half is counted. Conditional on its coins, the first half is like all other records that are no canaries, so the
  theorem holds for the m records of the second half. Then the halves swap roles: this gives two bounds, each at half
  the error, and the larger one is reported.

The coins have to be independent. The hash makes them so, but drawing equal numbers of members and non-members does not:
once the number |A| of members is known, data sets can differ only by replacing one record with another, which is two
add-remove steps. (A mechanism whose output y has likelihood e^ε if record 1 is in and |A| = n, e^−ε if it is out and
|A| = n, and 1 if |A| ≠ n is ε-private up to normalisation, and given |A| = n its odds are e^2ε.) So `Game` says which
records take part: a share of either side, drawn record by record so that in and out are equally likely
(`members.draw`).

Where the guarantee is for *replacing* a record, adding one is not covered, and the canaries are pairs instead: a member
and a non-member, where a fair coin decides which is which; flipping it replaces one record. Given a set of records with
equally many members and non-members and a random matching between them, these coins are fair and independent. A pair is
guessed if exactly one of its two scores is beyond the threshold, and m is the number of pairs that are counted.

The trial (`judge_one_run`). Flip the canaries' coins, make one release, guess, and report the bound. The coins and the
randomness of the release are independent children of one stream. The numbers of guesses are fixed in advance and share
the error, so nothing is chosen on the scores that certify the bound. Where the noise is known, half of the error goes
to a test of everything that its accounting claims: `one_run_curve`.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from airlock.accounting.terms import Relation
from airlock.auditing import one_run_curve as curve
from airlock.auditing.audit_game import in_words, power
from airlock.auditing.bounds import Floats, about, log_sum_exp
from airlock.auditing.dp_audit import LUCK, Event, Hits, choose, first
from airlock.errors import ConfigError, Refused
from airlock.mechanisms import Stream
from airlock.methods.case import Canaries

Coins = NDArray[np.bool_]

LARGEST = 20.0
_HALVINGS = 50
# The shares of the canaries that are guessed: fixed here, before any score is seen, each with its share of the error.
# Few guesses suit a leak that affects few canaries; guessing all suits one that affects each a little.
SHARES = (1.0, 0.25, 0.05)
_FEW = 20  # correct guesses about members that suffice for a bound, where the δ-term allows it


@dataclass(frozen=True)
class Look:
    """One number of guesses and what it gave.

    Args:
        guesses: r.
        correct: v.
        bound: The lower bound on ε at this look's share of the error.
    """

    guesses: int
    correct: int
    bound: float


def p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """An upper bound on the probability of at least this many correct guesses if the mechanism is (ε, δ)-private."""
    if correct <= 0:
        return 1.0
    mass = _log_binomial(guesses, epsilon)
    tail, rest = float(log_sum_exp(mass[correct:])), float(log_sum_exp(mass[:correct]))
    leak = canaries * delta * math.exp(min(700.0, tail + rest - mass[correct] - math.log(correct)))
    return min(1.0, math.exp(tail) + leak)


@lru_cache(maxsize=4096)
def lower_bound(canaries: int, guesses: int, correct: int, delta: float, confidence: float) -> float:
    """The largest ε that this many correct guesses refute at δ; 0 if none.

    Guarantee: it exceeds the ε of a mechanism that is (ε, δ)-private under add-remove with probability at most
    1 − confidence, if the number of guesses was fixed before the run.
    """
    low, high = 0.0, LARGEST
    if p_value(canaries, guesses, correct, low, delta) >= 1.0 - confidence:
        return 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        rejected = p_value(canaries, guesses, correct, middle, delta) < 1.0 - confidence
        low, high = (middle, high) if rejected else (low, middle)
    return low


def guess(scores: Floats, guesses: int) -> NDArray[np.int8]:
    """+1 (in) for the highest scores, −1 (out) for the lowest, half of the guesses each; 0 (no guess) for the others.

    Ties are broken by position and NaN counts as 0: neither depends on the coins.
    """
    order = np.argsort(np.nan_to_num(np.asarray(scores, float)), kind="stable")
    made = np.zeros(len(order), np.int8)
    made[order[: guesses // 2]] = -1
    made[order[len(order) - (guesses - guesses // 2) :]] = 1
    return made


def hits(scores: Floats, coins: Coins, guesses: int) -> int:
    """How many of this number of guesses are correct."""
    return int((guess(scores, guesses) == np.where(coins, 1, -1)).sum())


def numbers(canaries: int) -> tuple[int, ...]:
    """The numbers of guesses that are made for this number of canaries."""
    return tuple(max(1, round(share * canaries)) for share in SHARES)


def look_at_guesses(scores: Floats, coins: Coins, delta: float, confidence: float) -> tuple[Look, ...]:
    """The bound for every fixed number of guesses.

    Guarantee: the largest of these bounds exceeds the true ε with probability at most 1 − confidence: each gets an
    equal share of the error (Bonferroni).
    """
    canaries, each = len(coins), share_of(confidence)
    found = [(r, hits(scores, coins, r)) for r in numbers(canaries)]
    return tuple(Look(r, v, lower_bound(canaries, r, v, delta, each)) for r, v in found)


def best_look(found: Sequence[Look]) -> Look:
    """The look with the largest bound; if none has one, the look with the most guesses."""
    return max(found, key=lambda look: (look.bound, look.guesses))


def share_of(confidence: float) -> float:
    """The confidence of one look."""
    return 1.0 - (1.0 - confidence) / len(SHARES)


def largest_refutable(canaries: int, delta: float, confidence: float) -> float:
    """The largest ε that one run with this many canaries could refute: when every guess is correct."""
    each = share_of(confidence)
    return max(lower_bound(canaries, r, r, delta, each) for r in numbers(canaries))


def would_show(
    canaries: int,
    epsilon: float,
    delta: float,
    confidence: float,
    family: Callable[[float], tuple[Floats, Floats]],
    on_curve: float = math.inf,
) -> float | None:
    """The smallest member of a family of mechanisms for which the claim (ε, δ) is refuted about half of the time.

    Computed from the expected share of correct guesses: with optimal scores, the highest are guessed "in" and the
    lowest "out". None where no member is refuted.

    Args:
        canaries: How many there are.
        epsilon: Of the claim.
        delta: Of the claim.
        confidence: Of the verdict.
        family: For numbers from 1 to 64, the probabilities of some nested events for a canary that is in and for one
            that is out.
        on_curve: The share of `curve.guesses_of(canaries)` guesses that has to be right to refute the claimed curve.
    """
    each = share_of(confidence)
    needed = {r: _least_accuracy(canaries, r, epsilon, delta, each) for r in numbers(canaries)}

    def refuted(member: float) -> bool:
        chances = family(member)
        if _accuracy(curve.guesses_of(canaries) / canaries, *chances) >= on_curve:
            return True
        return any(_accuracy(r / canaries, *chances) >= least for r, least in needed.items())

    return first(refuted)


def _accuracy(share: float, one: Floats, other: Floats) -> float:
    """The expected share of correct guesses about the outermost share of the scores, half at either end."""
    one, other = (np.concatenate([[0.0], side, [1.0]]) for side in (one, other))
    passed = (one + other) / 2
    high, low = np.interp(share / 2, passed, one), np.interp(1.0 - share / 2, passed, other)
    return float(high + 1.0 - low) / (2 * share)


def _least_accuracy(canaries: int, guesses: int, epsilon: float, delta: float, confidence: float) -> float:
    """The smallest share of correct guesses that refutes the claim; infinite if none does."""
    low, high = 0, guesses + 1  # `high` correct guesses refute it, `low` do not
    while high - low > 1:
        middle = (low + high) // 2
        if lower_bound(canaries, guesses, middle, delta, confidence) >= epsilon:
            high = middle
        else:
            low = middle
    return high / guesses if high <= guesses else math.inf


@dataclass(frozen=True)
class Game:
    """Which members and non-members of a release take part: those whose coins are fair and independent.

    Args:
        members: One number per member: 0 if it does not take part, 1 or 2 for the halves that choose for each other.
        others: One number per non-member.
        expected: How many of either side are expected to take part; a public figure, unlike the actual numbers.
    """

    members: NDArray[np.int8]
    others: NDArray[np.int8]
    expected: int

    @classmethod
    def of_nobody(cls, members: int, others: int) -> Game:
        """Where the coins of so many members and others are not independent: nobody takes part, and no ε is bounded."""
        return cls(np.zeros(members, np.int8), np.zeros(others, np.int8), 0)

    @classmethod
    def of_all(cls, members: Floats, others: Floats) -> Game:
        """Equal numbers of both sides, halved at random, seeded by the scores.

        This ignores the dependence caused by fixing the numbers to be equal: see the module.
        """
        count = min(len(members), len(others))
        every = np.sort(np.concatenate([members, others]))
        seed = hashlib.blake2b(every.tobytes(), digest_size=16, person=b"airlock-halves").digest()
        lots = np.random.default_rng(int.from_bytes(seed, "big")).integers(1, 3, (2, max(len(members), len(others))))
        lots[:, count:] = 0
        return cls(lots[0, : len(members)].astype(np.int8), lots[1, : len(others)].astype(np.int8), count)


def membership_bound(
    members: Floats,
    others: Floats,
    delta: float,
    confidence: float,
    game: Game | None = None,
    relation: Relation = "add-remove",
) -> float:
    """A lower bound on ε at δ from scores of members and non-members of one release; 0 if there is none.

    Guarantee: if the release is (ε, δ)-private under the relation, the bound exceeds ε with probability at most
    1 − confidence over the membership coins and the release, if the coins of the game are fair and independent. Proof:
    see the module.

    Args:
        members: One score per record; their order carries no information about the records.
        others: The same.
        delta: Of the bound.
        confidence: Of the bound.
        game: Which records take part; by default as many of each side as the smaller one has.
        relation: Which data sets are neighbours.
    """
    one, other = np.asarray(members, float), np.asarray(others, float)
    game = game or Game.of_all(one, other)
    halves = [[side[own == half] for half in (1, 2)] for side, own in ((one, game.members), (other, game.others))]
    paired = relation == "replace-one"
    if paired:  # paired by position; every other pair goes to the same half
        one, other = one[game.members > 0], other[game.others > 0]
        count = min(len(one), len(other))
        halves = [[side[half:count:2] for half in (0, 1)] for side in (one, other)]
    found = 0.0
    for choosing, counted in ((0, 1), (1, 0)):
        count = (
            min(map(len, (side[counted] for side in halves))) if paired else sum(len(side[counted]) for side in halves)
        )
        level = _Level.of(count, delta, (1.0 - confidence) / 2)
        event, way = _chosen(halves[0][choosing], halves[1][choosing], level, paired)
        found = max(found, level.bound(*_told(way, *event.hits(halves[0][counted], halves[1][counted]))))
    return found


def largest_membership_bound(count: int, delta: float, confidence: float, relation: Relation = "add-remove") -> float:
    """The bound if this many of either side took part, one half was counted, and all its records were told apart."""
    canaries = count // 2 if relation == "replace-one" else 2 * (count // 2)
    return _Level.of(canaries, delta, (1.0 - confidence) / 2).largest(canaries)


# Which guesses a threshold makes: about records beyond it, about all (with the opposite guess for the others), or about
# pairs.
_Way = Literal["those", "all", "pairs"]


@dataclass(frozen=True)
class _Level:
    """The numbers a and c of the proof; they depend on how many are counted, on δ and on β."""

    chance: float
    leak: float

    @classmethod
    def of(cls, canaries: int, delta: float, error: float) -> _Level:
        """The term c m δ gets just enough of the error for `_FEW` correct guesses to suffice, and at most half."""
        lost = canaries * delta
        share = min(0.5, lost / (_FEW * error))
        return cls((1.0 - share) * error, share * error / lost if lost else math.inf)

    def bound(self, right: int, wrong: int) -> float:
        """The largest ε that is rejected, 0 if none: f(v) and f(v)/P[B = v] rise with ε."""

        def rejected(epsilon: float) -> bool:
            mass = _log_binomial(right + wrong, epsilon)
            top = float(mass[right:].max())
            tail = top + math.log(np.exp(mass[right:] - top).sum())
            return tail <= math.log(self.chance) and tail - mass[right] <= math.log(right * self.leak)

        low, high = 0.0, LARGEST
        if right <= 0 or not rejected(low):
            return 0.0
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if rejected(middle) else (low, middle)
        return low

    def largest(self, right: int) -> float:
        """`bound` where every guess is correct: f is q^r, and its ratio to P[B = r] is 1."""
        if not right or right * self.leak < 1.0:
            return 0.0
        each = -math.log(self.chance) / right  # −ln q
        return min(LARGEST, max(0.0, -math.log(math.expm1(each))))

    def promises(self, right: Floats, wrong: Floats) -> Floats:
        """`bound`, vectorised and approximate: Wilson's interval, and f(v)/P[B = v] ≤ 1/(1 − P[B = v + 1]/P[B = v])."""
        some = np.maximum(right, 1e-9)
        fewer = np.maximum(some - 2 * np.sqrt(some), 1e-9)  # there may be fewer in the half that is counted
        low, _ = about(some, some + wrong, self.chance / LUCK)
        with np.errstate(divide="ignore"):
            by_chance = np.log(low) - np.log1p(-low)
            room = np.log(np.maximum(1.0 - 1.0 / (self.leak * fewer), 0.0))
            return np.asarray(np.minimum(by_chance, room + np.log((some + 1) / np.maximum(wrong, 0.5))))


def _chosen(one: Floats, other: Floats, level: _Level, paired: bool) -> tuple[Event, _Way]:
    """The event, and the way to use it, with the largest expected bound on another half of this size."""
    ways: tuple[_Way, ...] = ("pairs",) if paired else ("those", "all")

    def promised(way: _Way, p: Floats, runs_p: int, q: Floats, runs_q: int) -> Floats:
        if way == "pairs":
            return level.promises(p * (1 - q / runs_q), q * (1 - p / runs_p))
        return level.promises(p, q) if way == "those" else level.promises(p + runs_q - q, q + runs_p - p)

    def value(p: Floats, runs_p: int, q: Floats, runs_q: int) -> Floats:
        best = np.max([promised(way, p, runs_p, q, runs_q) for way in ways], axis=0)
        return np.where((p + q > 0) & (p + q < runs_p + runs_q), best, -np.inf)  # all or none: uninformative

    event = choose(one, other, value)
    p, q = event.hits(one, other)
    if not (p.any() or q.any()):
        return event, ways[0]
    hits = np.array([float(p.sum())]), len(p), np.array([float(q.sum())]), len(q)
    return event, max(ways, key=lambda way: float(promised(way, *hits)[0]))


def _told(way: _Way, p: Hits, q: Hits) -> tuple[int, int]:
    """Correct and wrong guesses, from the hits of the event on the side that it indicates and on the other."""
    if way == "pairs":
        return int((p & ~q).sum()), int((q & ~p).sum())
    if way == "all":
        return int(p.sum() + (~q).sum()), int(q.sum() + (~p).sum())
    return int(p.sum()), int(q.sum())


@lru_cache(maxsize=64)
def _log_ways(trials: int) -> Floats:
    """Logarithms of the binomial coefficients."""
    k = np.arange(trials + 1)
    ways = np.asarray(gammaln(trials + 1) - gammaln(k + 1) - gammaln(trials - k + 1))
    ways.flags.writeable = False  # all callers have the same
    return ways


def _log_binomial(trials: int, epsilon: float) -> Floats:
    """Logarithms of P[B = k] for k = 0, …, trials and B ~ Binomial(trials, e^ε/(e^ε + 1)), without underflow."""
    k = np.arange(trials + 1)
    return np.asarray(
        _log_ways(trials) - k * math.log1p(math.exp(-epsilon)) - (trials - k) * math.log1p(math.exp(epsilon))
    )


# The trial of a claim with one run.


FEWEST, MOST = 20, 5000

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class OneRunVerdict:
    """What one run found about one claim.

    Args:
        canaries: What was tried.
        looks: The numbers of guesses, how many were correct, and the bound that each gives.
        confidence: Of everything in this verdict together.
        seconds: How long the run took.
        on_curve: What the run says about the claim's whole curve; None where the noise is not known.
    """

    canaries: Canaries
    looks: tuple[Look, ...]
    confidence: float
    seconds: float
    on_curve: curve.CurveLook | None = None

    @property
    def would_show(self) -> float | None:
        """The smallest true ε at which this claim is refuted in about half of all trials; None if there is none.

        For this mechanism with less noise, or for randomised response on every coin where the noise is not known.
        """
        return self._power[0]

    @property
    def less_noise(self) -> float | None:
        """The factor by which the noise is divided at that ε; None where the noise is not known."""
        return self._power[1]

    @cached_property
    def could_refute(self) -> float:
        """The largest claimed ε that this many canaries could have refuted, with every guess correct."""
        return largest_refutable(self.canaries.count, self.canaries.claim.delta, self._of_looks)

    @property
    def _of_looks(self) -> float:
        return self.confidence if self.on_curve is None else _half(self.confidence)

    @cached_property
    def _power(self) -> tuple[float | None, float | None]:
        claim, count = self.canaries.claim, self.canaries.count
        find = partial(would_show, count, claim.epsilon, claim.delta, self._of_looks, on_curve=self._least_on_curve())
        return power(claim.epsilon, self.canaries.family, find)

    def _least_on_curve(self) -> float:
        """The share of right guesses that refutes the claimed curve; infinite where none does."""
        look, family, count = self.on_curve, self.canaries.family, self.canaries.count
        claimed = None if look is None or family is None else family.trade_off(1.0)
        if look is None or claimed is None:
            return math.inf
        fewest = curve.fewest_correct(claimed, count, look.guesses, look.chance)
        return fewest / look.guesses if fewest <= look.guesses else math.inf

    @cached_property
    def noise_divided_by(self) -> float | None:
        """More than this divides the noise, if nothing else is wrong; 0 if nothing is shown, None if not known."""
        if self.on_curve is None or self.canaries.family is None:
            return None
        return curve.divided_by(self.canaries.family, self.canaries.count, self.on_curve)

    @cached_property
    def epsilon_of_less_noise(self) -> float | None:
        """ε with the noise divided by that: a lower bound only if nothing else is wrong."""
        divisor, family = self.noise_divided_by, self.canaries.family
        return None if divisor is None or family is None else family.at(divisor).epsilon if divisor else 0.0

    @property
    def best(self) -> Look:
        """The look with the largest bound."""
        return best_look(self.looks)

    @property
    def epsilon_lower_bound(self) -> float:
        """ε at the claim's δ is above this, with the stated confidence."""
        return self.best.bound

    @property
    def refuted(self) -> bool:
        """Whether the claim, or the curve that its proof claims, is false, with the stated confidence."""
        if self.on_curve is not None and self.on_curve.refuted:
            return True
        return self.epsilon_lower_bound >= self.canaries.claim.epsilon

    @property
    def tried(self) -> bool:
        """Whether the claim was, or could have been, refuted; if not, a claim that stands means nothing."""
        return self.refuted or self.would_show is not None

    @property
    def says(self) -> str:
        """`refuted`, or `not refuted` with what could have been seen."""
        if self.refuted:
            return "refuted"
        if self.would_show is None:
            return "not refuted (too few canaries to refute it)"
        return f"not refuted (could have refuted ε ≥ {self.would_show:.2f})"

    @property
    def of_what(self) -> str:
        """The mechanism that `would_show` refers to."""
        return in_words(self.canaries.family, self.less_noise)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        claim = self.canaries.claim
        return {
            "claim": {"epsilon": claim.epsilon, "delta": claim.delta, "theorem": claim.theorem},
            "verdict": self.says,
            "refuted": self.refuted,
            "tried": self.tried,
            "epsilon_lower_bound": self.epsilon_lower_bound,
            "confidence": self.confidence,
            "relation": "add-remove",
            "runs": 1,
            "canaries": self.canaries.count,
            "guesses": self.best.guesses,
            "correct": self.best.correct,
            "looks": [{"guesses": x.guesses, "correct": x.correct, "epsilon": x.bound} for x in self.looks],
            "curve": None if self.on_curve is None else self._curve_in_figures(),
            "could_refute": self.would_show,
            "could_refute_of": None if self.would_show is None else self.of_what,
            "noise_divided_by": self.less_noise,
            "largest_refutable_claim": self.could_refute,
            "seconds": round(self.seconds, 1),
            "run": self.canaries.what,
            "statistics": [self.canaries.statistic],
        }

    def _curve_in_figures(self) -> dict[str, Any]:
        look = self.on_curve
        assert look is not None
        return {
            "guesses": look.guesses,
            "correct": look.correct,
            "refuted": look.refuted,
            "noise_divided_by_at_least": self.noise_divided_by,
            "epsilon_of_that": self.epsilon_of_less_noise,
        }


def judge_one_run(
    canaries: Canaries, stream: Stream, confidence: float = 0.95, progress: Progress | None = None
) -> OneRunVerdict:
    """Try to refute a claim with one run of the whole method.

    Guarantee: with probability at most 1 − confidence over the coins and the run, a true claim is refuted or the lower
    bound exceeds the true ε (theorem and proof are at the top of the module and of `one_run_curve`). Where the noise is
    known, half of the error goes to the curve that its accounting claims, half to the bound.

    Args:
        canaries: What is tried.
        stream: The randomness of the coins and of the run.
        confidence: Of the verdict.
        progress: Called with a label, the runs done and the runs in all.
    """
    if not 0.5 <= confidence < 1:
        raise ConfigError("a confidence from 0.5 to below 1", f"{confidence:g}")
    claim, count, begin = canaries.claim, canaries.count, time.monotonic()
    coins = stream.child("coins").uniform(count) < 0.5
    scores = canaries.run(coins, stream.child("run"))
    if scores.shape != (count,):
        raise Refused(f"a score for each of {count} canaries", f"an array of shape {scores.shape}")
    if progress:
        progress("runs", 1, 1)
    right, on_curve = hits(scores, coins, curve.guesses_of(count)), None
    if canaries.family is not None:
        on_curve = curve.look_at_curve(canaries.family, count, right, (1.0 - confidence) / 2)
    looks = look_at_guesses(scores, coins, claim.delta, confidence if on_curve is None else _half(confidence))
    return OneRunVerdict(canaries, looks, confidence, time.monotonic() - begin, on_curve)


def _half(confidence: float) -> float:
    """The confidence of what gets half of the error."""
    return 1.0 - (1.0 - confidence) / 2


def check_count(count: int) -> None:
    """Refuse numbers of canaries that are too small to be informative or too large to fit."""
    if not FEWEST <= count <= MOST:
        why = "Fewer say nothing about any ε; the network grows with them, its records with their square."
        raise ConfigError(f"from {FEWEST} to {MOST:,} canaries", f"{count}", why)
