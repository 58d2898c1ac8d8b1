"""The log's entries, the chain of hashes through them, and the high-water mark that is kept outside the database.

The hash of an entry is the SHA-256 of its canonical content, which includes the previous entry's hash: changing,
removing or inserting an entry changes every hash after it. An entry names a client and an amount, and holds digests; it
never holds an input or an answer.

The high-water mark (`HighWaterMark`) records how far the ledger had progressed. A database restored from a backup has
its budget back, and its own hashes are consistent. The mark remembers the last entry that this machine saw committed; a
ledger that is shorter, or has another entry at that number, was rewound or replaced. The database commits first and the
mark follows, so a crash in between leaves a mark that is slightly behind: it then detects less, but never raises a
false alarm. Several processes may share one mark; it only rises. Replicas on several machines have one each.

Keep it where restoring the database does not overwrite it. Anyone who can change both can rewind both.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import sqlalchemy as sa

from airlock.errors import LedgerBroken, LedgerUnavailable

FIRST_HASH = "0" * 64
OPENED, QUOTA, SPENT = "opened", "quota", "spent"


@dataclass(frozen=True)
class Entry:
    """One line of the log.

    Attributes:
        seq: Its number, from 1, without gaps.
        at: When it was written, in milliseconds since 1970 (UTC), by the clock of the process that wrote it.
        kind: `opened` (the first), `quota` (a client's limit was set) or `spent`.
        client: The client it concerns; empty in the first.
        rows: How many answers were paid for.
        units: How many units they cost in total.
        request: SHA-256 of the request, as hexadecimal digits.
        key: SHA-256 of the idempotency key, or empty.
        note: The terms in the first entry, the quota in a `quota` entry, else empty.
        previous: The hash of the previous entry.
    """

    seq: int
    at: int
    kind: str
    client: str
    rows: int
    units: int
    request: str
    key: str
    note: str
    previous: str

    @cached_property
    def hash(self) -> str:
        """SHA-256 over the canonical content, `previous` included; computed once, since an entry never changes."""
        content = json.dumps(vars(self), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(content.encode("ascii")).hexdigest()


@dataclass(frozen=True)
class Position:
    """How far a ledger has progressed: its identity, the number of entries and the hash of the last one."""

    ledger: str
    entries: int
    head: str


def digest(content: bytes | str) -> str:
    """SHA-256 as hexadecimal digits, the form used in entries."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


# The high-water mark.


def mark_name(place: str) -> str:
    """A file name for the mark of a ledger at `place`, independent of a password and of how the path is spelled."""
    if "://" in place and not place.startswith("sqlite:///"):
        url = sa.make_url(place)
        where = repr((url.host, url.port, url.database, sorted(url.query.items())))
    else:
        where = str(Path(place.removeprefix("sqlite:///")).expanduser().resolve())
    return f"{digest(where)[:32]}.json"


class HighWaterMark:
    """A small file that is replaced atomically."""

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
                "a readable high-water mark", f"something else in {self.path.name}", "It detects a rewound budget."
            ) from error

    def raise_to(self, position: Position) -> None:
        """Write a position unless the mark is already there or further; on disk when this returns.

        Raises:
            LedgerUnavailable: It cannot be written.
            LedgerBroken: The mark belongs to another ledger.
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
                "Free some space or move it elsewhere, then retry.",
            ) from error

    def _write(self, position: Position) -> None:
        """A crash leaves the old mark or the new one. The folder is not synced: an old mark is only slightly behind."""
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
