"""Figures of attacks that are paid for: the AUC of an attack on membership, with noise, from a share of ε.

Only of attacks whose score of a record depends on the release, that record and public data alone, as loss threshold and
gradient norm do. Attacks with shadow models use everybody's records, so one record moves everybody's scores: they stay
in the dossier.
"""

from __future__ import annotations

import math
from typing import Annotated

import dp_accounting as dpa
import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy.stats import norm

from airlock.accounting import pure, repeat
from airlock.config import Frozen
from airlock.mechanisms import GridNoise, Stream

CONFIDENCE = 0.95

Floats = NDArray[np.floating]
Share = Annotated[float, Field(ge=0, le=1)]
Slots = Annotated[int, Field(ge=1, le=10**9)]


class PaidFigure(Frozen):
    """The AUC of one attack as it may leave; the figures beside it are public.

    Args:
        name: Of the attack.
        value: With noise, cut to [0, 1]; one half is chance.
        low: Lower end of the interval of 95%, in which chance in the records and noise are both contained.
        high: Upper end.
        members: Slots for records of the private part: a public figure.
        non_members: Slots for records of the holdout: a public figure.
        epsilon: What the value cost each of them.
    """

    name: str
    value: Share
    low: Share
    high: Share
    members: Slots
    non_members: Slots
    epsilon: Annotated[float, Field(gt=0)]


def attack_event(epsilon: float, attacks: int) -> dpa.DpEvent:
    """What the AUCs of so many attacks cost, at ε each: of the private part, and again of the holdout."""
    return repeat(pure(epsilon), attacks)


def paid_auc(name: str, members: Floats, others: Floats, m: int, n: int, epsilon: float, stream: Stream) -> PaidFigure:
    """The AUC over m slots for members and n for others, with Laplace noise on a grid.

    Guarantee: ε-DP under add-remove for every record of the private part and for every record of the holdout.

    Proof. A(D, H) is the mean over all m · n pairs of slots of the chance to put the member's slot above the other's: 1
    or 0 by their scores, one half for equal scores and wherever a slot is empty. The slots of one side hold the kept
    records of one part. (1) By the argument of `keep` one record more or less in the private part changes what at
    most one slot holds, and its score depends on the release, which is conditioned on, and on its own record alone. So
    only the n pairs of that slot change, each by at most 1: A moves by at most n/(m n) = 1/m. The same record is not in
    the holdout. (2) Likewise one record of the holdout moves A by at most 1/n. Noise is scaled to the larger of both
    and to the rounding of A to the grid (`GridNoise`). ∎

    The AUC is that of m · n pairs with empty slots at one half: where few records are there it lies nearer to chance.

    Args:
        name: Of the attack.
        members: Scores of the kept records of the private part, at most m; the higher, the more like a member.
        others: Scores of the kept records of the holdout, at most n.
        m: A public figure.
        n: A public figure.
        epsilon: Of this one figure.
        stream: Secret; read once.
    """
    noise = _noise(m, n, epsilon)
    noisy = float(noise.add(np.array([slotted_auc(members, others, m, n)]), stream)[0])
    low, high = _interval(noisy, m, n, noise)
    value = min(1.0, max(0.0, noisy))
    return PaidFigure(name=name, value=value, low=low, high=high, members=m, non_members=n, epsilon=epsilon)


def slotted_auc(members: Floats, others: Floats, m: int, n: int) -> float:
    """The AUC over all pairs of slots: ties and slots without a record count one half; a score that is none is lowest.

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
    return GridNoise("laplace", max(1.0 / m, 1.0 / n), 1.0 / epsilon)


def _interval(noisy: float, m: int, n: int, noise: GridNoise) -> tuple[float, float]:
    """Both reaches, of chance and of noise, add up in squares; alone each has its own quantile.

    The variance of an AUC is at most AUC(1 − AUC)/min(m, n) (van Dantzig 1951), which is largest at one half.
    """
    chance = float(norm.ppf(0.5 + CONFIDENCE / 2.0)) * 0.5 / math.sqrt(min(m, n))
    added = -math.log(1.0 - CONFIDENCE) * noise.scale * noise.grid
    reach = math.hypot(chance, added)
    return min(1.0, max(0.0, noisy - reach)), max(0.0, min(1.0, noisy + reach))
