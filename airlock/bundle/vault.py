"""What must not leave: private models, teachers, collections, front ends, checkpoints.

The vault is a separate folder, readable only by its owner and marked as never to be released. It records the SHA-256 of
everything it has ever held, so that verification recognises a vault file in a bundle under any name, even after the
original has been deleted. It also records what was released: a bundle is a folder that anyone can write, so what a
service answers, with which noise and how often, is taken from here. Every file is there whole or not at all.

    vault/                      0700
      NEVER-RELEASE.txt         0600   what this is
      <release id>/             0700   one folder per release
        <name>.safetensors      0600   arrays
        remarks.json            0600   what the holder should know about the records, if anything
        index.json              0600   SHA-256 of each
        release.json            0600   what was released: the interface, and SHA-256 of the bundle's files
        dossier/                0700   what the internal reviewer reads
          dossier.json          0600   the newest; earlier ones are dossier-1.json, dossier-2.json, ...
          dossier.html          0600   the same as a page
          index.json            0600   SHA-256 of all of them
      records/                  0700   room for files without a name: records that do not fit into memory
      checkpoints/<run key>/    0700   unfinished training
      checkpoints/<run key>.records  0600   keyed fingerprint of the records that it began with
      checkpoints/<run key>.reservation  0600   in a register, and the key of the noise; until the bundle is written
      records.key               0600   the key of all fingerprints
      marks/                    0700   high-water marks and secrets of ledgers, and what is known of registers
      keys/                     0700   the key that signs releases
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import re
import secrets
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors.numpy

from airlock.bundle.files import (
    digest,
    locked,
    output_error,
    parse_json,
    read_file,
    replace_file,
    sync_folder,
    write_file,
)
from airlock.config import Frozen
from airlock.errors import FormatError, OutputError, TrainingError
from airlock.methods.contract import Secrets
from airlock.methods.interface import Interface

VARIABLE = "AIRLOCK_VAULT"
MARKER = "NEVER-RELEASE.txt"
MARKER_TEXT = """NEVER RELEASE ANYTHING IN THIS FOLDER.

This is an Airlock vault. It holds what a release needed but must not contain: private models, teachers, collections of
parameters, secret choices, checkpoints of training on private records. None of it is covered by a guarantee.

