"""The court's cases of a search: what the winner shows of a private record, and what the choice shows of a test record.

Both go through the code that selects (`RepeatAndSelect.select`, `search.scored`). The mechanism that is repeated is a
single noisy count, the worst of all ε-DP ones: the best of many runs of it is one rare large noise, and shows the most.

    tune/models   A run releases the number of private records with noise; the largest is the best. Whoever knows the
                  number of runs knows how large the largest noise should be.
    tune/scores   Two candidates that release nothing about records: one gets none of the test records right, the other
                  every one of them, which is one or none. What leaves is which of the two won.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from airlock.accounting import Guarantee, compute_epsilon, pure
from airlock.mechanisms import NoisyCounts, RepeatAndSelect, Stream
from airlock.mechanisms.discrete import Coins
from airlock.methods import search
from airlock.methods.case import Case, Scores

MEAN = 5.0
OTHERS = 3  # records that are there on both sides
ONE_OF_THREE = 3  # how many candidates there are; one of them gets the record right


def models_case(epsilon: float, delta: float) -> Case:
    """Neighbouring data sets differ by a private record."""
    chosen, own = _calibrated(epsilon, delta)
    noise = NoisyCounts(own)

    def once(there: bool, stream: Stream) -> float:
        def run(number: int, stream: Stream) -> tuple[int, int]:
            value = int(noise.add(np.array([OTHERS + there]), stream)[0])
            return value, value

        return float(chosen.select(run, stream))

    pair = f"{OTHERS} records, and one more: the largest of a secret number of noisy counts of them"
    return _case(chosen, own, delta, pair, ("the value that leaves",), once)


def scores_case(epsilon: float, delta: float) -> Case:
    """Neighbouring data sets differ by a test record."""
    chosen, own = _calibrated(epsilon, delta)

    def once(there: bool, stream: Stream) -> float:
        def run(number: int, stream: Stream) -> tuple[int, int]:
            right = int(Coins(stream.child("candidate")).below(ONE_OF_THREE, 1)[0]) == 0
            return search.scored(int(right and there), own, stream.child("score")), int(right)

        return float(chosen.select(run, stream))

    pair = "no test record, and one that one of three candidates gets right"
    return _case(chosen, own, delta, pair, ("whether that candidate won",), once)


CASES: dict[str, Callable[[float, float], Case]] = {"tune/models": models_case, "tune/scores": scores_case}


def _calibrated(epsilon: float, delta: float) -> tuple[RepeatAndSelect, float]:
    """The selection, and the ε of one run with which it costs about ε at δ."""
    chosen = RepeatAndSelect(MEAN)

    def cost(own: float) -> float:
        return compute_epsilon(chosen.event(pure(own)), delta).epsilon

    return chosen, search.largest(cost, epsilon, epsilon / 3.0, "the court")


def _case(
    chosen: RepeatAndSelect, own: float, delta: float, pair: str, statistics: tuple[str, ...],
    once: Callable[[bool, Stream], float],
) -> Case:  # fmt: skip
    def run(there: bool, runs: int, stream: Stream) -> Scores:
        return np.array([[once(there, stream.child(number))] for number in range(runs)])

    promise = Guarantee("record", "add-remove", chosen.event(pure(own)), delta, "proven", ())
    return Case.of_proven(promise, pair, statistics, run)
