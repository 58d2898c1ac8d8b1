"""A small service with a price, in this process or (`Nursery`) in its own."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from airlock.ledger import KeyStore, Ledger
from airlock.mechanisms import Stream
from airlock.mechanisms.discrete import GridNoise
from airlock.methods.interface import Answerer, Answers, Interface, Reservation
from airlock.serve.ledger_paths import terms_of
from airlock.serve.run import LoadTls, Server, address, bind, make_server, serve
from airlock.serve.service import Service, ServiceLimits
from tests.waiting import LONG

SHAPE, CLASSES = (1, 2, 2), ("cat", "dog", "owl")
CARD = b"<!doctype html><html lang=en><title>A card</title><link rel=icon href='data:,'><p>A card."
RELEASE = "0" * 32


class Priced(Answerer):
    """Sums of the pixels and their opposite, with exact noise; one unit a row. `held` rows were paid before.

    No answer is given while `go` is not set.
    """

    def __init__(self, units: int | None = 20, seconds: float = 0.0) -> None:
        super().__init__(Interface("logits", SHAPE, CLASSES, units, "one answer", {}))
        self.noise = GridNoise("gaussian", 1.0, 2.0, len(CLASSES))
        self.seconds, self.held, self.cancelled, self.fails = seconds, 0, 0, False
        self.go = threading.Event()
        self.go.set()

    def reserve(self, rows: int) -> Reservation:
        taken = min(self.held, rows)
        self.held -= taken
        return Reservation(rows, rows - taken)

    def cancel(self, reservation: Reservation) -> None:
        self.held += reservation.rows - reservation.units
        self.cancelled += 1

    def answer(self, x: NDArray[np.float32], reservation: Reservation, stream: Stream) -> Answers:
        if self.fails:
            raise RuntimeError(f"secret {x[0, 0, 0, 0]} in /home/secret/place")
        assert self.go.wait(LONG)
        time.sleep(self.seconds)
        total = x.reshape(len(x), -1).sum(axis=1)
        rows = [self.noise.add(np.array([t, -t, 0.0]), stream.child(n)) for n, t in enumerate(total)]
        values = np.stack(rows)
        return Answers(values.argmax(axis=1).astype(np.int64), values)


def question(rows: int = 1, value: float = 0.5, **changes: Any) -> dict[str, Any]:
    data = np.full((rows, *SHAPE), value).tolist()
    return {"inputs": [{"name": "input", "datatype": "FP32", "shape": [rows, *SHAPE], "data": data} | changes]}


PATIENT = dict.fromkeys(("body_seconds", "header_seconds", "idle_seconds", "write_seconds"), LONG)


def make(folder: Path, answerer: Answerer, *, place: str = "", keys: bool = True, **limits: Any) -> Service:
    ledger = Ledger.open(place or folder / "ledger.db", folder / "mark", terms_of(RELEASE, answerer.interface))
    store = KeyStore(ledger) if keys else None
    allowed = ServiceLimits(**(PATIENT | limits))
    return Service("pets", RELEASE, "airlock_answers_test", CARD, answerer, ledger, store, allowed)


@contextlib.contextmanager
def running(service: Service, **parts: Any) -> Iterator[str]:
    """The service at an address, in a thread of this process."""
    with running_server(service, **parts) as (_, where):
        yield where


@contextlib.contextmanager
def running_server(
    service: Service, tls: LoadTls = lambda: None, listening: type[socket.socket] = socket.socket
) -> Iterator[tuple[Server, str]]:
    """The server and its address; it listens on a socket of the given class."""
    ready = threading.Event()
    server = make_server(service, ready.set, tls)
    with listening(fileno=bind("127.0.0.1", 0).detach()) as bound:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            assert ready.wait(LONG)
            yield server, address(bound, tls=server.has_tls)
        finally:
            server.stop()
            thread.join(LONG)


@contextlib.contextmanager
def started(command: list[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that prints its address once it takes requests."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            where = process.stdout.readline().strip()
            if not where:
                raise AssertionError(process.communicate(timeout=LONG)[1])
            yield process, where
        finally:
            process.kill()


def ask(connection: HTTPConnection, token: str, body: Any, key: str = "") -> tuple[int, dict[str, Any]]:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    headers |= {"Idempotency-Key": key} if key else {}
    connection.request("POST", "/v2/models/pets/infer", json.dumps(body), headers)
    reply = connection.getresponse()
    return reply.status, json.loads(reply.read())


def connect(where: str) -> HTTPConnection:
    return HTTPConnection(where.removeprefix("http://"), timeout=LONG)


class Nursery:
    """A process that has imported everything and forks a service when asked to: that costs no seconds."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.serve.selling"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._running: set[int] = set()

    def start(
        self, folder: Path, cap: int, seconds: float = 0.0, place: str = "", descriptors: int = 0, **limits: Any
    ) -> tuple[int, str]:
        """A new service on a ledger in this folder, or with its mark there: its process and its address."""
        pid, where = self._say([str(folder), cap, seconds, place, descriptors, limits])
        self._running.add(int(pid))
        return int(pid), where

    def end(self, pid: int, number: int) -> None:
        os.kill(pid, number)

    def wait(self, pid: int) -> int:
        """How it ended."""
        self._running.discard(pid)
        return int(self._say(pid)[0])

    def close(self) -> None:
        for pid in self._running:  # of a test that failed
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.communicate()

    def _say(self, what: Any) -> list[str]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(what), file=self.process.stdin, flush=True)
        return self.process.stdout.readline().split()


def _serve(folder: str, cap: int, seconds: float, place: str, descriptors: int, limits: dict[str, Any]) -> None:
    if descriptors:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    with open(Path(folder) / "log", "a") as log:
        os.dup2(log.fileno(), 2)
    with bind("127.0.0.1", 0) as bound:
        selling = make(Path(folder), Priced(cap, seconds), place=place, **limits)
        with selling.ledger:
            serve(selling, bound, lambda: print(os.getpid(), address(bound), flush=True))


if __name__ == "__main__":
    for line in sys.stdin:
        order = json.loads(line)
        if isinstance(order, int):
            print(os.waitstatus_to_exitcode(os.waitpid(order, 0)[1]), flush=True)
        elif not os.fork():
            code = 1
            with contextlib.suppress(BaseException):
                _serve(*order)
                code = 0
            os._exit(code)
