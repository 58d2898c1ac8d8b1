"""`airlock approve`: a reviewer's decision about a bundle, signed with the reviewer's key."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import typer

from airlock.cli.terminal import JsonOption, VaultOption, print_json, print_text, shown, tell, translate_errors
from airlock.errors import ConfigError

if TYPE_CHECKING:
    from airlock.bundle.signing.envelope import DecisionWord

DECISIONS = ("approve", "conditions", "reject")


@translate_errors
def approve(
    bundle: Path = typer.Argument(help="The bundle's folder.", show_default=False),
    decision: str = typer.Option(..., "--decision", help="approve, conditions or reject."),
    name: str = typer.Option(..., "--name", help="Your name; it leaves with the bundle."),
    conditions: str = typer.Option(
        "", "--conditions", help="The conditions, or why you reject it; they leave: quote nothing from the dossier."
    ),
    key: Path | None = typer.Option(
        None,
        "--key",
        help="Your private key (PEM); by default the one in your config folder, which is made if there is none.",
        show_default=False,
    ),
    force: bool = typer.Option(False, "--force", help="Replace an earlier decision."),
    vault: Path | None = VaultOption,
    as_json: bool = JsonOption,
) -> None:
    """Countersign a bundle: your decision about exactly these files, as approval.sig next to them.

    No other file changes. If the vault holds the dossier, a second copy that names it stays there.
    """
    from airlock.bundle import Vault
    from airlock.bundle.signing.approval import approve as decide
    from airlock.bundle.signing.keys import obtain_reviewer_key, read_private, reviewer_place

    if decision not in DECISIONS:
        raise ConfigError("approve, conditions or reject after --decision", f"'{decision[:40]}'")
    signing = obtain_reviewer_key() if key is None else read_private(key)
    if signing.new:
        tell(
            "", f"A key was made for you in {reviewer_place()}. Give others: airlock keys signing --reviewer --out FILE"
        )
    made, inside = decide(
        bundle, signing, cast("DecisionWord", decision), name, conditions, vault=Vault.open(vault), replace=force
    )
    if as_json:
        print_json({**made.model_dump(mode="json"), "fingerprint": signing.public.fingerprint, "dossier": inside})
        return
    print_text(f"{made}, signed with {signing.public.fingerprint}: {shown(bundle / 'approval.sig')}")
    if not inside:
        print_text("The dossier is not in this vault: the decision is about the bundle alone.")
