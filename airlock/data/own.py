"""The user's own data: an npz, CSV or Parquet file, or a folder of images with one subfolder a class.

In: the `DataConfig`. Out: `Facts` that come from the config alone (of an npz file the shape of a record comes from the
array's header), or the raw records. The number of records is never counted for the facts: how many patients there are
is itself private. Nor are classes taken from subfolders: one may be there because of one person.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from airlock.config import DataConfig, ReleaseConfig
from airlock.data import images, tables
from airlock.data.arrays import NpzFile
from airlock.data.split import Facts
from airlock.data.validate import Raw, check_classes
from airlock.errors import ConfigError


@dataclass(frozen=True)
class Kind:
    """How one kind of file is called and read."""

    title: str
    shape: Callable[[Path, DataConfig], tuple[int, ...]]
    read: Callable[[Path, DataConfig, tuple[str, ...]], Raw]


def _npz_shape(path: Path, data: DataConfig) -> tuple[int, ...]:
    return NpzFile(path).shape()


def _npz_read(path: Path, data: DataConfig, classes: tuple[str, ...]) -> Raw:
    return NpzFile(path).read()[0]


NPZ = Kind("npz file", _npz_shape, _npz_read)
CSV = Kind("CSV file", tables.shape, tables.read_csv)
PARQUET = Kind("Parquet file", tables.shape, tables.read_parquet)
IMAGES = Kind("folder of images", images.shape, images.read)
_KINDS = {".npz": NPZ, ".csv": CSV, ".parquet": PARQUET, ".pq": PARQUET}


def facts(config: ReleaseConfig) -> Facts:
    """What is public about the user's own data."""
    data = config.data
    path = Path(data.source)
    kind = _kind(path)
    _check_keys(data, kind)
    if data.records is None:
        raise ConfigError(
            "the number of records in data.records",
            "none",
            "How many private records there are is itself private, so it is not counted: give a public round figure. "
            "It need not be exact; it sets the sampling rate and the size of a step, and privacy holds whatever it is.",
            "Add a line such as records = 10000.",
        )
    classes, named_by = _classes(data)
    has_test = data.test is not None or _holds_test(path, kind)
    if data.test_records is not None and not has_test:
        raise ConfigError(
            "data.test_records for test records that come separately",
            "none that do",
            "They are split off, by split.test.",
            "Remove it, or name their file in data.test.",
        )
    return Facts(
        name=data.name or "private data",
        shape=kind.shape(path, data),
        classes=check_classes(classes),
        records=data.records,
        test_records=(data.test_records or max(1, round(data.records * config.split.test))) if has_test else None,
        origin=f"The owner's {kind.title}; the number of records is declared, not counted; classes are {named_by}.",
    )


def read(config: ReleaseConfig, facts: Facts) -> tuple[Raw, Raw | None]:
    """The records, and the test records if they are given separately."""
    data = config.data
    path = Path(data.source)
    kind = _kind(path)
    if data.test is not None:
        return kind.read(path, data, facts.classes), _read_test(Path(data.test), data, kind, facts.classes)
    if kind is NPZ:
        return NpzFile(path).read()
    return kind.read(path, data, facts.classes), None


def _read_test(path: Path, data: DataConfig, kind: Kind, classes: tuple[str, ...]) -> Raw:
    return NpzFile(path).read_test() if kind is NPZ else kind.read(path, data, classes)


def _kind(path: Path) -> Kind:
    if path.is_dir():
        return IMAGES
    if path.suffix.lower() not in _KINDS:
        raise ConfigError(
            "a .npz, .csv or .parquet file, or a folder with one subfolder of images a class, as data.source",
            f"{path.name}",
            do="Convert the data to one of these.",
        )
    return _KINDS[path.suffix.lower()]


def _check_keys(data: DataConfig, kind: Kind) -> None:
    """A key that would be ignored hides a mistake; a test file is of the same kind."""
    given = [key for key in ("label", "columns") if getattr(data, key)]
    if kind in (NPZ, IMAGES) and given:
        raise ConfigError(f"data.label and data.columns only for a table, not for a {kind.title}", f"data.{given[0]}")
    if kind is not IMAGES and data.shape is not None:
        raise ConfigError(f"data.shape only for a folder of images, not for a {kind.title}", "one", do="Remove it.")
    if data.test is None:
        return
    path = Path(data.test)
    if not path.exists():
        raise ConfigError("a file or folder at data.test", f"nothing at {path}", do="Check the path.")
    if _kind(path) is not kind:
        raise ConfigError(f"data.test to be a {kind.title}, as data.source is", f"a {_kind(path).title}")
    if _holds_test(Path(data.source), kind):
        raise ConfigError("test records in one place", "x_test in data.source as well as data.test", do="Remove one.")


def _holds_test(path: Path, kind: Kind) -> bool:
    return kind is NPZ and NpzFile(path).has_test()


def _classes(data: DataConfig) -> tuple[tuple[str, ...], str]:
    """The class names, and who says so."""
    if data.classes is None:
        raise ConfigError(
            "the class names in data.classes",
            "none",
            "Names taken from the records or from subfolders would leak them: a class may exist because of one person.",
            'Add a line such as classes = ["no", "yes"], or classes = 10 when they are called 0 to 9.',
        )
    if isinstance(data.classes, int):
        _check_number(data.classes)
        return tuple(str(i) for i in range(data.classes)), "numbered, as declared"
    return data.classes, "declared"


def _check_number(classes: int) -> None:
    if not 0 <= classes <= 100_000:
        raise ConfigError("data.classes from 2 to 100000", str(classes), do="Correct it.")
