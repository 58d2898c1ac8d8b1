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
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from airlock.audit.bounds import Floats

Coins = NDArray[np.bool_]

LARGEST = 20.0
_HALVINGS = 50
# Of the canaries, how many are guessed: fixed here, before any score is seen, each with its share of the error. Few
# guesses suit a leak that shows on few canaries, all of them one that shows a little on each.
SHARES = (1.0, 0.25, 0.05)


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


def looks(scores: Floats, coins: Coins, delta: float, confidence: float) -> tuple[Look, ...]:
    """Every fixed number of guesses with its bound.

    Guarantee: the largest of these bounds exceeds the true ε with probability at most 1 − confidence: each has an equal
    share of the error (Bonferroni).
    """
    canaries, each = len(coins), share_of(confidence)
    found = [(r, hits(scores, coins, r)) for r in numbers(canaries)]
    return tuple(Look(r, v, lower_bound(canaries, r, v, delta, each)) for r, v in found)


def best(found: Sequence[Look]) -> Look:
    """The look with the largest bound; of several without one, that with the most guesses."""
    return max(found, key=lambda look: (look.bound, look.guesses))


def share_of(confidence: float) -> float:
    """The confidence of one look."""
    return 1.0 - (1.0 - confidence) / len(SHARES)


def could_refute(canaries: int, delta: float, confidence: float) -> float:
    """The largest ε that one run with so many canaries could refute at all: when every guess is right."""
    each = share_of(confidence)
    return max(lower_bound(canaries, r, r, delta, each) for r in numbers(canaries))


def would_show(canaries: int, epsilon: float, delta: float, confidence: float) -> float:
    """The ε from which on the claim (ε, δ) is expected to be refuted, if the mechanism answers every coin with it.

    That is randomised response, the most telling of all mechanisms with an ε. Noise on a gradient tells less: a guess
    is right far less often than its ε allows. Infinite where not even right guesses throughout would do.
    """
    each = share_of(confidence)
    needed = min(_least_accuracy(canaries, r, epsilon, delta, each) for r in numbers(canaries))
    if needed >= 1.0:
        enough = could_refute(canaries, delta, confidence) >= epsilon
        return LARGEST if enough else math.inf
    return math.log(needed / (1.0 - needed))


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


def _log_binomial(trials: int, epsilon: float) -> Floats:
    """Logarithms of P[B = 0, 1, …, trials] for B ~ Binomial(trials, e^ε/(e^ε + 1)), which do not underflow."""
    k = np.arange(trials + 1)
    ways = gammaln(trials + 1) - gammaln(k + 1) - gammaln(trials - k + 1)
    return np.asarray(ways - k * math.log1p(math.exp(-epsilon)) - (trials - k) * math.log1p(math.exp(epsilon)))
