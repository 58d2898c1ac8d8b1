"""The case of `answers`/`savings`: one session, asked until it ends, on votes that one record moves both ways.

Records lie on a quarter circle, those below 45° in class 0 and those above in class 1, four for each head. A head sees
few of them, so they draw the line at other places, and the lead of a class changes steadily with the angle of a
question. The record that differs is of class 1 and falls into an empty shard, whose head names class 0 until it is
there. So it takes a vote from class 0 and gives it to class 1 on every question: class 0 leads by less on the questions
asked first, class 1 by more on the last. The angles are chosen by the real votes, for leads near the threshold.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from airlock.accounting import Claim
from airlock.config import from_table
from airlock.data import Facts, Records
from airlock.data.split import shard
from airlock.mechanisms import Stream
from airlock.methods.answers import case
from airlock.methods.answers.fitted import embed_queries
from airlock.methods.answers.votes import Voters
from airlock.methods.case import Case, Scores, curve_of, less_noise
from airlock.training import Run
from airlock.training.convex import LogisticHead

if TYPE_CHECKING:
    from airlock.methods.answers.savings import Savings

FIRST = 6  # questions that the record makes less sure, before one that it makes surer
ABOVE_FIRST, ABOVE_LAST = 0, -3  # d of either without the record, less the threshold
PER_HEAD = 4
PLAIN = LogisticHead(2, 1.0, 1)
STATISTICS = ("how many questions were answered, ties by a coin", "whether the last one and no other ended it")
PAIR = "votes of heads on a quarter circle, with and without a record that moves one of them"
ACCOUNTED = "the sparse vector technique: one session is as private as its two budgets together"


def of_votes(method: type[Savings], epsilon: float, delta: float) -> Case:
    """The real shards, the real heads, the real session."""
    channel = _channel(method, epsilon, delta)
    plan, net, rule = channel.plan(), channel.ready(), channel.rule()
    heads = channel.heads(rule)
    sides = neighbours(heads, channel.config.seed)

    @cache
    def voters(with_record: bool) -> Voters:
        """Solved when the first run needs them: that takes a thousand times as long as a session."""
        side = sides[0 if with_record else 1]
        return Voters(channel.interface(rule), channel.kept(net, side, heads, Run()))

    plain = Voters(channel.interface(rule), channel.kept(net, sides[1], heads, Run()))
    questions = _questions(plain, rule.threshold)

    def run(with_record: bool, count: int, stream: Stream) -> Scores:
        desk = voters(with_record)
        _, sure = desk.tally(embed_queries(desk.body, questions, PLAIN))
        levels = desk.rule.start_many(count, stream.child("threshold"))
        answered = desk.rule.passed_many(levels, np.tile(sure, (count, 1)), stream.child("numbers"))
        coins = stream.child("ties").uniform(count)
        return np.stack([answered + coins, answered == FIRST], 1)

    claim = Claim(plan.guarantee.epsilon, delta, ACCOUNTED)
    events = plan.guarantee.events
    return Case(claim, PAIR, STATISTICS, run, curve_of(events, claim.epsilon), less_noise(events, delta))


def _channel(method: type[Savings], epsilon: float, delta: float) -> Savings:
    table = case.config_for(epsilon, delta).model_dump(mode="json", exclude_none=True)
    settings = {"features": "pixels", "queries": FIRST + 1, "unsure": 1}
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


def _questions(desk: Voters, threshold: int) -> NDArray[np.float32]:
    """Angles at which the leads without the record are as wanted: `FIRST` times one, then the other."""
    found = on_circle(np.linspace(0.0, np.pi / 2, 3000))
    winners, sure = desk.tally(embed_queries(desk.body, found, PLAIN))
    away = np.where(winners == 0, sure - threshold - ABOVE_FIRST, 10**6), sure - threshold - ABOVE_LAST
    first, last = np.abs(away[0]).argmin(), np.abs(np.where(winners == 1, away[1], 10**6)).argmin()
    return np.concatenate([np.repeat(found[first : first + 1], FIRST, 0), found[last : last + 1]])


def on_circle(angles: NDArray[np.float64]) -> NDArray[np.float32]:
    """Points at these angles."""
    return np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
