"""Running a comparison: what a kill loses, what a deadline drops, what is told; and one tiny real one."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airlock import data
from airlock.auditing import Verdict
from airlock.comparison import run as running
from airlock.comparison.cell import CLAIMS, Ways, failure, run_task, short_of_memory
from airlock.comparison.matrix import Matrix, Task, lay_out
from airlock.comparison.page import NOTES, Comparison
from airlock.comparison.pool import Pool
from airlock.comparison.results import ComparisonFolder
from airlock.comparison.run import CRASHED, OVERTIME, Moment, TaskQueue, compare, run_queue
from airlock.comparison.settings import BaselineSettings, from_table
from airlock.comparison.values import BASELINE, PUBLIC, Cell, MethodVerdict
from airlock.config import DataConfig
from airlock.data import Records
from airlock.errors import ConfigError, DataError, Interrupted, OutputError
from airlock.methods import Case
from tests.visits import config, write
from tests.waiting import LONG

TABLE: dict[str, object] = {
    "data": "digits",
    "epsilons": [8.0],
    "delta": 1e-4,
    "seeds": 2,
    "methods": ["answers/per-query"],
    "court_seconds": 0.2,
    "settings": {
        "weights/gaussian": {"steps": 3},
        "answers/per-query": {"features": "pixels", "queries": 5},
        "baseline": {"epochs": 1},
    },
}


@pytest.fixture(scope="module")
def matrix() -> Matrix:
    return lay_out(from_table(TABLE))


@pytest.fixture
def line(matrix: Matrix, tmp_path: Path) -> Iterator[TaskQueue]:
    folder = ComparisonFolder(tmp_path / "out")
    with folder.opened():
        yield fresh(matrix, folder)


def fresh(matrix: Matrix, folder: ComparisonFolder, mark: str = "mark") -> TaskQueue:
    return TaskQueue(matrix.tasks, folder, {task.name: mark for task in matrix.tasks})


def done(task: Task, seconds: float = 1.0) -> Cell | MethodVerdict:
    """As if it had run."""
    return failure(task, "", seconds).model_copy(update={"error": None})


def run_all(line: TaskQueue, work: Callable[..., Cell | MethodVerdict]) -> None:
    for task, found in run_queue(line, 1, work):
        line.finish(task, found)


class Killed(BaseException):
    """In place of SIGKILL: nothing that runs afterwards is counted on."""


def test_a_kill_loses_the_running_cell_and_no_other(matrix: Matrix, tmp_path: Path) -> None:
    folder, ran = ComparisonFolder(tmp_path / "out"), []

    def work(task: Task, progress: object = None) -> Cell | MethodVerdict:
        if len(ran) == 3:
            raise Killed
        ran.append(task.name)
        return done(task)

    with folder.opened(), pytest.raises(Killed):
        run_all(fresh(matrix, folder), work)
    (folder.root / "cells" / ".half.json.part").write_text("{", encoding="utf-8")
    with folder.opened():
        assert not list((folder.root / "cells").glob(".*"))
        again = fresh(matrix, folder)
        assert list(again.found) == ran == [task.name for task in matrix.tasks[:3]]
        rest = again.next()
        assert rest is not None
        assert rest.name == matrix.tasks[3].name
        assert not fresh(matrix, folder, "other versions").found


def test_a_damaged_cell_is_run_again(line: TaskQueue, matrix: Matrix) -> None:
    task = line.next()
    assert task is not None
    line.finish(task, done(task))
    place = line.folder.root / "cells" / f"{task.name}.json"
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    table = json.loads(place.read_text(encoding="utf-8"))
    for text in ("{", json.dumps(table | {"found": {}}), json.dumps([table]), json.dumps(table | {"begun": 3})):
        place.write_text(text, encoding="utf-8")
        assert task.name not in fresh(matrix, line.folder).found


def test_a_failed_cell_is_told_and_run_again(line: TaskQueue, matrix: Matrix) -> None:
    task = line.next()
    assert task is not None
    line.finish(task, "crashed")
    assert line.found[task.name].found.error == CRASHED
    assert task.name not in fresh(matrix, line.folder).found


def test_a_cell_without_memory_beside_others_is_tried_once_more(line: TaskQueue, matrix: Matrix) -> None:
    together = replace(line, jobs=2)
    first = together.next()
    assert first is not None
    full = failure(first, "OutOfMemoryError: CUDA out of memory.", 1.0)
    together.finish(first, full)
    assert first.name not in together.found
    assert not list((line.folder.root / "cells").iterdir())
    ahead = [task.name for task in iter(together.next, None)]
    assert ahead.index(first.name) == min(4, len(ahead) - 1)
    together.finish(first, full)  # now it is told
    assert together.found[first.name].found.error == full.error
    alone = fresh(matrix, line.folder)
    assert alone.next() is not None
    alone.finish(first, full)  # nobody beside it took the memory
    assert first.name in alone.found


@pytest.mark.parametrize(
    ("error", "short"),
    [
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 20 MiB.", True),
        ("RuntimeError: cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR", True),
        ("RuntimeError: no net", False),
        (None, False),
    ],
)
def test_what_is_a_want_of_memory(matrix: Matrix, error: str | None, short: bool) -> None:
    assert short_of_memory(failure(matrix.tasks[0], "", 1.0).model_copy(update={"error": error})) is short
    assert not short_of_memory("crashed")


class Clock:
    """In place of the module `time`: it goes on when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("airlock.comparison.run.time", made)
    monkeypatch.setattr("airlock.comparison.pool.time", made)
    return made


