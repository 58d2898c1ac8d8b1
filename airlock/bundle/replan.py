"""Does the card say what its config leads to? The release is planned again, without a record, and compared.

A plan is a function of the config and of public facts, so anyone who has a bundle can make it again. What must agree:
what leaves, the events and with them ε, δ, status and unit; the sentences that a reviewer ticks; the public figures;
and, where answers leave, how many there are and how much noise is on each. So whoever changes one of these has to
change the config too, and then the card says what that config promises.

The noise is not searched for again, which takes seconds: the card's is right if its ε is at most the requested one and
1e-3 less noise would exceed it (`accounting.calibrate`).

What cannot be planned is skipped, and the reason is given: nothing is imported because a bundle names it, paths and
some settings never leave, and figures that are only known after the records were read are not part of a plan. Nothing
is skipped before data and settings were checked: a key that means nothing would switch the comparison off. An
accountant from elsewhere can raise ε and with it the noise, but no more: the release is planned without it.
"""

from __future__ import annotations

import math
import tomllib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from airlock import data, methods, nets, plugins
from airlock._version import VERSION
from airlock.accounting.calibrate import suggesting
from airlock.auditing import paid_attacks
from airlock.bundle.card import Card
from airlock.bundle.contents import CONFIG, PATH_REMOVED, Contents, Defects, Skip, Test
from airlock.config import (
    ACCOUNTANTS,
    MINILM,
    SEARCHED_KEYS,
    TRANSFORMERS,
    DataConfig,
    ReleaseConfig,
    TuneConfig,
    from_table,
    merge,
    parse,
)
from airlock.data import Facts
from airlock.data.people import declared_people, refuse_test_file, unit_of
from airlock.data.sources import SOURCES
from airlock.data.text import TOKENS
from airlock.errors import AirlockError, ConfigError
from airlock.methods.contract import Channel, Plan
from airlock.training.front_ends.public import is_about_public

CLOSE = 1e-9  # relative; another machine may round a logarithm or a power in another way
_MOST_INPUTS = 1 << 22  # numbers in a record; planning makes the network
_PLAIN = "pixels-linear"  # the record itself
_NOT_COMPARED = "Events, noise, budget and figures were not compared with what the config leads to."
_A_PATH = f"A setting was a path, which never leaves. {_NOT_COMPARED}"
_ELSEWHERE = "(not in the bundle)"
_NOISE = "noise_multiplier"
_WITH_TEXTS = TRANSFORMERS + MINILM  # which everybody has who has the extra `text`
_RAISED = 1e-2  # relative; noise is found to 1e-3, and its ε is below the one asked for by less than this
# Settings that may name a path, a data set or a network from elsewhere, by channel, and what stands in for it.
_PUBLIC: dict[str, object] = {"features": "auto", "public": PATH_REMOVED}
_FROM_ELSEWHERE: dict[str, dict[str, object]] = {
    "weights": _PUBLIC,
    "twin": _PUBLIC,
    "student": {"teacher": "auto"},
    "features": {"front": "residual", "pool": [], "weights": PATH_REMOVED, "pretrain_on": PATH_REMOVED,
                 "characterised": PATH_REMOVED},
}  # fmt: skip


def tests(files: Contents, card: Card | None, given: Mapping[str, object] | None) -> list[Test]:
    """The check against the plan.

    Args:
        files: The bundle's.
        card: Its card.
        given: What the user names in place of the config's own code from elsewhere, by dotted key; it is imported.
    """
    says = "Events, noise, budget and figures are those that the config leads to."
    return [("plan", says, lambda: _compare(files, card, given or {}))]


