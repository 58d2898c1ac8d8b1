"""A request's body: at most so many bytes in so many seconds, and strict JSON."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request

from airlock.serve.problems import Problem

_CLOSE = {"Connection": "close"}  # the rest of the body would be read as the next request


async def read_body(request: Request, most_bytes: int, seconds: float) -> bytes:
    """The whole body.

    Raises:
        Problem: It is too large, too slow, compressed, not JSON by its type, or the client went away.
    """
    _check_type(request)
    too_large = Problem("too-large", f"at most {most_bytes:,} bytes", "more", do="Send fewer rows.", headers=_CLOSE)
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and (len(declared) > 18 or int(declared) > most_bytes):
        raise too_large
    parts, size = [], 0
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                size += len(part)
                if size > most_bytes:
                    raise too_large
                parts.append(part)
    except TimeoutError:
        raise Problem("too-slow", f"the whole body within {seconds:g} s", "less of it", headers=_CLOSE) from None
    except ClientDisconnect:
        raise Problem("bad-request", "a whole body", "a client that went away", headers=_CLOSE) from None
    return b"".join(parts)


def _check_type(request: Request) -> None:
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem("wrong-type", "Content-Type: application/json", "another, or none", "", "Send JSON.")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem("wrong-type", "a body that is not compressed", "one that is", "", "Send it as it is.")


def parse_json(content: bytes) -> Any:
    """JSON as RFC 8259 has it: no NaN, no name twice in an object, no nesting that exhausts anything.

    The quick parser keeps the last of two equal names. Every name is followed by a colon, so where there are no more
    colons than names, none stands there twice; where there are more, the slow parser decides.

    Raises:
        Problem: It is something else.
    """
    try:
        value = from_json(content, allow_inf_nan=False, cache_strings="keys")
        if content.count(b":") != _names(value):
            json.loads(content, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        raise Problem(
            "bad-request", "strict JSON", "something else", "", "Check names, numbers and brackets."
        ) from None
    return value


def _names(value: Any, depth: int = 0) -> int:
    """Names in all objects that a request can have: no deeper than the parameters of a tensor."""
    if isinstance(value, dict):
        return len(value) + sum(_names(inner, depth + 1) for inner in value.values() if isinstance(inner, dict | list))
    if isinstance(value, list) and depth <= 4 and value and isinstance(value[0], dict):
        return sum(_names(inner, depth + 1) for inner in value)
    return 0


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a name stands there twice")
    return table
