"""`airlock serve`: answers over HTTP, each paid for before it is computed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from airlock.cli.ledger import LedgerOption, MarkOption, check_extra, mark_of
from airlock.cli.terminal import ApprovalOption, SignerOption, VaultOption, print_text, tell, translate_errors

if TYPE_CHECKING:
    from airlock.serve.service import Service


@translate_errors
def serve(
    bundle: Path = typer.Argument(help="The bundle's folder.", show_default=False),
    host: str = typer.Option("127.0.0.1", "--host", help="The address to listen on."),
    port: int = typer.Option(8080, "--port", min=0, max=65535, help="The port; 0 picks a free one."),
    name: str | None = typer.Option(
        None, "--name", help="The model's name in the protocol; by default the folder's name.", show_default=False
    ),
    no_keys: bool = typer.Option(False, "--no-keys", help="Require no keys; only on an address of this machine alone."),
    max_rows: int = typer.Option(256, "--max-rows", min=1, help="The most rows in one request."),
    max_requests: int = typer.Option(256, "--max-requests", min=1, help="The most requests answered at once."),
    max_connections: int = typer.Option(
        1024, "--max-connections", min=8, help="The most connections; fewer if the system allows fewer open files."
    ),
    max_per_address: int | None = typer.Option(
        None, "--max-per-address", min=1, help="The most from one address; by default a quarter.", show_default=False
    ),
    tls_cert: Path | None = typer.Option(
        None, "--tls-cert", help="A certificate and its chain as PEM, for TLS.", show_default=False
    ),
    tls_key: Path | None = typer.Option(None, "--tls-key", help="Its private key as PEM.", show_default=False),
    plain_http: bool = typer.Option(
        False, "--plain-http", help="Allow an address that others can reach without TLS, for a proxy in front."
    ),
    place: str | None = LedgerOption,
    mark: Path | None = MarkOption,
    signer: list[Path] = SignerOption,
    require_approval: list[Path] = ApprovalOption,
    vault: Path | None = VaultOption,
) -> None:
    """Answer queries over HTTP with the Open Inference Protocol, each paid for before it is computed."""
    check_extra()
    from airlock.bundle import Vault
    from airlock.bundle.answering import open_answerer
    from airlock.bundle.register import check_served
    from airlock.bundle.rendering.page import render_html
    from airlock.bundle.signing.keys import read_all
    from airlock.ledger import KeyStore
    from airlock.serve.access import LOCAL
    from airlock.serve.ledger_paths import ledger_place, open_only
    from airlock.serve.run import address, bind, check_address
    from airlock.serve.run import serve as run
    from airlock.serve.service import Service, ServiceLimits
    from airlock.serve.tls import load_tls

    limits = ServiceLimits(
        rows=max_rows, concurrent=max_requests, connections=max_connections, per_address=max_per_address
    )
    tls = load_tls(tls_cert, tls_key) is not None
    with bind(host, port) as bound:
        check_address(bound.getsockname()[0], keys=not no_keys, tls=tls, plain=plain_http)
        keys_needed = {"signers": read_all(signer), "approvers": read_all(require_approval)}
        card, answerer = open_answerer(bundle, Vault.open(vault), **keys_needed)
        check_served(card.release_id, Vault.open(vault))
        page = render_html(card).encode()  # verification has compared it with the file
        where = place or str(ledger_place(Vault.open(vault), card.release_id))
        path = mark_of(where, mark, vault)
        with open_only(where, path, Vault.open(vault), card.release_id, answerer.interface) as ledger:
            if no_keys:
                ledger.set_quota(LOCAL, None)
            keys = None if no_keys else KeyStore(ledger)
            called = name if name is not None else bundle.resolve().name
            method = f"airlock_{card.channel}_{card.method}"
            service = Service(
                called, card.release_id, method, page, answerer, ledger, keys, limits, card.headline, card.mark
            )
            where_it_is = address(bound, tls=tls)
            run(service, bound, lambda: _announce(service, where_it_is, bundle), lambda: load_tls(tls_cert, tls_key))


def _announce(service: Service, where: str, bundle: Path) -> None:
    """Print the address on stdout, for programs, and hints on stderr."""
    print_text(where)
    if service.keys is not None and not service.keys.all():
        tell("", f"There are no keys yet: airlock keys add CLIENT --bundle {bundle}")
