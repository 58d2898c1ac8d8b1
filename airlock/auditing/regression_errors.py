"""How useful a regression is: two noisy tables about the test part, paid for with ε, and the figures derived from them.

In: the outcomes of all test records, which stay inside: targets and predictions in steps of the declared range. Out: an
`ErrorCounts`, which leaves, and the `ErrorFigures` that follow from it and the declared range alone.

A table is about one deviation per record, in units of the range: of the prediction from the target, or of the target
from the middle of the range. A deviation beyond half of the range counts as half of it. Each record divides `UNIT`
between the two `KNOTS` that its deviation lies between, so that Σ count · knot² is UNIT times the sum of the squares.

Guarantee: `evaluate` is ε-DP for every record of the test part, under add-remove.

Proof. What a record adds to a table depends on the release and that record alone (`training.outcomes`), is never
negative, and adds up to `UNIT`, whatever its target and its prediction are; the rest is that of `two_tables`. Nothing
else that leaves depends on test records. ∎

Where the unit is a person, the test part holds one record of each test person (`data.split.divide`), and the same is
ε-DP for people. Parts compose in parallel, as for classes (`auditing.evaluation`, whose budget this is).

Intervals are by the delta method, with the variance of the sampling and that of the noise: normal approximations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from airlock.auditing.evaluation import NoisyCount, far_from
from airlock.auditing.two_tables import FEWEST, UNIT, TwoTables, noisy, state_of, z
from airlock.auditing.usefulness import LEAST_GAIN, REJECTED, State
from airlock.config import STEPS, Frozen, Signed, TargetRange

if TYPE_CHECKING:
    from airlock.mechanisms import Stream
    from airlock.training.outcomes import Outcomes

CAP = 0.5  # of the range: a larger deviation counts as this one
_SIDE = 8  # knots on each side of 0; they are closer to each other where deviations are small
KNOTS = np.array([math.copysign(CAP * (j / _SIDE) ** 2, j) for j in range(-_SIDE, _SIDE + 1)])
_SQUARES = KNOTS[_SIDE:] ** 2

Whole = NDArray[np.int64]
Floats = NDArray[np.float64]
Row = Annotated[tuple[NoisyCount, ...], Field(min_length=len(KNOTS), max_length=len(KNOTS))]
Length = Annotated[float, Field(ge=0)]


class ErrorCounts(TwoTables):
    """What leaves about the test records of a regression: noisy counts, which may be negative.

    Args:
        epsilon: What both tables cost a test record.
        errors: By how much predictions are off, in units of the declared range; 64 per record, divided between two of
            the 17 values ±(j/8)²/2.
        targets: The same of the targets, from the middle of the range.
    """

    errors: Row
    targets: Row


class Distance(Frozen):
    """How far something is off, with its 95% interval, in the unit of the target."""

    value: Length
    low: Length
    high: Length


class Explained(Frozen):
    """A share of the variance that is explained, with its 95% interval; below −1 counts as −1."""

    value: Signed
    low: Signed
    high: Signed


class ErrorFigures(Frozen):
    """What the counts say about records like these.

    Args:
        records: Approximately how many there were.
        mean_absolute: The mean of the absolute errors.
        root_mean_square: The root of the mean of the squared errors.
        explained: R²: how far the squared errors come on the way from the best constant guess to none at all.
        blind: The root mean square error of the best constant guess: the standard deviation of the targets.
    """

    records: Annotated[int, Field(ge=0)]
    mean_absolute: Distance
    root_mean_square: Distance
    explained: Explained
    blind: Distance


def evaluate(outcomes: Outcomes, epsilon: float, stream: Stream) -> ErrorCounts:
    """The noisy tables; the guarantee is stated at the top of the module.

    Args:
        outcomes: Of the test records, in steps of the declared range; secret.
        epsilon: To spend on the test part.
        stream: Secret; read once.
    """
    errors, targets = noisy(tables(outcomes), epsilon, stream)
    return ErrorCounts(epsilon=epsilon, errors=errors, targets=targets)


def tables(outcomes: Outcomes) -> tuple[Whole, Whole]:
    """The exact counts: each record adds UNIT to each table."""
    errors, targets = _deviations(outcomes)
    return _table(errors), _table(targets)


def _deviations(outcomes: Outcomes) -> tuple[Floats, Floats]:
    labels, predicted = (np.clip(steps, 0, STEPS) / STEPS for steps in (outcomes.labels, outcomes.predicted))
    return predicted - labels, labels - 0.5


def _table(deviations: Floats) -> Whole:
    """Each deviation between its two knots, such that its square is kept."""
    squares = np.minimum(np.abs(deviations), CAP) ** 2
    inner = np.clip(np.searchsorted(_SQUARES, squares, side="right") - 1, 0, _SIDE - 1)
    share = (squares - _SQUARES[inner]) / (_SQUARES[inner + 1] - _SQUARES[inner])
    further = np.clip(np.rint(UNIT * share), 0, UNIT).astype(np.int64)
    side = np.where(deviations < 0, -1, 1)
    found = np.zeros(len(KNOTS), np.int64)
    np.add.at(found, _SIDE + side * inner, UNIT - further)
    np.add.at(found, _SIDE + side * (inner + 1), further)
    return found


def figures(counts: ErrorCounts, target: TargetRange) -> ErrorFigures:
    """All figures of the noisy counts; a pure function of what left and of the declared range."""
    errors, targets = (
        _Moments.of_counts(np.array(table, np.float64) / UNIT, noise.variance / UNIT**2)
        for table, noise in zip((counts.errors, counts.targets), counts.noises, strict=True)
    )
    return _figures(errors, targets, target)


def exact(outcomes: Outcomes, target: TargetRange) -> ErrorFigures:
    """The same figures without noise, for the dossier: of the errors as they are."""
    errors, targets = (_Moments.of_values(values) for values in _deviations(outcomes))
    return _figures(errors, targets, target)


def far(counts: ErrorCounts, outcomes: Outcomes) -> float:
    """An upper bound on the probability that the stated noise lies this far from the exact counts, or this close."""
    return far_from((counts.errors, counts.targets), tables(outcomes), counts.noises)


@dataclass(frozen=True)
class _Estimate:
    """A mean with its standard deviation, and by how much more it may be because knots stand for values."""

    value: float
    deviation: float
    more: float = 0.0


@dataclass(frozen=True)
class _Moments:
    """What is estimated of one deviation, in units of the range.

    Args:
        records: How many there were, with noise.
        told: Whether there are enough of them to say anything.
        absolute: The mean of its absolute value.
        square: The mean of its square.
        variance: Its variance.
    """

    records: float
    told: bool
    absolute: _Estimate
    square: _Estimate
    variance: _Estimate

    @classmethod
    def of_counts(cls, counts: Floats, noise: float) -> _Moments:
        """From a table with noise of this variance on each cell; negative cells are not clipped in means."""
        total = float(counts.sum())
        told = total > FEWEST * math.sqrt(len(KNOTS) * noise)
        weights = counts / total if told else np.full(len(KNOTS), 1.0 / len(KNOTS))
        return cls._of(KNOTS, weights, max(1.0, total), noise, told, total)

    @classmethod
    def of_values(cls, values: Floats) -> _Moments:
        """From the deviations themselves."""
        count = len(values)
        values, weights = (values, np.full(count, 1.0 / count)) if count else (np.zeros(1), np.ones(1))
        return cls._of(values, weights, max(1.0, float(count)), 0.0, count > 1, float(count))

    @classmethod
    def _of(cls, x: Floats, weights: Floats, total: float, noise: float, told: bool, records: float) -> _Moments:
        positive = np.clip(weights, 0.0, None)
        gaps = _gaps() if x is KNOTS else np.zeros(len(x))

        def mean(values: Floats, gap: Floats | None = None) -> _Estimate:
            """By the delta method: a record, or a unit of noise, at x moves it by (values − mean)/total."""
            value = float(weights @ values)
            moves = (values - value) ** 2
            spread = max(float(positive @ moves), float(np.max(np.abs(values))) ** 2 / total)
            variance = spread / total + noise * float(moves.sum()) / total**2
            return _Estimate(value, math.sqrt(variance), 0.0 if gap is None else float(positive @ gap))

        centre = float(weights @ x)
        return cls(records, told, mean(np.abs(x), gaps), mean(x**2), mean((x - centre) ** 2))


def _gaps() -> Floats:
    """By how much the mean of |x| may be too small at most, per record at each knot.

    Weights keep squares, and √u lies above its chord from a² to b² by at most (b − a)²/(4(a + b)).
    """
    sides = KNOTS[_SIDE:]
    low, high = sides[:-1], sides[1:]
    gap = (high - low) ** 2 / (4.0 * (low + high))
    most = np.maximum(np.append(gap, 0.0), np.append(0.0, gap))
    return np.concatenate([most[:0:-1], most])


def _figures(errors: _Moments, targets: _Moments, target: TargetRange) -> ErrorFigures:
    span = target.span
    return ErrorFigures(
        records=max(0, round(errors.records)),
        mean_absolute=_distance(errors.absolute, errors.told, span),
        root_mean_square=_root(errors.square, errors.told, span),
        explained=_explained(errors.square, targets.variance, errors.told and targets.told),
        blind=_root(targets.variance, targets.told, span),
    )


def _distance(one: _Estimate, told: bool, span: float) -> Distance:
    low, high = one.value - z() * one.deviation, one.value + one.more + z() * one.deviation
    value = one.value + one.more / 2.0
    return _ordered(value, low, high, span) if told else _ordered(0.0, 0.0, 1.0, span)


def _root(one: _Estimate, told: bool, span: float) -> Distance:
    value, low, high = (math.sqrt(max(0.0, one.value + z * one.deviation)) for z in (0.0, -z(), z()))
    return _ordered(value, low, high, span) if told else _ordered(0.0, 0.0, 1.0, span)


def _ordered(value: float, low: float, high: float, span: float) -> Distance:
    value, low, high = (span * min(1.0, max(0.0, one)) for one in (value, low, high))
    return Distance(value=value, low=min(low, value), high=max(high, value))


def _explained(square: _Estimate, variance: _Estimate, told: bool) -> Explained:
    """1 − E e²/Var t, with the errors of the two logarithms taken as independent.

    Large errors usually go with unusual targets; then both move together, and the interval is rather too wide.
    """
    if not told or square.value <= 0.0 or variance.value <= 0.0:
        return Explained(value=0.0, low=-1.0, high=1.0)
    ratio = square.value / variance.value
    reach = z() * math.hypot(square.deviation / square.value, variance.deviation / variance.value)
    low, value, high = (
        min(1.0, max(-1.0, 1.0 - ratio * math.exp(min(50.0, side * reach)))) for side in (1.0, 0.0, -1.0)
    )
    return Explained(value=value, low=low, high=high)


# Beside the best constant guess.

WORDS: dict[State, str] = {
    "better": "It does better than the best constant guess: {told}.",
    "unclear": "It may do no better than a constant guess: {told}.",
    "unknown": "Whether it does better than a constant guess cannot be told: {told}.",
    "hardly": "It does hardly better than the best constant guess: {told}.",
    "useless": "It does no better than the best constant guess: {told}.",
}
TOLD = (
    "off by {error} ({low} to {high}; root mean square), where the constant is off by {blind}; R² is {explained:.2f} "
    "({least:.2f} to {most:.2f})"
)


@dataclass(frozen=True)
class ErrorUse:
    """A regression beside the best constant guess.

    Args:
        state: "better" if R² is clearly above 0 and reaches the gain that is asked for; otherwise "unknown" if its
            interval tells nothing, "unclear" if it gains enough by its estimate alone, "hardly" if it is clearly above
            0 and gains too little, and "useless" if neither.
        gain: R².
        sentence: The same in words.
    """

    state: State
    gain: float
    sentence: str

    @property
    def rejected(self) -> bool:
        """Whether this is a reason to reject."""
        return self.state in REJECTED


def compare_with_constant(found: ErrorFigures, target: TargetRange, least_gain: float = LEAST_GAIN) -> ErrorUse:
    """Compare a regression with the best constant guess.

    Args:
        found: Its figures.
        target: The declared range.
        least_gain: The smallest R² that counts as a use.
    """
    own, error = found.explained, found.root_mean_square
    state = state_of(own.value, own.low, own.high, least_gain)
    told = TOLD.format(
        error=in_unit(error.value, target),
        low=in_unit(error.low, target),
        high=in_unit(error.high, target),
        blind=_constant(found.blind, target),
        explained=own.value,
        least=own.low,
        most=own.high,
    )
    return ErrorUse(state, own.value, WORDS[state].format(told=told))


def _constant(blind: Distance, target: TargetRange) -> str:
    """How far the best constant guess is off; an estimate that noise took to 0 is none."""
    if blind.low <= 0.0:
        return f"at most {in_unit(blind.high, target)}"
    low, high = in_unit(blind.low, target), in_unit(blind.high, target)
    return f"{in_unit(blind.value, target)} ({low} to {high})"


ROWS = (
    ("mean_absolute", "mean absolute error"),
    ("root_mean_square", "root mean square error"),
    ("explained", "R², the share of the variance explained: 0 for the best constant guess, 1 without error"),
    ("blind", "root mean square error of the best constant guess, the mean"),
)


def rows(found: ErrorFigures, target: TargetRange) -> list[tuple[str, str, str]]:
    """Every figure: its name, its estimate and its interval, in the unit of the target."""

    def words(value: float, one: Distance | Explained) -> str:
        return f"{value:.2f}" if isinstance(one, Explained) else in_unit(value, target)

    said = [(name, getattr(found, key)) for key, name in ROWS]
    return [(name, words(one.value, one), f"{words(one.low, one)} to {words(one.high, one)}") for name, one in said]


def in_unit(length: float, target: TargetRange) -> str:
    """A length in the unit of the target."""
    return f"{length:.4g}" + (f" {target.unit}" if target.unit else "")
