"""A service that stands in the open: whoever sends half a request holds up nobody else, and is cut off in the end."""

from __future__ import annotations

import contextlib
import errno
import json
import select
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from airlock.serve.connections import HEAD, IDLE, WRITING, ConnectionTable, client_network, fit_descriptors
from airlock.serve.middleware import Meters
from airlock.serve.service import Service, ServiceLimits
from tests.serve.selling import Nursery, Priced, ask, connect, make, question, running
from tests.serve.slow import SlowClients
from tests.serve.test_http_process import prepared, spent
from tests.waiting import LONG, wait_until

INFER = b"POST /v2/models/pets/infer HTTP/1.1\r\nHost: x\r\n"
LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
SOON = 1.5  # seconds, of limits that a test waits for


def peak_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


@pytest.mark.parametrize("whose", ["strangers", "another client"])
def test_two_thousand_slow_connections_leave_a_client_its_answers(nursery: Nursery, folder: Path, whose: str) -> None:
    token = prepared(folder, 10**6)
    other = prepared(folder, 10**6, "bob") if whose == "another client" else ""
    pid, where = nursery.start(folder, 10**6, descriptors=1024, header_seconds=4.0, body_seconds=4.0)
    before = peak_bytes(pid)
    with SlowClients(where, 2000, other) as slow:
        assert slow.opened == 2000
        for _ in range(4):
            for _ in range(5):
                connection = connect(where)
                for _ in range(2):
                    assert ask(connection, token, question())[0] == 200
                connection.close()
            slow.drip()
        assert slow.closed() == 2000
    grown = peak_bytes(pid) - before
    nursery.end(pid, signal.SIGTERM)
    assert nursery.wait(pid) == 0
    assert spent(folder)[0] == 40
    assert grown < 100 << 20
    assert "Traceback" not in (folder / "log").read_text()


class Door:
    """A service, a client with a key, and connections from any address of this machine."""

    def __init__(self, service: Service, where: str) -> None:
        assert service.keys is not None
        self.service, self.where = service, where
        self.token, self.admin = service.keys.add("ann")[1], service.keys.add_admin()[1]
        host, port = where.partition("://")[2].split(":")
        self.address = (host, int(port))

    def open(self, sent: bytes = b"", number: int = 1) -> socket.socket:
        one = socket.create_connection(self.address, LONG, source_address=(f"127.0.0.{number}", 0))
        one.sendall(sent)
        return one

    def infer(self, lines: str = "Content-Length: 2\r\n\r\n{}") -> bytes:
        return INFER + f"Authorization: Bearer {self.token}\r\nContent-Type: application/json\r\n{lines}".encode()

    def closed(self, reason: str) -> int:
        """How many connections the service closed for this reason."""
        reply = httpx.get(f"{self.where}/metrics", headers={"Authorization": f"Bearer {self.admin}"}, timeout=LONG)
        line = f'airlock_connections_closed_total{{reason="{reason}"}} '
        return int(float((reply.text + f"\n{line}0").split(line)[1].split()[0]))


@contextlib.contextmanager
def door(folder: Path, answerer: Priced | None = None, card: bytes = b"", **limits: Any) -> Iterator[Door]:
    listening = limits.pop("listening", socket.socket)
    service = make(folder, answerer or Priced(10**6), **limits)
    service = replace(service, card=card) if card else service
    with service.ledger, running(service, listening=listening) as where:
        yield Door(service, where)


def everything(one: socket.socket) -> bytes:
    """What the service says until it closes."""
    said = b""
    with contextlib.suppress(ConnectionResetError):
        while part := one.recv(65536):
            said += part
    one.close()
    return said


def response(one: socket.socket) -> bytes:
    """One whole response."""
    said = b""
    while b"\r\n\r\n" not in said:
        part = one.recv(1)
        assert part
        said += part
    for _ in range(int(said.lower().split(b"content-length: ")[1].split()[0])):
        said += one.recv(1)
    return said


@pytest.mark.parametrize(
    "head",
    [
        b"GET /x HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 40_000,
        b"GET /" + b"a" * 40_000,
        b"\r\n" * 20_000,
        b"GET /x HTTP/1.1\r\n" + b"X: y\r\n" * 200,
    ],
    ids=["one endless header", "an endless address", "empty lines", "many headers"],
)
def test_a_head_that_does_not_end(folder: Path, head: bytes) -> None:
    with door(folder) as shop:
        with contextlib.suppress(ConnectionError), shop.open() as one:
            one.sendall(head)
            said = everything(one)
            assert said.startswith(b"HTTP/1.1 431")
            assert b"urn:airlock:problem:head-too-large" in said
        wait_until(lambda: shop.closed("large-head"), "its end")
        assert httpx.get(f"{shop.where}/v2/health/live", timeout=LONG).status_code == 200


