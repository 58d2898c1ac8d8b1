"""The contract of a channel method, and the values that pass through it.

`plan` runs before any record is read and returns the guarantee; `release` trains, applies the mechanism, and returns
what leaves. The executed events must equal the planned ones: `check_executed` refuses a release that spent anything
else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from typing_extensions import TypeVar

from airlock import accounting
from airlock.accounting.terms import Claim, Relation, Status, Unit
from airlock.config import DataConfig, Frozen, ReadOff, ReleaseConfig, parse
from airlock.data import Facts, Split
from airlock.errors import ConfigError, Refused
from airlock.mechanisms import Place, Randomness
from airlock.methods.artefact import KINDS, Artefact, ArtefactKind, KeptFrontEnd, NetworkArtefact, weights_of
from airlock.methods.case import Arrays, Canaries, Case, Disclosed, Disclosing, Secrets
from airlock.methods.interface import Answerer, Interface

if TYPE_CHECKING:
    import dp_accounting as dpa

    from airlock.accounting import BudgetSchedule, Curve, Guarantee
    from airlock.training import ClassWeights, Run
    from airlock.training.outcomes import Outcomes

# A method's own figures: a frozen dataclass, such as `DpSgdFigures`. Code that does not use them writes plain `Plan` or
# `Channel`.
F = TypeVar("F", default=Any)
Details = Mapping[str, str | int | float]
ONE_RECORD = "One person contributes one record; whoever contributes several is protected less."
SIZE = "The number of records stated on this card is public and was not derived from the private records."
ASSUMED = (
    ONE_RECORD,
    SIZE,
    "Network, settings and class names were chosen without looking at the private records.",
)
# What is assumed in place of these where the data say whose a record is.
ONE_IDENTIFIER = (
    "Each person has one identifier in the data, and nobody else has the same; whoever has several is protected less."
)
SIZES = (
    "The numbers of people and records stated on this card are public and were not derived from the private records."
)
ONLY_RECORDS = (
    "NOT COVERED: a person as a whole. The data say which records are the same person's, but the guarantee is for one "
    "record: whoever has several is protected less."
)
READ_OFF = (
    "NOT COVERED: {what}, read off the records before the release. A single record may have decided part of it, and no "
    "ε pays for that: the guarantee holds where these are public anyway."
)
TOKENIZER = "The tokenizer is public: it was neither fitted to the private records nor chosen by looking at them."
_READ_OFF = {
    "classes": "the class names",
    "columns": "the ranges and categories of the columns",
    "people": "the number of people",
    "records": "the number of records",
    "tokenizer": "the tokenizer",
}
NOTHING_ELSE_LEAVES = "Nothing but the bundle leaves: figures of the dossier are exact, and no ε covers them."
TEACHER = "teacher"  # among the secrets: a network that stays inside and may be attacked along with the release


@dataclass(frozen=True)
class Plan(Generic[F]):
    """What will happen and what it costs, before any record is read; everything in it is public.

    Args:
        channel: Which of the five things leaves.
        method: By which method.
        leaves: What leaves, in one sentence for a reader who is no engineer.
        guarantee: With its ε already computed.
        details: Public figures for display, on the card and in tables; no code computes with them.
        schedule: How the cost accumulates during training, if it does so in equal steps with a bounded ε.
        figures: What the mechanism is run with (noise multiplier, sampling probability and the like), in the method's
            own frozen dataclass. `execute` takes its numbers from here, so what is executed is what was planned.
    """

    channel: str
    method: str
    leaves: str
    guarantee: Guarantee
    details: Details
    schedule: BudgetSchedule | None = None
    figures: F = None  # type: ignore[assignment]  # optional for methods whose `execute` needs none

    def curve(self) -> Curve | None:
        """ε over the course of training, which takes seconds to compute; None without a bound or a schedule."""
        return accounting.trace(self.schedule, self.guarantee)


@dataclass(frozen=True)
class Release:
    """What leaves, with its guarantee and utility; and separately what must stay inside.

    Args:
        plan: What was planned.
        artefact: What leaves: a network, an interface, or features.
        guarantee: The guarantee that the executed events support.
        utility: The outcome for every test record; stays inside.
        secure_noise: Whether the privacy randomness came from the operating system.
        noise_made_on: Where the noise was actually computed; possibly both places, and none if there was no noise.
        secrets: Arrays for the vault, by file name; none of it may leave.
        inside: Figures derived from test or private records that no ε pays for; for the dossier only.
    """

    plan: Plan
    artefact: Artefact
    guarantee: Guarantee
    utility: Outcomes
    secure_noise: bool
    noise_made_on: tuple[Place, ...]
    secrets: Secrets = field(default_factory=dict, repr=False)
    inside: Details = field(default_factory=dict, repr=False)

    @property
    def network(self) -> NetworkArtefact:
        """The network that leaves.

        Raises:
            Refused: None does.
        """
        if isinstance(self.artefact, NetworkArtefact):
            return self.artefact
        raise Refused(
            "a release with a network",
            f"{self.plan.channel}/{self.plan.method}, of which none leaves",
            "Answers or features leave instead.",
            "Use what leaves.",
        )


@dataclass(frozen=True)
class Executed:
    """What a method did, for `release` to check and package.

    Args:
        artefact: What leaves.
        events: What was done to the private records, as reported by the mechanisms that ran, not by the plan.
        utility: The outcome for every test record; stays inside.
        details: The plan's public figures as executed; None if unchanged.
        assumptions: The guarantee's assumptions as executed; None if unchanged.
        noise_made_on: Where the noise was computed, if not where the randomness of the release records it.
        secrets: Arrays for the vault, by file name.
        inside: Figures that no ε pays for; for the dossier only.
    """

    artefact: Artefact
    events: dpa.DpEvent
    utility: Outcomes
    details: Details | None = None
    assumptions: tuple[str, ...] | None = None
    noise_made_on: tuple[Place, ...] | None = None
    secrets: Secrets = field(default_factory=dict, repr=False)
    inside: Details = field(default_factory=dict, repr=False)


CLASSES = frozenset({"classification"})


class Channel(ABC, Generic[F]):
    """One method of one channel, built from a config and the public facts about the data.

    `Channel[MyFigures]` is a method whose plans carry `MyFigures`.
    """

    channel: ClassVar[str]
    method: ClassVar[str]
    status: ClassVar[Status]
    leaves: ClassVar[str]
    title: ClassVar[str]  # what it releases, in a few words, for tables
    artefact: ClassVar[ArtefactKind] = "network"  # the kind of artefact; determines the required attacks
    rank: ClassVar[int] = 1000  # order of proven methods by usual utility (docs/results): smaller is better
    listed: ClassVar[bool] = True  # whether `compare` and `advise` include it without being given its name
    compact: ClassVar[bool] = False  # whether its network is designed to be small: preferred for phones
    unproven: ClassVar[str] = ""  # for a method that is not proven: what is not proven, in one sentence
    sound_method: ClassVar[str] = ""  # for a method that is not proven: the one to take instead
    reads_files: ClassVar[bool] = False  # whether records may be in a file instead of memory (`data.limits`)
    distributed: ClassVar[bool] = False  # whether `release` may run in several processes that train together
    # Settings that make a whole release run in an instant, for the court (`config_case`); None if there are none.
    small: ClassVar[Mapping[str, object] | None] = None
    # The model of [settings], parsed into `settings` first of all; None if the method parses them itself.
    settings_model: ClassVar[type[Frozen] | None] = None
    withheld: ClassVar[tuple[str, ...]] = ()  # settings that stay in the vault
    # Whose presence it can protect: "record", "person". A subclass that computes something else says so again.
    units: ClassVar[frozenset[str]] = frozenset({"record"})
    weighs_classes: ClassVar[bool] = False  # whether it learns from labels in a way that `class_weights` can change
    # What it learns: "classification", "regression", "language". Not inherited: a subclass has to say so itself.
    tasks: ClassVar[frozenset[str]] = CLASSES
    # Whether its records may be texts, whose numbers are names of tokens. Not inherited either.
    texts: ClassVar[bool] = False
    fine_tunes: ClassVar[bool] = False  # whether it trains networks of transformers
    public: DataConfig | None = None  # a further public data set that `release` uses in the clear (`Split.beside`)

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "tasks" not in vars(cls):
            cls.tasks = CLASSES
        if "texts" not in vars(cls):
            cls.texts = False

    def __init__(self, config: ReleaseConfig, facts: Facts) -> None:
        from airlock.training.class_weights import relative_to_the_largest

        self.config, self.facts = config, facts
        if config.class_weights is not None and not self.weighs_classes:
            raise ConfigError(
                "no class_weights for a method that does not weigh records by their class",
                f"{self.channel}/{self.method}",
                "They would be ignored, and the card would say otherwise.",
                "Leave them out, or take weights/gaussian, weights/head or answers/head.",
            )
        self.class_weights = relative_to_the_largest(config.class_weights, facts.classes)
        if self.settings_model is not None:
            vars(self)["settings"] = parse(self.settings_model, config.settings, where="settings")

    class_weights: ClassWeights | None  # what `config.class_weights` declares, over the largest

    @abstractmethod
    def plan(self) -> Plan[F]:
        """The guarantee and the public figures; touches no record."""

    def execute(self, plan: Plan[F], split: Split, randomness: Randomness, run: Run) -> Executed:
        """Train, apply the mechanism, and measure on test records: the method-specific part of a release."""
        raise NotImplementedError(f"{type(self).__name__} has neither `execute` nor `release`")

    def release(self, split: Split, randomness: Randomness, run: Run) -> Release:
        """Plan once, execute, and refuse a release that was not executed as planned."""
        plan = self.planned
        done = self.execute(plan, split, randomness, run)
        check_executed(plan, done.events)
        promise, told = plan.guarantee, done.assumptions
        return Release(
            plan=plan if done.details is None else replace(plan, details=done.details),
            artefact=done.artefact,
            guarantee=promise if told is None else replace(promise, assumptions=assumed_of(self.facts, told)),
            utility=done.utility,
            secure_noise=randomness.privacy.secure,
            noise_made_on=randomness.privacy.drawn_on if done.noise_made_on is None else done.noise_made_on,
            secrets=done.secrets,
            inside=done.inside,
        )

    def tried(self, config: ReleaseConfig) -> tuple[ReleaseConfig, ...]:
        """The configs that the court should try before a record is read: this one, or those that it leads to."""
        return (config,)

    def settled(self, config: ReleaseConfig, release: Release) -> ReleaseConfig:
        """The config that goes into the bundle: as asked for, unless the release itself has chosen some of it."""
        return config

    def interface(self) -> Interface | None:
        """What may be asked, for methods that release an `Interface`: it follows from config and facts alone."""
        return None

    @property
    def weighing(self) -> Details:
        """For the card: how much a record of each class counts, where they do not count alike."""
        if self.class_weights is None:
            return {}
        return {"class_weights": self.class_weights.in_words(self.facts.classes)}

    @cached_property
    def planned(self) -> Plan[F]:
        """The plan, computed once: execution is checked against the plan that was shown."""
        return self.plan()

    def promise(
        self,
        events: dpa.DpEvent,
        assumptions: tuple[str, ...] = (*ASSUMED, NOTHING_ELSE_LEAVES),
        unit: Unit | None = None,
        relation: Relation = "add-remove",
        claim: Claim | None = None,
    ) -> Guarantee:
        """The guarantee of these events at the config's δ: for which unit, and under which assumptions.

        Args:
            events: What is done to the private records.
            assumptions: Sentences that a reviewer can tick.
            unit: Whose presence is protected; that of the facts if left out.
            relation: What neighbouring data sets are.
            claim: What a paper would print, where it differs.
        """
        return accounting.Guarantee(
            unit=self.facts.unit if unit is None else unit,
            relation=relation,
            events=events,
            delta=self.config.delta,
            status=self.status,
            assumptions=assumed_of(self.facts, assumptions),
            claim=claim,
            accountant=self.config.accountant,
        )

    def disclosing(self, split: Split, run: Run) -> Disclosing:
        """What releases of these records disclose, for the court; the result is called once per release.

        By default a whole release each time. A method may run the part that draws no noise once, and the rest through
        the code that makes releases.
        """

        def once(randomness: Randomness) -> Disclosed:
            made = self.release(split, randomness, run)
            return made.artefact.disclosed(made.guarantee.events, made.secrets, self.answerer)

        return once

    @classmethod
    def case(cls, epsilon: float, delta: float) -> Case:
        """What the court needs to try to refute this method's claim of about (ε, δ), on synthetic records."""
        raise Refused(
            f"a case for the court from {cls.channel}/{cls.method}",
            "none",
            "Without a pair of data sets and a score there is nothing to test.",
            "Give the method a `case` (methods/case.py).",
        )

    @classmethod
    def case_of_people(cls, epsilon: float, delta: float) -> Case:
        """The same with and without one person of many records, for methods that protect people."""
        raise Refused(
            f"a case of people for the court from {cls.channel}/{cls.method}",
            "none",
            "Without two data sets that differ in a person there is nothing to test.",
            "Test the configuration itself: airlock court --config FILE.",
        )

    @classmethod
    def answerer(cls, interface: Interface, kept: Secrets) -> Answerer:
        """The answerer, from what left and what stayed in the vault; for methods that release an `Interface`."""
        raise Refused(
            f"answers from {cls.channel}/{cls.method}",
            "a method that releases something else",
            "It has nothing to answer from.",
            "Ask what it released.",
        )

    @classmethod
    def kept_front_end(cls, kept: Secrets) -> KeptFrontEnd:
        """The front end of a release, from what stayed in the vault; for methods that release a `FeatureSet`."""
        raise Refused(
            f"a front end of {cls.channel}/{cls.method}",
            "a method that releases something else",
            "It keeps none in the vault.",
            "Attack what it released.",
        )

    @classmethod
    def canaries(cls, epsilon: float, delta: float, count: int) -> Canaries:
        """What the court needs to test the same claim with one whole release and `count` canaries."""
        raise Refused(
            f"canaries for the court from {cls.channel}/{cls.method}",
            "none",
            "Without records to put in or leave out there is nothing to guess.",
            "Give the method `canaries` (methods/case.py), or try it without --one-run.",
        )

    @classmethod
    def canaries_of_people(cls, epsilon: float, delta: float, count: int) -> Canaries:
        """The same with `count` people who have several records each, for methods that protect people."""
        raise Refused(
            f"canaries for the court that are people from {cls.channel}/{cls.method}",
            "none",
            "Without people to put in or leave out there is nothing to guess.",
            "Give the method `canaries_of_people` (methods/case.py), or try it without --one-run.",
        )


