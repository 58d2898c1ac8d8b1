"""`airlock verify`: is this bundle intact, and do its figures follow from its events?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from airlock import isolation
from airlock.cli.terminal import (
    ApprovalOption,
    JsonOption,
    PolicyOption,
    SetOption,
    SignerOption,
    VaultOption,
    overrides,
    print_json,
    print_table,
    print_text,
    translate_errors,
)

if TYPE_CHECKING:
    from torch import nn

    from airlock.bundle.schema import NetworkSummary


@translate_errors
def verify(
    bundle: Path = typer.Argument(help="The bundle's folder.", show_default=False),
    net: str | None = typer.Option(
        None,
        help="The network, if it is your own (package.module:function) or another package's (its name); is imported.",
        show_default=False,
    ),
    gate: bool = typer.Option(
        False, "--gate", help="Also fail if an attack refutes the stated ε, or a required attack was not run."
    ),
    settings: list[str] = SetOption,
    signer: list[Path] = SignerOption,
    require_approval: list[Path] = ApprovalOption,
    policy: Path | None = PolicyOption,
    vault: Path | None = VaultOption,
    as_json: bool = JsonOption,
) -> None:
    """Check a bundle: who signed it, files, checksums, card, ε recomputed, models compared, nothing from a vault.

    The first line says who signed it.
    """
    isolation.start()  # while the libraries are imported here
    from airlock.bundle import Vault
    from airlock.bundle.policy import load
    from airlock.bundle.signing.keys import read_all
    from airlock.bundle.verify import verify as check
    from airlock.nets import create

    def make(network: NetworkSummary) -> nn.Module:
        return create(str(net), network.input_shape, network.outputs, seed=0)

    verdict = check(
        bundle,
        Vault.open(vault),
        make if net is not None else None,
        gated=gate,
        given=overrides(settings, net=net),
        signers=read_all(signer),
        approvers=read_all(require_approval),
        policy=None if policy is None else load(policy),
    )
    if as_json:
        print_json(verdict.to_dict())
    else:
        rows = [[one.name, one.outcome, one.says] for one in verdict.checks]
        print_text(verdict.signatures.release.says)
        if verdict.note is not None:
            print_text(verdict.note)
        sound = (
            "The bundle is sound."
            if verdict.note is None
            else "The bundle is intact, and its ε follows from its events."
        )
        word = sound if verdict.ok else "The bundle is NOT sound: do not rely on it."
        if gate and not verdict.ok:
            word = "The bundle does NOT pass the gate."
        elif (
            all(one.name.startswith("policy.") for one in verdict.checks if one.outcome == "failed") and not verdict.ok
        ):
            word = "The bundle is NOT what the policy lets out."
        print_table(f"Verification of {bundle}", ["check", "", "found"], rows, word)
    raise typer.Exit(0 if verdict.ok else 1)
