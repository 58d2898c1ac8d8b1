"""Run the attacks that fit what leaves, on equal numbers of members and non-members.

How many records are used is a public figure: it follows from the public number of records and the fractions of the
split, never from the real sizes.
"""

from __future__ import annotations

import math

import numpy as np

from airlock.audit.attacks import loss_threshold
from airlock.audit.metrics import measure
from airlock.audit.result import Audit
from airlock.channels import Release
from airlock.channels.contract import Secrets
from airlock.config import SplitConfig
from airlock.data import Records, Split
from airlock.training import losses

_MOST, _FEWEST = 10_000, 50
_DEVIATIONS = 3.0  # below the expected size: real sizes vary around it, and the figure must not depend on them

NOT_TESTED = (
    "Attacks with shadow models (LiRA, RMIA), which find more than a threshold on the loss.",
    "Attacks on what the model says about groups or attributes rather than about one person's presence.",
    "Whether the training data can be reconstructed from the weights.",
)


def run(release: Release, split: Split, fractions: SplitConfig, seed: int) -> tuple[Audit, Secrets]:
    """Attack the release.

    Returns:
        The audit, and the single records' scores, which belong into the vault.
    """
    expected = min(split.facts.expected("private", fractions), split.facts.expected("holdout", fractions))
    count = min(int(expected - _DEVIATIONS * math.sqrt(expected)), _MOST)
    if count < _FEWEST or count > min(len(split.private), len(split.holdout)):
        missing = "Membership inference: the holdout is too small for it, or smaller than the stated number of records."
        return Audit((), (missing, *NOT_TESTED)), {}
    members, others = _draw(split.private, count, seed), _draw(split.holdout, count, seed)
    member_losses, other_losses = (losses(release.artefact.net, part) for part in (members, others))
    found = loss_threshold(member_losses, other_losses, members.y, others.y)
    result = measure(found, release.guarantee.delta, classes=split.facts.classes)
    scores = {"member_losses": member_losses, "non_member_losses": other_losses}
    return Audit((result,), NOT_TESTED), {"attack-scores": scores}


def _draw(records: Records, count: int, seed: int) -> Records:
    return records.take(np.random.default_rng(seed).permutation(len(records))[:count])
