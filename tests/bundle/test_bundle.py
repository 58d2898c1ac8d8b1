"""Writing: whole or not at all, and never over what is somebody else's."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import tomllib
from pathlib import Path

import pytest

from airlock.bundle import Bundle, Card, Vault, read, write
from airlock.bundle.bundle import LIMITS, PATH_REMOVED, _put, config_text
from airlock.bundle.files import write_file
from airlock.bundle.packing import packing_of
from airlock.config import ReleaseConfig, from_table
from airlock.errors import FormatError, OutputError
from airlock.methods.contract import Release

pytestmark = pytest.mark.usefixtures("fast_export")


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


ALL = sorted([*packing_of("network").required_files, "schema.json"])


def test_a_bundle_is_its_eight_files(original: Bundle):
    assert entries(original.folder) == ALL
    assert read(original.folder) == original
    assert original.card.hashes is not None


def test_sha256sum_takes_the_checksums(original: Bundle):
    done = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=original.folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(": OK") == 7


def test_existing_folder_is_refused(folder: Path, config: ReleaseConfig, release: Release, card: Card):
    before = (folder / "card.json").read_bytes()
    with pytest.raises(OutputError, match="--force"):
        write(folder, config, release, card)
    assert (folder / "card.json").read_bytes() == before


def test_force_replaces_a_bundle_and_an_empty_folder(
    folder: Path, tmp_path: Path, config: ReleaseConfig, release: Release, card: Card
):
    (folder / "README.md").unlink()  # a damaged bundle is still one
    (tmp_path / "empty").mkdir()
    for place in (folder, tmp_path / "empty"):
        write(place, config, release, card, force=True)
        assert entries(place) == ALL
    assert entries(tmp_path) == ["bundle", "empty"]


@pytest.mark.parametrize("foreign", ["thesis.tex", "card.json"])
def test_force_never_deletes_what_is_not_a_bundle(
    foreign: str, tmp_path: Path, config: ReleaseConfig, release: Release, card: Card
):
    place = tmp_path / "mine"
    place.mkdir()
    (place / foreign).write_text("{}")
    with pytest.raises(OutputError, match="neither"):
        write(place, config, release, card, force=True)
    assert (place / foreign).read_text() == "{}"


def test_force_never_deletes_a_bundle_with_something_else_in_it(
    folder: Path, config: ReleaseConfig, release: Release, card: Card
):
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match="neither"):
        write(folder, config, release, card, force=True)
    assert (folder / "notes.txt").exists()


def test_force_follows_no_link(folder: Path, tmp_path: Path, config: ReleaseConfig, release: Release, card: Card):
    link = tmp_path / "link"
    link.symlink_to(folder)
    with pytest.raises(OutputError, match="neither"):
        write(link, config, release, card, force=True)


def test_a_vault_is_no_place_for_a_bundle(vault: Vault, config: ReleaseConfig, release: Release, card: Card):
    inside = vault.checkpoint_folder("run-1") / "bundle"
    with pytest.raises(OutputError, match="never to be released"):
        write(inside, config, release, card)


FAILURES = [
    (OSError(errno.ENOSPC, "full"), OutputError, "no space left"),
    (OSError(errno.EROFS, "read-only"), OutputError, "may not be written"),
    (OSError(errno.EIO, "broken"), OutputError, "failure"),
    (KeyboardInterrupt("stop"), KeyboardInterrupt, "stop"),
]


@pytest.mark.parametrize(("failure", "raised", "says"), FAILURES, ids=["full", "read-only", "broken", "ctrl-c"])
@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
def test_a_failure_at_any_point_leaves_what_was_there(
    failure: BaseException, raised: type[BaseException], says: str, force: bool, call: str, folder: Path,
    config: ReleaseConfig, release: Release, card: Card, monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    target = folder if force else folder.parent / "new"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    _fail_late(monkeypatch, call, failure)
    with pytest.raises(raised, match=says):
        write(target, config, release, card, force=force)
    assert entries(folder.parent) == ["bundle"]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def _fail_late(monkeypatch: pytest.MonkeyPatch, call: str, failure: BaseException) -> None:
    """Let the n-th write, fsync or final rename raise."""
    count = {"left": 4}

    def counted(function):
        def wrapper(*args: object, **options: object) -> object:
            count["left"] -= 1
            if count["left"] == 0:
                raise failure
            return function(*args, **options)

        return wrapper

    if call == "write":
        monkeypatch.setattr("airlock.bundle.bundle.write_file", counted(write_file))
    elif call == "fsync":
        monkeypatch.setattr(os, "fsync", counted(os.fsync))
    else:
        original = Path.rename

        def rename(self: Path, target: Path) -> Path:
            if self.name.endswith(".part"):
                raise failure
            return original(self, target)

        monkeypatch.setattr(Path, "rename", rename)


def test_a_whole_bundle_that_a_kill_left_without_its_name_is_gone_after_the_next_write(
    original: Bundle, tmp_path: Path, config: ReleaseConfig, release: Release, card: Card
):
    """Killed when it was counted and recorded, before it was renamed: nobody would find it, and nobody should."""
    kept = {name: (original.folder / name).read_bytes() for name in entries(original.folder) if name != "SHA256SUMS"}
    child = os.fork()
    if not child:

        def die(sums: object) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        _put(tmp_path / "bundle", kept, card, force=False, shards=(), signer=None, record=die)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert entries(left) == ALL
    write(tmp_path / "bundle", config, release, card)
    assert entries(tmp_path) == ["bundle"]


def test_folder_that_may_not_be_written(
    tmp_path: Path, config: ReleaseConfig, release: Release, card: Card, monkeypatch: pytest.MonkeyPatch
):
    def refuse(self: Path, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(OutputError, match="may not be written to"):
        write(tmp_path / "x" / "bundle", config, release, card)


def test_the_card_of_another_release_is_refused(tmp_path: Path, config: ReleaseConfig, release: Release, card: Card):
    other = card.model_copy(update={"guarantee": card.guarantee.model_copy(update={"epsilon": 0.1})})
    with pytest.raises(OutputError, match="another one"):
        write(tmp_path / "bundle", config, release, other)


def test_config_is_resolved_and_names_no_path(tmp_path: Path, release: Release):
    (tmp_path / "patients.csv").write_text("")
    config = from_table(
        {
            "channel": "weights",
            "data": {"source": "patients.csv", "test": "/srv/t.csv", "name": "wards", "label": "ill", "records": 900},
            "epsilon": 3.0,
            "delta": 1e-4,
            "settings": {"steps": 5, "public": ["~/x", "C:\\data"], "deep": {"url": "s3://bucket/x", "name": "plain"}},
        },
        folder=tmp_path,
    )
    table = tomllib.loads(config_text(config, release.plan, "linear"))
    assert table["data"] == {"name": "wards", "label": "ill", "records": 900}
    assert (table["method"], table["net"]) == ("gaussian", "linear")
    assert table["settings"] == {
        "steps": 5,
        "public": [PATH_REMOVED] * 2,
        "deep": {"url": PATH_REMOVED, "name": "plain"},
    }


def test_a_named_source_keeps_its_name(tmp_path: Path, config: ReleaseConfig, release: Release):
    assert tomllib.loads(config_text(config, release.plan, "linear"))["data"] == {"source": "digits"}
    gone = from_table({"channel": "weights", "data": str(tmp_path / "gone"), "epsilon": 1.0, "delta": 1e-4})
    assert tomllib.loads(config_text(gone, release.plan, "linear"))["data"] == {}


@pytest.mark.parametrize("content", [b"", b"[]", b'{"a": NaN}', b"\xff", b'{"a":1,"a":2}', b"[" * 100_000])
def test_reading_something_else(folder: Path, content: bytes):
    (folder / "card.json").write_bytes(content)
    with pytest.raises(FormatError, match="card"):
        read(folder)


def test_reading_follows_no_link_and_has_a_limit(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(LIMITS, "card.json", 100)
    with pytest.raises(FormatError, match="at most 100 bytes"):
        read(folder)
    (folder / "card.json").rename(tmp_path / "elsewhere")
    (folder / "card.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FormatError, match="a symbolic link"):
        read(folder)
    (folder / "card.json").unlink()
    os.mkfifo(folder / "card.json")
    with pytest.raises(FormatError, match="something else"):
        read(folder)
