"""Plugins: methods, attacks, accountants, data sources and networks from other packages.

A package declares them in its pyproject.toml; once installed, all commands know them:

    [project.entry-points."airlock.methods"]
    "weights/class-means" = "class_means:ClassMeans"

    group                what the entry point leads to                          where its rules stand
    airlock.methods      a subclass of `methods.Channel`; named CHANNEL/METHOD  `methods`
    airlock.attacks      a subclass of `auditing.attacks.Attack`                `auditing.attacks.external`
    airlock.accountants  a function from an event and δ to ε                    `accounting.epsilon`
    airlock.sources      a `data.Source`                                        `data.sources`
    airlock.nets         a function from shape and classes to a network         `nets.registry`

One mechanism serves all five groups:

* Names are read when Airlock starts; nothing is imported until it is requested by name.
* Names that Airlock itself uses are ignored, and so are names with anything but lower-case letters, digits, `.`, `_`
  and `-`. If two packages register the same name, the first in alphabetical order gets it.
* A plugin that cannot be imported, is of the wrong kind or fails in use raises an error that names it and its package.
* Nothing is imported because a bundle names it (`refuse_strangers`): a user who wants it imported names it too.
"""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

from airlock.errors import AirlockError, ConfigError, Refused

TRANSFORMERS = "transformers:"  # before the folder of a network of transformers

METHODS = "airlock.methods"
ATTACKS = "airlock.attacks"
ACCOUNTANTS = "airlock.accountants"
SOURCES = "airlock.sources"
NETS = "airlock.nets"

INSTALL = "Take one of these, or install the package that brings it."
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_QUOTED = 200  # characters of another package's error message
_AGAIN = "Install its package again, or remove it."

T = TypeVar("T")


@dataclass(frozen=True)
class Plugin:
    """One registered plugin, not yet imported.

    Args:
        where: As `package.module:attribute`.
        package: The package's name and version; the module, if registered in this process.
    """

    where: str
    package: str

    @property
    def own(self) -> bool:
        """Whether it is Airlock's own, registered in the same way."""
        return self.where.startswith("airlock.")


def read(group: str) -> dict[str, Plugin]:
    """What the installed packages registered in a group, by name; imports nothing."""
    found: dict[str, Plugin] = {}
    for entry in sorted(entry_points(group=group), key=lambda entry: (entry.name, _package(entry))):
        found.setdefault(entry.name, Plugin(entry.value, _package(entry)))
    return found


@cache
def table(group: str) -> dict[str, Plugin]:
    """The same, restricted to well-formed names and read once; what this process registers is added to it."""
    return {name: entry for name, entry in read(group).items() if _NAME.fullmatch(name)}


