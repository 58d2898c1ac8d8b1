"""LiRA (Carlini et al. 2022): does the target's signal look more like models trained with or without the record?

In: a signal of the target and of shadow models on the same records (`signals.scaled_logit`, which is approximately
normal), and which records each shadow model was trained on. Out: one score per record.

The distributions with and without a record come from models other than the attacked one: that the attacker knows which
shadow models contain a record is part of the attack's design and says nothing about the target. Nothing else is fitted:
variance, variant and number of queries are settings. Neither they nor a threshold may be chosen by looking at scores of
the records that are measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from scipy.stats import norm

from airlock.auditing.attacks.shadows import Shadows, halves
from airlock.auditing.attacks.signals import Mask, as_scores, scaled_logit
from airlock.auditing.bounds import Floats
from airlock.auditing.result import Ints, Scores
from airlock.errors import ConfigError, DataError

Variance = Literal["global", "record"]

_LEAST = 1e-12  # a variance of exactly zero would make a tie infinitely informative


def online(target: Floats, shadows: Floats, inside: Mask, variance: Variance = "global") -> Floats:
    """The log-likelihood ratio N(t; μ_in, σ_in²) / N(t; μ_out, σ_out²) of every record, averaged over queries.

    Args:
        target: (records,) or (records, queries).
        shadows: (models, records) or (models, records, queries).
        inside: (models, records): which records each model was trained on.
        variance: "record" estimates one per record; "global" pools the spread around each record's own mean into one
            for all records, which Carlini et al. recommend below 64 models.
    """
    target, shadows = checked(target, shadows, inside)
    sides = [_moments(shadows, side, variance) for side in (inside, ~inside)]
    (mean_in, sd_in), (mean_out, sd_out) = sides
    ratio = np.asarray(norm.logpdf(target, mean_in, sd_in) - norm.logpdf(target, mean_out, sd_out))
    return np.asarray(ratio.mean(1))


def offline(target: Floats, shadows: Floats, inside: Mask, variance: Variance = "global") -> Floats:
    """−log Pr[N(μ_out, σ_out²) > t]: how far the target lies beyond models without the record; averaged over queries.

    It uses no model trained with the record; a higher signal indicates a member. Records are ranked as by the paper's 1
    − Pr[Z > t], without its ties where that rounds to one.
    """
    target, shadows = checked(target, shadows, inside)
    mean, sd = _moments(shadows, ~inside, variance)
    beyond = np.asarray(norm.logsf(target, mean, sd))
    return np.asarray(-beyond.mean(1))


def lira(
    kind: Literal["online", "offline"],
    target: Floats,
    member: Mask,
    shadows: Shadows,
    variance: Variance = "global",
) -> Scores:
    """LiRA with one query per record, repeated with each half of the shadow models to measure stability.

    Args:
        kind: Whether shadow models with the record are used.
        target: The attacked model's logits on the shadows' pool: (records, classes).
        member: Which records were in the attacked model's training set.
        shadows: Models on the same pool.
        variance: See `online`.
    """
    own, signals = scaled_logit(target, shadows.y), shadows.each(scaled_logit)
    return from_signals(kind, own, member, signals, shadows.inside, shadows.y, variance)


def from_signals(
    kind: Literal["online", "offline"],
    target: Floats,
    member: Mask,
    shadows: Floats,
    inside: Mask,
    y: Ints,
    variance: Variance = "global",
) -> Scores:
    """The same from signals; several queries per record go along a last axis."""
    score = {"online": online, "offline": offline}[kind]

    def scored(signals: Floats, mask: Mask) -> Floats:
        return score(target, signals, mask, variance)

    return from_score(f"LiRA, {kind}", scored, member, shadows, inside, y)


def from_score(
    name: str, score: Callable[[Floats, Mask], Floats], member: Mask, shadows: Floats, inside: Mask, y: Ints
) -> Scores:
    """The scores of an attack by shadow models' signals, repeated with each half of the models.

    Args:
        name: Of the attack.
        score: Takes signals of some of the models and which records these were trained on.
        member: Which records were in the attacked model's training set.
        shadows: The signals of all models.
        inside: Which records these were trained on.
        y: The records' labels.
    """
    again = [score(shadows[half], inside[half]) for half in halves(len(inside))]
    return as_scores(name, "black-box", score(shadows, inside), member, y, np.stack(again) if again else None)


def checked(target: Floats, shadows: Floats, inside: Mask) -> tuple[Floats, Floats]:
    """Both arrays with a query axis."""
    target, shadows = np.asarray(target, np.float64), np.asarray(shadows, np.float64)
    if target.ndim == 1:
        target, shadows = target[:, None], shadows[..., None]
    if shadows.shape[1:] != target.shape or inside.shape != shadows.shape[:2]:
        raise DataError(
            "signals of the target and of the shadow models on the same records, and a mask for the latter",
            f"shapes {target.shape}, {shadows.shape} and {inside.shape}",
        )
    return target, shadows


def _moments(shadows: Floats, side: Mask, variance: Variance) -> tuple[Floats, Floats]:
    """Mean and standard deviation over the models of one side: (records, queries); the latter per record or global."""
    weight = side[..., None].astype(np.float64)
    count = weight.sum(0)
    if count.min() < (2 if variance == "record" else 1) or count.sum() <= len(count):
        raise ConfigError(
            "at least two shadow models with and two without every record (one for a global variance)",
            f"{int(count.min())} for some record",
            "A spread cannot be estimated from fewer.",
            "Train more shadow models in a balanced design.",
        )
    mean = (weight * shadows).sum(0) / count
    square = (weight * (shadows - mean) ** 2).sum(0)
    if variance == "record":
        found = square / (count - 1)
    else:
        found = square.sum(0, keepdims=True) / (count - 1).sum(0, keepdims=True)
    return mean, np.sqrt(np.maximum(found, _LEAST))
