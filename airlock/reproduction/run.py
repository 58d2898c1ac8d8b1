"""Running what is missing of a paper, keeping every run as a row, and writing the page.

    DIR/<paper>.jsonl     the rows, one per line, appended and synced as they come
    DIR/<paper>.md        the page, from the rows and the paper's template alone
    DIR/<paper>.scratch/  long work that is not done, for the next run; gone when a run leaves nothing undone

The quick version has files of its own, <paper>-quick.

A trial that has a row is not run again, so an interrupted run goes on where it was. A line that was cut off by a crash
is left out, and its trial is run again. So is a trial that failed: its row says why, and so does the page. Rows of
several machines are put together by appending one file to the other.

A trial runs on one thread, which is faster for networks as small as these and makes its row the same on any number of
cores; several trials run at once in processes of their own, on one GPU if there is one.
"""

from __future__ import annotations

import fcntl
import functools
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

import jinja2
import torch

from airlock._version import VERSION
from airlock.bundle.files import output_error, replace_file
from airlock.comparison.pool import Ended, OutOfTimeError, Pool, until
from airlock.data.sources import named
from airlock.errors import AirlockError, ConfigError, Interrupted, OutputError
from airlock.reproduction import answers, features, student, twin, weights
from airlock.reproduction.paper import Figures, Found, Item, ItemResult, KeptRow, Paper, Trial, Workplace
from airlock.threads import one_thread
from airlock.training import Run
from airlock.training.devices import choose_device, give_back, share_gpu

PAPERS = {paper.name: paper for paper in (weights.PAPER, twin.PAPER, student.PAPER, features.PAPER, answers.PAPER)}
Say = Callable[[str], None]
CRASHED = "Its process ended without a word, as when memory runs out."
_SAID = 300  # characters of a reason at most


@dataclass(frozen=True)
class Reproduced:
    """What a run left.

    Args:
        paper: Of which.
        page: Where the page is.
        rows: Where the rows are.
        shown: What each item shows, by its name.
        ran: How many trials were run this time.
        left: How many could not be run, because data are missing.
        failed: How many failed.
        waiting: How many the time was too short for.
    """

    paper: Paper
    page: Path
    rows: Path
    shown: dict[str, ItemResult]
    ran: int
    left: int
    failed: int = 0
    waiting: int = 0


def named_paper(name: str) -> Paper:
    """The paper of this channel.

    Raises:
        ConfigError: There is none.
    """
    if name not in PAPERS:
        raise ConfigError(
            f"a paper ({', '.join(PAPERS)})", f"'{name}'", do="`airlock reproduce list` says what is here."
        )
    return PAPERS[name]


def stem(paper: Paper, quick: bool) -> str:
    """What the files of a paper are called."""
    return f"{paper.name}-quick" if quick else paper.name


def chosen_items(paper: Paper, only: Sequence[str]) -> tuple[Item, ...]:
    """The items of these names, all of them if there are none.

    Raises:
        ConfigError: There is no such item.
    """
    known = {item.name: item for item in paper.items}
    if unknown := [name for name in only if name not in known]:
        raise ConfigError(f"an item of '{paper.name}' ({', '.join(known)})", f"'{unknown[0]}'")
    return tuple(item for item in paper.items if not only or item.name in only)


