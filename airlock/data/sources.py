"""The named sources: public benchmarks, what is published about each, and where their files are looked for.

In: a name and a folder. Out: the `Source`, and its `Place` if the files are present. Nothing is ever downloaded.

A source of another package (entry points `airlock.sources`) is a `Source` too. Its shape, classes and sizes are part of
it, so what is public is known before a record is read; `find` is called when records are loaded. What `read` returns is
treated like everybody's records: those that do not fit are left out and reported to the holder, and a record's part
follows from its own content. The author of `read` answers for the rest: adding or removing one record must not change
another, nor end in an error. A bundle never names such a source: as with the user's own files, the auditor says where
the records are.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from airlock import plugins
from airlock.config import Column
from airlock.data import benchmarks, cifar, dataset_files, memory
from airlock.data.npz import NpzFile
from airlock.data.validate import Raw, check_classes
from airlock.errors import AirlockError, ConfigError, DataError

FOLDER_VARIABLE = "AIRLOCK_DATA"
_DEBIAN_FASHION = Path("/usr/share/datasets/fashion-mnist")


class Place(Protocol):
    """Files that were found: they can be read, and counted for the holder alone."""

    @property
    def where(self) -> Path | None:
        """The folder or file; None if it is built in."""

    def sizes(self) -> tuple[int, int | None]:
        """The numbers of training and test records; None if there is no official test set."""

    def read(self) -> tuple[Raw, Raw | None]:
        """Training and test records."""


@dataclass(frozen=True)
class Source:
    """A public benchmark.

    Args:
        name: Its name in a config.
        title: Its usual name, and its authors.
        shape: The shape of one record; of texts it follows from the config.
        classes: The class names, in the order of the labels.
        records: The published number of training records.
        test_records: The published number of test records; None when there is no official test set.
        get: Instructions for getting it.
        find: Looks for it in a folder.
        package: Where it comes from, if it is not Airlock's own; filled in when it is looked up.
        columns: Of a table: its columns by name, in the order in which they are encoded.
        text: Of texts: the name of their column. `read` then gives them as an array of text, with None where there is
            none, and they are encoded by the tokenizer that the config names.
    """

    name: str
    title: str
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    records: int
    test_records: int | None
    get: str
    find: Callable[[Path], Place | None]
    package: str = ""
    columns: tuple[tuple[str, Column], ...] = ()
    text: str | None = None


@dataclass(frozen=True)
class Listing:
    """One line of `airlock datasets`: a source and which of its files were found.

    Args:
        source: The source; `source.get` says how to get it.
        found: Whether its files are present and usable.
        where: The folder or file; None if it is built in or missing.
        records: Training records found, or the published number if nothing is found.
        test_records: Test records found or published; None if there is no official test set.
        problem: Why files that are present cannot be used.
    """

    source: Source
    found: bool
    where: Path | None
    records: int
    test_records: int | None
    problem: str | None = None


@dataclass(frozen=True)
class BuiltInDigits:
    """scikit-learn's digits, which come with the package."""

    where: None = None

    def sizes(self) -> tuple[int, int | None]:
        """The published size."""
        return 1797, None

    def read(self) -> tuple[Raw, Raw | None]:
        """All records, scaled from 0..16 to [0, 1]."""
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        return Raw((x / 16).astype(np.float32).reshape(-1, 1, 8, 8), np.asarray(y, np.int64)), None


def data_folder(data_dir: Path | None = None) -> Path:
    """The data folder: the argument, else AIRLOCK_DATA, else ./data."""
    return Path(data_dir) if data_dir is not None else Path(os.environ.get(FOLDER_VARIABLE) or "data")


def find_all(data_dir: Path | None = None) -> list[Listing]:
    """Every named source, and what was found of it; those of other packages are imported for this."""
    folder = data_folder(data_dir)
    return [*(_list(source, folder) for source in SOURCES.values()), *(_other(name, folder) for name in OTHERS.names())]


def named(text: str, data_dir: Path | None) -> tuple[Source, Path] | None:
    """The source that `data.source` names, and the folder to look in; None if it is a path of the user's own.

    A path whose last part is a known name and which holds that source's files also means the source: if a config lies
    next to a folder `mnist`, its `data = "mnist"` is turned into such a path.
    """
    if text in SOURCES:
        return SOURCES[text], data_folder(data_dir)
    if text in OTHERS:
        return OTHERS.get(text), data_folder(data_dir)
    if text == memory.SOURCE:
        return None
    path = Path(text)
    if path.name in SOURCES and path.is_dir() and SOURCES[path.name].find(path.parent) is not None:
        return SOURCES[path.name], path.parent
    if not path.exists():
        known = (*SOURCES, *OTHERS.names())
        near = difflib.get_close_matches(text.lower(), known, n=1)
        hint = f"Did you mean '{near[0]}'?" if near else f"Known names: {', '.join(known)}."
        raise ConfigError("a named source or an existing path as data.source", f"'{text}'", do=hint)
    return None


