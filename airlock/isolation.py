"""Work on files of others in a child process, with limits on its memory and time.

A parser that is fed a hostile file can ask for any amount of memory, run for ever or crash. Such work is done in a
child: it gets so much memory and so many seconds of a processor, and whatever becomes of it, the caller gets an answer.

    for said in run("airlock.bundle.verify:in_child", request, limits, answer):

A small server process imports the libraries once, which takes seconds, and forks a child for every piece of work, which
takes milliseconds. It ends when its parent does, or after it has had nothing to do for some minutes. What a child says
is JSON, never a pickle, so that a child that has been taken over says no more than text. Ctrl-C ends the child.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airlock.errors import ConfigError

BYTES_VARIABLE, SECONDS_VARIABLE = "AIRLOCK_CHECK_BYTES", "AIRLOCK_CHECK_SECONDS"
PRELOADED = ("onnx", "onnxruntime", "airlock.bundle.verify")  # `warm_up` is called in a module that has one
_IDLE_SECONDS = 300
_MOST = {SECONDS_VARIABLE: 7 * 24 * 3600}  # a limit above this one is lowered to it: clocks take no number whatever
_PATIENCE = 10  # seconds by the clock for each second of a processor: a machine may be busy
_LONGEST = 1 << 31  # bytes of one message
_DIGITS = 18  # of a limit
_PASSED_ON = ("AIRLOCK_", "XDG_", "HOME")
# The current folder is not on the path of the server; the folder of this package is, should it not be installed.
_START = "import sys; sys.path.append(sys.argv[1]); from airlock import isolation; isolation.serve(*sys.argv[2:])"
_THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True)
class Allowance:
    """What a child may use.

    Args:
        bytes: Memory, in addition to what the libraries take.
        seconds: Time of a processor.
    """

    bytes: int
    seconds: int


def setting(variable: str, default: int) -> int:
    """A limit from the environment, or the default; at most a week of seconds."""
    text = os.environ.get(variable, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS and int(text)):
        raise ConfigError(f"a whole number in {variable}", "something else", do="Correct it or unset it.")
    return min(int(text), _MOST.get(variable, int(text)))


class Stopped(Exception):
    """The child ended before its work did; the message says why, in a sentence."""


Answer = Callable[[Any], bytes]


def run(work: str, request: Mapping[str, Any], limits: Allowance, answer: Answer) -> Iterator[Any]:
    """Do work in a child, and give what it says, as it says it.

    Args:
        work: The function, `package.module:name`; it is called with a `Parent` and the request.
        request: Plain values for it.
        limits: What it may use.
        answer: What the child is told when it asks something.

    Raises:
        Stopped: The child needed too much, crashed, or could not be started.
    """
    own, other = _line()
    with own:
        with other:
            settings = {name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)}
            told = {"work": work, "request": dict(request), "settings": settings, **vars(limits)}
            _hand_over(json.dumps(told).encode(), other)
        yield from _listen(own, limits, answer)


def _listen(own: socket.socket, limits: Allowance, answer: Answer) -> Iterator[Any]:
    """What the child says until the server reports its end."""
    until, child, over = time.monotonic() + _PATIENCE * limits.seconds, 0, False
    try:
        while True:
            own.settimeout(max(0.01, until - time.monotonic()))
            try:
                word, value = json.loads(_receive(own))
            except TimeoutError:
                raise Stopped(_too_long(limits)) from None
            except (OSError, TypeError, ValueError, RecursionError) as error:
                raise Stopped("The process that checks it could not be started, or died.") from error
            if word == "ended":
                over = True
                if value:
                    raise Stopped(_why(value, limits))
                return
            elif (word == "child") is bool(child):  # its number comes first, and only once
                raise Stopped("The process that checks it said something that it does not say.")
            elif word == "child":
                child = _checked_child(value)
            elif word == "asks":
                told = answer(value)
                with contextlib.suppress(OSError):  # it may be gone; then its end is reported
                    _send(own, told)
            else:
                yield value
    finally:
        if child and not over:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def _checked_child(value: object) -> int:
    """The number of one process, as the child gave it; -1 and 0 are many."""
    if type(value) is not int or value <= 1:
        raise Stopped("The process that checks it said something that it does not say.")
    return value


def _why(status: int, limits: Allowance) -> str:
    if status in (-signal.SIGXCPU, -signal.SIGKILL):
        return _too_long(limits) if status == -signal.SIGXCPU else too_much(limits.bytes)
    if status == -signal.SIGINT:
        raise KeyboardInterrupt
    return f"{too_much(limits.bytes)} Or it made a library crash (status {status})."


def too_much(size: int) -> str:
    """The sentence about memory."""
    return f"It needed more than {size / 2**30:.3g} GiB of memory and was stopped; {BYTES_VARIABLE} allows more."


def _too_long(limits: Allowance) -> str:
    return f"It needed more than {limits.seconds} s and was stopped; {SECONDS_VARIABLE} allows more."


def _send(stream: socket.socket, content: bytes) -> None:
    stream.sendall(struct.pack("<Q", len(content)) + content)


def _receive(stream: socket.socket) -> bytes:
    size = struct.unpack("<Q", _exactly(stream, 8))[0]
    if size > _LONGEST:
        raise ValueError("a message that is too long")
    return _exactly(stream, size)


def _exactly(stream: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        piece = stream.recv(min(size - len(found), 1 << 20))
        if not piece:
            raise ConnectionError
        found += piece
    return bytes(found)


# The server, as its parent sees it.


@dataclass
class _Server:
    process: subprocess.Popen[bytes]
    control: socket.socket
    owner: int


_lock = threading.Lock()
_servers: list[_Server] = []


def start() -> None:
    """Start the server, so that it imports its libraries while the caller imports its own; `run` says if it cannot."""
    with _lock, contextlib.suppress(Stopped):
        _running()


def _line() -> tuple[socket.socket, socket.socket]:
    """Two ends of a line.

    Raises:
        Stopped: This process may open no more files.
    """
    try:
        return socket.socketpair()
    except OSError as error:
        raise Stopped(_not_started(error)) from error


def _not_started(error: OSError) -> str:
    return f"The process that checks it could not be started: {error.strerror or type(error).__name__}."


def _hand_over(content: bytes, other: socket.socket) -> None:
    """Give the server a piece of work, and the line on which to talk about it."""
    with _lock:
        for _ in range(2):  # it may have ended just now, with nothing to do
            server = _running()
            try:
                socket.send_fds(server.control, [struct.pack("<Q", len(content))], [other.fileno()])
                server.control.sendall(content)
                return
            except OSError:
                _stop(server)
    raise Stopped("The process that checks it could not be started.")


def _running() -> _Server:
    """The server of this process; a process that was forked from another one has its own."""
    for server in list(_servers):
        if server.owner == os.getpid() and server.process.poll() is None:
            return server
        _stop(server)
    control, theirs = _line()
    with theirs:
        try:
            process = _launched(theirs.fileno())
        except OSError as error:
            control.close()
            raise Stopped(_not_started(error)) from error
    _servers.append(_Server(process, control, os.getpid()))
    return _servers[-1]


def _launched(handle: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _START, str(Path(__file__).parents[1]), str(handle), *PRELOADED],
        pass_fds=[handle],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,  # what a library says about a hostile file is not for the terminal
        cwd="/",
        env=os.environ | _THREADS,
    )


def _stop(server: _Server) -> None:
    server.control.close()
    if server in _servers:
        _servers.remove(server)
    if server.owner == os.getpid():
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.process.wait(5)
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()


@atexit.register
def _stop_all() -> None:
    for server in list(_servers):
        if server.owner == os.getpid():
            server.process.kill()
        _stop(server)


# The server itself, and its children.


class Parent:
    """How a child talks to whoever gave it work."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line

    def say(self, value: Any) -> None:
        """Report plain values."""
        _send(self._line, json.dumps(["says", value]).encode())

    def ask(self, question: Any) -> bytes:
        """Ask something, and wait for the answer."""
        _send(self._line, json.dumps(["asks", question]).encode())
        return _receive(self._line)


