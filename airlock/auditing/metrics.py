"""From scores to figures: what an attack found, with intervals, without revealing any single record.

In: `Scores`. Out: an `AttackResult`. Which records are used to choose what:

* The AUC and the ROC curve involve no choice; they use all records and equal scikit-learn's.
* TPR at a fixed FPR: the threshold is chosen on the non-members alone, so the interval for the members is valid given
  the threshold (Clopper and Pearson 1934). The threshold's true false positive rate is bounded by the distribution of
  an order statistic (Wilks 1941), which needs no second set of non-members.
* Advantage: even-numbered records choose the threshold, odd-numbered ones are counted.
* ε: a random half of the records chooses the threshold, the other half is counted. All of them were attacked in one
  release, so the bound is that of one run with many canaries (`one_run_audit.membership_bound`), whose coins are those
  of the split.

An uninformative score has an AUC of 0.5 in expectation, and certified figures call it better than chance with at most
the stated error probability.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import beta, norm, rankdata

from airlock.accounting.terms import Relation
from airlock.auditing.bounds import Floats, auc_interval, null_variance, proportion_interval
from airlock.auditing.one_run_audit import Game, largest_membership_bound, membership_bound
from airlock.auditing.result import Advantage, AttackResult, ClassScore, Ints, RateAt, Scores, Stability
from airlock.errors import DataError

CONFIDENCE = 0.95
RATES = (0.0001, 0.001, 0.01)
FEWEST_NON_MEMBERS = 1000  # needed to report a TPR at small false positive rates; see `fewest` for the smallest
FEWEST_OF_A_CLASS = 50  # on either side; public, like every other number of records here
# The ROC curve is reported only at these rates: all of its corners would reveal the ranks of single records.
GRID = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
REFUSED = "No figure: {count} non-members took part, and it takes at least {fewest}."
_TOP = 0.01


@dataclass(frozen=True)
class Roc:
    """The empirical ROC curve: one corner per distinct score, from (0, 0) to (1, 1).

    Args:
        false_positive_rates: Rising.
        true_positive_rates: Rising.
        thresholds: Falling; a record at or above the threshold is classified as a member. The first is above all
            scores.
    """

    false_positive_rates: Floats
    true_positive_rates: Floats
    thresholds: Floats

    @property
    def auc(self) -> float:
        """The area under the curve by the trapezoidal rule: a tie counts one half."""
        return float(np.trapezoid(self.true_positive_rates, self.false_positive_rates))

    def at(self, false_positive_rate: float) -> float:
        """The TPR at this rate; linear between corners, as for an attacker who breaks ties at random."""
        return float(np.interp(false_positive_rate, self.false_positive_rates, self.true_positive_rates))


def roc(members: Floats, others: Floats) -> Roc:
    """The ROC curve of scores where higher means member; records with equal scores are classified together.

    Raises:
        DataError: One side is empty, or a score is not a number.
    """
    members, others = _checked(members), _checked(others)
    levels = np.unique(np.concatenate([members, others]))[::-1]
    above_m = len(members) - np.searchsorted(np.sort(members), levels, "left")
    above_n = len(others) - np.searchsorted(np.sort(others), levels, "left")
    return Roc(
        np.concatenate([[0.0], above_n / len(others)]),
        np.concatenate([[0.0], above_m / len(members)]),
        np.concatenate([[np.inf], levels]),
    )


def measure(
    scores: Scores,
    delta: float,
    confidence: float = CONFIDENCE,
    classes: Sequence[str] = (),
    tests: int = 1,
    game: Game | None = None,
    relation: Relation = "add-remove",
) -> AttackResult:
    """All figures of one attack.

    Args:
        scores: Of the attack; their order must carry no information about the records.
        delta: At which ε is bounded.
        confidence: Of every interval and bound.
        classes: The public names of the classes, for per-class figures; without them there are none.
        tests: How many attacks on this release have their bounds on ε compared, and their scores with chance: each gets
            an equal share of the error.
        game: Which records have fair and independent coins, for the bound on ε. Without it, equal numbers of both sides
            are treated as if they had; that ignores the dependence caused by fixing the numbers to be equal.
        relation: The neighbouring relation of the guarantee; the bound is on ε under this relation.
    """
    members, others = _checked(scores.members), _checked(scores.others)
    auc, low, high = auc_interval(members, others, confidence)
    rates = tuple(rate_at(members, others, rate, confidence) for rate in RATES)
    tries = tests * (1 + sum(rate.value is not None for rate in rates))
    spread = float(norm.isf((1.0 - confidence) / (2.0 * tries))) * math.sqrt(null_variance(len(members), len(others)))
    bound, could = _epsilon(members, others, delta, 1.0 - (1.0 - confidence) / tests, game, relation)
    return AttackResult(
        name=scores.name,
        question=scores.question,
        score="AUC",
        value=auc,
        low=low,
        high=high,
        chance=0.5,
        confidence=confidence,
        members=len(members),
        non_members=len(others),
        smallest_effect=min(1.0, 0.5 + spread),
        epsilon_lower_bound=bound,
        view=scores.view,
        aim="membership",
        could_refute=could,
        advantage=advantage(members, others, confidence),
        rates=rates,
        curve=thinned(roc(members, others), len(others)),
        per_class=per_class(scores, classes, confidence),
        stability=None if scores.member_repeats is None else stability(scores.member_repeats),
    )


def measure_all(
    several: Sequence[Scores],
    delta: float,
    confidence: float = CONFIDENCE,
    classes: Sequence[str] = (),
    game: Game | None = None,
    relation: Relation = "add-remove",
) -> tuple[AttackResult, ...]:
    """The figures of all attacks on one release; the largest of their bounds on ε holds with the stated confidence."""
    tests = len(several)
    return tuple(measure(scores, delta, confidence, classes, tests, game, relation) for scores in several)


def rate_at(members: Floats, others: Floats, false_positive_rate: float, confidence: float = CONFIDENCE) -> RateAt:
    """TPR at this FPR: the share of members that score above all but the allowed number of non-members.

    Guarantee: conditional on the non-members that chose the threshold, the interval covers its true positive rate with
    this confidence; and with this confidence its false positive rate is at most `false_positive_rate_high`: the mass of
    a continuous distribution above the k-th largest of n draws is Beta(k, n − k + 1), and ties only make it smaller.
    """
    count = len(others)
    if count < fewest(false_positive_rate):
        words = REFUSED.format(count=f"{count:,}", fewest=f"{fewest(false_positive_rate):,}")
        return RateAt(false_positive_rate, None, None, None, None, refused=words)
    allowed = int(false_positive_rate * count + 1e-9)
    bar = np.partition(others, count - 1 - allowed)[count - 1 - allowed]
    hits = int((members > bar).sum())
    low, high = proportion_interval(hits, len(members), confidence)
    beyond = float(beta.ppf(confidence, allowed + 1, count - allowed))
    return RateAt(false_positive_rate, hits / len(members), low, high, beyond, refused=None)


def fewest(false_positive_rate: float) -> int:
    """How many non-members a figure at this rate takes: with fewer, none of them may be accused.

    With exactly so many one of them may, and the threshold's true rate may still be several times as high: that is what
    `false_positive_rate_high` says.
    """
    return max(FEWEST_NON_MEMBERS, math.ceil(1.0 / false_positive_rate - 1e-9))


def advantage(members: Floats, others: Floats, confidence: float = CONFIDENCE) -> Advantage | None:
    """The advantage, on odd-numbered records, of the threshold that maximises it on the even-numbered ones.

    Guarantee: the interval covers that threshold's true advantage with this confidence; each rate gets half of the
    error.
    """
    if min(len(members), len(others)) < 2:
        return None
    _, threshold = _best(roc(members[::2], others[::2]))
    counted_m, counted_n = members[1::2], others[1::2]
    hits, misses = int((counted_m >= threshold).sum()), int((counted_n >= threshold).sum())
    half = 1.0 - (1.0 - confidence) / 2.0
    true_low, true_high = proportion_interval(hits, len(counted_m), half)
    false_low, false_high = proportion_interval(misses, len(counted_n), half)
    true, false = hits / len(counted_m), misses / len(counted_n)
    return Advantage(
        value=true - false,
        low=true_low - false_high,
        high=true_high - false_low,
        balanced_accuracy=(1.0 + true - false) / 2.0,
        true_positive_rate=true,
        false_positive_rate=false,
        largest=_best(roc(members, others))[0],
    )


def thinned(curve: Roc, non_members: int) -> tuple[tuple[float, float], ...]:
    """The curve on the public grid, without the rates that are too small for this number of non-members."""
    enough = non_members >= FEWEST_NON_MEMBERS
    shown = [rate for rate in GRID if enough or (rate > max(RATES) and rate * non_members >= 1.0)]
    return tuple((rate, curve.at(rate)) for rate in shown)


def per_class(scores: Scores, classes: Sequence[str], confidence: float = CONFIDENCE) -> tuple[ClassScore, ...]:
    """The AUC of each class, from a fixed number of its records on either side.

    That number is derived from public ones: half of an equal share per class. So the figures do not reveal how many
    records a class has, except that it has at least that many.
    """
    if not classes:
        return ()
    fair = min(len(scores.members), len(scores.others)) // (2 * len(classes))
    count = max(FEWEST_OF_A_CLASS, fair)
    found = []
    for label, name in enumerate(classes):
        members = _of_class(scores.members, scores.member_classes, label, count)
        others = _of_class(scores.others, scores.other_classes, label, count)
        enough = min(len(members), len(others)) == count
        found.append(ClassScore(name, *(auc_interval(members, others, confidence) if enough else (None, None, None))))
    return tuple(found)


def stability(repeats: Floats) -> Stability | None:
    """Of scores (seeds, members); None for fewer than two seeds."""
    repeats = np.asarray(repeats, float)
    seeds, count = repeats.shape
    if seeds < 2 or count < 2:
        return None
    ranks = rankdata(repeats, axis=1)
    correlation = None
    if (ranks.std(axis=1) > 0).all():
        correlation = float(np.asarray(np.corrcoef(ranks))[np.triu_indices(seeds, 1)].mean())
    return Stability(seeds, correlation, _stays_on_top(repeats) if count >= FEWEST_NON_MEMBERS else None)


def _stays_on_top(repeats: Floats) -> float:
    """Records tied with one below the top are not counted as in it."""
    seeds, count = repeats.shape
    most = int(_TOP * count)
    on_top = rankdata(-repeats, method="max", axis=1) <= most
    return float((on_top.sum(axis=0) > seeds / 2).sum()) / most


def _best(curve: Roc) -> tuple[float, float]:
    """The largest advantage and its threshold."""
    gains = curve.true_positive_rates[1:] - curve.false_positive_rates[1:]
    place = int(gains.argmax())
    return float(gains[place]), float(curve.thresholds[1:][place])


def _epsilon(
    members: Floats, others: Floats, delta: float, confidence: float, game: Game | None, relation: Relation
) -> tuple[float, float]:
    """The bound on ε, and its largest possible value, which follows from public numbers alone and caps it."""
    game = game or Game.of_all(members, others)
    could = largest_membership_bound(game.expected, delta, confidence, relation)
    return min(membership_bound(members, others, delta, confidence, game, relation), could), could


def _of_class(scores: Floats, labels: Ints, label: int, count: int) -> Floats:
    chosen: Floats = np.asarray(scores, float)[np.asarray(labels) == label]
    return chosen[:count]


def _checked(scores: Floats) -> Floats:
    scores = np.asarray(scores, float)
    if scores.ndim != 1 or not len(scores):
        raise DataError("one score per record, for at least one record", f"an array of shape {scores.shape}")
    if np.isnan(scores).any():
        raise DataError("scores that are numbers", "NaN", "A record without a score cannot be ranked.")
    return scores
