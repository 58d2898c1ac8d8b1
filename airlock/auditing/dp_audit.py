"""Can a stated (ε, δ) be refuted? Statistics only; nothing here depends on a mechanism.

A claim says P(S) ≤ e^ε Q(S) + δ for every event S and for two neighbouring data sets in either order. In: scores of
independent runs of one mechanism on both data sets, one row per run and one column per statistic. Out: a lower bound on
ε, or the rejection of a claim, each wrong with probability at most a stated β. None of this can prove a claim.

* `fixed`: half of the runs choose an event, the other half certify a bound (Clopper and Pearson 1934).
* `fixed_in_family`: the same, where the mechanism is assumed to be one of a family, such as Gaussian noise of some
  size: which of them it may still be. A whole trade-off curve then bounds what a single event bounds alone otherwise.
* `Sequential`: bets on an event against the claim. If the claim is true, the wealth is a supermartingale, so the
  probability that it ever reaches 1/β is at most β (Ville 1939), however often it is checked. The event of a bet must
  have been chosen on other or earlier runs.
* `PrivacyCurve`: several points (ε, δ) that one proof claims, each with its share of β (Bonferroni).

An event is a statistic at or above a threshold, or at or below it. Both contain their threshold, so runs with equal
scores are in or out together. A NaN score counts as −∞: that a score is NaN is an observable outcome too. Candidate
thresholds lie at equal steps through the scores and, rank by rank, in both tails of either side, where rare leaks show.
None of this affects the guarantees, since an event is never tested on the runs that chose it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from airlock.auditing.bounds import Floats, about, epsilon_lower_bound, log_sum_exp, proportion_interval

Hits = NDArray[np.bool_]
Point = tuple[float, float]  # ε, δ
Value = Callable[[Floats, int, Floats, int], Floats]  # of events, from their numbers of hits and of runs under P and Q

# Fractions of the largest stake 1/(e^ε + δ). Each fixed stake is a fair bet, and so is their mixture.
_STAKES = np.array([0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 0.99])
_LEVELS = 64  # thresholds at equal steps tried for each statistic
_RATIO = math.sqrt(2)  # of one rank in a tail to the next
_STEP = 0.01  # between two ε of an anytime bound
_LARGEST = 20.0
LAST = 64.0  # last member of a family that is considered: noise divided by this is no noise
_CLOSE = 1.002  # of two members of a family, when the last excluded one is found
LUCK = 20.0  # divides the error when choosing: the best of many events looks better than it is


@dataclass(frozen=True)
class Event:
    """A set of outputs, and which side is called P.

    Args:
        column: Which statistic.
        threshold: Part of the event itself.
        above: At or above the threshold, else at or below it.
        swapped: P is the side without the record.
    """

    column: int
    threshold: float
    above: bool
    swapped: bool

    def hits(self, one: Floats, other: Floats) -> tuple[Hits, Hits]:
        """Which runs of P and of Q are in the event, from the scores with and without the record."""
        p, q = (other, one) if self.swapped else (one, other)
        return self._contains(_table(p)), self._contains(_table(q))

    def _contains(self, scores: Floats) -> Hits:
        chosen = scores[:, self.column]
        return chosen >= self.threshold if self.above else chosen <= self.threshold


def choose(one: Floats, other: Floats, value: Value) -> Event:
    """The event with the largest value on these runs, which must not be counted by the test that uses it.

    If no value is above −∞, the empty event.
    """
    one, other = _table(one), _table(other)
    best, found = -math.inf, Event(0, math.nan, True, False)
    if not min(len(one), len(other)):
        return found
    for column in range(one.shape[1]):
        a, b = np.sort(one[:, column]), np.sort(other[:, column])
        levels = _levels(a, b)
        for above in (True, False):
            hits = [_within(scores, levels, above) for scores in (a, b)]
            for swapped in (False, True):
                p, q = (1, 0) if swapped else (0, 1)
                sizes = (len(b), len(a)) if swapped else (len(a), len(b))
                values = value(hits[p], sizes[0], hits[q], sizes[1])
                place = int(values.argmax())
                if values[place] > best:
                    best, found = float(values[place]), Event(column, float(levels[place]), above, swapped)
    return found


def largest_bound(delta: float, confidence: float) -> Value:
    """Prefers the event expected to give the largest lower bound on ε at this δ."""
    tail = (1.0 - confidence) / 2.0 / LUCK

    def value(p: Floats, runs_p: int, q: Floats, runs_q: int) -> Floats:
        low, high = about(p, runs_p, tail)[0], about(q, runs_q, tail)[1]
        return np.asarray(np.log(np.maximum(low - delta, 1e-12) / high))

    return value


def fastest_growth(epsilon: float, delta: float) -> Value:
    """Prefers the event on which a bet against (ε, δ) grows fastest: its payoff's squared mean over second moment."""
    ratio = math.exp(epsilon)

    def value(p: Floats, runs_p: int, q: Floats, runs_q: int) -> Floats:
        rate_p, rate_q = (p + 0.5) / (runs_p + 1), (q + 0.5) / (runs_q + 1)
        mean = rate_p - ratio * rate_q - delta
        square = rate_p * (1 - rate_q) + (ratio - 1) ** 2 * rate_p * rate_q + ratio**2 * (1 - rate_p) * rate_q
        return np.asarray(mean * np.abs(mean) / square)

    return value


