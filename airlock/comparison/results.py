"""What a comparison found, and all that the page is made from.

Nothing in it is covered by an ε: accuracies and attack figures of many runs were computed from private records. Every
`Comparison` says so in `notes`, and whoever shows one shows them.

Finished cells on disk (`Folder`): each is a file of its own, written aside and renamed, so that a kill loses none of
them.

    DIR/                        0700   covered by no ε: for the holder alone
      cells/<cell>.json         0600   one finished cell, with the mark of what it depends on
      scratch/                  0700   bundle and vault of the running cells; emptied at every start
      results.json, results.csv 0600   and the page
"""

from __future__ import annotations

import contextlib
import csv
import datetime
import fcntl
import io
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from pydantic import ValidationError

from airlock.bundle.files import output_error, parse_json, read_file
from airlock.comparison.values import (
    Advice,
    Cell,
    Dropped,
    Need,
    Row,
    Seconds,
    Skipped,
    Standing,
    Subject,
    Verdict,
    words_for,
    worst_attack,
)
from airlock.config import Count, Delta, Epsilon, Frozen
from airlock.errors import FormatError, OutputError

COMPUTED_FROM_RECORDS = (
    "These results were computed from private records, by many runs that no ε covers: they are for the holder of the "
    "records and must stay inside, unless the records are public."
)
CHOICE_DEPENDS = (
    "Choosing a method by these results is a choice that depends on the records. The ε of the release that is made "
    "next does not count it, and tuning_runs does not either: that pays for repeated runs of one method."
)
NOTES = (COMPUTED_FROM_RECORDS, CHOICE_DEPENDS)


