"""Location-30, check-ins in Bangkok: the file `bangkok` of Shokri et al. (S&P 2017), comma-separated.

In: the folder with the file: in each line a label from 1 to 30, then 446 bits. Out: float32 bits and labels from 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from airlock.data.limits import check_bytes, count_lines, damaged, reading
from airlock.data.validate import Raw

FEATURES, CLASSES = 446, 30


@dataclass(frozen=True)
class LocationFile:
    """The file at its place."""

    where: Path

    def sizes(self) -> tuple[int, int | None]:
        """Records, counted as lines; there is no official test set."""
        return count_lines(self.where), None

    def read(self) -> tuple[Raw, Raw | None]:
        """All records."""
        if not count_lines(self.where):
            return (np.empty((0, FEATURES), np.float32), np.empty(0, np.int64)), None
        with reading(self.where, "comma-separated whole numbers"):
            check_bytes(self.where, 4 * self.where.stat().st_size)  # two characters make a number of eight bytes
            table = np.loadtxt(self.where, np.int64, delimiter=",", quotechar='"', ndmin=2, encoding="ascii")
        if table.shape[1] != FEATURES + 1:
            raise damaged(self.where, f"a label and {FEATURES} bits in each line", f"{table.shape[1]} numbers")
        x, y = table[:, 1:], table[:, 0]
        for fits, what in (((x >= 0) & (x <= 1), "bits"), ((y >= 1) & (y <= CLASSES), f"labels from 1 to {CLASSES}")):
            if not fits.all():
                raise damaged(self.where, what, f"another number in line {int(np.argwhere(~fits)[0][0]) + 1}")
        return (x.astype(np.float32), y - 1), None


def find(folder: Path) -> LocationFile | None:
    """The file in `folder`, if it is there."""
    return LocationFile(folder / "bangkok") if (folder / "bangkok").is_file() else None
