"""The case of `answers`/`published`: two trainings, with and without one record, and one answer a run.

All other records are alike: the same features, class 0. The one that differs has a feature that nobody else has, and
class 1. The query is that record. The real training makes a network of either set; then every run is one answer by the
real algorithm. Both networks are known to the court.

With three classes or more an answer tells ln p_u/p_w = z_u − z_w for every pair without noise: the score is which
network has such a pair at that very place, and it does not err. With two, all that is told is z_0 − z_1 with noise of
one known scale; the two networks are further apart than the paper's sensitivity says, and the score is what is told.
The claim is the paper's for one answer; for Gaussian noise, which it states as Gaussian DP, the (ε, δ) that this means.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from airlock.accounting import Claim
from airlock.config import ReleaseConfig, from_table
from airlock.data import Facts, Records
from airlock.mechanisms import Stream
from airlock.methods.case import Case, Scores
from airlock.methods.contract import Secrets
from airlock.papers.answers.formulas import gaussian_epsilon
from airlock.papers.answers.neuron import NeuronAnswerer, keep
from airlock.training import Run

if TYPE_CHECKING:
    from airlock.papers.answers.published import Published

Kept = Mapping[bool, Secrets]  # what stays inside, with the record and without

CLASSES = 3
_RECORDS = 10_000
_SETTINGS = {"batch_size": 1000}  # the paper's 100 would take ten times as long, and show more
QUERY = np.array([[1.0, 0.0]], np.float32)
_TINY = 1e-300
PAIR = (
    f"{_RECORDS:,} records, with and without one that has a feature and a class of its own; the network is trained on "
    "either, and asked about that record"
)
LOG_ODDS = "the log-odds of the first class in the answer"
TOLD = "how much closer the closest log-ratio of two probabilities is to the network with the record"


def facts(classes: int) -> Facts:
    """Two features; the number of records is that of the set with the record."""
    names = tuple(map(str, range(classes)))
    return Facts("court", (2,), names, _RECORDS, 1, "made up for the court")


def config_for(epsilon: float, delta: float, **settings: Any) -> ReleaseConfig:
    """The paper's settings, with larger batches."""
    table = {
        "channel": "answers",
        "method": "published",
        "data": "court",
        "epsilon": epsilon,
        "delta": delta,
        "split": {"test": 0.0, "holdout": 0.0},
        "device": "cpu",
        "settings": {**_SETTINGS, **settings},
    }
    return from_table(table)


def neighbours() -> tuple[Records, Records]:
    """With and without the record; the one that differs comes last."""
    x, y = np.tile(1 - QUERY, (_RECORDS, 1)), np.zeros(_RECORDS, np.int64)
    x[-1], y[-1] = QUERY, 1
    both = Records(x, y)
    return both, both.take(np.arange(_RECORDS - 1))


def of_answer(method: type[Published], epsilon: float, delta: float, classes: int = CLASSES, **settings: Any) -> Case:
    """One answer about the record; the networks are trained here, once a side."""
    channel = method(config_for(epsilon, delta, **settings), facts(classes))
    return of_networks(channel, train(channel))


def train(channel: Published) -> Kept:
    """The networks with and without the record, by the method's own training."""
    assert channel.alpha != "search"
    objective = channel.objective(channel.alpha)
    with torch.random.fork_rng(devices=[]):
        kept = [keep(channel.train(side, objective, Run())) for side in neighbours()]
    return dict(zip((True, False), kept, strict=True))


def of_networks(channel: Published, kept: Kept) -> Case:
    """One answer from either network."""
    answerers = {known: NeuronAnswerer(channel.interface(), kept[known]) for known in (True, False)}
    both, others = (answerers[known].logits(QUERY)[0] for known in (True, False))
    classes, epsilon, delta = len(channel.facts.classes), channel.config.epsilon, channel.config.delta

    def run(with_record: bool, count: int, stream: Stream) -> Scores:
        asked = answerers[with_record]
        values = asked.answer(QUERY.repeat(count, 0), asked.reserve(count), stream).values
        assert values is not None
        told = np.log(np.maximum(values, _TINY))
        scores = [told[:, 0] - np.log(np.maximum(values[:, 1:].sum(1), _TINY))]
        if classes > 2:
            scores.append(_apart(told, others) - _apart(told, both))
        return np.stack(scores, 1)

    gaussian = channel.settings.noise == "gaussian"
    stated = gaussian_epsilon(epsilon, delta) if gaussian else epsilon
    theorem = "Theorem 6 of Lu et al. 2021, for one answer" + (", as Gaussian DP" if gaussian else "")
    return Case(Claim(stated, delta, theorem), PAIR, (LOG_ODDS,) if classes == 2 else (LOG_ODDS, TOLD), run)


def _apart(told: NDArray[np.float64], logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """The logarithm of how far the closest pair is from a network's; rounding alone leaves some 1e-15."""
    pairs = [np.abs(told[:, u] - told[:, w] - (logits[u] - logits[w])) for u, w in combinations(range(len(logits)), 2)]
    found: NDArray[np.float64] = np.log(np.maximum(np.min(pairs, 0), 1e-12))
    return found
