"""Heads on disjoint records, each with one vote: what `poll` is built on.

A record lies in one shard and moves no other (`data.split`), a head is solved from its own shard alone, and a head has
one vote: one record more or less changes at most one vote on any question. A head needs no certificate and no noise,
because nothing but its vote is ever used, so that it may fit its few records well.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from airlock.config import Positive
from airlock.data import Records
from airlock.data.split import shard
from airlock.methods.answers.answerer import FRONT, INSIDE, Desk, front_arrays
from airlock.methods.answers.fitted import ASSUMPTIONS, Featured, FittedFrontSettings, embed
from airlock.methods.contract import Secrets
from airlock.methods.interface import Interface
from airlock.nets.frontend import Framed
from airlock.training import Run
from airlock.training.convex import LogisticHead, solve

HEADS = "heads"  # file in the vault
FEWEST = 5  # records of a head, on average, that an automatic number of heads keeps to
_TOLERANCE = 0.05
_BLOCK = 100  # questions whose votes are counted at once

Whole = NDArray[np.int64]


class ShardSettings(FittedFrontSettings):
    """Who votes.

    Args:
        heads: K, how many heads vote; by a rule if left out.
        regularisation: λ of a head. It was looked up on digits, where 0.001 has the largest leads.
    """

    heads: Annotated[int, Field(ge=3, le=10**5)] | None = None
    regularisation: Positive = 1e-3


class Sharded(Featured):
    """One head a shard, which all stay in the vault."""

    settings_type: ClassVar[type[FittedFrontSettings]] = ShardSettings
    assumptions: ClassVar[tuple[str, ...]] = (*ASSUMPTIONS, *INSIDE)

    def objective(self, heads: int) -> LogisticHead:
        """Of one head."""
        assert isinstance(self.settings, ShardSettings)
        records = max(1, round(self.records / heads))
        return LogisticHead(len(self.facts.classes), self.settings.regularisation, records, _TOLERANCE)

    def kept(self, net: Framed, records: Records, heads: int, run: Run) -> Secrets:
        """What stays in the vault: one head a shard, each from its own records alone, and the front end."""
        features, labels = embed(net, records, run), torch.from_numpy(np.ascontiguousarray(records.y)).to(run.device)
        objective, found = self.objective(heads), []
        for i, own in enumerate(shard(records, heads, self.config.seed)):
            place = torch.from_numpy(own).to(run.device)
            found.append(fit_head(features[place], labels[place], objective).float().cpu())
            if run.progress:
                run.progress("heads", i + 1, heads)
        return {HEADS: {"weight": np.ascontiguousarray(torch.stack(found).numpy())}, FRONT: front_arrays(net)}


class Council(Desk):
    """Heads that vote."""

    def __init__(self, interface: Interface, kept: Secrets) -> None:
        super().__init__(interface, kept)
        self._heads = torch.from_numpy(kept[HEADS]["weight"]).flatten(0, 1)

    def counts(self, features: Tensor) -> Whole:
        """Votes for every class, (questions, classes); they may not leave as they are."""
        classes, found = len(self.interface.classes), []
        for start in range(0, len(features), _BLOCK):
            block = features[start : start + _BLOCK].float()
            votes = (block @ self._heads.mT).reshape(len(block), -1, classes).argmax(2).numpy()
            found.append((votes[:, :, None] == np.arange(classes)).sum(1))
        return np.concatenate(found)


def fit_head(features: Tensor, labels: Tensor, objective: LogisticHead) -> Tensor:
    """One head from its own records; solved in the space that they span, which is all it can use.

    No guarantee rests on how near it is to the minimiser: its votes are its own shard's, whatever they are.
    """
    if len(labels) == 0:
        return features.new_zeros(objective.classes, features.shape[1])
    if len(labels) >= features.shape[1]:
        return solve([(features, labels)], objective, certify=False)[0]
    basis, inner = torch.linalg.qr(objective.bounded(features).mT)
    head: Tensor = solve([(inner.mT.contiguous(), labels)], objective, certify=False)[0] @ basis.mT
    return head
