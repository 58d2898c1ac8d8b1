"""The high-water mark: how far the ledger had come, kept outside of its database.

A database that is restored from a backup has its budget back, and its own hashes agree. The mark remembers the last
entry that this machine saw committed; a ledger that is shorter, or has another entry in that place, was rewound or
replaced. The database commits first and the mark follows, so that a crash in between leaves a mark that is a little
behind: it then detects less, and never accuses wrongly. Several processes may share one mark; it only rises. Replicas
on several machines have one each.

Keep it where a restore of the database does not reach. Whoever can change both can rewind both.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import sqlalchemy as sa

from airlock.errors import LedgerBroken, LedgerUnavailable
from airlock.ledger.chain import Position, digest


def mark_name(place: str) -> str:
    """A file name for the mark of a ledger at `place`; a password and the spelling of a path make no difference."""
    if "://" in place and not place.startswith("sqlite:///"):
        url = sa.make_url(place)
        where = repr((url.host, url.port, url.database, sorted(url.query.items())))
    else:
        where = str(Path(place.removeprefix("sqlite:///")).expanduser().resolve())
    return f"{digest(where)[:32]}.json"


class Mark:
    """A small file, replaced as a whole."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path).expanduser().absolute()

    def read(self) -> Position | None:
        """The position it holds; None where there is no mark yet.

        Raises:
            LedgerBroken: The file is not a mark.
        """
        try:
            fields = json.loads(self.path.read_bytes())
            return Position(str(fields["ledger"]), int(fields["entries"]), str(fields["head"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LedgerBroken(
                "a readable high-water mark", f"something else in {self.path.name}", "It tells a rewound budget."
            ) from error

    def raise_to(self, position: Position) -> None:
        """Write a position unless the mark is there or further already; on the disk when this returns.

        Raises:
            LedgerUnavailable: It cannot be written.
            LedgerBroken: It is another ledger's.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._locked():
                held = self.read()
                if held is not None and held.ledger != position.ledger:
                    raise LedgerBroken("the mark of this ledger", "that of another", "Each ledger has its own.")
                if held is None or held.entries < position.entries:
                    self._write(position)
        except OSError as error:
            raise LedgerUnavailable(
                f"to write the high-water mark {self.path.name}",
                os.strerror(error.errno or 0),
                "What was charged stays charged; nothing was answered.",
                "Make room or another place for it, then retry.",
            ) from error

    def _write(self, position: Position) -> None:
        """A crash leaves the old mark or the new one. The folder is not synced: an old mark is only a little behind."""
        aside = self.path.with_name(f".{self.path.name}.part")
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(json.dumps(asdict(position)).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, self.path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        handle = os.open(self.path.with_name(f".{self.path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)
