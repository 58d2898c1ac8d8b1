"""The Ray cluster that an ensemble is trained on: an existing one, or one started for the duration of the call.

A cluster started here runs on this machine. Connecting to it requires a secret that is drawn for it and kept in its
processes' environment; its files are in a folder readable by their owner alone and are removed afterwards; it has no
dashboard and sends no usage statistics. Between machines nothing is encrypted unless Ray's TLS is set up: records and
code cross the network in plain text.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import secrets
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from airlock.errors import ConfigError, TrainingError, install_hint

_STORE_BYTES = 150 << 20  # of the object store, in addition to records and models; Ray's minimum is 75 MB
_LONGEST_FOLDER = 30  # characters in a temporary folder's path: that of a socket below it must not exceed 107
_AUTH = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


def import_ray() -> Any:
    """The module; nothing else here imports it."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ConfigError(
            "Ray, for the engine 'ray'",
            "that it cannot be imported",
            do=f"Run: {install_hint('ray')}, or use the engine 'local'.",
        ) from error


@contextlib.contextmanager
def connected(ray: Any, address: str | None, workers: int | None, size: int) -> Iterator[None]:
    """A cluster for the duration of the call.

    Args:
        ray: The module.
        address: The address of a cluster to join; else RAY_ADDRESS in the environment; else one is started here.
        workers: The number of workers of one that is started here.
        size: Bytes of records and models that will be sent.

    Raises:
        TrainingError: There is no cluster, or it cannot be started.
    """
    if ray.is_initialized():
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    with contextlib.ExitStack() as stack:
        more = stack.enter_context(_own(workers, size)) if address == "local" else {}
        stack.enter_context(_handler_kept(signal.SIGTERM))
        try:
            with _quiet("ray"):
                ray.init(address, log_to_driver=False, configure_logging=False, logging_level=logging.ERROR, **more)
        except (ray.exceptions.RayError, OSError, RuntimeError, ValueError) as error:
            ray.shutdown()
            raise TrainingError(
                "a Ray cluster" + (" started on this machine" if address == "local" else f" at {address}"),
                f"an error ({first_line(error)})",
                do="Check the address, RAY_ADDRESS, and that both sides have the same versions of Python and Ray.",
            ) from error
        try:
            yield
        finally:
            ray.shutdown()


@contextlib.contextmanager
def _own(workers: int | None, size: int) -> Iterator[dict[str, object]]:
    """The options of a cluster started here: no reports, no dashboard, a secret, and a temporary folder."""
    root = tempfile.gettempdir() if len(tempfile.gettempdir()) <= _LONGEST_FOLDER else "/tmp"
    secret = {} if any(name in os.environ for name in _AUTH) else {"RAY_AUTH_TOKEN": secrets.token_hex(32)}
    with (
        tempfile.TemporaryDirectory(prefix="airlock-", dir=root, ignore_cleanup_errors=True) as folder,
        _environment({"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", **secret}),
    ):
        _forget_secret()
        yield {
            "num_cpus": workers or _cores(),
            "object_store_memory": _STORE_BYTES + size + size // 10,
            "include_dashboard": False,
            "_temp_dir": str(Path(folder) / "r"),  # Ray makes it world-readable; its parent folder is not
        }
    _forget_secret()


def _forget_secret() -> None:
    """Ray reads its token once per process; the next cluster has another."""
    with contextlib.suppress(ImportError, AttributeError):
        importlib.import_module("ray._raylet").AuthenticationTokenLoader.instance().reset_cache()


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    names = {*values, *_AUTH}
    before = {name: os.environ[name] for name in names if name in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in names:
            os.environ.pop(name, None)
        os.environ.update(before)


@contextlib.contextmanager
def _handler_kept(number: signal.Signals) -> Iterator[None]:
    """Restore the signal handler, which Ray replaces by its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(number)
    try:
        yield
    finally:
        signal.signal(number, before)


@contextlib.contextmanager
def _quiet(name: str) -> Iterator[None]:
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def slots(ray: Any, gpus: float, what: str) -> int:
    """How many tasks the cluster can work on at once.

    Args:
        ray: The module, connected.
        gpus: GPUs of each task, possibly a fraction.
        what: What a task is called, for the error.

    Raises:
        TrainingError: None.
    """
    there = ray.cluster_resources()
    found = int(there.get("GPU", 0) / gpus) if gpus else int(there.get("CPU", 0))
    if found < 1 or there.get("CPU", 0) < 1:
        raise TrainingError(
            f"a Ray cluster with a core{f' and {gpus:g} GPUs' if gpus else ''} for every {what}",
            f"one with {there.get('CPU', 0):g} cores and {there.get('GPU', 0):g} GPUs",
            f"A {what} would wait forever.",
        )
    return found


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def first_line(error: BaseException) -> str:
    """The type of an error, and the first line of its message."""
    return f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]
