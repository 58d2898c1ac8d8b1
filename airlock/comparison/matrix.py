"""The cells of a comparison in the order in which they run, laid out before any record is read.

The order decides what a time limit drops: whatever comes last. First come the references: the model without privacy,
the model on public records alone (if there are any), and plain DP-SGD; then the first method of every channel, the
other proven methods, and the published ones, each at all ε, for the first seed. Then the court, unproven claims first.
Then the other seeds.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from airlock import data, methods
from airlock.accounting.guarantee import Guarantee
from airlock.comparison.settings import NAMES, CompareConfig
from airlock.comparison.values import BASELINE, PUBLIC, ComparedData, Skipped
from airlock.config import ReleaseConfig
from airlock.data import Facts
from airlock.data.sources import named
from airlock.errors import AirlockError, Refused
from airlock.methods import METHODS, Plan
from airlock.pipeline import plan_release

PLAIN = "weights/gaussian"
LARGEST_CLAIM = 10.0  # the court tries no larger one
NOTHING = "Nothing is promised to the people in the data."
ASIDE: dict[str, dict[str, Any]] = {  # what is known about the reference rows
    BASELINE: {
        "title": "without privacy (never leaves)",
        "status": "none",
        "leaves": "Nothing: this model was trained without privacy, for comparison, and is not kept.",
        "protects": NOTHING,
    },
    PUBLIC: {
        "title": "public records alone, without noise",
        "status": "proven",
        "epsilon": 0.0,
        "leaves": "Nothing: this model was trained on the public records alone, for comparison, and is not kept.",
        "protects": "Every private record: it has met none of them.",
    },
}


def title_of(name: str) -> str:
    """A row's title, in a few words."""
    return str(ASIDE[name]["title"]) if name in ASIDE else methods.named(name).title


@dataclass(frozen=True)
class Task:
    """One cell to be run: everything its process needs, and nothing derived from a record.

    Args:
        kind: A model without noise, a release, or a trial in the court.
        method: As CHANNEL/METHOD; for a model without noise `BASELINE` or `PUBLIC`.
        epsilon: The ε that is requested, or tried; None for a model without noise.
        seed: The seed; None for a trial.
        config: The release config; for a model without noise, the one whose records and network it uses.
        plan: The plan of a release; otherwise None.
    """

    kind: Literal["baseline", "release", "court"]
    method: str
    epsilon: float | None
    seed: int | None
    config: ReleaseConfig
    plan: Plan | None = None

    @property
    def name(self) -> str:
        """Its file name."""
        ways = {"court": "court", "baseline": "open", "release": f"{self.epsilon!r}"}
        seed = "" if self.seed is None else f"-{self.seed}"
        return f"{self.method.replace('/', '.')}-{ways[self.kind]}{seed}"

    @property
    def title(self) -> str:
        """Its title for one line on a terminal."""
        if self.kind == "court":
            return f"court: {self.method}"
        size = "" if self.epsilon is None else f" ε = {self.epsilon:g},"
        return f"{self.method}{size} seed {self.seed}"


@dataclass(frozen=True)
class Matrix:
    """All cells in order, the methods that do not apply, and what is public about the records."""

    tasks: tuple[Task, ...]
    skipped: tuple[Skipped, ...]
    facts: Facts
    subject: ComparedData


def lay_out(config: CompareConfig, data_dir: Path | None = None) -> Matrix:
    """The matrix of a comparison; reads no record.

    Raises:
        AirlockError: The data or the network cannot be used at all, or no method applies.
    """
    base = config.release(PLAIN, config.epsilons[0], config.seeds[0])
    facts = data.describe(base, data_dir)
    if facts.unit in methods.named(PLAIN).units:  # errors in shared keys are raised, not skipped
        plan_release(base.model_copy(update={"settings": {}}), data_dir)
    plans, skipped = _plan_all(config, data_dir)
    if not plans:
        raise Refused("a method that applies to these records and settings", "none", skipped[0].reason)
    subject = ComparedData(
        name=facts.name,
        records=facts.records,
        classes=facts.classes,
        shape=facts.shape,
        named=named(config.data.source, data_dir) is not None,
        people=facts.people,
    )
    return Matrix(tuple(_ordered(config, plans)), skipped, facts, subject)


def chosen(config: CompareConfig, always: Collection[str] = (PLAIN,)) -> list[str]:
    """The requested methods in the order of the matrix, and those that are always included."""
    asked = config.methods

    def wanted(name: str) -> bool:
        if name in always or name in asked:
            return True
        return (not asked or name.partition("/")[0] in asked) and methods.named(name).listed

    names = list(filter(wanted, NAMES))
    firsts = {f"{channel}/{next(iter(own))}" for channel, own in METHODS.items()}

    def place(name: str) -> tuple[bool, bool, bool]:
        return name != PLAIN, methods.named(name).status != "proven", name not in firsts

    return sorted(names, key=place)


