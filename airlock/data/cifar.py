"""CIFAR-10 and CIFAR-100 as distributed: the binary version and the python version, in a folder or in its archive.

In: a folder or a `.tar.gz`, whose members are read into memory and never extracted to disk. Out: record counts, or
images (N, 3, 32, 32) with labels (fine labels for CIFAR-100). Python batches go through `batches`, which runs no code.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from airlock.data.batches import loads
from airlock.data.limits import Array, damaged, max_bytes, read_exactly, read_file, reading
from airlock.data.validate import Raw
from airlock.errors import DataError

_PIXELS = 3 * 32 * 32
_MAX_ARCHIVE_BYTES = 2**30  # the distributed archives hold less than 200 MB


@dataclass(frozen=True)
class Version:
    """How one distribution of one of the two data sets is laid out."""

    folder: str
    archive: str
    train: tuple[str, ...]
    test: str
    label_bytes: int = 0  # before the pixels of a record, with the wanted label last; 0 for python batches
    label_key: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """All of its files."""
        return (*self.train, self.test)


_TEN = tuple(f"data_batch_{i}" for i in range(1, 6))
CIFAR10 = (
    Version("cifar-10-batches-bin", "cifar-10-binary.tar.gz", tuple(f"{n}.bin" for n in _TEN), "test_batch.bin", 1),
    Version("cifar-10-batches-py", "cifar-10-python.tar.gz", _TEN, "test_batch", label_key="labels"),
)
CIFAR100 = (
    Version("cifar-100-binary", "cifar-100-binary.tar.gz", ("train.bin",), "test.bin", 2),
    Version("cifar-100-python", "cifar-100-python.tar.gz", ("train",), "test", label_key="fine_labels"),
)


class Box(Protocol):
    """Where the files of a version are."""

    @property
    def where(self) -> Path:
        """The folder or the archive."""

    def size(self, name: str) -> int:
        """The size of a file in bytes."""

    def read(self, name: str) -> bytes:
        """The bytes of a file."""


@dataclass(frozen=True)
class Folder:
    """Files in a folder."""

    where: Path

    def size(self, name: str) -> int:
        """The size of a file in bytes."""
        return self._file(name).stat().st_size

    def read(self, name: str) -> bytes:
        """The bytes of a file."""
        return read_file(self._file(name))

    def _file(self, name: str) -> Path:
        if not (self.where / name).is_file():
            raise DataError(f"{name} in {self.where}", "none", "All batches are needed.", "Add the missing one.")
        return self.where / name


@dataclass(frozen=True)
class Archive:
    """Members of a `.tar.gz`, read in one bounded pass and kept."""

    where: Path
    version: Version

    def size(self, name: str) -> int:
        """The size of a member in bytes."""
        return len(self.read(name))

    def read(self, name: str) -> bytes:
        """The bytes of a member."""
        if name not in self._members:
            raise damaged(self.where, f"a member {self.version.folder}/{name}", "none")
        return self._members[name]

    @cached_property
    def _members(self) -> dict[str, bytes]:
        wanted = {f"{self.version.folder}/{name}": name for name in self.version.names}
        found: dict[str, bytes] = {}
        with reading(self.where, "a gzipped tar archive"), gzip.open(self.where) as unzipped:
            stream = _Bounded(unzipped, min(_MAX_ARCHIVE_BYTES, max_bytes()), self.where)
            left = stream.left
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in archive:
                    name = wanted.get(member.name.removeprefix("./"))
                    content = archive.extractfile(member) if name and member.isreg() else None
                    if name and content is not None:
                        left -= member.size  # a sparse member is larger than what the archive holds of it
                        if left < 0:
                            raise _too_much(self.where)
                        found[name] = bytes(read_exactly(content, member.size, self.where))
        return found


class _Bounded(io.RawIOBase):
    """A stream that raises once more than the allowed bytes are read."""

    def __init__(self, stream: IO[bytes] | gzip.GzipFile, left: int, path: Path) -> None:
        self.stream, self.left, self.path = stream, left, path

    def read(self, size: int = -1) -> bytes:
        data = self.stream.read(self.left + 1 if size < 0 else min(size, self.left + 1))
        self.left -= len(data)
        if self.left < 0:
            raise _too_much(self.path)
        return data


def _too_much(path: Path) -> DataError:
    return damaged(path, "at most the size of a CIFAR archive unpacked", "more")


@dataclass(frozen=True)
class Batches:
    """One version of one data set, once found."""

    version: Version
    box: Box

    @property
    def where(self) -> Path:
        """The folder or the archive."""
        return self.box.where

    def sizes(self) -> tuple[int, int | None]:
        """Training and test records."""
        return sum(self._count(name) for name in self.version.train), self._count(self.version.test)

    def read(self) -> tuple[Raw, Raw | None]:
        """Training and test records."""
        parts = [self._read(name) for name in self.version.train]
        train = Raw(np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts]))
        return train, self._read(self.version.test)

    def _count(self, name: str) -> int:
        if not self.version.label_bytes:
            return len(self._batch(name)[0])
        record, size = self.version.label_bytes + _PIXELS, self.box.size(name)
        if size % record:
            raise damaged(self.where / name, f"whole records of {record} bytes", f"{size} bytes")
        return size // record

    def _read(self, name: str) -> Raw:
        if not self.version.label_bytes:
            x, labels = self._batch(name)
            return Raw(x.reshape(-1, 3, 32, 32), np.asarray(labels, np.int64))
        count, skip = self._count(name), self.version.label_bytes
        rows = np.frombuffer(self.box.read(name), np.uint8).reshape(count, skip + _PIXELS)
        return Raw(np.ascontiguousarray(rows[:, skip:]).reshape(-1, 3, 32, 32), rows[:, skip - 1].astype(np.int64))

    def _batch(self, name: str) -> tuple[Array, Sequence[int]]:
        path = self.where / name
        batch = loads(self.box.read(name), path)
        x, y = _item(batch, "data"), _item(batch, self.version.label_key)
        if not (isinstance(x, np.ndarray) and x.ndim == 2 and x.dtype == np.uint8 and x.shape[1] == _PIXELS):
            raise damaged(path, f"'data' as bytes, {_PIXELS} per record", "something else")
        y = y.tolist() if isinstance(y, np.ndarray) else y
        if not (isinstance(y, list) and all(type(label) is int for label in y)):
            raise damaged(path, f"'{self.version.label_key}' as a list of whole numbers", "something else")
        return x, [label if 0 <= label < 256 else -1 for label in y]  # -1 is not a class, so such a record is left out


def find(versions: tuple[Version, ...], folder: Path, name: str) -> Batches | None:
    """The first version found below `folder` or below its subfolder `name`; unpacked ones are preferred."""
    for version in versions:
        for place in (folder / name / version.folder, folder / version.folder, folder / name):
            if (place / version.train[0]).is_file():
                return Batches(version, Folder(place))
    for version in versions:
        for archive in (folder / name / version.archive, folder / version.archive):
            if archive.is_file():
                return Batches(version, Archive(archive, version))
    return None


def _item(batch: Any, key: str) -> Any:
    """The value under `key`, which Python 2 wrote as bytes and Python 3 may read as bytes or text."""
    return batch.get(key, batch.get(key.encode())) if isinstance(batch, dict) else None
