"""SVHN's cropped digits: {train,test}_32x32.mat, MATLAB files with X (32, 32, 3, N) and y (N, 1).

In: the folder with both. Out: record counts from the variables' headers, or images (N, 3, 32, 32) with labels; the
files call the digit 0 class 10, here it is 0. An image with another label leaves itself out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from airlock.data.limits import check_bytes, check_ratio, damaged, reading
from airlock.data.remarks import Fault, Faults
from airlock.data.validate import Raw
from airlock.errors import DataError


@dataclass(frozen=True)
class SvhnFiles:
    """The two files in one folder."""

    where: Path

    def sizes(self) -> tuple[int, int | None]:
        """Training and test records, from the headers."""
        return _count(self._file("train")), _count(self._file("test"))

    def read(self) -> tuple[Raw, Raw | None]:
        """Training and test records."""
        return _read(self._file("train")), _read(self._file("test"))

    def _file(self, part: str) -> Path:
        path = self.where / f"{part}_32x32.mat"
        if not path.is_file():
            raise DataError(f"{path.name} in {self.where}", "none", "Both files are needed.", "Add the missing one.")
        return path


def find(folder: Path) -> SvhnFiles | None:
    """The files in `folder`, if the training file is there."""
    return SvhnFiles(folder) if (folder / "train_32x32.mat").is_file() else None


def _count(path: Path) -> int:
    from scipy.io import whosmat  # type: ignore[import-untyped, unused-ignore]

    with reading(path, "a MATLAB file (version 4 to 7)"):
        variables = {name: (tuple(shape), kind) for name, shape, kind in whosmat(path)}
    shape, kind = variables.get("X", ((), ""))
    if kind != "uint8" or len(shape) != 4 or shape[:3] != (32, 32, 3):
        raise damaged(path, "X with 32 x 32 x 3 x N bytes", "none" if "X" not in variables else "another shape or type")
    labels, _ = variables.get("y", ((), ""))
    if math.prod(labels) != shape[3]:
        raise damaged(
            path, "y with one label for each image in X", "none" if "y" not in variables else "another number"
        )
    check_bytes(path, math.prod(shape))
    check_ratio(path, path.stat().st_size, math.prod(shape))
    return int(shape[3])


def _read(path: Path) -> Raw:
    from scipy.io import loadmat  # type: ignore[import-untyped, unused-ignore]

    count = _count(path)
    with reading(path, "a MATLAB file (version 4 to 7)"):
        content = loadmat(path, variable_names=["X", "y"])
        x, y = np.asarray(content["X"]), np.asarray(content["y"]).reshape(-1)
    if x.shape != (32, 32, 3, count) or x.dtype != np.uint8 or len(y) != count or y.dtype.kind not in "uif":
        raise damaged(path, "the variables that its header promises", "others")
    known = np.isin(y, np.arange(1, 11))
    faults = Faults()
    faults.add(Fault("a label outside 1 to 10", "Get the file anew."), np.flatnonzero(~known))
    return Raw(np.ascontiguousarray(x.transpose(3, 2, 0, 1)), np.where(known, y, 0).astype(np.int64) % 10, faults)
