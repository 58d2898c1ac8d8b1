"""Npz files (numpy's zip of arrays): how they are validated and read, and what their arrays mean.

In: a path and the wanted member names. Out: shapes and types from the headers alone, or the arrays. Before anything is
allocated, the zip directory's sizes must be consistent with the file and the limits, and a member's npy header must
account for every byte of the member. Object arrays, which are pickles, are refused: pickles can run code.

What the arrays of an npz file mean: x and y, or x_train, y_train, x_test and y_test, as images or as features; and, if
the config names one, an array that says whose each record is.

In: the path of such a file. Out: the shape of a record and the record counts from the headers alone, or the records.

Images are uint8, (N, H, W), (N, H, W, C) or (N, C, H, W) with 1 or 3 channels; if the last axis has length 1 or 3, it
holds the channels, otherwise the second axis does. Features are a two-dimensional array of numbers and are used
unchanged: scale them by public constants beforehand, never by statistics of the records, which would themselves need a
guarantee.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from airlock.data.limits import MEMORY, Array, Storage, check_bytes, check_ratio, damaged, read_exactly, reading
from airlock.data.people import as_ids
from airlock.data.validate import Raw
from airlock.errors import ConfigError, DataError, FormatError


@dataclass(frozen=True)
class Header:
    """A member's npy header."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    data_bytes: int


def headers(path: Path, wanted: Iterable[str] | None = None) -> dict[str, Header]:
    """The headers of the members, or of the wanted ones among them; no record is read."""
    found: dict[str, Header] = {}
    with reading(path, "an npz file"), zipfile.ZipFile(path) as archive:
        for name in _present(archive, wanted):
            with archive.open(f"{name}.npy") as stream:
                found[name] = _header(stream, archive.getinfo(f"{name}.npy"), path)
    return found


def read(
    path: Path, wanted: Iterable[str], content: bytes | None = None, storage: Storage = MEMORY
) -> dict[str, Array]:
    """The wanted arrays among those in the file, or in its content if it was read already.

    Where records are held in files, so are arrays of more than one dimension: as they come out of the archive, since
    what is compressed cannot be read in any order.
    """
    found: dict[str, Array] = {}
    with reading(path, "an npz file"), zipfile.ZipFile(path if content is None else io.BytesIO(content)) as archive:
        names = _present(archive, wanted)
        members = [archive.getinfo(f"{name}.npy") for name in names]
        check_bytes(path, sum(member.file_size for member in members))
        size = path.stat().st_size if content is None else len(content)
        if sum(member.compress_size for member in members) > size:
            raise damaged(path, "members no larger than the file", "a zip directory that claims more")
        for name, member in zip(names, members, strict=True):
            with archive.open(member) as stream:
                found[name] = _array(stream, _header(stream, member, path), path, storage)
    return found


def _present(archive: zipfile.ZipFile, wanted: Iterable[str] | None) -> list[str]:
    names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
    return list(dict.fromkeys(names if wanted is None else [name for name in wanted if name in names]))


def _header(stream: IO[bytes], member: zipfile.ZipInfo, path: Path) -> Header:
    check_bytes(path, member.file_size)
    check_ratio(path, member.compress_size, member.file_size)
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise damaged(path, f"npy format 1 or 2 for {member.filename}", "another version")
    parse = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = parse(stream)
    if dtype.hasobject:
        raise FormatError(
            f"plain numbers in {member.filename} of {path}",
            "pickled objects",
            "A pickle can run any code; this one was not opened.",
            "Save the array with a number type, such as x.astype('float32') or y.astype('int64').",
        )
    data_bytes = math.prod(shape) * dtype.itemsize
    if any(n < 0 for n in shape) or data_bytes + stream.tell() != member.file_size:
        raise damaged(path, f"a header of {member.filename} that fits its size", "one that does not")
    return Header(tuple(shape), dtype, bool(fortran), data_bytes)


def _array(stream: IO[bytes], header: Header, path: Path, storage: Storage) -> Array:
    if storage.folder is not None and len(header.shape) > 1 and header.data_bytes:
        with storage.copy(stream, header.data_bytes) as file:
            if file.seek(0, io.SEEK_END) < header.data_bytes or stream.read(1):
                raise damaged(path, f"{header.data_bytes} bytes after its header", "another number")
            order: Any = "F" if header.fortran else "C"
            return np.memmap(file, header.dtype, "r", shape=header.shape, order=order)
    flat = np.frombuffer(read_exactly(stream, header.data_bytes, path), header.dtype)
    shaped = flat.reshape(header.shape[::-1]).T if header.fortran else flat.reshape(header.shape)
    return shaped.astype(header.dtype.newbyteorder("="), copy=False)


# The arrays as records.

_TRAIN, _TEST, _PLAIN = ("x_train", "y_train"), ("x_test", "y_test"), ("x", "y")