def test_time_left_and_what_a_deadline_drops(matrix: Matrix, tmp_path: Path, clock: Clock) -> None:
    said: list[Moment] = []
    folder = ComparisonFolder(tmp_path / "out")
    with folder.opened():
        line = replace(fresh(matrix, folder), say=said.append, deadline=clock.now + 50)
        assert line.seconds_left() is None
        first = line.next()
        assert first is not None
        line.finish(first, done(first, seconds=100.0))
        assert said[-1].done == 1
        assert said[-1].seconds_left == 50  # no more than there is
        while (task := line.next()) is not None:
            line.finish(task, done(task))
        second = next(task for task in matrix.tasks if task.kind == "baseline" and task.seed == 1)
        assert "takes, about 100 s" in line.dropped[second.name]
        assert len(line.found) == len(matrix.tasks) - 1


def test_over_time_means_dropped(matrix: Matrix, tmp_path: Path, clock: Clock) -> None:
    folder = ComparisonFolder(tmp_path / "out")

    def work(task: Task, progress: running.Progress | None = None) -> Cell | MethodVerdict:
        assert progress is not None
        progress("training", 1, 2)  # there is time
        clock.now += 0.25
        progress("training", 2, 2)
        raise AssertionError("went on after the deadline")

    with folder.opened():
        line = fresh(matrix, folder)
        line.deadline = clock.now + 0.2
        first = line.next()
        assert first is not None
        line._waiting.insert(0, first)
        run_all(line, work)
    assert line.dropped[first.name] == OVERTIME
    assert len(line.dropped) == len(matrix.tasks)


def in_another_process(number: int) -> int:
    if number == 2:
        os._exit(3)
    if number == 4:
        time.sleep(LONG)
    return number * number


def test_processes_give_results_crash_and_are_ended_at_the_deadline(clock: Clock) -> None:
    numbers = iter([1, 2, 3, 4])
    pool: Pool[int, int] = Pool(2, in_another_process, start="fork")
    found, deadline = dict[int, object](), clock.now + LONG
    for number, result in pool.run(lambda: next(numbers, None), deadline):
        found[number] = result
        if len(found) == 3:
            clock.now = deadline
    assert found == {1: 1, 2: "crashed", 3: 9, 4: "overtime"}


def test_two_runs_do_not_share_a_folder_and_nothing_of_the_users_is_written_over(tmp_path: Path) -> None:
    folder = ComparisonFolder(tmp_path / "out")
    with folder.opened(), pytest.raises(OutputError, match="another run"), ComparisonFolder(folder.root).opened():
        pass
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("", encoding="utf-8")
    with pytest.raises(OutputError, match="something else"), ComparisonFolder(mine).opened():
        pass


def test_ctrl_c_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **more: object) -> Cell:
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "run_task", interrupted)
    with pytest.raises(Interrupted, match="Run the same command again"):
        compare(from_table(TABLE | {"methods": ["weights/gaussian"]}), tmp_path / "out", quick=True)


def test_a_failure_is_a_cell_that_says_why(matrix: Matrix, tmp_path: Path) -> None:
    release = next(task for task in matrix.tasks if task.kind == "release")
    broken = replace(release, config=release.config.model_copy(update={"settings": {"no_such_setting": 1}}))
    found = run_task(broken, Ways(tmp_path, BaselineSettings(), 0.1))
    assert isinstance(found, Cell)
    assert found.accuracy is None
    assert "no_such_setting" in (found.error or "")
    assert not list(tmp_path.iterdir())


def test_a_longer_court_does_not_ask_for_releases_again(matrix: Matrix, tmp_path: Path) -> None:
    short, long = (Ways(tmp_path, BaselineSettings(), seconds) for seconds in (1.0, 9.0))
    for task in matrix.tasks:
        same = running._depends(task, matrix, short) == running._depends(task, matrix, long)
        assert same == (task.kind != "court")


