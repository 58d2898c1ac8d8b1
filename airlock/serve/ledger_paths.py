"""Where the ledger of a release is, and that it has only one.

By default it is next to the vault, one file per release. It is not in the vault: the high-water marks are there, and a
mark is useful only if restoring the database does not overwrite it.

A second ledger for the same release would be a second budget. So the vault, without which nothing is answered, keeps
the identity of the first ledger that a release was opened with, and any other is refused. From then on none is created
for it, wherever the database or the mark is said to be.
"""

from __future__ import annotations

from pathlib import Path

from airlock.bundle import Vault
from airlock.bundle.files import claim, claimed
from airlock.ledger.ledger import Ledger, Terms
from airlock.methods.interface import Interface

FREE = "answers cost nothing"


def ledger_place(vault: Vault, release_id: str) -> Path:
    """The ledger of one release."""
    return _folder(vault) / f"{release_id}.db"


def ledgers_there(vault: Vault) -> list[Path]:
    """All ledgers in that folder."""
    return sorted(_folder(vault).glob("*.db"))


def terms_of(release_id: str, interface: Interface) -> Terms:
    """The terms of a bundle's ledger; one whose answers are free has a ledger too, for its keys."""
    if interface.units is None:
        return Terms(release_id, 1, FREE)
    return Terms(release_id, interface.units, interface.unit)


def open_only(
    place: str,
    mark: Path,
    vault: Vault,
    release_id: str,
    interface: Interface,
    *,
    new_mark: bool = False,
    older: bool = False,
) -> Ledger:
    """The ledger of a release, created if there is none.

    Raises:
        LedgerBroken: The release has another ledger, or as in `Ledger.open`.
        ConfigError: As in `Ledger.open`.
        LedgerUnavailable: As in `Ledger.open`.
    """
    place_of_claim = vault.mark_folder() / f"{release_id}.ledger"
    known = claimed(place_of_claim) if interface.units is not None else None
    terms = terms_of(release_id, interface)
    ledger = Ledger.open(place, mark, terms, known=known, new_mark=new_mark, older=older)
    try:
        if interface.units is not None:
            claim(place_of_claim, ledger.id, "release", do="Name the first one with --ledger")
    except BaseException:
        ledger.close()
        raise
    return ledger


def _folder(vault: Vault) -> Path:
    return vault.root.with_name(f"{vault.root.name}-ledgers")
