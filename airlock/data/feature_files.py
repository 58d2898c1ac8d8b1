"""Features on disk: shards of bounded size and a manifest of their hashes; Parquet or npz, never a pickle.

In: blocks of features and labels. Out: `features-00000.parquet` (or `.npz`) and so on, and `features.json`. A shard is
written under a temporary name and renamed when complete, so that a shard with its final name is finished; the next run
removes what an interrupted one left behind. At most one block (for npz: one shard) is in memory at a time.

A Parquet shard has the columns `features`, the numbers of one record as little-endian bytes, and `label`; an npz shard
has the arrays `x` and `y`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from airlock.data import npz
from airlock.data.limits import check_bytes, damaged, reading
from airlock.data.parquet_pages import largest_page
from airlock.data.split import Records
from airlock.errors import DataError, FormatError

Form = Literal["parquet", "npz"]
Precision = Literal["float16", "float32"]
Floats = NDArray[np.floating[Any]]
Labels = NDArray[np.int64]

MANIFEST = "features.json"
SHARD_BYTES = 32 << 20
NAME = re.compile(r"features-\d{5}\.(parquet|npz)")
_MANIFEST_BYTES = 16 << 20
_MOST_SHARDS = 9000  # a bundle holds no more files than can reasonably be inspected
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Layout:
    """How features are laid out in files.

    Args:
        shape: The shape of one record's features.
        form: The file format.
        precision: The number type.
        per_shard: Records per shard; the last shard may have fewer.
    """

    shape: tuple[int, ...]
    form: Form = "parquet"
    precision: Precision = "float16"
    per_shard: int = 0

    def __post_init__(self) -> None:
        if not self.per_shard:
            object.__setattr__(self, "per_shard", max(1, SHARD_BYTES // (self.row_bytes + 8)))

    @property
    def row_bytes(self) -> int:
        """The size of one record's features in bytes."""
        return math.prod(self.shape) * np.dtype(self.precision).itemsize

    def name(self, number: int) -> str:
        """The name of a shard, counted from 0."""
        return f"features-{number:05d}.{self.form}"

    def shards(self, records: int) -> list[range]:
        """The records of each shard; a single empty shard if there are no records.

        Raises:
            DataError: There would be more files than a bundle may have.
        """
        starts = range(0, max(1, records), self.per_shard)
        found = [range(at, min(at + self.per_shard, records)) for at in starts]
        if len(found) > _MOST_SHARDS:
            raise DataError(
                f"at most {_MOST_SHARDS:,} shards", f"{len(found):,}", do="Release fewer numbers per record."
            )
        return found


