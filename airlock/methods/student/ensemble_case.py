"""The case of `student`/`ensemble`: one record turns the teacher of its shard round, in all its answers.

Two shards, each with a record a of label 1, which moves the logits of every query towards that label. The record that
differs is larger, of label 0, and lies in the first shard: there it outweighs the other. All records and queries are
multiples of one another, so with two classes all moves lie on one line, and the bound is so small that all are clipped:
from one end of the ball to the other, in every answer. Records are scaled until they lie in the shard where they are
wanted. Public records have either label, so that the public teacher leans nowhere.

The score is the best there is: the logarithm of how much more likely the answers are with the record than without it.

Every kind of answers has its case. For votes and probabilities the teachers take long steps, so that each is all but
sure of its class. With confident votes it also tells how many answers are given at all: with the record the teachers
differ, and no class has the two votes that are asked for.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import norm
from torch import Tensor

from airlock.accounting import Claim
from airlock.config import ReleaseConfig, from_table
from airlock.data import Facts, Records, Split, shard
from airlock.mechanisms import Stream, bounded
from airlock.methods.case import Case, Scores, curve_of, less_noise
from airlock.methods.contract import check_executed
from airlock.methods.student.ensemble_settings import UNBOUNDED, Kind
from airlock.training import Run
from airlock.training.stages import Stages

if TYPE_CHECKING:
    from airlock.methods.student.ensemble import Ensemble, Questions

TEACHERS, QUERIES, BOUND = 2, 4, 1e-3
FACTS = Facts("court", (1,), ("0", "1"), 16, 1, "made up for the court")
PAIR = (
    f"{TEACHERS} shards with a record of label 1 each, with and without a larger one of label 0 that turns one teacher "
    f"round in all {QUERIES} answers, all clipped"
)
ACCOUNTED = "dp-accounting's bound on the events that the runs execute"
_TRIES = 200


def config_for(epsilon: float, delta: float, kind: Kind = "residuals") -> ReleaseConfig:
    """Networks of one layer; a teacher takes one step."""
    own: dict[str, object] = {"shard_learning_rate": 100.0} if kind in UNBOUNDED else {"bound": BOUND}
    if kind == "matrix":
        own = {"bound": BOUND * QUERIES**0.5}
    if kind == "confident-votes":
        own["threshold"] = 0.75
    settings = {
        "teachers": TEACHERS,
        "queries": QUERIES,
        "answers": kind,
        "select": "random",
        "teacher": "linear",
        "hint_epochs": 0,
        "teacher_epochs": 200,
        "teacher_learning_rate": 0.05,
        "shard_public": 0,
        "shard_epochs": 1,
        "shard_learning_rate": 0.1,
        **own,
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
    plan, questions = channel.unwarned(), opened(channel)
    means = {known: _exact(channel, moved(channel, questions, known), questions) for known in (True, False)}
    move, middle = means[True] - means[False], (means[True] + means[False]) / 2
    spread = channel.answering.noise(questions.bound)

    def run(with_record: bool, count: int, stream: Stream) -> Scores:
        found = moved(channel, questions, with_record)
        scores = np.empty((count, 1))
        for i in range(count):
            noisy, executed = channel.publish(found, questions, stream.child(i))
            if i == 0:
                check_executed(plan, executed)
            given = ~np.isnan(noisy)
            scores[i] = np.where(given, (noisy - middle) * move, 0.0).sum() / spread**2 + _given(channel, given)
        return scores

    promised = plan.guarantee
    claim = Claim(promised.epsilon, promised.delta, ACCOUNTED)
    statistics = ("how much more likely the answers are with the record",)
    curve, family = curve_of(promised.events, claim.epsilon), less_noise(promised.events, claim.delta)
    return Case(claim, PAIR, statistics, run, curve, family)


def _exact(channel: Ensemble, moves: Tensor, questions: Questions) -> Scores:
    """What the answers would be without noise: (queries, classes)."""
    own, logits = channel.answering, questions.public + moves
    if own.kind == "probabilities":
        return np.asarray(torch.softmax(logits.double(), 2).mean(0).numpy())
    if own.kind in UNBOUNDED:
        return np.asarray(torch.nn.functional.one_hot(logits.argmax(2), logits.shape[2]).sum(0).double().numpy())
    flat = moves.flatten(1) if own.kind == "matrix" else moves.flatten(0, 1)
    return np.asarray(bounded(flat, questions.bound).view(moves.shape).mean(0).numpy())


def _given(channel: Ensemble, given: NDArray[np.bool_]) -> float:
    """How much more likely it is with the record that these answers are given and the others are not."""
    if channel.answering.kind != "confident-votes":
        return 0.0
    noise, limit = channel.answering.noise_multiplier, channel.settings.threshold * TEACHERS
    chance = [norm.logcdf((most - limit) / noise) - norm.logsf((most - limit) / noise) for most in (1.0, TEACHERS)]
    return float((chance[0] - chance[1]) * given.all(1).sum())
