"""The court case of a configuration: whole releases of it on synthetic records, with and without one record.

A method's own case tests the method, on a network that suits the court. Here the exact configuration is tested: the
user's network, in its training mode and precision and on its device, through the code that makes releases. Any fault
between the network and what leaves (records that interact in a layer, an augmented view that is clipped separately, a
tensor without noise) changes what leaves by more than the noise hides.

A release is made small (`Channel.small`): a few dozen records of the declared shape and one step with every record in
it, without post-processing. The noise is calibrated to the same (ε, δ). With fewer steps it is smaller, which makes the
influence of one record easiest to detect.

All arrays that leave are scored. Two releases that draw the same noise differ only by the influence of the record.
Their mean difference, with each array divided by its noise variance, is the direction onto which releases with fresh
noise are projected; further scores are the same projection within each of the arrays that differ most, and the squared
norm. The direction comes from separate runs. For an interface the arrays are sums over answers about the record,
queried in blocks until the budget is spent, half of it from one process and half from another.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import dp_accounting as dpa
import numpy as np
from numpy.typing import NDArray

from airlock.accounting import Claim, to_json
from airlock.config import STEPS, ReleaseConfig
from airlock.data import Facts, Records, Split
from airlock.data.split import share
from airlock.errors import Refused
from airlock.mechanisms import Randomness, Stream
from airlock.methods.case import Arrays, Case, Disclosed, Disclosing, Scores, curve_of, less_noise
from airlock.methods.contract import Channel
from airlock.nets.domain import extreme, numbers
from airlock.nets.registry import seed_torch
from airlock.training import Run
from airlock.training.loop import forked_generator

PRIVATE, PUBLIC = 24, 24  # synthetic records, as declared to the method
_ALIKE = 6  # pairs of releases that draw the same noise
_SHOWN = 6  # arrays with a separate score
_SEED = 0
PAIR = (
    "{others} made-up records in the declared shape, with and without one more, through whole releases of this "
    "configuration, made small{small}"
)
VISITS = 12  # records of the person who differs, where the unit is a person
PAIR_OF_PEOPLE = (
    "made-up records of {others} people in the declared shape, one each, with and without one more person, who has "
    "{visits}, through whole releases of this configuration, made small{small}"
)
ACCOUNTED = "the accounting of the events that the runs execute"


def of_config(make: Callable[[ReleaseConfig, Facts], Channel], config: ReleaseConfig, facts: Facts, run: Run) -> Case:
    """The case of one configuration.

    Args:
        make: Builds the method (`methods.build`).
        config: As for a release.
        facts: Public; shape and classes are used, sizes are the court's own.
        run: Where to compute.

    Raises:
        Refused: This method cannot be tried in this way.
        ConfigError: The configuration cannot be made small.
    """
    method = type(make(config, facts))
    if method.small is None:
        raise Refused(
            "a method whose whole releases the court can try",
            f"{method.channel}/{method.method}",
            "A release of it cannot be made small.",
            f"Try the method itself: airlock court {method.channel}/{method.method}",
        )
    channel = make(shrunk(config, method.small), _facts(facts, config))
    promised = channel.plan().guarantee
    assert promised.epsilon is not None  # methods that can be made small are proven
    subject = _Subject(channel, run)
    events, claim = promised.events, Claim(promised.epsilon, promised.delta, ACCOUNTED)
    accounted = separation(events)
    family = None if accounted is None else less_noise(events, claim.delta, min(1.0, subject.separation / accounted))
    text = PAIR if facts.people is None else PAIR_OF_PEOPLE
    pair = text.format(others=PRIVATE - 1, visits=VISITS, small=_in_words(method.small))
    return Case(claim, pair, subject.names, subject.run, curve_of(events, claim.epsilon), family)


def shrunk(config: ReleaseConfig, small: Mapping[str, object]) -> ReleaseConfig:
    """The same configuration with these settings overriding its own; one tuning run, since only one is made."""
    table = config.model_dump(mode="json", exclude_none=True, exclude_unset=True)
    settings = _over(table.get("settings", {}), small)
    return ReleaseConfig.model_validate({**table, "settings": settings, "tuning_runs": 1})


def _over(own: Mapping[str, Any], small: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(own)
    for key, value in small.items():
        merged[key] = _over(merged.get(key, {}), value) if isinstance(value, Mapping) else value
    return merged


def _keys(small: Mapping[str, Any]) -> list[str]:
    return [name for key, value in small.items() for name in (_keys(value) if isinstance(value, Mapping) else [key])]


def _in_words(small: Mapping[str, Any]) -> str:
    return f" ({', '.join(_keys(small))} are the court's)" if small else ""


def _facts(facts: Facts, config: ReleaseConfig) -> Facts:
    """Facts with a total such that the private part has PRIVATE records."""
    own = share("private", config.split, facts.test_records is not None)
    count = max(1, round(PRIVATE / max(own, 1e-9)))
    if facts.people is None:
        return dataclasses.replace(facts, records=count)
    return dataclasses.replace(facts, records=2 * count, people=count)


def separation(event: dpa.DpEvent) -> float | None:
    """By how many noise standard deviations a record may change what the event releases; None if not known."""
    if isinstance(event, dpa.GaussianDpEvent):
        return 1.0 / float(event.noise_multiplier)
    if isinstance(event, dpa.ZCDpEvent) and not event.xi:
        return math.sqrt(2.0 * event.rho)
    if isinstance(event, dpa.SelfComposedDpEvent):
        one = separation(event.event)
        return None if one is None else one * math.sqrt(float(event.count))
    if isinstance(event, dpa.PoissonSampledDpEvent) and event.sampling_probability == 1:
        return separation(event.event)
    if isinstance(event, dpa.ComposedDpEvent):
        parts = [separation(one) for one in event.events]
        return None if any(p is None for p in parts) else math.sqrt(sum(p * p for p in parts if p is not None))
    return None


class _Subject:
    """A small configuration, two neighbouring splits, and the scoring of what leaves."""

    def __init__(self, channel: Channel, run: Run) -> None:
        self._channel, self._planned = channel, to_json(channel.plan().guarantee.events)
        both, less = neighbours(channel.facts, channel.config.seed)
        self._record = both.private.take(np.array([len(both.private) - 1]))
        self._releases = {True: _begun(channel, both, run), False: _begun(channel, less, run)}
        self._lasting: dict[bool, Disclosed] = {}
        self._learn_direction()

    def run(self, with_record: bool, count: int, stream: Stream) -> Scores:
        """Scores of `count` whole releases, each with fresh noise."""
        return np.stack([self._score(self._let_out(with_record, stream.child(i))) for i in range(count)])

    def _let_out(self, with_record: bool, stream: Stream) -> Arrays:
        """What one release discloses."""
        left = self._lasting.get(with_record) or self._released(with_record, stream)
        return left.observe(self._record, stream)

    def _released(self, with_record: bool, stream: Stream) -> Disclosed:
        left = self._releases[with_record](Randomness(self._channel.config.seed, stream))
        if to_json(left.executed) != self._planned:
            raise Refused(
                "the executed events to equal the claimed ones", "a difference", "Another mechanism would be tried."
            )
        if left.lasting:
            self._lasting[with_record] = left
        return left

    def _learn_direction(self) -> None:
        """From releases with the same noise on both sides, and from their spread on one side."""
        pairs = []
        for i in range(_ALIKE):
            noise = [Stream.from_seed(i) for _ in (True, False)]
            pairs.append([_floats(self._let_out(side, own)) for side, own in zip((True, False), noise, strict=True)])
        self._direction: dict[str, NDArray[np.float64]] = {}
        self._middle: dict[str, NDArray[np.float64]] = {}
        strength: dict[str, float] = {}
        for name in pairs[0][0]:
            one, other = (np.stack([pair[side][name] for pair in pairs]) for side in (0, 1))
            moved, spread = (one - other).mean(0), float(np.sqrt(other.var(0, ddof=1).mean()))
            floor = max(spread, 1e-9 * float(np.abs(moved).max(initial=0.0))) or 1.0  # 1 where nothing ever changes
            self._direction[name], self._middle[name] = moved / floor**2, (one.mean(0) + other.mean(0)) / 2
            strength[name] = float(np.linalg.norm(moved)) / floor
        self.separation = math.sqrt(sum(value**2 for value in strength.values()))
        self._shown = sorted(strength, key=lambda name: -strength[name])[:_SHOWN]
        own = tuple(f"the same within {name}" for name in self._shown)
        self.names = ("what leaves, on what the record moves", *own, "its squared size")

    def _score(self, arrays: Arrays) -> NDArray[np.float64]:
        found = {name: value - self._middle[name] for name, value in _floats(arrays).items()}
        parts = {name: float(value @ self._direction[name]) for name, value in found.items()}
        size = sum(float(value @ value) for value in found.values())
        return np.array([sum(parts.values()), *(parts[name] for name in self._shown), size])


def _begun(channel: Channel, side: Split, run: Run) -> Disclosing:
    """What one side's releases disclose; global seeds are fixed, so an unseeded front end is the same on both sides."""
    here, there = random.getstate(), np.random.get_state()
    with forked_generator(run.device):
        seed_torch(_SEED, run.device)
        random.seed(_SEED)
        np.random.seed(_SEED)
        try:
            return channel.disclosing(side, run)
        finally:
            random.setstate(here)
            np.random.set_state(there)


