"""Who signed a bundle, and who countersigned it.

In: the files of a bundle, and a `Keyring`. Out: `Signatures`, two `Endorsement`s: the holder's and the reviewer's. Each
is a state and one sentence, whatever the files hold. A signature counts only if it is by a key that the verifier knows:
what a bundle says about its own key anyone could have written.
"""

from __future__ import annotations

import datetime
import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from airlock.bundle.contents import APPROVAL, CARD, SIGNATURE, SIGNATURES, Contents, Defects, Skip, Test
from airlock.bundle.files import parse_json, read_file
from airlock.bundle.signing.envelope import (
    Approval,
    ApprovalStatement,
    Envelope,
    InsideStatement,
    ReleaseStatement,
    unseal,
)
from airlock.bundle.signing.keys import Keyring, PublicKey
from airlock.bundle.vault import Vault
from airlock.errors import AirlockError

UNSIGNED = "Unsigned: anyone could have written this bundle."
NOT_APPROVED = "No reviewer has countersigned this bundle."
_SHOWN = 3  # differences that are named; the rest is counted

State = Literal["none", "unreadable", "forged", "changed", "unknown", "known"]
BROKEN: tuple[State, ...] = ("unreadable", "forged", "changed")


@dataclass(frozen=True)
class Endorsement:
    """One signature of a bundle.

    Args:
        state: There is none; it cannot be read; it is not by the key that it names; it is of other files; it is by a
            key that nobody here knows; or it is by a known key.
        says: One sentence.
        by: Whose key it is; only in the last state.
        fingerprint: The key's; in state `unknown` it is only what the file says.
        accepted: Whether it is by a key that will do: one of those required, or any known one.
        required: Whether certain keys were required.
        approval: The reviewer's decision, where there is one to be read.
    """

    state: State
    says: str
    by: str | None = None
    fingerprint: str | None = None
    accepted: bool = False
    required: bool = False
    approval: Approval | None = None

    def test(self) -> Defects:
        """As a check of `verify`: broken fails, a known reviewer's rejection too, and what is missing if required."""
        rejected = self.state == "known" and self.approval is not None and self.approval.decision == "reject"
        if self.state in BROKEN or rejected or (self.required and not self.accepted):
            return [self.says]
        if not self.accepted:
            raise Skip(self.says)
        return []

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        decided = {} if self.approval is None else self.approval.model_dump(mode="json")
        return {"state": self.state, "says": self.says, "by": self.by, "fingerprint": self.fingerprint, **decided}


@dataclass(frozen=True)
class Signatures:
    """The holder's and the reviewer's signature of one bundle."""

    release: Endorsement
    approval: Endorsement

    @property
    def rejected(self) -> bool:
        """Whether there is a reviewer's rejection of these files, by whatever key."""
        decided = self.approval.approval
        return decided is not None and decided.decision == "reject"

    def tests(self) -> list[Test]:
        """The checks of `verify`; that of the approval only where there is one or must be one."""
        found: list[Test] = [("signature", self.release.says, self.release.test)]
        if self.approval.state != "none" or self.approval.required:
            found.append(("approval", self.approval.says, self.approval.test))
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return {"signature": self.release.to_dict(), "approval": self.approval.to_dict()}


def examine(
    files: Contents, vault: Vault | None, signers: Iterable[PublicKey] = (), approvers: Iterable[PublicKey] = ()
) -> Signatures:
    """Find out who signed these files.

    Args:
        files: A bundle's.
        vault: Its own key counts as known.
        signers: If there are any, only these keys will do for the release.
        approvers: If there are any, only these keys will do for the approval.

    Raises:
        FormatError: The user's own keys cannot be read; nothing in a bundle raises.
    """
    return Signatures(
        _guarded(_release, files, Keyring.of(vault, signers)), _guarded(_approval, files, Keyring.of(vault, approvers))
    )


def covers_newest_dossier(vault: Vault, release_id: str) -> bool | None:
    """Whether the decision in this vault was made on its newest dossier; None if there is no decision or no dossier."""
    place, inside = vault.dossier_folder(release_id) / APPROVAL, vault.load_dossier(release_id)
    if inside is None or not os.path.lexists(place):
        return None
    try:
        kept = unseal(read_file(place, 1 << 22), APPROVAL).statement(InsideStatement)
    except AirlockError:
        return False
    return kept.predicate.dossier_sha256 == hashlib.sha256(inside).hexdigest()


