"""How useful a release is: noisy tables of counts on the test part, paid for with ε, and the figures derived from them.

In: the outcomes of all test records, which stay inside. Out: an `Evaluation`, which leaves, and the `Figures` that
follow from it alone, so that anyone who holds the card can recompute them.

Guarantee: `evaluate` is ε-DP for every record of the test part, under add-remove.

Proof. A test record is in exactly one cell of each table (or, if its label is not a declared class, in none of the
second and third), and which cell depends on the release and that record alone (`training.outcomes`). So adding or
removing one record changes one cell by one, and table t with noise for ε_t is ε_t-DP (`mechanisms.counts`); the shares
add up to one, so the tables compose to ε. Nothing else that leaves depends on test records: the release was made
without them. ∎

Where the unit is a person, the test part holds one record of each test person, chosen by that person's own records
alone (`data.split.divide`): one person more or less is one record more or less, and the same is ε-DP for people. The
figures are then about people, each met in one record drawn from theirs; the intervals are those of independent draws.

Each record is in exactly one part of the split, so what is spent here costs the private records nothing (parallel
composition), and the test part may spend all of the ε stated for the release. Where several runs were declared
(`tuning_runs`), each has its own card and one was chosen by what the cards say: `budget` divides ε by their number.
Where a search chose by noisy scores (`methods.search`), these are paid first, and the tables get what is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from airlock import accounting, mechanisms
from airlock.auditing.bounds import auc_interval, proportion_interval
from airlock.auditing.noisy_proportion import CountNoise, noisy_interval
from airlock.config import Frozen, Proportion
from airlock.errors import ConfigError

if TYPE_CHECKING:
    import dp_accounting as dpa

    from airlock.mechanisms import NoisyCounts, Stream
    from airlock.training.outcomes import Outcomes

BINS = 10
CONFIDENCE = 0.95
SHARES = (0.6, 0.2, 0.2)  # of ε: right and wrong, by class, by score
SHARES_OF_LABELS = (0.75, 0.25)  # where there are no scores
LEAST, MOST = 1e-4, 100.0  # of ε: with less the counts are pure noise, with more there is effectively none
UNINFORMATIVE = 0.8  # an interval as wide as this, or wider, says nothing
_SIZE_ERROR = 0.01  # the probability that a total is off by more than is allowed for
MIDDLES = (np.arange(BINS) + 0.5) / BINS

Whole = NDArray[np.int64]
Floats = NDArray[np.floating]
NoisyCount = Annotated[int, Field(ge=-(10**9), le=10**9)]  # a card may come from anyone; more would be too slow
Pair = tuple[NoisyCount, NoisyCount]
Row = Annotated[tuple[NoisyCount, ...], Field(min_length=BINS, max_length=BINS)]


class Evaluation(Frozen):
    """What leaves about the test records: noisy counts, which may be negative.

    Args:
        epsilon: What the three tables cost a test record.
        classes: How many there are.
        shares: Of ε that each table has.
        right: Classified correctly, and not.
        by_class: The same of each class.
        bins: By score, in ten equal bins from 0 to 1; null where only labels are predicted. With two classes, one row
            per true class, by the probability of class 1; with more, one row of correct and one of wrong predictions,
            by the probability of the predicted class.
    """

    epsilon: Annotated[float, Field(ge=LEAST, le=MOST)]
    classes: Annotated[int, Field(ge=2)]
    shares: tuple[Proportion, ...]
    right: Pair
    by_class: tuple[Pair, ...]
    bins: tuple[Row, Row] | None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(self.by_class) != self.classes or self.shares != _shares(self.bins is not None):
            raise ValueError("tables of counts must fit the classes, and their shares of ε must be the usual ones")
        return self

    @property
    def noises(self) -> tuple[NoisyCounts, ...]:
        """What was added to each table."""
        return tuple(mechanisms.NoisyCounts(share * self.epsilon) for share in self.shares)


class Figure(Frozen):
    """An estimate with its 95% interval, which covers both sampling error and noise."""

    value: Proportion
    low: Proportion
    high: Proportion


class Figures(Frozen):
    """What the counts say about records like these.

    Args:
        records: Approximately how many there were.
        accuracy: The share that is classified correctly. Certified: the interval holds at every size.
        recalls: The same in each class. Each certified individually.
        majority: The share of the largest class: the accuracy of always predicting it. Certified.
        balanced_accuracy: The mean of the recalls; by the delta method.
        auc: With two classes: of the score in ten bins, ties counted one half; by the delta method.
        calibration_error: Expected calibration error, with each score replaced by the midpoint of its bin; from a bound
            on the sum of all errors, so the interval is wide.
    """

    records: Annotated[int, Field(ge=0)]
    accuracy: Figure
    recalls: tuple[Figure, ...]
    majority: Figure
    balanced_accuracy: Figure
    auc: Figure | None
    calibration_error: Figure | None

    @property
    def blind(self) -> Figure:
        """The accuracy of the better of two blind guesses: any class, or always the largest.

        The largest of many noisy counts is too large, the more so the more noise there is. So the largest class counts
        only where its whole interval lies above the share that each of equally frequent classes would have.
        """
        any_class, most = 1.0 / len(self.recalls), self.majority
        value = most.value if most.low > any_class else any_class
        return Figure(value=value, low=max(any_class, most.low), high=max(any_class, most.high))


def _shares(with_scores: bool) -> tuple[float, ...]:
    return SHARES if with_scores else SHARES_OF_LABELS


def event(epsilon: float, with_scores: bool, runs: int = 1, before: dpa.DpEvent | None = None) -> dpa.DpEvent:
    """What the test part pays for one evaluation of each run, after what it has paid `before`."""
    own = accounting.repeat(
        accounting.compose([accounting.pure(share * epsilon) for share in _shares(with_scores)]), runs
    )
    return own if before is None else accounting.compose([before, own])


def budget(epsilon: float, delta: float, with_scores: bool, runs: int = 1, before: dpa.DpEvent | None = None) -> float:
    """The ε of one evaluation, such that those of all runs cost a test record no more than the stated (ε, δ).

    The accountant rounds up to a grid, so the quotient alone could come out slightly too large. The excess is
    subtracted in doubling steps: within one step of the grid, ε does not change at all. What has been paid `before`,
    for the scores of a search, is composed with it.

    Raises:
        ConfigError: Too little is left per run: its counts would be pure noise.
    """
    each = min(MOST, epsilon / runs)
    if before is not None:

        def fits(own: float) -> bool:
            return accounting.compute_epsilon(event(own, with_scores, runs, before), delta).epsilon <= epsilon

        each = lowered(each, fits, least=0.0)
    for turn in range(40 if each >= LEAST and before is None else 0):
        over = accounting.compute_epsilon(event(each, with_scores, runs), delta).epsilon - epsilon
        if over <= 0:
            break
        each -= 2**turn * over / runs
    if each < LEAST:
        why = f"The stated ε is divided by {runs:,} declared runs." if before is None else "A search uses up the rest."
        raise ConfigError(
            f"an ε of at least {LEAST:g} for what each run's card says of test records",
            f"{each:.2g}",
            why,
            f"{'Declare fewer tuning_runs' if before is None else 'Lower tune.score_share'}, or take a larger ε.",
        )
    return each


def lowered(epsilon: float, fits: Callable[[float], bool], least: float = LEAST) -> float:
    """The largest ε of one evaluation, up to this one and to a thousandth of it, that fits; the least where none does.

    Args:
        epsilon: The largest.
        fits: Whether an ε is within a limit; true below the largest one that is.
        least: What is returned where none fits.
    """
    if fits(epsilon):
        return epsilon
    low, high = least, epsilon
    while high - low > 1e-3 * epsilon:
        middle = (low + high) / 2.0
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def evaluate(outcomes: Outcomes, classes: int, epsilon: float, stream: Stream) -> Evaluation:
    """The noisy tables; the guarantee is stated at the top of the module.

    Args:
        outcomes: Of the test records; secret.
        classes: How many are declared.
        epsilon: To spend on the test part.
        stream: Secret; read once.
    """
    shares = _shares(outcomes.scores is not None)
    noisy = [
        mechanisms.NoisyCounts(share * epsilon).add(table, stream.child("table", place)).tolist()
        for place, (share, table) in enumerate(zip(shares, tables(outcomes, classes), strict=True))
    ]
    return Evaluation(
        epsilon=epsilon,
        classes=classes,
        shares=shares,
        right=tuple(noisy[0]),
        by_class=tuple(tuple(pair) for pair in noisy[1]),
        bins=(tuple(noisy[2][0]), tuple(noisy[2][1])) if len(noisy) == 3 else None,
    )


def tables(outcomes: Outcomes, classes: int) -> tuple[Whole, ...]:
    """The exact counts, two or three tables; a record is in at most one cell of each."""
    wrong = (~outcomes.right).astype(np.int64)
    known = (outcomes.labels >= 0) & (outcomes.labels < classes)
    labels = np.where(known, outcomes.labels, 0)
    found = [np.bincount(wrong, minlength=2)]
    found.append(np.bincount((2 * labels + wrong)[known], minlength=2 * classes).reshape(classes, 2))
    if outcomes.scores is not None:
        rows = labels if classes == 2 else wrong
        found.append(np.bincount((BINS * rows + _places(outcomes.scores))[known], minlength=2 * BINS).reshape(2, BINS))
    return tuple(found)


def _places(scores: Floats) -> Whole:
    """The bin of each score; NaN goes into the first."""
    return np.minimum(np.floor(_within(scores) * BINS), BINS - 1).astype(np.int64)


def _within(scores: Floats) -> Floats:
    """Clipped to [0, 1]; NaN becomes 0."""
    return np.clip(np.nan_to_num(scores), 0.0, 1.0)


def figures(evaluation: Evaluation) -> Figures:
    """All figures of the noisy counts; a pure function of what left."""
    one, each = (CountNoise(noise.epsilon, 1) for noise in evaluation.noises[:2])
    right, wrong = evaluation.right
    by_class = np.array(evaluation.by_class, np.int64)
    bins = None if evaluation.bins is None else np.array(evaluation.bins, np.float64)
    cell = evaluation.noises[2].variance if bins is not None else 0.0
    away = CountNoise(one.epsilon, 2).reach(_SIZE_ERROR)
    recalls = tuple(_noisy(int(hit), int(miss), each) for hit, miss in by_class)
    return Figures(
        records=max(0, right + wrong),
        accuracy=_noisy(right, wrong, one),
        recalls=recalls,
        majority=_majority(by_class, right + wrong, CountNoise(one.epsilon, 2), CountNoise(each.epsilon, 2)),
        balanced_accuracy=_balanced(recalls),
        auc=None if bins is None or evaluation.classes != 2 else _auc(bins, cell),
        calibration_error=None
        if bins is None
        else _calibration(_hits_last(bins, evaluation.classes), MIDDLES, right + wrong, away, cell),
    )


def exact(outcomes: Outcomes, classes: int) -> Figures:
    """The same figures without noise, for the dossier: from the exact scores, with the mean score of each bin."""
    right, by_class, *binned = tables(outcomes, classes)
    total = int(right.sum())
    largest = int(by_class.sum(1).max())
    bins = binned[0].astype(np.float64) if binned else None
    recalls = tuple(_plain(int(pair[0]), int(pair.sum())) for pair in by_class)
    return Figures(
        records=total,
        accuracy=_plain(int(right[0]), total),
        recalls=recalls,
        majority=_plain(largest, total),
        balanced_accuracy=_balanced(recalls),
        auc=_exact_auc(outcomes) if classes == 2 else None,
        calibration_error=None
        if outcomes.scores is None or bins is None
        else _calibration(_hits_last(bins, classes), _means(outcomes.scores), total, 0, 0.0),
    )


def far(evaluation: Evaluation, outcomes: Outcomes) -> float:
    """An upper bound on the probability that the stated noise lies this far from the exact counts, or this close.

    For checks by the vault's owner: counts of other records lie too far away, counts without noise too close.

    Proof. Three bounds are computed, and three times the smallest is returned (union bound). With S = Σ over cells of
    ε_t |noise|, P(S ≥ s) ≤ e^(−hs) E[e^(hS)] for every h in (0, 1), and P(S ≤ s) the same for h < 0 (Chernoff);
    E[e^(hS)] is a product over cells of tanh(ε/2) · (1 + 2/(e^(ε(1 − h)) − 1)). And the probability that some ε_t
    |noise| reaches m is at most the sum over cells of 2 e^−m/(1 + e^−ε).
    """
    known = tables(outcomes, evaluation.classes)
    if (evaluation.bins is None) != (len(known) == 2):
        return 0.0
    seen = (evaluation.right, evaluation.by_class, evaluation.bins)
    return far_from(seen[: len(known)], known, evaluation.noises)


def far_from(seen: Sequence[object], known: Sequence[Whole], noises: Sequence[NoisyCounts]) -> float:
    """The same for any noisy tables beside the exact ones, by the noise on the cells of each."""
    away = [np.abs(np.array(table, np.int64) - exactly) for table, exactly in zip(seen, known, strict=True)]
    sizes = [(noise.epsilon, table.size) for noise, table in zip(noises, known, strict=True)]
    scaled = [noise.epsilon * table for noise, table in zip(noises, away, strict=True)]
    total, largest = sum(float(table.sum()) for table in scaled), max(float(table.max()) for table in scaled)
    bounds = [_chernoff(total, sizes, tilts) for tilts in (np.linspace(0, 1, 200)[:-1], -np.geomspace(1e-3, 200, 200))]
    single = sum(cells * 2.0 * math.exp(-largest) / (1.0 + math.exp(-epsilon)) for epsilon, cells in sizes)
    return min(1.0, 3.0 * min(single, *(math.exp(min(0.0, bound)) for bound in bounds)))


def _chernoff(total: float, sizes: list[tuple[float, int]], tilts: Floats) -> float:
    """The smallest logarithm of the bound among these h."""
    logs = -tilts * total
    for epsilon, cells in sizes:
        with np.errstate(over="ignore"):
            others = 2.0 / np.expm1(epsilon * (1.0 - tilts))
        logs = logs + cells * (math.log(math.tanh(epsilon / 2)) + np.log1p(others))
    return float(logs.min())


def _noisy(hits: int, misses: int, cell: CountNoise) -> Figure:
    """A proportion from two cells with the same noise."""
    parts = ((cell, 1.0, 1.0), (cell, 0.0, 1.0))
    low, high = noisy_interval(hits, hits + misses, parts, CountNoise(cell.epsilon, 2), CONFIDENCE)
    return Figure(value=_ratio(hits, hits + misses), low=low, high=high)


def _plain(hits: int, total: int) -> Figure:
    low, high = proportion_interval(hits, total, CONFIDENCE) if total else (0.0, 1.0)
    return Figure(value=_ratio(hits, total), low=low, high=high)


def _majority(by_class: Whole, total: int, size: CountNoise, cells: CountNoise) -> Figure:
    """The largest share of a class.

    The upper end for the truly largest class is at most the largest upper end, and ends increase with the counts. For
    the lower end, those of all classes must hold simultaneously: each gets its share of the error.
    """
    most, classes = int(by_class.sum(1).max()), len(by_class)
    parts = ((cells, 1.0, 0.0), (size, 0.0, 1.0))
    high = noisy_interval(most, total, parts, size, CONFIDENCE)[1]
    low = noisy_interval(most, total, parts, size, 1.0 - (1.0 - CONFIDENCE) / classes)[0]
    return Figure(value=_ratio(most, total), low=low, high=high)


def _balanced(recalls: tuple[Figure, ...]) -> Figure:
    """The mean of the recalls, whose errors are independent.

    Each interval's half-width on either side is treated as a fixed number of standard deviations, and deviations add in
    quadrature (Zou and Donner 2008): near 0 and 1, and with few records, the intervals are asymmetric, and so is this
    one. The half-width of an uninformative recall is no standard deviation; those are added linearly.
    """
    value = sum(one.value for one in recalls) / len(recalls)
    down, up = (
        _together([(abs(end - one.value), one) for end, one in zip(ends, recalls, strict=True)]) / len(recalls)
        for ends in ([one.low for one in recalls], [one.high for one in recalls])
    )
    return Figure(value=value, low=max(0.0, value - down), high=min(1.0, value + up))


def _together(reaches: list[tuple[float, Figure]]) -> float:
    squares = sum(reach**2 for reach, one in reaches if one.high - one.low < UNINFORMATIVE)
    return math.sqrt(squares) + sum(reach for reach, one in reaches if one.high - one.low >= UNINFORMATIVE)


def _auc(bins: Floats, cell: float) -> Figure:
    """Of class 1 over class 0, from bins, ties counted one half, by the delta method.

    With counts h₀ and h₁, totals n₀ and n₁ and P_b the share of class 0 below bin b and half in it, it is Σ h₁b P_b/n₁.
    A record or a unit of noise in bin b of class 1 changes it by (P_b − AUC)/n₁, and similarly for class 0. The noise
    is independent between the classes, so the numerator is unbiased; negative counts are not clipped.
    """
    totals = bins.sum(1)
    if totals.min() <= 3.0 * math.sqrt(BINS * cell):
        return Figure(value=0.5, low=0.0, high=1.0)
    shares = bins / totals[:, None]
    below = np.cumsum(shares[0]) - shares[0] / 2.0
    above = 1.0 - (np.cumsum(shares[1]) - shares[1] / 2.0)
    value = float(shares[1] @ below)
    variance = 0.0
    for moves, total, row in ((below - value, totals[1], shares[1]), (above - value, totals[0], shares[0])):
        spread = max(float(np.clip(row, 0.0, None) @ moves**2), 1.0 / total)
        variance += spread / total + cell * float(moves @ moves) / total**2
    return _about(value, math.sqrt(variance))


def _exact_auc(outcomes: Outcomes) -> Figure | None:
    if outcomes.scores is None:
        return None
    ones, zeros = (outcomes.scores[outcomes.labels == label] for label in (1, 0))
    if min(len(ones), len(zeros)) < 2:
        return Figure(value=0.5, low=0.0, high=1.0)
    value, low, high = auc_interval(ones, zeros, CONFIDENCE)
    return Figure(value=value, low=low, high=high)


def _calibration(bins: Floats, means: Floats, total: int, away: int, cell: float) -> Figure:
    """Σ over bins of |E[1(in the bin)(hit − score)]|, from rows of misses and hits and a total off by up to `away`.

    The sum of a bin has an error of variance σ², from sampling and noise, and |Σ|a + e| − Σ|a|| ≤ Σ|e|. That sum has
    mean Σ σ√(2/π) and variance Σ σ²(1 − 2/π) if the errors are normal; its quantile is the half-width of the interval.
    The estimate is Σ √(d² − σ²) over the observed sums d, because noise alone would look like miscalibration.
    """
    from scipy.stats import norm

    misses, hits = bins
    sums = np.abs(hits * (1.0 - means) - misses * means)
    up, down = (1.0 - means) ** 2, means**2
    variances = np.clip(hits, 0.0, None) * up + np.clip(misses, 0.0, None) * down + cell * (up + down)
    mean, rest = float(np.sqrt(variances).sum()) * math.sqrt(2.0 / math.pi), float(variances.sum()) * (1 - 2 / math.pi)
    reach = mean + float(norm.ppf(CONFIDENCE)) * math.sqrt(rest)
    seen, value = float(sums.sum()), float(np.sqrt(np.clip(sums**2 - variances, 0.0, None)).sum())
    middle = min(1.0, value / total) if total > 0 else 0.0
    low = (seen - reach) / (total + away) if total + away > 0 else 0.0
    high = (seen + reach) / (total - away) if total > away else 1.0
    return Figure(value=middle, low=max(0.0, min(low, middle)), high=min(1.0, max(high, middle)))


def _hits_last(bins: Floats, classes: int) -> Floats:
    """Rows as (misses, hits): with two classes they are class 0 and class 1 already; with more, hits come first."""
    return bins if classes == 2 else bins[::-1]


def _means(scores: Floats) -> Floats:
    """The mean score of each bin; its midpoint where it is empty."""
    scores, places = _within(scores), _places(scores)
    counts, sums = (np.bincount(places, weights, minlength=BINS) for weights in (None, scores))
    return np.asarray(np.where(counts > 0, sums / np.maximum(counts, 1), MIDDLES))


def _about(value: float, deviation: float) -> Figure:
    """A normal interval, joined with the logit interval where it lies inside (0, 1): it is too short towards 1/2."""
    from scipy.stats import norm

    value = min(1.0, max(0.0, value))
    reach = float(norm.ppf(0.5 + CONFIDENCE / 2.0)) * deviation
    low, high = value - reach, value + reach
    if low > 0.0 and high < 1.0:
        odds, spread = math.log(value / (1.0 - value)), reach / (value * (1.0 - value))
        low, high = min(low, _logistic(odds - spread)), max(high, _logistic(odds + spread))
    return Figure(value=value, low=max(0.0, low), high=min(1.0, high))


def _logistic(odds: float) -> float:
    return 0.5 * (1.0 + math.tanh(odds / 2.0))


def _ratio(part: int, whole: int) -> float:
    """Clipped to [0, 1]; 0 where the whole is not positive."""
    return min(1.0, max(0.0, part / whole)) if whole > 0 else 0.0
