"""A folder of images with one subfolder a class."""

import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from airlock.data import describe, load
from airlock.errors import ConfigError, DataError, FormatError

from .writers import config, write_images


def own(path, **data):
    return config(path, **({"records": 24} | data))


@pytest.mark.parametrize("end", ["png", "jpg", "bmp", "webp"])
def test_colour(tmp_path, end):
    write_images(tmp_path / "d", end=end)
    facts = describe(own(tmp_path / "d"))
    assert (facts.shape, facts.classes, facts.records) == ((3, 7, 9), ("cat", "dog"), 24)
    assert "names of the subfolders" in facts.origin
    split = load(own(tmp_path / "d"))
    assert split.private.x.shape[1:] == (3, 7, 9)
    assert len(split.private) + len(split.test) + len(split.holdout) == 24


def test_grey_pixels_and_labels(tmp_path):
    write_images(tmp_path / "d", "L")
    split = load(own(tmp_path / "d", classes=["dog", "cat"]))
    assert split.facts.shape == (1, 7, 9)
    assert "declared" in split.facts.origin
    wanted = {np.asarray(Image.open(file)).tobytes(): file.parent.name for file in (tmp_path / "d").rglob("*.png")}
    for part in (split.private, split.test, split.holdout):
        for x, y in zip(part.x, part.y, strict=True):
            assert wanted[x.tobytes()] == split.facts.classes[y]


def test_the_first_file_decides_on_colour(tmp_path):
    write_images(tmp_path / "d")
    for i, mode in enumerate(("L", "RGBA", "P", "LA", "1"), 3):
        Image.open(tmp_path / "d" / "cat" / f"{i:02}.png").convert(mode).save(tmp_path / "d" / "cat" / f"{i:02}.png")
    assert load(own(tmp_path / "d")).private.x.shape[1] == 3


def test_another_size_is_named(tmp_path):
    write_images(tmp_path / "d")
    Image.new("RGB", (8, 7)).save(tmp_path / "d" / "dog" / "05.png")
    with pytest.raises(DataError, match=r"9 x 7 pixels.*8 x 7 in .*05\.png.*Resize"):
        load(own(tmp_path / "d"))


def test_sixteen_bits_are_refused(tmp_path):
    write_images(tmp_path / "d")
    Image.fromarray(np.zeros((7, 9), np.uint16)).save(tmp_path / "d" / "cat" / "00.png")
    with pytest.raises(FormatError, match="8 bits a channel"):
        describe(own(tmp_path / "d"))


def test_clutter_is_passed_over_and_other_files_are_refused(tmp_path):
    write_images(tmp_path / "d")
    (tmp_path / "d" / ".hidden").mkdir()
    (tmp_path / "d" / "cat" / ".DS_Store").touch()
    (tmp_path / "d" / "cat" / "Thumbs.db").touch()
    load(own(tmp_path / "d"))
    (tmp_path / "d" / "cat" / "notes.txt").touch()
    with pytest.raises(FormatError, match=r"notes\.txt"):
        load(own(tmp_path / "d"))


def test_classes_and_subfolders(tmp_path):
    write_images(tmp_path / "d")
    with pytest.raises(ConfigError, match="'dog' missing"):
        load(own(tmp_path / "d", classes=["cat", "fox"]))
    with pytest.raises(ConfigError, match="3 subfolders"):
        load(own(tmp_path / "d", classes=3))
    assert describe(own(tmp_path / "d", classes=2)).classes == ("cat", "dog")
    with pytest.raises(DataError, match="none of 'fox'"):
        load(own(tmp_path / "d", classes=["cat", "dog", "fox"]))
    with pytest.raises(ConfigError, match=r"data\.columns"):
        describe(own(tmp_path / "d", columns={"a": ["b"]}))


def test_empty_folders(tmp_path):
    (tmp_path / "d").mkdir()
    with pytest.raises(DataError, match="one subfolder a class"):
        describe(own(tmp_path / "d"))
    (tmp_path / "d" / "cat").mkdir()
    with pytest.raises(DataError, match="at least one image"):
        describe(own(tmp_path / "d"))
    write_images(tmp_path / "e", classes=("cat",))
    with pytest.raises(DataError, match="at least two classes"):
        describe(own(tmp_path / "e"))


def test_a_separate_test_folder(tmp_path):
    write_images(tmp_path / "d")
    write_images(tmp_path / "t", classes=("dog", "cat"))
    for file in (tmp_path / "t").rglob("*.png"):
        Image.open(file).transpose(Image.Transpose.ROTATE_180).save(file)
    split = load(own(tmp_path / "d", test=str(tmp_path / "t")))
    assert len(split.test) == 24
    write_images(tmp_path / "g", "L")
    with pytest.raises(DataError, match="shape"):
        load(own(tmp_path / "d", test=str(tmp_path / "g")))


@pytest.mark.parametrize("side", [10_000, 20_000, 2**31 - 1])
def test_an_image_bomb(tmp_path, side):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    write_images(tmp_path / "d")
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    bomb = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    (tmp_path / "d" / "cat" / "00.png").write_bytes(bomb)
    with pytest.raises(FormatError, match=r"00\.png"):
        describe(own(tmp_path / "d"))


def test_more_images_than_allowed(tmp_path, monkeypatch):
    write_images(tmp_path / "d")
    monkeypatch.setenv("AIRLOCK_MAX_BYTES", "1000")
    with pytest.raises(DataError, match="at most 1000 bytes"):
        load(own(tmp_path / "d"))


def test_a_format_that_runs_programs_is_not_opened(tmp_path):
    write_images(tmp_path / "d")
    (tmp_path / "d" / "cat" / "00.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 7\n")
    with pytest.raises(FormatError, match="an image"):
        load(own(tmp_path / "d"))