def reproduce(
    name: str,
    out: Path,
    only: Sequence[str] = (),
    quick: bool = False,
    data_dir: Path | None = None,
    device: str = "auto",
    run: Run | None = None,
    say: Say = lambda line: None,
    seconds: float | None = None,
    jobs: int = 1,
) -> Reproduced:
    """Run what is missing of a paper's items, and write its page.

    Args:
        name: The paper, by its channel.
        out: The folder of rows and page.
        only: Names of items; all if empty.
        quick: The small version of every item.
        data_dir: The folder of the named data sets.
        device: "auto", "cpu" or "cuda".
        run: For its progress; there is none with several jobs.
        say: Called with a line for each trial.
        seconds: The time limit; a trial that is running then is lost, and the rows that are kept stand.
        jobs: How many trials run at once; above 1, each in a process of its own.

    Raises:
        ConfigError: There is no such paper, item or device, or the limits make no sense.
        OutputError: The folder cannot be written to, or holds something else.
        Interrupted: Ctrl-C; the rows that are kept stand.
    """
    begin = time.monotonic()
    paper = named_paper(name)
    items = chosen_items(paper, only)
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        raise ConfigError("device auto, cpu or cuda", f"'{device}'")
    if jobs < 1 or not (seconds is None or seconds > 0):
        raise ConfigError("at least one job, and a time limit above 0", f"{jobs} and {seconds}")
    name, deadline = stem(paper, quick), None if seconds is None else begin + seconds
    scratch = out / f"{name}.scratch"
    work = Work(paper.name, data_dir, device, scratch.absolute(), jobs)
    made = _device(choose_device(device))
    page = out / f"{name}.md"
    with _Rows(out, out / f"{name}.jsonl") as rows:
        wanted = sorted(dict.fromkeys(trial for item in items for trial in item.trials(quick)), key=paper.order)
        missing = [trial for trial in wanted if trial.key not in rows.keys]
        here = {source for source in paper.sources if _is_here(source, data_dir)}
        able = [trial for trial in missing if dict(trial.settings).get("data") in {None, *here}]
        say(f"{paper.name}: {len(wanted)} trials, {len(wanted) - len(missing)} are kept, {len(able)} to run")
        line, ran, failed, commit = TrialQueue(able, paper, deadline), 0, 0, _commit()
        try:
            for trial, outcome in _ran(line, work, run or Run()):
                if outcome == "overtime":
                    line.give_back(trial)
                    continue
                if isinstance(outcome, str):
                    line.release(trial)
                    outcome = TrialResult({}, 0.0, CRASHED)
                rows.keep(KeptRow(trial, outcome.figures, commit, made, outcome.seconds, outcome.failed))
                ran, failed = ran + 1, failed + bool(outcome.failed)
                said = f"failed: {outcome.failed}" if outcome.failed else f"{outcome.seconds:g} s"
                say(f"{ran}/{len(able)} {in_words(trial)} ({said})")
        except (Interrupted, KeyboardInterrupt):
            raise Interrupted(
                "to finish the runs",
                f"Ctrl-C after {ran} of {len(able)} trials",
                "The rows that are kept stand.",
                "Run the same command again to continue.",
            ) from None
        finally:
            found = Found(tuple(rows.found), quick)
            replace_file(page, rendered(paper, found))
        if not line.waiting and not failed:
            shutil.rmtree(scratch, ignore_errors=True)
    shown = {item.name: _shown(item, found) for item in items}
    return Reproduced(paper, page, rows.path, shown, ran, len(missing) - len(able), failed, line.waiting)


def in_words(trial: Trial) -> str:
    """A trial in a line."""
    words = ", ".join(f"{key} {value}" for key, value in trial.settings)
    return f"{trial.experiment}: {words}, seed {trial.seed}"


# What runs a trial.


@dataclass(frozen=True)
class TrialResult:
    """What came of a trial.

    Args:
        figures: What came out.
        seconds: Of the clock.
        failed: Why nothing came out; "" if something did.
    """

    figures: Figures
    seconds: float
    failed: str = ""


@dataclass(frozen=True)
class Work:
    """What a process must know to run trials.

    Args:
        paper: Whose.
        data_dir: The folder of the named data sets.
        device: Its name.
        scratch: Where unfinished work is kept.
        jobs: How many processes there are.
    """

    paper: str
    data_dir: Path | None
    device: str
    scratch: Path
    jobs: int

    def place(self, run: Run) -> Workplace:
        """Where this process runs trials."""
        return Workplace(self.data_dir, replace(run, device=choose_device(self.device)), self.scratch)