Do not copy, share, mail or upload any of it, and keep it out of backups that others can read. Delete a subfolder when
its release is no longer in use. `airlock verify` refuses a bundle that holds a file from here under any name.
"""
_INDEX = "index.json"
_RELEASED = "release.json"
_KEY, _KEY_BYTES = "records.key", 32
_REMARKS = "remarks.json"
_ARRAYS = ".safetensors"
_CHECKPOINTS = "checkpoints"
_RECORDS = "records"
_MARKS = "marks"
_KEYS = "keys"
_DOSSIER = "dossier"
DOSSIER = "dossier.json"
_DOSSIER_LIMIT = 64 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_NUMBERED = re.compile(r".+-([0-9]+)\.[a-z]+")
_INDEX_LIMIT = 16 << 20


class ReleaseRecord(Frozen):
    """What was released, as the holder's own machine wrote it.

    Args:
        release_id: Of the card.
        channel: What leaves.
        method: How it was made.
        interface: What may be asked, where answers leave.
        files: SHA-256 of the bundle's files by name, as they were written.
    """

    release_id: str
    channel: str
    method: str
    interface: Interface | None
    files: dict[str, str]

    def changed(self, digest_of: Callable[[str], str]) -> list[str]:
        """The files of a folder that are not those that were written, by their digests."""
        return sorted(name for name, sha in self.files.items() if digest_of(name) != sha)


@dataclass(frozen=True)
class Vault:
    """The folder of what stays; it is created when something is first stored."""

    root: Path

    @classmethod
    def open(cls, root: Path | None = None) -> Vault:
        """The vault at `root`, or at AIRLOCK_VAULT, or in the user's data folder, in this order."""
        if root is None and os.environ.get(VARIABLE):
            root = Path(os.environ[VARIABLE])
        if root is None:
            home = os.environ.get("XDG_DATA_HOME")
            root = (Path(home) if home else Path.home() / ".local" / "share") / "airlock" / "vault"
        return cls(Path(root).expanduser().absolute())

    def store(self, release_id: str, kept: Secrets, remarks: Sequence[str] = ()) -> Path:
        """Write the arrays of one release and the remarks for its holder, and record their hashes; returns its folder.

        Raises:
            OutputError: A name is not a plain file name, the release is already stored, or writing failed.
        """
        names = {_checked(name).removesuffix(_ARRAYS) + _ARRAYS: name for name in kept}
        folder = self._prepare(_checked(release_id))
        taken = OutputError(
            "a release that is not in the vault yet", release_id, "What is stored there is never replaced."
        )
        if (folder / _INDEX).exists():
            raise taken
        try:
            for file, name in names.items():
                arrays = {key: np.ascontiguousarray(array) for key, array in kept[name].items()}
                write_file(folder / file, safetensors.numpy.save(arrays), 0o600)
            if remarks:
                text = json.dumps(list(remarks), indent=2) + "\n"
                write_file(folder / _REMARKS, text.encode(), 0o600)
            index = {file: digest(folder / file) for file in (*names, *([_REMARKS] if remarks else []))}
            write_file(folder / _INDEX, (json.dumps(index, indent=2) + "\n").encode(), 0o600)
            sync_folder(folder)
        except FileExistsError as error:  # another process is storing it
            raise taken from error
        except OSError as error:
            for file in (*names, _REMARKS, _INDEX):
                (folder / file).unlink(missing_ok=True)
            raise output_error(error, folder) from error
        return folder

    def record(self, made: ReleaseRecord) -> None:
        """Write down what was released; once, and before the bundle is there under its name.

        Raises:
            OutputError: It could not be written, or is there already.
        """
        folder = self._prepare(_checked(made.release_id))
        text = json.dumps(made.model_dump(mode="json"), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        try:
            write_file(folder / _RELEASED, text.encode(), 0o600)
            sync_folder(folder)
        except OSError as error:
            raise output_error(error, folder) from error

    def recorded(self, release_id: str) -> ReleaseRecord | None:
        """What was released under this id; None if this vault has no record of it.

        Raises:
            FormatError: The record cannot be read.
        """
        file = self.root / _checked(release_id) / _RELEASED
        if not os.path.lexists(file):
            return None
        try:
            found = ReleaseRecord.model_validate(parse_json(read_file(file, _INDEX_LIMIT)))
        except ValueError as error:  # includes pydantic's ValidationError
            raise FormatError(
                f"the vault's record of release {release_id[:8]}", "something else", do="Restore the vault."
            ) from error
        if found.release_id != release_id:
            raise FormatError(f"the vault's record of release {release_id[:8]}", "that of another one")
        return found

    def load(self, release_id: str) -> Secrets:
        """The arrays of one release, each file checked against its recorded hash.

        Raises:
            FormatError: This vault does not have them, or a file was changed.
        """
        folder = self.root / _checked(release_id)
        try:
            index = parse_json(read_file(folder / _INDEX, _INDEX_LIMIT))
            changed = [name for name, sha in index.items() if digest(folder / _checked(name)) != sha]
            if not changed:
                arrays = [name for name in index if name.endswith(_ARRAYS)]
                return {name.removesuffix(_ARRAYS): safetensors.numpy.load_file(folder / name) for name in arrays}
        except (OSError, ValueError, FormatError) as error:
            raise FormatError(
                f"what release {release_id[:8]} left in the vault",
                f"nothing that can be read in {self.root}",
                "What answers queries never leaves the vault of its release.",
                "Give that vault with --vault or AIRLOCK_VAULT.",
            ) from error
        raise FormatError(
            f"what release {release_id[:8]} left in the vault, as it was",
            f"a change in {changed[0]}",
            "Answers would not come from what was released.",
            "Restore the vault, or make the release again.",
        )

    def remarks(self, release_id: str) -> tuple[str, ...]:
        """What the holder was told about the records of one release; it must never leave."""
        file = self.root / _checked(release_id) / _REMARKS
        return tuple(parse_json(read_file(file, _INDEX_LIMIT))) if file.is_file() else ()

    def store_dossier(self, release_id: str, files: Mapping[str, bytes]) -> Path:
        """Write the files of a release's dossier; earlier ones are kept under a number. Returns the folder.

        Raises:
            OutputError: A name is not a plain file name, or writing failed; the earlier dossier is kept.
        """
        folder = self._prepare(_checked(release_id), _DOSSIER)
        names = {name: Path(_checked(name)) for name in files}
        try:
            with locked(folder):
                number = _next_number(folder)
                for name, content in files.items():
                    aside = folder / f"{name}.{uuid.uuid4().hex[:8]}.part"
                    write_file(aside, content, 0o600)
                    if (folder / name).exists():
                        (folder / name).rename(folder / f"{names[name].stem}-{number}{names[name].suffix}")
                    aside.rename(folder / name)
                self._remember(folder, files)
        except OSError as error:
            raise output_error(error, folder) from error
        return folder

    def dossier_folder(self, release_id: str) -> Path:
        """The folder of a release's dossiers, if there are any."""
        return self.root / _checked(release_id) / _DOSSIER

    def load_dossier(self, release_id: str) -> bytes | None:
        """The newest dossier of a release as raw bytes; None if this vault has none.

        Raises:
            FormatError: It is not a plain file, or is too large.
        """
        file = self.dossier_folder(release_id) / DOSSIER
        return read_file(file, _DOSSIER_LIMIT) if os.path.lexists(file) else None

    def _remember(self, folder: Path, files: Mapping[str, bytes]) -> None:
        """Add the files' hashes to the index of a folder, under unique names."""
        place = folder / _INDEX
        index = parse_json(read_file(place, _INDEX_LIMIT)) if place.exists() else {}
        shas = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        index |= {f"{sha[:8]}-{name}": sha for name, sha in shas.items()}
        aside = folder / f"{_INDEX}.{uuid.uuid4().hex[:8]}.part"
        write_file(aside, (json.dumps(index, indent=2) + "\n").encode(), 0o600)
        aside.replace(place)

    def records_folder(self) -> Path:
        """A folder for records that do not fit into memory (`data.limits`): files there have no name."""
        return self._prepare(_RECORDS)

    def checkpoint_folder(self, run_key: str) -> Path:
        """A folder for the checkpoints of one run, readable only by its owner."""
        return self._prepare(_CHECKPOINTS, _checked(run_key))

    def begin(self, run_key: str, fingerprint: Callable[[bytes], str], *, resume: bool) -> Path:
        """The folder for the checkpoints of one run, which is bound to the records that it begins with.

        Args:
            run_key: Of the run.
            fingerprint: From a key to the keyed fingerprint of the records; it stays in the vault.
            resume: Whether the run goes on from what the folder holds; otherwise the folder is emptied.

        Raises:
            TrainingError: It began with other records, or nobody knows with which. That depends on records: it is for
                the holder's terminal, before any step, and nothing leaves.
        """
        folder, file = self.checkpoint_folder(run_key), self._fingerprint_file(run_key)
        mine = fingerprint(self.records_key())
        begun = file.read_text(encoding="utf-8") if file.is_file() else ""
        if resume and (begun or any(folder.iterdir())) and not hmac.compare_digest(begun.encode(), mine.encode()):
            raise TrainingError(
                "the records that this run began with",
                "others" if begun else "a checkpoint without a fingerprint of its records",
                "The steps so far learnt from other records than the rest would, and the accounted events would be "
                "those of neither.",
                "Restore the records, or begin anew: --again for a release, without --resume for an audit.",
            )
        if not resume:  # before the fingerprint changes: what lies there was learnt from the records of the old one
            shutil.rmtree(folder)
            folder = self.checkpoint_folder(run_key)
            sync_folder(folder.parent)
        replace_file(file, mine)
        return folder

    def is_unfinished(self, run_key: str) -> bool:
        """Whether a run of this key has begun to read, or was charged, and has not ended; it may still be running."""
        kept = (self._fingerprint_file(run_key), self._reservation_file(run_key))
        return any(file.exists() for file in kept)

    def forget_checkpoint(self, run_key: str) -> None:
        """Remove the checkpoints of a run that is finished."""
        shutil.rmtree(self.root / _CHECKPOINTS / _checked(run_key), ignore_errors=True)
        self.forget_records(run_key)

    def forget_records(self, run_key: str) -> None:
        """Remove the fingerprint of a run that is finished."""
        self._fingerprint_file(run_key).unlink(missing_ok=True)

    def reservation_file(self, run_key: str) -> Path:
        """Where a run that is charged in a register keeps its reservation and the key of its noise."""
        self._prepare(_CHECKPOINTS)
        return self._reservation_file(run_key)

    def _reservation_file(self, run_key: str) -> Path:
        return self.root / _CHECKPOINTS / f"{_checked(run_key)}.reservation"

    def _fingerprint_file(self, run_key: str) -> Path:
        return self.root / _CHECKPOINTS / f"{_checked(run_key)}.records"

    def records_key(self) -> bytes:
        """The key of all fingerprints, made when it is first needed."""
        file = self._prepare() / _KEY
        try:
            with contextlib.suppress(FileExistsError):
                if not file.exists():
                    write_file(file, secrets.token_bytes(_KEY_BYTES), 0o600)
        except OSError as error:
            raise output_error(error, file) from error
        key = read_file(file, _KEY_BYTES)
        if len(key) != _KEY_BYTES:
            raise FormatError(f"{_KEY_BYTES} bytes in the vault's {_KEY}", f"{len(key)}", do="Restore the vault.")
        return key

    def mark_folder(self) -> Path:
        """A folder for the high-water marks of ledgers, readable only by its owner."""
        return self._prepare(_MARKS)

    def key_folder(self) -> Path:
        """A folder for the key that signs releases, readable only by its owner."""
        return self._prepare(_KEYS)

    @property
    def signing_key(self) -> Path:
        """Where the key that signs releases is, if there is one."""
        return self.root / _KEYS / "signing.pem"

    def hashes(self, sizes: Set[int] | None = None) -> dict[str, str]:
        """SHA-256 of everything the vault holds or has held, each with its path in the vault.

        Args:
            sizes: If given, only files of these sizes in bytes are read; hashes from the index are always included.
        """
        found = dict(self._indexed())
        for path in self._files():
            size = path.stat().st_size
            if size and path.name != _INDEX and (sizes is None or size in sizes):
                found[digest(path)] = path.relative_to(self.root).as_posix()
        return found

    def _indexed(self) -> Iterator[tuple[str, str]]:
        for path in self._files():
            if path.name != _INDEX:
                continue
            try:
                index = parse_json(read_file(path, _INDEX_LIMIT))
            except ValueError as error:
                raise FormatError("a readable index in the vault", f"{path.parent.name}/{path.name}") from error
            for name, sha in index.items():
                yield str(sha), f"{path.parent.name}/{name}"

    def _files(self) -> list[Path]:
        if not self.root.is_dir():
            return []
        return sorted(path for path in self.root.rglob("*") if path.is_file() and not path.is_symlink())

    def _prepare(self, *parts: str) -> Path:
        """Create the folder and its parents within the vault, all with mode 0700, and the marker."""
        folder = self.root
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self.root.chmod(0o700)
            with contextlib.suppress(FileExistsError):  # another process may be the first here
                write_file(self.root / MARKER, MARKER_TEXT.encode(), 0o600)
            for part in parts:
                folder = folder / part
                folder.mkdir(exist_ok=True)
                folder.chmod(0o700)
        except OSError as error:
            raise output_error(error, folder) from error
        return folder


def _next_number(folder: Path) -> int:
    """One more than the largest number of an earlier file."""
    numbers = [int(found[1]) for path in folder.iterdir() if (found := _NUMBERED.fullmatch(path.name))]
    return max(numbers, default=0) + 1


def _checked(name: str) -> str:
    """A plain name: no separators, no leading dot, so that it stays inside the vault."""
    if not _NAME.fullmatch(name) or name in (_INDEX, MARKER):
        raise OutputError(
            "a plain name of letters, digits, '.', '_' and '-'", repr(name)[:60], "It names a file in the vault."
        )
    return name
