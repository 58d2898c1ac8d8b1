"""Values that say where they come from, and the report that holds them.

A `Quote` is a value of a card or a dossier with its path, as in `card:guarantee.epsilon` or
`dossier:audit.attacks.0.value`. `Sources` alone makes them, by looking the path up, so a quoted value is the source's
own. What follows from a value (an entry of a list of words, a sum) is a quote too, and says how it was derived.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from airlock.auditing.paid_auc import PaidAttack
from airlock.auditing.result import AttackResult
from airlock.bundle.card import Card
from airlock.bundle.dossier import Dossier

AnswerState = Literal["proven", "measured", "stated", "not proven", "not measured", "not stated", "to be filled in"]

TO_FILL_IN = "To be filled in by the controller: a card does not know it."
STAYS = "This document has figures of the dossier: they follow from single records, and no ε covers them."
IN_DOSSIER = (
    "Not stated here. What attacks measured follows from single records: it is in the dossier, which stays with "
    "whoever made the release."
)


@dataclass(frozen=True)
class Quote:
    """One value and where it comes from.

    Args:
        name: What it is called.
        value: A plain JSON value.
        source: `card:PATH` or `dossier:PATH`; or `user`, for what the user filled in.
        derived: How the value follows from the source; empty where it is the source's own.
    """

    name: str
    value: Any
    source: str
    derived: str = ""


@dataclass(frozen=True)
class Answer:
    """One thing that a form asks for.

    Args:
        key: Short and unique in its report.
        asks: What is asked.
        state: What stands behind the answer.
        says: The answer, in sentences.
        quotes: The values behind it.
    """

    key: str
    asks: str
    state: AnswerState
    says: tuple[str, ...]
    quotes: tuple[Quote, ...] = ()


@dataclass(frozen=True)
class Chapter:
    """Answers under one heading."""

    title: str
    answers: tuple[Answer, ...]


@dataclass(frozen=True)
class Report:
    """A document about one release.

    Args:
        kind: Which document: "dpia" or "nist".
        title: Its title.
        follows: What it follows: the publication and its version.
        release_id: The release.
        headline: The card's first line.
        stays: Whether it holds figures of the dossier, and so stays inside.
        note: What the reader must know before the rest.
        chapters: The answers.
    """

    kind: str
    title: str
    follows: str
    release_id: str
    headline: str
    stays: bool
    note: str
    chapters: tuple[Chapter, ...]

    @property
    def quotes(self) -> tuple[Quote, ...]:
        """Every value in it."""
        return tuple(quote for chapter in self.chapters for answer in chapter.answers for quote in answer.quotes)


@dataclass(frozen=True)
class Sources:
    """A card and, where the document stays inside, its dossier, to quote from."""

    card: Card
    dossier: Dossier | None = None
    _tables: dict[str, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        tables = {"card": self.card.model_dump(mode="json")}
        if self.dossier is not None:
            tables["dossier"] = self.dossier.model_dump(mode="json")
        object.__setattr__(self, "_tables", tables)

    def report(self, kind: str, title: str, follows: str, note: str, chapters: tuple[Chapter, ...]) -> Report:
        """A document with these chapters; it stays inside if the dossier is among the sources."""
        stays = self.dossier is not None
        return Report(kind, title, follows, self.card.release_id, self.headline, stays, note, chapters)

    def quote(self, source: str, name: str = "") -> Quote:
        """The value at a path such as `card:guarantee.epsilon`; its name is the path's last word if left out."""
        return Quote(name or source.rpartition(".")[2].rpartition(":")[2].replace("_", " "), self.value(source), source)

    def quotes(self, where: str, *names: str) -> tuple[Quote, ...]:
        """The values of several fields of one table."""
        return tuple(self.quote(f"{where}{name}") for name in names)

    def derive(self, source: str, name: str, value: Any, how: str) -> Quote:
        """A value that follows from the one at a path."""
        self.value(source)
        return Quote(name, value, source, how)

    def value(self, source: str) -> Any:
        """What stands at a path.

        Raises:
            KeyError: Nothing does.
        """
        where, _, path = source.partition(":")
        found = self._tables[where]
        for part in path.split("."):
            if isinstance(found, list):
                found = found[int(part)]
            else:
                found = found[part]
        return found

    def beating(self, where: str) -> tuple[AttackResult | PaidAttack, ...]:
        """The attacks of the "card" or the "dossier" that do better than chance, all of their tries considered."""
        if where == "dossier":
            return self.dossier.audit.beating if self.dossier is not None else ()
        return tuple(one for one in self.card.audit.attacks if one.beats_chance(len(self.card.audit.attacks)))

    @property
    def proven(self) -> bool:
        """Whether the guarantee is proven, its noise secret, and, as far as the sources tell, nothing refutes it."""
        return (self.dossier or self.card).verdict == "proven"

    @property
    def headline(self) -> str:
        """The first line: the card's, or what the dossier knows better."""
        return (self.dossier or self.card).headline


def counted(sources: Sources) -> tuple[str, tuple[Quote, ...]]:
    """How many people, or records, the data have, and where the card says so; figures that are public, not counted."""
    data = sources.card.data
    records = f"about {data.records:,} records"
    if data.people is not None:
        quotes = sources.quotes("card:data.", "people", "records")
        return f"About {data.people:,} people, with {records} in all.", quotes
    more = ", of which one person may have several" if data.grouped else ""
    return f"{records.capitalize()}{more}.", sources.quotes("card:data.", "records", "grouped")


def attack_quotes(sources: Sources, where: str) -> tuple[Quote, ...]:
    """The figures of one attack, at `card:audit.attacks.N` or `dossier:audit.attacks.N`."""
    fields = ("name", "view", "score", "value", "low", "high", "chance", "members", "non_members")
    more = ("epsilon_lower_bound", "could_refute") if where.startswith("dossier") else ("epsilon",)
    return sources.quotes(f"{where}.", *fields, *more)


def attack_words(sources: Sources, where: str) -> str:
    """The figures of one attack in a sentence."""
    one = sources.value(where)
    better = one["name"] in {attack.name for attack in sources.beating(where.partition(":")[0])}
    found = "does better than chance" if better else "does no better than chance"
    interval = f"{one['score']} {one['value']:.3f}, {one['low']:.3f} to {one['high']:.3f}; chance {one['chance']:g}"
    return f"The attack '{one['name']}' ({one['view']}) {found}: {interval}."


def membership(sources: Sources, views: tuple[str, ...]) -> tuple[AnswerState, tuple[str, ...], tuple[Quote, ...]]:
    """What attacks on membership by attackers with these views found, as far as the sources tell."""
    says: list[str] = []
    quotes: list[Quote] = []
    inside = sources.dossier.audit.attacks if sources.dossier else ()
    seen = [("card", [one.view for one in sources.card.audit.attacks]), ("dossier", [one.view for one in inside])]
    for name, held in seen:
        for index, view in enumerate(held):
            if view in views:
                says.append(attack_words(sources, f"{name}:audit.attacks.{index}"))
                quotes += attack_quotes(sources, f"{name}:audit.attacks.{index}")
    state: AnswerState = "measured" if says else "not stated" if sources.dossier is None else "not measured"
    if sources.dossier is None:
        says.append(sources.card.words.audit)
        quotes.append(sources.quote("card:words.audit"))
    elif not says:
        says.append("Not measured: no such attack is in the dossier.")
    return state, tuple(says), tuple(quotes)
