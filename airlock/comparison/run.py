"""Run a comparison: cell after cell, here or in several processes, until all are done or the time is over.

Killing it at any moment loses the running cells and no other: a finished cell is a file, and the next start with the
same settings takes it up. Whatever depends on something that has changed since is run again.
"""

from __future__ import annotations

import datetime
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

import torch

from airlock import data
from airlock._version import VERSION
from airlock.comparison.advise import advise_measured
from airlock.comparison.cell import Ways, failure, run_task, short_of_memory
from airlock.comparison.matrix import Matrix, Task, lay_out, mark
from airlock.comparison.page import Comparison, write_page
from airlock.comparison.pool import Ended, Pool
from airlock.comparison.results import ComparisonFolder, FinishedCell, write
from airlock.comparison.settings import CompareConfig
from airlock.comparison.values import Cell, Dropped, MethodVerdict
from airlock.errors import ConfigError, Interrupted
from airlock.pipeline import tell_holder
from airlock.training.devices import give_back, share_gpu
from airlock.training.loop import Progress

CRASHED = "Its process ended without a word, as when memory runs out."
OVER = "The time was over."
OVERTIME = "The time was over while it ran."
TOO_LONG = "Less time was left than this method takes, about {seconds:.0f} s."

Found = Cell | MethodVerdict
Work = Callable[[Task], Found]


@dataclass(frozen=True)
class Moment:
    """How far a comparison has come.

    Args:
        done: Cells that are finished.
        total: Cells of the matrix.
        task: The one that was just finished; None at the start.
        found: What came of it.
        seconds_left: For the rest, by what its methods took so far; None while nothing is known.
    """

    done: int
    total: int
    task: Task | None
    found: Found | None
    seconds_left: float | None


Say = Callable[[Moment], None]


class _OutOfTimeError(Exception):
    """The deadline, met between two steps of a training in this process."""


