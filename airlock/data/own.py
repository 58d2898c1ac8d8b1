"""The user's own data: an npz, CSV, TSV, Parquet or JSON lines file, a folder of a data set or of images, or in memory.

In: the `DataConfig`. Out: `Facts` that come from the config alone (for an npz file, the shape of a record comes from
the array's header), or the raw records. The number of records is never counted for the facts: how many patients there
are is itself private. Nor are classes inferred from subfolders: one may exist because of a single person.

A folder of images. In: the folder, the declared classes and the declared shape of an image. Out: uint8 images (N, C, H,
W) with labels. The shape gives size and kind, grey (1 channel) or colour (3); images are converted to that kind and an
alpha channel is dropped. A file that is not an image of that size is left out, because resizing is the owner's
decision, and so are files in subfolders that are not a declared class: neither classes nor shape are inferred from the
folder's contents, where one file may be one person. Images are used as stored: an EXIF orientation is not applied.

Whose a record is (`data.person`): a column of a table, an array of an npz file, or for images a column of `people.csv`
next to the class folders, whose column `file` names each image as "class/name.png". An image that is not listed, or is
listed for two people, is left out.
"""

from __future__ import annotations

import csv
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from airlock.config import DataConfig, ReleaseConfig
from airlock.data import dataset_files, memory, tables
from airlock.data.limits import MEMORY, Storage, check_bytes, reading
from airlock.data.npz import NpzFile
from airlock.data.people import MANIFEST, declared_people, refuse_test_file, unit_of
from airlock.data.remarks import Fault, Faults
from airlock.data.split import Facts
from airlock.data.text import open_tokenizer
from airlock.data.validate import Raw, check_classes
from airlock.errors import AirlockError, ConfigError, DataError

# A folder of images.

_FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "PPM", "TIFF", "GIF")
_SUFFIXES = frozenset([".png", ".jpg", ".jpeg", ".bmp", ".webp", ".pgm", ".ppm", ".tif", ".tiff", ".gif"])
_CLUTTER = frozenset({"thumbs.db", "desktop.ini"})
_FILE = "file"  # the column of the manifest that names an image, such as "cat/3.png"
Pixels = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
_GREY, _COLOUR = (
    frozenset({"1", "L", "LA", "La"}),
    frozenset({"RGB", "RGBA", "RGBX", "RGBa", "P", "PA", "CMYK", "YCbCr"}),
)
_UNDECLARED = Fault("in a subfolder that is not a declared class", "Add the class to data.classes, or move the files.")
_OTHER = Fault("not an image", f"Files that end in {', '.join(sorted(_SUFFIXES))} are read.")
_UNREADABLE = Fault("an image that cannot be read or does not have 8 bits per channel", "Convert it beforehand.")


def image_shape(path: Path, data: DataConfig) -> tuple[int, ...]:
    """(channels, height, width), as declared."""
    if data.shape is None:
        raise ConfigError(
            "the shape of an image in data.shape, for a folder of images",
            "none",
            "Inferred from the files, it could depend on a single one, and thus on one person.",
            "Add a line such as shape = [3, 32, 32]: channels (1 grey, 3 colour), height, width.",
        )
    return data.shape


def read_images(path: Path, data: DataConfig, classes: tuple[str, ...], storage: Storage = MEMORY) -> Raw:
    """All files below the subfolders; a class's position in `classes` is its label."""
    files = [file for folder in _subfolders(path) for file in _image_files(folder)]
    shape = image_shape(path, data)
    check_bytes(path, len(files) * math.prod(shape))
    size = Fault(f"not {shape[2]} x {shape[1]} pixels, the size in data.shape", "Resize all images to one size.")
    faults, rows = Faults(), storage.rows(math.prod(shape))

    def looked_at() -> Iterator[Pixels]:
        for start in range(0, len(files), rows):
            own = files[start : start + rows]
            block = np.zeros((len(own), *shape), np.uint8)
            for place, file in enumerate(own):
                pixels = _look_at(file, classes, shape, size)
                if isinstance(pixels, Fault):
                    faults.add(pixels, [start + place])
                else:
                    block[place] = pixels
            yield block

    x = storage.gather(looked_at(), np.empty((0, *shape), np.uint8))
    index = {name: label for label, name in enumerate(classes)}
    y = np.array([index.get(file.parent.name, 0) for file in files], np.int64)
    person = None
    if data.person is not None:
        listed = _listed(path / MANIFEST, data.person)
        person = [listed.get(file.relative_to(path).as_posix()) for file in files]
    return Raw(x, y, faults, lambda place: _shown(files[place].relative_to(path)), person)


