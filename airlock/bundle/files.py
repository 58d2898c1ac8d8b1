"""Atomic writes, and reads that are safe on untrusted files.

Writing goes through `folder_aside`: a hidden folder in the same parent, synced, then renamed. What a killed process
left there is removed by the next write to the same place (`sweep`). Reading never follows a symbolic link, never reads
a device, and never reads more bytes than the caller allows.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from airlock.errors import FormatError, LedgerBroken, OutputError

_CHUNK = 1 << 20
_ASIDE = re.compile(r"[0-9a-f]{8}\.(part|old)")  # how the names of folders next to their place end


def write_file(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Create a new file with exactly this mode, whatever the umask, synced to disk: it is there whole or not at all.

    Raises:
        OSError: There is one of this name, or writing failed; nothing is left behind.
    """
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), mode)
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _name(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def _name(aside: Path, path: Path) -> None:
    """Give a finished file its name, which must be free; where there are no hard links, by renaming it."""
    try:
        os.link(aside, path, follow_symlinks=False)
    except OSError:
        if os.path.lexists(path):
            raise
        aside.rename(path)


def read_file(path: Path, limit: int) -> bytes:
    """The content of a plain file of at most `limit` bytes.

    Raises:
        FormatError: It is missing, is a link or a device, is too large, or cannot be read.
    """
    with open_plain(path, limit) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(size + 1)  # Python reserves at once what is asked for
    if len(content) > size:
        raise FormatError(f"the same bytes in {path.name} while it is read", "more and more")
    return content


def digest(path: Path, limit: int | None = None) -> str:
    """The SHA-256 of a plain file, of at most `limit` bytes where one is given.

    Raises:
        FormatError: It is missing, is a link or a device, is too large, or cannot be read.
    """
    total, size = hashlib.sha256(), 0
    with open_plain(path, limit) as file:
        while chunk := file.read(_CHUNK):
            total.update(chunk)
            size += len(chunk)
            if limit is not None and size > limit:
                raise _too_large(path, limit)
    return total.hexdigest()


def _too_large(path: Path, limit: int) -> FormatError:
    return FormatError(f"at most {limit:,} bytes in {path.name}", "more", "A larger file is not read.")


@contextlib.contextmanager
def open_plain(path: Path, limit: int | None = None) -> Iterator[BinaryIO]:
    """Open a regular file for reading; a symbolic link, a pipe or a device is an error.

    So is a file above the limit: its size is asked for first, since a sparse file of terabytes costs nothing to make.
    """
    try:
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        handle = os.open(path, flags)
    except OSError as error:
        raise FormatError(f"a readable plain file {path.name}", _reason(error)) from error
    about = os.fstat(handle)
    if not stat.S_ISREG(about.st_mode):
        os.close(handle)
        raise FormatError(f"a plain file {path.name}", "something else")
    with os.fdopen(handle, "rb") as file:
        if limit is not None and about.st_size > limit:
            raise _too_large(path, limit)
        yield file


def _reason(error: OSError) -> str:
    known = {errno.ENOENT: "none", errno.ELOOP: "a symbolic link", errno.EACCES: "one that may not be read"}
    return known.get(error.errno or 0, "one that cannot be opened")


def parse_json(content: bytes) -> Any:
    """Strict JSON: UTF-8, no NaN or infinity, and no duplicate keys, since readers disagree about which one counts.

    Raises:
        ValueError: It is not strict JSON.
    """

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) < len(pairs):
            raise ValueError("a key occurs twice in one object")
        return table

    try:
        return json.loads(content.decode("utf-8"), parse_constant=refuse, object_pairs_hook=once)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