@dataclass(frozen=True)
class NpzFile:
    """A file of arrays, once found."""

    where: Path

    def shape(self) -> tuple[int, ...]:
        """The shape of one record."""
        found = headers(self.where, (*_TRAIN, *_TEST, *_PLAIN))
        header = found[self._pairs(set(found))[0][0]]
        return record_shape(header.shape, header.dtype, self.where)

    def has_test(self) -> bool:
        """Whether the file also holds test records."""
        found = headers(self.where, (*_TRAIN, *_TEST, *_PLAIN))
        return len(self._pairs(set(found))) == 2

    def sizes(self) -> tuple[int, int | None]:
        """Training and test records."""
        found = headers(self.where, (*_TRAIN, *_TEST, *_PLAIN))
        counts = [found[x].shape[0] if found[x].shape else 0 for x, _ in self._pairs(set(found))]
        return counts[0], counts[1] if len(counts) == 2 else None

    def read(self, person: str | None = None, storage: Storage = MEMORY) -> tuple[Raw, Raw | None]:
        """Training records, with the array of their people if one is named; and test records if there are any."""
        found = read(self.where, (*_TRAIN, *_TEST, *_PLAIN), storage=storage)
        pairs = self._pairs(set(found))
        raw = [Raw(_arranged(found.pop(x), self.where, storage), found[y]) for x, y in pairs]
        if person is not None:
            raw[0] = replace(raw[0], person=as_ids(read(self.where, (person,))[person], person, self.where))
        return raw[0], raw[1] if len(raw) == 2 else None

    def check_person(self, person: str) -> None:
        """Refuse the name of an array of people that is not there or is one of the others; reads no record.

        Raises:
            ConfigError: It is not there.
        """
        if person in (*_TRAIN, *_TEST, *_PLAIN) or not headers(self.where, (person,)):
            raise ConfigError(
                f"an array '{person}' of identifiers in {self.where}, as data.person says",
                "one of the records' own arrays" if person in (*_TRAIN, *_TEST, *_PLAIN) else "none",
                do=f"Save it alongside, with numpy.savez(path, x=x, y=y, {person}=ids).",
            )

    def read_test(self, storage: Storage = MEMORY) -> Raw:
        """The records of a separate test file: its x_test and y_test, or its only pair."""
        train, test = self.read(storage=storage)
        return test if test is not None else train

    def _pairs(self, names: set[str]) -> list[tuple[str, str]]:
        pair = _PLAIN if set(_PLAIN) <= names else _TRAIN
        if not set(pair) <= names or (pair == _PLAIN and names & set(_TRAIN)) or len(names & set(_TEST)) == 1:
            raise FormatError(
                f"arrays named x and y, or x_train and y_train (and x_test and y_test), in {self.where}",
                ", ".join(sorted(names)) or "none of them",
                do="Save them with numpy.savez(path, x=x, y=y).",
            )
        return [pair, _TEST] if set(_TEST) <= names else [pair]


def record_shape(shape: tuple[int, ...], dtype: np.dtype[np.generic], path: Path) -> tuple[int, ...]:
    """The shape of one record as used here: (features,) or (channels, height, width)."""
    if len(shape) == 2 and shape[1] and dtype.kind in "fuib":
        return (shape[1],)
    if dtype != np.uint8 and len(shape) in (3, 4):
        raise DataError(
            f"images as uint8 in {path}",
            f"{dtype}",
            "The scale of pixels has to be public, so it is fixed: 0 to 255.",
            "Convert them, such as (255 * x).round().astype('uint8').",
        )
    axis = _channel_axis(shape)
    if axis is None or dtype.kind not in "fuib":
        raise DataError(
            f"images (N, H, W), (N, H, W, C) or (N, C, H, W) with 1 or 3 channels, or features (N, F), in {path}",
            f"{len(shape)} dimensions" + (f" {shape[1:]} after the first" if len(shape) > 2 else f" of type {dtype}"),
            "Networks need to know which axis is which.",
            "Reshape the array.",
        )
    rest = [n for i, n in enumerate(shape) if i not in (0, axis)]
    return (shape[axis] if axis else 1, *rest)


def arrange(x: Array, path: Path) -> Array:
    """Images as (N, C, H, W) uint8, features as (N, F) float32."""
    shape = record_shape(x.shape, x.dtype, path)
    if x.ndim == 2:
        with np.errstate(over="ignore"):  # a value that overflows becomes infinite, and its record is left out
            return x.astype(np.float32)
    axis = _channel_axis(x.shape)
    return np.ascontiguousarray(np.moveaxis(x, axis, 1) if axis else x.reshape(len(x), *shape))


def _arranged(x: Array, path: Path, storage: Storage) -> Array:
    """The same, block by block where records are held in files."""
    if storage.folder is None:
        return arrange(x, path)
    rows = storage.rows(x[:1].nbytes)
    blocks = (arrange(x[start : start + rows], path) for start in range(0, len(x), rows))
    return storage.gather(blocks, arrange(x[:0], path))


def _channel_axis(shape: tuple[int, ...]) -> int | None:
    """The axis of the channels; 0 if there is none because the images are grey, None if it is ambiguous."""
    if 0 in shape[1:]:
        return None
    if len(shape) == 3:
        return 0
    if len(shape) == 4:
        return 3 if shape[3] in (1, 3) else 1 if shape[1] in (1, 3) else None
    return None
