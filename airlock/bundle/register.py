"""The register of a data set: where it is, what it holds, and what the vault knows of it.

Where the register is (`find`): the config's key `register`, else AIRLOCK_REGISTER, else `register` in `airlock.toml` in
the current folder. Its mark and its secret are in the vault, as with the ledger of a service. The vault also keeps the
identity of the one register of each data set, since a second one would be a second budget, and a keyed fingerprint of
the records. Records change and grow: that is told to the holder and never refused, and the budget goes on, since it
covers everybody who was ever under the name.

`booking` says what a release costs and charges it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import numpy as np
from pydantic import Field

from airlock.accounting import PrivacyFilter, compose, compute_epsilon, from_json
from airlock.accounting.privacy_filter import UNIT
from airlock.accounting.terms import Unit
from airlock.bundle.files import claim, claimed, parse_json, read_file, replace_file
from airlock.bundle.vault import Vault
from airlock.config import Frozen, ReleaseConfig, load_project
from airlock.data import Records, Split
from airlock.errors import AccountingError, AirlockError, ConfigError, FormatError, LedgerBroken, Refused, install_hint

if TYPE_CHECKING:
    from airlock.ledger import Charged, Register

VARIABLE, PROJECT = "AIRLOCK_REGISTER", "airlock.toml"
_LIMIT = 1 << 20
_NAME = re.compile(r"\S(?:.{0,126}\S)?")

# Where it is.


@dataclass(frozen=True)
class RegisterPlace:
    """Where a register is, and who says so."""

    place: str
    said_by: str

    def __str__(self) -> str:
        return f"{shown_place(self.place)} (from {self.said_by})"


def find(config: ReleaseConfig | None = None) -> RegisterPlace | None:
    """The register that is configured, if one is: by the config, else by the environment, else by the project file."""
    if config is not None and config.register is not None:
        return RegisterPlace(config.register, "the config")
    if os.environ.get(VARIABLE):
        return RegisterPlace(os.environ[VARIABLE], VARIABLE)
    named = load_project(Path(PROJECT))
    return None if named is None else RegisterPlace(named, PROJECT)


def shown_place(place: str) -> str:
    """A place without the password that its address may hold."""
    return re.sub(r"^(\w+://[^:/@]*):[^@]*@", r"\1@", place)


def create(
    place: str,
    vault: Vault,
    data: str,
    epsilon: float,
    delta: float,
    *,
    order: int | None = None,
    protects: str = "record",
) -> Register:
    """A new register for a data set.

    Args:
        place: A SQLite file, or postgresql://….
        vault: Where its mark and its secret are kept.
        data: The declared name of the data set, as on its cards.
        epsilon: Of everything that ever leaves.
        delta: Of everything that ever leaves.
        order: The Rényi order of the filter; the best one for Gaussian noise if left out.
        protects: Whose presence is protected; only releases with this unit are counted.

    Raises:
        ConfigError: The name, the budget or the unit cannot be used, or something is there already.
        LedgerBroken: The data set has another register.
    """
    check_extra()
    from airlock.ledger import Register, RegisterTerms, mark_name

    units = [unit for unit in get_args(Unit) if unit not in ("model", "none")]
    if protects not in units or not _NAME.fullmatch(data):
        raise ConfigError(f"a name of one line, and {' or '.join(units)} as unit", f"'{data}' and '{protects}'"[:120])
    budget = PrivacyFilter.make(epsilon, delta, order)
    if _is_there(place):
        raise ConfigError("a place without a register", shown_place(place), "Its terms never change.", "Name another.")
    unit = f"{float(UNIT):g} of Rényi divergence of order {budget.order}"
    terms = RegisterTerms(
        f"register of {data}", budget.units, unit, data, budget.epsilon, budget.delta, budget.order, protects
    )
    if claimed(_claim_file(vault, data)) is not None:
        raise LedgerBroken(
            f"no register yet for '{data}'",
            "one that this vault knows",
            "A second one would be a second budget for the same records.",
            "See where it is: airlock register list.",
        )
    register = Register.open(place, vault.mark_folder() / mark_name(place), terms)
    return _admitted(register, vault, place)


def open_at(found: RegisterPlace, vault: Vault, *, new_mark: bool = False) -> Register:
    """The register in a place; close it when done.

    Args:
        found: Where it is.
        vault: Where its mark and its secret are kept.
        new_mark: Make a mark for one that has none here: on a second machine, or where it was lost.

    Raises:
        ConfigError: There is none, or it is something else.
        LedgerBroken: It is not intact, not the newest, or not the one that the vault knows for its data set.
        LedgerUnavailable: The database cannot be reached.
    """
    check_extra()
    from airlock.ledger import Register, mark_name

    if not _is_there(found.place):
        raise ConfigError("a register", f"none in {found}", do="Create it: airlock register create.")
    register = Register.open(found.place, vault.mark_folder() / mark_name(found.place), new_mark=new_mark)
    return _admitted(register, vault, found.place)


def _admitted(register: Register, vault: Vault, place: str) -> Register:
    """The register, if it is the only one of its data set; the vault remembers it."""
    try:
        claim(_claim_file(vault, register.terms.register), register.ledger.id, "data set", "the register")
        known = _known(vault).get(register.ledger.id)
        if known is None:
            _keep(vault, register.ledger.id, KnownRegister(data=register.terms.register, place=shown_place(place)))
    except BaseException:
        register.close()
        raise
    return register


def _is_there(place: str) -> bool:
    """Whether there is a register, or another ledger; a file that a crash left without one counts as none."""
    in_file = "://" not in place or place.startswith("sqlite:///")
    if in_file and not Path(place.removeprefix("sqlite:///")).expanduser().exists():
        return False
    from airlock.ledger import tables

    engine = tables.connect(place)
    try:
        return tables.has_ledger(engine)
    finally:
        engine.dispose()


def check_extra() -> None:
    """Say how to install what a register needs if it is missing."""
    if importlib.util.find_spec("sqlalchemy") is None:
        raise ConfigError("the extra 'serve'", "no sqlalchemy", do=f"Install it: {install_hint('serve')}.")


def filter_of(register: Register) -> PrivacyFilter:
    """The filter that a register enforces."""
    terms = register.terms
    made = PrivacyFilter(terms.epsilon, terms.delta, terms.order)
    if made.units < terms.cap:
        raise AccountingError("terms whose cap is that of their (ε, δ)", "a larger one", "It would bound nothing.")
    return made


# What it holds.


@dataclass(frozen=True)
class Account:
    """A register as its holder reads it.

    Args:
        place: Where it is.
        data: The name of the data set.
        protects: Whose presence is protected.
        budget: Its filter.
        spent: What is charged, in units.
        charged: Every reservation, oldest first.
        at_once: The ε that all of it would have if it had been planned at once; None if nothing left.
    """

    place: str
    data: str
    protects: str
    budget: PrivacyFilter
    spent: int
    charged: tuple[Charged, ...]
    at_once: float | None

    @property
    def left(self) -> float:
        """What is left, on the scale on which the whole budget is ε."""
        return self.budget.share(self.budget.units - self.spent)


def account(found: RegisterPlace, vault: Vault) -> Account:
    """What a register says, every entry verified."""
    with open_at(found, vault) as register:
        charged, budget = tuple(register.history()), filter_of(register)
        return Account(
            place=shown_place(found.place),
            data=register.terms.register,
            protects=register.terms.protects,
            budget=budget,
            spent=sum(one.spent for one in charged),
            charged=charged,
            at_once=_at_once([one for one in charged if one.spent], budget),
        )


def _at_once(charged: Sequence[Charged], budget: PrivacyFilter) -> float | None:
    """The ε of the costliest part of each, composed as if all had been fixed in advance; for information only."""
    worst = []
    for one in charged:
        events = [from_json(part) for part in one.about["parts"].values()]
        worst.append(max(events, key=lambda event: budget.cost([event])))
    return compute_epsilon(compose(worst), budget.delta).epsilon if worst else None


def check_served(release_id: str, vault: Vault) -> None:
    """Refuse to serve answers of a release that the configured register, if any, does not count.

    Raises:
        Refused: It does not.
    """
    found = find()
    if found is None:
        return
    with open_at(found, vault) as register:
        if all(one.release != release_id for one in register.history()):
            raise Refused(
                f"a release that is counted in the register {found}",
                f"{release_id[:8]}, which is not",
                "Its answers would come on top of the budget of the data set.",
                "Count it first: airlock register add BUNDLE.",
            )


@dataclass(frozen=True)
class Counting:
    """Whether the register of a data set counts a release; the house's own matter, for its terminal.

    Args:
        data: The name of the data set.
        place: Which register, and who says so.
        units: What the register charged for the release; None if it does not count it.
        cost: The same, on the scale on which the whole budget is `epsilon`.
        left: What is left, on the same scale.
        epsilon: The whole budget.
        unread: Why the register could not be read; then nothing else is known.
    """

    data: str
    place: str
    units: int | None = None
    cost: float = 0.0
    left: float = 0.0
    epsilon: float = 0.0
    unread: str = ""


def counting(name: str, release_id: str, vault: Vault) -> Counting | None:
    """Whether the register of these data counts a release; None where neither config nor vault knows one.

    Args:
        name: Of the data set, as on the card.
        release_id: Of the card.
        vault: Where registers are known, and their marks are.
    """
    unread: Counting | None = None
    try:
        places = list(_places(name, vault))
    except AirlockError as error:
        return Counting(name, "that is configured", unread=error.found)
    for found in places:
        try:
            with open_at(found, vault) as register:
                if register.terms.register == name:
                    return _counting(found, register, release_id)
        except AirlockError as error:
            unread = unread or Counting(name, str(found), unread=error.found)
    return unread


def _places(name: str, vault: Vault) -> Iterator[RegisterPlace]:
    """The register that is configured, and those that the vault knows for these data."""
    configured = find()
    if configured is not None:
        yield configured
    known = {one.place for one in known_registers(vault) if one.data == name}
    for place in sorted(known - ({shown_place(configured.place)} if configured else set())):
        yield RegisterPlace(place, "the vault")


def _counting(found: RegisterPlace, register: Register, release_id: str) -> Counting:
    budget, history = filter_of(register), list(register.history())
    own = [one.units for one in history if one.release == release_id]
    left = budget.units - sum(one.spent for one in history)
    return Counting(
        data=register.terms.register,
        place=str(found),
        units=own[0] if own else None,
        cost=budget.share(own[0]) if own else 0.0,
        left=budget.share(left),
        epsilon=budget.epsilon,
    )


# What the vault knows.


class KnownRegister(Frozen):
    """What the vault remembers of a register: its data set, its place, and the records that it last saw.

    Args:
        data: The name of the data set.
        place: Where it is, without a password.
        records: Keyed fingerprints of the records, by how they were declared.
    """

    data: str
    place: str
    records: dict[str, str] = Field(default_factory=dict)


def known_registers(vault: Vault) -> list[KnownRegister]:
    """The registers that this vault has opened."""
    return sorted(_known(vault).values(), key=lambda one: one.data)


def guarded(vault: Vault, mine: str | None, config: ReleaseConfig, split: Split) -> Split:
    """The records, with what the holder should know about them and the registers that the vault knows.

    Args:
        vault: Where fingerprints are kept.
        mine: The identity of the register that counts this release, if one does.
        config: How the records were declared.
        split: The records.
    """
    known = _known(vault)
    if not known:
        return split
    told = _compared(vault, known, mine, _declaration(config), _fingerprint(split, vault.records_key()))
    return dataclasses.replace(split, remarks=(*split.remarks, *told))


def _known(vault: Vault) -> dict[str, KnownRegister]:
    if not (vault.root / "marks").is_dir():
        return {}
    files = sorted(vault.mark_folder().glob("*.known"))
    try:
        return {file.stem: KnownRegister.model_validate(parse_json(read_file(file, _LIMIT))) for file in files}
    except ValueError as error:
        raise FormatError("what the vault knows of registers", "something else", do="Restore the vault.") from error


def _keep(vault: Vault, ledger: str, known: KnownRegister) -> None:
    replace_file(vault.mark_folder() / f"{ledger}.known", known.model_dump_json())


def _claim_file(vault: Vault, data: str) -> Path:
    return vault.mark_folder() / f"{hashlib.sha256(data.encode()).hexdigest()[:32]}.register"


def _compared(
    vault: Vault, known: Mapping[str, KnownRegister], mine: str | None, declared: str, found: str
) -> list[str]:
    """What the holder should know: these are other records than before, or another register's. Never a refusal."""
    told = [
        f"These records are those of '{one.data}', whose register does not count this release."
        for ledger, one in known.items()
        if ledger != mine and found in one.records.values()
    ]
    if mine is not None:
        own = known[mine]
        if own.records.get(declared, found) != found:
            told.append(
                f"The records of '{own.data}' are not those of the last release under its register. Its budget goes "
                "on, and covers everybody who was ever among them."
            )
        _keep(vault, mine, own.model_copy(update={"records": {**own.records, declared: found}}))
    return told


def _declaration(config: ReleaseConfig) -> str:
    """How records are read: another declaration of the same file gives other arrays."""
    read = config.data.model_dump(mode="json", exclude={"source", "test", "name", "records", "test_records"})
    return hashlib.sha256(json.dumps(read, sort_keys=True).encode()).hexdigest()[:32]


def _fingerprint(split: Split, key: bytes) -> str:
    """A keyed fingerprint of all records whatever their order and part: the sum of their keyed hashes."""
    total = 0
    for part in (split.private, split.public, split.test, split.holdout):
        total += sum(_hashes(part, key))
    return hashlib.blake2b((total % 2**256).to_bytes(32, "big"), key=key, digest_size=32).hexdigest()


def _hashes(records: Records, key: bytes) -> Iterator[int]:
    x, y = np.ascontiguousarray(records.x), np.ascontiguousarray(records.y)
    start = hashlib.blake2b(repr((x.shape[1:], x.dtype.str)).encode(), key=key, digest_size=32)
    for row, label in zip(x, y.tolist(), strict=True):
        one = start.copy()
        one.update(b"%d " % label)
        one.update(row.tobytes())
        yield int.from_bytes(one.digest(), "big")
