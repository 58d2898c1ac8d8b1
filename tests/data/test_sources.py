"""Named sources, in every format they are distributed in."""

import gzip
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from airlock.cli import app
from airlock.config import ReleaseConfig, from_table
from airlock.data import Raw, Source, content_digests, describe, find_all, load, register
from airlock.data.sources import OTHERS, SOURCES
from airlock.errors import ConfigError, DataError, FormatError
from airlock.plugins import Plugin
from tests.conftest import Plug

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
    """Facts are what is published, whatever lies there, and every record of the pool is in one part."""
    facts, source = describe(config(name), folder), SOURCES[name]
    assert (facts.shape, facts.records, facts.test_records) == (shape, source.records, source.test_records)
    assert source.find(folder).sizes() == (records, test_records)
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
    train, test = raw("mnist", tmp_path)
    assert np.array_equal(train.x[:, 0], x)
    assert np.array_equal(train.y, y)
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
    train, _ = raw("cifar10", tmp_path)
    assert np.array_equal(train.x, x)
    assert np.array_equal(train.y, y)
    check("cifar10", tmp_path, (3, 32, 32), 100, 10)


def test_cifar100_binary_has_fine_labels(tmp_path):
    folder = tmp_path / "cifar100" / "cifar-100-binary"
    folder.mkdir(parents=True)
    x, fine = images(600, 100, (3, 32, 32))
    (folder / "train.bin").write_bytes(cifar_binary(x, fine // 5, fine))
    (folder / "test.bin").write_bytes(cifar_binary(x[:100] // 2, fine[:100] // 5, fine[:100]))
    train, _ = raw("cifar100", tmp_path)
    assert np.array_equal(train.x, x)
    assert np.array_equal(train.y, fine)
    check("cifar100", tmp_path, (3, 32, 32), 600, 100)


def test_svhn_calls_the_digit_0_class_0(tmp_path):
    x, y = write_svhn(tmp_path / "svhn")
    train, _ = raw("svhn", tmp_path)
    assert np.array_equal(train.x, x.transpose(0, 3, 1, 2))
    assert np.array_equal(train.y, y)
    check("svhn", tmp_path, (3, 32, 32), 80, 80)


def test_adult(tmp_path):
    write_adult(tmp_path / "adult")
    split = check("adult", tmp_path, (108,), 50, 10)
    assert split.private.x.min() >= 0
    assert split.private.x.max() <= 1
    train, _ = raw("adult", tmp_path)
    assert np.isclose(train.x[3, 0], 0.20)  # the age is the first feature
    assert train.y[:2].tolist() == [0, 1]
    assert (train.x.sum(axis=1) > 8).all()  # eight categories, one place each


def test_adult_names_column_and_row_but_not_the_value(tmp_path):
    write_adult(tmp_path)
    before = load(config("adult"), tmp_path)
    with (tmp_path / "adult.data").open("ab") as file:
        file.write(ADULT_LINE.format(age=40, work="Secret-service", gain=0, y=">50K").encode() + b"\n")
        file.write(b"40, Secret-service\n")
        file.write(ADULT_LINE.format(age=40, work="Secr\xe9t", gain=0, y=">50K").encode("latin-1") + b"\n")
    after = load(config("adult"), tmp_path)
    told = " ".join(after.remarks)
    assert "not a declared category in column 'workclass' (rows 51, 53)" in told
    assert "not 15 values (row 52)" in told
    assert "Secr" not in told
    for part in ("private", "test", "holdout"):
        assert np.array_equal(getattr(before, part).x, getattr(after, part).x)


@pytest.mark.parametrize("place", ["location30/bangkok", "bangkok", "location30/dataset_location/bangkok"])
def test_location(tmp_path, place):
    x, y = write_location(tmp_path / place)
    train, _ = raw("location30", tmp_path)
    assert np.array_equal(train.x, x)
    assert np.array_equal(train.y, y)
    check("location30", tmp_path, (446,), 240, None)


@pytest.mark.parametrize("line", ["1,2,3", "31" + 446 * ",0", "1" + 445 * ",0" + ",2", "one" + 446 * ",0", "\xe9"])
def test_a_line_of_another_kind_leaves_itself_out(tmp_path, line):
    x, _ = write_location(tmp_path / "bangkok")
    lines = (tmp_path / "bangkok").read_bytes().splitlines(keepends=True)
    (tmp_path / "bangkok").write_bytes(b"".join([*lines[:2], line.encode("latin-1") + b"\n", *lines[2:]]))
    split = load(config("location30"), tmp_path)
    assert sum(len(part) for part in (split.private, split.test, split.holdout)) == len(x)
    assert "1 record of location30 left out: not a label from 1 to 30 and 446 bits (row 3)" in split.remarks[0]


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
    np.savez(tmp_path / "mnist.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    with pytest.raises(DataError, match=r"shape \(1, 28, 28\)"):
        load(config("mnist"), tmp_path)
    np.savez(tmp_path / "mnist.npz", x=x, y=y)
    with pytest.raises(DataError, match="the test records in .*, as 'mnist' is published"):
        load(config("mnist"), tmp_path)


@pytest.mark.parametrize("name", [name for name in SOURCES if name not in ("digits", "fashion-mnist")])
def test_without_files_planning_works_and_loading_says_how_to_get_them(tmp_path, name):
    facts = describe(config(name), tmp_path)
    assert (facts.records, facts.test_records) == (SOURCES[name].records, SOURCES[name].test_records)
    assert "published" in facts.origin
    with pytest.raises(DataError, match="Get it: ") as caught:
        load(config(name), tmp_path)
    assert SOURCES[name].get in str(caught.value)


def test_declared_sizes_win_and_nothing_is_counted(tmp_path):
    write_idx(tmp_path / "mnist")
    facts = describe(config("mnist", records=70, test_records=30, name="Digits"), tmp_path)
    assert (facts.records, facts.test_records, facts.name) == (70, 30, "Digits")
    assert "declared" in facts.origin
    assert describe(config("mnist", records=70), tmp_path).test_records == 10_000
    few, many = (describe(config("mnist"), tmp_path) for _ in (write_idx(tmp_path / "mnist", count=n) for n in (30, 9)))
    assert few == many
    assert "as published" in few.origin


def test_test_records_are_declared_where_they_come_separately(tmp_path):
    with pytest.raises(ConfigError, match=r"no data\.test_records for 'digits'.*split\.test"):
        describe(config("digits", test_records=100), tmp_path)


def test_sizes_far_from_the_declared_ones_are_told_to_the_holder(tmp_path):
    write_idx(tmp_path / "mnist")
    told = " ".join(load(config("mnist"), tmp_path).remarks)
    assert "There are 80 records, but 60,000 are declared" in told
    assert "There are 20 test records, but 10,000 are declared" in told
    close = load(config("mnist", records=90, test_records=25), tmp_path).remarks
    assert not any("are declared:" in remark for remark in close)


def test_folder_comes_from_the_environment_or_is_data(tmp_path, monkeypatch):
    write_idx(tmp_path / "data" / "mnist")
    monkeypatch.setenv("AIRLOCK_DATA", str(tmp_path / "data"))
    assert len(load(config("mnist")).test) == 20
    monkeypatch.delenv("AIRLOCK_DATA")
    with pytest.raises(DataError, match="none of them"):
        load(config("mnist"))
    monkeypatch.chdir(tmp_path)
    assert len(load(config("mnist")).test) == 20


def test_a_path_that_ends_in_a_known_name_and_holds_its_files_is_that_source(tmp_path):
    write_idx(tmp_path / "mnist")
    assert load(config(tmp_path / "mnist")).facts.name == "mnist"


def test_unknown_source_gets_the_nearest_name(tmp_path):
    with pytest.raises(ConfigError, match="Did you mean 'fashion-mnist'"):
        describe(config("fashion_mnist"), tmp_path)
    with pytest.raises(ConfigError, match="Known names: digits"):
        load(config("patients.csv"), tmp_path)


@pytest.mark.parametrize(
    "key",
    [{"label": "y"}, {"classes": 10}, {"test": "t.npz"}, {"columns": {"a": ["b", "c"]}}, {"shape": [1, 28, 28]}],
)
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
        (whole[:9], "a truncated one"),
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
    with pytest.raises(FormatError, match="compression ratio"):
        load(config("mnist"), tmp_path)
    file.write_bytes(gzip.compress(b"\x00\x00\x08\x03" + b"\x00\x00\x10\x00" + b"\x00\x00\x00\x40" * 2))
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
        load(config("cifar10"), tmp_path)
    file.write_bytes(bytes(3000))
    with pytest.raises(FormatError, match="whole records of 3073 bytes"):
        load(config("cifar10"), tmp_path)
    file.write_bytes(b"")  # no records are no mistake
    assert len(load(config("cifar10"), tmp_path).test) == 10


def test_no_records_at_all(tmp_path):
    (tmp_path / "bangkok").write_text("\n")
    split = load(config("location30"), tmp_path)
    assert [len(part) for part in (split.private, split.public, split.test, split.holdout)] == [0, 0, 0, 0]
    assert split.private.x.shape == (0, 446)
    told = " ".join(split.remarks)
    for part in ("private", "test", "holdout"):
        assert f"There is no {part} record" in told


def test_mat_of_another_kind(tmp_path):
    from scipy.io import savemat

    write_svhn(tmp_path)
    for content in ({"Z": np.zeros(3)}, {"X": np.zeros((32, 32, 3, 4)), "y": np.ones(4)}):
        savemat(tmp_path / "train_32x32.mat", content)
        with pytest.raises(FormatError, match="X with 32 x 32 x 3 x N bytes"):
            load(config("svhn"), tmp_path)
    savemat(tmp_path / "train_32x32.mat", {"X": np.zeros((32, 32, 3, 4), np.uint8), "y": np.ones(5)})
    with pytest.raises(FormatError, match="y with one label"):
        load(config("svhn"), tmp_path)
    labels = np.array([1, 11, 2, 0])
    savemat(tmp_path / "train_32x32.mat", {"X": np.zeros((32, 32, 3, 4), np.uint8), "y": labels})
    assert (
        "2 records of svhn left out: a label outside 1 to 10 (rows 2, 4)" in load(config("svhn"), tmp_path).remarks[0]
    )
    (tmp_path / "train_32x32.mat").write_bytes(b"\x89HDF" + bytes(600))
    with pytest.raises(FormatError):
        load(config("svhn"), tmp_path)


# Sources of other packages.


class Noted:
    """Made-up records; knows whether it was read."""

    where = None

    def __init__(self, x: Any = None, y: Any = None, test: Any = None) -> None:
        draw = np.random.default_rng(0)
        self.x = draw.random((200, 4), np.float32) if x is None else x
        self.y = np.arange(len(self.x)) % 3 if y is None else y
        self.test, self.reads = test, 0

    def sizes(self) -> tuple[int, int | None]:
        return len(self.x), None

    def read(self) -> tuple[Raw, Raw | None]:
        self.reads += 1
        return Raw(self.x, self.y), self.test


def made_up(place: Any, **changes: Any) -> Source:
    told: dict[str, Any] = {
        "name": "made-up",
        "title": "Made-up points",
        "shape": (4,),
        "classes": ("a", "b", "c"),
        "records": 200,
        "test_records": None,
        "get": "Comes with its package.",
        "find": lambda folder: place,
    }
    return Source(**(told | changes))


def asked(**changes: Any) -> ReleaseConfig:
    return from_table({"channel": "weights", "data": "made-up", "epsilon": 1.0, "delta": 1e-4, **changes})


def test_its_facts_are_known_before_a_record_is_read(plug: Plug) -> None:
    place, looked = Noted(), []
    plug(OTHERS, "made-up", made_up(place, find=lambda folder: looked.append(folder) or place))
    facts = describe(asked())
    assert (facts.name, facts.shape, facts.records) == ("made-up", (4,), 200)
    assert facts.origin.endswith("public and as its package says. It comes from other-package 1.0.")
    assert not looked
    assert not place.reads
    assert len(load(asked()).private) > 100
    assert place.reads == 1


def test_its_records_are_left_out_and_split_as_anybodys(plug: Plug) -> None:
    place = Noted()
    place.x[7, 2], place.y[9] = np.nan, 5
    plug(OTHERS, "made-up", made_up(place))
    split = load(asked())
    assert sum(len(part) for part in (split.private, split.public, split.test, split.holdout)) == 198
    assert [remark for remark in split.remarks if "row 8" in remark or "row 10" in remark]
    plug(OTHERS, "made-up", made_up(Noted(place.x[1:], place.y[1:])))
    fewer = load(asked())
    for part in ("private", "test", "holdout"):
        before, after = (set(content_digests(getattr(one, part), b"")) for one in (split, fewer))
        assert after <= before  # one record less moves no other


def test_keys_that_are_known_of_it_are_refused(plug: Plug) -> None:
    plug(OTHERS, "made-up", made_up(Noted()))
    with pytest.raises(ConfigError, match="data.classes"):
        describe(asked(data={"source": "made-up", "classes": 3}))


@pytest.mark.parametrize(
    "place",
    [
        Noted(x=np.array([["a"] * 4] * 6)),
        Noted(x=np.array([[object()] * 4] * 6)),
        Noted(y=np.array(["a"] * 200)),
        Noted(test="test"),
    ],
)
def test_what_is_no_array_of_numbers_is_refused_by_its_name(plug: Plug, place: Noted) -> None:
    plug(OTHERS, "made-up", made_up(place))
    with pytest.raises(DataError, match="data source 'made-up' of other-package 1.0"):
        load(asked())


def test_what_it_says_when_reading_fails_is_not_repeated(plug: Plug, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Noted()
    plug(OTHERS, "made-up", made_up(place))
    monkeypatch.setattr(place, "read", lambda: {}["a secret value"])
    with pytest.raises(DataError, match="source 'made-up' of other-package 1.0 to read its records") as error:
        load(asked())
    assert "secret" not in str(error.value)


def test_it_is_listed_and_so_is_one_that_is_broken(plug: Plug, monkeypatch: pytest.MonkeyPatch) -> None:
    plug(OTHERS, "made-up", made_up(Noted()))
    monkeypatch.setitem(OTHERS._table, "broken", Plugin("no_such_module:SOURCE", "broken-package 2.0"))
    found = {listing.source.name: listing for listing in find_all()}
    assert found["made-up"].found
    assert found["made-up"].source.package == "other-package 1.0"
    assert "data source 'broken' of broken-package 2.0" in (found["broken"].problem or "")
    run = CliRunner().invoke(app, ["datasets"])
    assert run.exit_code == 0
    assert "made-up comes from other-package 1.0" in run.output
    with pytest.raises(DataError, match="Install its package again"):
        describe(asked(data="broken"))


@pytest.mark.parametrize(
    "wrong", [{"name": "other"}, {"records": 0}, {"shape": (4, 4)}, {"shape": [4]}, {"classes": ("a",)}]
)
def test_a_source_that_does_not_say_what_is_public_is_refused(plug: Plug, wrong: dict[str, Any]) -> None:
    with pytest.raises(DataError):
        plug(OTHERS, "made-up", made_up(Noted(), **wrong))


def test_own_names_cannot_be_taken() -> None:
    with pytest.raises(DataError, match="no other data source has"):
        register(made_up(Noted(), name="digits"))
