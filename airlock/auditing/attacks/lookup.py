"""Membership by look-up: are the features of a record, which the attacker can compute, among those that left?

The attacker holds the record, its label and the front end. Without noise it computes the features and checks whether
they are present. Under noise the score is a log-likelihood ratio: one of the released feature vectors with this label
is the record's own, against none is and all come from the population, of which the attacker knows a sample.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from airlock.auditing.bounds import Floats
from airlock.auditing.features.feature_pipeline import FeaturePipeline, Pairs
from airlock.auditing.result import Scores

QUESTION = "Can someone who has a person's record and the front end tell whether its features are among the released?"
Blocks = Iterable[tuple[NDArray[np.floating], NDArray[np.int64]]]
_MANY = 4096


def lookup(pipeline: FeaturePipeline, released: Blocks, members: Pairs, others: Pairs, population: Pairs) -> Scores:
    """Score members and others against everything that left.

    Args:
        pipeline: What the released features went through.
        released: Blocks of features and labels, read once.
        members: Records whose features are among them.
        others: Records whose features are not.
        population: Other records of the same kind, which the attacker knows.
    """
    clean = torch.cat([members.clean, others.clean]).flatten(1).double()
    labels = torch.cat([members.y, others.y])
    found = torch.full((len(clean),), -torch.inf, dtype=torch.float64, device=clean.device)
    for features, y in released:
        theirs = torch.from_numpy(np.ascontiguousarray(features)).to(clean.device).flatten(1).double()
        own = torch.from_numpy(np.ascontiguousarray(y)).to(clean.device)
        for start in range(0, len(theirs), _MANY):
            block = slice(start, start + _MANY)
            if pipeline.sigma:
                ratios = _ratios(clean, labels, theirs[block], own[block], pipeline.sigma)
                usual = _usual(population, theirs[block], own[block], pipeline.sigma)
                found = torch.logaddexp(found, (ratios - usual[None]).logsumexp(1))
            else:
                found = torch.maximum(found, _nearest(clean, labels, theirs[block], own[block]))
    scores: Floats = found.cpu().numpy()
    # No features with this label were released: score such a record below all others.
    scores = np.where(np.isfinite(scores), scores, np.nanmin(np.where(np.isfinite(scores), scores, np.inf)) - 1.0)
    inside, outside = scores[: len(members)], scores[len(members) :]
    name = "likelihood ratio of features" if pipeline.sigma else "look-up of features"
    return Scores(name, QUESTION, "front", inside, outside, members.y.cpu().numpy(), others.y.cpu().numpy())


def _ratios(clean: Tensor, labels: Tensor, theirs: Tensor, own: Tensor, sigma: float) -> Tensor:
    """(records, released): log N(t(x), σ²) over N(0, σ²) at the released features; minus infinity for other labels."""
    ratios = (clean @ theirs.T - clean.square().sum(1)[:, None] / 2) / sigma**2
    return ratios.masked_fill(labels[:, None] != own[None], -torch.inf)


def _usual(population: Pairs, theirs: Tensor, own: Tensor, sigma: float) -> Tensor:
    """The logarithm of the same ratio for a record of the population with this label; 0 where none is known."""
    clean = population.clean.flatten(1).double()
    ratios = _ratios(clean, population.y, theirs, own, sigma)
    count = (population.y[:, None] == own[None]).sum(0)
    return torch.where(count > 0, ratios.logsumexp(0) - count.clamp_min(1).log(), 0.0)


def _nearest(clean: Tensor, labels: Tensor, theirs: Tensor, own: Tensor) -> Tensor:
    """Minus the smallest distance to released features with the record's label."""
    far = torch.cdist(clean, theirs)
    return (-far).masked_fill(labels[:, None] != own[None], -torch.inf).amax(1)
