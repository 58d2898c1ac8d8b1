"""A service that stands in the open: whoever sends half a request waits for itself alone."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.serve.selling import Nursery, ask, connect, question
from tests.serve.slow import SlowClients
from tests.serve.test_http_process import prepared, spent


def peak_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


@pytest.mark.parametrize("whose", ["strangers", "another client"])
def test_two_thousand_slow_connections_leave_a_client_its_answers(nursery: Nursery, folder: Path, whose: str) -> None:
    token = prepared(folder, 10**6)
    other = prepared(folder, 10**6, "bob") if whose == "another client" else ""
    pid, where = nursery.start(folder, 10**6, descriptors=1024, header_seconds=2.0, body_seconds=2.0)
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
