"""BaVarIA: LiRA with what all records say about the spread of one (Brännvall 2026, arXiv 2603.11799).

In and out: as for `lira`, signals of the target and of shadow models to one score per record. LiRA estimates a variance
from the few models with a record (or without it), or takes one for all records. BaVarIA does both at once: on either
side, a record's signals are normal with mean μ and variance σ², and over the records these follow a
normal-inverse-gamma law,

    σ² ~ Inverse-Gamma(ν/2, ν s²/2),    μ | σ² ~ N(m, σ²/κ).

Given n signals with mean a and sum of squares Q around it, the posterior is of the same family,

    κ' = κ + n,   m' = (κ m + n a)/κ',   ν' = ν + n,   ν' s'² = ν s² + Q + (κ n/κ')(a − m)²,

so the target's signal follows Student's t with ν' degrees of freedom around m', of scale s' √(1 + 1/κ') (`"student"`,
the paper's BaVarIA-t), or about N(m', s'²(1 + 1/κ')) (`"normal"`, its BaVarIA-n). Many models give LiRA with each
record's own variance; few give nearly the same variance to all; nothing is switched over in between.

The law of the records is fitted to the shadow models' signals on all records, never to the target's answers or to who
was a member. The model is the paper's; how its law is fitted is derived here and may differ from the paper:

* s² is the variance around a record's own mean, pooled over the records: LiRA's global variance, which this is without
  differences between records (ν = ∞).
* ν follows from how much the logarithms of the records' sample variances differ beyond their sampling errors (the
  moments of Smyth 2004, section 6.2).
* m of models without the record is their mean over all records. With it, m is a function of what models without it
  answer: how a model answers about a record that it has seen is mostly a matter of how it would have answered. At each
  record this function is the least-squares line of the twentieth of the records that are nearest in that answer.
* 1/κ is what is left of the squares around m beyond the sampling error of a mean, in units of s², of the same records.

Of several such rules this one was chosen on networks other than those of `docs/results/audit.md`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import digamma, polygamma
from scipy.stats import norm, t

from airlock.auditing.attacks.lira import checked, from_score
from airlock.auditing.attacks.shadows import Shadows
from airlock.auditing.attacks.signals import Mask, scaled_logit
from airlock.auditing.bounds import Floats
from airlock.auditing.result import Scores
from airlock.errors import ConfigError

Predictive = Literal["student", "normal"]

_LEAST = 1e-12  # a variance of exactly zero would make a tie infinitely informative
_MOST = 1e4  # degrees of freedom: by then the records' variances are the same
_TIGHTEST, _LOOSEST = 1e4, 1e-4  # κ
_NEAREST, _SHARE = 50, 0.05  # at least so many records, or this share of all, say what is usual for one

_Law = tuple[Floats, Floats, Floats]  # degrees of freedom, centre and scale for every record


@dataclass(frozen=True)
class _Side:
    """The models with every record, or those without.

    Args:
        count: How many of them there are: (records,).
        mean: Of their signals.
        squares: The sum of squares around it.
    """

    count: Floats
    mean: Floats
    squares: Floats

    @classmethod
    def of(cls, shadows: Floats, side: Mask) -> _Side:
        weight = side.astype(np.float64)
        count = weight.sum(0)
        if count.min() < 1 or count.sum() <= len(count):
            raise ConfigError(
                "a shadow model with and one without every record, and for some record two",
                f"{int(count.min())} for some record",
                "A spread cannot be estimated from fewer.",
                "Train more shadow models in a balanced design.",
            )
        mean = (weight * shadows).sum(0) / count
        return cls(count, mean, (weight * (shadows - mean) ** 2).sum(0))

    def pooled(self) -> float:
        """s²: the variance around a record's own mean."""
        return max(float(self.squares.sum() / (self.count - 1).sum()), _LEAST)

    def alike(self) -> float:
        """ν: how much the records' variances are alike."""
        some = self.count > 1
        free = self.count[some] - 1
        found = np.maximum(self.squares[some] / free, 1e-9 * self.pooled())
        logs = np.log(found) - digamma(free / 2) + np.log(free / 2)
        beyond = float(logs.var() - polygamma(1, free / 2).mean())
        return min(_MOST, 2 * _trigamma_inverse(beyond)) if beyond > 0 else _MOST

    def shrunk(self) -> Floats:
        """Every record's posterior mean of μ where all records have one law."""
        centre, square = self.mean.mean(), self.pooled()
        kappa = _models_worth(square, ((self.mean - centre) ** 2 - square / self.count).mean())
        return np.asarray((kappa * centre + self.count * self.mean) / (kappa + self.count))

    def predicts(self, guide: Floats, centre: Floats) -> _Law:
        """Degrees of freedom, centre and scale of the target's signal for every record.

        Args:
            guide: By which records are alike.
            centre: m of every record.
        """
        square, away = self.pooled(), (self.mean - centre) ** 2
        kappa = _models_worth(square, _near(guide, away - square / self.count, guide))
        known, free = kappa + self.count, self.alike() + self.count
        total = (free - self.count) * square + self.squares + kappa * self.count / known * away
        scale = np.sqrt(total / free * (1 + 1 / known))
        return free, (kappa * centre + self.count * self.mean) / known, scale