def _listed(path: Path, column: str) -> dict[str, str | None]:
    """Whose each file is, by the manifest; None for a file that is listed for two people.

    Raises:
        DataError: The manifest lacks one of its two columns.
    """
    found: dict[str, str | None] = {}
    with reading(path, "a CSV file in UTF-8"):
        check_bytes(path, path.stat().st_size)
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
            header = [name.strip() for name in next(csv.reader(stream), [])]
            if header.count(_FILE) != 1 or header.count(column) != 1:
                raise DataError(
                    f"one column '{_FILE}' and one column '{column}' in {path}",
                    "others",
                    "It says whose each image is, as data.person declares.",
                    f"Begin it with a line {_FILE},{column}.",
                )
            for row in tables.csv_rows(stream, len(header)):
                if row is not None:
                    file, whose = row[header.index(_FILE)], row[header.index(column)]
                    found[file] = whose if found.get(file, whose) == whose else None
    return found


def _look_at(file: Path, classes: tuple[str, ...], shape: tuple[int, ...], size: Fault) -> Pixels | Fault:
    """The pixels of one file, or what is wrong with it; no other file is consulted."""
    if file.parent.name not in classes:
        return _UNDECLARED
    if file.suffix.lower() not in _SUFFIXES or not file.is_file():
        return _OTHER
    try:
        with _open_image(file) as image:
            if (image.height, image.width) != shape[1:]:
                return size
            if image.mode not in _GREY | _COLOUR:
                return _UNREADABLE
            pixels = np.asarray(image.convert("L" if shape[0] == 1 else "RGB"), np.uint8)
    except AirlockError:
        return _UNREADABLE
    return pixels[None] if shape[0] == 1 else pixels.transpose(2, 0, 1)


def _shown(file: Path) -> str:
    """The name of a file, printable even if it is not UTF-8."""
    return str(file).encode("utf-8", "replace").decode()


def _subfolders(path: Path) -> list[Path]:
    with reading(path, "a folder of images"):
        return sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))


def _image_files(folder: Path) -> list[Path]:
    with reading(folder, "a folder of images"):
        return sorted(p for p in folder.iterdir() if not p.name.startswith(".") and p.name.lower() not in _CLUTTER)


