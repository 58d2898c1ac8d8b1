"""The user's own arrays, and the checks that every load must pass."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from airlock.config import from_table
from airlock.data import describe, load
from airlock.data.npz import arrange, record_shape
from airlock.errors import ConfigError, DataError, FormatError

from .writers import config, images, write_images

RNG = np.random.default_rng(0)
X, Y = RNG.random((60, 5)), np.arange(60) % 3


def save(path, **arrays):
    np.savez(path, **arrays)
    return path


def own(path, **data):
    return config(path, **({"records": 50, "classes": 3} | data))


def told(tmp_path, x=X, y=Y, **data):
    """Loading x and y works: what remains, and what the holder is told."""
    split = load(own(save(tmp_path / "d.npz", x=x, y=y), **data))
    return sum(len(part) for part in (split.private, split.test, split.holdout)), " ".join(split.remarks)


def refused(error, match, tmp_path, x=X, y=Y, **data):
    """Loading x and y is refused with this message."""
    with pytest.raises(error, match=match) as caught:
        load(own(save(tmp_path / "d.npz", x=x, y=y), **data))
    return caught


def test_features(tmp_path):
    split = load(own(save(tmp_path / "d.npz", x=X, y=Y)))
    assert split.facts.shape == (5,)
    assert split.facts.classes == ("0", "1", "2")
    assert split.facts.records == 50
    assert split.private.x.dtype == np.float32
    assert sum(len(part) for part in (split.private, split.public, split.test, split.holdout)) == 60


def test_facts_hold_nothing_of_the_records_and_no_file_name(tmp_path):
    facts = describe(own(save(tmp_path / "ward7.npz", x=X, y=Y)))
    other = describe(own(save(tmp_path / "other.npz", x=X[:9] * 2, y=Y[:9])))
    assert facts == other
    assert "ward7" not in str(facts)
    assert facts.name == "private data"
    assert describe(own(tmp_path / "ward7.npz", name="Ward")).name == "Ward"


def test_a_path_alone_is_a_source(tmp_path):
    path = save(tmp_path / "d.npz", x=X, y=Y)
    with pytest.raises(ConfigError, match=r"data\.records"):
        load(from_table({"channel": "weights", "data": str(path), "epsilon": 1, "delta": 1e-5}))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((40, 28, 28), (1, 28, 28)),
        ((40, 32, 30, 3), (3, 32, 30)),
        ((40, 32, 30, 1), (1, 32, 30)),
        ((40, 3, 32, 30), (3, 32, 30)),
        ((40, 1, 32, 30), (1, 32, 30)),
        ((40, 3, 32, 3), (3, 3, 32)),  # the last axis goes first
    ],
)
def test_images(tmp_path, shape, expected):
    x, y = images(shape[0], 2, shape[1:])
    cfg = own(save(tmp_path / "d.npz", x=x, y=y), classes=["no", "yes"])
    assert describe(cfg).shape == expected
    split = load(cfg)
    assert split.private.x.shape[1:] == expected
    assert split.private.x.dtype == np.uint8


@given(st.integers(1, 4), st.sampled_from([1, 3]), st.integers(4, 9), st.integers(4, 9))
@settings(max_examples=30, deadline=None)
def test_both_orders_of_channels_come_out_the_same(count, channels, height, width):
    x = RNG.integers(0, 256, (count, channels, height, width), dtype=np.uint8)
    assert np.array_equal(arrange(x, "x"), x)
    assert np.array_equal(arrange(x.transpose(0, 2, 3, 1), "x"), x)


@pytest.mark.parametrize("shape", [(6, 28, 28, 4), (6, 2, 28, 28), (6,), (6, 1, 1, 3, 3), (), (6, 0, 4), (6, 0)])
def test_odd_shapes_are_refused(tmp_path, shape):
    refused(DataError, "Expected images", tmp_path, np.zeros(shape, np.uint8), Y[:6])


def test_float_images_are_refused(tmp_path):
    refused(DataError, "images as uint8", tmp_path, np.zeros((60, 8, 8), np.float32))


def test_text_is_refused(tmp_path):
    refused(DataError, "Expected images", tmp_path, np.full((60, 2), "a"))
    refused(DataError, "whole numbers as labels", tmp_path, y=np.full(60, "a"))


def test_fortran_order_and_other_endianness(tmp_path):
    x = np.asfortranarray(X.astype(">f8"))
    one = load(own(save(tmp_path / "a.npz", x=x, y=Y.astype(">i2"))))
    other = load(own(save(tmp_path / "b.npz", x=X, y=Y)))
    assert np.array_equal(one.private.x, other.private.x)
    assert np.array_equal(one.private.y, other.private.y)


def test_labels_may_be_a_column_or_bits(tmp_path):
    assert load(own(save(tmp_path / "a.npz", x=X, y=Y[:, None]))).private.y.ndim == 1
    assert set(load(own(save(tmp_path / "b.npz", x=X, y=Y > 0), classes=2)).private.y) == {0, 1}


def test_test_records_in_the_file_or_in_another(tmp_path):
    inside = load(own(save(tmp_path / "a.npz", x_train=X, y_train=Y, x_test=X[:7] + 1, y_test=Y[:7])))
    beside = load(own(save(tmp_path / "b.npz", x=X, y=Y), test=str(save(tmp_path / "c.npz", x=X[:7] + 1, y=Y[:7]))))
    assert len(inside.test) == len(beside.test) == 7
    assert inside.facts.test_records == 10  # a public figure: records times split.test
    assert describe(own(tmp_path / "a.npz", test_records=8)).test_records == 8
    assert np.array_equal(inside.private.x, beside.private.x)
    with pytest.raises(ConfigError, match="in one place"):
        describe(own(tmp_path / "a.npz", test=str(tmp_path / "c.npz")))
    with pytest.raises(ConfigError, match=r"data\.test"):
        describe(own(tmp_path / "b.npz", test=str(tmp_path / "none.npz")))
    with pytest.raises(ConfigError, match="to be a npz file"):
        describe(own(tmp_path / "b.npz", test=str(tmp_path)))


@pytest.mark.parametrize(
    "names", [("a", "b"), ("x", "labels"), ("x_train", "y"), ("x", "y", "x_train"), ("x", "y", "y_test")]
)
def test_other_names_are_refused(tmp_path, names):
    with pytest.raises(FormatError, match="arrays named x and y"):
        load(own(save(tmp_path / "d.npz", **dict.fromkeys(names, X))))


def test_what_a_config_must_say(tmp_path):
    path = save(tmp_path / "d.npz", x=X, y=Y)
    with pytest.raises(ConfigError, match=r"round figure\. It need not be exact"):
        describe(config(path, classes=3))
    with pytest.raises(ConfigError, match=r"data\.classes"):
        describe(config(path, records=50))
    with pytest.raises(ConfigError, match=r"data\.shape only for a folder of images"):
        describe(own(path, shape=[1, 5, 1]))
    with pytest.raises(ConfigError, match=r"data\.test_records .*split\.test"):
        describe(own(path, test_records=9))
    with pytest.raises(ConfigError, match=r"data\.label"):
        describe(own(path, label="y"))
    with pytest.raises(ConfigError, match="100000"):
        describe(own(path, classes=10**9))
    (tmp_path / "d.xlsx").touch()
    with pytest.raises(ConfigError, match="Convert the data"):
        describe(own(tmp_path / "d.xlsx"))


# the checks of every load


def test_lengths_differ(tmp_path):
    refused(DataError, "more inputs", tmp_path, y=Y[:59])


def test_labels_are_not_numbers(tmp_path):
    refused(DataError, "whole numbers as labels", tmp_path, y=Y.astype(str))


@pytest.mark.parametrize("bad", [np.nan, 1.5, -np.inf, 1e300])
def test_one_label_with_a_point_gives_all_others_one_and_costs_itself_alone(tmp_path, bad):
    """Numpy has one type for an array: where a label is missing, 2 is 2.0 everywhere."""
    y = Y.astype(float)
    y[41] = bad
    left, remarks = told(tmp_path, y=y)
    assert left == 59
    assert "a label outside 0 to 2, of 3 declared classes (row 42)" in remarks


@pytest.mark.parametrize("bad", [-17, 3333, 2**40])
def test_a_label_out_of_range_leaves_its_record_out(tmp_path, bad):
    y = Y.copy()
    y[41] = bad
    left, remarks = told(tmp_path, y=y)
    assert left == 59
    assert "1 record of" in remarks
    assert "left out: a label outside 0 to 2, of 3 declared classes (row 42)" in remarks
    assert str(bad) not in remarks.replace(str(tmp_path), "")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300, 123456789.0])
def test_numbers_that_spoil_gradients_leave_their_record_out(tmp_path, bad):
    x = X.copy()
    x[17, 2] = bad
    left, remarks = told(tmp_path, x=x)
    assert left == 59
    assert "left out: a number that is NaN, infinite or beyond ±1e+06 (row 18)" in remarks
    assert "123456789" not in remarks


def test_of_many_records_a_few_rows_and_the_number_are_told(tmp_path):
    left, remarks = told(tmp_path, x=np.where(Y[:, None] == 1, np.nan, X))
    assert left == 40
    assert "20 records of" in remarks
    assert "(rows 2, 5, 8, 11, 14 and 15 more)" in remarks


def test_a_class_without_private_records_is_told_and_ends_nothing(tmp_path):
    left, remarks = told(tmp_path, classes=["red", "green", "blue", "purple"])
    assert left == 60
    assert "No private record of 'purple'" in remarks
    assert "and 2 more" in told(tmp_path, classes=10)[1]


def test_a_single_class_is_told_and_none_declared_is_refused(tmp_path):
    refused(DataError, "at least two classes", tmp_path, classes=1)
    refused(DataError, "at least two classes", tmp_path, classes=["only"])
    refused(DataError, "every class name once", tmp_path, classes=["a", "a", "b"])
    assert "All records are of one class" in told(tmp_path, y=Y * 0)[1]


@pytest.mark.parametrize("x", [X[:0], np.zeros((0, 8, 8), np.uint8), np.zeros((0, 3, 8, 8), np.uint8)])
def test_zero_records(tmp_path, x):
    left, remarks = told(tmp_path, x=x, y=Y[:0])
    assert left == 0
    assert "There is no private record" in remarks


def test_records_in_both_files_are_told_and_stay(tmp_path):
    test = str(save(tmp_path / "t.npz", x=X[:7], y=Y[:7]))
    split = load(own(save(tmp_path / "d.npz", x=X, y=Y), test=test))
    assert (len(split.private) + len(split.holdout), len(split.test)) == (60, 7)
    assert "7 records also appear in the test set" in " ".join(split.remarks)


cell = st.sampled_from([0.5, 0.25, np.nan, np.inf, -1e9, 3.0])
one_row = st.tuples(st.tuples(cell, cell), st.integers(-1, 4))


@given(st.lists(one_row, max_size=8), one_row, st.integers(0, 8))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whether_a_record_is_kept_depends_on_it_alone(tmp_path, rows, more, at):
    """With one record more anywhere, of whatever kind, every part has what it had, and at most that one more."""

    def parts(rows):
        x, y = np.array([x for x, _ in rows]).reshape(-1, 2), np.array([y for _, y in rows], np.int64)
        split = load(own(save(tmp_path / "d.npz", x=x, y=y)))
        return [[(x.tobytes(), int(y)) for x, y in zip(part.x, part.y, strict=True)]
                for part in (split.private, split.test, split.holdout)]  # fmt: skip

    before, after = parts(rows), parts([*rows[:at], more, *rows[at:]])
    assert sum(Counter(b) != Counter(a) for b, a in zip(before, after, strict=True)) <= 1
    assert all(not Counter(b) - Counter(a) for b, a in zip(before, after, strict=True))
    fits = all(abs(n) <= 1e6 for n in more[0]) and 0 <= more[1] < 3
    assert sum(map(len, after)) - sum(map(len, before)) == fits


def test_pickled_arrays_are_refused(tmp_path):
    refused(FormatError, "pickled objects", tmp_path, x=np.array([[{}, 1]] * 60, object))
    refused(FormatError, "pickled objects", tmp_path, y=np.array([1] * 60, object))


def test_no_remark_shows_a_value_and_no_split_a_remark(tmp_path):
    split = load(own(save(tmp_path / "d.npz", x=np.where(X[0, 0] == X, 987654321.0, X), y=Y)))
    assert "row 1" in split.remarks[0]
    assert "987654321" not in "".join(split.remarks)
    assert "row 1" not in repr(split)


# hostile npz files


def zipped(path, header, data, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name in ("x.npy", "y.npy"):
            with archive.open(name, "w") as member:
                np.lib.format.write_array_header_1_0(member, header)
                member.write(data)
    return path


def header(shape, descr="|u1"):
    return {"descr": descr, "fortran_order": False, "shape": shape}


@pytest.mark.parametrize("shape", [(10**6, 10**6), (2**62, 8), (11, 1), (9, 1), (-1, -10)])
def test_header_and_size_must_agree(tmp_path, shape):
    with pytest.raises(FormatError, match="fits its size"):
        load(own(zipped(tmp_path / "d.npz", header(shape), bytes(10))))


def test_zip_bomb(tmp_path):
    path = zipped(tmp_path / "d.npz", header((200_000_000, 1)), bytes(200_000_000))
    assert path.stat().st_size < 1_000_000
    with pytest.raises(FormatError, match="compression ratio of at most 500:1"):
        describe(own(path))


def test_more_bytes_than_allowed(tmp_path, monkeypatch):
    path = save(tmp_path / "d.npz", x=X, y=Y)
    monkeypatch.setenv("AIRLOCK_MAX_BYTES", "1000")
    with pytest.raises(DataError, match="AIRLOCK_MAX_BYTES"):
        load(own(path))
    monkeypatch.setenv("AIRLOCK_MAX_BYTES", "lots")
    with pytest.raises(ConfigError, match="AIRLOCK_MAX_BYTES"):
        load(own(path))


def test_a_zip_directory_that_lies(tmp_path):
    path = save(tmp_path / "d.npz", x=X, y=Y)
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\x01\x02")
    data[at + 20 : at + 24] = (2**31).to_bytes(4, "little")
    path.write_bytes(bytes(data))
    with pytest.raises(FormatError):
        load(own(path))


def test_not_a_zip_at_all(tmp_path):
    for content in (b"", b"PK\x03\x04", b"\x93NUMPY"):
        (tmp_path / "d.npz").write_bytes(content)
        with pytest.raises(FormatError, match=r"d\.npz"):
            describe(own(tmp_path / "d.npz"))


@given(
    st.lists(st.integers(0, 5), max_size=5).map(tuple), st.sampled_from(["u1", "f4", "i8", "b1", "U3", "c8", "M8[s]"])
)
@settings(max_examples=100, deadline=None)
def test_any_shape_and_type_has_an_answer(shape, dtype):
    try:
        inner = record_shape(shape, np.dtype(dtype), "x")
    except DataError:
        return
    assert len(inner) in (1, 3)
    assert arrange(np.zeros(shape, dtype), "x").shape == (shape[0], *inner)


# A folder of images.


def image_config(path, **data):
    return config(path, **({"records": 24, "classes": ["cat", "dog"], "shape": [3, 7, 9]} | data))


def told_of_images(path, **data):
    """How many records remain, and what the holder is told."""
    split = load(image_config(path, **data))
    return len(split.private) + len(split.test) + len(split.holdout), " ".join(split.remarks)


@pytest.mark.parametrize("end", ["png", "jpg", "bmp", "webp"])
def test_colour(tmp_path, end):
    write_images(tmp_path / "d", end=end)
    facts = describe(image_config(tmp_path / "d"))
    assert (facts.shape, facts.classes, facts.records) == ((3, 7, 9), ("cat", "dog"), 24)
    assert "classes are declared" in facts.origin
    split = load(image_config(tmp_path / "d"))
    assert split.private.x.shape[1:] == (3, 7, 9)
    assert len(split.private) + len(split.test) + len(split.holdout) == 24


def test_grey_pixels_and_labels(tmp_path):
    write_images(tmp_path / "d", "L")
    split = load(image_config(tmp_path / "d", classes=["dog", "cat"], shape=[1, 7, 9]))
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
    split = load(image_config(tmp_path / "d", shape=[channels, 7, 9]))
    assert split.private.x.shape[1:] == (channels, 7, 9)
    assert not any("left out" in remark for remark in split.remarks)


@pytest.mark.parametrize("name", ["00-first.png", "zz-last.png"])
def test_one_colour_file_among_grey_ones_changes_itself_alone(tmp_path, name):
    write_images(tmp_path / "d", "L")
    before = load(image_config(tmp_path / "d", shape=[1, 7, 9]))
    Image.new("RGB", (9, 7), (10, 200, 90)).save(tmp_path / "d" / "cat" / name)  # the first, or the last, that is read
    after = load(image_config(tmp_path / "d", shape=[1, 7, 9]))
    assert after.facts == before.facts
    kept = {x.tobytes() for part in ("private", "test", "holdout") for x in getattr(before, part).x}
    found = [x.tobytes() for part in ("private", "test", "holdout") for x in getattr(after, part).x]
    assert len(found) == 25
    assert kept < set(found)


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
        (notes, "not an image (dog/{})"),
        (other_size, "not 9 x 7 pixels, the size in data.shape (dog/{})"),
        (sixteen_bits, "does not have 8 bits per channel (dog/{})"),
        (program, "an image that cannot be read"),
        (cut_off, "an image that cannot be read"),
        (folder_of_that_name, "not an image (dog/{})"),
    ],
)
def test_a_file_that_does_not_fit_leaves_itself_out(tmp_path, spoil, said, first):
    write_images(tmp_path / "d")
    before = load(image_config(tmp_path / "d"))
    spoil(tmp_path / "d" / "dog")
    name = "notes.txt" if spoil is notes else "zz.png"
    if first:
        (tmp_path / "d" / "dog" / name).rename(tmp_path / "d" / "dog" / f"00-{name}")
        name = f"00-{name}"
    after = load(image_config(tmp_path / "d"))
    assert said.format(name) in " ".join(after.remarks)
    assert after.facts == before.facts
    for part in ("private", "test", "holdout"):
        assert np.array_equal(getattr(before, part).x, getattr(after, part).x)


def test_clutter_is_passed_over(tmp_path):
    write_images(tmp_path / "d")
    (tmp_path / "d" / ".hidden").mkdir()
    (tmp_path / "d" / "cat" / ".DS_Store").touch()
    (tmp_path / "d" / "cat" / "Thumbs.db").touch()
    assert "left out" not in told_of_images(tmp_path / "d")[1]


def test_classes_are_declared_and_other_subfolders_left_out(tmp_path):
    write_images(tmp_path / "d")
    left, remarks = told_of_images(tmp_path / "d", classes=["cat", "fox"])
    assert left == 12
    assert "12 records of" in remarks
    assert "in a subfolder that is not a declared class (dog/00.png" in remarks
    assert "No private record of 'fox'" in remarks
    write_images(tmp_path / "n", classes=("0", "1", "2"))
    assert told_of_images(tmp_path / "n", classes=3)[0] == 36
    with pytest.raises(ConfigError, match=r"data\.columns"):
        describe(image_config(tmp_path / "d", columns={"a": ["b"]}))


def test_what_a_config_must_say_of_images(tmp_path):
    write_images(tmp_path / "d")
    with pytest.raises(ConfigError, match=r"data\.shape, for a folder of images.*shape = \[3, 32, 32\]"):
        describe(image_config(tmp_path / "d", shape=None))
    with pytest.raises(ConfigError, match=r"data\.classes.*subfolders would leak.*classes = \["):
        describe(image_config(tmp_path / "d", classes=None))
    for shape in ([2, 7, 9], [3, 7], [3, 0, 9], [3, 7, 9, 1], "3x7x9"):
        with pytest.raises(ConfigError, match=r"data\.shape"):
            image_config(tmp_path / "d", shape=shape)


def test_facts_do_not_depend_on_what_lies_in_the_folder(tmp_path):
    write_images(tmp_path / "d")
    write_images(tmp_path / "e", "L", classes=("fox",))
    (tmp_path / "f").mkdir()
    known = [describe(image_config(tmp_path / name)) for name in "def"]
    assert known[0] == known[1] == known[2]


def test_empty_folders(tmp_path):
    (tmp_path / "d").mkdir()
    assert told_of_images(tmp_path / "d")[0] == 0
    (tmp_path / "d" / "cat").mkdir()
    left, remarks = told_of_images(tmp_path / "d")
    assert left == 0
    assert "There is no private record" in remarks


def test_a_separate_test_folder(tmp_path):
    write_images(tmp_path / "d")
    write_images(tmp_path / "t", classes=("dog", "cat"))
    for file in (tmp_path / "t").rglob("*.png"):
        Image.open(file).transpose(Image.Transpose.ROTATE_180).save(file)
    split = load(image_config(tmp_path / "d", test=str(tmp_path / "t")))
    assert len(split.test) == 24
    write_images(tmp_path / "g", "L")  # converted to colour, as declared
    assert load(image_config(tmp_path / "d", test=str(tmp_path / "g"))).test.x.shape == (24, 3, 7, 9)


@pytest.mark.parametrize("side", [10_000, 20_000, 2**31 - 1])
def test_an_image_bomb(tmp_path, side):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    write_images(tmp_path / "d")
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    bomb = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    (tmp_path / "d" / "cat" / "00.png").write_bytes(bomb)
    left, remarks = told_of_images(tmp_path / "d")
    assert left == 23
    assert "cat/00.png" in remarks


def test_more_images_than_allowed(tmp_path, monkeypatch):
    write_images(tmp_path / "d")
    monkeypatch.setenv("AIRLOCK_MAX_BYTES", "1000")
    with pytest.raises(DataError, match="at most 1000 bytes"):
        load(image_config(tmp_path / "d"))
