"""Limits on what reading a file may cost, and the errors for bad files, both in one place.

Files come from outside and may be truncated, corrupt or hostile. Every reader in this package checks here before it
allocates, reads streams in bounded steps, and runs third-party parsers inside `reading`, which turns whatever they
raise into a `FormatError`. A parser's own message is dropped: it may quote a record.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from airlock.errors import AirlockError, ConfigError, DataError, FormatError

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
