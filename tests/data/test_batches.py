"""Python batches are read and never run."""

import os
import pickle
import subprocess

import numpy as np
import pytest

from airlock.data import load
from airlock.data.batches import loads
from airlock.data.sources import SOURCES
from airlock.errors import DataError, FormatError

from .writers import (
    cifar_binary,
    config,
    images,
    python2_batch,
    python2_text_batch,
    python3_batch,
    write_tar,
)

X, Y = images(20, 10, (3, 32, 32))
LABELS = Y.tolist()
NAMES = [f"data_batch_{i}" for i in range(1, 6)]
FORMS = {
    "python 2": lambda x, y: python2_batch(x, y),
    "python 2, text": lambda x, y: python2_text_batch(x, y),
    **{f"python 3, protocol {p}": lambda x, y, p=p: python3_batch(x, y, p) for p in range(6)},
    "text keys": lambda x, y: python3_batch(x, y, 4, "labels"),
    "numpy labels": lambda x, y: python3_batch(x, np.array(y), 4),
    "fortran": lambda x, y: pickle.dumps({"data": np.asfortranarray(x.reshape(len(x), -1)), "labels": y}, 2),
    "numpy.core": lambda x, y: python3_batch(x, y, 2).replace(b"numpy._core.multiarray", b"numpy.core.multiarray"),
}


def write(folder, data):
    folder.mkdir(parents=True, exist_ok=True)
    for name in (*NAMES, "test_batch"):
        (folder / name).write_bytes(data)


@pytest.mark.parametrize("form", FORMS)
def test_cifar10_batches(tmp_path, form):
    folder = tmp_path / "cifar10" / "cifar-10-batches-py"
    write(folder, FORMS[form](X, LABELS))
    other = images(10, 10, (3, 32, 32), 1)
    (folder / "test_batch").write_bytes(FORMS[form](other[0], other[1].tolist()))
    place = SOURCES["cifar10"].find(tmp_path)
    train, test = place.read()
    assert np.array_equal(train.x, np.concatenate(5 * [X]))
    assert np.array_equal(train.y, np.tile(Y, 5))
    assert np.array_equal(test.x, other[0])
    assert place.sizes() == (100, 10)
    split = load(config("cifar10", split={"holdout": 0.01}), tmp_path)
    assert len(split.private) + len(split.holdout) == 100


def test_cifar100_batches_have_fine_labels(tmp_path):
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for name in ("train", "test"):
        (folder / name).write_bytes(python2_batch(X, [99, *LABELS[1:]], b"fine_labels"))
    train, _ = SOURCES["cifar100"].find(tmp_path).read()
    assert train.y[0] == 99


def test_archives_are_read_in_place(tmp_path):
    binary = {f"cifar-10-batches-bin/{name}.bin": cifar_binary(X, Y) for name in (*NAMES, "test_batch")}
    write_tar(tmp_path / "cifar10" / "cifar-10-binary.tar.gz", binary | {"cifar-10-batches-bin/readme.html": b"hello"})
    text = {f"./cifar-100-python/{name}": python3_batch(X, LABELS, 2, b"fine_labels") for name in ("train", "test")}
    write_tar(tmp_path / "cifar-100-python.tar.gz", text)
    assert np.array_equal(SOURCES["cifar10"].find(tmp_path).read()[0].x, np.concatenate(5 * [X]))
    assert SOURCES["cifar100"].find(tmp_path).sizes() == (20, 20)
    assert sorted(p.name for p in tmp_path.rglob("*")) == [
        "cifar-10-binary.tar.gz",
        "cifar-100-python.tar.gz",
        "cifar10",
    ]


def test_archive_without_a_member_or_cut_off(tmp_path):
    file = tmp_path / "cifar-10-binary.tar.gz"
    write_tar(file, {"cifar-10-batches-bin/data_batch_1.bin": cifar_binary(X, Y)})
    with pytest.raises(FormatError, match=r"data_batch_2\.bin"):
        load(config("cifar10"), tmp_path)
    file.write_bytes(file.read_bytes()[:-3000])
    with pytest.raises(FormatError):
        load(config("cifar10"), tmp_path)


def test_archive_bomb(tmp_path, monkeypatch):
    write_tar(tmp_path / "cifar-10-binary.tar.gz", {"cifar-10-batches-bin/data_batch_1.bin": bytes(3_000_000)})
    monkeypatch.setenv("AIRLOCK_MAX_BYTES", "1000000")
    with pytest.raises(DataError, match="at most"):
        load(config("cifar10"), tmp_path)


