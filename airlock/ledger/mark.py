"""What is kept outside the database: the high-water mark, the secret of the chain, and a state that was verified.

The high-water mark records how far the ledger had progressed. A database restored from a backup has its budget back,
and its own hashes are consistent. The mark remembers the last entry that this machine saw committed; a ledger that is
shorter, or has another entry at that number, was rewound or replaced. The database commits first and the mark follows,
so a crash in between leaves a mark that is slightly behind: it then detects less, but never raises a false alarm. Only
at the very beginning the mark comes first, at entry 0, so that there is no ledger without one. Several processes may
share one mark; it only rises. Replicas on several machines have one each.

The secret (`<ledger>.secret`, 32 bytes) lies in the mark's folder under the ledger's identity; marks in one folder
share it, and a replica elsewhere gets a copy of the file. The verified state (`<mark>.state`) is what the log said at
some entry, under the secret: whoever opens the ledger walks only what follows. It can be deleted; then all is walked.

Keep them where restoring the database does not overwrite them. Anyone who can change both can rewind both.
"""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from airlock.errors import LedgerBroken, LedgerUnavailable
from airlock.ledger.chain import FIRST_HASH, Position, Seal, digest


def mark_name(place: str) -> str:
    """A file name for the mark of a ledger at `place`, independent of a password and of how the path is spelled."""
    if "://" in place and not place.startswith("sqlite:///"):
        url = sa.make_url(place)
        where = repr((url.host, url.port, url.database, sorted(url.query.items())))
    else:
        where = str(Path(place.removeprefix("sqlite:///")).expanduser().resolve())
    return f"{digest(where)[:32]}.json"


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents, for their owner alone, whatever the umask."""
    if not folder.is_dir():
        make_folder(folder.parent)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(0o700)
            folder.chmod(0o700)


def open_private(path: Path, flags: int) -> int:
    """Open a file, created for its owner alone, whatever the umask."""
    try:
        return os.open(path, flags & ~os.O_CREAT)
    except FileNotFoundError:
        handle = os.open(path, flags | os.O_CREAT, 0o600)
        os.fchmod(handle, 0o600)
        return handle


class HighWaterMark:
    """A small file that is replaced atomically, and the two files beside it."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path).expanduser().absolute()

    def read(self) -> Position | None:
        """The position it holds; None where there is no mark yet.

        Raises:
            LedgerBroken: The file is not a mark.
        """
        try:
            fields = json.loads(self.path.read_bytes())
            at, keyed = int(fields.get("at", 0)), fields.get("keyed", False) is True
            return Position(str(fields["ledger"]), int(fields["entries"]), str(fields["head"]), at, keyed)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise LedgerBroken(
                "a readable high-water mark", f"something else in {self.path.name}", "It detects a rewound budget."
            ) from error

    def raise_to(self, position: Position, *, test: bool = False) -> Position:
        """Write a position, and a time, unless the mark is already there or further; on disk when this returns.

        Args:
            position: Where the ledger is.
            test: Write in any case, to find out whether that is possible.

        Returns:
            What the mark holds now; if it is further, the ledger must have that entry too.

        Raises:
            LedgerUnavailable: It cannot be written.
            LedgerBroken: The mark belongs to another ledger, or to a copy of this one that went another way.
        """
        with self._locked():
            held = self.read()
            if held is not None and held.ledger != position.ledger:
                raise LedgerBroken("the mark of this ledger", "that of another", "Each ledger has its own.")
            if held is not None and held.entries == position.entries and held.head != position.head:
                raise LedgerBroken(
                    f"entry {held.entries:,} as the high-water mark has it",
                    "another",
                    "Two copies of one ledger are in use: each would spend the whole budget.",
                    "Nothing is answered. Stop both, and restore the newest database.",
                )
            higher = held if held is not None and held.entries > position.entries else position
            risen = replace(higher, at=max(position.at, held.at if held else 0))
            if test or risen != held:
                self._write(risen)
            return risen

    @contextlib.contextmanager
    def beginning(self, at: int) -> Iterator[tuple[str, Seal]]:
        """The identity and the seal of a new ledger, and a mark at its entry 0, while one process creates it.

        Raises:
            LedgerBroken: The mark knows a ledger that has entries.
        """
        with self._locked():
            held = self.read()
            if held is not None and held.entries:
                raise LedgerBroken(
                    f"the ledger that its mark knows, with {held.entries:,} entries",
                    "no ledger",
                    "With a new one the budget could be spent a second time.",
                    "Restore the newest database; remove the mark only if that release is no longer served.",
                )
            identity = held.ledger if held is not None else secrets.token_hex(16)
            seal = self.make_secret(identity)
            if held is None:
                self._write(Position(identity, 0, FIRST_HASH, at))
            yield identity, seal

    def abandon(self, ledger: str) -> None:
        """Remove the mark and the secret of a ledger that was not created after all: another process was faster."""
        with self._locked():
            held = self.read()
            if held is not None and held.ledger == ledger and not held.entries:
                self.path.unlink()
                self.secret_path(ledger).unlink(missing_ok=True)

    def secret_path(self, ledger: str) -> Path:
        """Where the secret of a ledger is."""
        return self.path.with_name(f"{ledger}.secret")

    def seal(self, ledger: str) -> Seal | None:
        """The seal under the ledger's secret; None where there is none.

        Raises:
            LedgerBroken: The file is not a secret.
        """
        try:
            secret = bytes.fromhex(self.secret_path(ledger).read_text("ascii"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise _no_secret(self.secret_path(ledger).name) from error
        if len(secret) != 32:
            raise _no_secret(self.secret_path(ledger).name)
        return Seal(secret)

    def make_secret(self, ledger: str) -> Seal:
        """The seal of a ledger, under a new secret if it has none yet; on disk when this returns."""
        made = self.seal(ledger)
        if made is not None:
            return made
        with _telling(self.path):
            make_folder(self.path.parent)
            aside = self.path.with_name(f".{ledger}.{secrets.token_hex(4)}.part")
            _write_synced(aside, secrets.token_hex(32).encode() + b"\n")
            with contextlib.suppress(FileExistsError):
                os.link(aside, self.secret_path(ledger))
            aside.unlink()
            _sync_folder(self.path.parent)
        kept = self.seal(ledger)
        assert kept is not None
        return kept

    def save_state(self, content: dict[str, Any], seal: Seal) -> None:
        """Keep a verified state; failing to is not worth an error, since the log can be walked instead."""
        text = json.dumps(content, separators=(",", ":")).encode()
        with contextlib.suppress(LedgerUnavailable), self._locked():
            aside = self._state_path().with_name(f".{self._state_path().name}.part")
            _write_synced(aside, seal.hash(b"state\n" + text).encode() + b"\n" + text)
            os.replace(aside, self._state_path())

    def load_state(self, seal: Seal) -> dict[str, Any] | None:
        """The state that was kept under this secret; None if there is none, or it is not whole."""
        try:
            stored, _, text = self._state_path().read_bytes().partition(b"\n")
        except OSError:
            return None
        if not hmac.compare_digest(seal.hash(b"state\n" + text).encode(), stored):
            return None
        content: dict[str, Any] = json.loads(text)
        return content

    def _state_path(self) -> Path:
        return self.path.with_name(f"{self.path.name}.state")

    def _write(self, position: Position) -> None:
        """A crash leaves the old mark or the new one. The folder is not synced: an old mark is only slightly behind."""
        aside = self.path.with_name(f".{self.path.name}.part")
        _write_synced(aside, json.dumps(asdict(position)).encode() + b"\n")
        os.replace(aside, self.path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with _telling(self.path):
            make_folder(self.path.parent)
            handle = open_private(self.path.with_name(f".{self.path.name}.lock"), os.O_RDWR)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                yield
            finally:
                os.close(handle)


def _write_synced(path: Path, content: bytes) -> None:
    with os.fdopen(open_private(path, os.O_WRONLY | os.O_TRUNC), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _telling(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LedgerUnavailable(
            f"to write the high-water mark {path.name}",
            os.strerror(error.errno or 0),
            "Nothing was answered, and nothing is charged until it can be written.",
            "Free some space or move it elsewhere, then retry.",
        ) from error


def _no_secret(name: str) -> LedgerBroken:
    return LedgerBroken(
        "64 hexadecimal digits", f"something else in {name}", "The hashes of the log are made with it.", "Restore it."
    )