class TrialQueue:
    """The trials that are to be run, in order; those that share something stay with the process that has it.

    Args:
        trials: In order.
        paper: Whose.
        deadline: On the monotonic clock; None if there is none.
    """

    def __init__(self, trials: Sequence[Trial], paper: Paper, deadline: float | None) -> None:
        self.deadline, self._paper = deadline, paper
        self._groups: dict[object, list[Trial]] = {}
        self._taken: set[object] = set()
        for trial in trials:
            self._groups.setdefault(self._key(trial), []).append(trial)

    def _key(self, trial: Trial) -> object:
        shared = self._paper.together(trial)
        return trial.key if shared is None else (shared,)

    @property
    def waiting(self) -> int:
        """How many trials nobody has taken."""
        return sum(map(len, self._groups.values()))

    def _over(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline

    def next(self) -> Trial | None:
        """The first trial of the first group that no process has; None if there is none, or no time."""
        for key, trials in self._groups.items():
            if key not in self._taken and trials and not self._over():
                self._taken.add(key)
                return trials.pop(0)
        return None

    def follow(self, trial: Trial) -> Trial | None:
        """The next one of the same group."""
        rest = self._groups[self._key(trial)]
        return rest.pop(0) if rest and not self._over() else None

    def release(self, trial: Trial) -> None:
        """The process that had this group is gone."""
        self._taken.discard(self._key(trial))

    def give_back(self, trial: Trial) -> None:
        """It was not run after all."""
        self._groups[self._key(trial)].insert(0, trial)


def _ran(line: TrialQueue, work: Work, run: Run) -> Iterator[tuple[Trial, TrialResult | Ended]]:
    """Run the queue, here or in several processes."""
    if work.jobs > 1:
        yield from Pool(work.jobs, functools.partial(_in_process, work), follow=line.follow).run(
            line.next, line.deadline
        )
        return
    place = work.place(replace(run, progress=until(line.deadline, run.progress)))
    trial = line.next()
    while trial is not None:
        try:
            yield trial, run_trial(PAPERS[work.paper], trial, place)
        except OutOfTimeError:
            yield trial, "overtime"
        trial = line.follow(trial) or line.next()


def run_trial(paper: Paper, trial: Trial, place: Workplace) -> TrialResult:
    """One trial; a failure is an outcome too, and Ctrl-C is not."""
    begin = time.monotonic()
    figures: Figures = {}
    failed = ""
    try:
        with one_thread():
            figures = paper.experiments[trial.experiment](trial, place)
    except Interrupted:
        raise
    except Exception as error:  # noqa: BLE001 - one failing trial does not end the run
        said = " ".join(str(error).split())
        named_so = "" if isinstance(error, AirlockError) else f"{type(error).__name__}: "
        failed = (named_so + said)[:_SAID] or type(error).__name__
    return TrialResult(figures, round(time.monotonic() - begin, 1), failed)


_places: dict[Work, Workplace] = {}


def _in_process(work: Work, trial: Trial) -> TrialResult:
    """A trial in one of several processes, which keeps what its trials share."""
    if work not in _places:
        share_gpu(work.jobs)
        _places[work] = work.place(Run())
    try:
        return run_trial(PAPERS[work.paper], trial, _places[work])
    finally:  # otherwise other processes could not use that memory
        give_back()


# The page and the rows.


def rendered(paper: Paper, found: Found) -> str:
    """The page of a paper, from rows alone."""
    folder = files("airlock.reproduction") / "templates"
    loader = jinja2.FunctionLoader(lambda name: (folder / name).read_text(encoding="utf-8"))
    environment = jinja2.Environment(
        loader=loader, autoescape=False, undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    shown = {item.name: _shown(item, found) for item in paper.items}
    rows = [row for row in found.rows if not row.failed]
    devices, kept = sorted({row.device for row in rows}), {row.trial.key for row in rows}
    missing = {item.name: sum(trial.key not in kept for trial in item.trials(found.quick)) for item in paper.items}
    page = environment.get_template(f"{paper.name}.md.j2").render(
        paper=paper,
        shown=shown,
        missing=missing,
        quick=found.quick,
        count=len(rows),
        devices=devices,
        rows=f"{stem(paper, found.quick)}.jsonl",
    )
    if not found.failed:
        return page
    lines = [f"- {in_words(row.trial)}: {row.failed}" for row in found.failed]
    return "\n".join(
        [page.rstrip("\n"), "", "## Runs that failed", "They are tried again by the next run.", "", *lines, ""]
    )


def _shown(item: Item, found: Found) -> ItemResult:
    """What an item shows; small runs are compared with nothing."""
    result = item.show(found)
    if found.quick and item.trials(True) and result.status in ("reproduced", "differs"):
        return replace(result, status="in part", words="it runs; too small to compare")
    return result


class _Rows:
    """The file of rows: one process at a time appends to it."""

    def __init__(self, folder: Path, path: Path) -> None:
        self.folder, self.path = folder, path
        self.found: list[KeptRow] = []
        self.keys: set[str] = set()

    def __enter__(self) -> _Rows:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "a+b")
        except OSError as error:
            raise output_error(error, self.path) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise OutputError(
                f"nobody else to write {self.path}",
                "another run of this paper",
                do="Wait for it, or name another --out.",
            ) from error
        try:
            self._read()
        except OutputError:
            self._file.close()
            raise
        return self

    def __exit__(self, *how: object) -> None:
        self._file.close()

    def _read(self) -> None:
        self._file.seek(0)
        content = self._file.read()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            self._file.truncate(len(whole))  # cut off in the middle of a line
        for number, line in enumerate(whole.decode("utf-8", "replace").splitlines(), 1):
            try:
                self._add(KeptRow.from_json(line))
            except ValueError as error:
                raise OutputError(
                    f"a row in line {number} of {self.path}",
                    "something else",
                    do="Remove the line, or name another --out.",
                ) from error

    def keep(self, row: KeptRow) -> None:
        """Append a row, on the disk before this returns."""
        self._file.write(row.to_json().encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._add(row)

    def _add(self, row: KeptRow) -> None:
        self.found.append(row)
        if not row.failed:
            self.keys.add(row.trial.key)


def _commit() -> str:
    """The source's commit, "+" if it was changed on top; the version where there is no repository."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return VERSION
    try:
        line = ["git", "-C", str(root), "describe", "--always", "--dirty=+", "--exclude=*", "--abbrev=9"]
        return subprocess.run(line, capture_output=True, text=True, check=True, timeout=30).stdout.strip() or VERSION
    except (OSError, subprocess.SubprocessError):
        return VERSION


def _device(device: torch.device) -> str:
    """What computed: a GPU by its name, a CPU by its architecture; and torch's version."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU ({platform.machine()})"
    return f"{name}, torch {torch.__version__.split('+')[0]}"


def _is_here(source: str, data_dir: Path | None) -> bool:
    known = named(source, data_dir)
    return known is not None and known[0].find(known[1]) is not None