@contextmanager
def _open_image(file: Path) -> Iterator[Image.Image]:
    with reading(file, "an image"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(file, formats=_FORMATS) as image:
            yield image


# What kind of file it is, and its facts and records.


@dataclass(frozen=True)
class FileKind:
    """One kind of file: its name and its readers."""

    title: str
    shape: Callable[[Path, DataConfig], tuple[int, ...]]
    read: Callable[[Path, DataConfig, tuple[str, ...], Storage], Raw]


def _npz_shape(path: Path, data: DataConfig) -> tuple[int, ...]:
    return NpzFile(path).shape()


def _npz_read(path: Path, data: DataConfig, classes: tuple[str, ...], storage: Storage) -> Raw:
    return NpzFile(path).read(data.person, storage)[0]


NPZ = FileKind("npz file", _npz_shape, _npz_read)
CSV = FileKind("CSV file", tables.shape, tables.read_csv)
LINES = FileKind("file of lines", tables.shape, dataset_files.read_file)
DATASET = FileKind("folder of a data set", dataset_files.shape, dataset_files.read_folder)
PARQUET = FileKind("Parquet file", tables.shape, tables.read_parquet)
IMAGES = FileKind("folder of images", image_shape, read_images)
FRAME = FileKind("table in memory", memory.shape, memory.read)
ARRAYS = FileKind("arrays in memory", memory.shape, memory.read)
_KINDS = {".npz": NPZ, ".csv": CSV, ".parquet": PARQUET, ".pq": PARQUET}
_KINDS |= dict.fromkeys((".tsv", ".tsv.gz", ".jsonl", ".jsonl.gz", ".arrow"), LINES)


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
            "The number of private records is itself private, so it is not counted: give a public round figure. It "
            "need not be exact; it sets the sampling rate and the size of a step, and the guarantee holds regardless.",
            "Add a line such as records = 10000.",
        )
    if config.task == "language":
        _check_documents(data, kind)
    classes, named_by = _classes(data) if config.task == "classification" else ((), "")
    sized_by = "read off the records" if "records" in data.read_off else "declared, not counted"
    has_test = data.test is not None or _holds_test(path, kind)
    if data.test_records is not None and not has_test:
        raise ConfigError(
            "data.test_records only for a separate test file",
            "no such file",
            "Test records are split off by split.test.",
            "Remove it, or name the file in data.test.",
        )
    shape = kind.shape(path, data)
    about = {
        "classification": f"classes are {named_by}.",
        "regression": "the target's range is declared.",
        "language": "texts have no labels.",
    }
    tokenizer = None if data.text is None else open_tokenizer(data)
    known = Facts(
        name=data.name or "private data",
        shape=shape,
        classes=check_classes(classes) if config.task == "classification" else (),
        records=data.records,
        test_records=(data.test_records or max(1, round(data.records * config.split.test))) if has_test else None,
        origin=f"The owner's {kind.title}; the number of records is {sized_by}; " + about[config.task],
        columns=tuple(data.columns.items()),
        vocabulary=None if tokenizer is None else tokenizer.vocabulary,
        tokenizer=None if tokenizer is None else tokenizer.digest,
        read_off=data.read_off,
        target=data.target,
    )
    return _of_people(known, config, path, kind)


def _of_people(facts: Facts, config: ReleaseConfig, path: Path, kind: FileKind) -> Facts:
    """The same facts, with what is declared about the people whose records these are."""
    unit, data = unit_of(config), config.data
    if data.person is None:
        return facts
    if kind is NPZ:
        NpzFile(path).check_person(data.person)
    if kind is ARRAYS:
        memory.check_person(data.person)
    if unit == "record":
        return replace(facts, grouped=True)
    if facts.test_records is not None:
        refuse_test_file("data.test" if data.test is not None else "x_test and y_test beside the records")
    people, most = declared_people(data)
    origin = facts.origin.replace("the number of records is", "the numbers of people and records are")
    return replace(facts, people=people, records_per_person=most, origin=origin)


def read(config: ReleaseConfig, facts: Facts, storage: Storage = MEMORY) -> tuple[Raw, Raw | None]:
    """The records, and the test records if they are given separately."""
    data = config.data
    path = Path(data.source)
    kind = _kind(path)
    if data.test is not None:
        test = _read_test(Path(data.test), data, kind, facts.classes, storage)
        return kind.read(path, data, facts.classes, storage), test
    if kind is NPZ:
        return NpzFile(path).read(data.person, storage)
    return kind.read(path, data, facts.classes, storage), None


def _read_test(path: Path, data: DataConfig, kind: FileKind, classes: tuple[str, ...], storage: Storage) -> Raw:
    own = data.model_copy(update={"person": None})  # a test part by itself is not divided
    if kind is DATASET and path == Path(data.source):
        return dataset_files.read_folder(path, own, classes, storage, "test")
    return NpzFile(path).read_test(storage) if kind is NPZ else kind.read(path, own, classes, storage)


