"""Where methods are found by name, those of other packages too; what a config asks for, ready to plan.

Methods of other packages are in the table by their entry points (`plugins`), and `register` adds one for this process.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Mapping
from typing import TypeVar

from airlock import plugins
from airlock.config import ReleaseConfig
from airlock.data import Facts
from airlock.errors import AirlockWarning, ConfigError
from airlock.methods.case import Canaries, Case
from airlock.methods.choice import choose, eligible, is_free
from airlock.methods.contract import Channel
from airlock.methods.search import Search
from airlock.methods.search_case import CASES
from airlock.nets.hugging_face import is_named

T = TypeVar("T")

# channel -> method -> where; the first one is meant by a config that names no method but a net, settings or a search.
_OWN: dict[str, dict[str, str]] = {
    "weights": {
        "gaussian": "airlock.methods.weights.gaussian:Gaussian",
        "shaped": "airlock.methods.weights.shaped:Shaped",
        "head": "airlock.methods.weights.head:Head",
    },
    "twin": {
        "sharded": "airlock.methods.twin.sharded:Sharded",
    },
    "student": {
        "ensemble": "airlock.methods.student.ensemble:Ensemble",
        "neighbours": "airlock.methods.student.neighbours:NeighboursStudent",
        "private-teacher": "airlock.methods.student.private_teacher:PrivateTeacher",
    },
    "features": {
        "noised": "airlock.methods.features.noised:Noised",
    },
    "answers": {
        "head": "airlock.methods.answers.head:Head",
        "per-query": "airlock.methods.answers.per_query:PerQuery",
        "neighbours": "airlock.methods.answers.neighbours:Neighbours",
        "votes": "airlock.methods.answers.votes:Votes",
    },
}

# Methods that were here once, as CHANNEL/METHOD, with what to use instead.
GONE: dict[str, str] = {
    "answers/savings": 'Use method = "votes" where no model may leave, or "head" where one may.',
}
# Methods that have another name now. Configs, comparisons, bundles and vaults with the old one keep working.
RENAMED: dict[str, str] = {
    "answers/poll": "answers/votes",
}
METHODS: dict[str, dict[str, str]] = plugins.methods(_OWN)
_MADE_FOR_ANOTHER = {
    "classification": "Its loss and its noise are not made for classes.",
    "regression": "Its loss and its noise are made for classes, not for a number.",
    "language": "Its loss and its noise are made for labels, and texts without labels have none.",
}


def register(method: type[Channel]) -> type[Channel]:
    """Make a method known to this process under its own channel and name; for trying it, and as a decorator.

    Raises:
        ConfigError: It does not keep the form of a method, or another one has its name.
    """
    name, where = f"{method.channel}/{method.method}", f"{method.__module__}:{method.__qualname__}"
    own = _pick(METHODS, method.channel, "channel")
    checked = _checked(method, name)  # first: what is refused leaves no trace
    if own.setdefault(method.method, where) != where:
        raise ConfigError("a name that no other method has", f"'{name}'")
    _LOADED[where] = checked
    return method


def find(config: ReleaseConfig) -> type[Channel]:
    """The class of the configured method; the channel's first when none is named (`build` chooses by the facts)."""
    methods = _pick(METHODS, config.channel, "channel")
    method = config.method if config.method is not None else next(iter(methods))
    name = f"{config.channel}/{method}"
    refuse_gone(name)
    name = RENAMED.get(name, name)
    return _load(_pick(methods, name.partition("/")[2], f"method of channel '{config.channel}'"), name)


def build(config: ReleaseConfig, facts: Facts) -> Channel:
    """The configured method, ready to plan; a search among several where the config has `[tune]`.

    Where the config leaves the method open (`choice`), it is chosen by the facts; `Channel.config` names it.

    Raises:
        ConfigError: It cannot protect what is to be protected.
    """
    if config.tune is not None:
        return Search(config, facts, build)
    if is_free(config) and (chosen := choose(config, facts, _own(config.channel), lambda one: build(one, facts))):
        return chosen
    if is_free(config) and facts.vocabulary is not None and (fit := eligible(_own(config.channel), facts)):
        config = config.model_copy(update={"method": fit[0].method})  # its refusal says why none can be planned
    method = find(config)
    if facts.unit not in method.units:
        raise ConfigError(
            f"a method that protects a {facts.unit} as a whole",
            f"{method.channel}/{method.method}, which protects one record",
            "Its noise hides one record; somebody with several would be protected less than the card says.",
            f'Take one of these: {", ".join(protecting(facts.unit))}. Or set unit = "record", and the card says so.',
        )
    if facts.task not in method.tasks:
        raise ConfigError(
            f"a method for {facts.task}",
            f"{method.channel}/{method.method}, which does not learn that",
            _MADE_FOR_ANOTHER[facts.task],
            f"Take one of these: {', '.join(learning(facts.task))}.",
        )
    if facts.vocabulary is not None and not method.texts:
        raise ConfigError(
            "a method for texts",
            f"{method.channel}/{method.method}, which takes numbers or images",
            "The numbers of a text are names of tokens: twice a token means nothing, nor does a mean of two.",
            f"Take one of these: {', '.join(reading_texts())}.",
        )
    named = [config.net, *(value for value in config.settings.values() if isinstance(value, str))]
    if not method.fine_tunes and any(map(is_named, named)):
        raise ConfigError(
            "a method that trains networks of transformers",
            f"{method.channel}/{method.method}",
            "Others name their networks on the card, and the path of a folder never leaves.",
            "Take weights/gaussian, weights/shaped, or student/private-teacher.",
        )
    return method(config, facts)


