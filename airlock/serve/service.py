"""Everything that makes up a service, before it has an address."""

from __future__ import annotations

import re
from dataclasses import dataclass

from airlock.bundle.receiving.input_schema import InputSchema
from airlock.data.text import Tokenizer
from airlock.errors import ConfigError
from airlock.ledger.keys import KeyStore
from airlock.ledger.ledger import Ledger
from airlock.methods.interface import Answerer

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class ServiceLimits:
    """The limits of one request, of one connection, and of all of them.

    Attributes:
        rows: The most rows in one batch.
        body_bytes: The largest size of a body.
        body_seconds: The longest time for the body to arrive.
        concurrent: The most requests that are answered at once.
        connections: The most connections; fewer where the process may not open as many files.
        per_address: The most connections from one address; by default a quarter of all.
        header_bytes: The largest size of a request's line and headers.
        header_seconds: The longest time for them to arrive, the TLS handshake included.
        idle_seconds: How long a connection is kept between two requests.
        write_seconds: How long a client may take to read what no longer fits into the system's buffers.
    """

    rows: int = 256
    body_bytes: int = 8 << 20
    body_seconds: float = 10.0
    concurrent: int = 256
    connections: int = 1024
    per_address: int | None = None
    header_bytes: int = 16 << 10
    header_seconds: float = 10.0
    idle_seconds: float = 30.0
    write_seconds: float = 10.0

    def __post_init__(self) -> None:
        if min(value for value in vars(self).values() if value is not None) <= 0:
            raise ConfigError("limits above 0", "another")

    @property
    def from_one_address(self) -> int:
        """The most connections from one address."""
        return min(self.connections, self.per_address or max(1, self.connections // 4))

    @property
    def held_bytes(self) -> int:
        """The most bytes of bodies in memory at once, of all clients."""
        return 16 * self.body_bytes

    @property
    def open_requests(self) -> int:
        """The most requests with a key at once, whether their bodies arrive, they wait or they are answered."""
        return max(1, self.connections // 2)


@dataclass(frozen=True)
class Service:
    """What is served: a bundle, its answerer, its ledger, and its keys.

    Attributes:
        name: The model's name in the protocol.
        release: The release's identity, which is the model's version.
        method: The channel and the method behind it.
        card: The bundle's card as a page.
        answerer: Answers the queries.
        ledger: The ledger that is charged first.
        keys: Who may send queries; None for everyone on this machine.
        limits: The limits of one request.
        headline: The card's first line; empty if unknown.
        verdict: The one-word verdict behind it, which determines its colour and shape.
        schema: What a row is, as the bundle declares it; None if unknown.
        tokenizer: The bundle's, where rows are texts.
    """

    name: str
    release: str
    method: str
    card: bytes
    answerer: Answerer
    ledger: Ledger
    keys: KeyStore | None
    limits: ServiceLimits = ServiceLimits()
    headline: str = ""
    verdict: str = ""
    schema: InputSchema | None = None
    tokenizer: Tokenizer | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                "1 to 64 letters, digits and . _ - as the model's name", "something else", do="Choose one with --name."
            )