def _laws(shadows: Floats, inside: Mask) -> tuple[_Law, _Law]:
    """What the target's signal follows with the record, and without it."""
    one, other = _Side.of(shadows, inside), _Side.of(shadows, ~inside)
    guide = other.shrunk()
    everywhere = np.full(len(guide), other.mean.mean())
    return one.predicts(guide, _near(guide, one.mean, guide)), other.predicts(guide, everywhere)


def online(target: Floats, shadows: Floats, inside: Mask, predictive: Predictive = "student") -> Floats:
    """The log-likelihood ratio of every record under the predictive laws with and without it, averaged over queries.

    Args:
        target: (records,) or (records, queries).
        shadows: (models, records) or (models, records, queries).
        inside: (models, records): which records each model was trained on.
        predictive: See the module.
    """
    target, shadows = checked(target, shadows, inside)
    found: Floats = np.zeros(len(target))
    for query in range(target.shape[1]):
        with_it, without = _laws(shadows[..., query], inside)
        found += _log_density(target[:, query], with_it, predictive)
        found -= _log_density(target[:, query], without, predictive)
    return np.asarray(found / target.shape[1])


def offline(target: Floats, shadows: Floats, inside: Mask, predictive: Predictive = "student") -> Floats:
    """−log Pr[Z > t] for the predictive law Z without the record, averaged over queries; uses no model with it."""
    target, shadows = checked(target, shadows, inside)
    found: Floats = np.zeros(len(target))
    for query in range(target.shape[1]):
        free, centre, scale = _laws(shadows[..., query], inside)[1]
        place = (target[:, query] - centre) / scale
        found -= _log_beyond(place, free) if predictive == "student" else norm.logsf(place)
    return np.asarray(found / target.shape[1])


def bavaria(
    kind: Literal["online", "offline"],
    target: Floats,
    member: Mask,
    shadows: Shadows,
    predictive: Predictive = "student",
) -> Scores:
    """BaVarIA with one query per record, repeated with each half of the shadow models to measure stability.

    Args:
        kind: Whether shadow models with the record are used.
        target: The attacked model's logits on the shadows' pool: (records, classes).
        member: Which records were in the attacked model's training set.
        shadows: Models on the same pool.
        predictive: See the module.
    """
    score = {"online": online, "offline": offline}[kind]
    own, signals = scaled_logit(target, shadows.y), shadows.each(scaled_logit)

    def scored(signals: Floats, inside: Mask) -> Floats:
        return score(own, signals, inside, predictive)

    return from_score(f"BaVarIA, {kind}", scored, member, signals, shadows.inside, shadows.y)


def _models_worth(square: float, between: Floats) -> Floats:
    """κ: how many models a prior mean is worth, from the variance within and between records."""
    return np.clip(square / np.maximum(between, 1e-300), _LOOSEST, _TIGHTEST)


def _near(guide: Floats, values: Floats, at: Floats) -> Floats:
    """The values as a function of the guide: at each point, the least-squares line of the records nearest by rank."""
    order = np.argsort(guide, kind="stable")
    x, y = guide[order] - guide.mean(), values[order] - values.mean()
    width = min(len(x), max(_NEAREST, round(_SHARE * len(x))))
    first = np.clip(np.searchsorted(x, at - guide.mean()) - width // 2, 0, len(x) - width)

    def mean(products: Floats) -> Floats:
        sums = np.concatenate([[0.0], np.cumsum(products)])
        return np.asarray(sums[first + width] - sums[first]) / width

    centre, level = mean(x), mean(y)
    square = mean(x * x) - centre**2
    slope = (mean(x * y) - centre * level) / np.where(square > 1e-9 * (x * x).mean(), square, np.inf)
    return np.asarray(values.mean() + level + slope * (at - guide.mean() - centre))


def _log_density(signal: Floats, law: _Law, predictive: Predictive) -> Floats:
    free, centre, scale = law
    if predictive == "student":
        return np.asarray(t.logpdf(signal, free, centre, scale))
    return np.asarray(norm.logpdf(signal, centre, scale))


def _log_beyond(place: Floats, free: Floats) -> Floats:
    """Log Pr[T > place] for Student's t; where that probability is no float, by the density over the distance."""
    beyond = t.sf(place, free)
    far = t.logpdf(place, free) - np.log(np.maximum(place, 1.0))
    return np.where(beyond > 0, np.log(np.maximum(beyond, 1e-320)), far)


def _trigamma_inverse(value: float) -> float:
    """The x with trigamma(x) = value, by Newton's method on its reciprocal, which is convex (Smyth 2004, appendix)."""
    if value > 1e7:
        return 1 / math.sqrt(value)
    if value < 1e-6:
        return 1 / value
    x = 0.5 + 1 / value
    for _ in range(50):
        now = float(polygamma(1, x))
        step = now * (1 - now / value) / float(polygamma(2, x))
        x += step
        if -step < 1e-10 * x:
            break
    return x
