"""`airlock ledger`: is the log of a service whole, and is it the newest?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from airlock.cli.terminal import JsonOption, VaultOption, print_json, print_table, translate_errors
from airlock.errors import ConfigError

if TYPE_CHECKING:
    from airlock.serve import Ledger

LedgerOption = typer.Option(
    ...,
    "--ledger",
    envvar="AIRLOCK_LEDGER",
    help="The ledger: a SQLite file or postgresql://… (else $AIRLOCK_LEDGER).",
    show_default=False,
)
MarkOption = typer.Option(
    None, "--mark", help="The file of the high-water mark, else one in the vault.", show_default=False
)

ledger = typer.Typer(no_args_is_help=True, help="Look at the ledger that a service pays from.")


@ledger.command("verify")
@translate_errors
def verify(
    place: str = LedgerOption,
    mark: Path | None = MarkOption,
    new_mark: bool = typer.Option(
        False, "--new-mark", help="First begin a mark on this machine: for a new replica, or where it was lost."
    ),
    vault: Path | None = VaultOption,
    as_json: bool = JsonOption,
) -> None:
    """Walk the whole log: every hash, every total, every limit, and the high-water mark."""
    from airlock.serve.ledger import verify_at

    if new_mark:
        open_ledger(place, mark, vault, new_mark=True).close()
    verdict = verify_at(place, _mark(place, mark, vault))
    if as_json:
        print_json(verdict.to_dict())
    else:
        rows = [
            ["entries", f"{verdict.entries:,}"],
            ["spent", f"{verdict.spent:,} of {verdict.cap:,} units"],
            ["first broken entry", "none" if verdict.broken_entry is None else f"{verdict.broken_entry:,}"],
            ["high-water mark", "none" if verdict.marked is None else f"entry {verdict.marked:,}"],
            ["found", verdict.says],
        ]
        word = "The ledger is whole." if verdict.ok else "The ledger is NOT whole: do not serve from it."
        if verdict.ok and verdict.marked is None:
            word = "The log agrees with itself; without a high-water mark it may still be an old copy."
        print_table("Ledger", ["", ""], rows, word)
    raise typer.Exit(0 if verdict.ok else 1)


def open_ledger(place: str, mark: Path | None, vault: Path | None, new_mark: bool = False) -> Ledger:
    """The ledger with its mark, for commands."""
    path = _mark(place, mark, vault)
    from airlock.serve import Ledger

    return Ledger.open(place, path, new_mark=new_mark)


def _mark(place: str, mark: Path | None, vault: Path | None) -> Path:
    try:
        from airlock.serve import mark_name
    except ModuleNotFoundError as error:
        raise ConfigError(
            "the extra 'serve'", f"no {error.name}", do="Install it: pip install 'airlock-ml[serve]'."
        ) from error
    if mark is not None:
        return mark
    from airlock.release import Vault

    return Vault.open(vault).mark_folder() / mark_name(place)
