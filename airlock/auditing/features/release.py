"""Attacks on a set of features, using what left and the front end kept in the vault."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from airlock.auditing.features.attack import QUICK, CandidatePool, FeatureAttackSettings, attack
from airlock.auditing.features.feature_pipeline import FeaturePipeline
from airlock.auditing.result import Audit
from airlock.config import SplitConfig
from airlock.data import Split, at_most
from airlock.data.feature_files import blocks
from airlock.errors import NetError
from airlock.methods.artefact import FeatureSet, KeptFrontEnd
from airlock.methods.contract import Secrets
from airlock.nets.prefix import FRONTS, layer_count, open_prefix
from airlock.training import Run

_DECOY_LAYERS = 6


def attack_features(
    features: FeatureSet,
    kept: KeptFrontEnd,
    delta: float,
    split: Split,
    fractions: SplitConfig,
    seed: int,
    settings: FeatureAttackSettings | None = None,
    run: Run | None = None,
    made_with: int | None = None,
) -> tuple[Audit, Secrets]:
    """Attack features as their recipient could, including a recipient who has learnt the front end.

    Args:
        features: What leaves.
        kept: Its front end; opened from the vault if `features` does not hold it.
        delta: At which an ε is stated.
        split: The records that they came from.
        fractions: Of the split.
        seed: Of the attacks.
        settings: How hard to attack; by default, what takes seconds.
        run: Device and progress.
        made_with: The seed of the release, if it differs.

    Returns:
        The audit, and what belongs in the vault.
    """
    run, own_seed = run or Run(), seed if made_with is None else made_with
    split = replace(split, private=at_most(split.private, split.facts.records_per_person, own_seed))  # what left
    front = features.front if features.front is not None else kept.reopened(split.facts)
    pipeline = FeaturePipeline(front, features.clip, features.manifest.noise or 0.0)
    maps = len(features.manifest.shape) == 3
    pool = _pool(kept, split, own_seed, run) if maps else None
    return attack(
        pipeline, _left(features), split, fractions, delta, seed, settings or QUICK, run, pool,
        labelled=features.labels == "clear",
    )  # fmt: skip


def _left(features: FeatureSet) -> Iterator[tuple[NDArray[np.floating[Any]], NDArray[np.int64]]]:
    for part in blocks(features.folder, features.manifest):
        yield np.asarray(part.x, np.float32), part.y


def _pool(kept: KeptFrontEnd, split: Split, seed: int, run: Run) -> CandidatePool | None:
    """The networks that the front end was drawn from, and other public ones; None where its inner layers were cut.

    A front end with narrower inner layers computes different maps from the whole net, so matching them channel by
    channel is meaningless.
    """
    if kept.narrowed:
        return None
    candidates: dict[str, nn.Module] = dict(kept.candidates(split, seed, run))
    with torch.no_grad():
        size = candidates[kept.name](torch.zeros(1, *split.facts.shape, device=run.device)).shape[2:]
    for name in FRONTS:
        for layer in range(1, min(_DECOY_LAYERS, layer_count(name) or 0) + 1):
            try:
                other = open_prefix(name, layer, split.facts.shape)
            except NetError:  # of another kind of record, or not installed
                continue
            same = (name, layer) == (kept.name, kept.layers)
            if not same and tuple(other.shape[1:]) == tuple(size) and name not in kept.pool:
                candidates[f"{name}, {layer}"] = other
    return CandidatePool(candidates, kept.name, kept.channels)
