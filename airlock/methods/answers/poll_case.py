"""The case of `answers`/`poll`: all answers to one question, on votes that are as even as they can be.

The records are those of `savings`' case: the one that differs takes a vote from class 0 and gives it to class 1 on
every question. Where votes are even, a label tells most about one of them: the score is how many labels name class 1.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from airlock.accounting import Claim
from airlock.config import from_table
from airlock.data import Facts
from airlock.mechanisms import Stream
from airlock.methods.answers import case, votes_case
from airlock.methods.answers.fitted import embed_queries
from airlock.methods.case import Case, Scores, curve_of, less_noise
from airlock.methods.interface import ask
from airlock.training import Run

if TYPE_CHECKING:
    from airlock.methods.answers.poll import Counted, Poll

QUERIES = 12
STATISTICS = ("how many of the answers name the record's class, ties by a coin",)
PAIR = f"{votes_case.PAIR}; {QUERIES} answers to a question on which the votes are even"
ACCOUNTED = "dp-accounting's bound on the events of all answers together"


def of_poll(method: type[Poll], epsilon: float, delta: float) -> Case:
    """The real shards, the real heads, the real noise."""
    channel = _channel(method, epsilon, delta)
    plan, net, noise = channel.plan(), channel.ready(), channel.noise()
    heads = channel.heads(noise)
    sides = votes_case.neighbours(heads, channel.config.seed)

    def desk(with_record: bool) -> Counted:
        kept = channel.kept(net, sides[0 if with_record else 1], heads, Run())
        found: Counted = method.answerer(channel.interface(noise), kept)  # type: ignore[assignment]
        return found

    asked = cache(desk)  # solved when the first run needs it, which takes far longer than its answers
    angles = votes_case.on_circle(np.linspace(0.0, np.pi / 2, 3000))
    plain = desk(False)
    counts = plain.counts(embed_queries(plain.body, angles, votes_case.PLAIN))
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
