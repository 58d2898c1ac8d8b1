"""The canaries of `twin`/`sharded`: one whole release on made-up records, each in or out by a coin of its own.

Every canary has a coordinate of the input to itself, and there are so many shards that it mostly has one of those too.
Alone in its shard it moves the vector from zero to the edge of the ball: half of what the noise is made for, which is
all that adding a record to an empty shard can do. `shard_case` has the record that does twice that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from airlock.accounting import Claim
from airlock.config import ReleaseConfig
from airlock.data import Facts, Records, Split
from airlock.mechanisms import Randomness, Stream
from airlock.methods.case import Canaries, Coins, Scores, less_noise
from airlock.methods.twin import shard_case
from airlock.nets.frontend import Framed
from airlock.training import Run

if TYPE_CHECKING:
    from airlock.methods.twin.sharded import Sharded

_SHARDS = 8  # times the canaries
_STATED = 100  # times as many records are stated
WHAT = "one release on {count:,} canaries in orthogonal directions, mostly alone in their shards, each in or out"
STATISTIC = "the released head in the canary's own direction"


def facts(count: int) -> Facts:
    """One coordinate a canary; the number of records is stated, not counted."""
    return Facts("court", (count,), ("0", "1"), _STATED * count, 1, "made up for the court")


def config_for(epsilon: float, delta: float, count: int) -> ReleaseConfig:
    """As in the case, with room for all canaries."""
    settings = {"shards": _SHARDS * count, "dimensions": None}
    return shard_case.config_for("sharded", epsilon, delta, **settings)


def of_mean(channel: Sharded) -> Canaries:
    """The released head, coordinate by coordinate."""
    count = channel.facts.shape[0]
    every = Records(np.eye(count, dtype=np.float32), np.arange(count, dtype=np.int64) % 2)
    toward = 1.0 - 2.0 * every.y

    def run(coins: Coins, stream: Stream) -> Scores:
        private, nobody = every.take(np.flatnonzero(coins)), every.take(np.arange(0))
        split = Split(channel.facts, private, nobody, every.take(np.arange(1)), nobody)
        net = channel.release(split, Randomness(0, stream), Run()).network.net
        assert isinstance(net, Framed)
        weight = net.head.weight.double().numpy()[:, :-1]  # the last one is the bias
        return np.asarray((weight[0] - weight[1]) * toward)

    promised = channel.plan().guarantee
    claim = Claim(promised.epsilon, promised.delta, shard_case.ACCOUNTED)
    family = less_noise(promised.events, promised.delta, 0.5)  # from the centre of the ball to its edge
    return Canaries(claim, count, WHAT.format(count=count), STATISTIC, run, family)
