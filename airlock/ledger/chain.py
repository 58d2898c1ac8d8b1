"""The log's entries and the chain of hashes through them.

The hash of an entry is the SHA-256 of its canonical content, in which the hash of the entry before stands: whoever
changes, removes or inserts an entry has to change every hash after it. An entry names a client and an amount, and holds
digests; it never holds an input or an answer.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property

FIRST_HASH = "0" * 64
OPENED, QUOTA, SPENT = "opened", "quota", "spent"


@dataclass(frozen=True)
class Entry:
    """One line of the log.

    Attributes:
        seq: Its number, from 1, without gaps.
        at: When, in milliseconds since 1970 (UTC), by the clock of the process that wrote it.
        kind: `opened` (the first), `quota` (a client's limit was set) or `spent`.
        client: Whose; empty in the first.
        rows: How many answers were paid for.
        units: How many units they cost together.
        request: SHA-256 of the request, as hexadecimal digits.
        key: SHA-256 of the idempotency key, or empty.
        note: The terms in the first entry, the quota in a `quota` entry, else empty.
        previous: The hash of the entry before.
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
        """SHA-256 over the canonical content, `previous` included; computed once, as nothing of an entry changes."""
        content = json.dumps(vars(self), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(content.encode("ascii")).hexdigest()


@dataclass(frozen=True)
class Position:
    """How far a ledger has come: its identity, the number of entries and the hash of the last one."""

    ledger: str
    entries: int
    head: str


def digest(content: bytes | str) -> str:
    """SHA-256 as hexadecimal digits, as entries hold it."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()