def as_asked(config: ReleaseConfig, card: Card | None) -> ReleaseConfig:
    """A bundle's config as it was asked for: under the method's name of today, and with the front end left to it.

    Where the config does not name features, those on the card are meant: what is chosen for a table has changed, and
    bundles from before have the record itself. Everything else on the card is compared with what these lead to.
    """
    _, _, method = methods.RENAMED.get(f"{config.channel}/{config.method}", "").partition("/")
    if method:  # without a notice: the user cannot change what a bundle says
        config = config.model_copy(update={"method": method})
    if card is not None and card.details.get("net") == _PLAIN and config.data.columns:
        settings = {"features": _PLAIN.removesuffix("-linear"), **config.settings}
        config = config.model_copy(update={"settings": settings})
    # The method chooses a front end by itself: as a `net` it would be trained as a whole.
    return config.model_copy(update={"net": "auto"}) if nets.is_front(config.net) else config


def _compare(files: Contents, card: Card | None, given: Mapping[str, object]) -> Defects:
    if card is None:
        raise Skip("There is no usable card.json to check it against.")
    table = tomllib.loads(files.read(CONFIG).decode("utf-8"))
    strangers = _strangers(table, given)
    accountant = strangers.pop("accountant", None)  # it can only raise ε, so that the rest can be planned without it
    unseen = _unseen(table, strangers)
    config = _config(table, given, {**strangers, **({"accountant": ""} if accountant else {})}, card)
    method = methods.find(config)
    if method.withheld:
        raise Skip(f"Settings that {method.channel}/{method.method} plans with stay in the vault. {_NOT_COMPARED}")
    facts = _facts(config, card)
    if of_data := list(_of_data(facts, config, card)):
        return _with_version(of_data, card)
    if config.data.source not in SOURCES and math.prod(facts.shape) > _MOST_INPUTS:
        raise Skip(f"Its records are too large to make their network here. {_NOT_COMPARED}")
    if unseen is not None:
        _check_settings(config, facts)
        raise Skip(unseen)
    defects, epsilon = _differences(config, facts, card)
    if defects and accountant:
        defects = _with_more_noise(config, facts, card, epsilon, accountant)
    return _with_version(defects, card)


def _differences(
    config: ReleaseConfig, facts: Facts, card: Card, *, or_more: bool = False
) -> tuple[list[str], float | None]:
    """What the card says otherwise than the plan, and the plan's ε."""
    with warnings.catch_warnings(), suggesting(list(_noises(card)), or_more=or_more):
        warnings.simplefilter("ignore")
        channel = methods.build(paid_attacks.for_method(config), facts)
        plan = paid_attacks.planned(config, facts, channel.planned)
        return [*_of_plan(plan, card), *_of_artefact(channel, card)], plan.guarantee.epsilon


def _with_more_noise(
    config: ReleaseConfig, facts: Facts, card: Card, epsilon: float | None, accountant: str
) -> list[str]:
    """The same for an accountant that is not asked: one that raises ε leads to more noise for the ε asked for.

    So the card's noise may be larger than the plan's, but the ε on the card is still the one that was asked for.
    """
    defects, _ = _differences(config, facts, card, or_more=True)
    if not defects and (epsilon is None or (card.guarantee.epsilon or 0.0) < (1 - _RAISED) * epsilon):
        defects = ["The card's ε is below the one that its noise was raised for."]
    asks = f"To ask '{accountant}', which is not imported because a bundle names it: --set accountant={accountant}"
    return [*defects, asks] if defects else []


