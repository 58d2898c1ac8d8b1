"""The case of `answers`/`head`, and its canaries: made-up records, the real solver, the real noise.

The record that differs is (φ, class 0). The others are nearly orthogonal to it: those of class 1 a little on its side,
those of class 0 a little on the other. What else they have cancels out, the constant of the bias too, so they can only
be told apart along φ: between them they make class 0 unlikely there, and the record's gradient is almost as long as it
can be, while each holds the head back along φ only a little. The head then moves by nine tenths of what is accounted
for. Both heads are known to the court, so the score is the best there is: the projection on their difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from airlock.accounting import Claim, to_json
from airlock.config import ReleaseConfig, from_table
from airlock.data import Facts, Records, Split
from airlock.errors import Refused
from airlock.mechanisms import Randomness, Stream
from airlock.methods.case import ACCOUNTED, Canaries, Case, Coins, Scores, less_noise
from airlock.nets.frontend import CONSTANT, Framed
from airlock.training import Run

if TYPE_CHECKING:
    from airlock.methods.answers.head import Head

_STATED, _OTHERS = 1000, 400  # records: as stated, and in truth
_COSINE = 0.02  # between the features of the record that differs and those of the others
_REGULARISATION = 1e-3
CANARY_REGULARISATION = 0.2  # times the number of canaries: each is then held back by itself alone, a little
_STATED_PER_CANARY = 100
_CLASSES = ("0", "1")
FACTS = Facts("court", (2,), _CLASSES, _STATED, 1, "made up for the court")
PAIR = f"{_OTHERS} records, with and without one of the other side's class that is nearly orthogonal to all of them"
STATISTICS = ("the projection on the difference of both heads", "the squared size of the head")
WHAT = "one release on {count:,} canaries with features of their own, each in or out"
STATISTIC = "the released head on the canary's own features, towards its label"


def config_for(epsilon: float, delta: float, regularisation: float = _REGULARISATION) -> ReleaseConfig:
    """The record itself as features."""
    return from_table(
        {
            "channel": "answers",
            "method": "head",
            "data": "court",
            "epsilon": epsilon,
            "delta": delta,
            "split": {"test": 0.0, "holdout": 0.0},
            "device": "cpu",
            "settings": {"features": "pixels", "regularisation": regularisation},
        }
    )


def neighbours() -> tuple[Records, Records]:
    """With and without the record; the one that differs comes last."""
    i = np.arange(_OTHERS)
    y = i % 2
    cosine = np.where(y == 1, _COSINE, -_COSINE) * (1 + CONSTANT**2) - CONSTANT**2  # before the constant is put in
    others = np.stack([cosine, np.where(i % 4 < 2, 1.0, -1.0) * np.sqrt(1 - cosine**2)], 1)
    both = Records(np.concatenate([others, [[1.0, 0.0]]]).astype(np.float32), np.append(y, 0).astype(np.int64))
    return both, both.take(np.arange(_OTHERS))


def of_head(channel: Head) -> Case:
    """The real release, solved and with noise; the claim is the ε of the event that was executed."""
    plan, here = channel.plan(), Run()
    noise = float(plan.details["noise_multiplier"])
    net = channel.ready()
    sides = dict(zip((True, False), neighbours(), strict=True))
    both, others = (channel.solve(net, sides[known], noise, here).numpy() for known in (True, False))
    toward = (both - others) / np.linalg.norm(both - others)

    def run(with_record: bool, count: int, stream: Stream) -> Scores:
        head, scores = channel.solve(net, sides[with_record], noise, here), np.empty((count, 2))
        for i in range(count):
            executed = channel.perturb(net, head, noise, stream.child(i))
            if i == 0 and to_json(executed) != to_json(plan.guarantee.events):
                raise Refused(
                    "the executed event to equal the claimed one", "a difference", "Another mechanism would be tried."
                )
            found = net.head.weight.detach().double().numpy() - others
            scores[i] = (found * toward).sum(), (found**2).sum()
        return scores

    reach = float(np.linalg.norm(both - others)) / channel.objective(noise).sensitivity()
    return Case.of_proven(plan.guarantee, PAIR, STATISTICS, run, reach)


def canary_facts(count: int) -> Facts:
    """One coordinate a canary; the number of records is stated, as everywhere, not counted."""
    return Facts("court", (count,), _CLASSES, _STATED_PER_CANARY * count, 1, "made up for the court")


def canaries_of(channel: Head, count: int) -> Canaries:
    """The whole release; a canary's features are its own coordinate and the constant, and labels alternate."""
    every = Records(np.eye(count, dtype=np.float32), np.arange(count) % 2)
    plan = channel.plan()

    def run(coins: Coins, stream: Stream) -> Scores:
        nobody = every.take(np.arange(0))
        split = Split(channel.facts, every.take(np.flatnonzero(coins)), nobody, every.take(np.arange(1)), nobody)
        net = channel.release(split, Randomness(0, stream), Run()).network.net
        assert isinstance(net, Framed)
        weight = net.head.weight.double().numpy()[:, :count]
        return np.asarray(np.where(every.y == 0, 1.0, -1.0) * (weight[0] - weight[1]))

    claim = Claim(plan.guarantee.epsilon, plan.guarantee.delta, ACCOUNTED)
    family = less_noise(plan.guarantee.events, claim.delta, _alone(channel, every))
    return Canaries(claim, count, WHAT.format(count=count), STATISTIC, run, family)


def _alone(channel: Head, every: Records) -> float:
    """How far a canary moves the head along its own features, as a share of what is accounted for."""
    noise = float(channel.plan().details["noise_multiplier"])
    net, half = channel.ready(), np.arange(len(every) // 2)
    with_it, without = (channel.solve(net, every.take(own), noise, Run()).numpy() for own in (half, half[1:]))
    return float(np.linalg.norm((with_it - without)[:, 0])) / channel.objective(noise).sensitivity()
