"""Votes of heads on disjoint records: sure answers are free, an unsure one costs a unit and is no answer.

Sub-sample and stability (Thakurta and Smith 2013) with the sparse vector technique, as Bassily, Thakurta and Thakkar
2018 ("Model-agnostic private learning") put them together.

Proof. A record lies in one shard (`data.split`), a head is solved from its own shard alone, and a head has one vote:
one record more or less changes at most one vote on any query. Let n₁ ≥ n₂ be the two largest counts, and

    d = max(0, ⌈(n₁ − n₂)/2⌉ − 1).

(1) One changed vote changes n₁ and n₂ by at most 1 each, so d by at most 1. (2) If d ≥ 1 then n₁ − n₂ ≥ 3, and after
one changed vote the same class still leads by at least 1: if two neighbours have different winners, d = 0 for both.

A session (`AboveThreshold`) answers whether d is above a threshold: by (1) it is ε₀-DP, however many queries get a yes.
A yes gives the winner, a no gives −1 and ends the session. Fix two neighbours D, D' and call a query split if their
winners differ. Let M° be the same mechanism that gives, for a query that is not split, the common winner, and for one
that is, nothing: its answers follow from the sessions' yeses and noes and from functions that are the same for D and
D', so T sessions are T-fold ε₀-DP composed, (ε, δ'') say. Let E be that some split query gets a yes; E can be read off
the answers. Outside E both mechanisms give the same, so for every set S of answers

    P[M(D) ∈ S] ≤ P[M°(D) ∈ S∖E] + P[E] ≤ e^ε P[M°(D') ∈ S∖E] + δ'' + P[E] ≤ e^ε P[M(D') ∈ S] + δ'' + P[E].

By (2) a split query has d = 0, and the threshold is such that in T sessions of at most Q queries each no such query
gets a yes but with probability p (`AboveThreshold.above_zero`), for D and for D'. So M is (ε, δ'' + p), which is the
event `FailureDpEvent(p)` beside T times ε₀. Queries may be chosen by earlier answers: sessions allow it, and p is a
union over noise that is drawn afresh for each.

What was charged, too, follows from the answers: one unit for every −1, and one for a session that is full.

Why −1 and not a noisy winner: at ε₀ of a few hundredths the winner of a close vote would be a coin toss, and its cost
would come off that of all sure answers.
"""

from __future__ import annotations

import dp_accounting as dpa
import numpy as np
from torch import Tensor

from airlock.accounting import Course, FailureDpEvent, calibrate, pure
from airlock.accounting.epsilon import Accountant
from airlock.mechanisms import AboveThreshold, Stream
from airlock.methods.answers.shards import Council, Whole
from airlock.methods.contract import Secrets
from airlock.methods.interface import Answers, Interface

NONE = -1
_SHARE = 0.5  # of δ that sure answers which should not be may use


def course(step: dpa.DpEvent, unsure: int, delta: float, runs: int) -> Course:
    """T sessions, and beside them that a vote which is not sure passes for one; both in every run."""
    return Course(step, unsure, FailureDpEvent(_SHARE * delta / runs), runs, "units")


def rule_for(
    epsilon: float, delta: float, unsure: int, queries: int, runs: int = 1, accountant: Accountant = "auto"
) -> AboveThreshold:
    """The sessions' noise and threshold, by public figures.

    Args:
        epsilon: The target of all T sessions.
        delta: The δ it is stated at.
        unsure: T.
        queries: Q, the most questions of a session.
        runs: How often all of this is done before one result is picked.
        accountant: As in `spend`.
    """
    multiplier = calibrate(
        lambda z: course(pure(1 / z), unsure, delta, runs).events(), epsilon, delta, accountant=accountant
    )
    return AboveThreshold.above_zero(1 / multiplier, unsure, queries, _SHARE * delta / runs)


def distances(counts: Whole) -> tuple[Whole, Whole]:
    """The winner of every query and d, from (queries, classes) counts; of several winners the first."""
    ordered = np.sort(counts, 1)
    gap = ordered[:, -1] - ordered[:, -2]
    return counts.argmax(1), np.maximum(0, -(-gap // 2) - 1)


class Voters(Council):
    """Heads that vote, and the session that is open; one unit a session."""

    def __init__(self, interface: Interface, kept: Secrets) -> None:
        super().__init__(interface, kept)
        figures = interface.figures
        self.rule = AboveThreshold(
            int(figures["threshold"]), float(figures["epsilon_threshold"]), float(figures["epsilon_numbers"])
        )
        self._most, self._used = int(figures["queries"]), 0
        self._level: float | None = None

    @property
    def event(self) -> dpa.DpEvent:
        """Of one session."""
        return self.rule.event

    def tally(self, features: Tensor) -> tuple[Whole, Whole]:
        """The winner and d of queries with these features; neither may leave as it is."""
        return distances(self.counts(features))

    def _decide(self, features: Tensor, units: int, stream: Stream) -> tuple[Answers, int]:
        winners, sure = self.tally(features)
        labels, place = np.full(len(winners), NONE, np.int64), 0
        while place < len(winners):
            if self._level is None:
                self._level, self._used = self.rule.start(stream.child("threshold", place)), 0
            room = sure[place : place + self._most - self._used]
            passed = self.rule.passed(self._level, room, stream.child("numbers", place))
            labels[place : place + passed] = winners[place : place + passed]
            ended = passed < len(room)
            place, self._used = place + passed + ended, self._used + passed + ended
            if ended or self._used == self._most:
                units, self._level = units - 1, None
        return Answers(labels), units
