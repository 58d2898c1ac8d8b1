"""Idx files, the format of MNIST and Fashion-MNIST: a magic number, the dimensions, then bytes; plain or gzipped.

In: a folder with the four files as they are distributed. Out: record counts from the headers, or the arrays.
"""

from __future__ import annotations

import gzip
import math
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np

from airlock.data.limits import damaged, read_exactly, reading
from airlock.data.split import Array
from airlock.data.validate import Raw
from airlock.errors import DataError


@dataclass(frozen=True)
class IdxFiles:
    """The four files of one data set in one folder."""

    where: Path

    def sizes(self) -> tuple[int, int | None]:
        """Training and test records, from the headers."""
        return shape(self._file("train-images", 3))[0], shape(self._file("t10k-images", 3))[0]

    def read(self) -> tuple[Raw, Raw | None]:
        """Training and test records, images as (N, 1, H, W)."""
        return self._pair("train"), self._pair("t10k")

    def _pair(self, part: str) -> Raw:
        x = read(self._file(f"{part}-images", 3), 3)
        return Raw(x[:, None], read(self._file(f"{part}-labels", 1), 1))

    def _file(self, stem: str, dimensions: int) -> Path:
        path = _pick(self.where, stem, dimensions)
        if path is None:
            name = f"{stem}-idx{dimensions}-ubyte"
            raise DataError(
                f"{name} or {name}.gz in {self.where}", "neither", "All four files are needed.", "Add the missing one."
            )
        return path


def find(folder: Path) -> IdxFiles | None:
    """The files in `folder`, if its training images are there."""
    return IdxFiles(folder) if _pick(folder, "train-images", 3) else None


def shape(path: Path) -> tuple[int, ...]:
    """The dimensions in a file's header."""
    with reading(path, "an idx header"), _open(path) as stream:
        return _header(stream, path)


def read(path: Path, dimensions: int) -> Array:
    """The bytes of a file in the shape that its header says, which must be its true size."""
    with reading(path, "an idx file"), _open(path) as stream:
        size = _header(stream, path)
        if len(size) != dimensions:
            raise damaged(path, f"{dimensions} dimensions", str(len(size)))
        return np.frombuffer(read_exactly(stream, math.prod(size), path), np.uint8).reshape(size)


def _header(stream: IO[bytes], path: Path) -> tuple[int, ...]:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:3] != b"\x00\x00\x08" or not 1 <= magic[3] <= 4:
        raise damaged(path, "the magic number of an idx file of bytes", "another one")
    sizes = stream.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise damaged(path, "a whole idx header", "only a part of one")
    return tuple(int(n) for n in np.frombuffer(sizes, ">u4"))


def _open(path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _pick(folder: Path, stem: str, dimensions: int) -> Path | None:
    names = [f"{stem}{dot}idx{dimensions}-ubyte{end}" for dot in "-." for end in ("", ".gz")]
    return next((folder / name for name in names if (folder / name).is_file()), None)
