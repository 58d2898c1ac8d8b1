"""What `student`/`published` brings to court: the whole pipeline, on networks of one layer.

The pair: private records of zeros, with and without one large record. Public inputs stand there with either label, so
that they say nothing by themselves: what a student makes of them comes from the teacher. B is preset, and so high that
no loss is clipped, which only makes the noise larger. What is scored is the student that leaves: how it leans along the
record. Runs differ by their public seeds, which are drawn anew.

The canaries have an input of their own each, which is public with either label, and by a coin private with one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import nn

from airlock.accounting import Claim
from airlock.config import ReleaseConfig, from_table
from airlock.data import Facts, Records, Split
from airlock.mechanisms import Randomness, Stream
from airlock.methods.case import Canaries, Case, Coins, Scores
from airlock.training import Run

if TYPE_CHECKING:
    from airlock.papers.student.published import Published

_INPUTS, _CLASSES, _OTHERS = 4, 2, 3
_SIZE, _SMALL, _BOUND = 8.0, 2.0, 10.0  # of a private input, a public one; B
PAIR = f"{_OTHERS} private records of zeros, with and without one large record, and {_INPUTS} public inputs"
STATISTICS = ("how far the student leans towards the record's label along its input", "the squared size of its weights")
WHAT = "one release with {count:,} canaries, each of them public with either label, and private with one or not"
STATISTIC = "the student's weights at the canary's own input, towards its label"


def facts(inputs: int) -> Facts:
    """Every input twice in public, once with each label, and as many private records."""
    return Facts("court", (inputs,), tuple(map(str, range(_CLASSES))), 4 * inputs, 1, "made up for the court")


FACTS = facts(_INPUTS)


def config_for(epsilon: float, delta: float) -> ReleaseConfig:
    """One layer each; hints from the teacher's outputs; σ by the paper's theorem."""
    settings = {
        "teacher": "linear",
        "hint": "1",
        "guide": "1",
        "hint_epochs": 1,
        "rounds": 1,
        "self_epochs": 1,
        "distil_epochs": 12,
        "bound": _BOUND,
        "select_rate": 1.0,
        "query_batch": 4096,
        "self_batch": 4096,
        "learning_rate": 0.1,
        "temperature": 1.0,
        "teacher_epochs": 5,
        "teacher_batch": 4096,
        "teacher_learning_rate": 0.1,
    }
    table = {
        "channel": "student",
        "method": "published",
        "data": "court",
        "net": "linear",
        "epsilon": epsilon,
        "delta": delta,
        "split": {"public": 0.5, "test": 0.0, "holdout": 0.0},
        "device": "cpu",
        "settings": settings,
    }
    return from_table(table)


def neighbours(seed: int) -> tuple[Split, Split]:
    """With and without the record; the public records are the same."""
    noise = np.random.default_rng(seed).normal(size=(_INPUTS, _INPUTS))
    public = _either_label((_SMALL * np.eye(_INPUTS) + 0.2 * noise).astype(np.float32))
    record = np.zeros((1, _INPUTS), np.float32)
    record[0, 0] = _SIZE
    x = np.concatenate([np.zeros((_OTHERS, _INPUTS), np.float32), record])
    both = Records(x, np.zeros(len(x), np.int64))
    return _split(FACTS, both, public), _split(FACTS, both.take(np.arange(_OTHERS)), public)


def _either_label(x: NDArray[np.float32]) -> Records:
    return Records(np.concatenate([x] * _CLASSES), np.repeat(np.arange(_CLASSES), len(x)))


def _split(own: Facts, private: Records, public: Records) -> Split:
    nobody = public.take(np.arange(0))
    return Split(own, private, public, public.take(np.arange(1)), nobody)


def of_release(channel: Published) -> Case:
    """The claim, tried on the student that leaves."""

    def run(with_record: bool, count: int, stream: Stream) -> Scores:
        scores = np.empty((count, len(STATISTICS)))
        for i in range(count):
            own = stream.child(i)
            seed = int.from_bytes(own.child("seed").take_key()[:6], "little")
            split = neighbours(seed)[0 if with_record else 1]
            weight = _weights(channel.release(split, Randomness(seed, own), Run()).network.net)
            scores[i] = weight[0, 0] - weight[1, 0], np.square(weight).sum()
        return scores

    return Case(_claim(channel), PAIR, STATISTICS, run)


def of_canaries(channel: Published) -> Canaries:
    """The same claim, with many records more or less."""
    count = channel.facts.shape[0]
    every = Records(_SIZE * np.eye(count, dtype=np.float32), np.arange(count) % _CLASSES)
    public = _either_label(_SMALL * np.eye(count, dtype=np.float32))

    def run(coins: Coins, stream: Stream) -> Scores:
        split = _split(channel.facts, every.take(np.flatnonzero(coins)), public)
        weight = _weights(channel.release(split, Randomness(0, stream), Run()).network.net)
        towards = weight[0] - weight[1]
        return np.asarray(np.where(every.y == 0, towards, -towards))

    return Canaries(_claim(channel), count, WHAT.format(count=count), STATISTIC, run)


def _claim(channel: Published) -> Claim:
    claim = channel.plan().guarantee.claim
    assert claim is not None
    return claim


def _weights(net: nn.Module) -> Scores:
    return np.asarray(next(net.parameters()).detach().double().numpy())
