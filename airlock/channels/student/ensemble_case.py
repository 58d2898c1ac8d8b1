"""The case of `student`/`ensemble`: one record turns the teacher of its shard round, in all its answers.

Two shards, each with a record a of label 1, which moves the logits of every query towards that label. The record that
differs is larger, of label 0, and lies in the first shard: there it outweighs the other. All records and queries are
multiples of one another, so with two classes all moves lie on one line, and the bound is so small that all are clipped:
from one end of the ball to the other, in every answer. Records are scaled until they lie in the shard where they are
wanted. Public records have either label, so that the public teacher leans nowhere.

The score is the best there is: the logarithm of how much more likely the answers are with the record than without it.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from airlock.accounting import Claim
from airlock.channels.case import Case, Scores, curve_of
from airlock.channels.contract import check_executed
from airlock.config import ReleaseConfig, from_table
from airlock.data import Facts, Records, Split, shard
from airlock.mechanisms import Stream, bounded
from airlock.training import Run
from airlock.training.stages import Stages

if TYPE_CHECKING:
    from airlock.channels.student.ensemble import Ensemble, Questions

TEACHERS, QUERIES, BOUND = 2, 4, 1e-3
FACTS = Facts("court", (1,), ("0", "1"), 16, 1, "made up for the court")
PAIR = (
    f"{TEACHERS} shards with a record of label 1 each, with and without a larger one of label 0 that turns one teacher "
    f"round in all {QUERIES} answers, all clipped"
)
ACCOUNTED = "dp-accounting's bound on the events that the runs execute"
_TRIES = 200


def config_for(epsilon: float, delta: float) -> ReleaseConfig:
    """Networks of one layer; a teacher takes one step."""
    settings = {
        "teachers": TEACHERS,
        "queries": QUERIES,
        "bound": BOUND,
        "select": "random",
        "teacher": "linear",
        "hint_epochs": 0,
        "teacher_epochs": 200,
        "teacher_learning_rate": 0.05,
        "shard_public": 0,
        "shard_epochs": 1,
        "shard_learning_rate": 0.1,
    }
    table = {"channel": "student", "method": "ensemble", "data": "court", "net": "linear", "device": "cpu"}
    split = {"public": 0.5, "test": 0.0, "holdout": 0.0}
    return from_table({**table, "epsilon": epsilon, "delta": delta, "split": split, "settings": settings})


@cache
def neighbours(seed: int) -> tuple[Records, Records]:
    """With and without the record; the one that differs comes last and lies in the first shard."""
    small, large = (_scaled(low, label, seed) for low, label in ((1.0, 1), (4.0, 0)))
    x = np.stack([small[0], small[1], large[0]])
    both = Records(x, np.array([1, 1, 0]))
    return both, both.take(np.arange(2))


def _scaled(low: float, label: int, seed: int) -> list[np.ndarray[tuple[int], np.dtype[np.float32]]]:
    """Numbers from `low` to twice that, one in each shard."""
    x = np.linspace(low, 2 * low, _TRIES, dtype=np.float32)[:, None]
    own = shard(Records(x, np.full(_TRIES, label, np.int64)), TEACHERS, seed)
    return [x[place[0]] for place in own]


def public() -> Records:
    """Every input with either label."""
    x = np.repeat(np.linspace(1, 2, QUERIES, dtype=np.float32), 2)[:, None]
    return Records(x, np.arange(len(x)) % 2)


def opened(channel: Ensemble) -> Questions:
    """What is public."""
    return channel.questions(public(), channel.config.seed, Stages(Run(device=torch.device("cpu")), {}))


def moved(channel: Ensemble, questions: Questions, with_record: bool) -> Tensor:
    """How far the teachers move the answers."""
    private, own = neighbours(channel.config.seed)[0 if with_record else 1], public()
    nobody = own.take(np.arange(0))
    split = Split(channel.facts, private, own, nobody, nobody)
    return channel.moved(split, questions, channel.config.seed, Run(device=torch.device("cpu")))


def of_answers(channel: Ensemble) -> Case:
    """The noisy answers of the real method."""
    plan, questions = channel.planned(), opened(channel)
    means = {known: _mean(moved(channel, questions, known)) for known in (True, False)}
    move, middle = means[True] - means[False], (means[True] + means[False]) / 2
    spread = channel.answering.noise(BOUND)

    def run(with_record: bool, count: int, stream: Stream) -> Scores:
        found = moved(channel, questions, with_record)
        scores = np.empty((count, 1))
        for i in range(count):
            noisy, executed = channel.publish(found, questions, stream.child(i))
            if i == 0:
                check_executed(plan, executed)
            scores[i] = ((noisy - middle) * move).sum() / spread**2
        return scores

    promised = plan.guarantee
    claim = Claim(promised.epsilon, promised.delta, ACCOUNTED)
    statistics = ("how much more likely the answers are with the record",)
    return Case(claim, PAIR, statistics, run, curve_of(promised.events, claim.epsilon))


def _mean(moves: Tensor) -> Scores:
    """Of the clipped moves: (queries, classes)."""
    rows = bounded(moves.flatten(0, 1), BOUND).view(moves.shape)
    return np.asarray(rows.mean(0).numpy())
