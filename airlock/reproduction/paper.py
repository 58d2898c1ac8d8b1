"""What a paper is made of: trials, the experiments that run them, and tables and figures that are made from rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, TypeVar

import numpy as np

from airlock.data import Split
from airlock.training import Run

T = TypeVar("T")
Setting = str | int | float | bool
Figures = Mapping[str, float]
# "beside it": not in the paper, and of use next to it.
Status = Literal["reproduced", "in part", "differs", "not run", "cannot be had", "beside it"]
NOT_RUN = "–"  # stands in a cell whose rows are missing


@dataclass(frozen=True)
class Trial:
    """One run of an experiment: what a row is about.

    Args:
        experiment: Its name in the paper's table of experiments.
        settings: What is varied, in order of their names.
        seed: Of the split, the first weights, the batches and the noise.
    """

    experiment: str
    settings: tuple[tuple[str, Setting], ...]
    seed: int

    @classmethod
    def of(cls, experiment: str, seed: int, **settings: Setting) -> Trial:
        """A trial with these settings."""
        return cls(experiment, tuple(sorted(settings.items())), seed)

    def __getitem__(self, name: str) -> Any:
        return dict(self.settings)[name]

    @property
    def key(self) -> str:
        """What tells it from every other trial of the paper."""
        return json.dumps([self.experiment, dict(self.settings), self.seed], sort_keys=True)


@dataclass(frozen=True)
class KeptRow:
    """A trial that was run, and what came out.

    Args:
        trial: What was run.
        figures: What came out.
        commit: The commit of the source it was run by, with "+" if there were changes on top; else the version.
        device: What it was computed on, and by which torch.
        seconds: Of the clock.
    """

    trial: Trial
    figures: Figures
    commit: str
    device: str
    seconds: float

    def to_json(self) -> str:
        """One line."""
        trial = self.trial
        row = {"experiment": trial.experiment, "settings": dict(trial.settings), "seed": trial.seed}
        more = {"figures": dict(self.figures), "commit": self.commit, "device": self.device, "seconds": self.seconds}
        return json.dumps(row | more)

    @classmethod
    def from_json(cls, line: str) -> KeptRow:
        """The row of a line.

        Raises:
            ValueError: It is none.
        """
        try:
            found = json.loads(line)
            trial = Trial.of(str(found["experiment"]), int(found["seed"]), **found["settings"])
            figures = {str(name): float(value) for name, value in found["figures"].items()}
            return cls(trial, figures, str(found["commit"]), str(found["device"]), float(found["seconds"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no row: {error}") from error


class Workplace:
    """Where trials are run, and what the last of them left for the next.

    Args:
        data_dir: The folder of the named data sets.
        run: Device and progress.
    """

    def __init__(self, data_dir: Path | None, run: Run) -> None:
        self.data_dir, self.run = data_dir, run
        self._kept: dict[str, tuple[object, Any]] = {}

    def once(self, name: str, key: object, make: Callable[[], T]) -> T:
        """What `make` gives, made anew when the key differs from the last one of this name."""
        if name not in self._kept or self._kept[name][0] != key:
            self._kept.pop(name, None)
            self._kept[name] = key, make()
        found: T = self._kept[name][1]
        return found


@dataclass(frozen=True)
class Spread:
    """A figure over seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Of all seeds."""
        return fmean(self.values)

    def text(self, digits: int = 3) -> str:
        """The mean, and lowest and highest where there are several seeds."""
        if len(self.values) == 1:
            return f"{self.mean:.{digits}f}"
        return f"{self.mean:.{digits}f} ({min(self.values):.{digits}f} to {max(self.values):.{digits}f})"


@dataclass(frozen=True)
class Found:
    """The rows of a paper, for items to read.

    Args:
        rows: All of them; of two rows of one trial the later one counts.
        quick: Whether these are rows of the small version.
    """

    rows: tuple[KeptRow, ...]
    quick: bool = False
    _by: dict[tuple[str, tuple[tuple[str, Setting], ...]], dict[int, Figures]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        table: dict[tuple[str, tuple[tuple[str, Setting], ...]], dict[int, Figures]] = {}
        for row in self.rows:
            table.setdefault((row.trial.experiment, row.trial.settings), {})[row.trial.seed] = row.figures
        object.__setattr__(self, "_by", table)

    def figure(self, experiment: str, name: str, **settings: Setting) -> Spread | None:
        """One figure over all seeds there are; None if there is no row with it."""
        rows = self._by.get((experiment, tuple(sorted(settings.items()))), {})
        values = tuple(figures[name] for _, figures in sorted(rows.items()) if name in figures)
        return Spread(values) if values else None


@dataclass(frozen=True)
class ItemResult:
    """What an item's rows show.

    Args:
        status: In one word or two.
        words: How close it is, or what differs.
        columns: Of its table.
        rows: Of its table.
        notes: Sentences that follow from the rows.
    """

    status: Status
    words: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()

    def table(self) -> str:
        """In Markdown."""
        lines = [self.columns, ("---",) * len(self.columns), *self.rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines) if self.rows else ""


@dataclass(frozen=True)
class Item:
    """A table or figure of a paper.

    Args:
        name: As `--only` takes it, such as table-5.
        title: What it shows.
        printed: What the paper prints, in a few words, for the page's first table.
        trials: The trials that it is made from, in the full and in the quick version.
        show: From rows to what they show.
    """

    name: str
    title: str
    printed: str
    trials: Callable[[bool], Sequence[Trial]]
    show: Callable[[Found], ItemResult]


def fewer(split: Split, most: int) -> Split:
    """At most so many records in each part, for the quick version."""
    parts = {name: getattr(split, name) for name in ("private", "public", "test", "holdout")}
    return replace(split, **{name: part.take(np.arange(min(most, len(part)))) for name, part in parts.items()})


def absent(name: str, title: str, why: str) -> Item:
    """An item that cannot be run, and why."""
    return Item(name, title, "", lambda quick: (), lambda found: ItemResult("cannot be had", why))


@dataclass(frozen=True)
class Paper:
    """A paper's experiments, tables and figures.

    Args:
        name: The channel's, as the command takes it.
        title: Authors, year and title.
        experiments: What turns a trial into figures, by name.
        items: Tables and figures, in the paper's order.
        sources: The named data sets that its trials read.
    """

    name: str
    title: str
    experiments: Mapping[str, Callable[[Trial, Workplace], Figures]]
    items: tuple[Item, ...]
    sources: tuple[str, ...]


def compared(pairs: Sequence[tuple[str, float, Spread | None]], tolerance: float) -> tuple[Status, str]:
    """A status from what the paper prints and what came out here.

    Args:
        pairs: What a figure is called, the paper's, and ours.
        tolerance: How far apart they may be to count as reproduced.
    """
    there = [(name, abs(found.mean - printed)) for name, printed, found in pairs if found is not None]
    if not there:
        return "not run", ""
    apart = max(distance for _, distance in there)
    if missing := len(pairs) - len(there):
        return "in part", f"{len(there)} of {len(pairs)} figures are here, within {apart:.2g}; {missing} were not run"
    far = [f"{name} by {distance:.2g}" for name, distance in there if distance > tolerance]
    if not far:
        return "reproduced", f"within {apart:.2g}"
    return "differs", f"{len(there) - len(far)} of {len(there)} figures within {tolerance:g}; not {', '.join(far)}"
