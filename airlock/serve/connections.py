"""Connections: each is counted from the moment it is accepted, and limited in time, in bytes and in number.

uvicorn parses HTTP and runs the application. It has no limit before the head of a request is complete, so that half a
head costs a descriptor for ever, and an endless one as much memory as is sent. Here connections are accepted by
`Listener` and entered in a `ConnectionTable` before their TLS handshake; `LimitedProtocol` is uvicorn's own with the
limits added.

A connection works on a request with a valid key, or it waits: for a head (or a handshake), for the response to a
request without a key, for the next request, or for its client to read. Whoever waits may be dropped. If there are too
many, in all or from one address, the newcomer gets the place of the one that has waited longest, of clients without a
key first: half-open connections can never keep others out. Each kind of waiting has its time limit too. Requests with a
key fill at most half of the places (`ServiceLimits.open_requests`), so there is always somebody to drop.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from socket import socket
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from airlock.serve.middleware import Meters
from airlock.serve.problems import MEDIA_TYPE, Problem
from airlock.serve.service import ServiceLimits

_log = logging.getLogger("airlock.serve")
HEAD, REQUEST, IDLE, WRITING = "head", "request", "idle", "writing"  # what a connection can wait for
RESERVED = 128  # descriptors for everything else: the ledger, logs, files
_AT_ONCE = 32  # accepted before requests get their turn again
_BACKLOG = 2048
_PAUSE_SECONDS = 0.05
_SWEEP_SECONDS = 0.5
_MOST_HEADERS = 100
_MOST_PIPELINED = 16
_WIRE_PER_BYTE = 8  # what chunked encoding may add to each byte of a body
_GONE = {errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.ENETDOWN, errno.EHOSTUNREACH, errno.ENETUNREACH}


def client_network(address: str) -> str:
    """Whom an address stands for: itself or, since one customer gets as much, the /64 of an IPv6 address."""
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(found) >> 64 << 64, 64)))


def fit_descriptors(limits: ServiceLimits, descriptors: int) -> ServiceLimits:
    """The limits with no more connections than the process can open besides everything else; -1 is unlimited."""
    if descriptors < 0:
        return limits
    room = max(descriptors - RESERVED, descriptors // 2, 1)
    return replace(limits, connections=min(limits.connections, room))


class ConnectionTable:
    """All open connections: who may come in, who has to leave for them, whose time is up.

    Args:
        limits: The service's limits.
        meters: Where closed connections are counted.
        now: A clock that never goes back.
    """

    def __init__(self, limits: ServiceLimits, meters: Meters, now: Callable[[], float] = time.monotonic) -> None:
        self.limits, self._meters, self._now = limits, meters, now
        self._by_address: dict[str, dict[LimitedProtocol, None]] = {}  # in the order of their arrival
        # Untrusted ones first; within each kind in the order in which the waiting began.
        self._waiting: dict[tuple[bool, str], dict[LimitedProtocol, float]] = {
            (trusted, kind): {} for trusted in (False, True) for kind in (WRITING, HEAD, REQUEST, IDLE)
        }
        self._seconds = {
            HEAD: limits.header_seconds,
            REQUEST: limits.idle_seconds,
            IDLE: limits.idle_seconds,
            WRITING: limits.write_seconds,
        }
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def admit(self, connection: LimitedProtocol) -> bool:
        """Enter a connection, which waits for its first head; False if it has to be closed at once."""
        same = self._by_address.setdefault(connection.network, {})
        fits = len(same) < self.limits.from_one_address or self._drop(_first_waiting(same))
        if not (fits and (self._count < self.limits.connections or self.drop_oldest())):
            self.note("refused")
            if not same:
                self._by_address.pop(connection.network, None)
            return False
        self._by_address.setdefault(connection.network, {})[connection] = None
        self._count += 1
        self._meters.connections.set(self._count)
        self.wait(connection, HEAD)
        return True

    def remove(self, connection: LimitedProtocol) -> None:
        """Forget a connection; nothing if it is not there."""
        self.work(connection)
        same = self._by_address.get(connection.network, {})
        if connection not in same:
            return
        del same[connection]
        if not same:
            del self._by_address[connection.network]
        self._count -= 1
        self._meters.connections.set(self._count)

    def wait(self, connection: LimitedProtocol, kind: str) -> None:
        """The connection waits from now on."""
        self.work(connection)
        if connection in self._by_address.get(connection.network, ()):
            connection.waits = (connection.trusted, kind)
            self._waiting[connection.waits][connection] = self._now()

    def work(self, connection: LimitedProtocol) -> None:
        """The connection no longer waits, and is not dropped for others."""
        if connection.waits is not None:
            del self._waiting[connection.waits][connection]
            connection.waits = None

    def drop_oldest(self) -> bool:
        """Close the connection that has waited longest, of clients without a key first; False if none waits."""
        for trusted in (False, True):
            firsts = [next(iter(queue.items())) for (t, _), queue in self._waiting.items() if t == trusted and queue]
            if firsts:
                return self._drop(min(firsts, key=lambda one: one[1])[0])
        return False

    def overdue(self) -> list[LimitedProtocol]:
        """Those whose time is up."""
        now, found = self._now(), list[LimitedProtocol]()
        for (_, kind), queue in self._waiting.items():
            for connection, since in queue.items():
                if now - since < self._seconds[kind]:
                    break
                found.append(connection)
        return found

    def note(self, reason: str) -> None:
        """Count a connection that the service closed."""
        self._meters.closed.labels(reason).inc()

    def _drop(self, connection: LimitedProtocol | None) -> bool:
        if connection is None:
            return False
        self.note("dropped")
        connection.abort()
        return True


def _first_waiting(connections: dict[LimitedProtocol, None]) -> LimitedProtocol | None:
    """Who leaves for another of the same address: one without a key if there is one."""
    for trusted in (False, True):
        for connection in connections:
            if connection.waits is not None and connection.waits[0] == trusted:
                return connection
    return None


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's connection with limits on the head of a request, on what surrounds a body, and on pipelining.

    Args:
        table: Where it is entered.
        network: Whom its client's address stands for.
        parts: What uvicorn's own protocol takes.
    """

    def __init__(self, table: ConnectionTable, network: str, **parts: Any) -> None:
        super().__init__(**parts)
        self.table, self.network = table, network
        self.trusted = False  # whether a request with a valid key has come through it
        self._keyed = False  # whether the current request has one
        self.waits: tuple[bool, str] | None = None
        self.opening: asyncio.Task[None] | None = None  # until its handshake is done
        self._connected = False
        self._limit = table.limits.header_bytes
        self._in_head, self._head_room, self._wire, self._body = True, self._limit, 0, 0
        self._deaf = False  # what still arrives is not read

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The handshake is done."""
        self._connected = True
        super().connection_made(transport)

    def trust(self) -> None:
        """The current request has a valid key."""
        self.trusted = self._keyed = True
        if self.waits is not None and self.waits[1] == REQUEST:
            self.table.work(self)

    # Its end.

    def abort(self) -> None:
        """Close at once, whatever is still to be sent."""
        self._deaf = True
        self.table.remove(self)
        if self._connected:
            self.transport.abort()
        elif self.opening is not None:
            self.opening.cancel()

    def expire(self) -> None:
        """Close because the time to wait is up."""
        kind = self.waits[1] if self.waits else HEAD
        if not self._connected or kind in (REQUEST, WRITING):
            self.table.note({HEAD: "slow-handshake", REQUEST: "slow-request"}.get(kind, "unread"))
            self.abort()
        elif kind == IDLE:
            if not self.transport.get_write_buffer_size():
                self.table.note("idle")
                self.transport.close()
            self.table.wait(self, WRITING)
        else:
            self.table.note("slow-head")
            seconds = self.table.limits.header_seconds
            self._refuse(Problem("too-slow", f"the whole head of a request within {seconds:g} s", "a part of it"))

    def shutdown(self) -> None:
        """Close, after the current request if there is one."""
        super().shutdown()
        if self.transport.is_closing():
            self.table.wait(self, WRITING)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self.table.remove(self)
        super().connection_lost(exc)

    def _refuse(self, problem: Problem) -> None:
        """Say why and close; the client may read it before it notices."""
        if self._is_working() or self._head_room == self._limit:
            self.abort()  # another response is under way, or nothing was asked
            return
        body = problem.body("none")
        head = f"HTTP/1.1 {problem.status} \r\ncontent-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self._deaf = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()
        self.table.wait(self, WRITING)

    # What arrives.

    def data_received(self, data: bytes) -> None:
        """Parse it in pieces no larger than a head may be."""
        if self.waits is not None and self.waits[1] == IDLE:
            self.table.wait(self, HEAD)
        start = 0
        while start < len(data) and not self._deaf:
            piece = data[start : start + (self._head_room if self._in_head else self._limit)]
            start += len(piece)
            if self._in_head:
                self._head_room -= len(piece)
            else:
                self._wire += len(piece)
            super().data_received(piece)
            self._check()

    def _check(self) -> None:
        if self._deaf:
            return
        if self._in_head and self._head_room <= 0:
            self.table.note("large-head")
            self._refuse(_large_head(self._limit))
        elif not self._in_head and (self._wire > self._limit + (1 + _WIRE_PER_BYTE) * self._body or self._undrained()):
            self.table.note("large-head")
            self.abort()

    def _undrained(self) -> bool:
        """Whether too much of a body arrives that nobody reads: its request has already been answered."""
        return not self._is_working() and self._wire > self.table.limits.body_bytes

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; what follows a body in chunks is ignored."""
        if not self._in_head:
            return
        if len(self.headers) >= _MOST_HEADERS:
            self.table.note("large-head")
            self._refuse(_large_head(self._limit))
            return
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is complete: the request begins."""
        if self._deaf:
            return
        self._in_head, self._head_room, self._wire, self._body = False, self._limit, 0, 0
        if len(self.pipeline) >= _MOST_PIPELINED:
            self.table.note("pipelined")
            self.abort()
            return
        if not self._is_working():
            self._begin()
        super().on_headers_complete()
        self.scope["state"]["connection"] = self

    def _begin(self) -> None:
        self._keyed = False
        self.table.wait(self, REQUEST)

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        if not self._deaf:
            self._body += len(body)
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The body is complete; the next head may follow."""
        if self._deaf:
            return
        self._in_head = True
        super().on_message_complete()
        if not self._is_working() and not self.transport.is_closing():
            self.table.wait(self, IDLE)  # its response was sent before its body had arrived

    # What is sent.

    def on_response_complete(self) -> None:
        """The response is on its way: wait for the next request, or for the client to read."""
        more = bool(self.pipeline)
        super().on_response_complete()
        self._unset_keepalive_if_required()  # the table keeps the time
        if self.transport.is_closing():
            self.table.wait(self, WRITING)
        elif more:
            self._begin()
        else:
            begun = not self._in_head or self._head_room < self._limit
            self.table.wait(self, HEAD if begun else IDLE)

    def send_400_response(self, msg: str) -> None:
        """What cannot be parsed: say so and close."""
        if self._deaf:
            return
        super().send_400_response(msg)
        self._deaf = True
        self.table.wait(self, WRITING)

    def pause_writing(self) -> None:
        """The client does not read: it may be dropped."""
        super().pause_writing()
        if self.waits is None:
            self.table.wait(self, WRITING)

    def resume_writing(self) -> None:
        """The client has read."""
        super().resume_writing()
        if self._is_working() and not self.transport.is_closing():
            self.table.wait(self, REQUEST)
            if self._keyed:
                self.table.work(self)

    def _is_working(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete


def _large_head(limit: int) -> Problem:
    return Problem("head-too-large", f"at most {limit:,} bytes and {_MOST_HEADERS} lines of headers", "more")


class Listener:
    """Accepts connections on a socket, as `asyncio.Server` does, within the limits of a table.

    Args:
        bound: A bound socket.
        table: Where connections are entered.
        make: A new connection from the network of its client.
        tls: For TLS; may be replaced at any time, for connections that come later.
    """

    def __init__(
        self,
        bound: socket,
        table: ConnectionTable,
        make: Callable[[str], LimitedProtocol],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.tls = tls
        self._bound, self._table, self._make = bound, table, make
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        bound.listen(_BACKLOG)
        bound.setblocking(False)
        self._sweeping = self._loop.create_task(self._sweep())
        self._closed = False
        self._resume()

    def close(self) -> None:
        """Accept no more connections; open ones keep their time limits until `wait_closed`."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._bound.fileno())
            for opening in self._opening:
                opening.cancel()

    async def wait_closed(self) -> None:
        """Stop keeping the time."""
        self._sweeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._sweeping

    def _resume(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._bound.fileno(), self._accept)

    def _accept(self) -> None:
        """Accept some of those that wait; whatever goes wrong, go on accepting."""
        for _ in range(_AT_ONCE):
            try:
                client, peer = self._bound.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _GONE:
                    continue
                self._table.drop_oldest()  # no descriptor or no memory is left, whoever took it
                self._loop.remove_reader(self._bound.fileno())
                self._loop.call_later(_PAUSE_SECONDS, self._resume)
                return
            self._enter(client, peer[0])

    def _enter(self, client: socket, address: str) -> None:
        connection = self._make(client_network(address))
        if not self._table.admit(connection):
            client.close()
            return
        client.setblocking(False)
        connection.opening = self._loop.create_task(self._open(connection, client))
        self._opening.add(connection.opening)
        connection.opening.add_done_callback(lambda task: self._opened(task, connection, client))

    async def _open(self, connection: LimitedProtocol, client: socket) -> None:
        seconds = self._table.limits.header_seconds if self.tls else None
        await self._loop.connect_accepted_socket(
            lambda: connection, client, ssl=self.tls, ssl_handshake_timeout=seconds
        )

    def _opened(self, task: asyncio.Task[None], connection: LimitedProtocol, client: socket) -> None:
        self._opening.discard(task)
        connection.opening = None
        if task.cancelled() or task.exception() is not None:  # no handshake, or the client is gone
            client.close()
            self._table.remove(connection)

    async def _sweep(self) -> None:
        """Close what is overdue, unless what it waited for has come while this process was not running."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            late = {one: one.waits for one in self._table.overdue()}
            for _ in range(2):
                await asyncio.sleep(0)  # whatever has arrived is read
            for connection in _still_late(late, self._table.overdue()):
                try:
                    connection.expire()
                except Exception as error:  # noqa: BLE001 - the others still have their limits
                    _log.error("closing failed: %s", type(error).__name__)
                    connection.abort()


def _still_late(
    before: dict[LimitedProtocol, tuple[bool, str] | None], now: list[LimitedProtocol]
) -> Iterator[LimitedProtocol]:
    return (one for one in now if one in before and before[one] == one.waits)