def _guarded(look: Any, files: Contents, ring: Keyring) -> Endorsement:
    """Whatever a hostile file makes a library raise, the signature cannot be read."""
    try:
        found: Endorsement = look(files, ring)
    except AirlockError as error:
        return Endorsement("unreadable", f"Its signature cannot be read: {error}", required=bool(ring.required))
    except Exception as error:  # noqa: BLE001  a hostile file may make any library raise anything
        says = f"Its signature cannot be read: {type(error).__name__} in reading it."
        return Endorsement("unreadable", says, required=bool(ring.required))
    return found


def _release(files: Contents, ring: Keyring) -> Endorsement:
    if SIGNATURE not in files.names:
        return Endorsement("none", UNSIGNED, required=bool(ring.required))
    envelope = unseal(files.read(SIGNATURE), SIGNATURE)
    statement = envelope.statement(ReleaseStatement)
    envelope.require_size(len(statement.files))
    return _judged(envelope, _differences(statement.files, files), ring, "Signed", None)


def _approval(files: Contents, ring: Keyring) -> Endorsement:
    if APPROVAL not in files.names:
        return Endorsement("none", NOT_APPROVED, required=bool(ring.required))
    envelope = unseal(files.read(APPROVAL), APPROVAL)
    statement = envelope.statement(ApprovalStatement)
    envelope.require_size(len(statement.files))
    differences = _differences(statement.files, files) or _misplaced(statement.predicate, files)
    return _judged(envelope, differences, ring, "Countersigned", statement.predicate)


def _misplaced(decided: Approval, files: Contents) -> list[str]:
    """What a decision says about these very files that cannot be: another release, or a day that has not come."""
    card = parse_json(files.read(CARD)) if CARD in files.names else {}
    other = not isinstance(card, dict) or card.get("release_id") != decided.release_id
    tomorrow = datetime.datetime.now(datetime.UTC).date() + datetime.timedelta(days=1)  # a clock may be a little ahead
    found = ["It names another release than the card."] if other else []
    late = datetime.date.fromisoformat(decided.date) > tomorrow
    return found + ([f"Its date, {decided.date}, is in the future."] if late else [])


def _judged(
    envelope: Envelope, differences: Sequence[str], ring: Keyring, done: str, approval: Approval | None
) -> Endorsement:
    """Whose signature this is, and whether it is of these files.

    The key comes first, and what the signer says about themselves last: it could be worded like another signature.
    """
    known, needed = ring.find(envelope.fingerprint), bool(ring.required)
    key = known.key if known else envelope.certified
    fingerprint = envelope.fingerprint
    who = f"{known.name} ({fingerprint})" if known else f"an unknown key ({fingerprint})"
    if key is not None and not envelope.is_by(key):
        says = f"FORGED: {envelope.name} names the key of {who} and was not made with it."
        return Endorsement("forged", says, required=needed)
    if differences:
        says = f"NOT as it was {done.lower()} by {who}: {' '.join(differences)}"
        return Endorsement("changed", says, required=needed)
    decided = "." if approval is None else f": {approval}."
    if known is None:
        says = f"{done} by {who}, which anyone could have made{decided}"
        return Endorsement("unknown", says, None, fingerprint, False, needed, approval)
    accepted = ring.accepts(known.key)
    says = f"{done} by {who}{'' if accepted else ', not by a key that was required'}{decided}"
    return Endorsement("known", says, known.name, fingerprint, accepted, needed, approval)


def _differences(listed: Sequence[tuple[str, str]], files: Contents) -> list[str]:
    """What distinguishes the signed files from those that are there; they are hashed only if nothing else does."""
    names, there = Counter(name for name, _ in listed), set(files.plain).difference(SIGNATURES)
    found = [f"{name} is listed twice." for name, count in names.items() if count > 1]
    found += [f"{name} lists itself or another signature." for name in names if name in SIGNATURES]
    found += [f"{name} is missing." for name in names if name not in there and name not in SIGNATURES]
    others = [name for name in files.names if name not in SIGNATURES and name not in names]
    found += [f"{_printable(name)} was added." for name in others]
    found += [f"{_printable(name)} is too large." for name in files.too_large]
    found += [f"{_printable(name)} is sparse." for name in files.sparse]
    if not found:
        now = files.signed()
        found = [f"{name} was changed." for name, sha in listed if now[name] != sha]
    more = len(found) - _SHOWN
    return [*found[:_SHOWN], *([f"{more} more."] if more > 0 else [])]


def _printable(name: str) -> str:
    return name if name.isprintable() else ascii(name)
