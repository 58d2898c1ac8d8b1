"""One figure of an attack that ε pays for: a noisy AUC over slots, as it may stand on a card.

In: scores of the kept records of both sides, and an ε. Out: a `PaidAttack`; the guarantee is `paid_auc`'s.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field

from airlock import accounting, mechanisms
from airlock.auditing.bounds import Floats
from airlock.auditing.result import QUESTION, Some, View
from airlock.config import Frozen, Proportion

if TYPE_CHECKING:
    import dp_accounting as dpa

    from airlock.mechanisms import GridNoise, Stream

CONFIDENCE = 0.95

VIEWS: Mapping[str, View] = {"loss threshold": "black-box", "gradient norm": "white-box"}
ATTACKS = tuple(VIEWS)


class PaidAttack(Frozen):
    """One attack whose figure is noisy and paid for: the AUC as it may leave; all other figures here are public.

    Args:
        name: Short name.
        question: What the attacker tries to find out.
        score: The name of the score.
        view: What the attacker has.
        value: The noisy score, clipped to [0, 1].
        low: Lower end of the 95% interval, which covers both sampling error and noise.
        high: Upper end.
        chance: What pure guessing scores.
        members: Slots for records (people, where these are the unit) of the private part: a public figure.
        non_members: Slots for those of the holdout: a public figure.
        epsilon: What the figure costs each of them.
    """

    name: str
    question: str
    score: str
    view: View
    value: Proportion
    low: Proportion
    high: Proportion
    chance: Proportion
    members: Some
    non_members: Some
    epsilon: Annotated[float, Field(gt=0)]

    def beats_chance(self, tries: int = 1) -> bool:
        """Whether its interval lies above chance, as one of so many tries; from figures of the card alone."""
        confidence = 1.0 - (1.0 - CONFIDENCE) / tries
        noise = _noise(self.members, self.non_members, self.epsilon)
        return _interval(self.value, self.members, self.non_members, noise, confidence)[0] > self.chance

    @classmethod
    def of_auc(cls, name: str, value: float, ends: tuple[float, float], m: int, n: int, epsilon: float) -> PaidAttack:
        """A membership attack with an AUC over m slots for members and n for others."""
        return cls(
            name=name,
            question=QUESTION,
            score="AUC",
            view=VIEWS.get(name, "black-box"),
            value=value,
            low=ends[0],
            high=ends[1],
            chance=0.5,
            members=m,
            non_members=n,
            epsilon=epsilon,
        )


def attack_event(epsilon: float, attacks: int) -> dpa.DpEvent:
    """What the AUCs of this many attacks cost, at ε each: the private part, and likewise the holdout."""
    return accounting.repeat(accounting.pure(epsilon), attacks)


def events(epsilon: float, runs: int, attacks: int = len(ATTACKS)) -> dpa.DpEvent:
    """What the figures of all runs cost: the private part in addition to the method, and the holdout."""
    return accounting.repeat(attack_event(epsilon, attacks), runs)


def paid_auc(name: str, members: Floats, others: Floats, m: int, n: int, epsilon: float, stream: Stream) -> PaidAttack:
    """The AUC over m slots for members and n for others, with Laplace noise on a grid.

    Guarantee: ε-DP under add-remove for every record of the private part and for every record of the holdout.

    Proof. A(D, H) is the mean over all m · n pairs of slots of whether the member's slot ranks above the other's: 1 or
    0 by their scores, one half for ties and wherever a slot is empty. The slots of one side hold the kept records of
    one part. (1) By the argument of `keep_people`, adding or removing one private record changes the content of at most
    one slot, and a score depends only on the release, which is conditioned on, and on its own record. So only the n
    pairs of that slot change, each by at most 1: A changes by at most n/(m n) = 1/m. The same record is not in the
    holdout.
    (2) Likewise one record of the holdout changes A by at most 1/n. The noise is scaled to the larger of the two, plus
    the rounding of A to the grid (`GridNoise`). ∎

    Empty slots count one half in all m · n pairs, so with few records the AUC lies closer to chance.

    Args:
        name: Of the attack.
        members: Scores of the kept records of the private part, at most m; higher means more like a member.
        others: Scores of the kept records of the holdout, at most n.
        m: A public figure.
        n: A public figure.
        epsilon: Of this one figure.
        stream: Secret; read once.
    """
    noise = _noise(m, n, epsilon)
    noisy = float(noise.add(np.array([slotted_auc(members, others, m, n)]), stream)[0])
    return PaidAttack.of_auc(name, min(1.0, max(0.0, noisy)), _interval(noisy, m, n, noise), m, n, epsilon)


def slotted_auc(members: Floats, others: Floats, m: int, n: int) -> float:
    """The AUC over all pairs of slots: ties and empty slots count one half; NaN ranks lowest.

    Raises:
        ValueError: There are more records than slots.
    """
    if len(members) > m or len(others) > n:
        raise ValueError("more scores than slots: the sensitivity was computed for a kept number of records")
    mine, theirs = (np.where(np.isnan(side), -np.inf, side) for side in (members, others))
    theirs = np.sort(theirs)
    below, upto = np.searchsorted(theirs, mine, "left"), np.searchsorted(theirs, mine, "right")
    halves = int(below.sum()) + int(upto.sum()) + m * n - len(mine) * len(theirs)  # of a win, over all pairs
    return halves / (2.0 * m * n)


def _noise(m: int, n: int, epsilon: float) -> GridNoise:
    return mechanisms.GridNoise("laplace", max(1.0 / m, 1.0 / n), 1.0 / epsilon)


def _interval(noisy: float, m: int, n: int, noise: GridNoise, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The half-widths for sampling error and for noise, each from its own quantile, added in quadrature.

    The variance of an AUC is at most AUC(1 − AUC)/min(m, n) (van Dantzig 1951), which is largest at one half.
    """
    from scipy.stats import norm

    chance = float(norm.ppf(0.5 + confidence / 2.0)) * 0.5 / math.sqrt(min(m, n))
    added = -math.log(1.0 - confidence) * noise.scale * noise.grid
    reach = math.hypot(chance, added)
    return min(1.0, max(0.0, noisy - reach)), max(0.0, min(1.0, noisy + reach))
