"""Attacks on answers: only through the noisy interface, exactly as a client sees it.

In: an answerer, and records of known membership. Out: an `Audit`, and the scores of single records. An attacker can
query one record repeatedly and average, which reduces the noise; here a few times, and never more often than the whole
budget allows. Where the unit is a person, one attacker asks about all records of a person that take part, and the
budget is that of all of them. All records together take more queries than the budget has, because each person, or
record, stands for a separate attacker; no ledger counts these queries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from airlock.auditing.attacks import LabelSettings, label_only, loss_threshold
from airlock.auditing.attacks.label_only import Kind
from airlock.auditing.attacks.signals import QUESTION_ANSWERS, QUESTION_LABELS, from_probabilities, loss
from airlock.auditing.bounds import Floats
from airlock.auditing.result import Scores
from airlock.data import Records
from airlock.mechanisms import Stream
from airlock.methods.interface import Answerer, as_queries, ask
from airlock.training import Run

ASKED = 8  # times about one record
MOST = 1000  # records of each side
_TOGETHER = 100  # records in one call: whatever depends on the query alone is computed once for all its answers

NO_SHADOWS = "Attacks through the interface with shadow models of the method (LiRA, RMIA), which can find more."
WHOLE_BUDGET = "An attacker who spends the whole budget on one record: each was asked about {times} at most."
NOT_TESTED = (
    "Attacks on what the answers say about groups or attributes rather than about one person's presence.",
    "Whether the training data, or the model, can be reconstructed from the answers.",
)


def records_asked(answerer: Answerer, most: int) -> int:
    """About how many records of one person a client can ask, of at most so many: each takes a unit of the budget."""
    return most if answerer.interface.units is None else min(most, answerer.interface.units)


def times(answerer: Answerer, wanted: int, each: int = 1) -> int:
    """How often a record is queried: for `each` records of a person never more than the budget of the whole release."""
    return wanted if answerer.interface.units is None else min(wanted, answerer.interface.units // each)


def untested(answerer: Answerer, most: int, each: int = 1) -> tuple[str, ...]:
    """What these attacks leave out."""
    often = times(answerer, most, each)
    whole = WHOLE_BUDGET.format(times="once" if often == 1 else f"{often} times")
    spent = answerer.interface.units is not None and often * each >= answerer.interface.units
    return (NO_SHADOWS, *(() if spent else (whole,)), *NOT_TESTED)


def repeated(answerer: Answerer, members: Records, others: Records, stream: Stream, each: int = 1) -> Scores:
    """Query every record a few times: scored by the loss of the mean answer, or by how often its class is named."""
    count = times(answerer, ASKED, each)
    inside, outside = (_score(answerer, side, count, stream.child(i)) for i, side in enumerate((members, others)))
    if answerer.interface.gives == "label":
        return Scores("label only, asked again", QUESTION_LABELS, "interface", inside, outside, members.y, others.y)
    scores = loss_threshold(-inside, -outside, members.y, others.y)
    return replace(scores, name="loss threshold, asked again", question=QUESTION_ANSWERS, view="interface")


def _score(answerer: Answerer, records: Records, count: int, stream: Stream) -> Floats:
    x = as_queries(records)
    found: list[Floats] = [np.zeros(0)]
    for start in range(0, len(x), _TOGETHER):
        part, y = x[start : start + _TOGETHER], records.y[start : start + _TOGETHER]
        answers = ask(answerer, np.repeat(part, count, 0), stream.child(start))
        if answers.values is None:
            found.append((answers.labels.reshape(-1, count) == y[:, None]).mean(1))
            continue
        mean = answers.values.reshape(len(part), count, -1).mean(1)
        found.append(-loss(from_probabilities(mean) if answerer.interface.gives == "probabilities" else mean, y))
    return np.concatenate(found)


def altered(
    answerer: Answerer, members: Records, others: Records, kinds: tuple[Kind, ...], most: int, seed: int,
    stream: Stream, run: Run, each: int = 1,
) -> list[Scores]:  # fmt: skip
    """Label-only attacks: query altered copies of every record, and the record itself."""
    copies = times(answerer, most + 1, each) - 1
    if copies < 1:
        return []
    chosen = [LabelSettings(kind=kind, queries=copies, repeats=1) for kind in kinds]
    answer = _labels(answerer, stream)
    found = [label_only(answer, members, others, one, seed, torch.device("cpu"), run.progress) for one in chosen]
    return [replace(scores, view="interface") for scores in found]


def _labels(answerer: Answerer, stream: Stream) -> Callable[[Tensor], Tensor]:
    calls = iter(range(2**62))

    def answer(x: Tensor) -> Tensor:
        return torch.from_numpy(ask(answerer, x.numpy(), stream.child("labels", next(calls))).labels)

    return answer