def _serve(control: socket.socket) -> None:
    """Fork a child for every piece of work until the parent is gone or has had none for a while."""
    while select.select([control], [], [], _IDLE_SECONDS)[0]:
        head, lines, _, _ = socket.recv_fds(control, 8, 1)
        if len(head) < 8 or not lines:
            return
        told = json.loads(_exactly(control, struct.unpack("<Q", head)[0]))
        with socket.socket(fileno=lines[0]) as line:
            child = os.fork()
            if not child:
                control.close()
                _work(line, told)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            with contextlib.suppress(OSError):
                _send(line, json.dumps(["ended", status]).encode())


def _work(line: socket.socket, told: Mapping[str, Any]) -> None:
    """What a child does; it never returns."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        _send(line, json.dumps(["child", os.getpid()]).encode())  # before anything of others is read
        for name in [name for name in os.environ if name.startswith(_PASSED_ON)]:
            del os.environ[name]
        os.environ.update(told["settings"])
        _limit(Allowance(told["bytes"], told["seconds"]))
        module, _, name = told["work"].partition(":")
        getattr(importlib.import_module(module), name)(Parent(line), told["request"])
        code = 0
    finally:
        os._exit(code)


def _limit(limits: Allowance) -> None:
    import resource

    wanted = {resource.RLIMIT_CORE: 0, resource.RLIMIT_CPU: limits.seconds, resource.RLIMIT_AS: _size() + limits.bytes}
    for what, most in wanted.items():
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        with contextlib.suppress(ValueError, OSError):  # not every system has every limit
            resource.setrlimit(what, (most, hard))


def _size() -> int:
    """The address space that this process has now: libraries reserve far more than they use."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 8 << 30


def _nothing() -> None:
    """For a module that has nothing to warm up."""


def serve(handle: str, *preloaded: str) -> None:
    """Be the server: import the libraries, then fork a child for every piece of work that comes over a socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the child
    for name in preloaded:
        getattr(importlib.import_module(name), "warm_up", _nothing)()
    with socket.socket(fileno=int(handle)) as control:
        _serve(control)