@dataclass(frozen=True)
class Shard:
    """One finished file."""

    name: str
    records: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The description of a set of features; `features.json` holds the same.

    Args:
        shape: The shape of one record's features.
        classes: The class names, in the order of the labels.
        form: The file format.
        precision: The number type.
        noise: The standard deviation of the noise on every number; None without noise.
        shards: The files, in order.
    """

    shape: tuple[int, ...]
    classes: tuple[str, ...]
    form: Form
    precision: Precision
    noise: float | None
    shards: tuple[Shard, ...]

    @property
    def records(self) -> int:
        """The total number of records."""
        return sum(shard.records for shard in self.shards)

    @property
    def row_bytes(self) -> int:
        """The size of one record's features in bytes."""
        return math.prod(self.shape) * np.dtype(self.precision).itemsize

    @property
    def bytes(self) -> int:
        """The total size of the files in bytes."""
        return sum(shard.bytes for shard in self.shards)

    def to_json(self) -> str:
        """The JSON text that is written to disk."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


class ShardWriter:
    """Writes one shard, block by block; it gets its final name only if the `with` block ends without an error.

    Args:
        folder: Where to write it.
        number: The number of the shard.
        layout: How it is laid out.
    """

    def __init__(self, folder: Path, number: int, layout: Layout) -> None:
        self.layout, self.path = layout, folder / layout.name(number)
        self.aside = folder / f".{self.path.name}.part"
        self.records = 0
        self._blocks: list[tuple[Floats, Labels]] = []
        self._file: Any = None
        self._parquet: Any = None

    def __enter__(self) -> Self:
        self._file = os.fdopen(os.open(self.aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
        return self

    def add(self, x: Floats, y: Labels) -> None:
        """Append records; numbers beyond the range of the precision are clamped to it."""
        most = float(np.finfo(self.layout.precision).max)
        flat = np.clip(x.reshape(len(x), math.prod(self.layout.shape)), -most, most)
        rows = flat.astype(f"<{np.dtype(self.layout.precision).str[1:]}")
        self.records += len(rows)
        if self.layout.form == "npz":
            self._blocks.append((rows, y))
        else:
            self._append(np.ascontiguousarray(rows), y)

    def _append(self, rows: Floats, y: Labels) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        kind = pa.binary(self.layout.row_bytes)
        if self._parquet is None:
            notes = {"shape": json.dumps(self.layout.shape), "precision": self.layout.precision}
            schema = pa.schema([("features", kind), ("label", pa.int32())], metadata=notes)
            self._parquet = pq.ParquetWriter(
                self._file, schema, compression="none", use_dictionary=False, write_statistics=False
            )
        features = pa.FixedSizeBinaryArray.from_buffers(kind, len(rows), [None, pa.py_buffer(rows)])
        self._parquet.write_batch(
            pa.record_batch([features, pa.array(y.astype(np.int32))], schema=self._parquet.schema)
        )

    def _finish(self) -> None:
        if self._parquet is not None:
            self._parquet.close()
        elif self._blocks:
            x, y = (np.concatenate(part) for part in zip(*self._blocks, strict=True))
            np.savez(self._file, x=x.reshape(len(x), *self.layout.shape), y=y)
            self._blocks.clear()
        self._file.flush()
        os.fsync(self._file.fileno())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._finish()
                os.replace(self.aside, self.path)
        finally:
            if self._parquet is not None:  # closed before its file, because closing writes to it
                self._parquet.close()
            self._file.close()
            self.aside.unlink(missing_ok=True)


def describe_shard(path: Path, records: int) -> Shard:
    """The manifest's entry for a finished file."""
    total = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            total.update(chunk)
    return Shard(path.name, records, path.stat().st_size, total.hexdigest())


def remove_unfinished(folder: Path) -> None:
    """Remove what an interrupted run left behind."""
    for path in folder.glob(".features-*.part"):
        path.unlink(missing_ok=True)


