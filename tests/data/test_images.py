"""A folder of images with one subfolder a class."""

import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from airlock.data import describe, load
from airlock.errors import ConfigError, DataError

from .writers import config, write_images


def own(path, **data):
    return config(path, **({"records": 24, "classes": ["cat", "dog"], "shape": [3, 7, 9]} | data))


def told(path, **data):
    """How many records remain, and what the holder is told."""
    split = load(own(path, **data))
    return len(split.private) + len(split.test) + len(split.holdout), " ".join(split.remarks)


@pytest.mark.parametrize("end", ["png", "jpg", "bmp", "webp"])
def test_colour(tmp_path, end):
    write_images(tmp_path / "d", end=end)
    facts = describe(own(tmp_path / "d"))
    assert (facts.shape, facts.classes, facts.records) == ((3, 7, 9), ("cat", "dog"), 24)
    assert "classes are declared" in facts.origin
    split = load(own(tmp_path / "d"))
    assert split.private.x.shape[1:] == (3, 7, 9)
    assert len(split.private) + len(split.test) + len(split.holdout) == 24


def test_grey_pixels_and_labels(tmp_path):
    write_images(tmp_path / "d", "L")
    split = load(own(tmp_path / "d", classes=["dog", "cat"], shape=[1, 7, 9]))
    assert split.facts.shape == (1, 7, 9)
    assert "declared" in split.facts.origin
    wanted = {np.asarray(Image.open(file)).tobytes(): file.parent.name for file in (tmp_path / "d").rglob("*.png")}
    for part in (split.private, split.test, split.holdout):
        for x, y in zip(part.x, part.y, strict=True):
            assert wanted[x.tobytes()] == split.facts.classes[y]


@pytest.mark.parametrize("channels", [1, 3])
def test_the_declared_shape_decides_on_colour(tmp_path, channels):
    write_images(tmp_path / "d")
    for i, mode in enumerate(("L", "RGBA", "P", "LA", "1"), 3):
        Image.open(tmp_path / "d" / "cat" / f"{i:02}.png").convert(mode).save(tmp_path / "d" / "cat" / f"{i:02}.png")
    split = load(own(tmp_path / "d", shape=[channels, 7, 9]))
    assert split.private.x.shape[1:] == (channels, 7, 9)
    assert not any("left out" in remark for remark in split.remarks)


def notes(folder):
    (folder / "notes.txt").write_text("the patient")


def other_size(folder):
    Image.new("RGB", (8, 7)).save(folder / "zz.png")


def sixteen_bits(folder):
    Image.fromarray(np.zeros((7, 9), np.uint16)).save(folder / "zz.png")


def program(folder):
    (folder / "zz.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 7\n")


def cut_off(folder):
    (folder / "zz.png").write_bytes((folder / "00.png").read_bytes()[:60])


def folder_of_that_name(folder):
    (folder / "zz.png").mkdir()


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (notes, "no image (dog/{})"),
        (other_size, "not 9 x 7 pixels, as data.shape says (dog/{})"),
        (sixteen_bits, "not of 8 bits a channel (dog/{})"),
        (program, "an image that cannot be read"),
        (cut_off, "an image that cannot be read"),
        (folder_of_that_name, "no image (dog/{})"),
    ],
)
def test_a_file_that_does_not_fit_leaves_itself_out(tmp_path, spoil, said, first):
    write_images(tmp_path / "d")
    before = load(own(tmp_path / "d"))
    spoil(tmp_path / "d" / "dog")
    name = "notes.txt" if spoil is notes else "zz.png"
    if first:
        (tmp_path / "d" / "dog" / name).rename(tmp_path / "d" / "dog" / f"00-{name}")
        name = f"00-{name}"
    after = load(own(tmp_path / "d"))
    assert said.format(name) in " ".join(after.remarks)
    assert after.facts == before.facts
    for part in ("private", "test", "holdout"):
        assert np.array_equal(getattr(before, part).x, getattr(after, part).x)


def test_clutter_is_passed_over(tmp_path):
    write_images(tmp_path / "d")
    (tmp_path / "d" / ".hidden").mkdir()
    (tmp_path / "d" / "cat" / ".DS_Store").touch()
    (tmp_path / "d" / "cat" / "Thumbs.db").touch()
    assert "left out" not in told(tmp_path / "d")[1]


def test_classes_are_declared_and_other_subfolders_left_out(tmp_path):
    write_images(tmp_path / "d")
    left, remarks = told(tmp_path / "d", classes=["cat", "fox"])
    assert left == 12
    assert "12 records of" in remarks
    assert "in a subfolder that is no declared class (dog/00.png" in remarks
    assert "No private record of 'fox'" in remarks
    write_images(tmp_path / "n", classes=("0", "1", "2"))
    assert told(tmp_path / "n", classes=3)[0] == 36
    with pytest.raises(ConfigError, match=r"data\.columns"):
        describe(own(tmp_path / "d", columns={"a": ["b"]}))


def test_what_a_config_must_say(tmp_path):
    write_images(tmp_path / "d")
    with pytest.raises(ConfigError, match=r"data\.shape, for a folder of images.*shape = \[3, 32, 32\]"):
        describe(own(tmp_path / "d", shape=None))
    with pytest.raises(ConfigError, match=r"data\.classes.*subfolders would leak.*classes = \["):
        describe(own(tmp_path / "d", classes=None))
    for shape in ([2, 7, 9], [3, 7], [3, 0, 9], [3, 7, 9, 1], "3x7x9"):
        with pytest.raises(ConfigError, match=r"data\.shape"):
            own(tmp_path / "d", shape=shape)


def test_facts_do_not_depend_on_what_lies_in_the_folder(tmp_path):
    write_images(tmp_path / "d")
    write_images(tmp_path / "e", "L", classes=("fox",))
    (tmp_path / "f").mkdir()
    known = [describe(own(tmp_path / name)) for name in "def"]
    assert known[0] == known[1] == known[2]


def test_empty_folders(tmp_path):
    (tmp_path / "d").mkdir()
    assert told(tmp_path / "d")[0] == 0
    (tmp_path / "d" / "cat").mkdir()
    left, remarks = told(tmp_path / "d")
    assert left == 0
    assert "There is no private record" in remarks


def test_a_separate_test_folder(tmp_path):
    write_images(tmp_path / "d")
    write_images(tmp_path / "t", classes=("dog", "cat"))
    for file in (tmp_path / "t").rglob("*.png"):
        Image.open(file).transpose(Image.Transpose.ROTATE_180).save(file)
    split = load(own(tmp_path / "d", test=str(tmp_path / "t")))
    assert len(split.test) == 24
    write_images(tmp_path / "g", "L")  # converted to colour, as declared
    assert load(own(tmp_path / "d", test=str(tmp_path / "g"))).test.x.shape == (24, 3, 7, 9)


@pytest.mark.parametrize("side", [10_000, 20_000, 2**31 - 1])
def test_an_image_bomb(tmp_path, side):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    write_images(tmp_path / "d")
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    bomb = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    (tmp_path / "d" / "cat" / "00.png").write_bytes(bomb)
    left, remarks = told(tmp_path / "d")
    assert left == 23
    assert "cat/00.png" in remarks


def test_more_images_than_allowed(tmp_path, monkeypatch):
    write_images(tmp_path / "d")
    monkeypatch.setenv("AIRLOCK_MAX_BYTES", "1000")
    with pytest.raises(DataError, match="at most 1000 bytes"):
        load(own(tmp_path / "d"))
