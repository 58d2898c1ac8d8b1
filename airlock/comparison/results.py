"""The results of a comparison on disk: results.json, results.csv, and every finished cell.

Each cell is its own file, written atomically, so that killing the process loses no finished cell.

    DIR/                        0700   not covered by any ε: for the holder alone
      cells/<cell>.json         0600   one finished cell, with a digest of what it depends on
      scratch/                  0700   bundles and vaults of running cells; emptied at every start
      results.json, results.csv 0600   and the page
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from airlock.bundle.files import output_error, parse_json, read_file, replace_file
from airlock.comparison.page import Comparison
from airlock.comparison.values import Cell, MethodVerdict
from airlock.errors import FormatError, OutputError

_LIMIT = 4 << 20
_LOCK = ".lock"


def write(folder: Path, found: Comparison) -> tuple[Path, Path]:
    """Write results.json and results.csv atomically, readable only by their owner."""
    places = folder / "results.json", folder / "results.csv"
    replace_file(places[0], found.to_json())
    replace_file(places[1], found.to_csv())
    return places


@dataclass(frozen=True)
class FinishedCell:
    """A finished cell and when it was started."""

    found: Cell | MethodVerdict
    begun: datetime.datetime


@dataclass(frozen=True)
class ComparisonFolder:
    """Where a comparison is kept."""

    root: Path

    @property
    def scratch(self) -> Path:
        """The folder for what running cells write."""
        return self.root / "scratch"

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Create the folder and lock it for this process; what a killed run left in scratch is removed.

        Raises:
            OutputError: It cannot be written, it is used for something else, or another run is using it.
        """
        try:
            self._make()
            handle = os.open(self.root / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise output_error(error, self.root) from error
        try:
            self._lock(handle)
            try:
                self._tidy()
                yield
            finally:
                self._tidy()
        finally:
            os.close(handle)  # which also releases the lock

    def _make(self) -> None:
        if self.root.exists() and not (self.root / "cells").is_dir() and any(self.root.iterdir()):
            raise OutputError(
                "an empty folder, or that of a comparison",
                f"something else at {self.root}",
                "Only a comparison's own files are overwritten.",
                "Choose another --out.",
            )
        self.root.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o700)
        (self.root / "cells").mkdir(exist_ok=True)

    def _lock(self, handle: int) -> None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            alone = f"{self.root} for this run alone"
            raise OutputError(alone, "another run that is using it", do="Wait, or choose another --out.") from error

    def _tidy(self) -> None:
        """Remove what interrupted cells left behind."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        for half in (self.root / "cells").glob(".*.part"):
            half.unlink(missing_ok=True)

    def take_up(self, name: str, mark: str) -> FinishedCell | None:
        """A finished cell; None if there is none, it failed, or something it depends on has changed."""
        try:
            table = parse_json(read_file(self._place(name), _LIMIT))
            if table["mark"] != mark:
                return None
            kind: type[Cell] | type[MethodVerdict] = MethodVerdict if table["kind"] == "court" else Cell
            found = kind.model_validate(table["found"])
            return None if found.error else FinishedCell(found, datetime.datetime.fromisoformat(table["begun"]))
        except (FormatError, ValueError, TypeError, KeyError, ValidationError):
            return None

    def put(self, name: str, mark: str, kept: FinishedCell) -> None:
        """Store a finished cell, or a failed one, which is reported and run again at the next start."""
        kind = "court" if isinstance(kept.found, MethodVerdict) else "cell"
        found = kept.found.model_dump(mode="json")
        table = {"mark": mark, "kind": kind, "begun": kept.begun.isoformat(), "found": found}
        replace_file(self._place(name), json.dumps(table, indent=1, ensure_ascii=False, allow_nan=False) + "\n")

    def _place(self, name: str) -> Path:
        return self.root / "cells" / f"{name}.json"