class Calls:
    """Pickles to a call."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("function", [os.system, eval, exec, subprocess.Popen, getattr, np.fromfile, np.load])
def test_a_malicious_batch_is_refused_and_not_run(tmp_path, function, protocol):
    marker = tmp_path / "was_run"
    write(tmp_path / "cifar10", pickle.dumps({b"data": Calls(function, f"touch {marker}")}, protocol))
    with pytest.raises(FormatError, match=r"nothing in this file was run|opcode") as caught:
        load(config("cifar10"), tmp_path)
    assert function.__name__ in str(caught.value)
    assert not marker.exists()


OPCODES = {
    "INST": b"(S'echo'\nios\nsystem\n.",
    "OBJ": b"(cnumpy\nndarray\nK\x01o.",
    "NEWOBJ": b"\x80\x02cnumpy\nndarray\n)\x81.",
    "EXT1": b"\x80\x02\x82\x01.",
    "PERSID": b"Pname\n.",
    "NEXT_BUFFER": b"\x80\x05\x97.",
}


@pytest.mark.parametrize("name", OPCODES)
def test_opcodes_that_make_objects_are_refused(tmp_path, name):
    with pytest.raises(FormatError, match=f"opcode {name}"):
        loads(OPCODES[name], tmp_path)


HOSTILE = {
    "a call of a value": b"K\x01)R.",
    "a call of a class": b"cnumpy\nndarray\n)R.",
    "a state for a dict": b"}}b.",
    "an empty stack": b"R.",
    "too short a stack": b"K\x01\x86.",
    "no mark": b"]K\x01e.",
    "an unknown opcode": b"\xff.",
    "no end": b"]",
    "nothing": b"",
    "a list as key": b"}]K\x01s.",
    "a deep key": b"}" + b")" + b"\x85" * 100_000 + b"K\x01s.",
    "an object dtype": b"cnumpy\ndtype\nU\x01OK\x00K\x01\x87R.",
    "another encoding": b"c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00utf-8\x86R.",
    "bytes of a size": b"c__builtin__\nbytes\nJ\xff\xff\xff\x7f\x85R.",
    "arguments that are no tuple": b"cnumpy\ndtype\nU\x02u1R.",
    "no such memo": b"h\x05.",
    "a long number": b"L" + b"9" * 10_000 + b"L\n.",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pickles_are_format_errors(tmp_path, name):
    with pytest.raises(FormatError):
        loads(HOSTILE[name], tmp_path)


def test_a_file_cannot_grow_by_repeating_a_call(tmp_path):
    text = b"X" + (10_000).to_bytes(4, "little") + b"a" * 10_000
    start = b"c_codecs\nencode\nq\x01" + text + b"q\x02X\x06\x00\x00\x00latin1\x86q\x03R"
    with pytest.raises(FormatError, match="no larger than the file"):
        loads(start + b"h\x01h\x03R" * 1000 + b".", tmp_path)


def test_a_file_cannot_grow_by_repeating_a_state(tmp_path):
    dtype = b"cnumpy\ndtype\nU\x02u1\x85R"
    state = b"(K\x01M\x10\x27\x85" + dtype + b"\x89T\x10\x27\x00\x00" + b"a" * 10_000 + b"tq\x01"
    make = b"cnumpy.core.multiarray\n_reconstruct\n)R"
    assert len(loads(state + make + b"h\x01b.", tmp_path)) == 10_000
    with pytest.raises(FormatError, match="no larger than the file"):
        loads(state + (make + b"h\x01b") * 200 + b".", tmp_path)


@pytest.mark.parametrize(
    "batch",
    [
        [1, 2],
        {"data": [1], "labels": [1]},
        {"data": X.reshape(20, -1)},
        {"data": X.reshape(20, -1).astype(np.int64), "labels": LABELS},
        {"data": X.reshape(20, -1)[:, :100], "labels": LABELS},
        {"data": X.reshape(20, -1), "labels": ["1"] * 20},
    ],
)
def test_batches_of_another_kind(tmp_path, batch):
    write(tmp_path / "cifar10", pickle.dumps(batch, 2))
    with pytest.raises(FormatError, match="data_batch_1"):
        load(config("cifar10"), tmp_path)


@pytest.mark.parametrize("label", [10, 1000, -1, 2**80])
def test_a_label_that_is_no_class_leaves_its_record_out(tmp_path, label):
    labels = [label, *LABELS[1:]]
    write(tmp_path / "cifar10", pickle.dumps({"data": X.reshape(20, -1), "labels": labels}, 2))
    split = load(config("cifar10", records=100, test_records=20), tmp_path)
    assert len(split.private) + len(split.holdout) == 95
    assert "5 records of cifar10 left out: a label outside 0 to 9" in split.remarks[0]
    assert "rows 1, 21, 41, 61, 81" in split.remarks[0]
