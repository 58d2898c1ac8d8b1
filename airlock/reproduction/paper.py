"""What a paper is made of: trials, the experiments that run them, and tables and figures that are made from rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, TypeVar

import numpy as np
from torch import nn

from airlock import data, methods
from airlock.auditing.audit_game import judge
from airlock.config import ReleaseConfig, from_table
from airlock.data import Facts, Records, Split
from airlock.mechanisms import Randomness, Stream
from airlock.methods.case import Case
from airlock.training import Run, count_correct

T = TypeVar("T")
Setting = str | int | float | bool
Figures = Mapping[str, float]
# "beside it": not in the paper, and of use next to it.
Status = Literal["reproduced", "in part", "differs", "not run", "cannot be had", "beside it"]
NOT_RUN = "–"  # stands in a cell whose rows are missing
_NAMED = 4  # figures that differ are named one by one up to this many


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
        failed: Why nothing came out; "" if something did. Such a trial is run again by the next run.
    """

    trial: Trial
    figures: Figures
    commit: str
    device: str
    seconds: float
    failed: str = ""

    def to_json(self) -> str:
        """One line."""
        trial = self.trial
        row = {"experiment": trial.experiment, "settings": dict(trial.settings), "seed": trial.seed}
        more = {"figures": dict(self.figures), "commit": self.commit, "device": self.device, "seconds": self.seconds}
        return json.dumps(row | more | ({"failed": self.failed} if self.failed else {}))

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
            said = str(found.get("failed", ""))
            return cls(trial, figures, str(found["commit"]), str(found["device"]), float(found["seconds"]), said)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no row: {error}") from error


class Workplace:
    """Where trials are run, and what the last of them left for the next.

    Args:
        data_dir: The folder of the named data sets.
        run: Device and progress.
        folder: Where long work is kept until all trials have rows, for the next run to go on from; without one, it is
            lost with the process.
    """

    def __init__(self, data_dir: Path | None, run: Run, folder: Path | None = None) -> None:
        self.data_dir, self.run, self.folder = data_dir, run, folder
        self._kept: dict[str, tuple[object, Any]] = {}

    def once(self, name: str, key: object, make: Callable[[], T]) -> T:
        """What `make` gives, made anew when the key differs from the last one of this name."""
        if name not in self._kept or self._kept[name][0] != key:
            self._kept.pop(name, None)
            self._kept[name] = key, make()
        found: T = self._kept[name][1]
        return found


class World:
    """One division of a data set, and what is trained on it.

    Args:
        name: The data set, or the training.
        seed: Of the split and of everything that is trained.
        small: Whether this is the quick version.
        place: Where it runs.
    """

    def __init__(self, name: str, seed: int, small: bool, place: Workplace) -> None:
        self.name, self.seed, self.small, self.place = name, seed, small, place


def is_small(trial: Trial) -> bool:
    """Whether a trial belongs to the quick version, as far as records are concerned."""
    return dict(trial.settings).get("small", False) is True


def accuracy(net: nn.Module, records: Records) -> float:
    """The share of records that are classified correctly; 0 without records."""
    return count_correct(net, records) / max(1, len(records))


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
            if row.failed:
                continue
            table.setdefault((row.trial.experiment, row.trial.settings), {})[row.trial.seed] = row.figures
        object.__setattr__(self, "_by", table)

    @property
    def failed(self) -> tuple[KeptRow, ...]:
        """Trials that failed and have not been run since; of several failures the last one."""
        right = {row.trial.key for row in self.rows if not row.failed}
        last = {row.trial.key: row for row in self.rows if row.failed and row.trial.key not in right}
        return tuple(last.values())

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
        estimate: What a full run takes, for a page that names what was not run.
    """

    name: str
    title: str
    printed: str
    trials: Callable[[bool], Sequence[Trial]]
    show: Callable[[Found], ItemResult]
    estimate: str = ""


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
        together: What a trial shares that takes long to make; trials with the same are run one after another in one
            process, and None shares nothing.
        order: Trials are run by this, and as items name them where it is the same.
    """

    name: str
    title: str
    experiments: Mapping[str, Callable[[Trial, Workplace], Figures]]
    items: tuple[Item, ...]
    sources: tuple[str, ...]
    together: Callable[[Trial], object] = lambda trial: None
    order: Callable[[Trial], Any] = lambda trial: trial.seed


def opened(table: dict[str, Any], place: Workplace, most: int | None = None) -> tuple[ReleaseConfig, Facts, Split]:
    """The config of a table, and what it names; with `most`, at most so many records in each part."""
    config = from_table(table)
    facts, split = data.describe(config, place.data_dir), data.load(config, place.data_dir)
    return config, facts, split if most is None else fewer(split, most)


def fewer(split: Split, most: int) -> Split:
    """The first records of each part."""
    parts = {name: getattr(split, name) for name in ("private", "public", "test", "holdout")}
    return replace(split, **{name: part.take(np.arange(min(most, len(part)))) for name, part in parts.items()})


def released(trial: Trial, place: Workplace, table: dict[str, Any], most: int | None = None) -> Figures:
    """A whole release by a method of the package, with seeded noise: its accuracy on the test records, and its ε."""
    config, facts, split = opened({**table, "seed": trial.seed}, place, most)
    release = methods.build(config, facts).release(split, Randomness.make(trial.seed, trial.seed), place.run)
    return {"others": release.utility.accuracy, "epsilon": release.guarantee.epsilon}


def in_court(trial: Trial, case: Case) -> Figures:
    """Whether a case's claim is refuted, and after how many pairs of runs."""
    found = judge(case, Stream.from_seed(trial.seed), seconds=600.0)
    return {"refuted": float(found.refuted), "pairs": float(found.pairs), "claimed": case.claim.epsilon}


def show_court(found: Found, cases: Mapping[str, dict[str, Setting]], what: str) -> ItemResult:
    """The verdicts of the experiment "court", at δ = 1e-5, on cases by their names, over all seeds."""
    rows: list[tuple[str, ...]] = []
    told: list[float] = []
    for words, settings in cases.items():
        refuted, pairs, claimed = (found.figure("court", name, **settings) for name in ("refuted", "pairs", "claimed"))
        if refuted is None or pairs is None or claimed is None:
            continue
        told += refuted.values
        verdict = "refuted" if all(refuted.values) else f"refuted in {sum(refuted.values):.0f} of {len(refuted.values)}"
        rows.append(
            (words, f"({claimed.mean:.3g}, 1e-5)", verdict, ", ".join(f"{value:,.0f}" for value in pairs.values))
        )
    if not rows:
        return ItemResult("not run")
    words = f"{sum(told):.0f} of {len(told)} trials refute the claim for {what}"
    return ItemResult("beside it", words, ("case", "claim", "verdict", "pairs of runs"), tuple(rows))


def beside(printed: float | None, ours: Spread | None, digits: int = 4) -> str:
    """A cell: the paper's figure, if it prints one, and ours."""
    here = NOT_RUN if ours is None else ours.text(digits)
    return here if printed is None else f"{printed:.{digits}f} · {here}"


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
    far = [(distance, name) for name, distance in there if distance > tolerance]
    if not far:
        return "reproduced", f"within {apart:.2g}"
    told = far if len(far) <= _NAMED else sorted(far, reverse=True)[:_NAMED]
    words = ", ".join(f"{name} by {distance:.2g}" for distance, name in told)
    words += f" and {len(far) - len(told)} less far" if len(told) < len(far) else ""
    return "differs", f"{len(there) - len(far)} of {len(there)} figures within {tolerance:g}; not {words}"
