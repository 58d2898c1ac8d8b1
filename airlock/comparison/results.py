"""The results of a comparison on disk: results.json, results.csv, and every finished cell.

Each cell is a file of its own, written aside and renamed, so that a kill loses none of them.

    DIR/                        0700   covered by no ε: for the holder alone
      cells/<cell>.json         0600   one finished cell, with the mark of what it depends on
      scratch/                  0700   bundle and vault of the running cells; emptied at every start
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
    """results.json and results.csv, for their owner alone, each whole or not at all."""
    places = folder / "results.json", folder / "results.csv"
    replace_file(places[0], found.to_json())
    replace_file(places[1], found.to_csv())
    return places


@dataclass(frozen=True)
class FinishedCell:
    """A finished cell and when it was begun."""

    found: Cell | MethodVerdict
    begun: datetime.datetime


@dataclass(frozen=True)
class ComparisonFolder:
    """Where a comparison is kept."""

    root: Path

    @property
    def scratch(self) -> Path:
        """For what running cells write."""
        return self.root / "scratch"

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """The folder made, and for this process alone; what a killed run left in scratch is removed.

        Raises:
            OutputError: It cannot be written, it is something else's, or another run is at work in it.
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
            os.close(handle)  # which also gives the lock back

    def _make(self) -> None:
        if self.root.exists() and not (self.root / "cells").is_dir() and any(self.root.iterdir()):
            raise OutputError(
                "an empty folder, or that of a comparison",
                f"something else at {self.root}",
                "Nothing of yours is written over.",
                "Take another --out.",
            )
        self.root.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o700)
        (self.root / "cells").mkdir(exist_ok=True)

    def _lock(self, handle: int) -> None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            alone = f"{self.root} for this run alone"
            raise OutputError(alone, "another run at work in it", do="Wait, or take another --out.") from error

    def _tidy(self) -> None:
        """Remove what running cells had begun."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        for half in (self.root / "cells").glob(".*.part"):
            half.unlink(missing_ok=True)

    def take_up(self, name: str, mark: str) -> FinishedCell | None:
        """A finished cell; None where there is none, it failed, or what it depends on has changed."""
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
        """Keep a finished cell, or a failed one, which is told and run again at the next start."""
        kind = "court" if isinstance(kept.found, MethodVerdict) else "cell"
        found = kept.found.model_dump(mode="json")
        table = {"mark": mark, "kind": kind, "begun": kept.begun.isoformat(), "found": found}
        replace_file(self._place(name), json.dumps(table, indent=1, ensure_ascii=False, allow_nan=False) + "\n")

    def _place(self, name: str) -> Path:
        return self.root / "cells" / f"{name}.json"
