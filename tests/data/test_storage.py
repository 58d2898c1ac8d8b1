"""Records in a file: every kind of source gives the same split, bit for bit, and nothing is left on the disk."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from airlock.config import ReleaseConfig, SplitConfig
from airlock.data import Facts, Records, Split, content_digests, divide, limits, load
from airlock.data.limits import MEMORY, MEMORY_VARIABLE, Storage, is_on_disk, memory_bytes
from airlock.data.split import _numbered, in_order, positions
from airlock.errors import AirlockError, ConfigError, FormatError, OutputError
from tests.data.writers import config, images

PARTS = ("private", "public", "test", "holdout")
SPLIT = {"public": 0.2, "test": 0.2, "holdout": 0.2}
RNG = np.random.default_rng(0)
WHOSE = np.arange(400) % 70


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many blocks and windows, although the sets are small."""
    monkeypatch.setattr(limits, "_PIECE", 256)
    monkeypatch.setattr(limits, "_STRETCH", 1)


def npz(folder: Path, person: bool, packed: bool = True) -> ReleaseConfig:
    x = RNG.random((400, 6)).round(1)  # many rows are equal
    x[7], x[9, 0], y = x[8], np.nan, np.arange(400) % 3
    save = np.savez_compressed if packed else np.savez
    save(folder / "d.npz", x=np.asfortranarray(x) if packed else x, y=y, whose=WHOSE)
    return config(folder / "d.npz", SPLIT, records=400, classes=3, **whose(person, "whose"))


def stored(folder: Path, person: bool) -> ReleaseConfig:
    return npz(folder, person, packed=False)


def pictures_in_npz(folder: Path, person: bool) -> ReleaseConfig:
    x, y = images(400, 3, (8, 8, 3))
    np.savez(folder / "d.npz", x=x, y=y, whose=WHOSE)
    return config(folder / "d.npz", SPLIT, records=400, classes=3, **whose(person, "whose"))


def with_test(folder: Path, person: bool) -> ReleaseConfig:
    x, y = images(400, 3, (8, 8))
    np.savez(folder / "d.npz", x_train=x[:300], y_train=y[:300], x_test=x[290:], y_test=y[290:])
    return config(folder / "d.npz", {"holdout": 0.3}, records=300, test_records=100, classes=3)


def parquet(folder: Path, person: bool) -> ReleaseConfig:
    import pyarrow as pa
    import pyarrow.parquet as pq

    cells = {"age": RNG.integers(0, 140, 400), "dose": RNG.random(400), "y": np.arange(400) % 2, "who": WHOSE}
    pq.write_table(pa.table(cells), folder / "d.parquet", row_group_size=90)
    return config(folder / "d.parquet", SPLIT, **table(person))


def csv(folder: Path, person: bool) -> ReleaseConfig:
    lines = [f"{i % 97},{i / 400},{i % 2},{WHOSE[i]}" for i in range(400)]
    lines[5], lines[6] = "1,2", '"3'
    (folder / "d.csv").write_text("\n".join(["age,dose,y,who", *lines]))
    return config(folder / "d.csv", SPLIT, **table(person))


