"""A method's case for the court: two neighbouring data sets, a way to run the real mechanism on both, and the claim.

The court (`auditing.audit_game`) knows no channel, so everything specific to one is in its cases. The data sets are
public and synthetic, small enough that a run takes a millisecond, and chosen as a worst case: the record that differs
has the largest influence allowed, the others as little as possible.

A `Case` is many short runs with and without one record. `Canaries` are one whole release with many records, each
included by its own coin flip: for training that is too expensive to repeat, and for faults that only show over all of
its steps. Where the claim is about people, a canary is a person with several records, and one coin decides about all.

That a claim stands says little unless it is known which claims would have been refuted. So a case may provide
`LessNoise`: what accounting says about the same mechanism with its noise divided by a number, and how well the two data
sets could then be distinguished.

Where a whole configuration is tested, the court observes what its releases disclose: a `Disclosed`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from airlock import accounting
from airlock.accounting.terms import Claim
from airlock.data import Facts, Records, Split
from airlock.mechanisms import Randomness, Stream

if TYPE_CHECKING:
    import dp_accounting as dpa

Arrays = Mapping[str, NDArray[Any]]
Secrets = Mapping[str, Arrays]  # what stays in the vault, by file name
Scores = NDArray[np.float64]  # one row per run, one column per statistic
Runs = Callable[[bool, int, Stream], Scores]
Coins = NDArray[np.bool_]  # which canaries are in the data set

ACCOUNTED = "dp-accounting's bound on the events that the runs execute"
CANARY_VISITS = 8  # records of a canary that is a person
_SHARES = (0.0, 0.25, 0.5, 0.75)  # of the claimed ε: further points at which a proof's privacy curve is tested
_INTERVAL = 2e-3  # between privacy losses, relative to the claimed ε; fine enough to compute power
_FINEST, _COARSEST = 1e-3, 50.0  # range of ε in which the interval scales with it


@dataclass(frozen=True)
class Alternative:
    """A mechanism for which a claim is false: its ε, and the ROC curve of the optimal test between two data sets.

    Args:
        epsilon: At the δ of the claim.
        one: The probabilities of a nested sequence of events with the record.
        other: Their probabilities without it.
    """

    epsilon: float
    one: NDArray[np.float64]
    other: NDArray[np.float64]

    @property
    def chances(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The probabilities of the events, with the record and without it."""
        return self.one, self.other


@dataclass(frozen=True)
class LessNoise:
    """The mechanism of a case with its noise divided by a number, for every such number.

    The optimal test thresholds the privacy loss, whose distribution accounting computes: P[loss ≥ t] with the record,
    and without it the same with each loss l weighted by e^−l. For a zCDP event only a bound is known; Gaussian noise
    that just meets it is used instead.

    Args:
        event: What the claim is computed from: Gaussian or Laplace noise or zCDP, possibly sampled and composed.
        delta: Of the claim.
        reach: The distance between the case's two data sets, as a share of the sensitivity that is accounted for.
    """

    event: dpa.DpEvent
    delta: float
    reach: float = 1.0

    def at(self, divisor: float) -> Alternative:
        """The mechanism with its noise divided by this."""
        accounted = self._losses(divisor)
        told = accounted if self.reach == 1.0 else self._losses(divisor * self.reach)
        mass = told._pld._pmf_remove.to_dense_pmf()
        losses = (mass._lower_loss + np.arange(mass.size)) * mass._discretization
        with_it, without = mass._probs, mass._probs * np.exp(-losses)
        one, other = (np.cumsum(side[::-1]) for side in (with_it, without))
        one += mass._infinity_mass
        epsilon = min(float(accounted.get_epsilon(self.delta)), accounting.LARGEST)
        return Alternative(epsilon, np.clip(one, 0, 1), np.clip(other, 0, 1))

    def trade_off(self, divisor: float) -> accounting.TradeOff | None:
        """A curve that no test of the mechanism with its noise divided by this exceeds; None where none is known."""
        return accounting.TradeOff.of_losses(self._losses(divisor)) if _exact(self.event) else None

    def in_words(self, divisor: float) -> str:
        """Which mechanism that is."""
        if _exact(self.event):
            return f"which this mechanism has with its noise divided by {divisor:.2f}"
        return f"which Gaussian noise that just meets the claimed zCDP has when it is divided by {divisor:.2f}"

    def _losses(self, divisor: float) -> accounting.LossAccountant:
        claimed = min(max(accounting.compute_epsilon(self.event, self.delta).epsilon, _FINEST), _COARSEST)
        accountant = accounting.LossAccountant(_INTERVAL * claimed * divisor)
        accountant.compose(scaled(self.event, 1.0 / divisor))
        return accountant