def assumed_of(facts: Facts, assumptions: tuple[str, ...]) -> tuple[str, ...]:
    """The sentences a reviewer ticks, for data that say whose a record is: several of one person are then allowed for.

    Where the unit is a record all the same, the first sentence says who is not covered.
    """
    if facts.vocabulary is not None and "tokenizer" not in facts.read_off:
        assumptions = (*(line for line in assumptions if line != TOKENIZER), TOKENIZER)
    if facts.read_off:
        assumptions = (_not_covered(facts.read_off), *_without_read_off(facts.read_off, assumptions))
    if facts.unit == "person":
        of_people = {ONE_RECORD: ONE_IDENTIFIER, SIZE: SIZES}
        return tuple(of_people.get(line, line) for line in assumptions)
    if facts.grouped:
        return (ONLY_RECORDS, *(line for line in assumptions if line not in (ONE_RECORD, ONLY_RECORDS)))
    return assumptions


def in_words(read_off: Sequence[ReadOff]) -> str:
    """What was read off the records, as the object of a sentence."""
    named = [_READ_OFF[name] for name in read_off]
    return " and ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)


def _not_covered(read_off: Sequence[ReadOff]) -> str:
    return READ_OFF.format(what=in_words(read_off))


def _without_read_off(read_off: Sequence[ReadOff], assumptions: tuple[str, ...]) -> Iterator[str]:
    """The other sentences, without saying of what was read off the records that it was not; the first is there once."""
    untrue = {_not_covered(read_off)} | ({SIZE, SIZES} if {"people", "records"} & set(read_off) else set())
    for line in assumptions:
        if line not in untrue:
            yield _but_class_names(line) if "classes" in read_off else line


