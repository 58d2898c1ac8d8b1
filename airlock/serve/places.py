"""Where ledgers lie unless someone says otherwise: beside the vault, one file a release.

Not in the vault: their high-water marks are there, and a mark is worth something only where a restore of the database
does not reach it.
"""

from __future__ import annotations

from pathlib import Path

from airlock.release import Vault


def ledger_place(vault: Vault, release_id: str) -> Path:
    """The ledger of one release."""
    return _folder(vault) / f"{release_id}.db"


def ledgers_there(vault: Vault) -> list[Path]:
    """All ledgers that lie there."""
    return sorted(_folder(vault).glob("*.db"))


def _folder(vault: Vault) -> Path:
    return vault.root.with_name(f"{vault.root.name}-ledgers")
