"""UCI Adult (census income): adult.data and adult.test as distributed, comma-separated without a header.

In: the folder with both. Out: float32 features in [0, 1] and the label, 1 for an income above 50K.

The schema below is fixed and public: ranges and categories are those of the UCI documentation (adult.names), with '?'
for a missing category; capital gain and loss are scaled after log1p. The census weight fnlwgt says nothing about
income, but it is kept, scaled: without it one in nine training records equals a test record in all features, and a
record may not be in two parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from airlock.config import Column
from airlock.data.limits import check_bytes, count_lines, reading
from airlock.data.remarks import Fault, Faults
from airlock.data.schema import Cells, encode, labels, numbers, width
from airlock.data.validate import Raw
from airlock.errors import DataError

CLASSES = ("<=50K", ">50K")
_LOG1P = ("capital-gain", "capital-loss")


def _one_of(text: str) -> Column:
    return Column(categories=tuple(text.split()))


COLUMNS = {
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
    "capital-gain": Column(min=0, max=float(np.log1p(99_999))),
    "capital-loss": Column(min=0, max=float(np.log1p(5_000))),
    "hours-per-week": Column(min=0, max=100),
    "native-country": _one_of(
        "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) India Japan Greece South "
        "China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico Portugal Ireland France "
        "Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala Nicaragua Scotland Thailand "
        "Yugoslavia El-Salvador Trinadad&Tobago Peru Hong Holand-Netherlands ?"
    ),
}
FEATURES = width(COLUMNS)


@dataclass(frozen=True)
class AdultFiles:
    """The two files in one folder."""

    where: Path

    def sizes(self) -> tuple[int, int | None]:
        """Training and test records, counted as lines."""
        return count_lines(self._file("adult.data")), count_lines(self._file("adult.test"))

    def read(self) -> tuple[Raw, Raw | None]:
        """Training and test records."""
        return _read(self._file("adult.data")), _read(self._file("adult.test"))

    def _file(self, name: str) -> Path:
        if not (self.where / name).is_file():
            raise DataError(f"{name} in {self.where}", "none", "Both files are needed.", "Add the missing one.")
        return self.where / name


def find(folder: Path) -> AdultFiles | None:
    """The files in `folder`, if the training file is there."""
    return AdultFiles(folder) if (folder / "adult.data").is_file() else None


def _read(path: Path) -> Raw:
    faults = Faults()
    rows = list(_rows(path, faults))
    cells: dict[str, Cells] = {name: [row[i] for row in rows] for i, name in enumerate(COLUMNS)}
    for name in _LOG1P:
        cells[name] = np.log1p(np.maximum(numbers(name, cells[name], faults), 0))
    y = labels("income", [row[-1].removesuffix(".") for row in rows], CLASSES, faults)
    return Raw(encode(COLUMNS, cells, faults), y, faults)


def _rows(path: Path, faults: Faults) -> Iterator[list[str]]:
    """The values of one line after the other; a line with another number of them has empty ones, and a fault."""
    count, place = len(COLUMNS) + 1, 0
    with reading(path, "comma-separated text"):
        check_bytes(path, path.stat().st_size)
        with path.open(encoding="ascii", errors="surrogateescape") as stream:
            for line in stream:
                if line.startswith("|") or not line.strip():
                    continue
                row = [cell.strip() for cell in line.split(",")]
                if len(row) != count:
                    faults.add(Fault(f"not {count} values", "Get the file anew."), [place])
                    row = [""] * count
                yield row
                place += 1
