"""What a caller can order from the ledger, and what it gets.

An order says whose rows it needs and is applied to the `Books` of a transaction, together with others. Amounts and
names are checked when it is made, so that nothing that could be free or negative reaches a transaction.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from airlock.errors import ConfigError
from airlock.ledger.chain import digest
from airlock.ledger.units import LARGEST

if TYPE_CHECKING:
    from airlock.ledger.transaction import Books

LARGEST_ANSWER = 16 << 20
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_SHA = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Rules:
    """How long idempotency keys work.

    Attributes:
        replay_seconds: A stored answer can be had again for so long; then its key is as good as new.
        answer_seconds: A request that was charged and has no answer yet is taken to be under way for so long; after
            that its process is taken for dead, and the same request is charged again.
    """

    replay_seconds: float = 24 * 3600
    answer_seconds: float = 60


@dataclass(frozen=True)
class Charge:
    """What was paid for: draw noise for this many rows, once.

    Attributes:
        entry: Its number in the log.
        client: Who paid.
        rows: Answers that were paid for.
        units: What they cost together.
        key: SHA-256 of the idempotency key, or empty.
        left: Units the client can still spend.
    """

    entry: int
    client: str
    rows: int
    units: int
    key: str
    left: int


@dataclass(frozen=True)
class Replay:
    """An answer that was given before, to be given again as it is; nothing was charged."""

    entry: int
    body: bytes


class Order(Protocol):
    """Something to be done in a transaction, together with others."""

    @property
    def client(self) -> str:
        """Whose row is needed; empty for none."""

    @property
    def key_digest(self) -> str:
        """Which idempotency key's row is needed; empty for none."""

    def apply(self, books: Books) -> object:
        """Do it; a refusal is raised before anything is changed."""


@dataclass(frozen=True)
class Spend:
    """Pay for the answers to one request.

    Args:
        client: Who pays.
        units: The cost of one row, in whole units.
        rows: How many rows; all are paid or none.
        request: SHA-256 of the canonical request (model, inputs, parameters), 64 hexadecimal digits.
        key: The client's idempotency key, if any.
    """

    client: str
    units: int
    request: str
    rows: int = 1
    key: str | None = None

    def __post_init__(self) -> None:
        for name, value in (("units", self.units), ("rows", self.rows)):
            if type(value) is not int or not 1 <= value <= LARGEST:
                raise ConfigError(f"a whole number from 1 as {name}", repr(value)[:40], "There is no free answer.")
        if not _SHA.fullmatch(self.request):
            raise ConfigError("64 hexadecimal digits as request", "something else", "The log keeps a digest only.")
        if self.key is not None and not 1 <= len(self.key) <= 255:
            raise ConfigError("an idempotency key of 1 to 255 characters", f"{len(self.key)}")

    @property
    def key_digest(self) -> str:
        """The log and the tables hold a digest: what a client calls its requests is its own affair."""
        return digest(self.key) if self.key is not None else ""

    def apply(self, books: Books) -> Charge | Replay:
        """Charge, or find the answer that was given before."""
        return books.charge(self)


@dataclass(frozen=True)
class Keep:
    """Store the answer to a charge, so that its idempotency key replays it."""

    charge: Charge
    body: bytes

    def __post_init__(self) -> None:
        if len(self.body) > LARGEST_ANSWER:
            raise ConfigError(f"an answer of at most {LARGEST_ANSWER:,} bytes", f"{len(self.body):,}")

    @property
    def client(self) -> str:
        """Whose answer."""
        return self.charge.client

    @property
    def key_digest(self) -> str:
        """Under which key."""
        return self.charge.key

    def apply(self, books: Books) -> bool:
        """Whether it was stored: not if the key was charged again since, or holds an answer."""
        return books.keep(self.charge, self.body)


@dataclass(frozen=True)
class SetQuota:
    """Make a client known, with a limit of its own or (None) none below the cap."""

    client: str
    quota: int | None
    key_digest: str = ""

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.client):
            raise ConfigError("1 to 64 letters, digits and . _ @ - as a client's name", repr(self.client)[:80])
        if self.quota is not None and not (type(self.quota) is int and 0 <= self.quota <= LARGEST):
            raise ConfigError("a whole number of units as quota", repr(self.quota)[:40])

    def apply(self, books: Books) -> None:
        """Write it into the log and the client's row."""
        books.set_quota(self.client, self.quota)


@dataclass(frozen=True)
class Forget:
    """Drop stored answers whose time is over."""

    client: str = ""
    key_digest: str = ""

    def apply(self, books: Books) -> int:
        """How many were dropped."""
        return books.forget()
