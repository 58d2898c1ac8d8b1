"""Run a comparison: cell after cell, here or in several processes, until all are done or time runs out.

Killing it at any time loses only the running cells: every finished cell is stored in a file, and the next start with
the same settings reuses it. Cells that depend on something that has changed since are run again.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import sys
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
from airlock.comparison.pool import Ended, OutOfTimeError, Pool, RayPool, until
from airlock.comparison.results import ComparisonFolder, FinishedCell, write
from airlock.comparison.settings import CompareConfig, refuse_numbers
from airlock.comparison.values import Cell, Dropped, MethodVerdict
from airlock.errors import ConfigError, Interrupted
from airlock.pipeline import tell_holder
from airlock.training.devices import choose_device, give_back, share_gpu
from airlock.training.ensembles.ensemble import EngineName
from airlock.training.ensembles.ray_cluster import connected, import_ray, slots
from airlock.training.ensembles.ray_engine import versions
from airlock.training.loop import Progress

CRASHED = "Its process ended without a word, as when memory runs out."
OVER = "The time was over."
OVERTIME = "The time was over while it ran."
TOO_LONG = "Less time was left than this method takes, about {seconds:.0f} s."

Found = Cell | MethodVerdict
Work = Callable[[Task], Found]


@dataclass(frozen=True)
class Moment:
    """The progress of a comparison.

    Args:
        done: The number of finished cells.
        total: The number of cells in the matrix.
        task: The task that has just finished; None at the start.
        found: Its result.
        seconds_left: The estimated time for the rest, from the times of its methods so far; None if unknown.
    """

    done: int
    total: int
    task: Task | None
    found: Found | None
    seconds_left: float | None


Say = Callable[[Moment], None]


def compare(
    config: CompareConfig,
    out: Path,
    *,
    data_dir: Path | None = None,
    quick: bool = False,
    jobs: int = 1,
    minutes: float | None = None,
    engine: EngineName = "local",
    gpus: float | None = None,
    say: Say | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Run all applicable methods on the same records, and write results.json, results.csv and the page.

    No ε covers the result: it is for the holder of the records. Every release in it is made by `make_release`, with
    secret noise, and thrown away.

    Args:
        config: What is compared.
        out: Where finished cells and results are kept.
        data_dir: The folder of named data sets.
        quick: Use one seed and a short court.
        jobs: How many cells run at once; above 1, each runs in its own process. On a Ray cluster, 1 means as many as
            there is room for.
        minutes: The time limit; `config.minutes` if omitted.
        engine: Where cells run: "local", on this machine; "ray", on the workers of a Ray cluster, which read the same
            files at the same places.
        gpus: GPUs of a cell on a Ray cluster, possibly a fraction; by default 1 if the config computes on a GPU.
        say: Called after every finished cell.
        progress: Called with the steps within a cell that runs in this process.

    Raises:
        AirlockError: The records cannot be read, or no method applies to them.
        Interrupted: Ctrl-C; finished cells are kept.
    """
    if jobs < 1:
        raise ConfigError("at least one job", f"{jobs}")
    if engine not in ("local", "ray") or (gpus is not None and not (engine == "ray" and 0 <= gpus <= 64)):
        raise ConfigError(
            "the engine 'local', or 'ray' with a number of GPUs for each cell or none",
            f"'{engine}'" + ("" if gpus is None else f" with gpus = {gpus:g}"),
        )
    refuse_numbers(config)
    begin = time.monotonic()
    config = config.quick() if quick else config
    minutes = config.minutes if minutes is None else minutes
    matrix, folder = lay_out(config, data_dir), ComparisonFolder(Path(out).absolute())
    ways = Ways(folder.scratch, config.baseline, config.court_seconds, data_dir)
    marks = {task.name: mark(task, _depends(task, matrix, ways)) for task in matrix.tasks}
    tell_holder(data.load(matrix.tasks[0].config, data_dir).remarks)  # a bad file is one error, not one per cell
    with folder.opened():
        line = TaskQueue(matrix.tasks, folder, marks, jobs, None if minutes is None else begin + 60 * minutes, say)
        try:
            work = functools.partial(run_task, ways=ways)
            if engine == "ray":
                ran = _run_on_ray(line, jobs, work, _share(matrix, gpus))
            else:
                ran = run_queue(line, jobs, work, progress)
            for task, found in ran:
                line.finish(task, found)
        except (Interrupted, KeyboardInterrupt):
            raise Interrupted(
                "to finish the comparison",
                f"Ctrl-C after {len(line.found)} of {len(matrix.tasks)} cells",
                "Finished cells are kept.",
                "Run the same command again to continue.",
            ) from None
        made = _result(config, matrix, line)
        write(folder.root, made)
        write_page(folder.root, made)
    return made


