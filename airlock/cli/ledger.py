"""`airlock ledger`: is the log of a service intact, and is it the newest?"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from airlock.cli.terminal import JsonOption, VaultOption, err_console, print_json, print_table, translate_errors
from airlock.errors import ConfigError, install_hint

if TYPE_CHECKING:
    from airlock.ledger import Ledger
    from airlock.methods.interface import Interface

    Sold = tuple[str, Interface]  # a release's identity, and what is asked of it

LedgerOption = typer.Option(
    None,
    "--ledger",
    envvar="AIRLOCK_LEDGER",
    help="The ledger: a SQLite file or postgresql://… (else $AIRLOCK_LEDGER, else the one next to the vault).",
    show_default=False,
)
BundleOption = typer.Option(
    None, "--bundle", help="The bundle whose ledger it is; created if there is none.", show_default=False
)
MarkOption = typer.Option(
    None, "--mark", help="The file of the high-water mark; by default one in the vault.", show_default=False
)

ledger = typer.Typer(no_args_is_help=True, help="Inspect the ledger that a service charges.")


@ledger.command("verify")
@translate_errors
def verify(
    place: str | None = LedgerOption,
    bundle: Path | None = BundleOption,
    mark: Path | None = MarkOption,
    new_mark: bool = typer.Option(
        False,
        "--new-mark",
        help="First create a mark here, for a new replica or if it was lost: needs the ledger's secret beside it, and "
        "takes the database's word that it is the newest.",
    ),
    older: bool = typer.Option(
        False, "--older", help="With --new-mark: the ledger is from before there were secrets, so take plain hashes."
    ),
    vault: Path | None = VaultOption,
    as_json: bool = JsonOption,
) -> None:
    """Check the whole log: every hash, every total, every limit, every key, and the high-water mark."""
    if older and not new_mark:
        raise ConfigError("--new-mark with --older", "--older alone")
    sold = _sold(bundle, vault)
    if new_mark:
        _open(place, sold, mark, vault, new_mark=True, older=older).close()
        err_console().print(
            "From now on a rewound budget is noticed here. Whether this database was the newest until now, no one "
            "can tell: what was spent after a backup was made is lost if it is one.",
            highlight=False,
        )
    where = _place(place, sold, vault)
    path = mark_of(where, mark, vault)
    from airlock.ledger.ledger import verify_at

    verdict = verify_at(where, path)
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
        word = "The ledger is intact." if verdict.ok else "The ledger is NOT intact: do not serve from it."
        if verdict.ok and verdict.marked is None:
            word = "The log is consistent; without a high-water mark it may still be an old copy."
        print_table("Ledger", ["", ""], rows, word)
    raise typer.Exit(0 if verdict.ok else 1)


def open_ledger(place: str | None, bundle: Path | None, mark: Path | None, vault: Path | None) -> Ledger:
    """The ledger with its mark, for commands; a bundle's is created if there is none."""
    return _open(place, _sold(bundle, vault), mark, vault)


def _sold(bundle: Path | None, vault: Path | None) -> Sold | None:
    """What a bundle sells, if one is named; it must verify and be what the vault recorded."""
    if bundle is None:
        return None
    check_extra()
    from airlock.bundle import Vault
    from airlock.bundle.answering import open_answerer

    card, answerer = open_answerer(bundle, Vault.open(vault))
    return card.release_id, answerer.interface


def _open(
    place: str | None,
    sold: Sold | None,
    mark: Path | None,
    vault: Path | None,
    *,
    new_mark: bool = False,
    older: bool = False,
) -> Ledger:
    where = _place(place, sold, vault)
    path = mark_of(where, mark, vault)
    from airlock.bundle import Vault
    from airlock.ledger import Ledger
    from airlock.serve.ledger_paths import open_only

    if sold is None:
        return Ledger.open(where, path, new_mark=new_mark, older=older)
    return open_only(where, path, Vault.open(vault), *sold, new_mark=new_mark, older=older)


def mark_of(place: str, mark: Path | None, vault: Path | None) -> Path:
    """The file of a ledger's mark."""
    check_extra()
    if mark is not None:
        return mark
    from airlock.bundle import Vault
    from airlock.ledger import mark_name

    return Vault.open(vault).mark_folder() / mark_name(place)


def check_extra() -> None:
    """Say how to install what a service needs if it is missing."""
    for module in ("sqlalchemy", "fastapi", "uvicorn", "prometheus_client"):
        if importlib.util.find_spec(module) is None:
            raise ConfigError("the extra 'serve'", f"no {module}", do=f"Install it: {install_hint('serve')}.")


def _place(place: str | None, sold: Sold | None, vault: Path | None) -> str:
    """Where the ledger is: the given one, else the bundle's, else the only one there is."""
    if place is not None:
        return place
    check_extra()
    from airlock.bundle import Vault
    from airlock.serve.ledger_paths import ledger_place, ledgers_there

    if sold is not None:
        return str(ledger_place(Vault.open(vault), sold[0]))
    there = ledgers_there(Vault.open(vault))
    if len(there) != 1:
        raise ConfigError(
            "one ledger next to the vault, or --bundle or --ledger to say which",
            "none" if not there else f"{len(there)} of them",
            do="Name the bundle that is served: --bundle BUNDLE.",
        )
    return str(there[0])
