"""The case of `features`/`noised`: one record, or another one whose numbers lie on the other side of the ball.

The real front end, projection, clipping and noise. Of two records whose numbers point in opposite directions and are
cut down to the ball, every release is one draw from two normal distributions 2R apart, nine tenths of it or more; the
best score is the projection on their difference. Labels are the same: they are not covered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from airlock.accounting import Claim, to_json
from airlock.channels.case import Case, Scores, curve_of
from airlock.config import from_table
from airlock.data import Facts, Public, Records
from airlock.errors import Refused
from airlock.mechanisms import Stream
from airlock.training import Run

if TYPE_CHECKING:
    from airlock.channels.features.noised import Noised

SIDE, NUMBERS, CLIP = 8, 4, 1e-3
PAIR = "one record, or another whose features lie on the other side of the ball"
STATISTICS = ("the row on the difference of both records' clipped features", "its square length")
ACCOUNTED = "the Gaussian mechanism on rows that are at most twice the clip norm apart"
FACTS = Facts("court", (1, SIDE, SIDE), ("0", "1"), 1000, 1, "made up for the court")


def of_rows(method: type[Noised], epsilon: float, delta: float) -> Case:
    """The real release of one row; the claim is the ε of the event that was executed."""
    settings = {"project": NUMBERS, "clip": CLIP, "layers": 1}
    table = {"channel": "features", "method": method.method, "data": "court", "epsilon": epsilon, "delta": delta}
    channel = method(from_table(table | {"settings": settings, "device": "cpu"}), FACTS)
    plan, chance = channel.plan(), np.random.default_rng(0)
    public = Public("court", Records(chance.integers(0, 256, (200, *FACTS.shape), np.uint8), np.arange(200) % 2), 2, "")
    maps = channel.front_end.ready(channel.front_end.drawn(Stream.from_seed(0)), public, 0, Run())
    front, mechanism = channel.passage(maps, public, Run())
    both = _opposite(front, public.records)
    ends = mechanism.clip(both).double().numpy()
    toward = (ends[0] - ends[1]) / np.linalg.norm(ends[0] - ends[1])
    protect, label = channel.protect(mechanism), np.zeros(1, np.int64)
    if to_json(mechanism.event) != to_json(plan.guarantee.events):
        raise Refused(
            "the executed event to equal the claimed one", "a difference", "Another mechanism would be tried."
        )

    def run(with_record: bool, count: int, stream: Stream) -> Scores:
        row, scores = both[:1] if with_record else both[1:], np.empty((count, 2))
        for i in range(count):
            found = protect(row, label, stream.child(i))[0].ravel()
            scores[i] = found @ toward, found @ found
        return scores

    claim = Claim(plan.guarantee.epsilon, plan.guarantee.delta, ACCOUNTED)
    return Case(claim, PAIR, STATISTICS, run, curve_of(plan.guarantee.events, claim.epsilon))


def _opposite(front: nn.Module, records: Records) -> torch.Tensor:
    """The numbers of the two records that point furthest apart."""
    with torch.no_grad():
        found = front(torch.from_numpy(records.x).float() / 255)
    unit = found / found.norm(dim=1, keepdim=True)
    first, second = divmod(int((unit @ unit.T).argmin()), len(unit))
    opposite: torch.Tensor = found[[first, second]]
    return opposite
