"""Safe npz: numpy's zip of arrays, read with nothing taken on trust.

In: a path and the wanted member names. Out: shapes and types from the headers alone, or the arrays. Before anything is
allocated the zip directory's sizes must fit the file and the limits, and a member's npy header must account for every
byte of the member. Object arrays, which are pickles, are refused: pickles can run code.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from airlock.data.limits import check_bytes, check_ratio, damaged, read_exactly, reading
from airlock.data.split import Array
from airlock.errors import FormatError


@dataclass(frozen=True)
class Header:
    """What a member says about itself."""

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


def read(path: Path, wanted: Iterable[str]) -> dict[str, Array]:
    """The wanted arrays among those in the file."""
    found: dict[str, Array] = {}
    with reading(path, "an npz file"), zipfile.ZipFile(path) as archive:
        names = _present(archive, wanted)
        members = [archive.getinfo(f"{name}.npy") for name in names]
        check_bytes(path, sum(member.file_size for member in members))
        if sum(member.compress_size for member in members) > path.stat().st_size:
            raise damaged(path, "members no larger than the file", "a directory that says otherwise")
        for name, member in zip(names, members, strict=True):
            with archive.open(member) as stream:
                found[name] = _array(stream, _header(stream, member, path), path)
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


def _array(stream: IO[bytes], header: Header, path: Path) -> Array:
    flat = np.frombuffer(read_exactly(stream, header.data_bytes, path), header.dtype)
    shaped = flat.reshape(header.shape[::-1]).T if header.fortran else flat.reshape(header.shape)
    return shaped.astype(header.dtype.newbyteorder("="), copy=False)