def remove_all(folder: Path) -> None:
    """Remove every shard, finished or not."""
    remove_unfinished(folder)
    for path in list(folder.iterdir()) if folder.is_dir() else []:
        if NAME.fullmatch(path.name):
            path.unlink()


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder of features, checked field by field.

    Raises:
        DataError: There is no manifest.
        FormatError: The file is not a manifest.
    """
    path = folder / MANIFEST
    with reading(path, "a manifest of features"):
        if path.stat().st_size > _MANIFEST_BYTES:
            raise damaged(path, "a manifest of features", "a far larger file")
        table = json.loads(path.read_text(encoding="utf-8"))
        return parse_manifest(table)


def parse_manifest(table: Any) -> Manifest:
    """A manifest from plain values.

    Raises:
        FormatError: They do not form a manifest.
    """
    try:
        shards = tuple(Shard(s["name"], s["records"], s["bytes"], s["sha256"]) for s in table["shards"])
        made = Manifest(
            tuple(table["shape"]), tuple(table["classes"]), table["form"], table["precision"], table["noise"], shards
        )
        counts = [*made.shape, *(n for shard in shards for n in (shard.records + 1, shard.bytes))]
        good = (
            set(table) == set(asdict(made))
            and bool(made.shape)
            and bool(shards)
            and all(type(count) is int and count > 0 for count in counts)  # a shard may have no record
            and all(type(name) is str for name in made.classes)
            and made.form in ("parquet", "npz")
            and made.precision in ("float16", "float32")
            and (made.noise is None or (isinstance(made.noise, float) and 0 < made.noise < math.inf))
            and [shard.name for shard in shards] == [Layout(made.shape, made.form).name(i) for i in range(len(shards))]
            and all(re.fullmatch("[0-9a-f]{64}", shard.sha256) for shard in shards)
        )
    except (KeyError, TypeError, AttributeError):
        good = False
    if not good:
        raise FormatError("a manifest of features", "something else", do="`airlock verify` says what is wrong.")
    return made


def blocks(folder: Path, manifest: Manifest) -> Iterator[Records]:
    """The features, shard by shard, as float32 in their shape, with their labels.

    A shard is read once and must have the digest in the manifest: whoever can write the folder cannot swap one.

    Raises:
        FormatError: A file does not match the manifest.
    """
    for shard in manifest.shards:
        path = folder / shard.name
        with reading(path, "a shard of features"):
            size = path.stat().st_size
            check_bytes(path, size)
            if shard.records * manifest.row_bytes > size:  # numbers are stored as they are
                raise damaged(path, f"{shard.records} records", "a file that is too small for them")
            content = _whole(path, size, shard)
            x, y = (_read_parquet if manifest.form == "parquet" else _read_npz)(path, content, manifest)
            good = x.shape == (shard.records, *manifest.shape) and len(y) == shard.records
            if not (good and np.isfinite(x).all() and ((y >= 0) & (y < len(manifest.classes))).all()):
                raise damaged(path, "finite features with labels of the named classes", "something else")
        yield Records(x, y)


def _whole(path: Path, size: int, shard: Shard) -> bytes:
    """The content of a shard, if it is the one that the manifest names."""
    with path.open("rb") as stream:
        content = stream.read(size + 1)
    if hashlib.sha256(content).hexdigest() != shard.sha256:
        raise damaged(path, f"the file that {MANIFEST} names", "another")
    return content


def load(folder: Path, manifest: Manifest, most_bytes: int | None = None) -> Records:
    """All features in memory, or the first ones up to `most_bytes`; at least one shard."""
    found: list[Records] = []
    for part in blocks(folder, manifest):
        found.append(part)
        if most_bytes is not None and sum(one.x.nbytes for one in found) >= most_bytes:
            break
    x, y = (np.concatenate([getattr(one, key) for one in found]) for key in "xy")
    return Records(x, y)


def _read_npz(path: Path, content: bytes, manifest: Manifest) -> tuple[Floats, Labels]:
    found = npz.read(path, ("x", "y"), content)
    if set(found) != {"x", "y"} or found["x"].dtype != manifest.precision or found["y"].dtype != np.int64:
        raise damaged(path, f"the arrays x ({manifest.precision}) and y", "others")
    return found["x"].astype(np.float32), found["y"].astype(np.int64)


def _read_parquet(path: Path, content: bytes, manifest: Manifest) -> tuple[Floats, Labels]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted, size = Layout(manifest.shape, manifest.form, manifest.precision), len(content)
    with contextlib.closing(pq.ParquetFile(pa.BufferReader(content))) as file:
        schema = file.schema_arrow
        if schema.names != ["features", "label"] or schema.types != [pa.binary(wanted.row_bytes), pa.int32()]:
            raise damaged(path, "the columns features and label", "others")
        check_bytes(path, file.metadata.num_rows * (wanted.row_bytes + 4))
        largest = largest_page(path, file.metadata, schema.names, content)
        if largest > size or file.metadata.num_rows * wanted.row_bytes > size:
            raise damaged(path, "numbers that are stored as they are", "packed ones")
        table = file.read(use_threads=False)
    if table["features"].null_count or table["label"].null_count:
        raise damaged(path, "no missing values", "some")
    chunks = [_numbers(chunk, wanted) for chunk in table["features"].chunks if len(chunk)]
    empty = np.empty((0, *wanted.shape), np.float32)
    return np.concatenate([empty, *chunks]), table["label"].to_numpy().astype(np.int64)


def _numbers(chunk: Any, wanted: Layout) -> NDArray[np.float32]:
    """A chunk of raw bytes as numbers; nothing is copied before the cast."""
    start, size = chunk.offset * wanted.row_bytes, len(chunk) * wanted.row_bytes
    raw = np.frombuffer(chunk.buffers()[1], np.uint8)[start : start + size]
    numbers = raw.view(f"<{np.dtype(wanted.precision).str[1:]}")
    return numbers.astype(np.float32).reshape(len(chunk), *wanted.shape)


def make_manifest(layout: Layout, classes: Sequence[str], noise: float | None, shards: Sequence[Shard]) -> Manifest:
    """The manifest of what was written."""
    return Manifest(layout.shape, tuple(classes), layout.form, layout.precision, noise, tuple(shards))
