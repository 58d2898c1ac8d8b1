"""What a method brings to court: two neighbouring data sets, a way to run the real mechanism on both, and the claim.

The court (`auditing.audit_game`) knows no channel, so everything that is particular to one is in its cases: the data
sets are public and made up, small enough that a run takes a millisecond, and chosen to be hard to hide: the one record
that differs is as large as it may be, the others are as quiet as they can be.

A `Case` is many short runs with one record more or less. `Canaries` are one whole release with many records more or
less, each by a coin of its own: for training that is too dear to repeat, and for what only shows over all its steps.

A claim that stands says little without what would have fallen. So a case may bring `LessNoise`: what accounting says
about the same mechanism with its noise divided by a number, and how well it could then be told on which side it ran.

Where a whole configuration is tried, the court looks at what its releases let out: at a `Disclosed`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import dp_accounting as dpa
import numpy as np
from numpy.typing import NDArray

from airlock.accounting import Claim, Guarantee
from airlock.accounting.epsilon import LARGEST, compute_epsilon, deltas
from airlock.accounting.pld import LossAccountant
from airlock.data import Records
from airlock.mechanisms import Randomness, Stream

Arrays = Mapping[str, NDArray[Any]]
Secrets = Mapping[str, Arrays]  # what stays in the vault, by file name
Scores = NDArray[np.float64]  # one row a run, one column a statistic
Runs = Callable[[bool, int, Stream], Scores]
Coins = NDArray[np.bool_]  # which canaries are in the data set

ACCOUNTED = "dp-accounting's bound on the events that the runs execute"
_SHARES = (0.0, 0.25, 0.5, 0.75)  # of the claimed ε: where else the curve of a proof is tested
_INTERVAL = 2e-3  # between privacy losses, over the ε that is claimed; a power wants no finer one
_FINEST, _COARSEST = 1e-3, 50.0  # ε for which the interval still follows it


@dataclass(frozen=True)
class Alternative:
    """One mechanism that a claim would be false of: its ε, and the ROC curve of the best test of two data sets.

    Args:
        epsilon: At the δ of the claim.
        one: How often each of some events, each of them within the next, happens with the record.
        other: How often without it.
    """

    epsilon: float
    one: NDArray[np.float64]
    other: NDArray[np.float64]

    @property
    def chances(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Of the events, with the record and without it."""
        return self.one, self.other


@dataclass(frozen=True)
class LessNoise:
    """The mechanism of a case with its noise divided by a number, for every such number.

    The best test goes by the privacy loss, whose distribution accounting has: P[loss ≥ t] with the record, and without
    it the same with each loss l weighted by e^−l. Of a zCDP event no more than a bound is known; Gaussian noise that
    just meets it stands in.

    Args:
        event: What the claim is computed from: Gaussian or Laplace noise or zCDP, sampled and composed or not.
        delta: Of the claim.
        reach: How far the two data sets of the case are apart, as a share of the sensitivity that is accounted for.
    """

    event: dpa.DpEvent
    delta: float
    reach: float = 1.0

    def at(self, divisor: float) -> Alternative:
        """With the noise divided by this."""
        accounted = self._losses(divisor)
        told = accounted if self.reach == 1.0 else self._losses(divisor * self.reach)
        mass = told._pld._pmf_remove.to_dense_pmf()
        losses = (mass._lower_loss + np.arange(mass.size)) * mass._discretization
        with_it, without = mass._probs, mass._probs * np.exp(-losses)
        one, other = (np.cumsum(side[::-1]) for side in (with_it, without))
        one += mass._infinity_mass
        epsilon = min(float(accounted.get_epsilon(self.delta)), LARGEST)
        return Alternative(epsilon, np.clip(one, 0, 1), np.clip(other, 0, 1))

    def in_words(self, divisor: float) -> str:
        """Which mechanism that is."""
        if _exact(self.event):
            return f"which this mechanism has with its noise divided by {divisor:.2f}"
        return f"which Gaussian noise that just meets the claimed zCDP has when it is divided by {divisor:.2f}"

    def _losses(self, divisor: float) -> LossAccountant:
        claimed = min(max(compute_epsilon(self.event, self.delta).epsilon, _FINEST), _COARSEST)
        accountant = LossAccountant(_INTERVAL * claimed * divisor)
        accountant.compose(scaled(self.event, 1.0 / divisor))
        return accountant