@dataclass(frozen=True)
class Case:
    """One claim and what it takes to test it.

    Args:
        claim: The ε and δ stated for exactly what `run` runs, and by which theorem.
        pair: The two data sets, in one sentence.
        statistics: What the columns of the scores are, in words.
        run: Takes whether to include the record, how many independent runs, and their randomness; returns the scores.
        curve: Other (ε, δ) that the same theorem claims for the same runs.
        family: The mechanism with less noise; None if not known.
    """

    claim: Claim
    pair: str
    statistics: tuple[str, ...]
    run: Runs
    curve: tuple[tuple[float, float], ...] = ()
    family: LessNoise | None = None

    @classmethod
    def of_proven(
        cls, guarantee: accounting.Guarantee, pair: str, statistics: tuple[str, ...], run: Runs, reach: float = 1.0
    ) -> Case:
        """The case of a proven guarantee: claim, curve and family follow from its events.

        Args:
            guarantee: That of the plan whose mechanism is run by `run`.
            pair: As above.
            statistics: As above.
            run: As above.
            reach: The distance between the two data sets, as a share of the sensitivity that is accounted for.
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
    """One claim, and records, or people with several, that are included in the data set by coin flips.

    Args:
        claim: The ε and δ stated for exactly what `run` runs, under add-remove, and by which theorem.
        count: How many canaries there are.
        what: The canaries and the run, in one sentence.
        statistic: What a score is, in words; computed from what is accounted for, and from nothing else.
        run: Takes the coins, on which only the data set may depend, and the randomness of the one run; returns one
            score per canary, higher for one that seems to be in.
        family: The mechanism with less noise; None if not known.
    """

    claim: Claim
    count: int
    what: str
    statistic: str
    run: Callable[[Coins, Stream], Scores]
    family: LessNoise | None = None


@dataclass(frozen=True)
class Disclosed:
    """What the court observes of one release.

    Args:
        leaves: Everything that leaves, as arrays, or arrays from which all of it follows by post-processing.
        executed: What it cost.
        lasting: Whether one release can be observed repeatedly, each time with fresh noise.
    """

    lasting: ClassVar[bool] = False

    leaves: Arrays
    executed: dpa.DpEvent

    def observe(self, record: Records, stream: Stream) -> Arrays:
        """What an attacker who targets this record sees.

        Args:
            record: The record that is in the data set or not.
            stream: The randomness of what is drawn only when observed.
        """
        return self.leaves


Disclosing = Callable[[Randomness], Disclosed]


def facts_of_canaries(inputs: int, stated: int, people: bool) -> Facts:
    """What is public about canaries with so many inputs; the number of records, or people, is stated, not counted."""
    facts = Facts("court", (inputs,), ("0", "1"), stated, 1, "made up for the court")
    several = CANARY_VISITS * stated
    return replace(facts, records=several, people=stated, records_per_person=CANARY_VISITS) if people else facts


def people_in_words(facts: Facts) -> str:
    """What a sentence about canaries adds where they are people."""
    return "" if facts.people is None else f", people with {facts.records_per_person} records each,"


def canary_records(x: NDArray[np.float32], visits: int | None = None, largest: float = 1.0) -> Records:
    """A canary for each row of x; their labels, 0 and 1, alternate.

    Args:
        x: One row for each.
        visits: Where canaries are people, how many records each has.
        largest: The records of a person are multiples of her row, from 1 to this.
    """
    whose, sizes = np.repeat(np.arange(len(x)), visits or 1), np.linspace(1, largest, visits or 1, dtype=np.float32)
    return Records(x[whose] * np.tile(sizes, len(x))[:, None], whose % 2, None if visits is None else whose)


def canary_split(facts: Facts, every: Records, coins: Coins) -> Split:
    """What is released: the records of the canaries whose coin says so."""
    private = every.take(np.flatnonzero(coins if every.person is None else coins[every.person]))
    nobody = every.take(np.arange(0))
    return Split(facts, private, nobody, every.take(np.arange(1)), nobody)


def toward_own_label(scores: Scores) -> Scores:
    """One score for each canary, with the sign that its label gives."""
    return np.where(np.arange(len(scores)) % 2 == 0, scores, -scores)


def curve_of(event: dpa.DpEvent, epsilon: float) -> tuple[tuple[float, float], ...]:
    """Further points of the event's privacy curve, below its ε.

    Insufficient noise is detected at a small ε within hundreds of runs, but at a small δ only within many thousands.
    """
    epsilons = [share * epsilon for share in _SHARES]
    return tuple(zip(epsilons, accounting.deltas(event, epsilons), strict=True))


def less_noise(event: dpa.DpEvent, delta: float, reach: float = 1.0) -> LessNoise | None:
    """The family of an event whose noise can be scaled; None for other events."""
    try:
        scaled(event, 1.0)
    except ValueError:
        return None
    return LessNoise(event, delta, reach)


def scaled(event: dpa.DpEvent, factor: float) -> dpa.DpEvent:
    """The same event with all noise scaled by the factor; zCDP is replaced by Gaussian noise.

    Raises:
        ValueError: Its noise is not known.
    """
    import dp_accounting as dpa

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
    import dp_accounting as dpa

    inner = [*getattr(event, "events", ()), *filter(None, [getattr(event, "event", None)])]
    return not isinstance(event, dpa.ZCDpEvent) and all(_exact(one) for one in inner)


def on_circle(angles: NDArray[np.float64]) -> NDArray[np.float32]:
    """Points at these angles: records that are their own features."""
    return np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
