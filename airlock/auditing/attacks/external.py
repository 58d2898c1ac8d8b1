"""Attacks from other packages (entry points `airlock.attacks`): each is a class that scores records.

An attack receives records in random order, without being told which are members, and returns one score per record;
Airlock evaluates the scores like those of its own attacks. So a bound on ε from such an attack is certified like any
other (`one_run_audit`): whatever the score is, it was computed from the release and from records whose membership coins
are hidden.

Guarantee: nothing that such an attack finds leaves. Its figures appear only in the dossier, and no share of ε pays for
them (`paid_attacks`): that would require a score that depends on the release and a single record alone, which cannot be
shown for code outside this repository. It runs in addition to the required attacks, never in place of one, and it
cannot make a release fail: only `airlock audit --attack` runs it.
"""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal, TypeVar, cast

import numpy as np

from airlock import plugins
from airlock.auditing.bounds import Floats
from airlock.auditing.members import AttackSet
from airlock.auditing.result import Scores
from airlock.auditing.target import Target
from airlock.data import Records
from airlock.errors import ConfigError
from airlock.training.loop import mix

VIEWS = ("white-box", "black-box", "labels")
_ORDER, _OWN = 3, 4  # what the seeds of the order and of the attack are mixed with


class Attack(ABC):
    """A membership attack on a network that leaves."""

    name: ClassVar[str]  # as its entry point has it
    question: ClassVar[str] = "Can someone who holds the model and a person's record tell whether it was trained on?"
    view: ClassVar[Literal["white-box", "black-box", "labels"]] = "black-box"  # what of the network the attacker uses

    @abstractmethod
    def score(self, target: Target, records: Records, known: Records, seed: int) -> Floats:
        """One finite number for each record; higher means more likely a member.

        Args:
            target: A copy of the network that leaves (`answers`, `net`), and fresh ones of its kind (`fresh`).
            records: Equally many members and non-members, in random order.
            known: Other records of the same kind, none of which was trained on.
            seed: For the attack's own randomness.
        """


A = TypeVar("A", bound=type[Attack])


def register(attack: A) -> A:
    """Register an attack in this process under its own name; use it as a class decorator."""
    OTHERS.register(attack.name, attack)
    return attack


def others() -> tuple[str, ...]:
    """The names of other packages' attacks; imports none of them."""
    return OTHERS.names()


def open_attacks(names: Sequence[str]) -> tuple[type[Attack], ...]:
    """The classes of these attacks.

    Raises:
        ConfigError: One is not known, or cannot be imported.
    """
    return tuple(OTHERS.get(name) for name in names)


def score(name: str, target: Target, attack_set: AttackSet, known: Records, seed: int) -> Scores:
    """Run one attack, on copies of everything.

    Args:
        name: Of the attack.
        target: What leaves.
        attack_set: Who takes part.
        known: Records that were neither trained on nor take part in the attack.
        seed: Of the attacks.

    Raises:
        ConfigError: It fails, or returns anything but one finite number per record.
    """
    made, pool = OTHERS.get(name), attack_set.pool
    order = np.random.default_rng(mix(seed, _ORDER)).permutation(len(pool))
    own, beside = replace(target, net=copy.deepcopy(target.net)), known.take(np.arange(len(known)))
    with OTHERS.blamed(name, "score records"):
        found = np.asarray(made().score(own, pool.take(order), beside, mix(seed, _OWN)), np.float64)
    if found.shape != (len(pool),) or not np.isfinite(found).all():
        raise ConfigError(
            f"one finite score for each record from the {OTHERS.whose(name)}",
            "something else",
            "A record without a score cannot be classified as member or non-member.",
            "Report this to its author, or leave it out.",
        )
    scores = np.empty(len(pool))
    scores[order] = found
    members = len(attack_set.members)
    return Scores(
        f"{name} ({OTHERS.package(name)})",
        made.question,
        made.view,
        scores[:members],
        scores[members:],
        attack_set.members.y,
        attack_set.others.y,
    )


def _checked(thing: object, name: str) -> type[Attack]:
    whole = isinstance(thing, type) and issubclass(thing, Attack) and not inspect.isabstract(thing)
    if not whole or getattr(thing, "name", None) != name:
        raise ConfigError(f"a subclass of airlock.auditing.attacks.Attack named '{name}'", f"{thing!r:.80}")
    attack = cast(type[Attack], thing)
    if attack.view not in VIEWS or not attack.question:
        raise ConfigError(f"`view` ({', '.join(VIEWS)}) and `question` of the attack '{name}'", f"'{attack.view}'")
    return attack


OTHERS = plugins.Registry(plugins.ATTACKS, "attack", (), _checked)