def _check_settings(config: ReleaseConfig, facts: Facts) -> None:
    """Refuse settings that the method does not have, where the plan itself cannot be made.

    Raises:
        ConfigError: One is unknown or has a value that it cannot have.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            methods.build(paid_attacks.for_method(config), facts)
    except AirlockError as error:  # any other is about what is not here
        if isinstance(error.__cause__, ValidationError):
            raise


def _with_version(defects: list[str], card: Card) -> Defects:
    """What was planned may differ from one version of Airlock to the next."""
    if defects and card.airlock_version != VERSION:
        defects.append(f"The card was written by Airlock {card.airlock_version}; compare with that version.")
    return defects


def _strangers(table: Mapping[str, Any], given: Mapping[str, object]) -> dict[str, str]:
    """The config's code from elsewhere that the user does not name, by dotted key.

    Raises:
        ConfigError: The user names something that is not the config's own code from elsewhere.
    """
    strangers = plugins.strangers(table) | _not_built_in(table)
    for key in given:
        if key not in strangers and key != "net":  # whose outputs are compared, whether it is built in or not
            raise ConfigError(
                "names for what config.toml leads to outside Airlock", f"{key}", do="Leave it out: it is in the bundle."
            )
    return {key: name for key, name in strangers.items() if key not in given}


def _unseen(table: Mapping[str, Any], strangers: Mapping[str, str]) -> str | None:
    """Why the config cannot be planned here: code from elsewhere, or a path that did not leave; None if it can.

    Raises:
        Skip: It is the method itself, so that nothing more can be said.
        ConfigError: It is in a setting that cannot hold such a thing.
    """
    name, found = f"{table.get('channel')}/{table.get('method')}", None
    if name in methods.GONE:
        raise Skip(f"There is no {name} any more. {_NOT_COMPARED}")
    if (unseen := _search_unseen(table)) is not None:
        raise Skip(unseen)
    settings = table.get("settings")
    inner = settings if isinstance(settings, Mapping) else {}
    hidden = {f"settings.{key}": PATH_REMOVED for key, value in inner.items() if PATH_REMOVED in str(value)}
    for key, value in {**hidden, **strangers}.items():
        found = found or (_A_PATH if key in hidden else _not_imported(key, value))
        if key == "method" or (key.startswith("settings.") and not methods.is_built_in(name)):
            raise Skip(found)
        if key.startswith("settings.") and key.split(".")[1] not in _FROM_ELSEWHERE.get(str(table.get("channel")), {}):
            raise ConfigError(f"neither a path nor a network as {key} of {name}", f"'{value}'", "It cannot be either.")
    return found


def _not_imported(key: str, name: str) -> str:
    if (key, name) == ("net", nets.MEMORY):
        return (
            f"Its network was in memory where the release was made, and no name leads to it. {_NOT_COMPARED} "
            "Whoever has it compares them in Python: airlock.verify(BUNDLE, net=MODULE)."
        )
    own = f"{TRANSFORMERS}FOLDER" if name.startswith(TRANSFORMERS) and name != _WITH_TEXTS else name
    option = f"--net {own}" if key == "net" else f"--set {key}={own}"
    return (
        f"'{name}', its {key}, is not imported because a bundle names it. {_NOT_COMPARED} To compare them, name it "
        f"yourself: {option}"
    )


def _config(
    table: dict[str, Any], given: Mapping[str, object], strangers: Mapping[str, str], card: Card | None
) -> ReleaseConfig:
    """The config that can be planned, or at least checked: with stand-ins for what is not imported."""
    here = table.get("data")
    placed = {} if isinstance(here, Mapping) and "source" in here else {"data.source": _ELSEWHERE}
    holds = _FROM_ELSEWHERE.get(str(table.get("channel")), {})
    instead: dict[str, object] = {}
    for key in strangers:
        top, *below = key.split(".")
        if top == "settings" and below[0] in holds:
            instead[f"settings.{below[0]}"] = holds[below[0]]
        elif top in ("net", "accountant"):
            instead[top] = "auto"
    foreign = plugins.strangers(table) | _not_built_in(table)
    named = {key: value for key, value in given.items() if key in foreign}
    return as_asked(from_table(merge(table, {**placed, **instead, **named})), card)


def _not_built_in(table: Mapping[str, Any]) -> dict[str, str]:
    """The names that are not Airlock's own, whether or not their package is installed here."""
    own = table.get("channel") in methods.METHODS and methods.is_built_in(f"{table['channel']}/{table.get('method')}")
    known = {
        "method": own,
        "accountant": table.get("accountant", "auto") in ACCOUNTANTS,
        "net": _is_own_net(table.get("net", "auto")),
    }
    found = {key: str(table.get(key)) for key, ours in known.items() if not ours}
    settings = table.get("settings")
    teacher = settings.get("teacher", "auto") if isinstance(settings, Mapping) else "auto"
    if table.get("channel") == "student" and isinstance(teacher, str) and not _is_own_teacher(teacher):
        found["settings.teacher"] = teacher
    return found