def methods(own: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """The table of methods by channel, with other packages' methods after the built-in ones.

    Args:
        own: Channel, method, and where it is as `package.module:Class`.
    """
    found = {channel: dict(inner) for channel, inner in own.items()}
    for name, entry in read(METHODS).items():
        channel, slash, method = name.partition("/")
        if slash and method and channel in found:
            found[channel].setdefault(method, entry.where)
    return found


# What a config that somebody else may have written leads to.

_LEADS = {
    "net": (NETS,),
    "nets": (NETS,),  # of a comparison
    "accountant": (ACCOUNTANTS,),
    "data": (SOURCES,),
    "settings": (NETS, SOURCES),
    "tune": (NETS, SOURCES),
}
_WORDS = frozenset({"name", "label", "classes", "columns"})  # keys of a data set's table that hold free text


def strangers(config: Mapping[str, object]) -> dict[str, str]:
    """The values of a config that lead to code from elsewhere, by dotted key; imports nothing.

    Those are `package.module:function` as `net` or anywhere in `settings` or `tune`, and the names of other packages'
    methods, accountants, data sources and networks.
    """
    found = dict[str, str]()
    brought = {name for name, entry in read(METHODS).items() if not entry.own}
    searched = list(_texts(config.get("tune"), "tune"))
    channels = {name.partition("/")[0] for name in brought}  # a candidate may name another one than the config
    channels &= {str(config.get("channel")), *(text for _, text in searched)}
    for key, name in (*_texts(config.get("method"), "method"), *searched):
        if any(f"{channel}/{name}" in brought for channel in channels):
            found[key] = name
    for part, groups in _LEADS.items():
        known = {name for group in groups for name in table(group)}
        for key, text in _texts(config.get(part), part):
            if text in known or (":" in text and NETS in groups):
                found[key] = text
    return found


def refuse_strangers(config: Mapping[str, object], given: Mapping[str, object] | None = None) -> None:
    """Refuse a config from a bundle that leads to code from elsewhere, unless the user names the same now.

    Args:
        config: As the bundle states it, before what is given was put into it.
        given: What the user names, by dotted key. Whoever names something under one key means it under all.

    Raises:
        Refused: It names the first one, and says how to name it.
    """
    meant = {str(value) for value in (given or {}).values()}
    for key, name in strangers(config).items():
        if name not in meant and not any(key == own or key.startswith(f"{own}.") for own in given or ()):
            option = f"--net {name}" if key == "net" else f"--set {key}={name}"
            if name.startswith(TRANSFORMERS):
                asked = "--net " if key == "net" else f"--set {key}="
                option = f"{asked}{TRANSFORMERS}FOLDER, with the folder that it was made from"
            raise Refused(
                "names that you give yourself",
                f"'{name}' as {key} in the bundle's config.toml",
                "Nothing is imported because a bundle names it.",
                f"If you trust it, name it yourself: {option}",
            )


def _texts(value: object, key: str = "") -> Iterator[tuple[str, str]]:
    """Every string in a plain value, such as a config, with its dotted key."""
    if isinstance(value, str):
        yield key, value
    inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    for name, below in inner:
        if name not in _WORDS:
            yield from _texts(below, f"{key}.{name}" if key else str(name))


def load(what: str, where: str, error: type[AirlockError] = ConfigError) -> object:
    """Import what is registered.

    Args:
        what: What it is, as "the method 'weights/class-means'".
        where: As `package.module:attribute`.
        error: What to raise.

    Raises:
        AirlockError: It cannot be imported. An error in Airlock's own modules is raised unchanged.
    """
    try:
        return EntryPoint("", where, "").load()
    except (Exception, SystemExit) as problem:
        if where.startswith("airlock."):
            raise
        raise error(f"{what} in {where}", _told(problem), do=_AGAIN) from problem


class Registry(Generic[T]):
    """Other packages' plugins of one kind, by name.

    Args:
        group: Of the entry points.
        kind: What one is called in an error, as "net".
        own: Names that Airlock itself uses: no plugin can have them.
        check: Checks that what was imported under a name is of the right kind; raises `error` if not.
        error: What is raised about them.
    """

    def __init__(
        self,
        group: str,
        kind: str,
        own: Collection[str],
        check: Callable[[object, str], T],
        error: type[AirlockError] = ConfigError,
    ) -> None:
        self.kind, self._own, self._check, self._error = kind, own, check, error
        self._table, self._loaded = table(group), dict[str, T]()

    def __contains__(self, name: object) -> bool:
        return name in self._table and name not in self._own

    def names(self) -> tuple[str, ...]:
        """All names, both installed and registered in this process."""
        return tuple(name for name in self._table if name not in self._own)

    def whose(self, name: str) -> str:
        """The kind, the name and the package, as "net 'wide' of airlock-nets 1.0"."""
        return f"{self.kind} '{name}' of {self._table[name].package}"

    def package(self, name: str) -> str:
        """Its package, with the version."""
        return self._table[name].package

    def where(self, name: str) -> str:
        """Its location, as `package.module:attribute`."""
        return self._table[name].where

    def get(self, name: str) -> T:
        """Import it, unless already imported.

        Raises:
            AirlockError: There is none with this name, it cannot be imported, or it is of the wrong kind.
        """
        if name not in self:
            near = difflib.get_close_matches(name, self.names(), n=1)
            known = ", ".join(self.names()) or "none is installed"
            hint = (
                f"Did you mean '{near[0]}'?"
                if near
                else INSTALL
                if self.names()
                else "Install the package that brings it."
            )
            raise self._error(f"the {self.kind} of another package ({known})", f"'{name}'", do=hint)
        if name not in self._loaded:
            self._loaded[name] = self._checked(
                load(f"the {self.whose(name)}", self._table[name].where, self._error), name
            )
        return self._loaded[name]

    def register(self, name: str, thing: object) -> None:
        """Register something under a name in this process, to try it out.

        Raises:
            AirlockError: It is of the wrong kind, or the name is malformed or taken.
        """
        where = f"{getattr(thing, '__module__', '')}:{getattr(thing, '__qualname__', name)}"
        if not _NAME.fullmatch(name):
            raise self._error(f"lower-case letters, digits, '.', '_' and '-' as the name of a {self.kind}", f"'{name}'")
        taken = name in self._own or (name in self._table and self._table[name].where != where)
        if taken:
            raise self._error(f"a name that no other {self.kind} has", f"'{name}'", do="Take another name.")
        known = name in self._table
        self._table.setdefault(name, Plugin(where, where.partition(":")[0] or "this process"))
        try:
            self._loaded[name] = self._check(thing, name)
        except BaseException:
            if not known:
                del self._table[name]
            raise

    def _checked(self, thing: object, name: str) -> T:
        with self.blamed(name, "be what it is registered as", quote=True):
            return self._check(thing, name)

    @contextlib.contextmanager
    def blamed(self, name: str, does: str, *, quote: bool = False) -> Iterator[None]:
        """Turn any failure in another package's code into an error that names it.

        Args:
            name: Whose code is running.
            does: What it should do, as "give a network".
            quote: Include its error message; not where it has seen records, which the message may contain.
        """
        try:
            yield
        except AirlockError:
            raise
        except Exception as problem:
            found = _told(problem) if quote else f"an error in its code ({type(problem).__name__})"
            raise self._error(
                f"the {self.whose(name)} to {does}",
                found,
                "This is not Airlock's own code, so Airlock stops here.",
                "Report this to its author, or leave it out.",
            ) from problem


def _package(entry: EntryPoint) -> str:
    """Its name and version."""
    distribution = getattr(entry, "dist", None)
    return f"{distribution.name} {distribution.version}" if distribution is not None else "an unnamed package"


def _told(problem: BaseException) -> str:
    """Another package's error in one line."""
    said = " ".join(str(problem).split())[:_QUOTED]
    return f"an error: {type(problem).__name__}{f', {said}' if said else ''}".rstrip(".")
