"""What reading may cost: limits on what a file may claim, and a file in place of memory for a set that is larger.

Files come from outside and may be truncated, corrupt or hostile. Every reader in this package checks here before it
allocates, reads streams in bounded steps, and runs third-party parsers inside `reading`, which turns whatever they
raise into a `FormatError`. A parser's own message is dropped: it may quote a record.

Storage. A set that does not fit into memory is read block by block. Each block is checked and encoded as always and
appended to a file; then the file is written once more in the order of the split, so that every part is one stretch of
it. Records in a file are an array like any other (a read-only `numpy.memmap`), of which the system holds in memory what
is in use. Everything that is computed from them is the same, bit for bit.

The file holds private records, encoded. It lies in the vault's folder and has no name: it is removed from the folder
when it is made (or never enters it, where the system can do that), is for its owner alone as long as it has one, and
the system frees its room when the last array over it is gone or the process has ended, however it ended. So nothing has
to be removed afterwards.

Two passes put rows in any order, whatever the size: rows first go to the window of the new file that they belong to,
and then each window, which fits in memory, is sorted. Every pass reads and writes in long stretches.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from airlock.errors import AirlockError, ConfigError, DataError, FormatError, OutputError

MAX_BYTES_VARIABLE = "AIRLOCK_MAX_BYTES"
DEFAULT_MAX_BYTES = 16 * 2**30
_MAX_RATIO, _RATIO_MATTERS_FROM = 500, 100 * 10**6  # gzip and zlib reach 1030:1 on zeros
_STEP = 2**22


def max_bytes() -> int:
    """The largest number of bytes that one file may decode to."""
    text = os.environ.get(MAX_BYTES_VARIABLE)
    if not text:
        return DEFAULT_MAX_BYTES
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ConfigError(
            f"a whole number of bytes in {MAX_BYTES_VARIABLE}", "something else", do="Correct it or unset it."
        )
    return int(text)


def check_bytes(path: Path, size: int) -> None:
    """Refuse a file that would decode to more than `max_bytes`."""
    limit = max_bytes()
    if size > limit:
        raise DataError(
            f"at most {limit} bytes of decoded data in {path}",
            f"{size} according to its header",
            "Reading it could exhaust this machine's memory.",
            f"If the file is correct and the memory suffices, set {MAX_BYTES_VARIABLE}.",
        )


def check_ratio(path: Path, packed: int, unpacked: int) -> None:
    """Refuse a compressed member that would grow absurdly when unpacked."""
    if unpacked > _RATIO_MATTERS_FROM and unpacked > _MAX_RATIO * max(packed, 1):
        raise FormatError(
            f"a compression ratio of at most {_MAX_RATIO}:1 in {path}",
            f"{unpacked} bytes packed into {packed}",
            "Real data does not compress that well, but files built to exhaust a machine's memory do.",
            "Get the file again from its source, or save it uncompressed.",
        )


def read_exactly(stream: IO[bytes], size: int, path: Path) -> bytearray:
    """Read `size` bytes in bounded steps, and make sure that the stream ends there."""
    check_bytes(path, size)
    data = bytearray()
    while len(data) < size:
        piece = stream.read(min(_STEP, size - len(data)))
        if not piece:
            raise damaged(path, f"{size} bytes after its header", f"only {len(data)}: it is cut off")
        data += piece
    if stream.read(1):
        raise damaged(path, f"{size} bytes after its header", "more")
    return data


def read_file(path: Path) -> bytes:
    """A whole file, if it is not too large."""
    with reading(path, "a file"):
        check_bytes(path, path.stat().st_size)
        return path.read_bytes()


def count_lines(path: Path, comment: bytes = b"|") -> int:
    """The number of lines that are neither blank nor a comment; their content is not examined."""
    with reading(path, "a text file"):
        check_bytes(path, path.stat().st_size)
        with path.open("rb") as stream:
            return sum(1 for line in stream if line.strip() and not line.startswith(comment))


def damaged(path: Path, expected: str, found: str) -> FormatError:
    """The error for a file that contradicts itself."""
    return FormatError(
        f"{expected} in {path}",
        found,
        "The file is truncated, corrupt or of another kind.",
        "Get it or write it again.",
    )


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Run a parser on `path`; whatever it raises becomes one of this package's errors, without the parser's message."""
    try:
        yield
    except AirlockError:
        raise
    except FileNotFoundError:
        raise DataError(f"{kind} at {path}", "nothing", do="Check the path.") from None
    except PermissionError:
        raise DataError(f"{kind} at {path}", "one that this user may not read", do="Change its permissions.") from None
    except IsADirectoryError:
        raise DataError(f"{kind} at {path}", "a folder", do="Check the path.") from None
    except MemoryError:
        raise DataError(f"enough memory to read {path}", "too little", do="Use a machine with more memory.") from None
    except Exception as error:  # noqa: BLE001 - no parser documents what it raises on a corrupt file
        raise damaged(path, kind, f"something that its parser cannot read ({type(error).__name__})") from None


