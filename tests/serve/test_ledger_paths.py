"""A release has one ledger: where it lies, and that no second one gives a second budget."""

from __future__ import annotations

from pathlib import Path

import pytest

from airlock.bundle import Vault
from airlock.errors import LedgerBroken
from airlock.ledger import Spend, digest
from airlock.serve.ledger_paths import ledger_place, ledgers_there, open_only
from tests.serve.selling import RELEASE, Priced


def spend_one(folder: Path, name: str, units: int | None = 5) -> int:
    """Open a ledger of this name, and how much is left after one unit was spent."""
    interface = Priced(units).interface
    place, mark = folder / f"{name}.db", folder / f"{name}.mark"
    with open_only(str(place), mark, Vault.open(folder / "vault"), RELEASE, interface) as ledger:
        ledger.set_quota("ann", None)
        if units is not None:
            ledger.spend(Spend("ann", 1, digest("x")))
        return ledger.balance().left


def test_a_second_ledger_is_refused(folder: Path) -> None:
    assert spend_one(folder, "first") == 4
    with pytest.raises(LedgerBroken, match="second budget"):
        spend_one(folder, "second")
    assert spend_one(folder, "first") == 3
    (folder / "moved.db").write_bytes((folder / "first.db").read_bytes())
    (folder / "moved.mark").write_bytes((folder / "first.mark").read_bytes())
    assert spend_one(folder, "moved") == 2  # the same ledger in another place


def test_a_ledger_that_was_deleted_is_not_begun_anew(folder: Path) -> None:
    assert spend_one(folder, "first") == 4
    (folder / "first.db").unlink()
    with pytest.raises(LedgerBroken):
        spend_one(folder, "first")
    for left in (folder / "first.db", folder / "first.mark"):
        left.unlink(missing_ok=True)
    with pytest.raises(LedgerBroken):
        spend_one(folder, "first")


@pytest.mark.parametrize("how", ["the mark deleted", "another mark"])
def test_a_backup_of_a_ledger_that_is_known_is_refused_without_its_mark(folder: Path, how: str) -> None:
    """The vault knows the ledger, and a backup from before the first unit was spent says that nothing was."""
    vault, interface = Vault.open(folder / "vault"), Priced(5).interface
    place, mark = folder / "first.db", vault.mark_folder() / "mark"
    open_only(str(place), mark, vault, RELEASE, interface).close()
    backup = place.read_bytes()
    with open_only(str(place), mark, vault, RELEASE, interface) as ledger:
        ledger.set_quota("ann", None)
        ledger.spend(Spend("ann", 5, digest("x")))
    place.write_bytes(backup)
    if how == "the mark deleted":
        mark.unlink()
    with pytest.raises(LedgerBroken, match="mark"):
        open_only(str(place), mark if how == "the mark deleted" else folder / "mark", vault, RELEASE, interface)


def test_answers_that_cost_nothing_have_no_budget_to_guard(folder: Path) -> None:
    spend_one(folder, "first", None)
    spend_one(folder, "second", None)


def test_the_default_lies_beside_the_vault(folder: Path) -> None:
    vault = Vault.open(folder / "vault")
    place = ledger_place(vault, RELEASE)
    assert vault.root not in place.parents
    assert ledgers_there(vault) == []
    open_only(str(place), folder / "mark", vault, RELEASE, Priced().interface).close()
    assert ledgers_there(vault) == [place]