def _search_unseen(table: Mapping[str, Any]) -> str | None:
    """Why the candidates of a search cannot be planned here; None if they can, or if there is no search.

    Raises:
        ConfigError: Code from elsewhere or a path is where there cannot be such a thing.
    """
    if table.get("tune") is None:
        return None
    tune = parse(TuneConfig, table["tune"], "tune")
    base = {} if tune.base is None else dict(_dotted(tune.base.model_dump(exclude_none=True)))
    for candidate in tune.candidates:
        named = {"channel": str(table.get("channel")), **base, **candidate}
        for key, value in named.items():
            if (unseen := _value_unseen(str(named["channel"]), key, value)) is not None:
                return unseen
    return None


def _value_unseen(channel: str, key: str, value: object) -> str | None:
    """Why one value of a candidate cannot be planned with here; None if it can.

    Raises:
        ConfigError: Code from elsewhere or a path is where there cannot be such a thing.
    """
    hidden, name = PATH_REMOVED in str(value), key.split(".")[-1 if "." not in key else 1]
    if not hidden and not _is_foreign(channel, key, name, value):
        return None
    if key not in SEARCHED_KEYS and name not in _FROM_ELSEWHERE.get(channel, {}):
        raise ConfigError(f"neither a path nor a network as {key} in [tune]", f"'{value}'", "It cannot be either.")
    return (
        _A_PATH
        if hidden
        else f"'{value}', which was searched, is not imported because a bundle names it. {_NOT_COMPARED}"
    )


def _is_foreign(channel: str, key: str, name: str, value: object) -> bool:
    """Whether a value of a candidate leads to code from elsewhere, installed here or not."""
    if key == "channel":
        return False  # packages bring methods, no channels; one that is unknown is refused with the config
    if key == "method":
        return not methods.is_built_in(f"{channel}/{value}")
    if key == "net":
        return not _is_own_net(value)
    teacher = channel == "student" and name == "teacher" and not _is_own_teacher(value)
    return teacher or bool(plugins.strangers({"settings": {name: value}}))


def _is_own_net(name: object) -> bool:
    return _is_own_teacher(name) or nets.is_front(str(name))


def _is_own_teacher(name: object) -> bool:
    return name == "auto" or nets.is_built_in(name)