# Storage: in memory, or in a file.

MEMORY_VARIABLE = "AIRLOCK_MEMORY_BYTES"
_PIECE, _STRETCH = 2**21, 2**12  # bytes: of a block in memory at least; of what goes to a window at once, about
_NEIGHBOURHOOD = 2**18  # bytes that a system fetches along with what is asked for, about twice
_COPIES = 2.25  # of the encoded records, while they are put in order
_CGROUP = Path("/sys/fs/cgroup/memory.max")

Array = NDArray[np.generic]
Index = NDArray[np.int64]


@dataclass(frozen=True)
class Storage:
    """In memory, or in files without a name.

    Args:
        folder: Where these files are; None for memory.
    """

    folder: Path | None = None

    def rows(self, one: int) -> int:
        """How many rows of so many bytes a block has."""
        return max(1, _PIECE // max(1, one))

    def gather(self, blocks: Iterable[Array], none: Array) -> Array:
        """Blocks of rows, one after the other, as one array.

        Args:
            blocks: Of the shape and type of `none`, but for the number of rows.
            none: A block without rows.

        Raises:
            OutputError: The disk is full.
        """
        if self.folder is None:
            return np.concatenate([none, *blocks])
        with self._file() as file:
            for block in blocks:
                _write(file, np.ascontiguousarray(block, none.dtype), self.folder)
            return _mapped(file, none, self.folder)

    def copy(self, stream: IO[bytes], size: int) -> IO[bytes]:
        """A file of this folder with so many bytes of a stream, or fewer if it ends before; the caller closes it."""
        assert self.folder is not None
        with contextlib.ExitStack() as unless_whole:
            file = unless_whole.enter_context(self._file())
            while size > 0 and (piece := stream.read(min(_PIECE, size))):
                _write(file, np.frombuffer(piece, np.uint8), self.folder)
                size -= len(piece)
            unless_whole.pop_all()
        return file

    def take(self, x: Array, index: Index) -> Array:
        """The rows at these positions, each at most once.

        Raises:
            OutputError: The disk is full.
        """
        return x[index] if self.folder is None else self._ordered(x, index, self.folder)

    def _ordered(self, x: Array, index: Index, folder: Path) -> Array:
        """x[index], in a file."""
        none = np.empty((0, *x.shape[1:]), x.dtype)
        one = max(1, math.prod(x.shape[1:]) * x.dtype.itemsize)
        rows = max(_PIECE, math.isqrt(one * len(index) * _STRETCH)) // one or 1
        place = np.full(len(x), -1, np.int64)
        place[index] = np.arange(len(index))
        source = np.flatnonzero(place >= 0)
        place = place[source]  # where each of them goes, in the order of x
        window = place // rows
        with self._file() as file:
            free = np.arange(0, len(place), rows)  # where the next row of each window goes
            for start in range(0, len(place), rows):
                own = window[start : start + rows]
                turn = np.argsort(own, kind="stable")
                block = x[source[start : start + rows][turn]]
                for number, part in _runs(own[turn]):
                    file.seek(int(free[number]) * one)
                    _write(file, block[part], folder)
                    free[number] += part.stop - part.start
            arrived = place[np.argsort(window, kind="stable")]
            for start in range(0, len(place), rows):
                goal = arrived[start : start + rows] - start
                file.seek(start * one)
                found = np.frombuffer(file.read(len(goal) * one), x.dtype).reshape(len(goal), *x.shape[1:])
                block = np.empty_like(found)
                block[goal] = found
                file.seek(start * one)
                _write(file, block, folder)
            return _mapped(file, none, folder)

    def _file(self) -> IO[bytes]:
        assert self.folder is not None
        with _disk(self.folder):
            return tempfile.TemporaryFile(dir=self.folder)


MEMORY = Storage()


def _runs(sorted_values: Index) -> Iterator[tuple[int, slice]]:
    """Where each value begins and ends."""
    edges = [0, *(np.flatnonzero(np.diff(sorted_values)) + 1).tolist(), len(sorted_values)]
    for start, end in itertools.pairwise(edges):
        if end > start:
            yield int(sorted_values[start]), slice(start, end)


def _write(file: IO[bytes], block: Array, folder: Path) -> None:
    with _disk(folder):
        file.write(np.ascontiguousarray(block).reshape(-1).view(np.uint8).data)


def _mapped(file: IO[bytes], none: Array, folder: Path) -> Array:
    """The rows in a file, as an array that cannot be written to."""
    with _disk(folder):
        file.flush()
    size, one = file.seek(0, io.SEEK_END), math.prod(none.shape[1:]) * none.dtype.itemsize
    if not size:
        return none
    shape = (size // one, *none.shape[1:])
    return np.memmap(file, none.dtype, "r", shape=shape)


@contextlib.contextmanager
def _disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"room for the encoded records in {folder}",
            f"{error.strerror or type(error).__name__}",
            "Records that do not fit into memory are held in a file there, for a short time twice.",
            f"Name a vault on a larger disk with --vault or AIRLOCK_VAULT, or set {MEMORY_VARIABLE}.",
        ) from error


# Which of both.


def memory_bytes() -> int:
    """The most bytes of encoded records that are held in memory: half of this machine's, or AIRLOCK_MEMORY_BYTES.

    Raises:
        ConfigError: The variable holds something else than a number.
    """
    text = os.environ.get(MEMORY_VARIABLE)
    if text:
        if not (text.isascii() and text.isdigit()):
            raise ConfigError(
                f"a whole number of bytes in {MEMORY_VARIABLE}", "something else", do="Correct it or unset it."
            )
        return int(text)
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with contextlib.suppress(OSError, ValueError):  # a container may have less; "max" is no number
        found.append(int(_CGROUP.read_text()))
    return min(found) // 2


def check_room(folder: Path, size: int) -> None:
    """Refuse a disk without room for so many bytes of encoded records, before one is read.

    Raises:
        OutputError: There is too little room.
    """
    with _disk(folder):
        free = shutil.disk_usage(folder).free
    needed = int(_COPIES * size)
    if free < needed:
        raise OutputError(
            f"{needed:,} bytes of free disk for the encoded records in {folder}",
            f"{free:,}",
            "Records that do not fit into memory are held in a file there, for a short time twice.",
            f"Name a vault on a larger disk with --vault or AIRLOCK_VAULT, or set {MEMORY_VARIABLE}.",
        )


def announce(x: Array, index: Index) -> None:
    """Tell the system that these rows of a file will be read, so that it fetches them together and nothing beside them.

    Otherwise it would wait for each, and fetch its neighbourhood along with it. Where rows are close to each other, it
    is left to do so.
    """
    one = math.prod(x.shape[1:]) * x.dtype.itemsize
    if not is_on_disk(x) or len(index) * _NEIGHBOURHOOD > x.nbytes:
        return
    mapping: Any = x._mmap  # type: ignore[attr-defined]
    begins = np.frombuffer(mapping, np.uint8).__array_interface__["data"][0]
    first = x.__array_interface__["data"][0] - begins
    for place in (first + index * one).tolist():
        start = place - place % mmap.PAGESIZE
        mapping.madvise(mmap.MADV_WILLNEED, start, place + one - start)


def is_on_disk(x: Any) -> bool:
    """Whether an array lies in a file."""
    return isinstance(x, np.memmap)
