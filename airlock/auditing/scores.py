"""What an attack says about single records, before anything is made of it.

Every attack gives one value of this kind, and `metrics.measure` turns any of them into an `AttackResult`: an attack
never chooses a threshold on the records that it is measured with. The values belong into the vault; only what `measure`
makes of them may stand on a card.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from airlock.auditing.bounds import Floats
from airlock.auditing.result import View

Ints = NDArray[np.integer]


@dataclass(frozen=True)
class Scores:
    """One attack's scores of records that are known to be in or out; the higher, the more it takes one for a member.

    Args:
        name: Short name, as in "LiRA, online".
        question: What the attacker tries to find out, in one sentence for a reader who is no engineer.
        view: What the attacker has: "white-box", "black-box", "labels", or "interface" for a noisy one with a budget.
        members: Scores of records of the training set.
        others: Scores of records that were not in it.
        member_classes: The labels of the first.
        other_classes: The labels of the second.
        member_repeats: The same attack made again with other seeds: (seeds, members). None if it knows no chance.
        other_repeats: (seeds, others).
    """

    name: str
    question: str
    view: View
    members: Floats
    others: Floats
    member_classes: Ints
    other_classes: Ints
    member_repeats: Floats | None = None
    other_repeats: Floats | None = None
