"""What the bench is made of: a fault, what must catch it, and what counts as caught."""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airlock.errors import AirlockError, AirlockWarning

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]
# An error of another kind is a defect of the bench: a fault that only breaks its catcher is not caught by it.
SIGNS: tuple[type[BaseException], ...] = (AssertionError, AirlockError, pytest.fail.Exception)


@dataclass(frozen=True)
class Catcher:
    """Whoever must notice a fault.

    Args:
        name: As the table prints it.
        look: Gets what `prepare` gave, and an empty folder. It says what it noticed, or raises one of `SIGNS`; None or
            an empty text means that all is well.
        prepare: Runs before a fault is planted, so that a claim is the method's own.
        long: Whether it takes long where nothing is wrong.
    """

    name: str
    look: Callable[[Any, Path], str | None]
    prepare: Callable[[], object] = lambda: None
    long: bool = False


@dataclass(frozen=True)
class Fault:
    """One line of the table.

    Args:
        name: What is wrong.
        where: Whose code it is planted into.
        plant: Plants it; undone afterwards.
        caught_by: Who must notice.
        long: Whether that takes longer than `make test` can wait for.
        accounting: Whether it makes an ε up, which then nobody else may remember.
    """

    name: str
    where: str
    plant: Plant
    caught_by: Catcher
    long: bool = False
    accounting: bool = False


def noticed(catcher: Catcher, folder: Path, fault: Fault | None = None) -> str:
    """What a catcher says with a fault planted, or without one; empty where it is content."""
    apart = _nothing_remembered(folder) if fault and fault.accounting else contextlib.nullcontext()
    with apart, warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        # The engine says that it falls back to single records; whether that is enough is what the catcher tells.
        warnings.simplefilter("ignore", AirlockWarning)
        prepared = catcher.prepare()
        if fault is not None:
            fault.plant(patch)
        try:
            return catcher.look(prepared, folder) or ""
        except SIGNS as sign:
            first = (str(sign).strip() or "it failed").splitlines()[0]
            return f"{type(sign).__name__}: {first}"


@contextlib.contextmanager
def _nothing_remembered(folder: Path) -> Iterator[None]:
    """No ε of before hides a fault, and none that a fault made up is left behind, in this process or on the disk."""
    bounded = importlib.import_module("airlock.accounting.epsilon")._bounded
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        bounded.cache_clear()
        try:
            yield
        finally:
            bounded.cache_clear()
