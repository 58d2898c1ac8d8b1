"""The files of public benchmarks as distributed: MNIST's idx, SVHN, UCI Adult and Location-30.

In: the folder with the files. Out: record counts from the headers or by counting lines, or the records. A record that
does not match the format is left out.

Idx, the format of MNIST and Fashion-MNIST: a magic number, the dimensions, then bytes; plain or gzipped.

SVHN's cropped digits: {train,test}_32x32.mat, MATLAB files with X (32, 32, 3, N) and y (N, 1). Images come out as
(N, 3, 32, 32); the files call the digit 0 class 10, here it is 0.

UCI Adult (census income): adult.data and adult.test, comma-separated without a header. Out: float32 features in [0, 1]
and the label, 1 for an income above 50K. The schema is fixed and public: ranges and categories are those of the UCI
documentation (adult.names), with '?' for a missing category; capital gain and loss are scaled by their logarithms. The
census weight fnlwgt says nothing about income, but it is kept (scaled): without it, one in nine training records equals
a test record in all features, which would flatter any method.

Location-30, check-ins in Bangkok: the file `bangkok` of Shokri et al. (S&P 2017), comma-separated: each line has a
label from 1 to 30, then 446 bits. Out: float32 bits and labels from 0.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np

from airlock.config import Column
from airlock.data.limits import Array, check_bytes, check_ratio, count_lines, damaged, read_exactly, read_file, reading
from airlock.data.remarks import Fault, Faults
from airlock.data.tables import Cells, encode, labels, width
from airlock.data.validate import Raw
from airlock.errors import DataError

# Idx files: MNIST and Fashion-MNIST.


@dataclass(frozen=True)
class IdxFiles:
    """The four files of one data set in one folder."""

    where: Path

    def sizes(self) -> tuple[int, int | None]:
        """Training and test records, from the headers."""
        return idx_shape(self._file("train-images", 3))[0], idx_shape(self._file("t10k-images", 3))[0]

    def read(self) -> tuple[Raw, Raw | None]:
        """Training and test records, images as (N, 1, H, W)."""
        return self._pair("train"), self._pair("t10k")

    def _pair(self, part: str) -> Raw:
        x = read_idx(self._file(f"{part}-images", 3), 3)
        return Raw(x[:, None], read_idx(self._file(f"{part}-labels", 1), 1))

    def _file(self, stem: str, dimensions: int) -> Path:
        path = _pick_idx(self.where, stem, dimensions)
        if path is None:
            name = f"{stem}-idx{dimensions}-ubyte"
            raise DataError(
                f"{name} or {name}.gz in {self.where}", "neither", "All four files are needed.", "Add the missing one."
            )
        return path


def find_idx(folder: Path) -> IdxFiles | None:
    """The files in `folder`, if its training images are present."""
    return IdxFiles(folder) if _pick_idx(folder, "train-images", 3) else None


def idx_shape(path: Path) -> tuple[int, ...]:
    """The dimensions in a file's header."""
    with reading(path, "an idx header"), _open_idx(path) as stream:
        return _idx_header(stream, path)


def read_idx(path: Path, dimensions: int) -> Array:
    """The bytes of a file in the shape given by its header, which must match its actual size."""
    with reading(path, "an idx file"), _open_idx(path) as stream:
        size = _idx_header(stream, path)
        if len(size) != dimensions:
            raise damaged(path, f"{dimensions} dimensions", str(len(size)))
        check_ratio(path, path.stat().st_size, math.prod(size))
        return np.frombuffer(read_exactly(stream, math.prod(size), path), np.uint8).reshape(size)


def _idx_header(stream: IO[bytes], path: Path) -> tuple[int, ...]:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:3] != b"\x00\x00\x08" or not 1 <= magic[3] <= 4:
        raise damaged(path, "the magic number of an idx file of bytes", "another one")
    sizes = stream.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise damaged(path, "a complete idx header", "a truncated one")
    return tuple(int(n) for n in np.frombuffer(sizes, ">u4"))


