"""A reviewer's decision becomes a countersignature: `approval.sig` in the bundle, and a fuller one in the vault.

The one in the bundle leaves. It says what was decided, by whom and when, about which files. It says nothing about the
dossier, not even its digest: the dossier depends on private records without noise, so whoever knows all records but one
could compute it with and without that record and compare. The digest is in the copy that stays in the vault, next to
the dossier, under a signature of its own.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from airlock.bundle import bundle
from airlock.bundle.contents import APPROVAL, SIGNATURES, Contents
from airlock.bundle.files import output_error, sync_folder, write_file
from airlock.bundle.signing.envelope import (
    Approval,
    DecisionWord,
    InsideApproval,
    approval_statement,
    seal,
)
from airlock.bundle.signing.keys import SigningKey
from airlock.bundle.signing.signatures import examine
from airlock.bundle.vault import Vault
from airlock.bundle.verify import verify
from airlock.errors import ConfigError, OutputError, Refused


def approve(
    folder: Path,
    key: SigningKey,
    decision: DecisionWord,
    name: str,
    conditions: str = "",
    *,
    vault: Vault | None = None,
    replace: bool = False,
    today: datetime.date | None = None,
) -> tuple[Approval, bool]:
    """Countersign a bundle; its other files stay as they are, byte for byte.

    Args:
        folder: The bundle.
        key: The reviewer's own, not the one that signs releases.
        decision: "approve", "conditions" or "reject".
        name: The reviewer.
        conditions: On which conditions, or why it was rejected; leaves, so it must say nothing that is in the dossier.
        vault: Where the dossier is; the user's default vault if omitted.
        replace: Replace an earlier decision.
        today: The date; today in UTC if omitted.

    Returns:
        The decision, and whether the vault has the dossier and now also a copy that names it.

    Raises:
        Refused: The bundle does not verify; only a rejection does not require that.
        ConfigError: The decision is incomplete.
        OutputError: There is an earlier decision, or it cannot be written.
    """
    folder, safe = Path(folder).absolute(), vault or Vault.open()
    files = Contents(folder)
    files.read(bundle.CARD)
    card = bundle.read(folder, files.digests).card
    made = _decided(card.release_id, decision, name, conditions, today)
    if os.path.lexists(folder / APPROVAL) and not replace:
        raise OutputError(f"no {APPROVAL} in {folder} yet", "one", "It is a decision.", "Pass --force to replace it.")
    digests = files.signed() if decision == "reject" else _require_sound(files, safe)
    content, inside = seal(approval_statement(digests, made), key), safe.load_dossier(card.release_id)
    if inside is not None:
        fuller = InsideApproval(**made.model_dump(), dossier_sha256=hashlib.sha256(inside).hexdigest())
        safe.store_dossier(card.release_id, {APPROVAL: seal(approval_statement(digests, fuller), key)})
    _place(folder, content)
    return made, inside is not None


def _decided(
    release_id: str, decision: DecisionWord, name: str, conditions: str, today: datetime.date | None
) -> Approval:
    day = (today or datetime.datetime.now(datetime.UTC).date()).isoformat()
    if (decision == "conditions") != bool(conditions.strip()) and decision != "reject":
        raise ConfigError(
            "conditions with the decision 'conditions' and no other",
            f"the decision '{decision}' {'with' if conditions.strip() else 'without'} conditions",
        )
    try:
        return Approval(release_id=release_id, decision=decision, name=name, date=day, conditions=conditions)
    except ValidationError as error:
        raise ConfigError(
            "a decision, a name of 1 to 100 characters and conditions of at most 2,000, all printable on one line",
            "something else",
        ) from error


def _require_sound(files: Contents, vault: Vault) -> Mapping[str, str]:
    """Whoever signs what does not verify signs something that nobody can rely on; the old decision does not count.

    Returns:
        The digests of the files that were verified: those are signed, whatever the folder holds by now.
    """
    found = verify(files.folder, vault)
    for check in found.checks:
        if check.outcome == "failed" and check.name != "approval":
            raise Refused(
                f"a bundle that verifies in {files.folder}",
                f"a defect: {check.says.rstrip('.')}",
                "An approval would say that it may be relied on.",
                "`airlock verify` lists all of them; it can be rejected as it is.",
            )
    files.expect(found.digests)
    return {name: sha for name, sha in found.digests.items() if name not in SIGNATURES}


def _place(folder: Path, content: bytes) -> None:
    """Write aside, outside the bundle, and rename: the bundle never holds half a decision."""
    aside = folder.parent / f".{folder.name}.{secrets.token_hex(8)}.part"
    try:
        write_file(aside, content)
        aside.replace(folder / APPROVAL)
        sync_folder(folder)
    except OSError as error:
        raise output_error(error, folder / APPROVAL) from error
    finally:
        aside.unlink(missing_ok=True)


def refuse_rejected(files: Contents, vault: Vault | None = None) -> None:
    """Refuse a bundle that a reviewer has rejected, by whatever key.

    Raises:
        Refused: There is a rejection in it.
    """
    found = examine(files, vault)
    if found.rejected:
        raise Refused("a bundle that no reviewer has rejected", found.approval.says.rstrip("."))
