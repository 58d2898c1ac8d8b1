"""The case of methods over shards, `twin`/`sharded` first: one record turns the vector of its shard round.

Half of the shards hold records that say "−a", the others one that says "+a", so that a release can go either way. A
shard that says −a holds two records of label 1 whose sum is a/2, and two of label 0 that cancel out; the record that
differs is a itself with label 0. The penalty is so large that a head is the sum of its records, and the radius so small
that every vector is clipped: from −a/2 to +a/2 is from one side of the ball to the other. Records are scaled until they
lie in the shard where they are wanted; features have norm 1, so scale does not matter otherwise.

The score is the best there is: the logarithm of how much more likely the release is with the record than without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from airlock.accounting import Claim
from airlock.config import ReleaseConfig, from_table
from airlock.data import Facts, Records, shard
from airlock.mechanisms import Stream, bounded
from airlock.methods.case import Case, Scores, curve_of, less_noise
from airlock.methods.contract import check_executed
from airlock.training import Run

if TYPE_CHECKING:
    from airlock.methods.twin.sharded import OfShards, Sharded

SHARDS = 50
FACTS = Facts("court", (2,), ("0", "1"), 1000, 1, "made up for the court")
PAIR = (
    f"{SHARDS} shards of which half say −a and half +a, with and without one record that turns one of them from "
    "−a to +a, all clipped"
)
ACCOUNTED = "dp-accounting's bound on the events that the runs execute"
_RIDGE, RADIUS = 1e3, 1e-4
_SIDE = math.sqrt(1 - 0.25**2)  # two vectors (1/4, ±_SIDE) add up to a/2
_AGAINST = (((0.25, _SIDE), 1), ((0.25, -_SIDE), 1), ((0.0, 1.0), 0), ((0.0, -1.0), 0))
_FOR = ((1.0, 0.0), 0)
_TRIES = 2000

Kind = tuple[tuple[float, float], int]
Score = Callable[[NDArray[np.float64]], float]


def config_for(method: str, epsilon: float, delta: float, **changes: int | None) -> ReleaseConfig:
    """Heads on the records themselves."""
    settings = {"shards": SHARDS, "features": "pixels", "ridge": _RIDGE, "radius": RADIUS, "dimensions": 2, **changes}
    table = {"channel": "twin", "method": method, "data": "court", "epsilon": epsilon, "delta": delta, "device": "cpu"}
    return from_table({**table, "split": {"test": 0.0, "holdout": 0.0}, "settings": settings})


@cache
def neighbours(seed: int) -> tuple[Records, Records]:
    """With and without the record; the one that differs comes last and lies in the first shard."""
    half = SHARDS // 2
    found = [_scaled(kind, range(half), seed) for kind in _AGAINST]
    found.append(_scaled(_FOR, [*range(half, SHARDS), 0], seed))
    both = Records(np.concatenate([one.x for one in found]), np.concatenate([one.y for one in found]))
    return both, both.take(np.arange(len(both) - 1))


def _scaled(kind: Kind, places: Sequence[int], seed: int) -> Records:
    """Multiples of the vector, one in each of these shards."""
    (vector, label), scale = kind, np.linspace(1, 2, _TRIES)[:, None]
    every = Records((scale * np.array(vector)).astype(np.float32), np.full(_TRIES, label, np.int64))
    own = shard(every, SHARDS, seed)
    return every.take(np.array([own[place][0] for place in places]))


def of_mean(channel: Sharded) -> Case:
    """The noisy mean of the real method."""
    noise, sides = opened(channel)
    means = {known: bounded(vectors, RADIUS).mean(0).numpy() for known, vectors in sides.items()}
    move = means[True] - means[False]
    spread = noise * 2 * RADIUS / SHARDS

    def ratio(found: NDArray[np.float64]) -> float:
        return float((found - (means[True] + means[False]) / 2) @ move) / spread**2

    return case_of(channel, noise, ratio, 1.0)


def opened(channel: OfShards) -> tuple[float, dict[bool, Tensor]]:
    """The noise, and the vectors of both sides."""
    noise = float(channel.plan().details["noise_multiplier"])
    return noise, {known: _vectors(channel, noise, known) for known in (True, False)}


def _vectors(channel: OfShards, noise: float, known: bool) -> Tensor:
    here = Run(device=torch.device("cpu"))
    records = neighbours(channel.config.seed)[0 if known else 1]
    return channel.answers(channel.heads.start(None, here), records, noise, here)


def case_of(channel: OfShards, noise: float, score: Score, reach: float) -> Case:
    """The case of a method over shards, by its score of what leaves."""
    plan = channel.plan()

    def run(with_record: bool, count: int, stream: Stream) -> Scores:
        vectors = _vectors(channel, noise, with_record)
        scores = np.empty((count, 1))
        for i in range(count):
            found, executed = channel.publish(vectors, noise, RADIUS, stream.child(i))
            if i == 0:
                check_executed(plan, executed)
            scores[i] = score(found)
        return scores

    promised = plan.guarantee
    claim = Claim(promised.epsilon, promised.delta, ACCOUNTED)
    statistics = ("how much more likely what leaves is with the record",)
    curve, family = curve_of(promised.events, claim.epsilon), less_noise(promised.events, claim.delta, reach)
    return Case(claim, PAIR, statistics, run, curve, family)
