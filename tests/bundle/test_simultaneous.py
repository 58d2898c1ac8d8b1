"""Sixty writers at one place: one succeeds, the others are told so, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from airlock.bundle import Vault
from airlock.bundle.files import folder_aside, sweep, write_file
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


# Killed ones.


def writing(target: Path) -> int:
    """A process that has written all of a folder but its name, and waits."""
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        with folder_aside(target) as aside:
            write_file(aside / "first", b"whole")
            os.write(tell, b"w")
            signal.pause()
    os.close(tell)
    assert os.read(told, 1) == b"w"
    os.close(told)
    return child


def killed(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


def hidden(folder: Path) -> list[Path]:
    return sorted(folder.glob(".*"))


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_writes_is_not(tmp_path: Path) -> None:
    target = tmp_path / "bundle"
    dead, living, elsewhere = writing(target), writing(target), writing(tmp_path / "bundles")
    (tmp_path / ".bundle.deadbeef.part").write_text("a file")
    (tmp_path / ".bundle.mine.part").mkdir()
    kept = {".bundle.deadbeef.part", ".bundle.mine.part"}
    try:
        killed(dead)
        assert len(hidden(tmp_path)) == 5
        sweep(target)
        assert len(hidden(tmp_path)) == 4, "of the one that was killed alone"
        into(target, replace=False)(1)
        assert len(hidden(tmp_path)) == 4
    finally:
        killed(living)
    with pytest.raises(OutputError, match="another process has written meanwhile"):
        into(target, replace=False)(2)
    assert len(hidden(tmp_path)) == 3, "that of another place stays"
    killed(elsewhere)
    sweep(tmp_path / "bundles")
    assert {path.name for path in hidden(tmp_path)} == kept
    assert (target / "first").read_text() == "1"
    sweep(tmp_path / "nowhere" / "bundle")


def test_a_folder_that_a_killed_replacement_moved_away_comes_back(tmp_path: Path) -> None:
    target = tmp_path / "bundle"
    into(target, replace=False)(1)
    child = os.fork()
    if not child:
        rename = Path.rename

        def killing(self: Path, to: Path) -> Path:
            return rename(self, to) if self == target else os.kill(os.getpid(), signal.SIGKILL)  # type: ignore

        Path.rename = killing  # type: ignore[method-assign, assignment]
        into(target, replace=True)(2)
    os.waitpid(child, 0)
    assert not target.exists()
    assert len(hidden(tmp_path)) == 2
    sweep(target)
    assert (target / "first").read_text() == "1"
    assert hidden(tmp_path) == []
    (tmp_path / ".bundle.01234567.old").mkdir()  # the new one is in its place, and the old one was not yet removed
    sweep(target)
    assert hidden(tmp_path) == []


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
