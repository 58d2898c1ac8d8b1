"""Whatever is done to a file, the answer is data or one of this package's errors, never another exception."""

import contextlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airlock.data import describe, load
from airlock.errors import AirlockError, DataError

from .test_batches import LABELS, NAMES, X, write
from .test_own import X as FEATURES
from .test_own import Y, save
from .test_own import image_config as own_images
from .test_own import own as own_npz
from .test_tables import own as own_table
from .test_tables import write_csv, write_parquet
from .writers import (
    config,
    images,
    python2_batch,
    python3_batch,
    write_adult,
    write_cifar10_binary,
    write_idx,
    write_images,
    write_location,
    write_svhn,
    write_tar,
)


def idx(folder, end):
    write_idx(folder / "mnist", end=end)
    return folder / "mnist" / f"train-images-idx3-ubyte{end}", config("mnist")


def batch(folder, data):
    write(folder / "cifar10", data)
    (folder / "cifar10" / "test_batch").write_bytes(python3_batch(*images(20, 10, (3, 32, 32), 1), 2))
    return folder / "cifar10" / "data_batch_1", config("cifar10")


def archive(folder):
    names = [f"cifar-10-batches-py/{name}" for name in (*NAMES, "test_batch")]
    others = [python3_batch(*images(20, 10, (3, 32, 32), seed), 2) for seed in range(6)]
    write_tar(folder / "cifar-10-python.tar.gz", dict(zip(names, others, strict=True)))
    return folder / "cifar-10-python.tar.gz", config("cifar10")


def named(folder, name, file, writer):
    writer(folder)
    return folder / file, config(name)


def pictures(folder):
    write_images(folder / "d")
    return folder / "d" / "cat" / "00.png", own_images(folder / "d")


MAKE = {
    "idx": lambda f: idx(f, ""),
    "idx.gz": lambda f: idx(f, ".gz"),
    "cifar binary": lambda f: named(
        f,
        "cifar10",
        "cifar-10-batches-bin/data_batch_2.bin",
        lambda g: write_cifar10_binary(g / "cifar-10-batches-bin"),
    ),
    "python 2 batch": lambda f: batch(f, python2_batch(X, LABELS)),
    "python 3 batch": lambda f: batch(f, python3_batch(X, LABELS, 5)),
    "archive": archive,
    "mat": lambda f: named(f, "svhn", "train_32x32.mat", write_svhn),
    "adult": lambda f: named(f, "adult", "adult.data", write_adult),
    "location": lambda f: named(f, "location30", "bangkok", lambda g: write_location(g / "bangkok")),
    "npz": lambda f: (p := save(f / "d.npz", x=FEATURES, y=Y), own_npz(p)),
    "csv": lambda f: (p := write_csv(f / "d.csv"), own_table(p)),
    "parquet": lambda f: (p := write_parquet(f / "d.parquet"), own_table(p)),
    "image": pictures,
}


@pytest.fixture(scope="module", params=MAKE)
def made(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("corrupt")
    file, cfg = MAKE[request.param](folder)
    load(cfg, folder)  # undamaged it is fine
    return folder, file, cfg, file.read_bytes()


@given(st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_file(made, data):
    folder, file, cfg, whole = made
    edge = st.integers(0, min(len(whole), 400))  # headers stand at either end
    place = st.one_of(edge, edge.map(lambda n: len(whole) - n), st.integers(0, len(whole)))
    content = bytearray(whole)
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(place)
        content[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    if data.draw(st.booleans()):
        del content[data.draw(place) :]
    file.write_bytes(bytes(content))
    for ask in (describe, load):
        with contextlib.suppress(AirlockError):
            ask(cfg, folder)


def test_a_file_larger_than_allowed(made, monkeypatch):
    folder, file, cfg, whole = made
    file.write_bytes(whole)
    load(cfg, folder)
    monkeypatch.setenv("AIRLOCK_MAX_BYTES", "500")
    with pytest.raises(DataError, match="at most"):
        load(cfg, folder)
