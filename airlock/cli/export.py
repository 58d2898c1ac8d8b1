"""`airlock export`: a release in the form that others ask for."""

from __future__ import annotations

from pathlib import Path

import typer

from airlock import isolation
from airlock.cli.terminal import JsonOption, VaultOption, overrides, print_json, print_text, shown, translate_errors
from airlock.errors import ConfigError, Refused


@translate_errors
def export(
    bundle: Path = typer.Argument(help="The bundle's folder.", show_default=False),
    kind: str = typer.Option(
        ...,
        "--as",
        metavar="KIND",
        help="dpia, nist, registry or sacro: the document to write; hub or mlflow: the model for that platform.",
        show_default=False,
    ),
    out: Path = typer.Option(
        ...,
        "--out",
        help="The new file: .md, .html or .json for dpia and nist, .json for registry; a folder for all others.",
    ),
    with_dossier: bool = typer.Option(
        False,
        "--with-dossier",
        help="Put in what the dossier has: exact figures and all attacks. The document then STAYS INSIDE.",
    ),
    fill_in: list[str] = typer.Option(
        [],
        "--set",
        "-s",
        metavar="KEY=VALUE",
        help="Fill in a field of a registry entry by its path, or the license of a hub. Repeatable.",
    ),
    push: str | None = typer.Option(
        None, "--push", metavar="OWNER/NAME", help="For hub: also upload it, to a new private repository or your own."
    ),
    public: bool = typer.Option(False, "--public", help="Let --push make a public repository."),
    vault: Path | None = VaultOption,
    as_json: bool = JsonOption,
) -> None:
    """Write a DPIA annex, a NIST SP 800-226 sheet, a registry entry, SACRO-ML's report, or a model for a platform.

    hub is a repository of the Hugging Face Hub and mlflow a model of MLflow: each holds the bundle, unchanged. In a
    document, every value says where it comes from. Only a bundle that verifies is exported, and without --with-dossier
    nothing but what is on its card, which may leave.
    """
    isolation.start()  # while the libraries are imported here
    from airlock.bundle import Vault, dossier, read_verified
    from airlock.bundle.platforms import FORMS
    from airlock.bundle.reports import check, write

    filled_in = overrides(fill_in)
    if kind in FORMS:
        if with_dossier or (filled_in and kind != "hub"):
            raise ConfigError("no dossier for a platform, and --set for 'hub' alone", "one of them")
        _to_platform(bundle, kind, out, filled_in, push, public, vault, as_json)
        return
    if push is not None or public:
        raise ConfigError("--push and --public together with --as hub", f"'{kind[:40]}'")
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


def _to_platform(
    folder: Path,
    kind: str,
    out: Path,
    said: dict[str, object],
    push: str | None,
    public: bool,
    vault: Path | None,
    as_json: bool,
) -> None:
    """A folder that holds the bundle, and its upload if asked for."""
    from airlock.bundle import Vault
    from airlock.bundle.platforms import hub, layout, mlflow_model

    if kind == layout.MLFLOW and (push is not None or public):
        raise ConfigError("--push and --public together with --as hub", "'mlflow'", do="Log it with MLflow itself.")
    layout.check_place(out)
    if push is not None:
        hub.check_upload(push)
    found = layout.open_for_others(folder, Vault.open(vault))
    files = hub.write(out, found, said) if kind == layout.HUB else mlflow_model.write(out, found)
    where = None if push is None else hub.push(found, push, said, private=not public)
    if as_json:
        print_json({"files": [str(file) for file in files], "stays_inside": False, "uploaded": where})
        return
    print_text(f"Written: {shown(out)}, with the bundle in it")
    if where is not None:
        print_text(f"Uploaded: {where}")