def fixed(one: Floats, other: Floats, delta: float, confidence: float = 0.95) -> float:
    """A lower bound on ε at δ from a number of runs fixed in advance; 0 if there is none.

    Guarantee: if the mechanism is (ε, δ)-private, the bound exceeds ε with probability at most 1 − confidence.
    Even-numbered runs choose the event; only odd-numbered runs are counted.

    Args:
        one: Scores with the record, one row (or one number) per run.
        other: Scores without it.
        delta: The δ of the claim.
        confidence: Of the bound.
    """
    one, other = _table(one), _table(other)
    if min(len(one), len(other)) < 2:
        return 0.0
    event = choose(one[::2], other[::2], largest_bound(delta, confidence))
    p, q = event.hits(one[1::2], other[1::2])
    return epsilon_lower_bound(int(p.sum()), len(p), int(q.sum()), len(q), delta, confidence)


def fixed_in_family(
    one: Floats, other: Floats, family: Callable[[float], tuple[Floats, Floats]], confidence: float = 0.95
) -> float:
    """The last member of a family that these runs exclude, from 1/64 on; 0 if they exclude none.

    Guarantee: if the true member is at least as hard to tell apart as member r of the family (no test between the two
    data sets has more power at any level), the result exceeds r with probability at most 1 − confidence. For it to,
    a member at or above r would have to be excluded: a test of certified level has certified power above what that
    member allows, so above what the truth allows; one of the two Clopper–Pearson bounds, each at half of the error,
    would have to be wrong. One event is counted for all members, so that they share the error. Every fourth run chooses
    it, the others are counted.

    Args:
        one: Scores with the record, one row (or one number) per run.
        other: Scores without it.
        family: For numbers from 1/64 to 128, the probabilities of a nested sequence of events, the best tests, with and
            without the record. The larger the number, the further apart they are.
        confidence: Of the result.
    """
    one, other = _table(one), _table(other)
    if min(len(one), len(other)) < 2:
        return 0.0
    event = choose(one[::4], other[::4], _widest(confidence))
    p, q = event.hits(*(np.delete(side, np.s_[::4], axis=0) for side in (one, other)))
    if event.swapped:  # what speaks for P there is that the event did not happen
        p, q = ~q, ~p
    low = proportion_interval(int(p.sum()), len(p), confidence)[0]
    high = proportion_interval(int(q.sum()), len(q), confidence)[1]

    def excluded(member: float) -> bool:
        with_it, without = family(member)
        return low > float(np.interp(high, np.append(0.0, without), np.append(with_it[:1], with_it)))

    reached = 0.0
    following = 1.0 / LAST
    while following <= LAST and excluded(following):
        reached, following = following, 2.0 * following
    while reached and following / reached > _CLOSE:
        middle = math.sqrt(reached * following)
        reached, following = (middle, following) if excluded(middle) else (reached, middle)
    return reached


def _widest(confidence: float) -> Value:
    """Prefers the event that is furthest apart in units of a normal distribution, by approximate bounds."""
    from scipy.special import ndtri

    tail = (1.0 - confidence) / 2.0

    def value(p: Floats, runs_p: int, q: Floats, runs_q: int) -> Floats:
        low, high = about(p, runs_p, tail)[0], about(q, runs_q, tail)[1]
        return np.asarray(ndtri(np.maximum(low, 1e-12)) - ndtri(np.minimum(high, 1.0)))

    return value