@dataclass(frozen=True)
class Case:
    """One claim and what it takes to test it.

    Args:
        claim: The ε and δ that are stated of exactly what `run` runs, and by which theorem.
        pair: The two data sets, in one sentence.
        statistics: What the columns of the scores are, in words.
        run: Whether with the record, how many independent runs, and their randomness; gives the scores.
        curve: Other (ε, δ) that the same theorem claims of the same runs.
        family: What the mechanism would be with less noise; None where that is not known.
    """

    claim: Claim
    pair: str
    statistics: tuple[str, ...]
    run: Runs
    curve: tuple[tuple[float, float], ...] = ()
    family: LessNoise | None = None

    @classmethod
    def of_proven(
        cls, guarantee: Guarantee, pair: str, statistics: tuple[str, ...], run: Runs, reach: float = 1.0
    ) -> Case:
        """The case of a promise that is proven: claim, curve and family follow from its events.

        Args:
            guarantee: That of the plan whose mechanism `run` runs.
            pair: As above.
            statistics: As above.
            run: As above.
            reach: How far the two data sets are apart, as a share of the sensitivity that is accounted for.
        """
        claim, events = Claim(guarantee.epsilon, guarantee.delta, ACCOUNTED), guarantee.events
        return cls(
            claim, pair, statistics, run, curve_of(events, claim.epsilon), less_noise(events, claim.delta, reach)
        )

    @property
    def points(self) -> tuple[tuple[float, float], ...]:
        """Everything that is claimed; the claim itself first."""
        return ((self.claim.epsilon, self.claim.delta), *self.curve)


@dataclass(frozen=True)
class Canaries:
    """One claim and records of which a coin decides whether they are in the data set.

    Args:
        claim: The ε and δ that are stated of exactly what `run` runs, under add-remove, and by which theorem.
        count: How many canaries there are.
        what: The canaries and the run, in one sentence.
        statistic: What a score is, in words; computed from what is accounted for, and from nothing else.
        run: The coins, which nothing but the data set may depend on, and the randomness of the one run; gives a score a
            canary, high for one that seems to be in.
        family: What the mechanism would be with less noise; None where that is not known.
    """

    claim: Claim
    count: int
    what: str
    statistic: str
    run: Callable[[Coins, Stream], Scores]
    family: LessNoise | None = None


@dataclass(frozen=True)
class Disclosed:
    """What the court looks at of one release.

    Args:
        leaves: All that leaves as arrays, or what all of it is computed from without another look at private records.
        executed: What it cost.
        lasting: Whether one release can be looked at any number of times, each time with noise of its own.
    """

    lasting: ClassVar[bool] = False

    leaves: Arrays
    executed: dpa.DpEvent

    def observe(self, record: Records, stream: Stream) -> Arrays:
        """What somebody sees who is after this record.

        Args:
            record: The one that is in the data set or not.
            stream: The randomness of what is drawn only when somebody looks.
        """
        return self.leaves


Disclosing = Callable[[Randomness], Disclosed]


def curve_of(event: dpa.DpEvent, epsilon: float) -> tuple[tuple[float, float], ...]:
    """Further points of the curve that accounting for the event claims, at and below its ε.

    Noise that is too small shows at a small ε within hundreds of runs, at a small δ within many thousands.
    """
    epsilons = [share * epsilon for share in _SHARES]
    return tuple(zip(epsilons, deltas(event, epsilons), strict=True))


def less_noise(event: dpa.DpEvent, delta: float, reach: float = 1.0) -> LessNoise | None:
    """The family of an event whose noise can be scaled; None for any other."""
    try:
        scaled(event, 1.0)
    except ValueError:
        return None
    return LessNoise(event, delta, reach)


def scaled(event: dpa.DpEvent, factor: float) -> dpa.DpEvent:
    """The same with all noise times the factor; of zCDP with Gaussian noise in its place.

    Raises:
        ValueError: Its noise is not known.
    """
    if isinstance(event, dpa.GaussianDpEvent | dpa.LaplaceDpEvent):
        return type(event)(event.noise_multiplier * factor)
    if isinstance(event, dpa.ZCDpEvent) and event.rho > 0 and not event.xi:
        return dpa.GaussianDpEvent(factor / math.sqrt(2.0 * event.rho))
    if isinstance(event, dpa.PoissonSampledDpEvent):
        return dpa.PoissonSampledDpEvent(event.sampling_probability, scaled(event.event, factor))
    if isinstance(event, dpa.SelfComposedDpEvent):
        return dpa.SelfComposedDpEvent(scaled(event.event, factor), event.count)
    if isinstance(event, dpa.ComposedDpEvent):
        return dpa.ComposedDpEvent([scaled(one, factor) for one in event.events])
    raise ValueError(f"the noise of {type(event).__name__} is not known")


def _exact(event: dpa.DpEvent) -> bool:
    inner = [*getattr(event, "events", ()), *filter(None, [getattr(event, "event", None)])]
    return not isinstance(event, dpa.ZCDpEvent) and all(_exact(one) for one in inner)
