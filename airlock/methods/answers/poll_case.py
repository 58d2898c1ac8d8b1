"""The case of `answers`/`poll`: all answers to one question, on votes that are as even as they can be.

Records lie on a quarter circle, those below 45° in class 0 and those above in class 1, four for each head. A head sees
few of them, so each draws the line at another place, and the lead of a class changes steadily with the angle of a
question. The record that differs is of class 1 and falls into an empty shard, whose head names class 0 until it is
there: it takes a vote from class 0 and gives it to class 1 on every question. Where votes are even, a label tells most
about one of them: the score is how many labels name class 1.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from airlock.accounting import Claim
from airlock.config import from_table
from airlock.data import Facts, Records, shard
from airlock.mechanisms import Stream
from airlock.methods.answers import case
from airlock.methods.answers.fitted import embed_queries
from airlock.methods.case import Case, Scores, curve_of, less_noise
from airlock.methods.interface import ask
from airlock.training import Run
from airlock.training.convex import LogisticHead

if TYPE_CHECKING:
    from airlock.methods.answers.poll import Counted, Poll

QUERIES = 12
PER_HEAD = 4
PLAIN = LogisticHead(2, 1.0, 1)
STATISTICS = ("how many of the answers name the record's class, ties by a coin",)
PAIR = (
    "votes of heads on a quarter circle, with and without a record that moves one of them; "
    f"{QUERIES} answers to a question on which the votes are even"
)
ACCOUNTED = "dp-accounting's bound on the events of all answers together"


def of_poll(method: type[Poll], epsilon: float, delta: float) -> Case:
    """The real shards, the real heads, the real noise."""
    channel = _channel(method, epsilon, delta)
    plan, net, noise = channel.plan(), channel.ready(), channel.noise()
    heads = channel.heads(noise)
    sides = neighbours(heads, channel.config.seed)

    def desk(with_record: bool) -> Counted:
        kept = channel.kept(net, sides[0 if with_record else 1], heads, Run())
        found: Counted = method.answerer(channel.interface(noise), kept)  # type: ignore[assignment]
        return found

    asked = cache(desk)  # solved when the first run needs it, which takes far longer than its answers
    angles = on_circle(np.linspace(0.0, np.pi / 2, 3000))
    plain = desk(False)
    counts = plain.counts(embed_queries(plain.body, angles, PLAIN))
    question = angles[np.abs(counts[:, 0] - counts[:, 1]).argmin()][None]

    def run(with_record: bool, count: int, stream: Stream) -> Scores:
        found = ask(asked(with_record), np.repeat(question, QUERIES * count, 0), stream.child("answers"))
        named = found.labels.reshape(count, QUERIES).sum(1)
        return np.asarray(named + stream.child("ties").uniform(count))[:, None]

    claim = Claim(plan.guarantee.epsilon, delta, ACCOUNTED)
    events, reach = plan.guarantee.events, math.sqrt(2 / math.pi)  # what the sign of a normal number tells of its mean
    return Case(claim, PAIR, STATISTICS, run, curve_of(events, claim.epsilon), less_noise(events, delta, reach))


def _channel(method: type[Poll], epsilon: float, delta: float) -> Poll:
    table = case.config_for(epsilon, delta).model_dump(mode="json", exclude_none=True)
    settings = {"features": "pixels", "queries": QUERIES}
    facts = Facts("court", (2,), ("0", "1"), 10_000, 1, case.FACTS.origin)
    return method(from_table(table | {"method": method.method, "settings": settings}), facts)


def neighbours(heads: int, seed: int) -> tuple[Records, Records]:
    """With and without the record, which comes last."""
    angles = np.random.default_rng(0).uniform(0, np.pi / 2, PER_HEAD * heads)
    without = Records(on_circle(angles), (angles > np.pi / 4).astype(np.int64))
    for angle in np.linspace(0.7, 0.8, 1000):
        x = np.concatenate([without.x, on_circle(np.array([angle]))])
        both = Records(x, np.append(without.y, 1))
        if any(len(own) == 1 and own[0] == len(without) for own in shard(both, heads, seed)):
            return both, without
    raise AssertionError("no record falls into an empty shard")


def on_circle(angles: NDArray[np.float64]) -> NDArray[np.float32]:
    """Points at these angles."""
    return np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
