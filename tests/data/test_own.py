"""The user's own arrays, and the checks that every load must pass."""

import traceback
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airlock.config import from_table
from airlock.data import describe, load
from airlock.data.arrays import arrange, record_shape
from airlock.errors import ConfigError, DataError, FormatError

from .writers import config, images

RNG = np.random.default_rng(0)
X, Y = RNG.random((60, 5)), np.arange(60) % 3


def save(path, **arrays):
    np.savez(path, **arrays)
    return path


def own(path, **data):
    return config(path, **({"records": 50, "classes": 3} | data))


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


def test_labels_are_not_integers(tmp_path):
    refused(DataError, "whole numbers as labels", tmp_path, y=Y.astype(float))


@pytest.mark.parametrize("bad", [-17, 3333, 2**40])
def test_labels_out_of_range(tmp_path, bad):
    y = Y.copy()
    y[41] = bad
    caught = refused(DataError, "labels from 0 to 2 .* row 42", tmp_path, y=y)
    assert str(bad) not in str(caught.value).replace(str(tmp_path), "")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300, 123456789.0])
def test_numbers_that_spoil_gradients(tmp_path, bad):
    x = X.copy()
    x[17, 2] = bad
    caught = refused(DataError, "row 18", tmp_path, x=x)
    assert "123456789" not in str(caught.value)


def test_an_empty_class_is_named(tmp_path):
    refused(DataError, "none of 'purple'", tmp_path, classes=["red", "green", "blue", "purple"])
    refused(DataError, "and 2 more", tmp_path, classes=10)


def test_a_single_class(tmp_path):
    refused(DataError, "at least two classes", tmp_path, classes=1)
    refused(DataError, "at least two classes", tmp_path, classes=["only"])
    refused(DataError, "records of at least two classes", tmp_path, y=Y * 0)
    refused(DataError, "every class name once", tmp_path, classes=["a", "a", "b"])


def test_zero_records(tmp_path):
    refused(DataError, "at least one record", tmp_path, x=X[:0], y=Y[:0])


def test_pickled_arrays_are_refused(tmp_path):
    refused(FormatError, "pickled objects", tmp_path, x=np.array([[{}, 1]] * 60, object))
    refused(FormatError, "pickled objects", tmp_path, y=np.array([1] * 60, object))


def test_no_traceback_shows_a_value(tmp_path):
    caught = refused(DataError, "row 1", tmp_path, x=np.where(X[0, 0] == X, 987654321.0, X))
    assert "987654321" not in "".join(traceback.format_exception(caught.value))


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
    with pytest.raises(FormatError, match="compression of at most 1000:1"):
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
