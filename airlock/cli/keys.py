"""`airlock keys`: who may query a service, how much and until when; and the keys that sign bundles."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from airlock.cli.ledger import BundleOption, LedgerOption, MarkOption, open_ledger
from airlock.cli.terminal import (
    JsonOption,
    VaultOption,
    print_json,
    print_table,
    print_text,
    shown,
    tell,
    translate_errors,
)
from airlock.errors import ConfigError

if TYPE_CHECKING:
    from airlock.ledger import Key, Ledger

keys = typer.Typer(no_args_is_help=True, help="Keys of a service: issue, list, revoke. Keys that sign bundles.")


@keys.command("add")
@translate_errors
def add(
    client: str | None = typer.Argument(None, help="The client's name.", show_default=False),
    quota: int | None = typer.Option(
        None,
        "--quota",
        help="The most units this client may spend; by default, only the budget limits it.",
        show_default=False,
    ),
    expires: str | None = typer.Option(
        None, "--expires", help="When the key expires: 90d, 12h or a date such as 2030-12-31 (UTC).", show_default=False
    ),
    admin: bool = typer.Option(False, "--admin", help="An admin key instead of a client's; it cannot spend."),
    place: str | None = LedgerOption,
    bundle: Path | None = BundleOption,
    mark: Path | None = MarkOption,
    vault: Path | None = VaultOption,
    as_json: bool = JsonOption,
) -> None:
    """Issue a new key; its token is shown now and never again."""
    if admin == (client is not None) or (admin and quota is not None):
        raise ConfigError("a client's name, or --admin without a name and quota", "something else")
    until = _time(expires)
    with open_ledger(place, bundle, mark, vault) as ledger:
        from airlock.ledger import KeyStore

        store = KeyStore(ledger)
        key, token = store.add_admin(until) if client is None else store.add(client, quota, until)
        if as_json:
            print_json(_plain(key, ledger) | {"token": token})
            return
    print_text(token)
    tell("", f"Key {key.id} for {key.client or 'the admin'}. This is its token; it is not shown again.")


@keys.command("list")
@translate_errors
def list_keys(
    place: str | None = LedgerOption,
    bundle: Path | None = BundleOption,
    mark: Path | None = MarkOption,
    vault: Path | None = VaultOption,
    as_json: bool = JsonOption,
) -> None:
    """List every key ever issued, without its token."""
    with open_ledger(place, bundle, mark, vault) as ledger:
        from airlock.ledger import KeyStore

        found = [_plain(key, ledger) for key in KeyStore(ledger).all()]
    if as_json:
        print_json(found)
        return
    columns = ["id", "client", "state", "expires", "quota", "spent"]
    print_table("Keys", columns, [["" if one[name] is None else str(one[name]) for name in columns] for one in found])


@keys.command("revoke")
@translate_errors
def revoke(
    key: str = typer.Argument(help="A key's id, or a client's name for all its keys.", show_default=False),
    place: str | None = LedgerOption,
    bundle: Path | None = BundleOption,
    mark: Path | None = MarkOption,
    vault: Path | None = VaultOption,
    as_json: bool = JsonOption,
) -> None:
    """Revoke a key, or all keys of a client, immediately and permanently; what was spent stays spent."""
    with open_ledger(place, bundle, mark, vault) as ledger:
        from airlock.ledger import KeyStore

        revoked = KeyStore(ledger).revoke(key)
    if as_json:
        print_json([one.id for one in revoked])
    else:
        print_table("Revoked", ["id", "client"], [[one.id, one.client or "(admin)"] for one in revoked])


@keys.command("signing")
@translate_errors
def signing(
    out: Path | None = typer.Option(
        None, "--out", help="Write the public key (PEM) to this new file, for receivers.", show_default=False
    ),
    key: Path | None = typer.Option(
        None, "--key", help="Use this existing private key (PEM) from now on; it is copied.", show_default=False
    ),
    certificate: Path | None = typer.Option(
        None, "--certificate", help="With --key: its certificate (PEM), then further ones.", show_default=False
    ),
    reviewer: bool = typer.Option(False, "--reviewer", help="Your own key for approvals instead of the vault's."),
    vault: Path | None = VaultOption,
    as_json: bool = JsonOption,
) -> None:
    """Make or show the key that signs releases; the private key stays in the vault."""
    from airlock.bundle import Vault
    from airlock.bundle.signing import keys as own

    if certificate is not None and key is None:
        raise ConfigError("--key with --certificate", "--certificate alone")
    safe = Vault.open(vault)
    place = own.reviewer_place() if reviewer else safe.signing_key
    if key is not None:
        found = own.adopt(own.read_private(key, certificate), safe, reviewer=reviewer)
    else:
        found = own.obtain_reviewer_key() if reviewer else own.obtain_vault_key(safe)
    if out is not None:
        own.export(found.public, out)
    if as_json:
        public = found.public.pem.decode()
        print_json({"fingerprint": found.public.fingerprint, "public_key": public, "place": str(place)})
        return
    print_text(found.public.fingerprint)
    made = "Made" if found.new else "The key is"
    tell("", f"{made} in {shown(place)}; this is its fingerprint.")


@keys.command("trust")
@translate_errors
def trust(
    public: Path = typer.Argument(help="A public key or a certificate (PEM).", show_default=False),
    name: str = typer.Option(..., "--name", help="Whose it is; `airlock verify` says this name."),
    as_json: bool = JsonOption,
) -> None:
    """Remember whose key this is. Compare its fingerprint with what its owner tells you first."""
    from airlock.bundle.signing import keys as own

    found = own.read_public(public)
    added = own.trust(found, name)
    if as_json:
        print_json({"name": name, "fingerprint": found.fingerprint, "added": added})
        return
    print_text(found.fingerprint)
    word = "is now" if added else "was already"
    tell("", f"This key {word} trusted as '{name}', in {shown(own.trusted_place())}.")


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    if span := re.fullmatch(r"(\d{1,5})([dh])", text):
        hours = int(span[1]) * (24 if span[2] == "d" else 1)
        return datetime.now(UTC) + timedelta(hours=hours)
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError("90d, 12h or a date such as 2030-12-31 after --expires", f"'{text[:40]}'") from error
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def _plain(key: Key, ledger: Ledger) -> dict[str, Any]:
    balance = ledger.balance(key.client) if key.client else None
    return {
        "id": key.id,
        "client": key.client or "(admin)",
        "admin": key.admin,
        "state": key.state(ledger.now()),
        "created": _iso(key.created),
        "expires": _iso(key.expires),
        "quota": balance.limit if balance else None,
        "spent": balance.spent if balance else None,
    }


def _iso(milliseconds: int | None) -> str | None:
    if milliseconds is None:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")