def try_plan(
    config: CompareConfig, method: str, epsilon: float, data_dir: Path | None = None
) -> tuple[ReleaseConfig, Plan] | AirlockError:
    """A method's release config and plan, or why there is none; reads no record.

    `net` and `need.queries` apply to methods that accept them. The others are planned without them.
    """
    found: AirlockError | None = None
    for candidate in _candidates(config, method, epsilon):
        try:
            with warnings.catch_warnings():  # plain DP-SGD has already warned about δ
                warnings.simplefilter("ignore")
                return candidate, plan_release(candidate, data_dir)
        except AirlockError as error:
            found = error
    assert found is not None
    return found


def _candidates(config: CompareConfig, method: str, epsilon: float) -> Iterator[ReleaseConfig]:
    asked = config.release(method, epsilon, config.seeds[0])
    own_net = asked.net == "auto" or method in config.nets
    queries = config.need.queries if asked.channel == "answers" and "queries" not in asked.settings else None
    for settings in ([{**asked.settings, "queries": queries}] if queries else []) + [asked.settings]:
        for net in (asked.net,) if own_net else (asked.net, "auto"):
            yield asked.model_copy(update={"settings": settings, "net": net})


Plans = dict[str, list[tuple[ReleaseConfig, Plan]]]


def _plan_all(config: CompareConfig, data_dir: Path | None) -> tuple[Plans, tuple[Skipped, ...]]:
    plans: Plans = {}
    skipped: list[Skipped] = []
    for method in chosen(config):
        asked = config.epsilons[:1] if _without_epsilon(method) else config.epsilons
        tried = {epsilon: try_plan(config, method, epsilon, data_dir) for epsilon in asked}
        errors = {epsilon: str(one) for epsilon, one in tried.items() if isinstance(one, AirlockError)}
        if errors:
            where = tuple(errors) if len(errors) < len(tried) else ()
            skipped.append(Skipped(method=method, reason=next(iter(errors.values())), epsilons=where))
        fits = [one for one in tried.values() if not isinstance(one, AirlockError)]
        if fits:
            plans[method] = fits
    return plans, tuple(skipped)


def _without_epsilon(method: str) -> bool:
    """Whether a method does not depend on ε at all: it neither promises nor claims one, and is run once."""
    return methods.named(method).status == "empirical"


def _ordered(config: CompareConfig, plans: Plans) -> Iterator[Task]:
    for place, seed in enumerate(config.seeds):
        open_config = config.release(PLAIN, config.epsilons[0], seed, settings={})
        yield Task("baseline", BASELINE, None, seed, open_config)
        if config.split.public > 0:
            yield Task("baseline", PUBLIC, None, seed, open_config)
        for method, fits in plans.items():
            for release, plan in fits:
                epsilon = None if _without_epsilon(method) else release.epsilon
                yield Task("release", method, epsilon, seed, release.model_copy(update={"seed": seed}), plan)
        if place == 0 and config.court_seconds > 0:
            yield from _trials(config, plans)


def _trials(config: CompareConfig, plans: Plans) -> Iterator[Task]:
    """One trial per method that proves or claims an ε, at the ε nearest to 1, where the court is most powerful."""
    tried = min(min(config.epsilons, key=lambda epsilon: abs(math.log(epsilon))), LARGEST_CLAIM)
    for method in sorted(plans, key=lambda name: methods.named(name).status == "proven"):
        release, plan = plans[method][0]
        if plan.guarantee.status == "proven" or plan.guarantee.claim is not None:
            yield Task("court", method, tried, None, release)


def protects(promise: Guarantee, queries: int | None = None) -> str:
    """Whom a guarantee protects, in one sentence."""
    if promise.status != "proven" or promise.unit == "none":
        return NOTHING
    if promise.unit == "model":
        return "One trained model among others; nothing is promised about a record."
    how = "added or removed" if promise.relation == "add-remove" else "replaced by another"
    over = f", over all {queries:,} answers together" if queries is not None else ""
    return f"One {promise.unit}, {how}{over}, against everyone who studies what leaves."


def mark(task: Task, extra: object) -> str:
    """A digest of everything a cell depends on: a finished cell is reused if none of it has changed."""
    told = [task.kind, task.method, task.epsilon, task.seed, task.config.model_dump(mode="json"), extra]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