def compare(
    config: CompareConfig,
    out: Path,
    *,
    data_dir: Path | None = None,
    quick: bool = False,
    jobs: int = 1,
    minutes: float | None = None,
    say: Say | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Run every method that fits on the same records, and write results.json, results.csv and the page.

    No ε covers what it returns: it is for the holder of the records. Every release in it is made by `make_release`,
    with secret noise, and thrown away.

    Args:
        config: What is compared.
        out: Where finished cells and results are kept.
        data_dir: Where named data sets lie.
        quick: One seed and a short court.
        jobs: How many cells at once; above 1 each has a process of its own.
        minutes: How long it may take; else `config.minutes`.
        say: Told about every finished cell.
        progress: Of the steps within a cell, where it runs in this process.

    Raises:
        AirlockError: The records cannot be read, or nothing fits them.
        Interrupted: Ctrl-C; finished cells are kept.
    """
    if jobs < 1:
        raise ConfigError("at least one job", f"{jobs}")
    begin = time.monotonic()
    config = config.quick() if quick else config
    minutes = config.minutes if minutes is None else minutes
    matrix, folder = lay_out(config, data_dir), ComparisonFolder(Path(out).absolute())
    ways = Ways(folder.scratch, config.baseline, config.court_seconds, data_dir)
    marks = {task.name: mark(task, _depends(task, matrix, ways)) for task in matrix.tasks}
    tell_holder(data.load(matrix.tasks[0].config, data_dir).remarks)  # a bad file is one error, not one a cell
    with folder.opened():
        line = TaskQueue(matrix.tasks, folder, marks, jobs, None if minutes is None else begin + 60 * minutes, say)
        try:
            for task, found in run_queue(line, jobs, functools.partial(run_task, ways=ways), progress):
                line.finish(task, found)
        except (Interrupted, KeyboardInterrupt):
            raise Interrupted(
                "to finish the comparison",
                f"Ctrl-C after {len(line.found)} of {len(matrix.tasks)} cells",
                "Finished cells are kept.",
                "Run the same command again to go on.",
            ) from None
        made = _result(config, matrix, line)
        write(folder.root, made)
        write_page(folder.root, made)
    return made


def _depends(task: Task, matrix: Matrix, ways: Ways) -> list[object]:
    """What a cell depends on beside its own config: versions, the data as far as can be told, and how it is run."""
    places = [Path(place) for place in (task.config.data.source, task.config.data.test) if place]
    files = [[place.stat().st_size, place.stat().st_mtime_ns] for place in places if place.is_file()]
    own = {"baseline": ways.baseline.model_dump(mode="json"), "court": ways.court_seconds}.get(task.kind)
    return [VERSION, torch.__version__, repr(matrix.facts), files, own]


@dataclass
class TaskQueue:
    """The cells in line: those found, those still to run, and what must be dropped.

    A cell for which others had left no memory on the GPU is tried once more, when those beside it are others.

    Args:
        tasks: All of them, in order.
        folder: Where finished ones are kept.
        marks: What each depends on, by its name, as all else here.
        jobs: How many run at once.
        deadline: By the monotonic clock; None if there is none.
        say: Told about every finished cell.
    """

    tasks: Sequence[Task]
    folder: ComparisonFolder
    marks: dict[str, str]
    jobs: int = 1
    deadline: float | None = None
    say: Say | None = None
    found: dict[str, FinishedCell] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    _waiting: list[Task] = field(default_factory=list)
    _begun: dict[str, datetime.datetime] = field(default_factory=dict)
    _took: dict[tuple[str, str], list[float]] = field(default_factory=dict)  # by kind and method
    _again: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        for task in self.tasks:
            kept = self.folder.take_up(task.name, self.marks[task.name])
            if kept:
                self._count(task, kept)
            else:
                self._waiting.append(task)
        self._tell(None)

    def next(self) -> Task | None:
        """The next cell to run for which there is time; None when none is left."""
        while self._waiting:
            task = self._waiting.pop(0)
            reason = self._no_time(task)
            if reason is None:
                self._begun[task.name] = datetime.datetime.now(datetime.UTC)
                return task
            self.dropped[task.name] = reason
        return None

    def finish(self, task: Task, found: Found | Ended) -> None:
        """Keep what came of a cell."""
        begun = self._begun.pop(task.name)
        if found == "overtime":
            self.dropped[task.name] = OVERTIME
            return
        if self.jobs > 1 and task.name not in self._again and short_of_memory(found):
            self._again.add(task.name)
            self._waiting.insert(2 * self.jobs, task)
            return
        took = (datetime.datetime.now(datetime.UTC) - begun).total_seconds()
        kept = FinishedCell(failure(task, CRASHED, took) if isinstance(found, str) else found, begun)
        self._count(task, kept)
        self.folder.put(task.name, self.marks[task.name], kept)
        self._tell(task)

    def _count(self, task: Task, kept: FinishedCell) -> None:
        self.found[task.name] = kept
        self._took.setdefault((task.kind, task.method), []).append(kept.found.seconds)

    def seconds_left(self) -> float | None:
        """For all that is not finished, by the mean of the same method, else of all; None while nothing is known."""
        every = [seconds for took in self._took.values() for seconds in took]
        if not every:
            return None
        ahead = [task for task in self.tasks if task.name not in self.found and task.name not in self.dropped]
        left = sum(fmean(self._took.get((task.kind, task.method), every)) for task in ahead) / self.jobs
        return left if self.deadline is None else min(left, max(0.0, self.deadline - time.monotonic()))

    def _no_time(self, task: Task) -> str | None:
        if self.deadline is None:
            return None
        left = self.deadline - time.monotonic()
        if left <= 0:
            return OVER
        least = min(self._took.get((task.kind, task.method), [0.0]))
        return TOO_LONG.format(seconds=least) if least > left else None

    def _tell(self, task: Task | None) -> None:
        if self.say:
            found = None if task is None else self.found[task.name].found
            self.say(Moment(len(self.found), len(self.marks), task, found, self.seconds_left()))


def run_queue(
    line: TaskQueue, jobs: int, work: Callable[..., Found], progress: Progress | None = None
) -> Iterator[tuple[Task, Found | Ended]]:
    """Run what is in line, here or in so many processes."""
    if jobs > 1:
        threads = max(1, torch.get_num_threads() // jobs)
        own = functools.partial(_in_process, work=work, threads=threads, jobs=jobs)
        yield from Pool(jobs, own).run(line.next, line.deadline)
        return
    while (task := line.next()) is not None:
        try:
            yield task, work(task, progress=_until(line.deadline, progress))
        except _OutOfTimeError:
            yield task, "overtime"


def _in_process(task: Task, work: Work, threads: int, jobs: int) -> Found:
    torch.set_num_threads(threads)
    share_gpu(jobs)
    try:
        return work(task)
    finally:  # else it would be missing to the processes beside this one
        give_back()


def _until(deadline: float | None, progress: Progress | None) -> Progress | None:
    """Progress that ends a training at the deadline."""
    if deadline is None:
        return progress

    def report(label: str, done: int, total: int) -> None:
        if time.monotonic() > deadline:
            raise _OutOfTimeError
        if progress:
            progress(label, done, total)

    return report


def _result(config: CompareConfig, matrix: Matrix, line: TaskQueue) -> Comparison:
    kept = [line.found[task.name] for task in matrix.tasks if task.name in line.found]
    cells = tuple(one.found for one in kept if isinstance(one.found, Cell))
    court = tuple(one.found for one in kept if isinstance(one.found, MethodVerdict))
    begun = [one.begun for one in kept] or [datetime.datetime.now(datetime.UTC)]
    dropped = [
        Dropped(method=task.method, epsilon_asked=task.epsilon, seed=task.seed, reason=line.dropped[task.name])
        for task in matrix.tasks
        if task.name in line.dropped
    ]
    return Comparison(
        data=matrix.subject,
        epsilons=config.epsilons,
        delta=config.delta,
        seeds=config.seeds,
        cells=cells,
        skipped=matrix.skipped,
        dropped=tuple(dropped),
        court=court,
        need=config.need,
        advice=advise_measured(config, matrix, cells, court),
        version=VERSION,
        started=min(begun),
        seconds=sum(one.found.seconds for one in kept),
        complete=not dropped,
    )
