"""Named sources, in every format they are distributed in."""

import gzip

import numpy as np
import pytest

from airlock.data import describe, find_all, load
from airlock.data.sources import SOURCES
from airlock.errors import ConfigError, DataError, FormatError

from .writers import (
    ADULT_LINE,
    cifar_binary,
    config,
    idx_bytes,
    images,
    write_adult,
    write_cifar10_binary,
    write_idx,
    write_location,
    write_svhn,
)


def raw(name, folder):
    place = SOURCES[name].find(folder)
    assert place is not None
    return place.read()


def check(name, folder, shape, records, test_records):
    """Facts and split agree, and every record of the pool is in one part."""
    facts = describe(config(name), folder)
    assert (facts.shape, facts.records, facts.test_records) == (shape, records, test_records)
    split = load(config(name), folder)
    assert split.private.x.shape[1:] == shape
    assert split.private.y.dtype == np.int64
    parts = len(split.private) + len(split.public) + len(split.holdout)
    assert parts + (len(split.test) if test_records is None else 0) == records
    return split


def test_digits_are_always_there(tmp_path):
    split = check("digits", tmp_path, (1, 8, 8), 1797, None)
    assert split.private.x.dtype == np.float32
    assert split.private.x.min() == 0
    assert split.private.x.max() == 1
    assert set(split.private.y) == set(range(10))


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize("dot", ["-", "."])
@pytest.mark.parametrize("place", ["mnist", "mnist/MNIST/raw", "MNIST/raw", "."])
def test_mnist(tmp_path, place, dot, end):
    x, y = write_idx(tmp_path / place, dot, end)
    (got_x, got_y), test = raw("mnist", tmp_path)
    assert np.array_equal(got_x[:, 0], x)
    assert np.array_equal(got_y, y)
    assert test is not None
    assert check("mnist", tmp_path, (1, 28, 28), 80, 20).private.x.dtype == np.uint8


def test_the_two_sets_of_idx_files_are_not_mixed_up(tmp_path):
    write_idx(tmp_path / "fashion")
    assert SOURCES["mnist"].find(tmp_path / "fashion") is None
    assert SOURCES["fashion-mnist"].find(tmp_path / "fashion") is not None
    write_idx(tmp_path / "mnist")
    assert SOURCES["fashion-mnist"].find(tmp_path / "mnist") is None


def test_fashion_mnist(tmp_path):
    write_idx(tmp_path / "FashionMNIST" / "raw", end="")
    check("fashion-mnist", tmp_path, (1, 28, 28), 80, 20)


@pytest.mark.parametrize("place", ["cifar10/cifar-10-batches-bin", "cifar-10-batches-bin", "cifar10"])
def test_cifar10_binary(tmp_path, place):
    x, y = write_cifar10_binary(tmp_path / place)
    (got_x, got_y), _ = raw("cifar10", tmp_path)
    assert np.array_equal(got_x, x)
    assert np.array_equal(got_y, y)
    check("cifar10", tmp_path, (3, 32, 32), 100, 10)