@contextlib.contextmanager
def folder_aside(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """A new hidden folder next to `target`, renamed to `target` if the block succeeds and removed otherwise.

    Of several processes that write to one place at once, one succeeds.

    Args:
        target: The folder to be.
        replace: Whether a folder that is there by then is replaced.

    Raises:
        OutputError: The disk is full, the location is read-only, another process was faster, or writing failed
            otherwise; nothing is left behind.
    """
    aside, held = target.parent / f".{target.name}.{secrets.token_hex(4)}.part", None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(target.parent):
            _sweep(target)
            aside.mkdir(mode=0o755)
            held = _hold(aside)
        yield aside
        sync_folder(aside)
        with locked(target.parent):
            _replace(aside, target, replace)
        sync_folder(target.parent)
    except OSError as error:
        raise output_error(error, target) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        if held is not None:
            os.close(held)


def sweep(target: Path) -> None:
    """Remove what killed processes have left next to a place: whole or half-written folders that nobody is to find.

    A folder is removed if it has the name of one that `folder_aside` makes for this place and no process holds it: a
    process that writes one holds it from the moment it is there, and the system lets go of it when the process dies. An
    old folder that a killed replacement had moved away is put back if nothing has taken its place.
    """
    target = Path(target).absolute()
    with contextlib.suppress(OSError), locked(target.parent):
        _sweep(target)


def _sweep(target: Path) -> None:
    """The same, for whoever holds the parent: nobody else makes, moves or removes such a folder meanwhile."""
    prefix = f".{target.name}."
    with os.scandir(target.parent) as entries:
        there = [entry for entry in entries if entry.name.startswith(prefix) and entry.is_dir(follow_symlinks=False)]
    for entry in there:
        kind = _ASIDE.fullmatch(entry.name.removeprefix(prefix))
        if kind is not None and kind[1] == "old" and not os.path.lexists(target):
            os.rename(entry.path, target)
        elif kind is not None and (kind[1] == "old" or _is_abandoned(Path(entry.path))):
            shutil.rmtree(entry.path, ignore_errors=True)


def _hold(folder: Path) -> int | None:
    """A handle that holds a folder until it is closed or this process dies; None where folders cannot be held."""
    import fcntl

    handle = os.open(folder, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def _is_abandoned(folder: Path) -> bool:
    """Whether no process holds a folder; where that cannot be told, one may."""
    try:
        handle = _hold(folder)
    except OSError:
        return False
    if handle is not None:
        os.close(handle)
    return handle is not None


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder against other processes of Airlock for a moment; the system lets it go if this process dies."""
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _replace(aside: Path, target: Path, replace: bool) -> None:
    """Rename, also over an old folder if that is wanted; if the second rename fails, the old folder is restored."""
    if not os.path.lexists(target):
        aside.rename(target)
        return
    if not replace:
        raise OutputError(
            "an output folder that does not exist yet",
            f"{target}, which another process has written meanwhile",
            "It is left as it is, and this result was not kept.",
            "Choose another folder.",
        )
    old = aside.with_suffix(".old")
    try:
        target.rename(old)
        aside.rename(target)
    except BaseException:
        if old.exists() and not target.exists():
            old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut; a no-op on systems that cannot sync folders."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def output_error(error: OSError, target: Path) -> OutputError:
    """What went wrong while writing, and what to do about it."""
    expected = f"to write {target}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return OutputError(expected, "no space left", "Nothing half-written was kept.", "Free some space, then retry.")
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return OutputError(
            expected, "a place that may not be written to", "Nothing was written.", "Choose another folder."
        )
    reason = os.strerror(error.errno) if error.errno else "an unknown failure"
    return OutputError(expected, f"a failure ({reason})", "Nothing half-written was kept.", "Choose another folder.")


def replace_file(path: Path, content: str | bytes) -> None:
    """Write a temporary file, sync it and rename it: readers see either the old file or the new one, complete.

    Raises:
        OutputError: It cannot be written; the old file is unchanged.
    """
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise output_error(error, path) from error


def claimed(path: Path) -> str | None:
    """The identity of the only ledger that something was opened with; None if there is none yet.

    Raises:
        LedgerBroken: The file cannot be read.
    """
    try:
        return path.read_text("ascii")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise LedgerBroken(
            "the identity of a ledger", f"something else in {path.parent.name}/{path.name}", "It names the only budget."
        ) from error


def claim(path: Path, identity: str, whose: str, what: str = "the ledger", do: str = "") -> None:
    """Write an identity atomically if there is none; otherwise it must match the existing one.

    Raises:
        LedgerBroken: It does not match.
        OutputError: It cannot be written.
    """
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        write_file(aside, identity.encode(), 0o600)
        with contextlib.suppress(FileExistsError):
            os.link(aside, path)
        aside.unlink()
        held = path.read_bytes()
    except OSError as error:
        raise output_error(error, path) from error
    if held != identity.encode():
        raise LedgerBroken(
            f"{what} that this {whose} was opened with",
            "another",
            "A second one would be a second budget for the same records.",
            f"{do or 'Name the first one'}; the vault records it in {path.parent.name}/{path.name}.",
        )