def _own(channel: str) -> list[type[Channel]]:
    """Airlock's own methods of a channel."""
    names = [f"{channel}/{method}" for method in _pick(METHODS, channel, "channel")]
    return [named(name) for name in names if is_built_in(name)]


def protecting(unit: str) -> tuple[str, ...]:
    """The built-in methods that protect a unit, as CHANNEL/METHOD."""
    names = [f"{channel}/{method}" for channel, methods in METHODS.items() for method in methods]
    return tuple(name for name in names if is_built_in(name) and unit in named(name).units)


def learning(task: str) -> tuple[str, ...]:
    """The built-in methods for a task, as CHANNEL/METHOD."""
    names = [f"{channel}/{method}" for channel, methods in METHODS.items() for method in methods]
    return tuple(name for name in names if is_built_in(name) and task in named(name).tasks)


def reading_texts() -> tuple[str, ...]:
    """The built-in methods whose records may be texts, as CHANNEL/METHOD."""
    names = [f"{channel}/{method}" for channel, methods in METHODS.items() for method in methods]
    return tuple(name for name in names if is_built_in(name) and named(name).texts)


def open_case(name: str, epsilon: float, delta: float, people: bool = False) -> Case:
    """What a method brings to court, by its name as CHANNEL/METHOD, for a claim of about (ε, δ); or a search.

    With `people`, a person of many records is added or removed instead of one record.
    """
    if name in CASES and not people:
        return CASES[name](epsilon, delta)
    method = named(name)
    return _of_people(method).case_of_people(epsilon, delta) if people else method.case(epsilon, delta)


def open_canaries(name: str, epsilon: float, delta: float, count: int, people: bool = False) -> Canaries:
    """The same for a trial by one run with so many canaries; with `people`, each is a person with several records."""
    method = named(name)
    if people:
        return _of_people(method).canaries_of_people(epsilon, delta, count)
    return method.canaries(epsilon, delta, count)


def _of_people(method: type[Channel]) -> type[Channel]:
    """A method that claims something about people.

    Raises:
        ConfigError: It claims nothing about them.
    """
    if "person" not in method.units:
        raise ConfigError(
            "a method that protects people",
            f"{method.channel}/{method.method}, which protects one record",
            "It claims nothing about a person with several, so there is nothing to try.",
            f"Leave out --people, or try one of these: {', '.join(protecting('person'))}.",
        )
    return method


def is_built_in(name: str) -> bool:
    """Whether a method, by its name as CHANNEL/METHOD, is Airlock's own, or was once; imports nothing."""
    channel, _, method = RENAMED.get(name, name).partition("/")
    return name in GONE or METHODS.get(channel, {}).get(method, "").startswith("airlock.")


def named(name: str) -> type[Channel]:
    """The class of a method by its name as CHANNEL/METHOD."""
    refuse_gone(name)
    name = RENAMED.get(name, name)
    table = {f"{channel}/{method}": where for channel, methods in METHODS.items() for method, where in methods.items()}
    return _load(_pick(table, name, "method that can be tried"), name)


_LOADED: dict[str, type[Channel]] = {}  # by where it is; methods that were registered by hand may be anywhere


def _load(where: str, name: str) -> type[Channel]:
    if where in _LOADED:
        return _LOADED[where]
    found = plugins.load(f"the method '{name}'", where)
    return _checked(found, name)


def _checked(method: object, name: str) -> type[Channel]:
    """A method keeps the contract's form, and does not call itself proven without a case for the court."""
    if not (isinstance(method, type) and issubclass(method, Channel)):
        raise ConfigError(f"a subclass of airlock.methods.Channel as '{name}'", f"{method!r:.80}")
    if f"{method.channel}/{method.method}" != name or not getattr(method, "title", ""):
        raise ConfigError(
            f"`channel`, `method` and `title` of the class of '{name}'",
            f"'{method.channel}/{method.method}'",
            "Cards and tables name a method by what its class says.",
        )
    if method.status == "proven" and method.case.__func__ is Channel.case.__func__:  # type: ignore[attr-defined]
        raise ConfigError(
            f"a `case` for the court from '{name}', which says that it is proven",
            "none",
            "A proof that nothing can be tried against is a claim.",
            'Give the method a `case` (methods/case.py), or status = "claimed".',
        )
    return method


def refuse_gone(name: str) -> None:
    """Say what to use instead of a method that is no longer there.

    Raises:
        ConfigError: `name`, as CHANNEL/METHOD, is one of `GONE`.
    """
    if name in GONE:
        why = "It was removed because another method does better wherever it was tried (CHANGELOG.md)."
        raise ConfigError("a method that is still there", f"'{name}'", why, GONE[name])


def current_name(name: str) -> str:
    """The name of a method today, for one that a user wrote as CHANNEL/METHOD; a warning says if it was another."""
    if name not in RENAMED:
        return name
    warnings.warn(f"'{name}' is now called '{RENAMED[name]}'; the old name still works.", AirlockWarning, stacklevel=3)
    return RENAMED[name]


def _pick(table: Mapping[str, T], key: str, what: str) -> T:
    if key in table:
        return table[key]
    near = difflib.get_close_matches(key, table, n=1)
    hint = f"Did you mean '{near[0]}'?" if near else plugins.INSTALL if what.startswith("method") else ""
    raise ConfigError(f"a {what} ({', '.join(table)})", f"'{key}'", do=hint)