class Comparison(Frozen):
    """All of it.

    Args:
        data: What is public about the records.
        epsilons: Those that were asked for.
        delta: The δ of every promise.
        seeds: Those that were asked for.
        cells: Every finished run, in the order of the matrix.
        skipped: Methods that do not fit.
        dropped: Cells that were not run.
        court: Verdicts on the claims.
        need: What the release is for.
        advice: What the chooser says.
        version: Of Airlock.
        started: When, in UTC.
        seconds: How long all cells took, added up; less by the clock where several ran at once.
        complete: Whether every cell of the matrix was run.
        notes: What must be said wherever these results are shown.
    """

    data: Subject
    epsilons: tuple[Epsilon, ...]
    delta: Delta
    seeds: tuple[Count, ...]
    cells: tuple[Cell, ...]
    skipped: tuple[Skipped, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    court: tuple[Verdict, ...] = ()
    need: Need = Need()
    advice: Advice
    version: str
    started: datetime.datetime
    seconds: Seconds
    complete: bool = True
    notes: tuple[str, ...] = NOTES

    def __repr__(self) -> str:
        runs = f"{len(self.cells)} runs{'' if self.complete else ', not all that were planned'}"
        return f"{self.data.name}, {runs}: {self.advice.sentence} {self.notes[0]}"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        from airlock.bundle.rendering.page import in_notebook
        from airlock.comparison.page import render  # which is made from this

        return in_notebook(repr(self), render(self))

    def to_json(self) -> str:
        """Strict JSON: no NaN, no infinity; what is not there is null."""
        return json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def to_csv(self) -> str:
        """One line a cell, failed ones too; a claim has a column of its own."""
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        lines.writerow([*_COLUMNS, "standing", "attack", "attack_auc", "attack_low", "attack_high"])
        for cell in self.cells:
            worst = worst_attack(cell)
            found = ("", "", "", "") if worst is None else (worst.name, worst.auc, worst.low, worst.high)
            values = [getattr(cell, name) for name in _COLUMNS]
            lines.writerow(["" if value is None else value for value in (*values, self.standing(cell), *found)])
        return text.getvalue()

    def rows(self) -> tuple[Row, ...]:
        """Every method at every ε over its seeds, in the order of the cells; failed cells are left out."""
        return rows_of(self.cells)

    def left_out(self) -> list[tuple[str, str]]:
        """Cells that were dropped, a method's together, and why."""
        runs: dict[tuple[str, str, bool], dict[float | None, list[int | None]]] = {}
        for one in self.dropped:
            which = one.method, one.reason, one.seed is None
            runs.setdefault(which, {}).setdefault(one.epsilon_asked, []).append(one.seed)
        found = []
        for (method, reason, _), by_epsilon in runs.items():
            by_seeds: dict[tuple[int | None, ...], list[float]] = {}
            for epsilon, seeds in by_epsilon.items():
                by_seeds.setdefault(tuple(seeds), []).extend(() if epsilon is None else (epsilon,))
            for own, epsilons in by_seeds.items():
                found.append((f"{words_for(method, epsilons)}, {_seeds(own)}", reason))
        return found

    def verdict(self, method: str) -> Verdict | None:
        """What the court found about a method; None where it was not tried."""
        return next((one for one in self.court if one.method == method and one.error is None), None)

    def standing(self, one: Cell | Row) -> Standing:
        """The status, or "refuted" where the court or an attack has shown the promise or the claim to be false."""
        stated = one.epsilon if one.epsilon is not None else one.claim_epsilon
        by_attack = stated is not None and one.epsilon_measured is not None and one.epsilon_measured > stated
        found = self.verdict(one.method)
        return "refuted" if by_attack or (found is not None and found.refuted) else one.status


_COLUMNS = (
    "method", "channel", "status", "epsilon_asked", "epsilon", "claim_epsilon", "seed", "accuracy", "low", "high",
    "correct", "records", "epsilon_measured", "seconds", "bytes", "parameters", "queries", "error",
)  # fmt: skip


def _seeds(seeds: tuple[int | None, ...]) -> str:
    if seeds == (None,):
        return "trial before the court"
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def rows_of(cells: Iterable[Cell]) -> tuple[Row, ...]:
    """Cells over their seeds, in their order; failed ones are left out."""
    groups: dict[tuple[str, float | None], list[Cell]] = {}
    for cell in cells:
        if cell.accuracy is not None:
            groups.setdefault((cell.method, cell.epsilon_asked), []).append(cell)
    return tuple(_row(group) for group in groups.values())


def _row(cells: list[Cell]) -> Row:
    first, known = cells[0], [cell.epsilon for cell in cells]
    accuracies = _there(cell.accuracy for cell in cells)
    return Row(
        method=first.method,
        channel=first.channel,
        title=first.title,
        status=first.status,
        epsilon_asked=first.epsilon_asked,
        epsilon=None if None in known else max(_there(known)),
        claim_epsilon=max(_there(cell.claim_epsilon for cell in cells), default=None),
        seeds=len(cells),
        accuracy=fmean(accuracies),
        low=fmean(_there(cell.low for cell in cells)),
        high=fmean(_there(cell.high for cell in cells)),
        lowest=min(accuracies),
        highest=max(accuracies),
        auc=_mean([worst.auc for cell in cells if (worst := worst_attack(cell))]),
        epsilon_measured=max(_there(cell.epsilon_measured for cell in cells), default=None),
        seconds=fmean(cell.seconds for cell in cells),
        bytes=max((cell.bytes for cell in cells if cell.bytes is not None), default=None),
        parameters=max((cell.parameters for cell in cells if cell.parameters is not None), default=None),
        queries=min((cell.queries for cell in cells if cell.queries is not None), default=None),
    )


def _there(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: list[float]) -> float | None:
    return fmean(values) if values else None


def write(folder: Path, found: Comparison) -> tuple[Path, Path]:
    """results.json and results.csv, for their owner alone, each whole or not at all."""
    places = folder / "results.json", folder / "results.csv"
    replace_file(places[0], found.to_json())
    replace_file(places[1], found.to_csv())
    return places


def replace_file(path: Path, content: str) -> None:
    """Write a file aside, sync it and rename it: whoever reads it finds the old one or the new one, whole.

    Raises:
        OutputError: It cannot be written; what was there stays.
    """
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise output_error(error, path) from error


# Finished cells on disk.

pass  # merged

_LIMIT = 4 << 20
_LOCK = ".lock"


@dataclass(frozen=True)
class Kept:
    """A finished cell and when it was begun."""

    found: Cell | Verdict
    begun: datetime.datetime


@dataclass(frozen=True)
class Folder:
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

    def take_up(self, name: str, mark: str) -> Kept | None:
        """A finished cell; None where there is none, it failed, or what it depends on has changed."""
        try:
            table = parse_json(read_file(self._place(name), _LIMIT))
            if table["mark"] != mark:
                return None
            kind: type[Cell] | type[Verdict] = Verdict if table["kind"] == "court" else Cell
            found = kind.model_validate(table["found"])
            return None if found.error else Kept(found, datetime.datetime.fromisoformat(table["begun"]))
        except (FormatError, ValueError, TypeError, KeyError, ValidationError):
            return None

    def put(self, name: str, mark: str, kept: Kept) -> None:
        """Keep a finished cell, or a failed one, which is told and run again at the next start."""
        kind = "court" if isinstance(kept.found, Verdict) else "cell"
        found = kept.found.model_dump(mode="json")
        table = {"mark": mark, "kind": kind, "begun": kept.begun.isoformat(), "found": found}
        replace_file(self._place(name), json.dumps(table, indent=1, ensure_ascii=False, allow_nan=False) + "\n")

    def _place(self, name: str) -> Path:
        return self.root / "cells" / f"{name}.json"
