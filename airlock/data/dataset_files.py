"""Files of one record in each line, and folders of them as Hugging Face's `datasets` library and its hub have them.

In: a path, and which columns are wanted. Out: cells by column, block by block, as `data.tables` has them of CSV and
Parquet, so that they are encoded alike.

- `.tsv`: a header, then cells with tabs between them. There are no quotes: a quote is a character like any other.
- `.jsonl`: one JSON object in each line. A name that is not there is a missing cell.
- `.txt`: one text in each line.
- A folder with `.arrow` files (`save_to_disk`), or with `.parquet` or `.jsonl` files as a data set on the hub has them,
  there or in its folder `data`. Where file names begin with the name of a part (train-00000-of-00002.parquet), the
  records are those of `train`, and the test records those of `test`.

All may be gzipped, except Arrow and Parquet. No code of such a folder is executed, and nothing is downloaded.

A line that does not fit is left out by itself: one with another number of cells, one that is no JSON object, a value
that is a list or an object. What it is follows from that line alone. An Arrow file with compressed parts is refused,
because what they claim to hold would be allocated before anything is known of it.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from airlock.config import Column, DataConfig
from airlock.data import memory, tables
from airlock.data.limits import MEMORY, Storage, check_bytes, check_ratio, damaged, max_bytes, reading
from airlock.data.remarks import Fault, Faults
from airlock.data.validate import Raw
from airlock.errors import ConfigError

Blocks = Iterator[dict[str, tables.Cells]]
Wanted = Mapping[str, Column | None]
Reader = Callable[[Path, Wanted, Faults, str], Blocks]

_BLOCK = 8192
_STEP = 1 << 20
_MANY = 100_000  # files of a folder
_PART = re.compile(r"(train|test|validation)(?=[-_.])", re.I)
_NOT_JSON = Fault("not a JSON object", "Write one object in each line.")
_SUFFIXES = (".arrow", ".parquet", ".jsonl", ".jsonl.gz")
LABELS = "dataset_info.json"


def suffix_of(path: Path) -> str:
    """What kind of file a name says it is: its suffix, with the one before it if that says how it is compressed."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() + suffix if suffix == ".gz" else suffix


# Lines.


def tsv_blocks(path: Path, wanted: Wanted, faults: Faults, why: str = tables.DECLARED) -> Blocks:
    """The wanted columns of a file with tabs between its cells."""
    with reading(path, "a TSV file in UTF-8"):
        lines = _lines(path)
        header = [name.strip() for name in next(lines, "").split("\t")]
        places = tables.find_columns(header, wanted, path, why)
        misshapen = Fault(f"not {len(header)} cells like the header", "Correct the line and its tabs.")
        for first, block in _numbered(line.split("\t") for line in lines if line):
            faults.add(misshapen, (first + i for i, row in enumerate(block) if len(row) != len(header)))
            yield {
                name: [row[place] if len(row) == len(header) else None for row in block]
                for name, place in places.items()
            }


def jsonl_blocks(path: Path, wanted: Wanted, faults: Faults, why: str = tables.DECLARED) -> Blocks:
    """The wanted names of the objects in a file with one in each line; `why` is for readers that have a header."""
    with reading(path, "a file of JSON lines in UTF-8"):
        for first, block in _numbered(line for line in _lines(path) if line.strip()):
            rows = [_object(line) for line in block]
            faults.add(_NOT_JSON, (first + i for i, row in enumerate(rows) if row is None))
            yield {name: _values(name, column, rows, faults, first) for name, column in wanted.items()}


