"""The vault: its owner's alone, marked, and known by hash."""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from airlock.bundle import Vault
from airlock.bundle.files import write_file
from airlock.bundle.vault import MARKER, ReleaseRecord
from airlock.errors import FormatError, OutputError

ID = "0123456789abcdef" * 2
SECRETS = {"teachers": {"weight": np.arange(6.0, dtype=np.float32).reshape(2, 3)[:, ::-1]}, "seed": {"x": np.ones(2)}}


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest):
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("umask")
def test_only_the_owner_may_read(vault: Vault):
    folder = vault.store(ID, SECRETS)
    checkpoints = vault.checkpoint_folder("run-1")
    assert {mode(path) for path in (vault.root, folder, checkpoints, checkpoints.parent)} == {0o700}
    assert {mode(path) for path in vault.root.rglob("*") if path.is_file()} == {0o600}


def test_loose_permissions_are_tightened(vault: Vault):
    vault.root.mkdir(mode=0o755)
    vault.root.chmod(0o755)
    vault.store(ID, SECRETS)
    assert mode(vault.root) == 0o700


def test_arrays_come_back(vault: Vault):
    folder = vault.store(ID, SECRETS)
    loaded = safetensors.numpy.load_file(folder / "teachers.safetensors")
    np.testing.assert_array_equal(loaded["weight"], SECRETS["teachers"]["weight"])


@contextlib.contextmanager
def full_disk(most: int) -> Iterator[None]:
    """No file can be longer than this many bytes: a real write fails half-way."""
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_leaves_nothing_half_written(vault: Vault):
    vault.store("first", SECRETS)
    before = {path: path.read_bytes() for path in vault.root.rglob("*") if path.is_file()}
    large = {"small": {"x": np.ones(2)}, "head": {"weight": np.zeros(10_000)}}
    record = ReleaseRecord(release_id=ID, channel="answers", method="votes", interface=None, files={"x" * 9000: "y"})
    with full_disk(4096):
        for stores in (
            lambda: vault.store(ID, large),
            lambda: vault.record(record),
            lambda: vault.store_dossier(ID, {"dossier.json": b"x" * 9000}),
        ):
            with pytest.raises(OutputError, match="Nothing half-written was kept"):
                stores()
    assert {path: path.read_bytes() for path in vault.root.rglob("*") if path.is_file()} == before
    assert vault.recorded(ID) is None
    vault.store(ID, large)  # when there is space again
    vault.record(record)
    assert set(vault.load(ID)) == {"small", "head"}
    assert vault.recorded(ID) == record


def test_a_process_that_dies_while_it_writes_leaves_no_file_of_that_name(tmp_path: Path):
    """SIGXFSZ kills it in the middle of the write."""
    child = os.fork()
    if not child:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        write_file(tmp_path / "head.safetensors", b"x" * 9000)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGXFSZ
    assert [path.suffix for path in tmp_path.iterdir()] == [".part"]


def test_a_new_file_takes_no_others_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "there").write_text("first")
    (tmp_path / "link").symlink_to(tmp_path / "there")
    for name in ("there", "link"):
        with pytest.raises(FileExistsError):
            write_file(tmp_path / name, b"second")
    monkeypatch.setattr(os, "link", lambda *args, **options: (_ for _ in ()).throw(PermissionError()))
    with pytest.raises(PermissionError):
        write_file(tmp_path / "there", b"second")  # on a disk without hard links
    write_file(tmp_path / "new", b"second", 0o600)
    assert {path.name for path in tmp_path.iterdir()} == {"there", "link", "new"}
    assert (tmp_path / "there").read_text() == "first"


def test_marker_says_what_it_is(vault: Vault):
    vault.checkpoint_folder("run-1")
    assert (vault.root / MARKER).read_text().startswith("NEVER RELEASE")


def test_hashes_cover_everything_also_what_is_gone(vault: Vault):
    folder = vault.store(ID, SECRETS)
    checkpoint = vault.checkpoint_folder("run-1") / "step.safetensors"
    checkpoint.write_bytes(b"unfinished")
    gone = hashlib.sha256((folder / "seed.safetensors").read_bytes()).hexdigest()
    (folder / "seed.safetensors").unlink()
    found = vault.hashes()
    assert found[gone] == f"{ID}/seed.safetensors"
    assert found[hashlib.sha256(b"unfinished").hexdigest()] == "checkpoints/run-1/step.safetensors"
    assert set(found.values()) >= {f"{ID}/teachers.safetensors", MARKER}
    assert hashlib.sha256(b"unfinished").hexdigest() not in vault.hashes({1})


def test_an_unopened_vault_holds_nothing_and_is_not_created(vault: Vault):
    assert vault.hashes() == {}
    assert not vault.root.exists()


@pytest.mark.parametrize("name", ["../out", "a/b", "", ".hidden", "index.json", MARKER, "x" * 200])
def test_names_stay_inside(vault: Vault, name: str):
    with pytest.raises(OutputError, match="plain name"):
        vault.checkpoint_folder(name)
    with pytest.raises(OutputError, match="plain name"):
        vault.store(ID, {name: {}})


def test_nothing_is_replaced(vault: Vault):
    vault.store(ID, SECRETS)
    with pytest.raises(OutputError, match="never replaced"):
        vault.store(ID, SECRETS)


def test_broken_index_is_not_silently_passed_over(vault: Vault):
    (vault.store(ID, SECRETS) / "index.json").write_text("{")
    with pytest.raises(FormatError, match="index"):
        vault.hashes()


def test_place_by_argument_variable_and_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert Vault.open(tmp_path / "mine").root == tmp_path / "mine"
    monkeypatch.setenv("AIRLOCK_VAULT", str(tmp_path / "named"))
    assert Vault.open().root == tmp_path / "named"
    monkeypatch.delenv("AIRLOCK_VAULT")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    assert Vault.open().root == tmp_path / "share" / "airlock" / "vault"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Vault.open().root == tmp_path / ".local" / "share" / "airlock" / "vault"


def test_full_disk_is_an_output_error(vault: Vault, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("airlock.bundle.vault.write_file", full)
    with pytest.raises(OutputError, match="no space left"):
        vault.store(ID, SECRETS)


def test_remarks_are_kept_beside_the_arrays_and_read_back(vault: Vault):
    told = ("3 records left out (rows 1, 2, 3).", "No private record of 'caf\u00e9'.")
    folder = vault.store(ID, SECRETS, told)
    assert vault.remarks(ID) == told
    assert mode(folder / "remarks.json") == 0o600
    assert set(vault.load(ID)) == set(SECRETS)
    (folder / "remarks.json").unlink()
    assert any(place.endswith("remarks.json") for place in vault.hashes().values())  # known also when it is gone


def test_without_remarks_there_is_no_file(vault: Vault):
    folder = vault.store(ID, SECRETS)
    assert not (folder / "remarks.json").exists()
    assert vault.remarks(ID) == ()
