"""The loss-threshold attack (Yeom et al. 2018): a record that the model fits well was probably in the training set."""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import norm

from airlock.audit.bounds import Floats, auc_interval, epsilon_lower_bound, null_variance
from airlock.audit.result import AttackResult

CONFIDENCE = 0.95


def loss_threshold(member_losses: Floats, other_losses: Floats, delta: float) -> AttackResult:
    """Attack with the negative loss as score; a lower loss means "member".

    The AUC uses all records. For the ε bound the even-numbered records choose the threshold and the odd-numbered ones
    are scored, so that no record that shaped the test is counted by it.
    """
    members, others = -np.asarray(member_losses), -np.asarray(other_losses)
    auc, low, high = auc_interval(members, others, CONFIDENCE)
    spread = float(norm.ppf(0.5 + CONFIDENCE / 2.0)) * math.sqrt(null_variance(len(members), len(others)))
    return AttackResult(
        name="loss threshold",
        question="Can someone who holds the model and a person's record tell whether it was in the training set?",
        score="AUC",
        value=auc,
        low=low,
        high=high,
        chance=0.5,
        confidence=CONFIDENCE,
        members=len(members),
        non_members=len(others),
        smallest_effect=min(1.0, 0.5 + spread),
        epsilon_lower_bound=_epsilon(members, others, delta),
    )


def _epsilon(members: Floats, others: Floats, delta: float) -> float:
    threshold = _best_threshold(members[::2], others[::2])
    scored_m, scored_n = members[1::2], others[1::2]
    if not len(scored_m) or not len(scored_n):
        return 0.0
    hits, misses = int((scored_m >= threshold).sum()), int((scored_n >= threshold).sum())
    return epsilon_lower_bound(hits, len(scored_m), misses, len(scored_n), delta, CONFIDENCE)


def _best_threshold(members: Floats, others: Floats) -> float:
    """The threshold with the largest ratio of true to false positive rate, both smoothed by one count."""
    levels = np.unique(np.concatenate([members, others]))
    above_m = len(members) - np.searchsorted(np.sort(members), levels)
    above_n = len(others) - np.searchsorted(np.sort(others), levels)
    ratio = ((above_m + 1) / (len(members) + 2)) / ((above_n + 1) / (len(others) + 2))
    return float(levels[int(ratio.argmax())])
