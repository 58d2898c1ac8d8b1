"""The service over HTTP: its routes and what each does, in order.

For an answer: authentication, the body within its limits, validation, then the answer (`answer_handler`). Problems are
described in `problems`; requests are counted and logged in `middleware`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import FastAPI, Request
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from airlock._version import VERSION
from airlock.errors import AirlockError, LedgerUnavailable
from airlock.ledger.ledger import Balance
from airlock.serve import pages, protocol, schema
from airlock.serve.access import Access
from airlock.serve.admission import Admission
from airlock.serve.answer_handler import AnswerHandler, PaidAnswer
from airlock.serve.middleware import Guard, Meters
from airlock.serve.problems import MEDIA_TYPE, Problem, from_error
from airlock.serve.protocol import parse_json, read_body
from airlock.serve.service import Service

_log = logging.getLogger("airlock.serve")
_FORGET_SECONDS = 3600.0
_READY_SECONDS = 1.0
_LARGE = 1 << 18  # larger bodies are parsed off the event loop
ANYONE, CLIENT, ADMIN, KEY = "anyone", "a client", "the admin", "any key"
ROUTES = [
    ("GET", "/v2/health/live", ANYONE, "whether the process is running"),
    ("GET", "/v2/health/ready", ANYONE, "whether it can answer now"),
    ("GET", "/v2", ANYONE, "the server's name and version"),
    ("GET", "/v2/models/{name}", ANYONE, "the model's inputs and outputs"),
    ("GET", "/v2/models/{name}/ready", ANYONE, "whether it can answer now"),
    ("POST", "/v2/models/{name}/infer", CLIENT, "answers, paid for before they are computed"),
    ("GET", "/budget", KEY, "the remaining budget: a client's own or, with the admin's key, all of it"),
    ("GET", "/card", ANYONE, "the release card"),
    ("GET", "/metrics", ADMIN, "totals for Prometheus"),
    ("GET", "/openapi.json", ANYONE, "this page, for programs"),
    ("GET", "/docs", ANYONE, "this page"),
    ("GET", "/", ANYONE, "what is served here, and where to go"),
]


class App:
    """The routes of one service."""

    def __init__(self, service: Service, meters: Meters) -> None:
        self.service, self.meters = service, meters
        self.access, self.handler = Access(service.keys, meters), AnswerHandler(service.answerer, service.ledger)
        limits = service.limits
        self.admission = Admission(limits.open_requests, limits.held_bytes, limits.concurrent)
        self._ready_until = 0.0
        self._readiness: asyncio.Future[None] | None = None

    @contextlib.asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """Periodically remove expired answers; stop the threads at the end."""
        forgetting = asyncio.create_task(self._forget())
        try:
            yield
        finally:
            forgetting.cancel()
            self.handler.close()
            self.access.close()

    async def live(self) -> dict[str, Any]:
        """Whether the process is running."""
        return {"live": True}

    async def ready(self) -> dict[str, Any]:
        """Whether it can answer now: the ledger is intact, and it and its mark can be written."""
        await self._check_ready()
        return {"ready": True}

    async def server(self) -> dict[str, Any]:
        """The server's name and version."""
        return protocol.server_metadata()

    async def model(self, name: str) -> dict[str, Any]:
        """The model's inputs and outputs."""
        self._check_name(name)
        service = self.service
        return protocol.model_metadata(
            name, service.release, service.method, service.answerer.interface, service.schema
        )

    async def model_ready(self, name: str) -> dict[str, Any]:
        """Whether the model can answer now."""
        self._check_name(name)
        await self._check_ready()
        return {"name": name, "ready": True}

    async def infer(self, name: str, request: Request) -> Response:
        """Answers to a batch of queries: all of them, paid for before they are computed, or none."""
        told = request.state.told
        client = told["client"] = await self.access.client(request)
        self._check_name(name)
        key = _idempotency_key(request)
        limits = self.service.limits
        with self.admission.request(client) as room:
            content = await read_body(request, room, limits.body_bytes, limits.body_seconds)
            query = await self._read(client, content)
            told["rows"] = len(query.x)
            async with self.admission.answering.turn(client) as waited:
                if waited and await request.is_disconnected():
                    raise Problem("bad-request", "a client that waits", "one that disconnected", "Nothing was charged.")
                paid = await self._pay(client, query, key)
        told["units"] = paid.units
        self.meters.rows.inc(len(query.x))
        self.meters.units.inc(paid.units)
        self.meters.replays.inc(paid.replayed)
        headers = {"Airlock-Units": str(paid.units), "Airlock-Replayed": "true" if paid.replayed else "false"}
        if paid.left is not None:
            headers["Airlock-Units-Left"] = str(paid.left)
        if key is not None:
            headers["Airlock-Stored"] = "true" if paid.stored else "false"
        body = protocol.write_answer(name, self.service.release, query.id, paid.outputs)
        return Response(body, media_type="application/json", headers=headers)

    async def budget(self, request: Request) -> Response:
        """The remaining budget: a client's own or, with the admin's key, all of it."""
        client = await self.access.looker(request)
        priced = self.service.answerer.interface.units is not None
        balance = await self._balance(client or "") if priced else None
        figures = pages.budget_figures(self.service, client, balance)
        if _wants_page(request):
            return pages.budget_page(self.service, figures)
        return JSONResponse(figures, headers={"Vary": "Accept"})

    async def card(self) -> Response:
        """The release card, as a page."""
        return pages.page(self.service.card)

    async def docs(self) -> Response:
        """How to send a query, as a page that loads nothing from elsewhere."""
        return pages.page(self._docs_page)

    async def front(self) -> Response:
        """What is served here, as a page."""
        return pages.page(pages.front_page(self.service))

    async def metrics(self, request: Request) -> Response:
        """Totals for Prometheus; no inputs, no answers."""
        await self.access.admin(request)
        if self.service.answerer.interface.units is not None:
            whole = await self._balance("")
            self.meters.budget.labels("spent").set(whole.spent)
            self.meters.budget.labels("left").set(whole.left)
        return Response(generate_latest(self.meters.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _pay(self, client: str, query: protocol.Query, key: str | None) -> PaidAnswer:
        """The answers, paid for; a charge that may have been made is counted."""
        try:
            return await self.handler.handle(client, query, key)
        except LedgerUnavailable as error:
            self.meters.uncertain.inc(error.uncertain)
            raise

    async def _balance(self, client: str) -> Balance:
        with self.admission.request(client):
            async with self.admission.answering.turn(client):
                return await asyncio.to_thread(self.service.ledger.balance, client)

    async def _read(self, client: str, content: bytes) -> protocol.Query:
        service = self.service

        def read() -> protocol.Query:
            interface = service.answerer.interface
            return protocol.read_query(
                parse_json(content),
                interface,
                service.limits.rows,
                service.name,
                service.schema,
                service.tokenizer,
            )

        if len(content) <= _LARGE:
            return read()
        async with self.admission.parsing.turn(client):
            return await asyncio.to_thread(read)

    async def _check_ready(self) -> None:
        """Write to the ledger and its mark, at most once a second; whoever asks meanwhile is told the same."""
        if self._readiness is None or (self._readiness.done() and time.monotonic() >= self._ready_until):
            self._ready_until = time.monotonic() + _READY_SECONDS
            self._readiness = asyncio.ensure_future(asyncio.to_thread(self.service.ledger.check_writable))
        await asyncio.shield(self._readiness)

    @functools.cached_property
    def _docs_page(self) -> str:
        return pages.docs_page(self.service, ROUTES)

    def _check_name(self, name: str) -> None:
        if name != self.service.name:
            raise Problem("not-found", "the name of the model that is served", "another", "", "See /docs.")

    async def _forget(self) -> None:
        while True:
            with contextlib.suppress(AirlockError):
                await asyncio.to_thread(self.service.ledger.forget_answers)
            await asyncio.sleep(_FORGET_SECONDS)


def build(service: Service, meters: Meters | None = None) -> ASGIApp:
    """The whole service as an ASGI application."""
    app = App(service, meters or Meters())
    web = FastAPI(
        title=f"Airlock: {service.name}",
        version=VERSION,
        description="Private answers over the Open Inference Protocol, version 2, each paid for before it is computed.",
        lifespan=app.lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    _add_routes(web, app)
    for kind in (Problem, AirlockError, HTTPException, Exception):
        web.add_exception_handler(kind, _problem)
    return Guard(web, list(web.router.routes), app.meters)


def _add_routes(web: FastAPI, app: App) -> None:
    interface, text = app.service.answerer.interface, {"type": "string"}
    yes, page = {"type": "boolean"}, schema.gives(text, "A page.", "text/html")
    told = {"/v2/health/live": schema.gives(schema.table(live=yes), "It is running."),
            "/v2/health/ready": schema.gives(schema.table(ready=yes), "It is ready.") | schema.problems(503),
            "/v2": schema.gives(schema.table(name=text, version=text, extensions={"type": "array"}), "The server."),
            "/v2/models/{name}": schema.gives(schema.metadata(), "The model.") | schema.problems(404),
            "/v2/models/{name}/ready": schema.gives(schema.table(name=text, ready=yes), "It is ready.")
            | schema.problems(404, 503),
            "/v2/models/{name}/infer": schema.gives(schema.answer(interface, app.service.schema), "The answers.")
            | schema.problems(400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 500, 503),
            "/budget": schema.gives(schema.budget(), "The remaining budget.") | schema.problems(401, 403, 429, 503),
            "/card": page,
            "/docs": page,
            "/": page,
            "/metrics": schema.gives(text, "In Prometheus' format.", "text/plain")
            | schema.problems(401, 403, 429, 503),
            "/openapi.json": schema.gives({"type": "object"}, "This.")}  # fmt: skip
    keys = app.service.keys is not None
    extra = {"/v2/models/{name}/infer": schema.infer(interface, app.service.limits, app.service.schema, keys=keys)}
    extra |= dict.fromkeys(("/budget", "/metrics"), schema.guarded(keys))

    async def openapi() -> Response:
        """The description of this service for programs."""
        return Response(rendered, media_type="application/json")

    calls: list[Callable[..., Any]] = [
        app.live,
        app.ready,
        app.server,
        app.model,
        app.model_ready,
        app.infer,
        app.budget,
        app.card,
        app.metrics,
    ]
    for (method, path, _, _), call in zip(ROUTES, [*calls, openapi, app.docs, app.front], strict=True):
        web.add_api_route(
            path, call, methods=[method], response_model=None, responses=told[path], openapi_extra=extra.get(path)
        )
    described = web.openapi()
    parts = described.setdefault("components", {})
    parts.setdefault("securitySchemes", {})["key"] = schema.BEARER
    parts.setdefault("schemas", {})["Problem"] = schema.PROBLEM
    rendered = json.dumps(described).encode()  # once: anyone may ask for it


async def _problem(request: Request, error: Exception) -> Response:
    problem = from_error(error)
    if problem.status >= 500 and isinstance(error, AirlockError):
        _log.error("%s", type(error).__name__)  # its message may contain an input
    body = problem.body(request.state.told["request_id"])
    return Response(body, problem.status, headers=problem.headers, media_type=MEDIA_TYPE)


def _idempotency_key(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is not None and not 1 <= len(key) <= 255:
        raise Problem("bad-request", "an Idempotency-Key of 1 to 255 characters", "another", "Nothing was charged.")
    return key


def _wants_page(request: Request) -> bool:
    """A browser prefers HTML to anything else; programs request JSON or anything."""
    accepted = [part.split(";")[0].strip() for part in request.headers.get("accept", "").split(",")]
    return "text/html" in accepted and "application/json" not in accepted
