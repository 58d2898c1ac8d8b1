"""Waiting for something to happen rather than for some time to pass: the limit only ends a test that hangs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LONG = 900.0  # seconds; far beyond what the slowest machine takes, so that only a test that hangs is ended


def wait_until(met: Callable[[], T], what: str, every: float = 0.01) -> T:
    """Ask again and again until the answer is true, and give it; `what` says what did not happen."""
    last = time.monotonic() + LONG
    while not (answer := met()):
        assert time.monotonic() < last, f"{LONG:g} seconds, and not yet {what}"
        time.sleep(every)
    return answer
