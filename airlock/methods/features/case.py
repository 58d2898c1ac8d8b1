"""The case of `features`/`noised`: one record more, which takes the row of another one on the other side of the ball.

One row leaves. Without the record it is that of a record who is always there; with it, it is the new one's. The secret
key of the rows is one that lets the new record go first, since the guarantee holds whatever the key is: half of all
keys do. The real choice of rows, front end, projection, clipping and noise. Of two records whose numbers point in
opposite directions and are cut down to the ball, every release is one draw from two normal distributions 2R apart, nine
tenths of it or more; the best score is the projection on their difference. Labels are the same: they are not covered.
How many rows there are is a score of its own.
"""

from __future__ import annotations

from itertools import count as numbers
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from airlock.accounting import Claim, to_json
from airlock.config import from_table
from airlock.data import Facts, Public, Records
from airlock.errors import Refused
from airlock.mechanisms import Stream
from airlock.methods.case import Case, Scores, curve_of, less_noise
from airlock.methods.features.rows import draw_rows
from airlock.training import Run
from airlock.training.front_ends.extract import Ordered

if TYPE_CHECKING:
    from airlock.methods.features.noised import Noised

SIDE, NUMBERS, CLIP = 8, 4, 1e-3
PAIR = "one row for a record, or for another one more, whose features lie on the other side of the ball"
STATISTICS = (
    "the rows on the difference of both records' clipped features", "their square length", "the number of rows",
)  # fmt: skip
ACCOUNTED = "the Gaussian mechanism on rows of which one changes, by at most twice the clip norm"
FACTS = Facts("court", (1, SIDE, SIDE), ("0", "1"), 1, 1, "made up for the court")


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
    protect, key = channel.protect(mechanism), _first(both, channel.rows)
    with torch.no_grad():
        ends = mechanism.clip(front(torch.from_numpy(both.x).float() / 255)).double().numpy()
    toward = (ends[0] - ends[1]) / np.linalg.norm(ends[0] - ends[1])
    if to_json(mechanism.event) != to_json(plan.guarantee.events):
        raise Refused(
            "the executed event to equal the claimed one", "a difference", "Another mechanism would be tried."
        )

    def run(with_record: bool, count: int, stream: Stream) -> Scores:
        records, scores = both if with_record else both.take(np.array([1])), np.empty((count, len(STATISTICS)))
        rows = Ordered(records, draw_rows(records, channel.rows, Stream.from_seed(key))).block(slice(None))
        with torch.no_grad():
            features = front(torch.from_numpy(rows.x).float() / 255)
        for i in range(count):
            found = protect(features, rows.y, stream.child(i))[0]
            scores[i] = (found @ toward).sum(), (found**2).sum(), len(found)
        return scores

    claim = Claim(plan.guarantee.epsilon, plan.guarantee.delta, ACCOUNTED)
    events, reach = plan.guarantee.events, float(np.linalg.norm(ends[0] - ends[1])) / (2 * mechanism.clip_norm)
    return Case(claim, PAIR, STATISTICS, run, curve_of(events, claim.epsilon), less_noise(events, claim.delta, reach))


def _opposite(front: nn.Module, records: Records) -> Records:
    """The two records whose numbers point furthest apart, with one label."""
    with torch.no_grad():
        found = front(torch.from_numpy(records.x).float() / 255)
    unit = found / found.norm(dim=1, keepdim=True)
    first, second = divmod(int((unit @ unit.T).argmin()), len(unit))
    return Records(records.x[[first, second]], np.zeros(2, np.int64))


def _first(both: Records, rows: int) -> int:
    """The seed of a key by which the first of both takes the row."""
    return next(seed for seed in numbers() if list(draw_rows(both, rows, Stream.from_seed(seed))) == [0])
