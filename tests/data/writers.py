"""Small files in the formats that data sets are distributed in, and configs that point at them."""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

from airlock.config import ReleaseConfig, from_table


def config(source: object, split: dict[str, float] | None = None, **data: object) -> ReleaseConfig:
    """A config whose data table is `source` and `data`."""
    table = {"channel": "weights", "data": {"source": str(source), **data}, "epsilon": 1.0, "delta": 1e-5}
    return from_table(table | ({"split": split} if split else {}))


def images(count: int, classes: int, shape: tuple[int, ...], seed: int = 0) -> tuple[Any, Any]:
    """Random bytes of this shape, every class equally often."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, *shape), dtype=np.uint8), (np.arange(count) % classes).astype(np.uint8)


def idx_bytes(array: Any) -> bytes:
    """An idx file."""
    return bytes([0, 0, 8, array.ndim]) + b"".join(int(n).to_bytes(4, "big") for n in array.shape) + array.tobytes()


def write_idx(folder: Path, dot: str = "-", end: str = ".gz", count: int = 80) -> tuple[Any, Any]:
    """The four files of MNIST; gives the training records."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, seed in (("t10k", 1), ("train", 0)):
        x, y = images(count if part == "train" else 20, 10, (28, 28), seed)
        for stem, array in ((f"{part}-images{dot}idx3-ubyte", x), (f"{part}-labels{dot}idx1-ubyte", y)):
            data = idx_bytes(array)
            (folder / (stem + end)).write_bytes(gzip.compress(data) if end else data)
    return x, y


def cifar_binary(x: Any, *labels: Any) -> bytes:
    """Records of the binary version."""
    return np.concatenate([*(y[:, None] for y in labels), x.reshape(len(x), -1)], 1).tobytes()


def write_cifar10_binary(folder: Path) -> tuple[Any, Any]:
    """The six files of CIFAR-10's binary version; gives the training records."""
    folder.mkdir(parents=True, exist_ok=True)
    x, y = images(100, 10, (3, 32, 32))
    for i in range(5):
        part = slice(20 * i, 20 * i + 20)
        (folder / f"data_batch_{i + 1}.bin").write_bytes(cifar_binary(x[part], y[part]))
    (folder / "test_batch.bin").write_bytes(cifar_binary(*images(10, 10, (3, 32, 32), 1)))
    return x, y


def python2_batch(x: Any, y: list[int], key: bytes = b"labels") -> bytes:
    """A batch as Python 2's cPickle wrote them with protocol 2: byte strings, numpy.core names."""
    data = x.reshape(len(x), -1)
    rows, columns = (b"M" + n.to_bytes(2, "little") for n in data.shape)
    text = lambda value: b"U" + bytes([len(value)]) + value  # noqa: E731
    dtype = (
        b"cnumpy\ndtype\n"
        + text(b"u1")
        + b"K\x00K\x01\x87Rq\x03(K\x03"
        + text(b"|")
        + b"NNN"
        + 2 * b"J\xff\xff\xff\xff"
    )
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87Rq\x02"
    state = (
        b"(K\x01"
        + rows
        + columns
        + b"\x86"
        + dtype
        + b"K\x00tb\x89T"
        + data.size.to_bytes(4, "little")
        + data.tobytes()
    )
    labels = b"](" + b"".join(b"K" + bytes([label]) for label in y) + b"e"
    return b"\x80\x02}q\x01(" + text(b"data") + array + state + b"tb" + text(key) + labels + b"u."


def python2_text_batch(x: Any, y: list[int]) -> bytes:
    """The same with protocol 0, where bytes stand as escaped text."""
    data = x.reshape(len(x), -1)
    head = "(dp0\nS'data'\np1\ncnumpy.core.multiarray\n_reconstruct\np2\n"
    head += "(cnumpy\nndarray\np3\n(I0\ntp4\nS'b'\np5\ntp6\nRp7\n"
    state = f"(I1\n(I{data.shape[0]}\nI{data.shape[1]}\ntp8\ncnumpy\ndtype\np9\n(S'u1'\np10\nI0\nI1\ntp11\nRp12\n"
    state += f"(I3\nS'|'\np13\nNNNI-1\nI-1\nI0\ntp14\nbI00\nS{repr(data.tobytes())[1:]}\np15\ntp16\nbs"
    labels = "S'labels'\np17\n(lp18\n" + "".join(f"I{label}\na" for label in y) + "s."
    return (head + state + labels).encode("ascii")


def python3_batch(x: Any, y: Any, protocol: int, key: bytes | str = b"labels") -> bytes:
    """A batch as a newer Python writes it."""
    data = "data" if isinstance(key, str) else b"data"
    return pickle.dumps({data: x.reshape(len(x), -1), key: y, b"batch_label": b"one"}, protocol)


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    """A `.tar.gz`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def write_svhn(folder: Path) -> tuple[Any, Any]:
    """SVHN's two files; gives the training records."""
    from scipy.io import savemat

    folder.mkdir(parents=True, exist_ok=True)
    for part, seed in (("test", 1), ("train", 0)):
        x, y = images(80, 10, (32, 32, 3), seed)
        ten = np.where(y == 0, 10, y).astype(np.uint8)
        content = {"X": x.transpose(1, 2, 3, 0), "y": ten[:, None]}
        savemat(folder / f"{part}_32x32.mat", content, do_compression=True)
    return x, y


ADULT_LINE = (
    "{age}, {work}, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, {gain}, 0, 40, "
    "Cuba, {y}"
)


def write_adult(folder: Path) -> None:
    """adult.data and adult.test."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        ADULT_LINE.format(age=17 + i, work="?" if i % 3 else "State-gov", gain=i, y=(">50K" if i % 2 else "<=50K"))
        for i in range(60)
    ]
    (folder / "adult.data").write_text("\n".join(rows[:50]) + "\n\n")
    (folder / "adult.test").write_text("|1x3 Cross validator\n" + "".join(f"{row}.\n" for row in rows[50:]))


def write_location(path: Path) -> tuple[Any, Any]:
    """The file bangkok; gives the records."""
    path.parent.mkdir(parents=True, exist_ok=True)
    x = np.random.default_rng(0).integers(0, 2, (240, 446))
    y = np.arange(240) % 30
    path.write_text(
        "".join(f'"{label + 1}",' + ",".join(map(str, row)) + "\n" for row, label in zip(x, y, strict=True))
    )
    return x, y


def write_images(folder: Path, mode: str = "RGB", end: str = "png", classes: tuple[str, ...] = ("cat", "dog")) -> None:
    """A folder of 9 x 7 images, one subfolder a class."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for name in classes:
        (folder / name).mkdir(parents=True)
        for i in range(12):
            pixels = rng.integers(0, 256, (7, 9) if mode == "L" else (7, 9, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i:02}.{end}")
