"""A register: the lifetime budget of a data set, kept in a ledger of its own kind.

    reserve   charge what a release costs, before it reads a record; refused if it does not fit
    start     the run is about to read
    give_back a run that did not start returns its units, once
    release   what the run made leaves; once for each reservation

`reservations` has the rules and their proof. The ledger adds units; what a unit is and what a release costs is said by
the privacy filter (`accounting.privacy_filter`), whose figures stand in the terms.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from airlock.errors import ConfigError, Exhausted, Refused
from airlock.ledger.chain import RELEASED, RESERVED, RETURNED, STARTED, Entry, digest
from airlock.ledger.ledger import Balance, Ledger, Terms
from airlock.ledger.reservations import NotOpen, OpenReservation, advanced
from airlock.ledger.transaction import Transaction
from airlock.ledger.units import LARGEST
from airlock.ledger.verify import LedgerVerification


@dataclass(frozen=True)
class RegisterTerms(Terms):
    """What a register was created for; it never changes.

    Attributes:
        register: The declared name of the data set.
        epsilon: Of everything that ever leaves.
        delta: Of everything that ever leaves.
        order: The Rényi order of the filter.
        protects: Whose presence is protected: "record".
    """

    register: str
    epsilon: float
    delta: float
    order: int
    protects: str

    @classmethod
    def from_json(cls, text: str) -> RegisterTerms:
        """The inverse of `to_json`.

        Raises:
            ConfigError: They are those of a service's ledger.
        """
        fields: dict[str, Any] = json.loads(text)
        if "register" not in fields:
            raise ConfigError(
                "a register in this place",
                "the ledger of a service",
                "It sells answers of one release, and knows nothing of others.",
                "Name the register, or create one: airlock register create.",
            )
        return cls(**fields)


@dataclass(frozen=True)
class Reserve:
    """Charge a release."""

    units: int
    token: str
    note: str
    client: str = ""
    key_digest: str = ""

    def __post_init__(self) -> None:
        if type(self.units) is not int or not 1 <= self.units <= LARGEST:
            raise ConfigError("a whole number from 1 as units", repr(self.units)[:40], "No release is free.")

    def apply(self, transaction: Transaction) -> tuple[OpenReservation, int]:
        """The reservation, and what was spent with it.

        Raises:
            Exhausted: The cap does not cover it.
        """
        if not transaction.state.is_register:
            raise ConfigError("a register", "the ledger of a service", "Nothing is given back in it.")
        left = transaction.cap - transaction.spent
        if self.units > left:
            raise Exhausted(self.units, left, "the budget")
        transaction.spent += self.units
        number = transaction.append(RESERVED, "", units=self.units, key=self.token, note=self.note)
        made = OpenReservation(number, self.units, self.token)
        transaction.reservations[number] = made
        return made, transaction.spent


@dataclass(frozen=True)
class Advance:
    """What follows a reservation."""

    kind: str
    number: int
    token: str
    more: Mapping[str, str]
    client: str = ""
    key_digest: str = ""

    def apply(self, transaction: Transaction) -> None:
        """Write the entry.

        Raises:
            Refused: The reservation is not open for it.
        """
        try:
            transaction.spent -= advanced(transaction.reservations, self.number, self.kind, self.token)
        except NotOpen as error:
            raise Refused(
                f"a reservation that can be {self.kind}",
                "one that is returned, released, or another's",
                "Each reservation pays for one release.",
                "Begin the release anew: --again. It is charged again.",
            ) from error
        note = json.dumps({"of": self.number, **self.more}, sort_keys=True)
        transaction.append(self.kind, "", key=self.token, note=note)


@dataclass(frozen=True)
class Held:
    """A reservation with its token: whoever has it can start it, return it and release.

    Attributes:
        entry: The number of its entry.
        units: What was charged.
        token: Secret.
        spent: What was spent in total when it was made, itself included.
    """

    entry: int
    units: int
    token: str
    spent: int


class Register:
    """A ledger that reserves. Open it after forking, and close it when done."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.terms = RegisterTerms.from_json(ledger.terms)

    @classmethod
    def open(
        cls,
        place: str | Path,
        mark: Path,
        terms: RegisterTerms | None = None,
        *,
        known: str | None = None,
        new_mark: bool = False,
    ) -> Register:
        """Open the register at `place`, or create it if there is none and terms are given; as `Ledger.open`."""
        ledger = Ledger.open(place, mark, terms, known=known, new_mark=new_mark)
        try:
            return cls(ledger)
        except BaseException:
            ledger.close()
            raise

    def reserve(self, units: int, about: Mapping[str, Any]) -> Held:
        """Charge a release; on disk when this returns.

        Args:
            units: What it costs at most.
            about: What is said of it, as plain JSON values; public within the house.

        Raises:
            Exhausted: The cap does not cover it; nothing was charged.
            LedgerUnavailable: The database fails; no record may be read.
            LedgerBroken: The register was rewound or replaced; no record may be read.
        """
        token = secrets.token_hex(32)
        note = json.dumps(about, sort_keys=True, ensure_ascii=True)
        made, spent = cast("tuple[OpenReservation, int]", self.ledger.order(Reserve(units, digest(token), note)))
        return Held(made.entry, made.units, token, spent)

    def start(self, held: Held) -> None:
        """Write down that records are read from here on; on disk when this returns. Once more for each resumption.

        Raises:
            Refused: It was returned or released.
        """
        self._advance(STARTED, held)

    def give_back(self, held: Held) -> None:
        """Return the units of a run that did not start.

        Raises:
            Refused: It has started, or was returned before.
        """
        self._advance(RETURNED, held)

    def release(self, held: Held, release_id: str) -> None:
        """Write down that what the run made leaves, before it does.

        Raises:
            Refused: It did not start, or has released before.
        """
        self._advance(RELEASED, held, release=release_id)

    def _advance(self, kind: str, held: Held, **more: str) -> None:
        self.ledger.order(Advance(kind, held.entry, digest(held.token), more))

    def is_open(self, held: Held) -> bool:
        """Whether a reservation is neither returned nor released, so that its run may go on."""
        found = self.ledger.reservations().get(held.entry)
        return found is not None and (found.token, found.units) == (digest(held.token), held.units)

    def balance(self) -> Balance:
        """What was spent of the cap, and what is left."""
        return self.ledger.balance()

    def history(self) -> list[Charged]:
        """Every reservation, oldest first, and what became of it; each entry is verified.

        Raises:
            LedgerBroken: The log was changed.
        """
        found: dict[int, Charged] = {}
        for entry in self.ledger.history():
            if entry.kind == RESERVED:
                found[entry.seq] = Charged(entry.seq, entry.at, entry.units, json.loads(entry.note))
            elif entry.kind in (STARTED, RETURNED, RELEASED):
                note = json.loads(entry.note)
                found[note["of"]] = found[note["of"]].after(entry, note.get("release"))
        return list(found.values())

    def verify(self) -> LedgerVerification:
        """As `Ledger.verify`."""
        return self.ledger.verify()

    def close(self) -> None:
        """As `Ledger.close`."""
        self.ledger.close()

    def __enter__(self) -> Register:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Charged:
    """A reservation and what became of it.

    Attributes:
        entry: The number of its entry.
        at: When it was made, in milliseconds since 1970 (UTC).
        units: What was charged.
        about: What was said of it.
        state: `reserved`, `started` (killed, failed, or under way), `returned` or `released`.
        ended: When it was returned or released, or last started; else when it was made.
        release: The identity of what left.
    """

    entry: int
    at: int
    units: int
    about: Mapping[str, Any]
    state: str = RESERVED
    ended: int = 0
    release: str | None = None

    def after(self, entry: Entry, release: str | None) -> Charged:
        """The same after one more entry."""
        return Charged(self.entry, self.at, self.units, self.about, entry.kind, entry.at, release)

    @property
    def spent(self) -> int:
        """What stays charged."""
        return 0 if self.state == RETURNED else self.units
