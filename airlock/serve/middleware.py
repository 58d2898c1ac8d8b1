"""Around every request: an id, the headers of all responses, one line in the log.

No exception passes it: an unexpected one becomes a 500 without details. HEAD is GET without its body; OPTIONS lists the
allowed methods.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import secrets
import sys
import time
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from airlock.serve.problems import MEDIA_TYPE, Problem, failed

_log = logging.getLogger("airlock.serve")
_ALWAYS = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cache-control": b"no-store",
}
_SECURE = {b"strict-transport-security": b"max-age=31536000"}  # a browser that has been here comes back by TLS


class Meters:
    """What `/metrics` reports: totals and times, nothing about inputs or answers."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "airlock_requests_total", "Requests by route and status.", ["route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "airlock_request_seconds", "Seconds from the first byte to the last.", ["route"], registry=self.registry
        )
        self.rows = Counter("airlock_rows_answered_total", "Rows that were answered.", registry=self.registry)
        self.units = Counter("airlock_units_charged_total", "Units that were charged.", registry=self.registry)
        self.replays = Counter("airlock_replays_total", "Answers that were replayed.", registry=self.registry)
        self.uncertain = Counter(
            "airlock_uncertain_charges_total", "Charges that may have been made unanswered.", registry=self.registry
        )
        self.in_flight = Gauge("airlock_requests_in_flight", "Requests being answered now.", registry=self.registry)
        self.connections = Gauge("airlock_connections", "Open connections.", registry=self.registry)
        self.closed = Counter(
            "airlock_connections_closed_total",
            "Connections that the service closed to keep its limits.",
            ["reason"],
            registry=self.registry,
        )
        self.wrong_tokens = Counter(
            "airlock_wrong_tokens_total", "Requests with a wrong token.", registry=self.registry
        )
        self.budget = Gauge("airlock_budget_units", "The whole budget.", ["state"], registry=self.registry)


class Guard:
    """The outermost layer of the service.

    Args:
        app: The application it wraps, with `router.routes`.
        routes: Its routes, for their names and methods.
        meters: Where requests are counted.
    """

    def __init__(self, app: ASGIApp, routes: list[Any], meters: Meters) -> None:
        self._app, self._routes, self._meters = app, routes, meters
        self._now, self._name, self._count = 0, secrets.token_hex(4), itertools.count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request; anything that is not a request is passed on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = time.perf_counter()
        told: dict[str, Any] = {"request_id": f"{self._name}{next(self._count):08x}", "status": 500}
        state = scope.setdefault("state", {})
        state["told"] = told
        route, allowed = self._find(scope)
        reply = _Reply(send, told, ", ".join(sorted(allowed)), scope["scheme"] == "https")
        self._now += 1
        self._meters.in_flight.set(self._now)
        try:
            await self._handle(scope, receive, reply)
        except asyncio.CancelledError:
            told["status"] = 499
            raise
        finally:
            self._now -= 1
            self._meters.in_flight.set(self._now)
            self._note(route, told, time.perf_counter() - begun)

    async def _handle(self, scope: Scope, receive: Receive, reply: _Reply) -> None:
        if scope["method"] == "OPTIONS" and reply.allowed:
            await reply.whole(204, b"", {})
            return
        try:
            method = "GET" if scope["method"] == "HEAD" else scope["method"]
            await self._app({**scope, "method": method}, receive, reply)
        except Problem as problem:
            await reply.problem(problem)
        except Exception as error:  # noqa: BLE001 - its message may contain an input: only its type is reported
            _log.error("unforeseen: %s", type(error).__name__)
            await reply.problem(failed())

    def _find(self, scope: Scope) -> tuple[str, set[str]]:
        """The route's pattern, which contains no client input, and the methods that it accepts."""
        name, methods = "(none)", set()
        for route in self._routes:
            match, _ = route.matches(scope)
            if match is not Match.NONE:
                name = route.path
                methods |= set(route.methods or ())
        if "GET" in methods:
            methods.add("HEAD")
        return name, methods | {"OPTIONS"} if methods else methods

    def _note(self, route: str, told: dict[str, Any], seconds: float) -> None:
        self._meters.requests.labels(route, told["status"]).inc()
        self._meters.seconds.labels(route).observe(seconds)
        line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "route": route, **told}
        sys.stderr.write(json.dumps(line | {"ms": round(1000 * seconds, 2)}) + "\n")


class _Reply:
    """Sends a response, with the headers that all responses have."""

    def __init__(self, send: Send, told: dict[str, Any], allowed: str, secure: bool) -> None:
        self._send, self._told, self._begun = send, told, False
        self.allowed = allowed
        self._always = _ALWAYS | _SECURE if secure else _ALWAYS

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._begun = True
            self._told["status"] = message["status"]
            headers = [(name, value) for name, value in message.get("headers", []) if name != b"allow"]
            if message["status"] in (204, 405):
                headers.append((b"allow", self.allowed.encode()))
            there = {name.lower() for name, _ in headers}
            headers += [(name, value) for name, value in self._always.items() if name not in there]
            headers.append((b"x-request-id", self._told["request_id"].encode()))
            message = {**message, "headers": headers}
        await self._send(message)

    async def whole(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        """Send a complete response; nothing if one was already started."""
        if self._begun:
            return
        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        if status != 204:
            raw.append((b"content-length", str(len(body)).encode()))
        await self({"type": "http.response.start", "status": status, "headers": raw})
        await self({"type": "http.response.body", "body": body})

    async def problem(self, problem: Problem) -> None:
        """Send a problem as the response."""
        body = problem.body(self._told["request_id"])
        await self.whole(problem.status, body, {"Content-Type": MEDIA_TYPE, **problem.headers})
