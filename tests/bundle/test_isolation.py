"""Files of others are checked in a child: whatever becomes of it, there is an answer, and nothing is left running."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from airlock import isolation
from airlock.bundle import read_verified, verify
from airlock.errors import ConfigError, Refused
from airlock.isolation import Allowance, Stopped, run
from tests.bundle.test_models import _bomb, in_its_form
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
PLENTY = Allowance(1 << 30, 600)


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server of the test's own, which imports nothing beforehand and whose children do the work of `isolating`."""
    monkeypatch.setattr(isolation, "run", run)
    monkeypatch.setattr(isolation, "PRELOADED", ())
    monkeypatch.setattr(isolation, "_servers", [])
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    yield
    isolation._stop_all()


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The children that were made, by the server's own word."""
    made: list[int] = []
    receive = isolation._receive

    def spying(line: object) -> bytes:
        content = receive(line)  # type: ignore[arg-type]
        word, value = json.loads(content)
        if word == "child":
            made.append(value)
        return content

    monkeypatch.setattr(isolation, "_receive", spying)
    return made


def work(
    name: str, limits: Allowance = PLENTY, answer: isolation.Answer = lambda _: b"", **request: object
) -> list[object]:
    return list(isolation.run(f"tests.isolating:{name}", request, limits, answer))


def is_gone(child: int) -> bool:
    try:
        os.kill(child, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.isolated
def test_a_bundle_is_verified_in_a_child(folder: Path, own: Path, children: list[int]) -> None:
    """One that is sound, and one that makes ONNX Runtime ask for 20 GB."""
    assert verify(folder).ok
    assert read_verified(folder).card.network is not None
    assert len(set(children)) == 2
    in_its_form(own, _bomb)
    found = {check.name: check.says for check in verify(own).checks if check.outcome == "failed"}
    assert any("memory" in says for says in found.values())
    with pytest.raises(Refused):
        read_verified(own)


@pytest.mark.usefixtures("light")
def test_a_child_is_asked_and_answered() -> None:
    assert work("asks", answer=lambda number: str(10 * number).encode(), times=3) == ["0", "10", "20"]
    assert len(isolation._servers) == 1


@pytest.mark.usefixtures("light")
def test_the_settings_are_those_of_the_caller_at_that_time(monkeypatch: pytest.MonkeyPatch) -> None:
    work("asks", times=0)  # the server has the settings of this moment
    monkeypatch.setenv("AIRLOCK_VAULT", "/somewhere/else")
    assert work("shows", variable="AIRLOCK_VAULT") == ["/somewhere/else"]


@pytest.mark.usefixtures("light")
def test_a_child_that_needs_too_much_is_stopped() -> None:
    with pytest.raises(Stopped, match="It needed more than 1 s and was stopped; AIRLOCK_CHECK_SECONDS allows more"):
        work("spins", Allowance(1 << 30, 1))
    with pytest.raises(Stopped, match="more than 0.25 GiB of memory and was stopped; AIRLOCK_CHECK_BYTES allows more"):
        work("grows", Allowance(1 << 28, 600))


@pytest.mark.usefixtures("light")
def test_a_child_that_crashes_leaves_nobody_waiting() -> None:
    said = isolation.run("tests.isolating:aborts", {}, PLENTY, lambda _: b"")
    assert next(said) == "before"
    with pytest.raises(Stopped, match="crash"):
        next(said)
    assert work("asks", times=0) == []


@pytest.mark.usefixtures("light")
def test_a_server_that_dies_leaves_nobody_waiting() -> None:
    work("asks", times=0)
    first = isolation._servers[0].process

    def end_of_all(_: object) -> bytes:
        first.kill()
        first.wait()
        return b""

    with pytest.raises(Stopped, match="died"):
        work("asks", answer=end_of_all, times=1)
    assert work("asks", answer=lambda _: b"again", times=1) == ["again"]
    assert isolation._servers[0].process is not first


@pytest.mark.usefixtures("light")
def test_ctrl_c_ends_the_child(children: list[int]) -> None:
    def interrupted(_: object) -> bytes:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work("asks", answer=interrupted, times=1)
    wait_until(lambda: is_gone(children[0]), "the end of the child")


TAKEN_OVER: dict[str, list[tuple[str, object]]] = {
    "every process": [("child", -1)],
    "its group": [("child", 0)],
    "the first process": [("child", 1)],
    "a truth value": [("child", True)],
    "text": [("child", "1")],
    "another, later": [("child", 2**22 + 1), ("child", 2**22 + 2)],
    "late": [("says", "something"), ("child", 2**22 + 2)],
}


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize("what", TAKEN_OVER)
def test_a_child_cannot_have_another_process_killed(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda child, _: killed.append(child))

    def says(_: bytes, line: socket.socket) -> None:
        for word in TAKEN_OVER[what]:
            isolation._send(line, json.dumps(word).encode())

    monkeypatch.setattr(isolation, "_hand_over", says)
    with pytest.raises(Stopped, match="said something"):
        work("asks")
    assert killed == ([2**22 + 1] if what == "another, later" else [])


@pytest.mark.usefixtures("light")
@pytest.mark.parametrize("call", ["socket.socketpair", "subprocess.Popen"])
def test_a_server_that_cannot_be_started_is_said(folder: Path, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(f"airlock.isolation.{call}", refused)
    isolation.start()
    with pytest.raises(Stopped, match="could not be started: Too many open files"):
        work("asks")
    said = [check.says for check in verify(folder).checks if check.outcome == "failed"]
    assert any("could not be started" in says for says in said)


def test_seconds_are_at_most_a_week(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(isolation.SECONDS_VARIABLE, "9" * 18)
    assert isolation.setting(isolation.SECONDS_VARIABLE, 60) == 7 * 24 * 3600
    monkeypatch.setenv(isolation.SECONDS_VARIABLE, "1" * 5000)  # more digits than Python reads
    with pytest.raises(ConfigError, match="AIRLOCK_CHECK_SECONDS"):
        isolation.setting(isolation.SECONDS_VARIABLE, 60)


@pytest.mark.parametrize("text", ["many", "-1", "0", "9" * 30])
def test_a_limit_is_a_whole_number(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(isolation.BYTES_VARIABLE, text)
    with pytest.raises(ConfigError, match="AIRLOCK_CHECK_BYTES"):
        verify(folder)
