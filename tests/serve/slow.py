"""Clients that never finish a request, in a process of their own: counted when they are opened, and when they end.

    python -m tests.serve.slow HOST PORT COUNT TOKEN

opens COUNT connections from eight addresses of this machine, and prints how many it opened. A line on stdin makes each
send one byte more; the end of stdin makes it wait until the service has closed them all, and print how many it closed.
A quarter say nothing, a quarter stop within a header line, a quarter send header after header, and a quarter a body
(with TOKEN) or half a TLS handshake (without).
"""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import subprocess
import sys
from types import TracebackType

ADDRESSES = 8
HANDSHAKE = b"\x16\x03\x01\x02\x00\x01"


class SlowClients:
    """The process, from the outside."""

    def __init__(self, where: str, count: int, token: str = "") -> None:
        host, port = where.partition("://")[2].split(":")
        command = [sys.executable, "-m", "tests.serve.slow", host, port, str(count), token]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.opened = self._count()

    def drip(self) -> int:
        """Each sends one byte more: how many were still open."""
        assert self.process.stdin is not None
        print(file=self.process.stdin, flush=True)
        return self._count()

    def closed(self) -> int:
        """How many the service closed, once it has closed them all."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self._count()

    def _count(self) -> int:
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    def __enter__(self) -> SlowClients:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        self.process.wait()


def _part(number: int, token: str) -> bytes:
    head = f"POST /v2/models/pets/infer HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
    body = head + "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
    kinds = [b"", head[:40].encode(), head.encode(), body.encode() if token else HANDSHAKE]
    return kinds[number % len(kinds)]


def _open(address: tuple[str, int], number: int, token: str) -> socket.socket:
    one = socket.socket()
    with contextlib.suppress(OSError):  # where this machine has but one address, from that
        one.bind((f"127.0.0.{2 + number % ADDRESSES}", 0))
    one.connect(address)
    with contextlib.suppress(OSError):
        one.sendall(_part(number, token))
    one.setblocking(False)
    return one


def _is_open(one: socket.socket) -> bool:
    """Whether the service keeps it: what it says is read, its end is noticed."""
    try:
        while one.recv(65536):
            pass
    except BlockingIOError:
        return True
    except OSError:
        pass
    one.close()
    return False


def _main(host: str, port: str, count: str, token: str = "") -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    here = [_open((host, int(port)), number, token) for number in range(int(count))]
    print(len(here), flush=True)
    opened = len(here)
    for _ in sys.stdin:
        here = [one for one in here if _is_open(one)]
        for one in here:
            with contextlib.suppress(OSError):
                one.send(b"\n" if one.fileno() % 2 else b"x")
        print(len(here), flush=True)
    while here := [one for one in here if _is_open(one)]:
        ready = select.poll()
        for one in here:
            ready.register(one, select.POLLIN)
        ready.poll()
    print(opened, flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