def _open_idx(path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _pick_idx(folder: Path, stem: str, dimensions: int) -> Path | None:
    names = [f"{stem}{dot}idx{dimensions}-ubyte{end}" for dot in "-." for end in ("", ".gz")]
    return next((folder / name for name in names if (folder / name).is_file()), None)


# SVHN.

_COMPRESSED = 15  # the kind of an element of a MATLAB file
_NUMBERS = ("uint8", "uint16", "uint32", "int8", "int16", "int32", "int64", "uint64", "single", "double")
_STEP = 2**20


@dataclass(frozen=True)
class SvhnFiles:
    """The two files in one folder."""

    where: Path

    def sizes(self) -> tuple[int, int | None]:
        """Training and test records, from the headers."""
        return _count_svhn(self._file("train")), _count_svhn(self._file("test"))

    def read(self) -> tuple[Raw, Raw | None]:
        """Training and test records."""
        return _read_svhn(self._file("train")), _read_svhn(self._file("test"))

    def _file(self, part: str) -> Path:
        path = self.where / f"{part}_32x32.mat"
        if not path.is_file():
            raise DataError(f"{path.name} in {self.where}", "none", "Both files are needed.", "Add the missing one.")
        return path


def find_svhn(folder: Path) -> SvhnFiles | None:
    """The files in `folder`, if the training file is present."""
    return SvhnFiles(folder) if (folder / "train_32x32.mat").is_file() else None


def _count_svhn(path: Path) -> int:
    from scipy.io import whosmat  # type: ignore[import-untyped, unused-ignore]

    with reading(path, "a MATLAB file (version 4 to 7)"):
        _check_unpacked(path)
        variables = {name: (tuple(shape), kind) for name, shape, kind in whosmat(path)}
    shape, kind = variables.get("X", ((), ""))
    if kind != "uint8" or len(shape) != 4 or shape[:3] != (32, 32, 3):
        raise damaged(path, "X with 32 x 32 x 3 x N bytes", "none" if "X" not in variables else "another shape or type")
    labels, kind = variables.get("y", ((), ""))
    if math.prod(labels) != shape[3] or kind not in _NUMBERS:
        raise damaged(path, "y with one label per image in X", "none" if "y" not in variables else "another number")
    check_bytes(path, math.prod(shape))
    check_ratio(path, path.stat().st_size, math.prod(shape))
    return int(shape[3])


def _check_unpacked(path: Path) -> None:
    """Unpack what is compressed in a file of version 5 to 7 piece by piece, keeping nothing, and count the bytes.

    What the file says about its sizes is only said, and its reader allocates what it unpacks to.
    """
    packed, total = path.stat().st_size, 0
    with path.open("rb") as stream:
        order = {b"IM": "<II", b"MI": ">II"}.get(stream.read(128)[126:128])  # none in version 4, which packs nothing
        while order and len(tag := stream.read(8)) == 8:
            kind, size = struct.unpack(order, tag)
            if kind != _COMPRESSED:
                stream.seek(size, 1)
                continue
            for step in _unpacked(stream, size):
                total += step
                check_bytes(path, total)
                check_ratio(path, packed, total)


def _unpacked(stream: IO[bytes], size: int) -> Iterator[int]:
    """How many bytes each step of unpacking gives."""
    unzip = zlib.decompressobj()
    while size > 0 and (piece := stream.read(min(size, _STEP))):
        size -= len(piece)
        while piece:
            yield len(unzip.decompress(piece, _STEP))
            piece = unzip.unconsumed_tail


def _read_svhn(path: Path) -> Raw:
    from scipy.io import loadmat  # type: ignore[import-untyped, unused-ignore]

    count = _count_svhn(path)
    with reading(path, "a MATLAB file (version 4 to 7)"):
        content = loadmat(path, variable_names=["X", "y"])
        x, y = np.asarray(content["X"]), np.asarray(content["y"]).reshape(-1)
    if x.shape != (32, 32, 3, count) or x.dtype != np.uint8 or len(y) != count or y.dtype.kind not in "uif":
        raise damaged(path, "the variables listed in its header", "others")
    known = np.isin(y, np.arange(1, 11))
    faults = Faults()
    faults.add(Fault("a label outside 1 to 10", "Download the file again."), np.flatnonzero(~known))
    return Raw(np.ascontiguousarray(x.transpose(3, 2, 0, 1)), np.where(known, y, 0).astype(np.int64) % 10, faults)


# UCI Adult.

ADULT_CLASSES = ("<=50K", ">50K")


def _one_of(text: str) -> Column:
    return Column(categories=tuple(text.split()))


ADULT_COLUMNS = {
    "age": Column(min=0, max=100),
    "workclass": _one_of(
        "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked ?"
    ),
    "fnlwgt": Column(min=0, max=1_500_000),
    "education": _one_of(
        "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th Masters 1st-4th 10th "
        "Doctorate 5th-6th Preschool"
    ),
    "education-num": Column(min=0, max=16),
    "marital-status": _one_of(
        "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent Married-AF-spouse"
    ),
    "occupation": _one_of(
        "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty Handlers-cleaners "
        "Machine-op-inspct Adm-clerical Farming-fishing Transport-moving Priv-house-serv Protective-serv Armed-Forces ?"
    ),
    "relationship": _one_of("Wife Own-child Husband Not-in-family Other-relative Unmarried"),
    "race": _one_of("White Asian-Pac-Islander Amer-Indian-Eskimo Other Black"),
    "sex": _one_of("Female Male"),
    "capital-gain": Column(min=0, max=99_999, scale="log"),
    "capital-loss": Column(min=0, max=5_000, scale="log"),
    "hours-per-week": Column(min=0, max=100),
    "native-country": _one_of(
        "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) India Japan Greece South "
        "China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico Portugal Ireland France "
        "Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala Nicaragua Scotland Thailand "
        "Yugoslavia El-Salvador Trinadad&Tobago Peru Hong Holand-Netherlands ?"
    ),
}
ADULT_FEATURES = width(ADULT_COLUMNS)


@dataclass(frozen=True)
class AdultFiles:
    """The two files in one folder."""

    where: Path

    def sizes(self) -> tuple[int, int | None]:
        """Training and test records, counted as lines."""
        return count_lines(self._file("adult.data")), count_lines(self._file("adult.test"))

    def read(self) -> tuple[Raw, Raw | None]:
        """Training and test records."""
        return _read_adult(self._file("adult.data")), _read_adult(self._file("adult.test"))

    def _file(self, name: str) -> Path:
        if not (self.where / name).is_file():
            raise DataError(f"{name} in {self.where}", "none", "Both files are needed.", "Add the missing one.")
        return self.where / name


def find_adult(folder: Path) -> AdultFiles | None:
    """The files in `folder`, if the training file is present."""
    return AdultFiles(folder) if (folder / "adult.data").is_file() else None


def _read_adult(path: Path) -> Raw:
    faults = Faults()
    rows = list(_adult_rows(path, faults))
    cells: dict[str, Cells] = {name: [row[i] for row in rows] for i, name in enumerate(ADULT_COLUMNS)}
    y = labels("income", [row[-1].removesuffix(".") for row in rows], ADULT_CLASSES, faults)
    return Raw(encode(ADULT_COLUMNS, cells, faults), y, faults)


def _adult_rows(path: Path, faults: Faults) -> Iterator[list[str]]:
    """The values line by line; a line with the wrong number of values yields empty ones and a fault."""
    count, place = len(ADULT_COLUMNS) + 1, 0
    with reading(path, "comma-separated text"):
        check_bytes(path, path.stat().st_size)
        with path.open(encoding="ascii", errors="surrogateescape") as stream:
            for line in stream:
                if line.startswith("|") or not line.strip():
                    continue
                row = [cell.strip() for cell in line.split(",")]
                if len(row) != count:
                    faults.add(Fault(f"not {count} values", "Download the file again."), [place])
                    row = [""] * count
                yield row
                place += 1


# Location-30.

LOCATION_FEATURES, LOCATION_CLASSES = 446, 30
_LOCATION_LABELS = {str(i + 1).encode(): i for i in range(LOCATION_CLASSES)}
_LOCATION_FAULT = Fault(
    f"not a label from 1 to {LOCATION_CLASSES} and {LOCATION_FEATURES} bits", "Download the file again."
)


@dataclass(frozen=True)
class LocationFile:
    """The file, once found."""

    where: Path

    def sizes(self) -> tuple[int, int | None]:
        """Records, counted as lines; there is no official test set."""
        return count_lines(self.where), None

    def read(self) -> tuple[Raw, Raw | None]:
        """All records."""
        with reading(self.where, "comma-separated whole numbers"):
            lines = [line for line in read_file(self.where).splitlines() if line.strip() and not line.startswith(b"|")]
            check_bytes(self.where, 4 * len(lines) * LOCATION_FEATURES)
            x, y, faults = (
                np.zeros((len(lines), LOCATION_FEATURES), np.float32),
                np.zeros(len(lines), np.int64),
                Faults(),
            )
            for place, line in enumerate(lines):
                cells = line.replace(b'"', b"").replace(b" ", b"").split(b",")
                if (
                    len(cells) == LOCATION_FEATURES + 1
                    and cells[0] in _LOCATION_LABELS
                    and set(cells[1:]) <= {b"0", b"1"}
                ):
                    y[place] = _LOCATION_LABELS[cells[0]]
                    x[place] = np.frombuffer(b"".join(cells[1:]), np.uint8) == ord("1")
                else:
                    faults.add(_LOCATION_FAULT, [place])
        return Raw(x, y, faults), None


def find_location(folder: Path) -> LocationFile | None:
    """The file in `folder`, if it is present."""
    return LocationFile(folder / "bangkok") if (folder / "bangkok").is_file() else None
