"""Location-30, check-ins in Bangkok: the file `bangkok` of Shokri et al. (S&P 2017), comma-separated.

In: the folder with the file: in each line a label from 1 to 30, then 446 bits. Out: float32 bits and labels from 0. A
line that is something else leaves itself out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from airlock.data.limits import check_bytes, count_lines, read_file, reading
from airlock.data.remarks import Fault, Faults
from airlock.data.validate import Raw

FEATURES, CLASSES = 446, 30
_LABELS = {str(i + 1).encode(): i for i in range(CLASSES)}
_FAULT = Fault(f"not a label from 1 to {CLASSES} and {FEATURES} bits", "Get the file anew.")


@dataclass(frozen=True)
class LocationFile:
    """The file at its place."""

    where: Path

    def sizes(self) -> tuple[int, int | None]:
        """Records, counted as lines; there is no official test set."""
        return count_lines(self.where), None

    def read(self) -> tuple[Raw, Raw | None]:
        """All records."""
        with reading(self.where, "comma-separated whole numbers"):
            lines = [line for line in read_file(self.where).splitlines() if line.strip() and not line.startswith(b"|")]
            check_bytes(self.where, 4 * len(lines) * FEATURES)
            x, y, faults = np.zeros((len(lines), FEATURES), np.float32), np.zeros(len(lines), np.int64), Faults()
            for place, line in enumerate(lines):
                cells = line.replace(b'"', b"").replace(b" ", b"").split(b",")
                if len(cells) == FEATURES + 1 and cells[0] in _LABELS and set(cells[1:]) <= {b"0", b"1"}:
                    y[place] = _LABELS[cells[0]]
                    x[place] = np.frombuffer(b"".join(cells[1:]), np.uint8) == ord("1")
                else:
                    faults.add(_FAULT, [place])
        return Raw(x, y, faults), None


def find(folder: Path) -> LocationFile | None:
    """The file in `folder`, if it is there."""
    return LocationFile(folder / "bangkok") if (folder / "bangkok").is_file() else None