def _but_class_names(line: str) -> str:
    """The sentence that says what was chosen without looking at the records, without the class names."""
    line = line.replace(", settings and class names were chosen", " and settings were chosen")
    return line.replace("Settings and class names were chosen", "Settings were chosen")


def refuse_net(config: ReleaseConfig) -> None:
    """Refuse a `net` for a method that trains only a head on a public front end.

    Raises:
        ConfigError: A network is named.
    """
    if config.net != "auto":
        raise ConfigError(
            f"no `net` for method '{config.method or 'head'}'",
            f"'{config.net}'",
            do="Name the front end in settings.features.",
        )


def check_executed(plan: Plan, executed: dpa.DpEvent) -> None:
    """Refuse a release whose executed events are not the planned ones."""
    if accounting.to_json(executed) != accounting.to_json(plan.guarantee.events):
        raise Refused(
            "the executed events to equal the planned ones",
            "a difference",
            "The stated ε would not be that of what happened.",
            "This is a defect in the method: do not release its result.",
        )


# Everything that a method needs from here: defined in this module, or re-exported from lower-level ones.
__all__ = [
    "ASSUMED",
    "KINDS",
    "NOTHING_ELSE_LEAVES",
    "ONE_RECORD",
    "SIZE",
    "TEACHER",
    "Arrays",
    "Artefact",
    "ArtefactKind",
    "Channel",
    "Details",
    "Disclosed",
    "Disclosing",
    "Executed",
    "NetworkArtefact",
    "Plan",
    "Release",
    "Secrets",
    "assumed_of",
    "check_executed",
    "refuse_net",
    "weights_of",
]