def lines(folder: Path, person: bool) -> ReleaseConfig:
    rows = [{"age": i % 97, "dose": i / 400, "y": i % 2, "who": int(WHOSE[i])} for i in range(400)]
    (folder / "d.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return config(folder / "d.jsonl", SPLIT, **table(person))


def pictures(folder: Path, person: bool) -> ReleaseConfig:
    manifest = ["file,who"]
    for i, pixels in enumerate(RNG.integers(0, 256, (60, 8, 8, 3), np.uint8)):
        (folder / "p" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / "p" / "ab"[i % 2] / f"{i}.png")
        manifest.append(f"{'ab'[i % 2]}/{i}.png,{i % 20}")
    (folder / "p" / "a" / "broken.png").write_bytes(b"no picture")
    (folder / "p" / "people.csv").write_text("\n".join(manifest))
    return config(folder / "p", SPLIT, records=60, classes=["a", "b"], shape=[3, 8, 8], **whose(person, "who", 20))


def digits(folder: Path, person: bool) -> ReleaseConfig:
    return config("digits", SPLIT)


def whose(person: bool, name: str, people: int = 70) -> dict[str, Any]:
    return {"person": name, "people": people, "records_per_person": 3} if person else {}


def table(person: bool) -> dict[str, Any]:
    columns = {"age": {"min": 0, "max": 120}, "dose": {"min": 0, "max": 1}}
    return {"records": 400, "classes": 2, "label": "y", "columns": columns, **whose(person, "who")}


OF_PEOPLE = (npz, stored, pictures_in_npz, parquet, csv, lines, pictures)
CASES = [(source, person) for person in (False, True) for source in OF_PEOPLE] + [(with_test, False), (digits, False)]


def same(one: Split, other: Split) -> None:
    assert (one.facts, one.remarks) == (other.facts, other.remarks)
    for part in PARTS:
        mine, theirs = getattr(one, part), getattr(other, part)
        assert mine.x.dtype == theirs.x.dtype
        assert mine.x.tobytes() == theirs.x.tobytes()
        assert mine.x.shape == theirs.x.shape
        assert np.array_equal(mine.y, theirs.y)
        assert (mine.person is None) == (theirs.person is None)
        assert mine.person is None or np.array_equal(mine.person, theirs.person)


@pytest.mark.parametrize(("source", "person"), CASES)
def test_a_split_from_a_file_is_that_from_memory(source: Any, person: bool, tmp_path: Path) -> None:
    asked, room = source(tmp_path, person), tmp_path / "room"
    room.mkdir()
    there = load(asked, storage=Storage(room))
    same(there, load(asked))
    assert all(is_on_disk(getattr(there, part).x) for part in PARTS if len(getattr(there, part)))
    assert not list(room.iterdir())


def test_remarks_name_the_same_rows(tmp_path: Path) -> None:
    split = load(npz(tmp_path, False), storage=Storage(tmp_path))
    assert "row 10" in " ".join(split.remarks)


@given(st.lists(st.integers(0, 6), max_size=60), st.integers(0, 3), st.integers(1, 9))
@settings(max_examples=60)
def test_rows_in_any_order(content: list[int], width: int, piece: int) -> None:
    """Also those of which some are left out, rows larger than a block, and none at all."""
    x = np.array(content, np.int16)[:, None] * np.arange(1, width + 2, dtype=np.int16)
    index = np.random.default_rng(len(content)).permutation(len(x))[: len(x) * 3 // 4]
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(limits, "_PIECE", piece)
        found = Storage(Path(folder)).take(x, index)
    assert found.dtype == x.dtype
    assert np.array_equal(found, x[index])


@given(st.lists(st.integers(0, 4), max_size=40), st.integers(0, 2**32))
def test_positions_are_what_the_text_says(content: list[int], seed: int) -> None:
    """Written down once more, record by record."""
    records = Records(np.array(content, np.float32)[:, None], np.zeros(len(content), np.int64))
    key, times, wanted = seed.to_bytes(8, "big"), dict[bytes, int](), []
    for digest in content_digests(records, key):
        number = times[digest] = times.get(digest, -1) + 1
        again = hashlib.blake2b(digest + number.to_bytes(8, "big"), digest_size=16, key=key).digest()
        wanted.append(again if number else digest)
    found, digests = positions(records, seed)
    assert [one.astype(">u8").tobytes() for one in digests] == wanted
    assert found.tolist() == [(int.from_bytes(one[:8], "big") >> 11) * 2.0**-53 for one in wanted]
    assert in_order(digests).tolist() == sorted(range(len(wanted)), key=wanted.__getitem__)
    assert np.array_equal(_numbered(digests[:0], key, b""), digests[:0])


def test_nobody_else_can_open_the_file(tmp_path: Path) -> None:
    """It has no name while it is in use, and its rows cannot be written to."""
    found = Storage(tmp_path).gather([np.ones((3, 2))], np.empty((0, 2)))
    assert not list(tmp_path.iterdir())
    assert is_on_disk(found)
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 2
    assert not is_on_disk(found[[0, 1]])
    assert not is_on_disk(Storage(tmp_path).gather([], np.empty((0, 2))))


_KILLED = """
import os, signal, sys
import numpy as np
from pathlib import Path
from airlock.data.limits import Storage
def blocks():
    yield np.ones((1000, 10))
    assert not list(Path(sys.argv[1]).iterdir())
    print("writing", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
Storage(Path(sys.argv[1])).gather(blocks(), np.empty((0, 10)))
"""


def test_a_killed_process_leaves_nothing_behind(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "writing\n"), done.stderr
    assert not list(tmp_path.iterdir())


def test_a_full_disk_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        with pytest.raises(OutputError, match=r"room for the encoded records(.|\n)*AIRLOCK_VAULT"):
            Storage(tmp_path).gather([np.ones((1000, 10))], np.empty((0, 10)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert not list(tmp_path.iterdir())
    with pytest.raises(OutputError, match="bytes of free disk"):
        limits.check_room(tmp_path, 10**18)
    limits.check_room(tmp_path, 1)


def test_a_shortened_archive_is_refused(tmp_path: Path) -> None:
    asked = stored(tmp_path, False)
    path = tmp_path / "d.npz"
    whole = path.read_bytes()
    for cut in (len(whole) // 3, len(whole) - 30):
        path.write_bytes(whole[:cut])
        with pytest.raises(AirlockError):
            load(asked, storage=Storage(tmp_path))
    path.write_bytes(whole.replace(b"\x9a\x99\x99\x99", b"\x9a\x99\x99\x98"))  # its sum no longer fits
    with pytest.raises(FormatError):
        load(asked, storage=Storage(tmp_path))
    assert list(tmp_path.iterdir()) == [path]


def test_the_limit_is_half_of_the_memory_unless_it_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(MEMORY_VARIABLE, raising=False)
    monkeypatch.setattr(limits, "_CGROUP", tmp_path / "none")
    whole = memory_bytes()
    assert whole == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    monkeypatch.setattr(limits, "_CGROUP", tmp_path / "max")
    for said, found in (("max\n", whole), ("1000\n", 500)):
        (tmp_path / "max").write_text(said)
        assert memory_bytes() == found
    monkeypatch.setenv(MEMORY_VARIABLE, "0")
    assert memory_bytes() == 0
    monkeypatch.setenv(MEMORY_VARIABLE, "all")
    with pytest.raises(ConfigError, match=MEMORY_VARIABLE):
        memory_bytes()


def test_the_size_follows_from_what_is_declared() -> None:
    table = Facts("t", (20,), ("a", "b"), 1000, None, "")
    pictures = Facts("p", (3, 8, 8), ("a", "b"), 1000, 100, "")
    assert (table.encoded_bytes, pictures.encoded_bytes) == (80_000, 1100 * 192)


def test_what_a_split_holds_in_memory_does_not_grow_with_the_width_of_a_record(tmp_path: Path) -> None:
    """The parts are one stretch of the file each."""
    x = np.zeros((500, 40), np.uint8)
    x[:, 0] = np.arange(500) % 250
    pool = Records(x, np.arange(500) % 2)
    split = divide(Facts("t", (40,), ("a", "b"), 500, None, ""), pool, None, SplitConfig(), 3, Storage(tmp_path))
    same(split, divide(split.facts, pool, None, SplitConfig(), 3, MEMORY))
    assert all(getattr(split, part).x.base is not None for part in ("private", "test", "holdout"))