class Sequential:
    """A test of one claim by betting; it may be checked, and stopped, at any time.

    Guarantee: if P(S) ≤ e^ε Q(S) + δ for the event of every bet, chosen before its runs were seen, the probability that
    the claim is ever rejected is at most β. A pair of runs multiplies the wealth by 1 + η (1[P∈S] − e^ε 1[Q∈S] − δ);
    with η < 1/(e^ε + δ) that is positive, and at most 1 on average. The wealth is the mean over a few fixed η.

    Args:
        epsilon: Of the claim.
        delta: Of the claim.
        beta: The probability of rejecting a true claim.
    """

    def __init__(self, epsilon: float, delta: float, beta: float) -> None:
        self.epsilon, self.delta, self.beta = epsilon, delta, beta
        self.pairs = 0
        self.rejected_after: int | None = None
        self._wealth = np.zeros(len(_STAKES))  # logarithms

    def bet(self, p_hits: Hits, q_hits: Hits) -> bool:
        """Bet on pairs of runs, one after the other; returns whether the claim is rejected by now."""
        path = self._wealth[:, None] + np.cumsum(self._growth(p_hits, q_hits), axis=1)
        if path.size:
            if self.rejected_after is None:
                top = path.max(axis=0)
                wealth = top + np.log(np.exp(path - top).mean(axis=0))
                reached = wealth >= -math.log(self.beta)
                self.rejected_after = self.pairs + int(reached.argmax()) + 1 if reached.any() else None
            self._wealth = path[:, -1]
        self.pairs += path.shape[1]
        return self.rejected_after is not None

    def _growth(self, p_hits: Hits, q_hits: Hits) -> Floats:
        most = math.exp(self.epsilon) + self.delta
        p, q = np.array([0.0, 0.0, 1.0, 1.0]), np.array([0.0, 1.0, 0.0, 1.0])  # all possible outcomes of a pair of runs
        pay = (p - math.exp(self.epsilon) * q - self.delta) / most
        return np.asarray(np.log1p(_STAKES[:, None] * pay)[:, 2 * p_hits.astype(np.intp) + q_hits])


class PrivacyCurve:
    """Several points (ε, δ) that one proof claims, tested jointly: rejecting any one refutes the claim.

    Guarantee: if all points are true, the probability that any of them is ever rejected is at most β. Each of k points
    has its own bet at level β/k; `learn` chooses its next event from runs already bet on, or never bet on.
    """

    def __init__(self, points: Sequence[Point], beta: float) -> None:
        self._tests = [Sequential(epsilon, delta, beta / len(points)) for epsilon, delta in points]
        self._events: list[Event] = []

    @property
    def refuted(self) -> Point | None:
        """The rejected point that took the fewest pairs."""
        found = [(t.rejected_after, (t.epsilon, t.delta)) for t in self._tests if t.rejected_after is not None]
        return min(found)[1] if found else None

    def learn(self, one: Floats, other: Floats) -> None:
        """Choose the events of the next bets on these runs."""
        self._events = [choose(one, other, fastest_growth(test.epsilon, test.delta)) for test in self._tests]

    def bet(self, one: Floats, other: Floats) -> bool:
        """Bet on runs that `learn` has not seen; returns whether a point is rejected by now."""
        for test, event in zip(self._tests, self._events, strict=True):
            test.bet(*event.hits(one, other))
        return self.refuted is not None


def anytime(p_hits: Hits, q_hits: Hits, delta: float, beta: float, reached: float = 0.0) -> float:
    """An anytime-valid lower bound on ε: the last of the claims 0.01, 0.02, … that are rejected in turn.

    Guarantee: it exceeds the true ε with probability at most β. To exceed it, the first claim on the list at or above
    the true ε, which is true, would have to be rejected by its own `Sequential`.

    Args:
        p_hits: Of all bets so far.
        q_hits: The same.
        delta: Of the bound.
        beta: The probability that it is wrong.
        reached: The bound from the earlier of these bets: what they rejected stays rejected.
    """
    bound = reached
    while bound < _LARGEST and Sequential(following := _after(bound), delta, beta).bet(p_hits, q_hits):
        bound = following
    return bound


def _after(bound: float) -> float:
    return round(bound + _STEP, 10)


def could_refute(pairs: int, delta: float, beta: float) -> float:
    """The largest ε that this many bets could refute at all, with a score that separates both sides perfectly."""
    return _last(lambda epsilon: _perfect(pairs, epsilon, delta) >= -math.log(beta))


