"""Errors as RFC 9457 problem details, with a sentence for people; `error` is the Open Inference Protocol's member.

No part of a request is repeated, and no path or traceback is shown.
"""

from __future__ import annotations

import json
from typing import Any

from starlette.exceptions import HTTPException

from airlock.errors import (
    AirlockError,
    Exhausted,
    ExpiredKey,
    KeyReused,
    LedgerBroken,
    LedgerUnavailable,
    UnknownKey,
)

MEDIA_TYPE = "application/problem+json"

# The status and title of each kind.
KINDS: dict[str, tuple[int, str]] = {
    "bad-request": (400, "The request cannot be read"),
    "no-key": (401, "A key is needed"),
    "unknown-key": (401, "This key is unknown"),
    "expired-key": (401, "This key has expired"),
    "exhausted": (403, "The budget does not cover this"),
    "not-allowed": (403, "This key may not do that"),
    "not-found": (404, "There is nothing here"),
    "wrong-method": (405, "This method is not allowed"),
    "too-slow": (408, "The request took too long"),
    "key-reused": (409, "The idempotency key is already in use"),
    "too-large": (413, "The body is too large"),
    "wrong-type": (415, "This format is not supported"),
    "wrong-inputs": (422, "The inputs do not fit"),
    "too-many-attempts": (429, "Too many wrong keys from this address"),
    "head-too-large": (431, "The head of the request is too large"),
    "failed": (500, "Answering failed"),
    "busy": (503, "Temporarily unavailable"),
    "uncertain": (503, "A charge may have been made"),
    "ledger-broken": (503, "The ledger is not intact"),
}


class Problem(Exception):
    """A request that is not answered.

    Args:
        kind: One of `KINDS`.
        expected: As in `AirlockError`.
        found: As in `AirlockError`.
        why: As in `AirlockError`.
        do: As in `AirlockError`.
        headers: Headers to send along.
    """

    def __init__(
        self,
        kind: str,
        expected: str,
        found: str,
        why: str = "",
        do: str = "",
        headers: dict[str, str] | None = None,
    ) -> None:
        self.kind, self.headers = kind, headers or {}
        self.status, self.title = KINDS[kind]
        self.parts = {"expected": expected, "found": found, "why": why, "do": do}
        self.detail = str(AirlockError(expected, found, why, do))
        super().__init__(self.detail)

    def body(self, request_id: str) -> bytes:
        """The members of RFC 9457, `error`, and the parts of the sentence."""
        content: dict[str, Any] = {
            "type": f"urn:airlock:problem:{self.kind}",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "instance": f"urn:airlock:request:{request_id}",
            "error": self.detail,
        }
        return json.dumps(content | {name: part for name, part in self.parts.items() if part}).encode()


def from_error(error: Exception) -> Problem:
    """Any exception as a problem for the client; what the client cannot act on is not explained."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, HTTPException):
        return _from_http(error)
    return _from_ours(error) if isinstance(error, AirlockError) else failed()


def _from_http(error: HTTPException) -> Problem:
    if error.status_code == 405:
        return Problem("wrong-method", "one of the methods in Allow", "another", "", "See /docs.")
    if error.status_code == 404:
        return Problem("not-found", "an address of this service", "another", "", "See /docs.")
    return (
        failed()
        if error.status_code >= 500
        else Problem("bad-request", "a request that this service supports", "another")
    )


def _from_ours(error: AirlockError) -> Problem:
    parts = (error.expected, error.found, error.why, error.do)
    if isinstance(error, Exhausted):
        return Problem("exhausted", *parts[:3], "Ask for fewer rows, or contact the operator of the service.")
    if isinstance(error, UnknownKey):
        return Problem("unknown-key", *parts[:3], "Ask the operator of the service for a key.", _CHALLENGE)
    if isinstance(error, ExpiredKey):
        return Problem("expired-key", *parts[:3], "Ask the operator of the service for a new key.", _CHALLENGE)
    if isinstance(error, KeyReused):
        return Problem("key-reused", *parts)
    if isinstance(error, LedgerUnavailable):
        return _unavailable(error.uncertain)
    if isinstance(error, LedgerBroken):
        return Problem(
            "ledger-broken",
            "an intact ledger",
            "one that is not",
            "Nothing is answered until it has been investigated.",
        )
    return failed()


def _unavailable(uncertain: bool) -> Problem:
    """A ledger that fails; after a charge that may have been made, the client is told what is safe to do."""
    later, what = {"Retry-After": "5"}, ("a ledger that answers", "one that does not")
    if not uncertain:
        return Problem("busy", *what, "Nothing was charged or answered.", "Retry later.", later)
    return Problem(
        "uncertain",
        *what,
        "The charge may have been made; nothing was answered.",
        "Repeat the request with the same Idempotency-Key: this service then charges it once. "
        "Without a key, or with another, it is charged again.",
        later,
    )


def failed() -> Problem:
    """Something that should not happen; what was charged stays charged."""
    return Problem(
        "failed",
        "an answer",
        "a failure of the service",
        "If it was charged, it stays charged: noise that was drawn may have been seen.",
        "Report the instance of this problem to the operator of the service.",
    )


_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="airlock", error="invalid_token"'}
