"""What one run with many canaries says about ε; the statistics, no mechanism is known here.

The game (Steinke, Nasr and Jagielski 2023, "Privacy auditing with one (1) training run"). There are m canaries, records
that a fair coin each, secret and independent, puts into the data set or leaves out. One run of the mechanism gives
output y, and from y alone the auditor guesses the coins of r canaries, abstaining on the others. r is fixed beforehand,
which canaries are guessed may depend on y in any way. W is the number of correct guesses.

Guarantee. If the mechanism is (ε, δ)-private when one record is added or removed, and the other records do not depend
on the coins, then with B ~ Binomial(r, e^ε/(e^ε + 1)) and f(v) = P[B ≥ v], for every v ≥ 1:

    P[W ≥ v]  ≤  f(v) + m δ · f(v) (1 − f(v)) / (v P[B = v]).

At δ = 0 this is theirs. Their δ-term is 2 m δ max_i P[v > B ≥ v − i]/i; wherever the whole is below 1/2, the one here
was never found above it (tests). Its proof is short enough to be checked:

1. Fix y and name the coins by whether a guess of y hits them: π(s) is the posterior of the hits s ∈ {0, 1}^r, which is
   proportional to the likelihood, the coins being fair and independent. By privacy, for each canary i and all other
   coins, ∫ (M_s(y) − e^ε M_s'(y))₊ dy ≤ δ, s and s' differing in i alone, in both orders. So D(y), the sum over guessed
   i and over s with a hit at i of (π(s) − e^ε π(s without it))₊, has mean at most m δ: of the two orders of a pair y
   counts one, pairs have weight 2^-m each in both, and there are m 2^(m-1) of them.
2. Let ρ_k be the posterior probability of k hits. Adding up the differences between the levels k and k − 1 gives
   x_k = k ρ_k − e^ε (r − k + 1) ρ_{k−1} with Σ_k (x_k)₊ ≤ D. Of B's own probabilities b_k these differences are 0. So
   k b_k (g_k − g_{k−1}) = x_k for g_k = ρ_k / b_k.
3. P[W ≥ v | y] = Σ_{k≥v} b_k g_k, and Σ b_k g_k = 1, hence it is f(v) + Σ_k (g_k − g_{k−1}) c_k with
   c_k = Cov(1[B ≥ v], 1[B ≥ k]) ≥ 0. That is at most f(v) + D max_k c_k/(k b_k).
4. For k ≤ v: c_k/(k b_k) = f(v) P[B < k]/(k b_k), which grows with k; for k ≥ v: (1 − f(v)) f(k)/(k b_k), which falls:
   binomial probabilities are log-concave. The maximum is at k = v. Take the mean over y.

A p-value for a larger ε holds for a smaller one too, since privacy at ε implies it above. So `lower_bound`, which finds
an ε that is rejected, exceeds the true ε with probability at most 1 − confidence, whatever the form of the p-value.

Records of a real release (`membership_bound`). Members and non-members of one model are this game too, because a keyed
hash decides where a record goes: the coins are those of the split, and every record that was attacked is a canary. It
is no test on many runs, of which one δ could be taken off: there is one run, and a mechanism that is (ε, δ)-private may
give away each of m records with probability δ. And without coins there would be nothing to say: of members that are
fixed, a constant output can tell. Two things differ from the canaries of the court.

* Which records are guessed is decided by a threshold, so r depends on y. Fix a and c with a + c m δ ≤ β. Rejecting ε
  where f_r(W) ≤ a and f_r(W)/(W P[B = W]) ≤ c errs with probability at most β: both fall as W grows, so for each y this
  is an event W ≥ v, of probability at most a + c D by steps 2 to 4; take the mean. (a and c must not depend on y, or
  they could be large just where D is.)
* One half of the records, drawn by lots that know neither coins nor scores, chooses the threshold and what it speaks
  for; the other half is counted. Given its coins the first half is like all records that are no canaries, so the
  theorem holds for the m of the second. Then they change places: two bounds, each at half the error, of which the
  larger holds.

The coins have to be independent. The hash makes them so, drawing equal numbers of members and non-members does not:
with the number |A| of members known, all that can differ is one record in place of another, and that is two steps. (A
mechanism whose output y has likelihood e^ε if record 1 is in and |A| = n, e^−ε if it is out and |A| = n, and 1 if
|A| ≠ n is ε-private up to normalisation, and given |A| = n its odds are e^2ε.) So `Game` says who takes part: a share
of either side, taken record by record such that in and out are equally likely (`members.draw`). Equal records have one
coin for all; they are left out.

Where the guarantee is for a record *replaced*, adding one is not covered, and the canaries are pairs instead: a member
and a non-member, in random order, of which a fair coin says which is which; turning it replaces one record. Given a set
of records with as many members as others and a random matching between them, these coins are fair and independent. A
pair is guessed if one of its two scores is beyond the threshold, and m is the number of pairs that are counted.

The trial (`judge_one_run`). Toss the canaries' coins, make the release once, guess, and say what it shows. The coins
and the randomness of the release are independent leaves of one stream. The numbers of guesses are fixed and share the
error, so nothing is chosen on the scores whose truth certifies the bound.
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
from scipy.special import gammaln, logsumexp

from airlock.accounting.epsilon import Relation
from airlock.auditing.audit_game import in_words, power
from airlock.auditing.bounds import Floats, about
from airlock.auditing.dp_audit import LUCK, Event, Hits, choose, first
from airlock.errors import ConfigError, Refused
from airlock.mechanisms import Stream
from airlock.methods.case import Canaries

Coins = NDArray[np.bool_]

LARGEST = 20.0
_HALVINGS = 50
# Of the canaries, how many are guessed: fixed here, before any score is seen, each with its share of the error. Few
# guesses suit a leak that shows on few canaries, all of them one that shows a little on each.
SHARES = (1.0, 0.25, 0.05)
_FEW = 20  # right guesses about members that are enough for a bound, where the δ-term allows it


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
    """At most how likely so many correct guesses, or more, are if the mechanism is (ε, δ)-private."""
    if correct <= 0:
        return 1.0
    mass = _log_binomial(guesses, epsilon)
    tail, rest = logsumexp(mass[correct:]), logsumexp(mass[:correct])
    leak = canaries * delta * math.exp(min(700.0, tail + rest - mass[correct] - math.log(correct)))
    return min(1.0, math.exp(tail) + leak)


@lru_cache(maxsize=4096)
def lower_bound(canaries: int, guesses: int, correct: int, delta: float, confidence: float) -> float:
    """The largest ε that so many correct guesses refute at δ; 0 if none.

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
    """+1 (in) for the highest half of so many scores, −1 (out) for the lowest, 0 (no guess) for the others.

    Equal scores go by place and a score that is no number counts as 0: neither knows the coins.
    """
    order = np.argsort(np.nan_to_num(np.asarray(scores, float)), kind="stable")
    made = np.zeros(len(order), np.int8)
    made[order[: guesses // 2]] = -1
    made[order[len(order) - (guesses - guesses // 2) :]] = 1
    return made


def hits(scores: Floats, coins: Coins, guesses: int) -> int:
    """How many of so many guesses are right."""
    return int((guess(scores, guesses) == np.where(coins, 1, -1)).sum())


def numbers(canaries: int) -> tuple[int, ...]:
    """The numbers of guesses that are made for so many canaries."""
    return tuple(max(1, round(share * canaries)) for share in SHARES)


def look_at_guesses(scores: Floats, coins: Coins, delta: float, confidence: float) -> tuple[Look, ...]:
    """Every fixed number of guesses with its bound.

    Guarantee: the largest of these bounds exceeds the true ε with probability at most 1 − confidence: each has an equal
    share of the error (Bonferroni).
    """
    canaries, each = len(coins), share_of(confidence)
    found = [(r, hits(scores, coins, r)) for r in numbers(canaries)]
    return tuple(Look(r, v, lower_bound(canaries, r, v, delta, each)) for r, v in found)


def best_look(found: Sequence[Look]) -> Look:
    """The look with the largest bound; of several without one, that with the most guesses."""
    return max(found, key=lambda look: (look.bound, look.guesses))


def share_of(confidence: float) -> float:
    """The confidence of one look."""
    return 1.0 - (1.0 - confidence) / len(SHARES)


def largest_refutable(canaries: int, delta: float, confidence: float) -> float:
    """The largest ε that one run with so many canaries could refute at all: when every guess is right."""
    each = share_of(confidence)
    return max(lower_bound(canaries, r, r, delta, each) for r in numbers(canaries))


def would_show(
    canaries: int, epsilon: float, delta: float, confidence: float, family: Callable[[float], tuple[Floats, Floats]]
) -> float | None:
    """The least member of a family of mechanisms of which the claim (ε, δ) is refuted about every other time.

    Expected is the share of right guesses: of scores that say all there is to say about a canary, the highest are
    guessed "in" and the lowest "out". None where no member is refuted.

    Args:
        canaries: How many there are.
        epsilon: Of the claim.
        delta: Of the claim.
        confidence: Of the verdict.
        family: For numbers from 1 to 64, the chances of some events, each within the next, for a canary that is in and
            for one that is out.
    """
    each = share_of(confidence)
    needed = {r: _least_accuracy(canaries, r, epsilon, delta, each) for r in numbers(canaries)}

    def refuted(member: float) -> bool:
        chances = family(member)
        return any(_accuracy(r / canaries, *chances) >= least for r, least in needed.items())

    return first(refuted)


def _accuracy(share: float, one: Floats, other: Floats) -> float:
    """How many guesses about the outermost share of the scores are right, half of them at either end."""
    one, other = (np.concatenate([[0.0], side, [1.0]]) for side in (one, other))
    passed = (one + other) / 2
    high, low = np.interp(share / 2, passed, one), np.interp(1.0 - share / 2, passed, other)
    return float(high + 1.0 - low) / (2 * share)


def _least_accuracy(canaries: int, guesses: int, epsilon: float, delta: float, confidence: float) -> float:
    """The least share of right guesses that refutes the claim; infinite if none does."""
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
    """Which members and which others of a release take part: those whose coins are fair and independent.

    Args:
        members: One number a member: 0 for who takes no part, 1 and 2 for the halves that choose for each other.
        others: One number a non-member.
        expected: How many of either side are expected to take part; a public figure, as the real numbers are not.
    """

    members: NDArray[np.int8]
    others: NDArray[np.int8]
    expected: int

    @classmethod
    def of_all(cls, members: Floats, others: Floats) -> Game:
        """All that have a partner on the other side, by lots that are drawn anew for other scores.

        That holds but for the knowledge that the numbers are equal: see the module.
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
    1 − confidence over the coins that made members and over the release, if the game has the coins that it says.
    Proof: see the module.

    Args:
        members: One score a record; their order says nothing about the records.
        others: The same.
        delta: Of the bound.
        confidence: Of the bound.
        game: Who takes part; everybody by default, as far as there are as many on the other side.
        relation: What neighbours are.
    """
    one, other = np.asarray(members, float), np.asarray(others, float)
    game = game or Game.of_all(one, other)
    halves = [[side[own == half] for half in (1, 2)] for side, own in ((one, game.members), (other, game.others))]
    paired = relation == "replace-one"
    if paired:  # pairs by place, and every other one
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
    """The bound if so many of either side took part, one half was counted, and its members were all told apart."""
    canaries = count // 2 if relation == "replace-one" else 2 * (count // 2)
    return _Level.of(canaries, delta, (1.0 - confidence) / 2).largest(canaries)


# Which guesses a threshold makes: about those beyond it, about all (of the other kind for the others), or about pairs.
_Way = Literal["those", "all", "pairs"]


@dataclass(frozen=True)
class _Level:
    """The numbers a and c of the proof; they follow from how many are counted, from δ and from β."""

    chance: float
    leak: float

    @classmethod
    def of(cls, canaries: int, delta: float, error: float) -> _Level:
        """Of the error, c m δ gets what lets so few right guesses count as `_FEW`, and at most half."""
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
        """`bound` where every guess is right: f is q^r, and its ratio to P[B = r] is 1."""
        if not right or right * self.leak < 1.0:
            return 0.0
        each = -math.log(self.chance) / right  # −ln q
        return min(LARGEST, max(0.0, -math.log(math.expm1(each))))

    def promises(self, right: Floats, wrong: Floats) -> Floats:
        """About `bound`, of many events at once: Wilson's, and f(v)/P[B = v] ≤ 1/(1 − P[B = v + 1]/P[B = v])."""
        some = np.maximum(right, 1e-9)
        fewer = np.maximum(some - 2 * np.sqrt(some), 1e-9)  # as there may be of those that are counted
        low, _ = about(some, some + wrong, self.chance / LUCK)
        with np.errstate(divide="ignore"):
            by_chance = np.log(low) - np.log1p(-low)
            room = np.log(np.maximum(1.0 - 1.0 / (self.leak * fewer), 0.0))
            return np.asarray(np.minimum(by_chance, room + np.log((some + 1) / np.maximum(wrong, 0.5))))


def _chosen(one: Floats, other: Floats, level: _Level, paired: bool) -> tuple[Event, _Way]:
    """The event, and the use of it, that promises the largest bound on as many others."""
    ways: tuple[_Way, ...] = ("pairs",) if paired else ("those", "all")

    def promised(way: _Way, p: Floats, runs_p: int, q: Floats, runs_q: int) -> Floats:
        if way == "pairs":
            return level.promises(p * (1 - q / runs_q), q * (1 - p / runs_p))
        return level.promises(p, q) if way == "those" else level.promises(p + runs_q - q, q + runs_p - p)

    def value(p: Floats, runs_p: int, q: Floats, runs_q: int) -> Floats:
        best = np.max([promised(way, p, runs_p, q, runs_q) for way in ways], axis=0)
        return np.where((p + q > 0) & (p + q < runs_p + runs_q), best, -np.inf)  # all, or nobody, says nothing

    event = choose(one, other, value)
    p, q = event.hits(one, other)
    if not (p.any() or q.any()):
        return event, ways[0]
    hits = np.array([float(p.sum())]), len(p), np.array([float(q.sum())]), len(q)
    return event, max(ways, key=lambda way: float(promised(way, *hits)[0]))


def _told(way: _Way, p: Hits, q: Hits) -> tuple[int, int]:
    """Right guesses and wrong ones: from who is in the event, of the side that it speaks for and of the other."""
    if way == "pairs":
        return int((p & ~q).sum()), int((q & ~p).sum())
    if way == "all":
        return int(p.sum() + (~q).sum()), int(q.sum() + (~p).sum())
    return int(p.sum()), int(q.sum())


def _log_binomial(trials: int, epsilon: float) -> Floats:
    """Logarithms of P[B = 0, 1, …, trials] for B ~ Binomial(trials, e^ε/(e^ε + 1)), which do not underflow."""
    k = np.arange(trials + 1)
    ways = gammaln(trials + 1) - gammaln(k + 1) - gammaln(trials - k + 1)
    return np.asarray(ways - k * math.log1p(math.exp(-epsilon)) - (trials - k) * math.log1p(math.exp(epsilon)))


# The trial of a claim with one run.


FEWEST, MOST = 20, 5000

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class OneRunVerdict:
    """What one run found about one claim.

    Args:
        canaries: What was tried.
        looks: The numbers of guesses, the right ones among them, and what each number shows by itself.
        confidence: Of everything in this verdict together.
        seconds: How long the run took.
    """

    canaries: Canaries
    looks: tuple[Look, ...]
    confidence: float
    seconds: float

    @property
    def would_show(self) -> float | None:
        """From which real ε on this claim is refuted in about half of all trials; None if from none.

        Of this mechanism with less noise; of one that answers every coin with its ε where the noise is not known.
        """
        return self._power[0]

    @property
    def less_noise(self) -> float | None:
        """By what the mechanism's noise is divided there; None where it is not known."""
        return self._power[1]

    @cached_property
    def could_refute(self) -> float:
        """The largest claim that so many canaries could have refuted at all, with every guess right."""
        return largest_refutable(self.canaries.count, self.canaries.claim.delta, self.confidence)

    @cached_property
    def _power(self) -> tuple[float | None, float | None]:
        claim, count = self.canaries.claim, self.canaries.count
        find = partial(would_show, count, claim.epsilon, claim.delta, self.confidence)
        return power(claim.epsilon, self.canaries.family, find)

    @property
    def best(self) -> Look:
        """The number of guesses that showed most."""
        return best_look(self.looks)

    @property
    def epsilon_lower_bound(self) -> float:
        """ε at the claim's δ is above this, with the stated confidence."""
        return self.best.bound

    @property
    def refuted(self) -> bool:
        """Whether the claim is false, with the stated confidence."""
        return self.epsilon_lower_bound >= self.canaries.claim.epsilon

    @property
    def tried(self) -> bool:
        """Whether the claim could have been refuted, or was; if not, that it stands says nothing at all."""
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
        """Of which mechanism `would_show` speaks."""
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
            "could_refute": self.would_show,
            "could_refute_of": None if self.would_show is None else self.of_what,
            "noise_divided_by": self.less_noise,
            "largest_refutable_claim": self.could_refute,
            "seconds": round(self.seconds, 1),
            "run": self.canaries.what,
            "statistics": [self.canaries.statistic],
        }


def judge_one_run(
    canaries: Canaries, stream: Stream, confidence: float = 0.95, progress: Progress | None = None
) -> OneRunVerdict:
    """Try to refute a claim with one run of the whole method.

    Guarantee: a true claim is refuted, or a lower bound above the true ε given, with probability at most
    1 − confidence, over the coins and the run (the theorem and its proof stand at the top).

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
    looks = look_at_guesses(scores, coins, claim.delta, confidence)
    return OneRunVerdict(canaries, looks, confidence, time.monotonic() - begin)


def check_count(count: int) -> None:
    """Refuse numbers of canaries that say nothing or do not fit."""
    if not FEWEST <= count <= MOST:
        why = "Fewer say nothing about any ε; the network grows with them, its records with their square."
        raise ConfigError(f"from {FEWEST} to {MOST:,} canaries", f"{count}", why)
