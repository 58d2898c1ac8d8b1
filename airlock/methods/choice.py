"""Which method a config without one means, and the order in which `advise` ranks methods: one rule from public facts.

In: a config that names no method, and the public facts about the data. Out: the method of its channel that usually does
best (`Channel.rank`), among Airlock's own proven ones that protect the unit, can be planned,
and whose noise does not drown what they say. No record is read, so the choice costs nothing; anyone who has the config
and the facts makes the same one.

Whoever names a network, settings or a search has a method in mind: then the channel's first method is meant, as in
configs from before there was a choice. A bundle's config always names its method.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Sequence

from airlock.config import ReleaseConfig
from airlock.data import Facts
from airlock.errors import AirlockError
from airlock.methods.contract import Channel, Plan


def is_free(config: ReleaseConfig) -> bool:
    """Whether the method follows from public facts: the config names neither it nor anything that is meant for one."""
    return config.method is None and config.tune is None and config.net == "auto" and not config.settings


def is_drowned(plan: Plan) -> bool:
    """Whether, by the plan, noise exceeds what one shard can contribute, or a clear lead in votes."""
    figures = plan.details
    spread, votes = (figures.get(key) for key in ("noise_norm_over_radius", "noise_on_a_count"))
    voters = figures.get("heads", figures.get("neighbours"))
    if isinstance(votes, float) and isinstance(voters, int):
        return votes > voters / 4
    return isinstance(spread, float) and spread > 1


def eligible(methods: Iterable[type[Channel]], facts: Facts) -> tuple[type[Channel], ...]:
    """The methods that may be chosen for these data without being named, those that usually do best first."""
    fit = [
        one
        for one in methods
        if one.status == "proven" and one.listed and facts.unit in one.units and facts.task in one.tasks
        if one.texts or facts.vocabulary is None
    ]
    return tuple(sorted(fit, key=lambda one: one.rank))


def choose(
    config: ReleaseConfig, facts: Facts, methods: Sequence[type[Channel]], make: Callable[[ReleaseConfig], Channel]
) -> Channel | None:
    """The first eligible method that can be planned and is not drowned by its noise; None if none can be planned.

    Warnings about methods that are not chosen are not shown.

    Args:
        config: Without a method.
        facts: What is public about the data.
        methods: Airlock's own methods of the channel.
        make: Builds the method of a config that names it.
    """
    planned: list[tuple[Channel, list[warnings.WarningMessage]]] = []
    for method in eligible(methods, facts):
        with contextlib.suppress(AirlockError), warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            channel = make(config.model_copy(update={"method": method.method}))
            clear = not is_drowned(channel.planned)
            planned = [(channel, told)] if clear else [*planned, (channel, told)]
            if clear:
                break
    if not planned:
        return None
    for one in planned[0][1]:
        warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    return planned[0][0]