def _dotted(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if key == "settings":
            yield from ((f"settings.{name}", inner) for name, inner in value.items())
        else:
            yield key, value


def _facts(config: ReleaseConfig, card: Card) -> Facts:
    """What is public about the data: as published, or as the owner declared it, which only the card says in full."""
    said = card.data
    if config.data.source in SOURCES:
        return data.describe(config, read_by=(said.tokenizer or "", said.vocabulary or 0))
    unit = unit_of(config)
    columns = tuple(config.data.columns.items())
    known = Facts(said.name, said.shape, said.classes, said.records, said.test_records, said.origin, columns=columns,
                  read_off=config.data.read_off, target=config.data.target, vocabulary=said.vocabulary,
                  tokenizer=said.tokenizer)  # fmt: skip
    if config.data.person is None or unit == "record":
        return replace(known, grouped=config.data.person is not None)
    if said.test_records is not None:
        refuse_test_file("data.test_records")
    people, most = declared_people(config.data)
    return replace(known, people=people, records_per_person=most)


def _of_data(facts: Facts, config: ReleaseConfig, card: Card) -> Iterator[str]:
    keys = ("name", "origin", "shape", "classes", "records", "test_records", "people", "grouped", "read_off", "target",
            "vocabulary", "tokenizer")  # fmt: skip
    named = {key: getattr(facts, key) for key in keys}
    if config.data.source not in SOURCES:
        named |= _declared(config.data)
    for key, value in {**named, "public_share": config.split.public}.items():
        if not _same(getattr(card.data, key), value):
            yield f"The card's data.{key} is not that of the config."
    taken = [one.input_shape for one in (card.network, card.interface) if one is not None]
    if any(shape != facts.shape for shape in taken):
        yield "What leaves does not take the records of the config."


def _declared(declared: DataConfig) -> dict[str, object]:
    """What a config says of the owner's own data; it always says how many records there are."""
    classes = declared.classes if declared.target is None and not declared.documents else ()
    table = (sum(column.width for column in declared.columns.values()),)
    texts = None if declared.text is None else (declared.tokens or TOKENS,)
    named: dict[str, object] = {"shape": table if declared.columns else texts or declared.shape}
    named["classes"] = tuple(map(str, range(classes))) if isinstance(classes, int) else classes
    return {"records": declared.records} | {key: value for key, value in named.items() if value is not None}


def _of_plan(plan: Plan, card: Card) -> Iterator[str]:
    stated, planned = card.guarantee.model_dump(mode="json"), plan.guarantee.to_dict()
    stated_name = methods.RENAMED.get(f"{card.channel}/{card.method}", f"{card.channel}/{card.method}")
    if (stated_name, card.leaves) != (f"{plan.channel}/{plan.method}", plan.leaves):
        yield "What the card says leaves is not what the config leads to."
    for key in ("status", "unit", "relation", "delta", "sampling", "claim", "events"):
        if not _same(stated[key], planned[key]):
            yield f"The guarantee's {key} {'are' if key == 'events' else 'is'} not what the config leads to."
    for said in plan.guarantee.assumptions:
        if said not in card.guarantee.assumptions and not is_about_public(said):
            yield f"The card does not state an assumption: {said}"
    for key, value in plan.details.items():
        found = card.details.get(key)
        known_later = isinstance(value, str) and isinstance(found, int | float)  # in words until it was executed
        if not (known_later or _same(found, value)):
            yield f"The card's {key} is not what the config leads to."


def _of_artefact(channel: Channel, card: Card) -> Iterator[str]:
    facts, net = channel.facts, card.network
    if card.artefact != channel.artefact:
        yield f"A bundle of {channel.channel}/{channel.method} holds something else."
    elif net is not None and (net.input_shape, net.classes, net.target) != (facts.shape, facts.classes, facts.target):
        yield "The network does not take the records of the config."
    wanted = channel.interface()
    if wanted is not None and card.interface is not None and not _same(vars(card.interface), vars(wanted)):
        wrong = [key for key, value in vars(wanted).items() if not _same(getattr(card.interface, key), value)]
        yield f"What may be asked is not what the config leads to: {', '.join(wrong)}."


def _noises(card: Card) -> Iterator[float]:
    """Every noise multiplier on the card."""
    figures = {} if card.interface is None else card.interface.figures
    for key, value in (*card.details.items(), *figures.items()):
        if _NOISE in key and isinstance(value, int | float):
            yield float(value)
    if card.tuning.search is not None:
        yield from set(_noises_of(card.guarantee.events))


def _noises_of(event: Any) -> Iterator[float]:
    """Every noise multiplier in the events of a search: each of its candidates has one of its own."""
    inner = event.values() if isinstance(event, Mapping) else event if isinstance(event, list) else ()
    if isinstance(event, Mapping) and isinstance(event.get(_NOISE), int | float):
        yield float(event[_NOISE])
    for value in inner:
        yield from _noises_of(value)


def _same(one: Any, other: Any) -> bool:
    """Whether two plain values are equal, lists and tuples alike, and numbers up to rounding."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float) or isinstance(other, float):
        numbers = isinstance(one, int | float) and isinstance(other, int | float)
        return numbers and math.isclose(one, other, rel_tol=CLOSE, abs_tol=0.0)
    return type(one) is type(other) and bool(one == other)
