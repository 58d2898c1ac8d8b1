"""The case of `answers`/`per-query`: all answers of a budget, asked about the one record that differs.

The records are those of `head`'s case, of which one moves the head by nine tenths of what is accounted for, almost all
of it along its own features: no query shows more of it than the record itself. Both heads are known to the court, so
the best score of logits is their projection on the difference, and of labels their likelihood.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax

from airlock.accounting import Claim
from airlock.config import from_table
from airlock.data import Facts, Split
from airlock.mechanisms import Stream
from airlock.methods.answers import case
from airlock.methods.answers.answerer import HEAD
from airlock.methods.answers.fitted import embed_queries, front_of
from airlock.methods.case import Case, Scores, curve_of, less_noise
from airlock.methods.contract import Secrets
from airlock.methods.interface import ask
from airlock.nets.frontend import Framed
from airlock.training import Run
from airlock.training.convex import LogisticHead

if TYPE_CHECKING:
    from airlock.methods.answers.per_query import PerQuery

Gives = Literal["logits", "label"]
QUERIES: dict[Gives, int] = {"logits": 4, "label": 100}
NAMED = "how many answers name the record's class"
STATISTICS: dict[Gives, tuple[str, ...]] = {
    "logits": ("all answers on the difference of both heads' logits", NAMED),
    "label": ("how much likelier the labels are with the record than without", NAMED),
}
ACCOUNTED = "dp-accounting's bound on the events of all answers together"


def of_answers(method: type[PerQuery], epsilon: float, delta: float, classes: int = 2, gives: Gives = "logits") -> Case:
    """The real heads, the real noise, the whole budget; classes that no record has change nothing but the noise."""
    channel = _channel(method, epsilon, delta, classes, gives)
    plan, net, noise, sides = channel.plan(), channel.ready(), channel.noise(), case.neighbours()
    nobody = sides[0].take(np.arange(0))
    kept = [channel.kept(net, Split(channel.facts, side, nobody, nobody, nobody), noise, Run()) for side in sides]
    interface = channel.interface(net, noise)
    desks = [method.answerer(interface, own) for own in kept]
    query, often = sides[0].x[-1:].astype(np.float32), QUERIES[gives]
    with_it, without = (_logits(net, own, query) for own in kept)
    toward = np.asarray((with_it - without) / np.linalg.norm(with_it - without))
    scale = float(interface.figures["spread"]) / noise.epsilon
    likelier = log_softmax(with_it / scale) - log_softmax(without / scale)

    def run(with_record: bool, count: int, stream: Stream) -> Scores:
        found = ask(desks[0 if with_record else 1], np.repeat(query, often * count, 0), stream)
        along = likelier[found.labels] if found.values is None else found.values @ toward
        return np.stack([np.asarray(each).reshape(count, often).sum(1) for each in (along, found.labels == 0)], 1)

    claim = Claim(plan.guarantee.epsilon, delta, ACCOUNTED)
    pair = f"{case.PAIR}; {often} answers about that record"
    events, rho = plan.guarantee.events, getattr(noise.event, "rho", math.inf)
    if gives == "logits":
        reach = float(np.linalg.norm(with_it - without)) / float(interface.figures["sensitivity"])
    else:  # by the divergence of two labels, over what is accounted for
        reach = math.sqrt(float(softmax(with_it / scale) @ likelier) / rho)
    return Case(claim, pair, STATISTICS[gives], run, curve_of(events, claim.epsilon), less_noise(events, delta, reach))


def _channel(method: type[PerQuery], epsilon: float, delta: float, classes: int, gives: Gives) -> PerQuery:
    """The record itself as features."""
    table: dict[str, Any] = case.config_for(epsilon, delta).model_dump(mode="json", exclude_none=True)
    settings = {"features": "pixels", "regularisation": 1e-3, "queries": QUERIES[gives], "gives": gives}
    names = tuple(map(str, range(classes)))
    facts = Facts("court", (2,), names, case.FACTS.records, 1, case.FACTS.origin)
    return method(from_table(table | {"method": method.method, "settings": settings}), facts)


def _logits(net: Framed, kept: Secrets, query: NDArray[np.float32]) -> Scores:
    """Without noise."""
    weight = torch.from_numpy(np.asarray(kept[HEAD]["weight"]))
    features = embed_queries(front_of(net, torch.device("cpu")), query, LogisticHead(len(weight), 1.0, 1))
    return np.asarray((features @ weight.mT)[0].numpy(), np.float64)