def _list(source: Source, folder: Path) -> Listing:
    where = None
    try:
        place = source.find(folder)
        if place is None:
            return Listing(source, False, None, source.records, source.test_records)
        where = place.where
        return Listing(source, True, where, *place.sizes())
    except AirlockError as error:
        return Listing(source, False, where, source.records, source.test_records, str(error))


def _other(name: str, folder: Path) -> Listing:
    """One of another package; what is wrong with it is told in its line."""
    try:
        return _list(OTHERS.get(name), folder)
    except AirlockError as error:
        broken = Source(name, name, (), (), 0, None, "Install its package again.", _nowhere, OTHERS.package(name))
        return Listing(broken, False, None, 0, None, str(error))


def _nowhere(folder: Path) -> Place | None:
    return None


def _find_digits(folder: Path) -> Place | None:
    return BuiltInDigits()


def _find_idx(name: str, other_name: str) -> Callable[[Path], Place | None]:
    """Both sets use the same file names: files directly in `folder` belong to the set that the folder is named for."""

    def find(folder: Path) -> Place | None:
        places = [folder / name, folder / name / "raw", folder / name / other_name / "raw", folder / other_name / "raw"]
        fashion = "fashion" in folder.resolve().name.lower()
        places += [folder, folder / "raw"] if fashion == ("fashion" in name) else []
        places += [_DEBIAN_FASHION] if "fashion" in name else []
        return _first(benchmarks.find_idx, *places) or _find_npz(folder, name)

    return find


def _find_in(name: str, find_in: Callable[[Path], Place | None], *subfolders: str) -> Callable[[Path], Place | None]:
    def find(folder: Path) -> Place | None:
        return _first(find_in, *(place / sub for place in (folder / name, folder) for sub in ("", *subfolders)))

    return find


def _or_npz(name: str, find: Callable[[Path], Place | None]) -> Callable[[Path], Place | None]:
    return lambda folder: find(folder) or _find_npz(folder, name)


def _first(find: Callable[[Path], Place | None], *places: Path) -> Place | None:
    return next((found for found in map(find, places) if found is not None), None)


def _find_npz(folder: Path, name: str) -> Place | None:
    files = (folder / f"{name}.npz", folder / name / f"{name}.npz")
    return next((NpzFile(file) for file in files if file.is_file()), None)


def _find_sst2(folder: Path) -> Place | None:
    for place in (folder / "sst2", folder):
        for end in (".tsv.gz", ".tsv"):
            train, test = place / f"sst2_train{end}", place / f"sst2_test{end}"
            if train.is_file() and test.is_file():
                return dataset_files.Texts(train, test, "sentence", "label", 2)
    return None


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_DIGITS = tuple("0123456789")
_CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
_TEN = _words("airplane automobile bird cat deer dog frog horse ship truck")
_HUNDRED = _words(
    "apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can "
    "castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin "
    "elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard "
    "lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear "
    "pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark "
    "shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone "
    "television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm"
)
_IDX = "{train,t10k}-{images-idx3,labels-idx1}-ubyte.gz"
_CIFAR_HOME = "from Alex Krizhevsky's page at the University of Toronto; unpacked, or the archive itself"

