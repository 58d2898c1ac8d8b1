"""The log's entries, and the chain of keyed hashes through them.

The hash of an entry is the HMAC-SHA256 of its packed content, which includes the previous entry's hash, under a secret
that the database does not hold (`mark`). Changing, removing or inserting an entry changes every hash after it, and
whoever has the database alone can compute none of them. An entry names a client and an amount, and holds digests; it
never holds an input or an answer.

Ledgers from before there was a secret begin with entries whose hash is a plain SHA-256 (`plain_hash`). An entry of the
kind `keyed` ends that part: its hash, under the secret, covers the last plain one and with it all before.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from airlock.errors import ConfigError

FIRST_HASH = "0" * 64
OPENED, QUOTA, SPENT, KEYED, KEY = "opened", "quota", "spent", "keyed", "key"
RESERVED, STARTED, RETURNED, RELEASED = "reserved", "started", "returned", "released"  # in a register alone
_FIELDS = 10


@dataclass(frozen=True)
class Entry:
    """One line of the log.

    Attributes:
        seq: Its number, from 1, without gaps.
        at: When it was written, in milliseconds since 1970 (UTC), by the ledger's clock, which never goes back.
        kind: `opened` (the first), `quota` (a client's limit was set), `spent`, `key` (a key was issued or revoked) or
            `keyed` (hashes have been keyed since); in a register `reserved`, `started`, `returned` and `released`
            (`reservations`).
        client: The client it concerns; empty in the first, and for an admin's key.
        rows: How many answers were paid for.
        units: How many units they cost in total.
        request: SHA-256 of the request, as hexadecimal digits.
        key: SHA-256 of the idempotency key or, in a `key` entry and a register's entries, of the token; else empty.
        note: The terms in the first entry, the quota in a `quota` entry, the rest of a key in a `key` entry, what a
            register's entries are about; else empty.
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

    def packed(self) -> bytes:
        """The content that is hashed: the fields, a line each.

        No field contains a line break, so there are always ten lines, and a row in the database whose fields do
        contain one packs to more of them: no two different rows, one of which was written here, pack to the same.

        Raises:
            ConfigError: A field contains a line break.
        """
        content = "\n".join(map(str, vars(self).values()))
        if content.count("\n") != _FIELDS - 1:
            raise ConfigError("fields of one line each in an entry of the log", "a line break")
        return content.encode()

    def plain_hash(self) -> str:
        """SHA-256 over the canonical content as JSON: the hash of entries from before there was a secret."""
        content = json.dumps(vars(self), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(content.encode("ascii")).hexdigest()


class Seal:
    """HMAC-SHA256 (RFC 2104) under one secret; the padded secret is hashed once, which halves the time of a walk."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) != 32:
            raise ConfigError("a secret of 32 bytes", f"{len(secret)}")
        padded = secret.ljust(64, b"\0")
        self.inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in padded))
        self.outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in padded))

    def hash(self, content: bytes) -> str:
        """The keyed hash as hexadecimal digits."""
        inner, outer = self.inner.copy(), self.outer.copy()
        inner.update(content)
        outer.update(inner.digest())
        return outer.hexdigest()


@dataclass(frozen=True)
class Position:
    """How far a ledger has progressed.

    Attributes:
        ledger: Its identity.
        entries: The number of entries; 0 while it is being created.
        head: The hash of the last one.
        at: The latest time that the ledger's clock has shown, in milliseconds since 1970.
        keyed: Whether its hashes are keyed; those of a ledger that has not been opened since they are, are not.
    """

    ledger: str
    entries: int
    head: str
    at: int = 0
    keyed: bool = True


def digest(content: bytes | str) -> str:
    """SHA-256 as hexadecimal digits, the form used in entries."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()
