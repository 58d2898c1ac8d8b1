"""Sixty writers at one place: one succeeds, the others are told so, and nothing is left behind."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from airlock.bundle import Vault
from airlock.bundle.files import folder_aside, write_file
from airlock.errors import OutputError

MANY = 60


def at_once(write: Callable[[int], object]) -> Counter[str]:
    """What becomes of sixty calls that begin together: "written", or the error's message."""
    together = threading.Barrier(MANY)

    def one(number: int) -> str:
        together.wait()
        try:
            write(number)
        except OutputError as error:
            return str(error)
        return "written"

    with ThreadPoolExecutor(MANY) as pool:
        return Counter(pool.map(one, range(MANY)))


def into(target: Path, *, replace: bool) -> Callable[[int], None]:
    def write(number: int) -> None:
        with folder_aside(target, replace=replace) as aside:
            for name in ("first", "second"):
                write_file(aside / name, str(number).encode())

    return write


def test_one_bundle_is_written_and_the_others_are_refused(tmp_path: Path) -> None:
    found = at_once(into(tmp_path / "bundle", replace=False))
    assert found["written"] == 1
    assert all("another process has written meanwhile" in said for said in found if said != "written")
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_the_last_of_those_that_replace_it_stays_whole(tmp_path: Path) -> None:
    found = at_once(into(tmp_path / "bundle", replace=True))
    assert found == {"written": MANY}
    assert len({path.read_text() for path in (tmp_path / "bundle").iterdir()}) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_a_new_vault_takes_every_release_and_each_of_them_once(tmp_path: Path) -> None:
    arrays = {"teachers": {"weight": np.zeros(3, np.float32)}}
    vault = Vault.open(tmp_path / "vault")
    assert at_once(lambda number: vault.store(f"release-{number}", arrays)) == {"written": MANY}
    found = at_once(lambda number: vault.store("the-same", arrays))
    assert found["written"] == 1
    assert all("What is stored there is never replaced" in said for said in found if said != "written")
    assert set(vault.load("the-same")) == {"teachers"}


def test_no_dossier_is_lost_or_forgotten(tmp_path: Path) -> None:
    vault = Vault.open(tmp_path / "vault")
    found = at_once(lambda number: vault.store_dossier("release", {"dossier.json": str(number).encode()}))
    assert found == {"written": MANY}
    kept = [path for path in vault.dossier_folder("release").iterdir() if path.name != "index.json"]
    assert {path.read_text() for path in kept} == {str(number) for number in range(MANY)}
    assert len({sha for sha, place in vault._indexed()}) == MANY
