"""A comparison whose choice is paid for: the methods that can take part become the candidates of one search.

In: a `CompareConfig`. Out: the `ReleaseConfig` of a search over its methods, and which methods are left out and why. No
record is read. `pipeline.tune_release` makes it like any other search (`methods.search` has the proof), so one model
leaves, at one ε, and no table of results: there is no second mechanism here, and nothing else to account for.

Which methods take part, their order and their settings follow from the config and from public facts alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from airlock import methods
from airlock.comparison.advise import objection
from airlock.comparison.matrix import chosen, try_plan
from airlock.comparison.settings import CompareConfig, refuse_numbers
from airlock.comparison.values import Skipped
from airlock.config import ReleaseConfig, from_table
from airlock.errors import AirlockError, ConfigError, Refused
from airlock.methods.search import check_config
from airlock.pipeline import plan_release

FEWEST = 2  # methods to choose between


@dataclass(frozen=True)
class PaidComparison:
    """A comparison as a search, before any record is read.

    Args:
        config: Of the search; its ε is that of the whole.
        taking_part: The methods that are searched, as CHANNEL/METHOD.
        left_out: The others that were asked for, each with the reason.
        unused: Keys of the comparison that a search has no use for, one sentence each.
    """

    config: ReleaseConfig
    taking_part: tuple[str, ...]
    left_out: tuple[Skipped, ...]
    unused: tuple[str, ...]


def as_search(config: CompareConfig, data_dir: Path | None = None, recipient: str = "") -> PaidComparison:
    """The search that makes the choice between the methods of a comparison, paid for; reads no record.

    Args:
        config: What would be compared.
        data_dir: The folder of named data sets.
        recipient: To whom the release goes; `config.about.recipient` if left out.

    Raises:
        ConfigError: There is more than one ε, or another accountant than a search can have.
        Refused: Fewer than two methods can take part.
    """
    refuse_numbers(config)
    epsilon = one_epsilon(config)
    found: dict[str, ReleaseConfig] = {}
    left_out = []
    for name in chosen(config, always=()):
        made = _candidate(config, name, epsilon, data_dir)
        if isinstance(made, str):
            left_out.append(Skipped(method=name, reason=made))
        else:
            found[name] = made
    if len(found) < FEWEST:
        told = " ".join(f"{one.method}: {one.reason}" for one in left_out)
        raise Refused(
            f"at least {FEWEST} methods to choose between",
            f"{len(found)} that can take part" + (f" ({', '.join(found)})" if found else ""),
            told,
            "Name others in methods, or release with the one: airlock release." if found else "",
        )
    search = _searched(config, list(found.values()), epsilon, recipient)
    return PaidComparison(search, tuple(found), tuple(left_out), tuple(_unused(config, epsilon)))


def one_epsilon(config: CompareConfig) -> float:
    """The ε of the search: one model leaves.

    Raises:
        ConfigError: Several are compared, and `need.epsilon` does not say which.
    """
    if config.need.epsilon is not None or len(config.epsilons) == 1:
        return config.need.epsilon or config.epsilons[0]
    raise ConfigError(
        "one ε, for a choice that is paid for",
        f"{len(config.epsilons)} in epsilons",
        "One model leaves, and the ε of the search pays for all runs together.",
        f"Name one: need = {{ epsilon = {config.epsilons[0]:g} }} in the config.",
    )


def _candidate(config: CompareConfig, name: str, epsilon: float, data_dir: Path | None) -> ReleaseConfig | str:
    """The release config of a method that can take part, or why it cannot."""
    planned = try_plan(config, name, epsilon, data_dir)
    failed = isinstance(planned, AirlockError)
    against = objection(name, planned if failed else planned[1], config.need)  # type: ignore[index, arg-type]
    kind = methods.named(name)
    if not against and (kind.artefact != "network" or kind.withheld):
        against = "No network leaves as a whole, and runs are compared by what their network gets right."
    if against or failed:
        return against
    made: ReleaseConfig = planned[0]  # type: ignore[index]
    alone = _searched(config, [made], epsilon)
    check_config(alone)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plan_release(alone, data_dir)
    except AirlockError as error:
        return f"It cannot be searched. {error}"
    return made


def _searched(
    config: CompareConfig, candidates: list[ReleaseConfig], epsilon: float, recipient: str = ""
) -> ReleaseConfig:
    """One search over these; each candidate names all that it does not share with the others."""
    first = candidates[0]
    base = config.release(first.channel, epsilon, config.seeds[0], net="auto", settings={})
    tune = {**config.pay.model_dump(), "search": [_grid(one) for one in candidates]}
    about = config.about.model_dump() | ({"recipient": recipient} if recipient else {})
    more = {"tune": tune, "register": config.register, "about": about}
    return from_table({**base.model_dump(), **more})


def _grid(one: ReleaseConfig) -> dict[str, list[object]]:
    named: dict[str, object] = {"channel": one.channel, "method": one.method}
    if one.net != "auto":
        named["net"] = one.net
    named |= {f"settings.{key}": value for key, value in one.settings.items()}
    return {key: [value] for key, value in named.items()}


def _unused(config: CompareConfig, epsilon: float) -> Iterator[str]:
    if len(config.epsilons) > 1:
        yield f"epsilons: one model leaves, at ε = {epsilon:g}."
    if len(config.seeds) > 1:
        yield f"seeds: all runs have the split of the first, {config.seeds[0]}, and noise of their own."
    if config.minutes is not None:
        yield "minutes: a search that the clock ended would choose by what took long, which nothing pays for."
    if "court_seconds" in config.model_fields_set:
        yield "court_seconds: nothing unproven takes part."
    if config.baseline != type(config.baseline)():
        yield "settings.baseline: no model without privacy is trained."
