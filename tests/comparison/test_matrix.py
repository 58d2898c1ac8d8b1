"""The matrix: what comes first, what is skipped and why, and that no record is read for it."""

from __future__ import annotations

from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path

import pytest

from airlock import data, methods
from airlock.comparison.matrix import Matrix, _trials, chosen, lay_out, mark
from airlock.comparison.settings import NAMES, from_table, load
from airlock.comparison.values import BASELINE, PUBLIC
from airlock.errors import ConfigError, NetError

METHODS = ["weights/published", "weights/head", "student/ensemble", "answers/votes", "answers/per-query"]
TABLE: dict[str, object] = {"data": "digits", "epsilons": [1.0, 8.0], "delta": 1e-4, "seeds": 2, "methods": METHODS}
FEW = {"answers/votes": {"heads": 20}}  # drowned by the noise at ε = 1


@pytest.fixture(scope="module")
def matrix() -> Matrix:
    def no_record(*args: object) -> None:
        raise AssertionError("a record was read")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "load", no_record)
        return lay_out(from_table(TABLE | {"need": {"queries": 50}, "settings": FEW}))


def test_baseline_and_plain_dp_sgd_first_then_proven_then_published_then_court_then_seeds(matrix: Matrix) -> None:
    first = [(task.kind, task.method, task.epsilon) for task in matrix.tasks if task.seed == 0]
    assert first == [
        ("baseline", BASELINE, None),
        *[("release", "weights/gaussian", epsilon) for epsilon in (1.0, 8.0)],
        *[("release", "weights/head", epsilon) for epsilon in (1.0, 8.0)],
        *[("release", "answers/per-query", epsilon) for epsilon in (1.0, 8.0)],
        ("release", "answers/votes", 8.0),
        *[("release", "weights/published", epsilon) for epsilon in (1.0, 8.0)],
    ]
    trials = [task.method for task in matrix.tasks if task.kind == "court"]
    assert trials[0] == "weights/published"
    assert {task.epsilon for task in matrix.tasks if task.kind == "court"} == {1.0}
    assert [task.kind for task in matrix.tasks][len(first)] == "court"
    assert [task.seed for task in matrix.tasks][len(first) + len(trials) :] == [1] * len(first)


def test_public_records_have_a_row_of_their_own_where_there_are_any(matrix: Matrix) -> None:
    assert PUBLIC not in {task.method for task in matrix.tasks}
    few = {"epsilons": [8.0], "methods": ["weights/gaussian"], "split": {"public": 0.3}}
    tasks = lay_out(from_table(TABLE | few)).tasks
    assert [(task.kind, task.method) for task in tasks if task.seed == 1] == [
        ("baseline", BASELINE),
        ("baseline", PUBLIC),
        ("release", "weights/gaussian"),
    ]
    assert PUBLIC not in {task.method for task in tasks if task.kind == "court"}


def test_what_does_not_fit_is_skipped_with_the_reason(matrix: Matrix) -> None:
    found = {one.method: one for one in matrix.skipped}
    assert set(found) == {"student/ensemble", "answers/votes"}
    assert "public" in found["student/ensemble"].reason
    assert found["student/ensemble"].epsilons == ()
    assert found["answers/votes"].epsilons == (1.0,)
    assert "student/ensemble" not in {task.method for task in matrix.tasks}


def test_queries_of_the_need_reach_the_methods_that_count_them(matrix: Matrix) -> None:
    asked = {task.method: task.config.settings for task in matrix.tasks if task.kind == "release"}
    assert asked["answers/per-query"] == {"queries": 50}
    assert asked["weights/head"] == {}


def test_the_demo_skips_nothing() -> None:
    with as_file(files("airlock.comparison").joinpath("demo.toml")) as place:
        demo = lay_out(load(place, {"accountant": "rdp"}))  # the quicker one; what fits and what does not is the same
    assert not demo.skipped
    listed = {name for name in NAMES if methods.named(name).listed}
    assert set(NAMES) - listed == {"twin/kde-sharded"}
    assert {task.method for task in demo.tasks if task.kind == "release"} == listed


def test_names_are_those_of_files_and_differ(matrix: Matrix) -> None:
    names = [task.name for task in matrix.tasks]
    assert len(set(names)) == len(names)
    assert all(Path(name).name == name for name in names)


def test_a_mark_follows_what_a_cell_depends_on(matrix: Matrix) -> None:
    task = matrix.tasks[1]
    other = replace(task, config=task.config.model_copy(update={"settings": {"steps": 9}}))
    assert mark(task, "1.0") == mark(task, "1.0") != mark(task, "1.1")
    assert mark(other, "1.0") != mark(task, "1.0")


def test_a_network_is_for_those_who_take_it() -> None:
    few = {"epsilons": [8.0], "methods": ["weights/head", "weights/shaped"]}
    config = from_table(TABLE | few | {"net": "mlp"})
    nets = {task.method: task.config.net for task in lay_out(config).tasks if task.kind != "court"}
    assert nets == {BASELINE: "mlp", "weights/gaussian": "mlp", "weights/shaped": "mlp", "weights/head": "auto"}


def test_a_mistake_that_all_share_is_an_error_and_no_reason_to_skip() -> None:
    with pytest.raises(NetError):
        lay_out(from_table(TABLE | {"net": "no-such-net"}))
    with pytest.raises(ConfigError):
        lay_out(from_table(TABLE | {"data": "no-such-data"}))


def test_every_method_has_its_place() -> None:
    everything = chosen(from_table(TABLE | {"methods": []}))
    assert sorted(everything) == sorted(name for name in NAMES if methods.named(name).listed)
    assert everything[0] == "weights/gaussian"
    assert all(name.endswith("published") for name in everything[-4:])


def test_a_method_that_is_not_listed_is_there_by_its_full_name_alone() -> None:
    assert not methods.named("twin/kde-sharded").listed
    for asked in ([], ["twin"]):
        config = from_table(TABLE | {"methods": asked})
        assert "twin/kde-sharded" not in (*chosen(config), *config.names)
        assert "twin/sharded" in chosen(config)
    config = from_table(TABLE | {"methods": ["twin/kde-sharded"]})
    assert "twin/kde-sharded" in chosen(config)
    assert "twin/kde-sharded" in config.names


def test_a_method_that_claims_nothing_is_not_tried(matrix: Matrix) -> None:
    task = next(task for task in matrix.tasks if task.method == "weights/published" and task.plan is not None)
    assert task.plan is not None
    silent = replace(task.plan, guarantee=replace(task.plan.guarantee, claim=None, status="empirical"))
    config = from_table(TABLE)
    assert [one.method for one in _trials(config, {task.method: [(task.config, task.plan)]})] == [task.method]
    assert not list(_trials(config, {task.method: [(task.config, silent)]}))


def test_what_neither_promises_nor_claims_an_epsilon_is_run_once_without_one() -> None:
    table = TABLE | {"methods": ["features/published"], "seeds": 1, "split": {"public": 0.3}}
    own = [task for task in lay_out(from_table(table)).tasks if task.method == "features/published"]
    assert [(task.kind, task.epsilon) for task in own] == [("release", None)]