def would_show(
    pairs: int, points: Sequence[Point], beta: float, family: Callable[[float], tuple[Floats, Floats]]
) -> float | None:
    """The smallest member of a family of mechanisms that this many bets refute about half of the time; None if none.

    That is where the log-wealth of some point, on the event that suits it best, reaches log 1/β in expectation: it is
    approximately normal, so its mean is also its median. Having to find the event first, and the chance of crossing
    early, roughly cancel out: `docs/court.md` reports how well this held.

    Args:
        pairs: How many are bet on.
        points: All that is claimed, each tested with an equal share of β.
        beta: The probability of refuting a true claim.
        family: For numbers from 1 to 64, the probabilities of some events with and without the record. The larger the
            number, the further apart they are.
    """
    needed = math.log(len(points) / beta)

    def refuted(member: float) -> bool:
        chances = family(member)
        return any(_expected_wealth(pairs, point, *chances) >= needed for point in points)

    return first(refuted)


def randomised_response(epsilon: float) -> tuple[Floats, Floats]:
    """The probabilities of its event with and without the record; no ε-DP mechanism is easier to detect."""
    true = 1.0 / (1.0 + math.exp(-epsilon))
    return np.array([true]), np.array([1.0 - true])


def first(holds: Callable[[float], bool]) -> float | None:
    """The smallest number from 1 to 64 for which this monotone condition holds, to 1 in 5,000; None if none."""
    low, high = 1.0, LAST
    if not holds(high):
        return None
    while high / low > 1.0002:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _perfect(pairs: int, epsilon: float, delta: float) -> float:
    growth = np.log1p((1 - delta) / (math.exp(epsilon) + delta) * _STAKES)
    return float(log_sum_exp(pairs * growth)) - math.log(len(_STAKES))


def _expected_wealth(pairs: int, point: Point, one: Floats, other: Floats) -> float:
    """The expected log-wealth of bets on the best of these events or their complements, in either order."""
    epsilon, delta = point
    ratio = math.exp(epsilon)
    sides = np.stack([np.concatenate([one, 1.0 - one]), np.concatenate([other, 1.0 - other])])
    p, q = np.concatenate([sides, sides[::-1]], axis=1)[:, :, None]
    growth = np.zeros((len(p), len(_STAKES)))
    for hit_p, chance_p in ((1, p), (0, 1.0 - p)):
        for hit_q, chance_q in ((1, q), (0, 1.0 - q)):
            growth += chance_p * chance_q * np.log1p((hit_p - ratio * hit_q - delta) / (ratio + delta) * _STAKES)
    return float(log_sum_exp(pairs * growth).max()) - math.log(len(_STAKES))


def _last(holds: Callable[[float], bool]) -> float:
    """The largest number from 0 to 20 up to which this holds."""
    low, high = 0.0, _LARGEST
    if not holds(low):
        return 0.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _levels(a: Floats, b: Floats) -> Floats:
    """Candidate thresholds from the sorted scores of both sides: equal steps, and both tails of each side.

    Equal steps are blind to tails: of 10,000 scores the outermost 1% lie between two of them. In each tail of each
    side, the 1st, 2nd, 3rd, 4th, 6th, 8th, … score is tried. Midpoints between two scores come first, so that they win
    ties: on other runs the next score may lie on either side.
    """
    every = np.unique(np.concatenate([a, b]))
    tails = [side[place] for side in (a, b) for ranks in [_ranks(len(side))] for place in (ranks - 1, -ranks)]
    steps = np.linspace(0, len(every) - 1, _LEVELS).round().astype(np.intp)
    places = np.unique(np.concatenate([steps, np.searchsorted(every, np.concatenate(tails))]))
    with np.errstate(invalid="ignore"):  # between −∞ and ∞
        middles = every[1:] / 2 + every[:-1] / 2
    middles = middles[np.unique(np.concatenate([places, places - 1]).clip(0, max(0, len(middles) - 1)))[: len(middles)]]
    return np.concatenate([middles[np.isfinite(middles)], every[places]])


@lru_cache(maxsize=64)
def _ranks(count: int) -> NDArray[np.intp]:
    """1, 2, 3, 4, 6, 8, 11, … up to `count`."""
    steps = np.arange(1 + math.floor(math.log(count, _RATIO)))
    return np.unique((_RATIO**steps).round().astype(np.intp).clip(1, count))


def _within(ordered: Floats, levels: Floats, above: bool) -> Floats:
    if above:
        return (len(ordered) - np.searchsorted(ordered, levels, "left")).astype(float)
    return np.searchsorted(ordered, levels, "right").astype(float)


def _table(scores: Floats) -> Floats:
    """A single column if there is one number per run; NaN becomes −∞."""
    scores = np.asarray(scores, float)
    scores = np.where(np.isnan(scores), -np.inf, scores)
    return scores[:, None] if scores.ndim == 1 else scores
