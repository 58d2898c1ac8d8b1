"""Everything that makes up a service, before it has an address."""

from __future__ import annotations

import re
from dataclasses import dataclass

from airlock.errors import ConfigError
from airlock.ledger.keys import KeyStore
from airlock.ledger.ledger import Ledger
from airlock.methods.interface import Answerer

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class ServiceLimits:
    """The limits of one request.

    Attributes:
        rows: The most rows in one batch.
        body_bytes: The largest size of a body.
        body_seconds: The longest time for the body to arrive.
        concurrent: The most concurrent requests.
    """

    rows: int = 256
    body_bytes: int = 8 << 20
    body_seconds: float = 10.0
    concurrent: int = 256

    def __post_init__(self) -> None:
        if min(self.rows, self.body_bytes, self.body_seconds, self.concurrent) <= 0:
            raise ConfigError("limits above 0", "another")


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

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                "1 to 64 letters, digits and . _ - as the model's name", "something else", do="Choose one with --name."
            )
