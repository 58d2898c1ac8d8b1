"""Confidence bounds: exact ones for proportions, DeLong's for the area under a ROC curve."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]


def proportion_interval(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Clopper and Pearson's interval (1934): covers the true proportion with at least this confidence."""
    tail = (1.0 - confidence) / 2.0
    return _lowest(successes, trials, tail), _highest(successes, trials, tail)


def _lowest(successes: int, trials: int, tail: float) -> float:
    from scipy.stats import beta

    return 0.0 if successes == 0 else float(beta.ppf(tail, successes, trials - successes + 1))


def _highest(successes: int, trials: int, tail: float) -> float:
    from scipy.stats import beta

    return 1.0 if successes == trials else float(beta.ppf(1.0 - tail, successes + 1, trials - successes))


def about(successes: Floats, trials: Floats | int, tail: float) -> tuple[Floats, Floats]:
    """Wilson's interval (1927) with this error at either end: a vectorised approximation to Clopper and Pearson's.

    Its coverage is not guaranteed, so it may guide the choice of an event but certifies nothing.
    """
    from scipy.special import ndtri

    square = ndtri(tail) ** 2
    middle, whole = successes + square / 2, trials + square
    spread = np.sqrt(square * (successes * (1.0 - successes / trials) + square / 4))
    return np.clip((middle - spread) / whole, 0.0, 1.0), np.clip((middle + spread) / whole, 0.0, 1.0)


def log_sum_exp(logs: Floats) -> Floats:
    """The logarithm of the sum of exponentials over the last axis, without overflow.

    As SciPy's, whose checks of its input take ten times as long as the sum of a few hundred.
    """
    most = logs.max(axis=-1, keepdims=True)
    most = np.where(np.isfinite(most), most, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.exp(logs - most).sum(axis=-1)) + most[..., 0])


def auc_interval(members: Floats, others: Floats, confidence: float = 0.95) -> tuple[float, float, float]:
    """The AUC with DeLong's interval (1988); ties count one half.

    Returns:
        The AUC and the ends of its interval, within [0, 1].
    """
    from scipy.stats import norm, rankdata

    m, n = len(members), len(others)
    ranks = rankdata(np.concatenate([members, others]))
    place_m = (ranks[:m] - rankdata(members)) / n
    place_n = 1.0 - (ranks[m:] - rankdata(others)) / m
    auc = float(place_m.mean())
    variance = float(place_m.var(ddof=1)) / m + float(place_n.var(ddof=1)) / n
    # If the classes are perfectly separated the sample variance is 0; the null variance keeps the interval from
    # collapsing.
    spread = norm.ppf(0.5 + confidence / 2.0) * math.sqrt(variance if variance > 0 else null_variance(m, n))
    return auc, max(0.0, auc - spread), min(1.0, auc + spread)


def null_variance(members: int, others: int) -> float:
    """The variance of the AUC of an uninformative score (Mann and Whitney 1947)."""
    return (members + others + 1) / (12.0 * members * others)


def epsilon_lower_bound(
    true_positives: int, members: int, false_positives: int, others: int, delta: float, confidence: float = 0.95
) -> float:
    """The largest ε refuted by one fixed test: ln((TPR_low − δ) / FPR_high), each at half the error; 0 if none.

    The test's threshold must have been chosen on records other than these.
    """
    tail = (1.0 - confidence) / 2.0
    low, high = _lowest(true_positives, members, tail), _highest(false_positives, others, tail)
    return max(0.0, math.log((low - delta) / high)) if low > delta else 0.0