def _object(line: str) -> dict[str, Any] | None:
    """The object in a line, or None."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _values(
    name: str, column: Column | None, rows: Sequence[dict[str, Any] | None], faults: Faults, first: int
) -> list[str | None]:
    """One column of objects as text; a list or an object in it leaves its record out."""
    cells = np.empty(len(rows), object)
    cells[:] = [None if row is None else row.get(name) for row in rows]
    nested = [place for place, cell in enumerate(cells) if isinstance(cell, list | dict)]
    faults.add(Fault(f"a list or an object in '{name}'", "Write a text or a number."), (first + i for i in nested))
    cells[nested] = None
    number = column is not None and column.categories is None
    return memory.text(cells, ("0", "1") if number else ("false", "true"))


def line_blocks(path: Path, name: str) -> Blocks:
    """The lines of a file as a column of texts; an empty line is one too."""
    with reading(path, "a file of text"):
        for _, block in _numbered(_lines(path)):
            yield {name: block}


def stream_lines(stream: IO[bytes], name: str) -> Blocks:
    """The same of a stream."""
    for _, block in _numbered(_stripped(stream)):
        yield {name: block}


def _numbered(rows: Iterable[Any]) -> Iterator[tuple[int, list[Any]]]:
    """Rows in blocks, each with the position of its first."""
    rows, first = iter(rows), 0
    while block := list(islice(rows, _BLOCK)):
        yield first, block
        first += len(block)


def _lines(path: Path) -> Iterator[str]:
    """The lines of a file, gzipped or not, without their ends."""
    check_bytes(path, path.stat().st_size)
    with path.open("rb") as raw:
        packed = path.suffix.lower() == ".gz"
        stream = io.BufferedReader(_Unpacked(raw, path), _STEP) if packed else raw
        yield from _stripped(stream)


def _stripped(stream: IO[bytes]) -> Iterator[str]:
    """Lines in UTF-8 without their ends; what is no UTF-8 stands as surrogates, which no text has."""
    lines = io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape", newline="\n")
    try:
        for line in lines:
            yield line.removesuffix("\n").removesuffix("\r")
    finally:
        lines.detach()  # whoever opened the stream closes it


class _Unpacked(io.RawIOBase):
    """A gzipped file as it is unpacked, within the limits on what it may become.

    Args:
        raw: The file.
        path: Its name, for errors.
    """

    def __init__(self, raw: IO[bytes], path: Path) -> None:
        self._stream, self._path, self._read = gzip.GzipFile(fileobj=raw), path, 0
        self._packed, self._most = path.stat().st_size, max_bytes()

    def readable(self) -> bool:
        """It can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """The next bytes; refused when there are too many."""
        found = self._stream.read(len(buffer))
        self._read += len(found)
        check_bytes(self._path, self._read)
        check_ratio(self._path, self._packed, self._read)
        buffer[: len(found)] = found
        return len(found)


@dataclass(frozen=True)
class Texts:
    """Two files of labelled texts with tabs between their cells, as a named source has them: its records, its tests.

    Args:
        train: With a header and the two columns.
        test: The same.
        text: The column of the texts.
        label: The column of the labels, which are whole numbers from 0.
        classes: How many there are.
    """

    train: Path
    test: Path
    text: str
    label: str
    classes: int

    @property
    def where(self) -> Path:
        """The folder."""
        return self.train.parent

    def sizes(self) -> tuple[int, int | None]:
        """Training and test records, by counting lines."""
        return self._count(self.train), self._count(self.test)

    def read(self) -> tuple[Raw, Raw | None]:
        """Training and test records: texts and labels."""
        return self._file(self.train), self._file(self.test)

    def _count(self, path: Path) -> int:
        with reading(path, "a TSV file in UTF-8"):
            return sum(1 for line in _lines(path) if line) - 1

    def _file(self, path: Path) -> Raw:
        faults, texts, labels, first = Faults(), list[str | None](), [np.empty(0, np.int64)], 0
        names = tuple(map(str, range(self.classes)))
        for cells in tsv_blocks(path, {self.text: None, self.label: None}, faults):
            labels.append(tables.labels(self.label, cells[self.label], names, faults, first))
            texts += cells[self.text]  # a column of text has no numbers
            first = len(texts)
        whole = np.empty(len(texts), object)
        whole[:] = texts
        return Raw(whole, np.concatenate(labels), faults)


# Arrow.


def arrow_blocks(path: Path, wanted: Wanted, faults: Faults, why: str = tables.DECLARED) -> Blocks:
    """The wanted columns of a file in Arrow's streaming format, as `save_to_disk` writes it."""
    import pyarrow as pa

    with reading(path, "an Arrow file as datasets.save_to_disk writes it"):
        check_bytes(path, path.stat().st_size)
        with pa.memory_map(str(path)) as source:
            for message in pa.ipc.MessageReader.open_stream(source):
                if message.type == "record batch" and is_compressed(message.metadata.to_pybytes()):
                    raise damaged(path, "Arrow record batches that are not compressed", "compressed ones")
        with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as stream:
            names, first = list(tables.find_columns(stream.schema.names, wanted, path, why)), 0
            for batch in stream:
                batch.validate()
                for rows in range(0, batch.num_rows, _BLOCK):
                    part = batch.slice(rows, _BLOCK)
                    cells = {name: part.column(part.schema.get_field_index(name)) for name in names}
                    yield {name: tables.arrow_cells(name, _sound(cells[name]), wanted[name], faults, first + rows)
                           for name in names}  # fmt: skip
                first += batch.num_rows


def _sound(values: Any) -> Any:
    """A column whose offsets lie within its bytes; what the bytes are is judged cell by cell."""
    import pyarrow as pa

    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        large = pa.types.is_large_string(values.type)
        values = values.view(pa.large_binary() if large else pa.binary())
    values.validate(full=True)
    return values


def is_compressed(metadata: bytes) -> bool:
    """Whether a record batch says that its parts are compressed: the fourth field of its header in the flatbuffer."""
    message = struct.unpack_from("<I", metadata)[0]
    header = _field(metadata, message, 2)
    if header is None:
        return True  # nothing that this reader knows
    batch = header + struct.unpack_from("<I", metadata, header)[0]
    return _field(metadata, batch, 3) is not None