def test_whatever_is_waited_for_has_its_time(folder: Path) -> None:
    with door(folder, card=b"x" * (64 << 20), header_seconds=SOON, idle_seconds=SOON, write_seconds=SOON) as shop:
        silent, half, idle = shop.open(), shop.open(b"GET /x HT"), shop.open(LIVE)
        unread = shop.open(b"GET /card HTTP/1.1\r\nHost: x\r\n\r\n" * 3)
        said = everything(half)
        assert said.startswith(b"HTTP/1.1 408")
        assert b"urn:airlock:problem:too-slow" in said
        assert everything(silent) == b""
        assert everything(idle).startswith(b"HTTP/1.1 200")
        wait_until(lambda: shop.closed("unread") + shop.closed("slow-request"), "the end of a client that never reads")
        unread.close()


def test_a_newcomer_gets_the_place_of_whoever_waited_longest(folder: Path) -> None:
    with door(folder, connections=8, per_address=4) as shop:
        known = shop.open(shop.infer(), 2)
        assert response(known).startswith(b"HTTP/1.1 400")  # a valid key, and nothing that could be answered
        strangers = [shop.open(b"GET /x HT", 3 + number % 2) for number in range(7)]
        newer = [shop.open(b"GET /x HT", 5 + number % 2) for number in range(3)]
        for one in strangers[:3]:
            assert everything(one) == b""
        for one in [*strangers[3:], *newer]:
            one.sendall(b"TP/1.1\r\nHost: x\r\n\r\n")
            assert response(one).startswith(b"HTTP/1.1 404")
        known.sendall(shop.infer())
        assert response(known).startswith(b"HTTP/1.1 400")  # with a key, it was not dropped for those without
        for one in [known, *strangers[3:], *newer]:
            one.close()


def test_one_address_fills_its_own_places_alone(folder: Path) -> None:
    with door(folder, connections=8, per_address=2) as shop:
        other = shop.open(b"GET /x HT", 2)
        many = [shop.open(b"GET /x HT", 3) for _ in range(12)]
        for one in many[:-2]:
            assert everything(one) == b""
        for one in [other, *many[-2:]]:
            one.sendall(b"TP/1.1\r\nHost: x\r\n\r\n")
            assert response(one).startswith(b"HTTP/1.1 404")
            one.close()


class NoDescriptors(socket.socket):
    """Finds no descriptor, no memory and no client at first."""

    errors = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ECONNABORTED, errno.EINVAL)

    def accept(self) -> Any:
        count = self.__dict__["count"] = self.__dict__.get("count", -1) + 1
        if count < len(self.errors):
            raise OSError(self.errors[count], "on purpose")
        return super().accept()


def test_accepting_goes_on_when_it_fails(folder: Path) -> None:
    with door(folder, listening=NoDescriptors) as shop:
        for _ in range(3):
            assert httpx.get(f"{shop.where}/v2/health/live", timeout=LONG).status_code == 200


def test_pipelined_requests(folder: Path) -> None:
    with door(folder) as shop:
        with shop.open(LIVE * 8) as few:
            assert [response(few)[:15] for _ in range(8)] == [b"HTTP/1.1 200 OK"] * 8
        everything(shop.open(LIVE * 2000))
        wait_until(lambda: shop.closed("pipelined"), "the end of too many")


def test_what_follows_a_body_in_chunks(folder: Path) -> None:
    chunked = "Transfer-Encoding: chunked\r\n\r\n"
    with door(folder) as shop:
        body = json.dumps(question())
        for trailer in ("", "Idempotency-Key: x\r\n"):
            sent = shop.infer(f"{chunked}{len(body):x}\r\n{body}\r\n0\r\n{trailer}\r\n")
            with shop.open(sent) as one:
                assert response(one).startswith(b"HTTP/1.1 200")
        assert shop.service.ledger.balance().spent == 2  # a header that comes late is none
        tiny = "".join(f"1\r\n{byte}\r\n" for byte in body) + "0\r\n\r\n"
        with shop.open(shop.infer(chunked + tiny)) as one:
            assert response(one).startswith(b"HTTP/1.1 200")
        for endless in ("0\r\nX: " + "a" * 60_000, "1;" + "a" * 60_000):
            with contextlib.suppress(ConnectionError), shop.open() as one:
                one.sendall(shop.infer(chunked + endless))
                everything(one)
        wait_until(lambda: shop.closed("large-head") == 2, "the end of both")
        assert shop.service.ledger.balance().spent == 3