def neighbours(facts: Facts, seed: int) -> tuple[Split, Split]:
    """Splits with and without one record, which comes last; all records are synthetic and of the declared shape.

    Where the unit is a person, it is one person with several equal records: a sum over records would show all of them.
    """
    chance = np.random.default_rng(seed)

    def some(count: int) -> Records:
        made_up = numbers(count, facts.shape, facts.vocabulary, chance)
        if facts.task == "regression":
            y = chance.integers(0, STEPS + 1, count)
        else:
            y = np.arange(count) % max(1, len(facts.classes))
        return Records((255 * made_up).astype(np.uint8) if len(facts.shape) == 3 else made_up, y)

    private, public = some(PRIVATE), some(PUBLIC)
    private.x[-1] = 255 if len(facts.shape) == 3 else extreme(facts.shape, facts.vocabulary)
    nobody = public.take(np.arange(0))
    if facts.unit == "person":
        private = private.take(np.append(np.arange(PRIVATE), np.full(VISITS - 1, PRIVATE - 1)))
        person = np.minimum(np.arange(len(private)), PRIVATE - 1)
        private = dataclasses.replace(private, person=person)
        public, nobody = (dataclasses.replace(part, person=PRIVATE + np.arange(len(part))) for part in (public, nobody))
    both, less = (
        Split(facts, part, public, nobody, nobody) for part in (private, private.take(np.arange(PRIVATE - 1)))
    )
    return both, less


def _floats(arrays: Arrays) -> dict[str, NDArray[np.float64]]:
    """Flattened; NaN becomes 0 and infinities become large finite numbers."""
    return {name: np.nan_to_num(np.asarray(a, np.float64)).ravel() for name, a in arrays.items() if np.size(a)}
