"""RMIA (Zarifzadeh et al. 2024): does the model favour this record over records of the population?

In: p_y, the probability of the true class, by the target and by shadow models, on the records and on a population.
Out: one score per record: the share of the population z with LR(x, z) = [p(x|θ)/p(x)] / [p(z|θ)/p(z)] ≥ γ.

p(x) averages over reference models: online, half the mean of those trained with x and half that of those without;
offline, from those without alone, as ½((1 + a) p_out + (1 − a)), an estimate of how much training on x would raise it
(the paper's linear approximation; a = 0 assumes p_in = 1, a = 1 assumes p_in = p_out). p(z) is computed in the same
way.

γ and a are settings; neither they nor a threshold may be chosen on the records that are measured. The population must
be disjoint from those records and from the target's training set.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from airlock.auditing.attacks.shadows import Shadows, halves
from airlock.auditing.attacks.signals import Mask, as_scores, probability_of
from airlock.auditing.bounds import Floats
from airlock.auditing.result import Scores
from airlock.errors import ConfigError, DataError

GAMMA, A = 1.0, 0.3
_LEAST = 1e-30


def at_large(shadows: Floats, inside: Mask, a: float | None) -> Floats:
    """p(x) of every record from (models, records) probabilities; online where a is None.

    A record that no model was trained on has no p_in and needs the offline rule.
    """
    if a is not None and not 0 <= a <= 1:
        raise ConfigError("a of RMIA in [0, 1]", str(a))
    out = _mean(shadows, ~inside, "without")
    if a is None:
        return (_mean(shadows, inside, "with") + out) / 2
    return ((1 + a) * out + (1 - a)) / 2


def pairwise(ratios: Floats, population: Floats, gamma: float = GAMMA) -> Floats:
    """The share of the population with ratio_x ≥ γ · ratio_z, for every x; by sorting rather than pair by pair."""
    if gamma <= 0 or not len(population):
        raise ConfigError("a positive γ and at least one record of the population", f"{gamma} and {len(population)}")
    return np.searchsorted(np.sort(gamma * population), ratios, side="right") / len(population)


def rmia(
    kind: Literal["online", "offline"],
    target: Floats,
    member: Mask,
    shadows: Shadows,
    population: Shadows,
    population_target: Floats,
    gamma: float = GAMMA,
    a: float = A,
) -> Scores:
    """RMIA, repeated with each half of the shadow models to measure stability.

    Args:
        kind: Whether shadow models with the record are used.
        target: The attacked model's logits on the shadows' pool.
        member: Which records were in the attacked model's training set.
        shadows: Models on that pool.
        population: The same models on the population; none of its records need have been trained on.
        population_target: The attacked model's logits on the population.
        gamma: See the module.
        a: See the module.
    """
    own, others = shadows.each(probability_of), population.each(probability_of)
    x, z = probability_of(target, shadows.y), probability_of(population_target, population.y)
    rule = None if kind == "online" else a
    unseen = kind == "online" and not population.inside.any(0).all()

    def score(models: Mask) -> Floats:
        p_x = at_large(own[models], shadows.inside[models], rule)
        p_z = at_large(others[models], population.inside[models], 1.0 if unseen else rule)
        return pairwise(x / np.maximum(p_x, _LEAST), z / np.maximum(p_z, _LEAST), gamma)

    again = [score(half) for half in halves(len(shadows))]
    found = score(np.ones(len(shadows), bool))
    return as_scores(f"RMIA, {kind}", "black-box", found, member, shadows.y, np.stack(again) if again else None)


def _mean(values: Floats, side: Mask, what: str) -> Floats:
    count = side.sum(0)
    if not count.all():
        raise DataError(
            f"at least one shadow model {what} every record",
            f"none for {int((count == 0).sum())} of {len(count)}",
            do="Train shadow models in a balanced design, or attack offline.",
        )
    return np.asarray(np.where(side, values, 0.0).sum(0) / count)
