"""`airlock gate`: reasons to reject a release, for caution, and to release it; `airlock policy`: a house's limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from airlock import isolation
from airlock.cli.terminal import (
    ApprovalOption,
    JsonOption,
    PolicyOption,
    SignerOption,
    VaultOption,
    print_json,
    print_lines,
    print_text,
    shown,
    translate_errors,
)
from airlock.errors import Refused

if TYPE_CHECKING:
    from airlock.bundle.gate import Weighing

STAYS = "The page says what attacks found, and the bundle leaves."
TITLES = {"reject": "Reasons to reject", "caution": "Reasons for caution", "release": "Reasons to release"}


@translate_errors
def gate(
    bundle: Path = typer.Argument(help="The bundle's folder.", show_default=False),
    sacro: Path | None = typer.Option(
        None, "--sacro", metavar="DIR", help="Also write the audit as a SACRO-ML report into this new folder.",
        show_default=False,
    ),
    html: Path | None = typer.Option(
        None, "--html", help="Also write it as a page to this file: what to know, what to ask, where to sign.",
        show_default=False,
    ),
    signer: list[Path] = SignerOption,
    require_approval: list[Path] = ApprovalOption,
    policy: Path | None = PolicyOption,
    vault: Path | None = VaultOption,
    as_json: bool = JsonOption,
) -> None:  # fmt: skip
    """Weigh a release as output checkers do: verify it, then list reasons against it, for caution, and for it.

    Attack results are read from the dossier in the vault; without it, the list says that it was not seen.
    """
    isolation.start()  # while the libraries are imported here
    from airlock.bundle import Vault, dossier
    from airlock.bundle.files import replace_file
    from airlock.bundle.policy import load
    from airlock.bundle.rendering.gate_page import first_line, render_gate
    from airlock.bundle.rendering.sacro import write_report
    from airlock.bundle.signing.keys import read_all
    from airlock.bundle.verify import weigh_folder

    if html is not None and bundle.resolve() in html.resolve().parents:
        raise Refused("--html outside the bundle", shown(html), STAYS, "Take another folder, one that stays inside.")
    limits, safe = None if policy is None else load(policy), Vault.open(vault)
    weighing, found, card = weigh_folder(
        bundle, safe, signers=read_all(signer), approvers=read_all(require_approval), policy=limits
    )
    if as_json:
        print_json(weighing.to_dict())
    else:
        print_lines(lambda width, plain: in_words(weighing, first_line(weighing)))
    if html is not None:
        replace_file(html, render_gate(weighing, card, str(bundle)))
        if not as_json:
            print_text(f"Page, which stays inside: {shown(html)}")
    if sacro is not None:
        if not found.ok or card is None:
            what = "one of an earlier format" if found.ok else "a defect"
            raise Refused("a bundle that verifies, to export its audit", what, "Its figures may be wrong.")
        write_report(sacro, card, dossier.read(safe, card.release_id))
    raise typer.Exit(0 if weighing.open else 1)


def in_words(weighing: Weighing, first: str) -> str:
    """The verdict, then each list under its title."""
    parts = [first]
    for name, title in TITLES.items():
        reasons = getattr(weighing, name)
        parts += ["", f"{title} ({len(reasons)})", *(f"  - {reason}" for reason in reasons or ("none",))]
    return "\n".join(parts)


policy = typer.Typer(help="What your house lets out: the limits that `airlock gate` and `airlock verify` apply.")


@policy.callback(invoke_without_command=True)
@translate_errors
def print_policy(context: typer.Context) -> None:
    """Print the default policy as TOML, with a comment for each key: the limits that `airlock gate` applies."""
    if context.invoked_subcommand is None:
        from airlock.bundle.policy import Policy, to_toml

        print_text(to_toml(Policy()).rstrip("\n"))


@policy.command("check")
@translate_errors
def check_policy(
    file: Path = typer.Argument(help="The policy, a TOML file.", show_default=False), as_json: bool = JsonOption
) -> None:
    """Say whether a file is a valid policy, and where it differs from the default."""
    from airlock.bundle.policy import changes, load

    found = changes(load(file))
    if as_json:
        print_json({"valid": True, "changes": found})
        return
    lines = [f"  {key} = {json.dumps(value, ensure_ascii=False)}" for key, value in found.items()]
    first = f"{shown(file)} is a valid policy. Where it differs from the default:"
    print_text("\n".join([first, *(lines or ["  nowhere"])]))
