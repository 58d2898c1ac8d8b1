"""The process of a service: an address, a server, and a graceful shutdown.

SIGTERM and SIGINT stop it: no new connections are accepted, what was charged is answered, the ledger is closed. SIGHUP
reads the certificate again. Its log is one line of JSON per request on stderr, without inputs and answers.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import logging
import os
import resource
import signal
import socket
import ssl
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from airlock.errors import AirlockError, ConfigError, OutputError
from airlock.serve.app import build
from airlock.serve.connections import ConnectionTable, LimitedProtocol, Listener, fit_descriptors
from airlock.serve.middleware import Meters
from airlock.serve.service import Service

if TYPE_CHECKING:
    import asyncio

_GRACE_SECONDS = 60
_log = logging.getLogger("airlock.serve")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address; a name must resolve to such addresses only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_address(host: str, *, keys: bool, tls: bool, plain: bool) -> None:
    """Refuse to serve on an address that others can reach without keys, or unasked without TLS.

    Raises:
        ConfigError: The address is not this machine's alone, and no keys are required, or tokens would cross the
            network in the clear.
    """
    if is_loopback(host):
        return
    if not keys:
        raise ConfigError(
            "an address of this machine alone (127.0.0.1, ::1, localhost) with --no-keys",
            f"'{host[:80]}'",
            "Anyone who reaches it could spend the whole budget.",
            "Leave --no-keys out and issue keys with airlock keys add.",
        )
    if not (tls or plain):
        raise ConfigError(
            "TLS on an address that others can reach",
            f"plain HTTP on '{host[:80]}'",
            "Tokens and answers would cross the network in the clear.",
            "Give --tls-cert and --tls-key, or --plain-http where a proxy in front ends TLS.",
        )


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to the address, not yet listening; port 0 picks a free one.

    Raises:
        OutputError: The address is not available.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else "no such address"
        raise OutputError(
            f"a free address at port {port}", reason, do="Choose another with --host or --port."
        ) from error
    return bound


def address(bound: socket.socket, *, tls: bool = False) -> str:
    """The URL for a browser."""
    scheme = "https" if tls else "http"
    host, port = bound.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


LoadTls = Callable[[], ssl.SSLContext | None]


def _no_tls() -> None:
    return None


def serve(service: Service, bound: socket.socket, started: Callable[[], None], tls: LoadTls = _no_tls) -> None:
    """Serve until a signal arrives; then finish the open requests. The caller closes the ledger.

    Args:
        service: What is served.
        bound: Where.
        started: Called once requests are accepted.
        tls: Loads what TLS needs, at the start and whenever SIGHUP arrives; None for plain HTTP.
    """
    _set_up_log()
    raise_descriptors()
    server = make_server(service, started, tls)
    if server.has_tls:
        signal.signal(signal.SIGHUP, server.ask_for_reload)
    # uvicorn re-raises the signal it caught; a requested shutdown is not a failure.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, server.stop)
    server.run(sockets=[bound])


def raise_descriptors() -> None:
    """Let this process open as many files as the system allows it: each connection is one."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def make_server(service: Service, started: Callable[[], None], tls: LoadTls = _no_tls) -> Server:
    """The server alone, for a process with its own signal handling and log."""
    limits = fit_descriptors(service.limits, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    service, meters = replace(service, limits=limits), Meters()
    config = uvicorn.Config(
        build(service, meters),
        http=HttpToolsProtocol,
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        lifespan="on",
        ws="none",
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    return Server(config, ConnectionTable(limits, meters), started, tls)


class Server(uvicorn.Server):
    """Reports when it accepts requests, reads its certificate again and stops on request."""

    def __init__(
        self, config: uvicorn.Config, table: ConnectionTable, started: Callable[[], None], load_tls: LoadTls
    ) -> None:
        super().__init__(config)
        self._table, self._started = table, started
        self._load_tls, self._tls, self._reload = load_tls, load_tls(), False
        self._listeners: list[Listener] = []

    @property
    def has_tls(self) -> bool:
        """Whether it serves over TLS."""
        return self._tls is not None

    def ask_for_reload(self, *_: object) -> None:
        """Read the certificate and its key again, for connections that come later."""
        self._reload = True

    async def on_tick(self, counter: int) -> bool:
        """What happens ten times a second."""
        if self._reload:
            self._reload = False
            self._load_again()
        return await super().on_tick(counter)

    def _load_again(self) -> None:
        try:
            loaded = self._load_tls()
        except AirlockError as error:
            _log.error("the certificate was not replaced: %s", error)
            return
        for listener in self._listeners:
            listener.tls = loaded
        _log.info("the certificate was read again")

    def stop(self, *_: object) -> None:
        """Accept no more requests, finish the open ones, then stop."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, then report it."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(uvicorn.config.STARTUP_FAILURE)
        self._listeners = [Listener(bound, self._table, self._connection, self._tls) for bound in sockets or ()]
        self.servers = cast("list[asyncio.Server]", self._listeners)  # closed and waited for alike
        self.started = True
        self._started()

    def _connection(self, network: str) -> LimitedProtocol:
        return LimitedProtocol(
            self._table, network, config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """One line of JSON; never a traceback, which may contain an input."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        return json.dumps({"time": when, "level": record.levelname.lower(), "says": record.getMessage()})


def _set_up_log() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    for name, level in (("airlock.serve", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
