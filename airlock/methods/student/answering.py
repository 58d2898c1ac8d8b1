"""How the answers of K teachers on disjoint shards are released, once; anything computed from them later is free.

The input is, for every teacher and each of Q public queries, how far it moved the public logits, z_k(x) − z_aux(x). A
record lies in one shard and moves no other (`data.split`), so adding or removing it changes one teacher, in all its
answers. Answers can be released in five ways:

    residuals   for each query the mean over teachers of moves that are clipped to norm B, plus N(0, (2Bz/K)²) on every
                class (`ShardMean`): `GaussianDpEvent(z)` per query, Q times
    matrix      the same for all queries at once: the Q × C moves of a teacher are clipped together, to norm B_T, one
                `GaussianDpEvent(z)`; a teacher may say much about few queries
    probabilities  for each query the mean over teachers of their probabilities, plus N(0, 2z²/K²) on every class
                (`ShardProbabilities`): `GaussianDpEvent(z)` per query, Q times
    votes       for each query how many teachers put each class first, plus N(0, 2z²) on every count (`ShardVotes`):
                `GaussianDpEvent(z)` per query, Q times; the largest noisy count is the label
    confident-votes  the same if the largest count plus N(0, z²) reaches a threshold (`SureVotes`): two
                `GaussianDpEvent(z)` per query, whether it does or not; if not, the public teacher's answer stays

B, K, Q and the queries must be public. Where a number is predicted, "logits" are the single output: the first two ways
are the same for it, and the others are about classes. The relation is add-remove. If records are replaced instead, the
new record may lie in another shard, so two teachers change, and z is half of what is stated here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import dp_accounting as dpa
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from airlock.accounting import repeat
from airlock.mechanisms import ShardMean, ShardProbabilities, ShardVotes, Stream, SureVotes

Kind = Literal["residuals", "matrix", "probabilities", "votes", "confident-votes"]
UNBOUNDED: tuple[Kind, ...] = ("probabilities", "votes", "confident-votes")  # they need no bound
Noisy = NDArray[np.float64]
_LEAST = 1e-4  # what a probability that noise took below 0 is set to
_SURE = 20.0  # the logit of a label, in units of the temperature


@dataclass(frozen=True)
class Answering:
    """One release of answers: the figures of the plan, and the mechanism.

    Guarantee: `release` is `event` under add-remove, if row k of `moved` depends on no records but those of shard k.

    Args:
        kind: In which of the five ways.
        teachers: K.
        queries: Q.
        noise_multiplier: z.
        threshold: For "confident-votes", as a share of the teachers.
    """

    kind: Kind
    teachers: int
    queries: int
    noise_multiplier: float
    threshold: float = 0.5

    @property
    def event(self) -> dpa.DpEvent:
        """What one release costs."""
        return self.step if self.kind == "matrix" else repeat(self._gaussian, self._per_query * self.queries)

    @property
    def step(self) -> dpa.DpEvent:
        """What one answer costs; for a matrix, all answers together."""
        return repeat(self._gaussian, self._per_query)

    @property
    def _per_query(self) -> int:
        return 2 if self.kind == "confident-votes" else 1

    @property
    def _gaussian(self) -> dpa.DpEvent:
        """Every kind is made of Gaussian mechanisms with z."""
        return ShardMean(1.0, self.teachers, self.noise_multiplier).event

    @property
    def relative_noise(self) -> float:
        """The standard deviation on one class: over the bound of one query, over the votes, or of a probability."""
        share = self.noise_multiplier / self.teachers
        if self.kind in UNBOUNDED:
            return math.sqrt(2) * share
        return 2 * share * (math.sqrt(self.queries) if self.kind == "matrix" else 1.0)

    def noise(self, bound: float) -> float:
        """The standard deviation on one logit, one probability, or one count of votes."""
        if self.kind == "probabilities":
            return self.relative_noise
        if self.kind in UNBOUNDED:
            return math.sqrt(2) * self.noise_multiplier
        return 2 * bound * self.noise_multiplier / self.teachers

    def release(self, moved: Tensor, public: Tensor, bound: float, stream: Stream) -> Noisy:
        """The noisy mean moves, mean probabilities, or counts of votes (NaN if too few teachers agree): (Q, C).

        Args:
            moved: (K, Q, C).
            public: The public logits that they moved, (Q, C).
            bound: B, or B_T; votes and probabilities do not use it.
            stream: Secret; each query has a child of its own.
        """
        if self.kind == "probabilities":
            rows, average = torch.softmax((public + moved).double(), 2), self.average
            return np.stack([average.release(rows[:, i], stream.child(i)) for i in range(self.queries)])
        if self.kind in UNBOUNDED:
            votes, count = (public + moved).argmax(2), self.counting(public.shape[1])
            return np.stack([count.release(votes[:, i], stream.child(i)) for i in range(self.queries)])
        mean = ShardMean(bound, self.teachers, self.noise_multiplier)
        if self.kind == "matrix":
            return mean.release(moved.flatten(1), stream.child("matrix")).reshape(public.shape)
        return np.stack([mean.release(moved[:, i], stream.child(i)) for i in range(self.queries)])

    @property
    def average(self) -> ShardProbabilities:
        """The mechanism that releases probabilities."""
        return ShardProbabilities(self.teachers, self.noise_multiplier)

    def counting(self, classes: int) -> ShardVotes | SureVotes:
        """The mechanism that releases votes."""
        if self.kind == "votes":
            return ShardVotes(classes, self.noise_multiplier)
        return SureVotes(classes, self.threshold * self.teachers, self.noise_multiplier)


def centred(moves: Tensor) -> Tensor:
    """Moves with mean 0 over the classes, which is the same to a softmax; a single output is a number, and stays."""
    return moves - moves.mean(-1, keepdim=True) if moves.shape[-1] > 1 else moves


def to_logits(
    noisy: Noisy, public: Tensor, answering: Answering, bound: float, temperature: float, shrink: bool
) -> Tensor:
    """What a student learns from, computed from a release and public figures alone: post-processing.

    Moves have mean 0 over the classes (`centred`), so the mean that noise gave them is subtracted. With `shrink` they
    are scaled by the share of their squared size that noise does not explain (the positive part of James and Stein
    1961). A label becomes logits that are almost certain of it at this temperature, probabilities become the logits
    that give them back at it. If too few teachers agreed on a label, the public logits stay.

    Args:
        noisy: From `Answering.release`.
        public: The public logits.
        answering: How it was released.
        bound: As there.
        temperature: τ.
        shrink: Whether to scale.
    """
    found = torch.from_numpy(noisy)
    if answering.kind == "probabilities":
        return found.clamp_min(_LEAST).log().float() * temperature
    if answering.kind in UNBOUNDED:
        labels = torch.nn.functional.one_hot(found.nan_to_num(-torch.inf).argmax(1), found.shape[1]).float()
        return torch.where(found.isnan().any(1, keepdim=True), public.float(), labels * _SURE * temperature)
    found = centred(found)
    if shrink:
        explained = found.shape[0] * max(1, found.shape[1] - 1) * answering.noise(bound) ** 2
        found = found * max(0.0, 1.0 - explained / max(float(found.square().sum()), 1e-300))
    return (public.double() + found).float()