SOURCES = {
    source.name: source
    for source in (
        Source(
            "digits",
            "Optical digits (scikit-learn's copy)",
            (1, 8, 8),
            _DIGITS,
            1797,
            None,
            "Comes with scikit-learn.",
            _find_digits,
        ),
        Source(
            "mnist",
            "MNIST (LeCun, Cortes, Burges)",
            (1, 28, 28),
            _DIGITS,
            60_000,
            10_000,
            f"The four files {_IDX} of the MNIST database, into mnist/ (gzipped or not).",
            _find_idx("mnist", "MNIST"),
        ),
        Source(
            "fashion-mnist",
            "Fashion-MNIST (Zalando Research)",
            (1, 28, 28),
            _CLOTHES,
            60_000,
            10_000,
            "The Debian package dataset-fashion-mnist, or its four "
            f"files {_IDX} from Zalando Research's repository, into fashion-mnist/.",
            _find_idx("fashion-mnist", "FashionMNIST"),
        ),
        Source(
            "cifar10",
            "CIFAR-10 (Krizhevsky 2009)",
            (3, 32, 32),
            _TEN,
            50_000,
            10_000,
            f"cifar-10-binary.tar.gz or cifar-10-python.tar.gz {_CIFAR_HOME}, into cifar10/.",
            _or_npz("cifar10", lambda folder: cifar.find(cifar.CIFAR10, folder, "cifar10")),
        ),
        Source(
            "cifar100",
            "CIFAR-100, fine labels (Krizhevsky 2009)",
            (3, 32, 32),
            _HUNDRED,
            50_000,
            10_000,
            f"cifar-100-binary.tar.gz or cifar-100-python.tar.gz {_CIFAR_HOME}, into cifar100/.",
            _or_npz("cifar100", lambda folder: cifar.find(cifar.CIFAR100, folder, "cifar100")),
        ),
        Source(
            "svhn",
            "SVHN, cropped digits (Netzer et al. 2011)",
            (3, 32, 32),
            _DIGITS,
            73_257,
            26_032,
            "train_32x32.mat and test_32x32.mat from the Street View House Numbers page at Stanford, into svhn/.",
            _or_npz("svhn", _find_in("svhn", benchmarks.find_svhn)),
        ),
        Source(
            "adult",
            "Adult census income (Becker and Kohavi 1996, UCI)",
            (benchmarks.ADULT_FEATURES,),
            benchmarks.ADULT_CLASSES,
            32_561,
            16_281,
            "adult.data and adult.test from the UCI Machine Learning Repository, into adult/.",
            _find_in("adult", benchmarks.find_adult),
            columns=tuple(benchmarks.ADULT_COLUMNS.items()),
        ),
        Source(
            "location30",
            "Location-30, Bangkok check-ins (Shokri et al. 2017)",
            (benchmarks.LOCATION_FEATURES,),
            tuple(f"cluster {i}" for i in range(1, benchmarks.LOCATION_CLASSES + 1)),
            5_010,
            None,
            "dataset_location.tgz from the data sets of the Privacy and Trust Lab; unpack the file bangkok into "
            "location30/.",
            _or_npz("location30", _find_in("location30", benchmarks.find_location, "dataset_location")),
        ),
        Source(
            "sst2",
            "SST-2, sentences and phrases of film reviews (Socher et al. 2013, as in GLUE)",
            (),
            ("negative", "positive"),
            67_349,
            872,
            "GLUE's train.tsv and dev.tsv of SST-2 (columns sentence and label), as sst2_train.tsv and sst2_test.tsv, "
            "gzipped or not, into sst2/.",
            _find_sst2,
            text="sentence",
        ),
    )
}


# Sources of other packages.


@dataclass(frozen=True)
class ForeignPlace:
    """What another package's source found; whatever fails in it names it, and repeats nothing that it read."""

    name: str
    place: Place
    texts: bool = False

    @property
    def where(self) -> Path | None:
        """The folder or file; None when it is built in."""
        return self.place.where

    def sizes(self) -> tuple[int, int | None]:
        """As the source counts them."""
        with OTHERS.blamed(self.name, "count its records"):
            count, tests = self.place.sizes()
            return int(count), None if tests is None else int(tests)

    def read(self) -> tuple[Raw, Raw | None]:
        """As the source reads them.

        Raises:
            DataError: It gives no arrays of numbers.
        """
        with OTHERS.blamed(self.name, "read its records"):
            pool, test = self.place.read()
        for raw in (pool, test):
            fit = _texts if self.texts else _numeric
            if raw is not None and not (isinstance(raw, Raw) and fit(raw.x) and _numeric(raw.y)):
                raise DataError(
                    f"airlock.data.Raw with arrays of numbers from the {OTHERS.whose(self.name)}",
                    "something else",
                    "Records are checked, left out or kept by what their arrays say.",
                    "Tell whoever wrote it.",
                )
        return pool, test


def register(source: Source) -> Source:
    """Make a source known to this process under its own name."""
    OTHERS.register(source.name, source)
    return source


def _texts(array: object) -> bool:
    return isinstance(array, np.ndarray) and array.ndim == 1 and array.dtype.kind in "OU"


def _numeric(array: object) -> bool:
    return isinstance(array, np.ndarray) and array.ndim >= 1 and array.dtype.kind in "fiub"


def _checked(thing: object, name: str) -> Source:
    """A source of its own name that says what is public about it; `find` and what it finds are watched from now on."""
    if not isinstance(thing, Source) or thing.name != name:
        raise DataError(
            f"an airlock.data.Source named '{name}'",
            f"'{thing.name}'" if isinstance(thing, Source) else type(thing).__name__,
            "Cards name the data by what the source says.",
        )
    sizes = [thing.records, *([] if thing.test_records is None else [thing.test_records]), *thing.shape]
    tuples = isinstance(thing.shape, tuple) and isinstance(thing.classes, tuple)
    fits = len(thing.shape) in (1, 3) if thing.text is None else not thing.shape
    if not tuples or not fits or not all(type(size) is int and size >= 1 for size in sizes):
        raise DataError(
            f"(features,) or (channels, height, width), class names and sizes above 0 in the source '{name}'",
            "something else",
            "They are public, and known before a record is read.",
        )
    check_classes(thing.classes)

    def find(folder: Path) -> Place | None:
        with OTHERS.blamed(name, "look for its files", quote=True):
            place = thing.find(folder)
        return None if place is None else ForeignPlace(name, place, thing.text is not None)

    return replace(thing, find=find, package=OTHERS.package(name))


OTHERS = plugins.Registry(plugins.SOURCES, "data source", SOURCES, _checked, DataError)
