"""A bundle that may be handed on, its files as they were verified, and a new folder of them.

Every file is read with the digest that it had when the bundle was verified: whoever can write the bundle's folder
cannot put another one into what is written or uploaded here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from airlock.bundle import dossier
from airlock.bundle.bundle import Bundle
from airlock.bundle.contents import CARD, SUMS
from airlock.bundle.files import folder_aside, write_file
from airlock.bundle.packing import packing_of
from airlock.bundle.signing.approval import refuse_rejected
from airlock.bundle.signing.keys import PublicKey
from airlock.bundle.vault import Vault
from airlock.bundle.verify import read_verified
from airlock.errors import OutputError, Refused

HUB, MLFLOW = "hub", "mlflow"
FORMS = (HUB, MLFLOW)
WHOLE = "bundle"  # the subfolder that holds the bundle
Files = dict[str, bytes]  # by path within the folder


def open_for_others(
    folder: Path,
    vault: Vault | None = None,
    *,
    signers: Sequence[PublicKey] = (),
    approvers: Sequence[PublicKey] = (),
) -> Bundle:
    """A bundle that verifies, that nobody has rejected, with a network, and with an ε that nothing refutes.

    Args:
        folder: The bundle.
        vault: The vault whose files must not be in it, and which knows what attacks found; the user's default vault if
            left out.
        signers: If given, one of these keys must have signed it.
        approvers: If given, a reviewer must have approved it with one of these keys.

    Raises:
        Refused: It is none.
    """
    safe = vault or Vault.open()
    found = read_verified(folder, safe, signers=signers, approvers=approvers)
    refuse_rejected(found.files)
    if found.card.network is None:
        raise Refused(
            "a bundle with a network",
            f"one of {packing_of(found.card.artefact).noun}",
            "These platforms keep models.",
            "Hand the bundle's own folder on.",
        )
    inside = dossier.find(safe, found.card.release_id)
    if inside is not None and inside.verdict == "doubt":
        raise Refused(
            "a release whose ε nothing refutes",
            "an attack or the court that refutes it, in the dossier",
            "Whoever takes the model would rely on it.",
            "Read the dossier; do not let the bundle out.",
        )
    return found


def files_of(bundle: Bundle) -> Files:
    """The files of a verified bundle below the subfolder that holds it.

    Raises:
        Refused: The bundle was not verified.
        FormatError: A file was changed after it was.
    """
    if not bundle.digests:
        raise Refused(
            "a bundle that was verified", "one that was only read", do="Open it with bundle.platforms.open_for_others."
        )
    return {f"{WHOLE}/{name}": bundle.files.read(name) for name in sorted(bundle.digests)}


def check_place(out: Path) -> None:
    """Refuse a place that is taken or inside a bundle, before anything is verified for it.

    Raises:
        OutputError: It is.
    """
    if out.exists() or out.is_symlink():
        raise OutputError("a folder that does not exist yet", str(out), "Nothing is overwritten.", "Name another one.")
    inside = next((one for one in out.absolute().parents if (one / CARD).exists() and (one / SUMS).exists()), None)
    if inside is not None:
        raise OutputError(
            "a place outside a bundle",
            str(out),
            "A bundle is signed: nothing is added to it.",
            "Choose another place.",
        )


def write_folder(out: Path, files: Mapping[str, bytes]) -> list[Path]:
    """A new folder of these files, which is there whole or not at all.

    Raises:
        OutputError: There is something already, or it cannot be written.
    """
    check_place(out)
    with folder_aside(out) as aside:
        for name, content in files.items():
            (aside / name).parent.mkdir(parents=True, exist_ok=True)
            write_file(aside / name, content)
    return [out / name for name in files]
