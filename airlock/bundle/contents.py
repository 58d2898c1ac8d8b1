"""The file names of a bundle, and the files found in a folder that claims to be one.

`Contents` gives access to those files without ever following a link; a `Test` is one check of them. Whoever can write
the folder can swap a file at any moment, so every file has one digest: what is read must have it, and what is handed on
from a verification to whoever uses the bundle are those digests.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from airlock.bundle.files import digest, open_plain, read_file
from airlock.data.feature_files import MANIFEST, NAME
from airlock.errors import FormatError

CARD, HTML, README = "card.json", "card.html", "README.md"
SAFETENSORS, ONNX, CONFIG = "model.safetensors", "model.onnx", "config.toml"
SUMS, INTERFACE = "SHA256SUMS", "interface.json"
SCHEMA, TABLE_ONNX = "schema.json", "model.table.onnx"
TOKENIZER = "tokenizer.json"
SIGNATURE, APPROVAL = "model.sig", "approval.sig"
SIGNATURES = (SIGNATURE, APPROVAL)  # they cover all other files, and are in no list themselves
PATH_REMOVED = "(a path, removed)"
_LOOKS_LIKE_PATH = re.compile(r"^(~|\.{1,2}[/\\]|[/\\]|[A-Za-z]:[/\\])|[/\\]|^\w+://")
INT8, FP16 = "model.int8.onnx", "model.fp16.onnx"
SMALLER = (INT8, FP16)  # in addition to the network, where a student leaves
# Every file that a bundle can have, and the most bytes that are read from it; protobuf is limited to 2 GiB.
LIMITS = {
    CARD: 16 << 20,
    HTML: 32 << 20,
    README: 16 << 20,
    SAFETENSORS: 4 << 30,
    ONNX: 2 << 30,
    CONFIG: 4 << 20,
    INTERFACE: 16 << 20,
    SCHEMA: 16 << 20,
    TABLE_ONNX: 2 << 30,
    TOKENIZER: 64 << 20,
    MANIFEST: 16 << 20,
    SUMS: 2 << 20,
    INT8: 2 << 30,
    FP16: 2 << 30,
    SIGNATURE: 4 << 20,
    APPROVAL: 4 << 20,
}
_SHARD = 1 << 30  # a shard of features; they are written in pieces of 32 MiB, or of one record
_ANY_OTHER = 256 << 20  # whatever else lies there, which belongs to no bundle
_LINE = re.compile(r"([0-9a-f]{64}) [ *]([^\x00-\x1f]+)")
_MANY = 10_000
_BLOCK = 512  # bytes of what st_blocks counts
_SMALL = 1 << 16  # bytes that are read whether or not they are on the disk

Kind = Literal["file", "link", "odd"]
Defects = Sequence[str]  # one sentence each; empty if the check passed
Test = tuple[str, str, Callable[[], Defects]]  # name, what holds if the check finds nothing, the check


def limit_of(name: str) -> int:
    """The most bytes that are read from a file of a bundle, or of a folder that claims to be one."""
    return LIMITS.get(name, _SHARD if NAME.fullmatch(name) else _ANY_OTHER)


def without_paths(value: Any) -> Any:
    """A plain value in which everything that looks like a path is replaced."""
    if isinstance(value, dict):
        return {key: without_paths(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [without_paths(inner) for inner in value]
    return PATH_REMOVED if isinstance(value, str) and _LOOKS_LIKE_PATH.search(value) else value


def _kind(entry: os.DirEntry[str]) -> Kind:
    return "link" if entry.is_symlink() else "file" if entry.is_file(follow_symlinks=False) else "odd"


def _has_holes(path: Path) -> bool:
    """Whether more than half of a file is not on the disk, and the file system says that it has holes.

    Where files are compressed, or blocks are counted late or never, a file without holes takes up less than its size.
    """
    about = path.lstat()
    if about.st_size <= 2 * about.st_blocks * _BLOCK + _SMALL:
        return False
    with open_plain(path) as file:
        return os.lseek(file.fileno(), 0, os.SEEK_HOLE) < about.st_size


class Skip(Exception):
    """A check cannot be made here; the message says why."""


class Contents:
    """All entries of a folder by name, with the access that verification needs; a bundle has no subfolders.

    Args:
        folder: Where they are.
        digests: The SHA-256 that files must have by name, where they were looked at before.
    """

    def __init__(self, folder: Path, digests: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self._digests: dict[str, str] = dict(digests or {})

    @property
    def digests(self) -> dict[str, str]:
        """The SHA-256 of every file that was read or hashed so far."""
        return dict(self._digests)

    def expect(self, digests: Mapping[str, str]) -> None:
        """Require these digests from now on.

        Raises:
            FormatError: A file had another one when it was read here.
        """
        for name, sha in digests.items():
            if self._digests.setdefault(name, sha) != sha:
                raise FormatError(
                    f"the same bytes in {name} until the bundle is used",
                    "others",
                    "What is used must be what was verified.",
                    "Take the bundle to a folder that nobody else writes to.",
                )

    @cached_property
    def _kinds(self) -> dict[str, Kind]:
        """What every entry is, whatever its name; no subfolder is descended into."""
        try:
            with os.scandir(self.folder) as entries:
                found = {entry.name: _kind(entry) for entry in islice(entries, _MANY + 1)}
        except OSError as error:
            raise FormatError("a folder whose entries can be listed", "one that cannot be read") from error
        if len(found) > _MANY:
            raise FormatError("a handful of files in a bundle", "thousands")
        return dict(sorted(found.items()))

    def _of(self, kind: Kind) -> tuple[str, ...]:
        return tuple(name for name, found in self._kinds.items() if found == kind)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All entries: files, and also what does not belong into a bundle."""
        return tuple(self._kinds)

    @cached_property
    def plain(self) -> tuple[str, ...]:
        """The plain files among them, the only entries that are ever opened."""
        return self._of("file")

    @cached_property
    def links(self) -> tuple[str, ...]:
        """The symbolic links among them."""
        return self._of("link")

    @cached_property
    def odd(self) -> tuple[str, ...]:
        """The subfolders, pipes, sockets and devices among them."""
        return self._of("odd")

    def sizes(self) -> set[int]:
        """The file sizes that occur, in bytes."""
        return {(self.folder / name).lstat().st_size for name in self.plain}

    @cached_property
    def too_large(self) -> tuple[str, ...]:
        """The files above their limits, by the sizes that the file system gives: nothing is read from them."""
        return tuple(name for name in self.plain if (self.folder / name).lstat().st_size > limit_of(name))

    @cached_property
    def sparse(self) -> tuple[str, ...]:
        """The files that are mostly holes: they cost their maker nothing, and whoever hashes them minutes."""
        return tuple(name for name in self.plain if _has_holes(self.folder / name))

    def digest(self, name: str) -> str:
        """The SHA-256 of a file, up to its limit."""
        if name not in self._digests:
            self._digests[name] = digest(self.folder / name, limit_of(name))
        return self._digests[name]

    def read(self, name: str) -> bytes:
        """The content of one of a bundle's files, up to its limit.

        Raises:
            FormatError: It cannot be read, or was changed since it was looked at before.
        """
        content = read_file(self.folder / name, LIMITS[name])
        self.expect({name: hashlib.sha256(content).hexdigest()})
        return content

    def signed(self) -> dict[str, str]:
        """The SHA-256 of every file that a signature covers: all plain ones but the signatures themselves.

        Raises:
            FormatError: One is above its limit, or sparse; then nothing is read from any.
        """
        for name in (*self.too_large, *self.sparse):
            raise FormatError(f"a whole file of at most {limit_of(name):,} bytes as {name}", "a larger or a sparse one")
        return {name: self.digest(name) for name in self.plain if name not in SIGNATURES}

    def sums(self) -> tuple[dict[str, str], list[str]]:
        """The entries of SHA256SUMS by file name, and its defects."""
        recorded: dict[str, str] = {}
        defects = []
        for number, line in enumerate(self.read(SUMS).decode("utf-8", "replace").splitlines(), 1):
            match = _LINE.fullmatch(line)
            if not match or match[2] in recorded:
                defects.append(f"Line {number} of {SUMS} is not a checksum of one more file.")
            else:
                recorded[match[2]] = match[1]
        return recorded, defects


__all__ = [
    "APPROVAL",
    "CARD",
    "CONFIG",
    "FP16",
    "HTML",
    "INT8",
    "INTERFACE",
    "LIMITS",
    "MANIFEST",
    "ONNX",
    "README",
    "SAFETENSORS",
    "SCHEMA",
    "SIGNATURE",
    "SIGNATURES",
    "SMALLER",
    "SUMS",
    "TABLE_ONNX",
    "Contents",
    "Defects",
    "Skip",
    "Test",
    "limit_of",
]
