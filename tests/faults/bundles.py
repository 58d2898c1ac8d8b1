"""Catchers from tests/bundle: a test by its name, with what its fixtures would give it.

The bundle is made once, before a fault is planted, and every catcher has a copy and an empty vault of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from airlock.bundle import Vault, make_card, read, write
from airlock.bundle.signing.keys import SigningKey
from tests.bundle import test_answering, test_swapped
from tests.bundle.conftest import CONFIG, DAY, FACTS, guarantee, make_release, noise, write_own
from tests.bundle.forging import seal
from tests.bundle.signing.conftest import sign
from tests.faults.fault import Catcher, Patch

Files = Mapping[str, bytes]


@cache
def _files() -> Files:
    """Of one small release."""
    made = make_release(guarantee())
    with TemporaryDirectory() as place:
        written = write(Path(place) / "bundle", CONFIG, made, make_card(CONFIG, FACTS, made, noise(), created=DAY))
        return {path.name: path.read_bytes() for path in written.folder.iterdir()}


@cache
def _key(name: str) -> SigningKey:
    return SigningKey.generate()


def _copy(folder: Path) -> Path:
    place = folder / "bundle"
    place.mkdir()
    for name, content in _files().items():
        (place / name).write_bytes(content)
    return place


def _signed(folder: Path) -> Path:
    place = _copy(folder)
    sign(place, _key("holder"))
    return place


def _made_up(patch: Patch) -> None:
    patch.setattr("airlock.bundle.replan.tests", lambda *told: [])


# What the fixture of this name gives, in an empty folder and under a patch that is undone afterwards.
GIVEN: dict[str, Callable[[Path, Patch], object]] = {
    "tmp_path": lambda folder, patch: folder,
    "monkeypatch": lambda folder, patch: patch,
    "vault": lambda folder, patch: Vault.open(),
    "folder": lambda folder, patch: _copy(folder),
    "own": lambda folder, patch: write_own(folder / "own").folder,
    "other": lambda folder, patch: test_swapped.another(folder / "bundle"),
    "original": lambda folder, patch: read(_copy(folder)),
    "signed": lambda folder, patch: _signed(folder),
    "holder": lambda folder, patch: _key("holder"),
    "reviewer": lambda folder, patch: _key("reviewer"),
    "stranger": lambda folder, patch: _key("stranger"),
    "reseal": lambda folder, patch: seal,
    "bundle": lambda folder, patch: test_answering.bundle_in(folder),
    "toy": lambda folder, patch: (_made_up(patch), test_answering.play(patch)),
}


def of_a_bundle(function: Callable[..., Any], case: str = "", **arguments: object) -> Catcher:
    """A test of tests/bundle, or another one whose fixtures are among `GIVEN`; `arguments` are its parameters."""
    names = inspect.signature(function).parameters

    def look(prepared: object, folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AIRLOCK_VAULT", str(folder / "vault"))
            patch.setenv("AIRLOCK_TRUSTED_KEYS", str(folder / "nobody"))
            function(**{name: GIVEN[name](folder, patch) for name in names if name not in arguments}, **arguments)

    return Catcher(f"{function.__module__.split('.')[-1]}.{function.__qualname__}[{case}]", look, _files)
