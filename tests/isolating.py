"""`airlock.isolation.run` for tests that are not about child processes: the same work, in this process.

What is said goes through JSON here as well, so that what a child could not say is noticed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from airlock import isolation
from airlock.isolation import Allowance, Answer

in_a_child = isolation.run


class _Here:
    """Stands in for the line to a parent."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.said: list[Any] = []

    def say(self, value: Any) -> None:
        self.said.append(json.loads(json.dumps(value)))

    def ask(self, question: Any) -> bytes:
        return self.answer(json.loads(json.dumps(question)))


def run(work: str, request: Mapping[str, Any], limits: Allowance, answer: Answer) -> Iterator[Any]:
    """What a child would say."""
    module, _, name = work.partition(":")
    parent = _Here(answer)
    getattr(import_module(module), name)(parent, json.loads(json.dumps(dict(request))))
    yield from parent.said


# Work for a child of a test.


def asks(parent: isolation.Parent, request: Mapping[str, Any]) -> None:
    """Asks as often as it is told to, and says what it heard."""
    for number in range(request["times"]):
        parent.say(parent.ask(number).decode())


def aborts(parent: isolation.Parent, request: Mapping[str, Any]) -> None:
    """As a library does that has lost its mind."""
    parent.say("before")
    os.abort()


def spins(parent: isolation.Parent, request: Mapping[str, Any]) -> None:
    """Uses a processor and never ends."""
    parent.say("before")
    while True:
        pass


def grows(parent: isolation.Parent, request: Mapping[str, Any]) -> None:
    """Asks for more and more memory."""
    kept = []
    while True:
        kept.append(bytearray(1 << 26))


def shows(parent: isolation.Parent, request: Mapping[str, Any]) -> None:
    """The settings that reach it."""
    parent.say(os.environ.get(request["variable"]))