def test_a_claim_is_tried_longer_than_a_proof(matrix: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def short(case: Case, *stream: Any, seconds: float, **more: Any) -> Verdict:
        asked.append(seconds)
        return Verdict(replace(case, family=None), None, 0.0, 0.95, 99, seconds)

    monkeypatch.setattr("airlock.comparison.cell.judge", short)
    court = next(task for task in matrix.tasks if task.kind == "court")
    for method in ("weights/gaussian", "weights/published"):
        found = run_task(replace(court, method=method), Ways(tmp_path, BaselineSettings(), 2.0))
        assert isinstance(found, MethodVerdict)
        assert found.error is None
    assert asked == [2.0, 2.0 * CLAIMS]


def test_where_people_are_protected_the_court_tries_a_person(
    matrix: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def short(case: Case, *stream: Any, seconds: float, **more: Any) -> Verdict:
        tried.append(case.pair)
        return Verdict(replace(case, family=None), None, 0.0, 0.95, 99, seconds)

    monkeypatch.setattr("airlock.comparison.cell.judge", short)
    court = next(task for task in matrix.tasks if task.kind == "court")
    visits = config(write(tmp_path))
    for own in (visits, visits.model_copy(update={"unit": "record"})):
        run_task(replace(court, method="answers/head", config=own), Ways(tmp_path, BaselineSettings(), 2.0))
    assert ["people" in pair for pair in tried] == [True, False]


def test_records_that_are_not_there_are_one_error(
    matrix: Matrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = matrix.tasks[0].config.model_copy(update={"data": DataConfig(source="mnist")})
    laid_out = replace(matrix, tasks=(replace(matrix.tasks[0], config=away),))
    monkeypatch.setattr(running, "lay_out", lambda config, data_dir: laid_out)
    with pytest.raises(DataError, match="Nothing is ever downloaded"):
        compare(from_table(TABLE), tmp_path / "out", data_dir=tmp_path)
    assert not (tmp_path / "out").exists()


def test_a_model_of_public_records_alone_meets_no_private_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = lay_out(from_table(TABLE | {"split": {"public": 0.3}})).tasks
    task = next(task for task in tasks if task.method == PUBLIC)
    ways = Ways(tmp_path, BaselineSettings(epochs=1), 0.1)
    found, loaded = run_task(task, ways), data.load(task.config)
    assert isinstance(found, Cell)
    assert (found.error, found.status, found.epsilon, found.attacks, found.bytes) == (None, "proven", 0.0, (), None)
    assert found.accuracy is not None
    assert found.accuracy > 0.5
    turned = Records(loaded.private.x[::-1].copy(), loaded.private.y)
    monkeypatch.setattr(data, "load", lambda *_: replace(loaded, private=turned))
    again = run_task(task, ways)
    assert isinstance(again, Cell)
    assert again.correct == found.correct
    open_task = next(task for task in tasks if task.method == BASELINE)
    monkeypatch.setattr(data, "load", lambda *_: replace(loaded, private=Records(turned.x[:9], turned.y[:9])))
    poor = run_task(open_task, ways)
    assert isinstance(poor, Cell)
    assert poor.accuracy is None or poor.accuracy < found.accuracy, "the other one is of the private records"


def test_no_job_is_no_comparison(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        compare(from_table(TABLE), tmp_path, jobs=0)


def test_a_tiny_comparison_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[Moment] = []
    out = tmp_path / "out"
    found = compare(from_table(TABLE), out, quick=True, say=said.append)
    assert [cell.method for cell in found.cells] == [BASELINE, "weights/gaussian", "answers/per-query"]
    assert {one.method for one in found.court} == {"weights/gaussian", "answers/per-query"}
    assert not found.dropped
    assert found.complete
    for cell in found.cells:
        assert cell.error is None
        assert cell.attacks
        assert cell.low < cell.accuracy < cell.high  # type: ignore[operator]
    baseline, plain, answers = found.cells
    assert (baseline.status, baseline.epsilon, baseline.bytes) == ("none", None, None)
    assert plain.epsilon is not None
    assert 7.9 < plain.epsilon <= 8.0
    assert (plain.queries, answers.queries) == (None, 5)
    assert (plain.parameters, answers.parameters) == (baseline.parameters, None)
    assert plain.bytes is not None
    assert plain.bytes > 4 * (plain.parameters or 0)
    assert "5 answers" in answers.protects
    assert found.notes == NOTES
    assert (said[0].done, said[-1].done, said[-1].total) == (0, 5, 5)
    assert found.advice.measured
    names = [".lock", "cells", "report.html", "results.csv", "results.json"]
    assert sorted(path.name for path in out.iterdir()) == names
    assert stat.S_IMODE(out.stat().st_mode) == 0o700
    assert Comparison.model_validate_json((out / "results.json").read_text(encoding="utf-8")) == found

    def never(*args: object, **more: object) -> Cell:
        raise AssertionError("a finished cell was run again")

    monkeypatch.setattr(running, "run_task", never)
    assert compare(from_table(TABLE), out, quick=True) == found