def _field(table: bytes, place: int, number: int) -> int | None:
    """Where a field of a flatbuffer's table is; None if it is not there."""
    fields = place - struct.unpack_from("<i", table, place)[0]
    size = struct.unpack_from("<H", table, fields)[0]
    if 4 + 2 * number + 2 > size:
        return None
    offset = struct.unpack_from("<H", table, fields + 4 + 2 * number)[0]
    return place + offset if offset else None


# Folders.

READERS: Mapping[str, Reader] = {
    ".csv": tables.csv_blocks,
    ".tsv": tsv_blocks,
    ".tsv.gz": tsv_blocks,
    ".jsonl": jsonl_blocks,
    ".jsonl.gz": jsonl_blocks,
    ".parquet": tables.parquet_blocks,
    ".pq": tables.parquet_blocks,
    ".arrow": arrow_blocks,
}


def is_dataset(path: Path) -> bool:
    """Whether a folder is one of tables, and not of images."""
    return bool(_files_in(path)) or (path / "dataset_dict.json").is_file()


def _files_in(path: Path) -> list[Path]:
    with reading(path, "a folder"):
        places = [path, path / "data"] if (path / "data").is_dir() else [path]
        found = [sorted(file for file in islice(place.iterdir(), _MANY) if suffix_of(file) in _SUFFIXES)
                 for place in places]  # fmt: skip
    return next((files for files in found if files), [])


def part_of(path: Path, part: str) -> list[Path]:
    """The files of a part of a folder: by their names, or all of them where no name says a part.

    Raises:
        ConfigError: It holds several data sets, or none for this part.
    """
    if (path / "dataset_dict.json").is_file():
        raise ConfigError(
            "the folder of one part of a data set",
            f"{path}, which has a folder for each",
            do="Name one of them, such as train, in data.source, and another in data.test.",
        )
    files = _files_in(path)
    named = [file for file in files if _PART.match(file.name)]
    chosen = [file for file in named if file.name.lower().startswith(part)] if named else files
    if not chosen:
        raise ConfigError(f"files whose names begin with {part} in {path}", "none", do="Check the folder.")
    if len({suffix_of(file) for file in chosen}) > 1:
        raise ConfigError(f"files of one kind in {path}", "several kinds", "One may be a copy of the other.")
    return chosen


def read_file(path: Path, data: DataConfig, classes: tuple[str, ...], storage: Storage = MEMORY) -> Raw:
    """All records of a file."""
    faults = Faults()
    blocks = READERS[suffix_of(path)](path, tables.wanted(data), faults, tables.DECLARED)
    return tables.encode_blocks(blocks, path, data, classes, faults, storage)


def read_folder(
    path: Path, data: DataConfig, classes: tuple[str, ...], storage: Storage = MEMORY, part: str = "train"
) -> Raw:
    """All records of a part of a folder."""
    faults, names = Faults(), _class_names(path, data)
    blocks = _one_after_another(part_of(path, part), tables.wanted(data), faults)
    if names:
        blocks = (_named(cells, str(data.label), names) for cells in blocks)
    return tables.encode_blocks(blocks, path, data, classes, faults, storage)


def _one_after_another(files: Sequence[Path], wanted: Wanted, faults: Faults) -> Blocks:
    """The blocks of several files as if they were one."""
    first = 0
    for file in files:
        own, seen = Faults(), 0
        for cells in READERS[suffix_of(file)](file, wanted, own, tables.DECLARED):
            for fault, places in own.taken().items():
                faults.add(fault, [first + place for place in places])
            seen += len(next(iter(cells.values())))
            yield cells
        first += seen


def _class_names(path: Path, data: DataConfig) -> Mapping[str, str]:
    """The class names that a folder's own description gives to the numbers of its labels, where names are declared.

    The description belongs to the data set as a whole. A record of a class that is not declared is left out.
    """
    if isinstance(data.classes, int) or data.target is not None or not (path / LABELS).is_file():
        return {}
    with reading(path / LABELS, "a description of a data set"):
        check_bytes(path / LABELS, (path / LABELS).stat().st_size)
        features = json.loads((path / LABELS).read_text(encoding="utf-8")).get("features") or {}
        names = (features.get(str(data.label)) or {}).get("names")
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        return {}
    return {str(place): name for place, name in enumerate(names)}


def _named(cells: dict[str, tables.Cells], label: str, names: Mapping[str, str]) -> dict[str, tables.Cells]:
    return cells | {label: [names.get(str(cell), None if cell is None else str(cell)) for cell in cells[label]]}


def shape(path: Path, data: DataConfig) -> tuple[int, ...]:
    """The shape of a record, from the declaration alone."""
    if path.is_dir():
        part_of(path, "train")
    return tables.shape(path, data)