def test_a_body_that_nobody_reads_is_not_taken_for_ever(folder: Path) -> None:
    with door(folder, body_bytes=100_000) as shop:
        with shop.open(INFER + b"Content-Length: 50000\r\n\r\n") as one:
            assert response(one).startswith(b"HTTP/1.1 401")
            one.sendall(b" " * 50_000 + LIVE)
            assert response(one).startswith(b"HTTP/1.1 200")  # a short one is taken, and the connection stays
        with contextlib.suppress(ConnectionError), shop.open(INFER + b"Content-Length: 9999999999\r\n\r\n") as one:
            assert response(one).startswith(b"HTTP/1.1 401")
            while True:
                one.sendall(b" " * 10_000)
        wait_until(lambda: shop.closed("large-head"), "its end")


def test_bodies_of_one_client_leave_room_for_others(folder: Path) -> None:
    """The room for bodies is 16 times the largest; a client alone gets half of it, whatever it sends."""
    with door(folder, body_bytes=10_000) as shop:
        assert shop.service.keys is not None
        bob = shop.service.keys.add("bob")[1]
        large = shop.infer("Content-Length: 9000\r\n\r\n") + b" " * 8999
        many = [shop.open(large) for _ in range(12)]
        wait_until(lambda: len(speaking(many)) == 3, "three that are refused")
        assert all(response(one).startswith(b"HTTP/1.1 503") for one in speaking(many))
        connection = connect(shop.where)
        assert ask(connection, bob, question())[0] == 200
        connection.close()
        for one in many:
            one.close()


def speaking(connections: list[socket.socket]) -> list[socket.socket]:
    return select.select(connections, [], [], 0)[0]


class Waiter:
    """A connection as the table sees it."""

    def __init__(self, table: ConnectionTable, network: str, trusted: bool = False) -> None:
        self.table, self.network, self.trusted, self.gone = table, network, trusted, False
        self.waits: tuple[bool, str] | None = None

    def abort(self) -> None:
        self.gone = True
        self.table.remove(self)  # type: ignore[arg-type]


def test_the_table_with_a_clock_of_its_own() -> None:
    clock = [0.0]
    limits = ServiceLimits(connections=4, per_address=3, header_seconds=10, idle_seconds=30, write_seconds=5)
    table: Any = ConnectionTable(limits, Meters(), lambda: clock[0])
    first, second, third = (Waiter(table, "a", trusted) for trusted in (True, False, False))
    for one, kind in ((first, HEAD), (second, IDLE), (third, WRITING)):
        assert table.admit(one)
        table.wait(one, kind)
        clock[0] += 0.001
    for clock[0], overdue in ((4.9, set()), (6, {third}), (11, {first, third}), (31, {first, second, third})):
        assert set(table.overdue()) == overdue
    fourth, fifth = Waiter(table, "b"), Waiter(table, "c")
    assert table.admit(fourth)
    assert table.admit(fifth)
    assert [one.gone for one in (first, second, third)] == [False, True, False]  # the oldest without a key
    for one in (first, third, fourth, fifth):
        table.work(one)
    assert not table.admit(Waiter(table, "d"))  # nobody waits
    assert len(table) == 4
    for one in (first, third, fourth, fifth):
        table.remove(one)
        table.remove(one)
    assert len(table) == 0


def test_an_address_stands_for_whoever_has_it() -> None:
    assert client_network("192.0.2.7") == "192.0.2.7"
    assert client_network("::ffff:192.0.2.7") == "192.0.2.7"
    assert client_network("2001:db8:1:2:3:4:5:6") == client_network("2001:db8:1:2::9%eth0") == "2001:db8:1:2::/64"
    assert client_network("testclient:") == "testclient:"


def test_connections_fit_the_open_files_of_the_process() -> None:
    limits = ServiceLimits()
    assert [fit_descriptors(limits, count).connections for count in (-1, 10**6, 1024, 256, 128, 20, 1)] == [
        1024, 1024, 896, 128, 64, 10, 1,
    ]  # fmt: skip
    assert fit_descriptors(limits, 1024).from_one_address == 224
    assert ServiceLimits(per_address=5000).from_one_address == 1024
