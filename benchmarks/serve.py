"""Requests per second over HTTP with the durable ledger, relative to the same service with the ledger off.

Two servers, each in its own process, differ in one thing: in one a charge is on disk before noise is drawn, in the
other nothing is charged. Both check keys, parse the same body (a row of 784 numbers) and draw exact noise on a grid for
ten logits. 32 clients query over real sockets, each sending its next query when the last is answered; the servers take
turns, so that a busy machine slows both equally, and the median of the rounds' ratios is reported.

Then the server with the ledger answers the same clients while 2,000 others hold half-sent requests, and come back a
second after they are closed; the processes of the servers may open 1,024 files. The time within which 99 of 100 queries
are answered is reported with them and without them, in turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from airlock.ledger import Charge, KeyStore, Ledger, Replay, Spend
from airlock.mechanisms import Stream
from airlock.mechanisms.discrete import GridNoise
from airlock.methods.interface import Answerer, Answers, Interface, Reservation
from airlock.serve.ledger_paths import terms_of
from airlock.serve.run import address, bind, serve
from airlock.serve.service import Service

CLIENTS, ROUNDS, SECONDS, WARM_UP = 32, 7, 4.0, 1.0
NUMBERS, CLASSES = 784, 10
SLOW, SLOW_ROUNDS, DESCRIPTORS = 2000, 3, 1024


class NoisyLinear(Answerer):
    """A linear network with noise on its logits, drawn for each row: one unit per answer."""

    def __init__(self) -> None:
        super().__init__(Interface("logits", (NUMBERS,), tuple("0123456789"), 10**12, "one answer", {}))
        self._weights = np.random.default_rng(0).normal(size=(NUMBERS, CLASSES)) / NUMBERS
        self._noise = GridNoise("gaussian", 1.0, 5.0, CLASSES)

    def answer(self, x: NDArray[np.float32], reservation: Reservation, stream: Stream) -> Answers:
        """Logits with noise, row by row."""
        rows = [self._noise.add(row, stream.child(n)) for n, row in enumerate(x @ self._weights)]
        values = np.stack(rows)
        return Answers(values.argmax(axis=1).astype(np.int64), values)


class FreeLedger(Ledger):
    """Charges nothing, as if the service had no ledger."""

    def submit(self, spend: Spend) -> Future[Charge | Replay]:
        """Return at once."""
        done: Future[Charge | Replay] = Future()
        done.set_result(Charge(1, spend.client, spend.rows, spend.units, "", 1))
        return done


def run() -> list[dict[str, Any]]:
    """One row: requests per second and the 99th percentile of both, and the ratio of the rates."""
    measured: dict[str, list[tuple[float, float]]] = {"on": [], "off": []}
    with tempfile.TemporaryDirectory(dir=".") as folder, contextlib.ExitStack() as stack:
        servers = {which: stack.enter_context(_server(Path(folder), which)) for which in measured}
        for where, token in servers.values():
            asyncio.run(_load(where, token, WARM_UP))
        for _ in range(ROUNDS):
            for which, (where, token) in servers.items():
                measured[which].append(asyncio.run(_load(where, token, SECONDS)))
        alone, crowded = _with_slow_clients(*servers["on"])
    rates = {which: [rate for rate, _ in rounds] for which, rounds in measured.items()}
    slowest = {which: statistics.median(last for _, last in rounds) for which, rounds in measured.items()}
    ratios = [on / off for on, off in zip(rates["on"], rates["off"], strict=True)]
    return [
        {
            "what": f"requests a second, {CLIENTS} clients, {os.cpu_count()} cores, SQLite",
            "ledger_on": round(statistics.median(rates["on"])),
            "ledger_off": round(statistics.median(rates["off"])),
            "ratio": round(statistics.median(ratios), 2),
            "lowest_ratio": round(min(ratios), 2),
            "p99_ms_on": round(1000 * slowest["on"], 1),
            "p99_ms_off": round(1000 * slowest["off"], 1),
            "p99_ms_alone": round(1000 * alone, 1),
            f"p99_ms_with_{SLOW}_slow": round(1000 * crowded, 1),
        }
    ]


def _with_slow_clients(where: str, token: str) -> tuple[float, float]:
    """The time within which 99 of 100 were answered, without slow clients and with them: medians of rounds in turns."""
    alone, crowded = list[float](), list[float]()
    for _ in range(SLOW_ROUNDS):
        alone.append(asyncio.run(_load(where, token, SECONDS))[1])
        opened = multiprocessing.get_context("fork").Event()
        process = multiprocessing.get_context("fork").Process(target=_be_slow, args=(where, opened), daemon=True)
        process.start()
        opened.wait()
        crowded.append(asyncio.run(_load(where, token, SECONDS))[1])
        process.terminate()
        process.join()
    return statistics.median(alone), statistics.median(crowded)


def _be_slow(where: str, opened: Any) -> None:
    """The process of the slow clients, which says when all have been connected."""
    host, port = where.removeprefix("http://").split(":")

    async def connect() -> None:
        once = [asyncio.Event() for _ in range(SLOW)]
        tasks = [asyncio.create_task(_wait(host, int(port), number, one)) for number, one in enumerate(once)]
        for one in once:
            await one.wait()
        opened.set()
        await asyncio.gather(*tasks)

    asyncio.run(connect())


async def _wait(host: str, port: int, number: int, opened: asyncio.Event) -> None:
    """One slow client, from one of eight addresses: half a head, then a byte a second for as long as it may."""
    while True:
        with contextlib.suppress(OSError):
            source = (f"127.0.0.{2 + number % 8}", 0)
            reader, writer = await asyncio.open_connection(host, port, local_addr=source)
            opened.set()
            writer.write(b"POST /v2/models/bench/infer HTTP/1.1\r\nHost: x\r\nX-Slow: "[: number % 60])
            while not reader.at_eof():
                writer.write(b"x")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(4096), 1.0)
            writer.close()
        await asyncio.sleep(1.0)


@contextlib.contextmanager
def _server(folder: Path, which: str) -> Iterator[tuple[str, str]]:
    """A server in its own process: its address, and a token."""
    command = [sys.executable, "-P", __file__, str(folder / which), which]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            token, where = process.stdout.readline().strip(), process.stdout.readline().strip()
            yield where, token
        finally:
            process.terminate()


async def _load(where: str, token: str, seconds: float) -> tuple[float, float]:
    """Requests per second, and the time within which 99 of 100 were answered."""
    host, port = where.removeprefix("http://").split(":")
    x = np.random.default_rng(1).random(NUMBERS).round(4).tolist()
    body = json.dumps({"inputs": [{"name": "input", "datatype": "FP32", "shape": [1, NUMBERS], "data": x}]}).encode()
    head = (
        f"POST /v2/models/bench/infer HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    until = time.perf_counter() + seconds
    begun = time.perf_counter()
    found = await asyncio.gather(*(_ask(host, int(port), head.encode() + body, until) for _ in range(CLIENTS)))
    taken = time.perf_counter() - begun
    times = sorted(one for times in found for one in times)
    return len(times) / taken, times[int(0.99 * len(times))]


async def _ask(host: str, port: int, request: bytes, until: float) -> list[float]:
    """One client: one query after another on one connection."""
    reader, writer = await asyncio.open_connection(host, port)
    times = []
    while (begun := time.perf_counter()) < until:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(head.decode())
        await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
        times.append(time.perf_counter() - begun)
    writer.close()
    return times


def _serve(folder: Path, which: str) -> None:
    """The process of a server: prints a token, then its address."""
    answerer = NoisyLinear()
    kind = FreeLedger if which == "off" else Ledger
    with bind("127.0.0.1", 0) as bound, kind.open(
        folder / "ledger.db", folder / "mark", terms_of("bench", answerer.interface)
    ) as ledger:  # fmt: skip
        keys = KeyStore(ledger)
        print(keys.add("ann")[1], flush=True)
        service = Service("bench", "bench", "bench", b"", answerer, ledger, keys)
        serve(service, bound, lambda: print(address(bound), flush=True))


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    _serve(Path(sys.argv[1]), sys.argv[2])
