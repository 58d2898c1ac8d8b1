"""`airlock export`: a release in the form that others ask for."""

from __future__ import annotations

from pathlib import Path

import typer

from airlock import isolation
from airlock.cli.terminal import JsonOption, VaultOption, overrides, print_json, print_text, shown, translate_errors
from airlock.errors import Refused


@translate_errors
def export(
    bundle: Path = typer.Argument(help="The bundle's folder.", show_default=False),
    kind: str = typer.Option(
        ..., "--as", metavar="KIND", help="dpia, nist, registry or sacro: the document to write.", show_default=False
    ),
    out: Path = typer.Option(
        ...,
        "--out",
        help="The new file: .md, .html or .json for dpia and nist, .json for registry; a folder for sacro.",
    ),
    with_dossier: bool = typer.Option(
        False,
        "--with-dossier",
        help="Put in what the dossier has: exact figures and all attacks. The document then STAYS INSIDE.",
    ),
    fill_in: list[str] = typer.Option(
        [], "--set", "-s", metavar="KEY=VALUE", help="Fill in a field of a registry entry by its path. Repeatable."
    ),
    vault: Path | None = VaultOption,
    as_json: bool = JsonOption,
) -> None:
    """Write a DPIA annex (EDPB Opinion 28/2024), a NIST SP 800-226 sheet, a registry entry, or SACRO-ML's report.

    Every value says where it comes from. Only a bundle that verifies is exported, and without --with-dossier nothing
    but what is on its card, which may leave.
    """
    isolation.start()  # while the libraries are imported here
    from airlock.bundle import Vault, dossier, read_verified
    from airlock.bundle.reports import check, write

    filled_in = overrides(fill_in)
    check(out, kind, with_dossier, filled_in)
    safe = Vault.open(vault)
    card = read_verified(bundle, safe).card
    inside = dossier.read(safe, card.release_id) if with_dossier else dossier.find(safe, card.release_id)
    if not with_dossier and inside is not None and inside.verdict == "doubt":
        raise Refused(
            "a release whose ε nothing refutes",
            "an attack or the court that refutes it, in the dossier",
            "Whoever reads the document would rely on it.",
            "--with-dossier writes down what was found, to stay inside.",
        )
    files = write(out, kind, card, inside if with_dossier else None, filled_in)
    if as_json:
        print_json({"files": [str(file) for file in files], "stays_inside": with_dossier})
        return
    for file in files:
        print_text(f"Written: {shown(file)}{', which STAYS INSIDE' if with_dossier else ''}")