def test_cifar100_binary_has_fine_labels(tmp_path):
    folder = tmp_path / "cifar100" / "cifar-100-binary"
    folder.mkdir(parents=True)
    x, fine = images(600, 100, (3, 32, 32))
    (folder / "train.bin").write_bytes(cifar_binary(x, fine // 5, fine))
    (folder / "test.bin").write_bytes(cifar_binary(x[:100] // 2, fine[:100] // 5, fine[:100]))
    (got_x, got_y), _ = raw("cifar100", tmp_path)
    assert np.array_equal(got_x, x)
    assert np.array_equal(got_y, fine)
    check("cifar100", tmp_path, (3, 32, 32), 600, 100)


def test_svhn_calls_the_digit_0_class_0(tmp_path):
    x, y = write_svhn(tmp_path / "svhn")
    (got_x, got_y), _ = raw("svhn", tmp_path)
    assert np.array_equal(got_x, x.transpose(0, 3, 1, 2))
    assert np.array_equal(got_y, y)
    check("svhn", tmp_path, (3, 32, 32), 80, 80)


def test_adult(tmp_path):
    write_adult(tmp_path / "adult")
    split = check("adult", tmp_path, (108,), 50, 10)
    assert split.private.x.min() >= 0
    assert split.private.x.max() <= 1
    (x, y), _ = raw("adult", tmp_path)
    assert np.isclose(x[3, 0], 0.20)  # the age is the first feature
    assert y[:2].tolist() == [0, 1]
    assert (x.sum(axis=1) > 8).all()  # eight categories, one place each


def test_adult_names_column_and_row_but_not_the_value(tmp_path):
    write_adult(tmp_path)
    with (tmp_path / "adult.data").open("a") as file:
        file.write(ADULT_LINE.format(age=40, work="Secret-service", gain=0, y=">50K") + "\n")
    with pytest.raises(DataError, match="'workclass', row 51") as caught:
        load(config("adult"), tmp_path)
    assert "Secret-service" not in str(caught.value)


@pytest.mark.parametrize("place", ["location30/bangkok", "bangkok", "location30/dataset_location/bangkok"])
def test_location(tmp_path, place):
    x, y = write_location(tmp_path / place)
    (got_x, got_y), _ = raw("location30", tmp_path)
    assert np.array_equal(got_x, x)
    assert np.array_equal(got_y, y)
    check("location30", tmp_path, (446,), 240, None)


@pytest.mark.parametrize(("line", "found"), [("1,2,3\n", "3 numbers"), ("31" + 446 * ",0" + "\n", "line 1")])
def test_location_of_another_kind(tmp_path, line, found):
    (tmp_path / "bangkok").write_text(line)
    with pytest.raises(FormatError, match=found):
        load(config("location30"), tmp_path)


def test_npz_of_a_named_source(tmp_path):
    x, y = images(80, 10, (28, 28))
    np.savez(tmp_path / "mnist.npz", x_train=x, y_train=y, x_test=x[:20] // 2, y_test=y[:20])
    check("mnist", tmp_path, (1, 28, 28), 80, 20)
    x, y = images(80, 10, (32, 32, 3))
    np.savez(
        tmp_path / "svhn.npz", x_train=x, y_train=y, x_test=x[:20] // 2, y_test=y[:20], class_names=np.array(["0"])
    )
    check("svhn", tmp_path, (3, 32, 32), 80, 20)
    bits = np.random.default_rng(0).integers(0, 2, (240, 446), dtype=np.uint8)
    (tmp_path / "location30").mkdir()
    np.savez(tmp_path / "location30" / "location30.npz", x=bits, y=(np.arange(240) % 30).astype(np.uint8))
    assert check("location30", tmp_path, (446,), 240, None).private.x.dtype == np.float32


def test_npz_of_another_shape_than_the_source(tmp_path):
    x, y = images(40, 10, (32, 32))
    np.savez(tmp_path / "mnist.npz", x=x, y=y)
    with pytest.raises(DataError, match=r"shape \(1, 28, 28\)"):
        load(config("mnist"), tmp_path)


@pytest.mark.parametrize("name", [name for name in SOURCES if name not in ("digits", "fashion-mnist")])
def test_without_files_planning_works_and_loading_says_how_to_get_them(tmp_path, name):
    facts = describe(config(name), tmp_path)
    assert (facts.records, facts.test_records) == (SOURCES[name].records, SOURCES[name].test_records)
    assert "published" in facts.origin
    with pytest.raises(DataError, match="Get it: ") as caught:
        load(config(name), tmp_path)
    assert SOURCES[name].get in str(caught.value)


def test_declared_records_win(tmp_path):
    write_idx(tmp_path / "mnist")
    facts = describe(config("mnist", records=70, name="Digits"), tmp_path)
    assert (facts.records, facts.name) == (70, "Digits")
    assert "declared" in facts.origin


def test_folder_comes_from_the_environment_or_is_data(tmp_path, monkeypatch):
    write_idx(tmp_path / "data" / "mnist")
    monkeypatch.setenv("AIRLOCK_DATA", str(tmp_path / "data"))
    assert describe(config("mnist")).records == 80
    monkeypatch.delenv("AIRLOCK_DATA")
    assert describe(config("mnist")).records == 60_000
    monkeypatch.chdir(tmp_path)
    assert describe(config("mnist")).records == 80


def test_a_path_that_ends_in_a_known_name_and_holds_its_files_is_that_source(tmp_path):
    write_idx(tmp_path / "mnist")
    assert load(config(tmp_path / "mnist")).facts.name == "mnist"


def test_unknown_source_gets_the_nearest_name(tmp_path):
    with pytest.raises(ConfigError, match="Did you mean 'fashion-mnist'"):
        describe(config("fashion_mnist"), tmp_path)
    with pytest.raises(ConfigError, match="Known names: digits"):
        load(config("patients.csv"), tmp_path)


@pytest.mark.parametrize("key", [{"label": "y"}, {"classes": 10}, {"test": "t.npz"}, {"columns": {"a": ["b", "c"]}}])
def test_a_named_source_takes_no_schema(tmp_path, key):
    with pytest.raises(ConfigError, match=f"data.{next(iter(key))}"):
        describe(config("mnist", **key), tmp_path)


def test_find_all(tmp_path):
    write_idx(tmp_path / "mnist")
    write_svhn(tmp_path / "svhn")
    (tmp_path / "svhn" / "test_32x32.mat").unlink()
    (tmp_path / "adult.data").write_bytes(b"")
    listings = {listing.source.name: listing for listing in find_all(tmp_path)}
    assert list(listings) == list(SOURCES)
    assert (listings["mnist"].found, listings["mnist"].records, listings["mnist"].test_records) == (True, 80, 20)
    assert listings["mnist"].where == tmp_path / "mnist"
    assert listings["digits"].found
    assert not listings["cifar10"].found
    assert listings["cifar10"].problem is None
    assert "test_32x32.mat" in (listings["svhn"].problem or "")
    assert not listings["adult"].found
    assert all(len(listing.source.get) > 10 for listing in listings.values())


@pytest.mark.parametrize("gone", ["train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz"])
def test_a_missing_file_is_named(tmp_path, gone):
    write_idx(tmp_path / "mnist")
    (tmp_path / "mnist" / gone).unlink()
    with pytest.raises(DataError, match=gone):
        load(config("mnist"), tmp_path)


def test_idx_whose_header_promises_more_or_less(tmp_path):
    write_idx(tmp_path / "mnist", end="")
    file = tmp_path / "mnist" / "train-images-idx3-ubyte"
    whole = file.read_bytes()
    for data, found in (
        (whole[:-1], "cut off"),
        (whole + b"0", "more"),
        (whole[:9], "a part"),
        (b"PK" + whole, "another"),
    ):
        file.write_bytes(data)
        with pytest.raises(FormatError, match=found):
            load(config("mnist"), tmp_path)


def test_idx_that_promises_terabytes_allocates_nothing(tmp_path):
    write_idx(tmp_path / "mnist")
    file = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    file.write_bytes(gzip.compress(b"\x00\x00\x08\x03" + b"\x7f\xff\xff\xff" * 3))
    with pytest.raises(DataError, match="at most"):
        load(config("mnist"), tmp_path)
    file.write_bytes(gzip.compress(b"\x00\x00\x08\x03" + b"\x00\x10\x00\x00" + b"\x00\x00\x00\x40" * 2))
    with pytest.raises(FormatError, match="cut off"):
        load(config("mnist"), tmp_path)


def test_idx_labels_and_images_of_different_length(tmp_path):
    write_idx(tmp_path / "mnist")
    file = tmp_path / "mnist" / "train-labels-idx1-ubyte.gz"
    file.write_bytes(gzip.compress(idx_bytes(np.zeros(79, np.uint8))))
    with pytest.raises(DataError, match="more inputs"):
        load(config("mnist"), tmp_path)


def test_cifar_with_a_missing_file_or_half_a_record(tmp_path):
    write_cifar10_binary(tmp_path / "cifar10")
    file = tmp_path / "cifar10" / "data_batch_3.bin"
    file.unlink()
    with pytest.raises(DataError, match=r"Expected data_batch_3\.bin"):
        describe(config("cifar10"), tmp_path)
    file.write_bytes(bytes(3000))
    with pytest.raises(FormatError, match="whole records of 3073 bytes"):
        describe(config("cifar10"), tmp_path)


def test_no_records_at_all(tmp_path):
    (tmp_path / "bangkok").write_text("\n")
    with pytest.raises(DataError, match="at least one record"):
        describe(config("location30"), tmp_path)
    with pytest.raises(DataError, match="at least one record"):
        load(config("location30", records=5000), tmp_path)


def test_mat_of_another_kind(tmp_path):
    from scipy.io import savemat

    write_svhn(tmp_path)
    for content in ({"Z": np.zeros(3)}, {"X": np.zeros((32, 32, 3, 4)), "y": np.ones(4)}):
        savemat(tmp_path / "train_32x32.mat", content)
        with pytest.raises(FormatError, match="X with 32 x 32 x 3 x N bytes"):
            describe(config("svhn"), tmp_path)
    savemat(tmp_path / "train_32x32.mat", {"X": np.zeros((32, 32, 3, 4), np.uint8), "y": np.ones(5)})
    with pytest.raises(FormatError, match="y with one label"):
        describe(config("svhn"), tmp_path)
    savemat(tmp_path / "train_32x32.mat", {"X": np.zeros((32, 32, 3, 4), np.uint8), "y": np.full(4, 11)})
    with pytest.raises(FormatError, match="labels from 1 to 10"):
        load(config("svhn"), tmp_path)
    (tmp_path / "train_32x32.mat").write_bytes(b"\x89HDF" + bytes(600))
    with pytest.raises(FormatError):
        describe(config("svhn"), tmp_path)