def _depends(task: Task, matrix: Matrix, ways: Ways) -> list[object]:
    """What a cell depends on besides its config: versions, the data as far as can be told, and how it is run."""
    places = [Path(place) for place in (task.config.data.source, task.config.data.test) if place]
    files = [[place.stat().st_size, place.stat().st_mtime_ns] for place in places if place.is_file()]
    own = {"baseline": ways.baseline.model_dump(mode="json"), "court": ways.court_seconds}.get(task.kind)
    return [VERSION, torch.__version__, repr(matrix.facts), files, own]


@dataclass
class TaskQueue:
    """The queue of cells: those finished, those still to run, and those that must be dropped.

    A cell that failed because other cells had used up the GPU's memory is retried once, alongside different cells.

    Args:
        tasks: All tasks, in order.
        folder: Where finished cells are kept.
        marks: The digest of what each cell depends on, by cell name, like everything else here.
        jobs: How many cells run at once.
        deadline: On the monotonic clock; None if there is none.
        say: Called after every finished cell.
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
        """The next cell for which there is still time; None if there is none."""
        while self._waiting:
            task = self._waiting.pop(0)
            reason = self._no_time(task)
            if reason is None:
                self._begun[task.name] = datetime.datetime.now(datetime.UTC)
                return task
            self.dropped[task.name] = reason
        return None

    def finish(self, task: Task, found: Found | Ended) -> None:
        """Store the result of a cell."""
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
        """The estimated time for unfinished cells, from the mean of the same method, or of all; None if unknown."""
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
    """Run the queue, here or in several processes."""
    if jobs > 1:
        threads = max(1, torch.get_num_threads() // jobs)
        own = functools.partial(_in_process, work=work, threads=threads, jobs=jobs)
        yield from Pool(jobs, own).run(line.next, line.deadline)
        return
    while (task := line.next()) is not None:
        try:
            yield task, work(task, progress=until(line.deadline, progress))
        except OutOfTimeError:
            yield task, "overtime"


def _share(matrix: Matrix, gpus: float | None) -> float:
    """GPUs of a cell: as asked for, else 1 where the config computes on one."""
    if gpus is not None:
        return gpus
    return 1.0 if choose_device(matrix.tasks[0].config.device).type == "cuda" else 0.0


def _run_on_ray(
    line: TaskQueue, jobs: int, work: Callable[..., Found], gpus: float
) -> Iterator[tuple[Task, Found | Ended]]:
    """Run the queue on a Ray cluster: the one in RAY_ADDRESS, else one that is started here and ends with it."""
    ray = import_ray()
    with contextlib.ExitStack() as stack:
        with contextlib.redirect_stdout(sys.stderr):
            stack.enter_context(connected(ray, None, jobs if jobs > 1 else None, 0))
        places = slots(ray, gpus, "cell")
        line.jobs = min(jobs, places) if jobs > 1 else places
        own = functools.partial(_on_worker, work=work, sharers=round(1 / gpus) if 0 < gpus < 1 else 1, same=versions())
        yield from RayPool(ray, line.jobs, own, gpus).run(line.next, line.deadline)


def _on_worker(task: Task, work: Work, sharers: int, same: tuple[str, str]) -> Found:
    """One cell in a worker, unless it would run another program."""
    if versions() != same:
        said = " and ".join(f"{name} {one}" for name, one in zip(("Airlock", "torch"), versions(), strict=True))
        return failure(task, f"A machine of the cluster has other versions: {said}.", 0.0)
    return _in_process(task, work, 1, sharers)


def _in_process(task: Task, work: Work, threads: int, jobs: int) -> Found:
    torch.set_num_threads(threads)
    share_gpu(jobs)
    try:
        return work(task)
    finally:  # otherwise other processes could not use that memory
        give_back()


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
