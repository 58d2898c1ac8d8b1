"""The court's cases of a search: what the winner shows of a private record, and what the choice shows of a test record.

Both go through the code that selects (`RepeatAndSelect.select`, `search.scored`).

    tune/models   A run releases the number of private records with two-sided geometric noise, and the largest is the
                  best. Whoever knows the number of runs knows how large the largest noise should be: then a small one
                  shows that a record is missing. The number of runs is logarithmic, whose bound is the tightest.
    tune/scores   Ten candidates that release nothing about records: one of them gets the only test record right, if
                  it is there. What leaves is whether this one won.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from airlock.accounting import Guarantee, compute_epsilon, pure
from airlock.mechanisms import RepeatAndSelect, Stream
from airlock.mechanisms.discrete import Coins
from airlock.methods import search
from airlock.methods.case import Case, Scores

MODELS, SCORES = RepeatAndSelect(5.0, 0.0), RepeatAndSelect(10.0, 1.0)
OTHERS = 3  # records that are there on both sides
CANDIDATES = 10  # of which one gets the record right


def models_case(epsilon: float, delta: float) -> Case:
    """Neighbouring data sets differ by a private record."""
    own = _calibrated(MODELS, epsilon, delta)

    def once(there: bool, stream: Stream) -> float:
        def run(number: int, stream: Stream) -> tuple[int, int]:
            one, other = np.floor(np.log(stream.uniform(2)) / -own)  # geometric numbers, by inversion
            value = OTHERS + there + int(one - other)
            return value, value

        return float(MODELS.select(run, stream))

    pair = f"{OTHERS} records, and one more: the largest of a secret number of noisy counts of them"
    return _case(MODELS, own, delta, pair, ("the value that leaves",), once)


def scores_case(epsilon: float, delta: float) -> Case:
    """Neighbouring data sets differ by a test record."""
    own = _calibrated(SCORES, epsilon, delta)

    def once(there: bool, stream: Stream) -> float:
        def run(number: int, stream: Stream) -> tuple[int, int]:
            right = int(Coins(stream.child("candidate")).below(CANDIDATES, 1)[0]) == 0
            return search.scored(int(right and there), own, stream.child("score")), int(right)

        return float(SCORES.select(run, stream))

    pair = "no test record, and one that one of ten candidates gets right"
    return _case(SCORES, own, delta, pair, ("whether that candidate won",), once)


CASES: dict[str, Callable[[float, float], Case]] = {"tune/models": models_case, "tune/scores": scores_case}


def _calibrated(chosen: RepeatAndSelect, epsilon: float, delta: float) -> float:
    """The ε of one run with which the whole costs about ε at δ."""

    def cost(own: float) -> float:
        return compute_epsilon(chosen.event(pure(own)), delta).epsilon

    return search.largest(cost, epsilon, epsilon / 3.0, "the court")


def _case(
    chosen: RepeatAndSelect, own: float, delta: float, pair: str, statistics: tuple[str, ...],
    once: Callable[[bool, Stream], float],
) -> Case:  # fmt: skip
    def run(there: bool, runs: int, stream: Stream) -> Scores:
        return np.array([[once(there, stream.child(number))] for number in range(runs)])

    promise = Guarantee("record", "add-remove", chosen.event(pure(own)), delta, "proven", ())
    return Case.of_proven(promise, pair, statistics, run)