def _kind(path: Path) -> FileKind:
    if str(path) == memory.SOURCE:
        return FRAME if isinstance(memory.current(), memory.Frame) else ARRAYS
    if path.is_dir():
        return DATASET if dataset_files.is_dataset(path) else IMAGES
    if dataset_files.suffix_of(path) not in _KINDS:
        raise ConfigError(
            "a .npz, .csv, .tsv, .parquet or .jsonl file, or a folder of a data set or of images, as data.source",
            f"{path.name}",
            do="Convert the data to one of these.",
        )
    return _KINDS[dataset_files.suffix_of(path)]


def _check_keys(data: DataConfig, kind: FileKind) -> None:
    """Refuse keys that would be ignored, which hides mistakes, and a test file of another kind."""
    given = [key for key in ("label", "columns", "text", "tokenizer", "tokens") if getattr(data, key)]
    if kind in (NPZ, IMAGES) and given:
        raise ConfigError(f"data.label and data.columns only for a table, not for a {kind.title}", f"data.{given[0]}")
    wrong = next((key for key in given if key in ("tokenizer", "tokens") and data.text is None), None)
    wrong = "columns" if data.text is not None and data.columns else wrong
    if wrong is not None:
        raise ConfigError(
            "data.text for the column of the texts, with data.tokenizer and data.tokens, or data.columns",
            f"data.{wrong} {'along with' if data.text is not None else 'without'} data.text",
            "Records are either texts or rows of declared columns.",
            "Remove one of them.",
        )
    if data.target is not None and not (data.columns and kind in (CSV, LINES, PARQUET, DATASET, FRAME, ARRAYS)):
        raise ConfigError(
            'a table with data.columns for task = "regression"',
            f"a {kind.title}" + ("" if data.columns else " without data.columns"),
            "A number can be predicted from the columns of a table.",
            "Declare the columns, or take classes.",
        )
    if kind is not IMAGES and data.shape is not None:
        raise ConfigError(f"data.shape only for a folder of images, not for a {kind.title}", "one", do="Remove it.")
    if data.test is None:
        return
    if kind in (FRAME, ARRAYS):
        raise ConfigError(
            "no data.test for data in memory", "one", do="Leave it out: test records are split off by split.test."
        )
    path = Path(data.test)
    if not path.exists():
        raise ConfigError("a file or folder at data.test", f"nothing at {path}", do="Check the path.")
    if _kind(path) is not kind:
        raise ConfigError(f"data.test to be a {kind.title}, like data.source", f"a {_kind(path).title}")
    if _holds_test(Path(data.source), kind):
        raise ConfigError("test records in one place", "both x_test in data.source and data.test", do="Remove one.")


def _check_documents(data: DataConfig, kind: FileKind) -> None:
    """Refuse what holds no texts without labels, before anything is read."""
    if data.text is None or kind in (NPZ, IMAGES, ARRAYS):
        raise ConfigError(
            'a table with a column of texts in data.text, for task = "language"',
            f"{_a(kind.title)}" + ("" if data.text is not None else " without data.text"),
            "A language model predicts the next token of a text.",
            "Give a CSV, TSV, Parquet or JSON lines file, a folder of a data set, or a frame.",
        )


def _a(title: str) -> str:
    return title if title.startswith("arrays") else f"a {title}"


def _holds_test(path: Path, kind: FileKind) -> bool:
    return kind is NPZ and NpzFile(path).has_test()


def _classes(data: DataConfig) -> tuple[tuple[str, ...], str]:
    """The class names, and how they were declared."""
    if data.classes is None:
        raise ConfigError(
            "the class names in data.classes",
            "none",
            "Names inferred from records or subfolders would leak them: a class may exist because of one person.",
            'Add a line such as classes = ["no", "yes"], or classes = 10 if they are numbered 0 to 9.',
        )
    if isinstance(data.classes, int):
        _check_number(data.classes)
        return tuple(str(i) for i in range(data.classes)), "numbered, as declared"
    return data.classes, "read off the records" if "classes" in data.read_off else "declared"


def _check_number(classes: int) -> None:
    if not 0 <= classes <= 100_000:
        raise ConfigError("data.classes from 2 to 100000", str(classes), do="Correct it.")
