"""Who catches: the court on a method's own case, one run with its canaries, a test by its name, or a check."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, is_hypothesis_test, settings

from airlock import methods
from airlock.auditing import judge, judge_one_run
from airlock.mechanisms import Stream
from airlock.methods import Canaries, Case
from airlock.methods.student import ensemble
from airlock.methods.twin import sharded
from airlock.methods.weights.head import table_case
from airlock.threads import one_thread
from tests.faults import checks
from tests.faults.fault import Catcher
from tests.methods import test_charging as charging
from tests.methods import test_config_case as of_config
from tests.training.per_sample import test_graphs

EPSILON, DELTA = 1.0, 1e-5
CANARIES = 400
# Whose trials take a second or two where nothing is wrong.
_COURT, _ONE_RUN = ("answers/per-query",), ("answers/head", "answers/per-query", "twin/sharded")


def _tried(pairs: int) -> Callable[[Case, Path], str | None]:
    def look(case: Case, folder: Path) -> str | None:
        with one_thread():
            verdict = judge(case, Stream.from_seed(1), pairs, seconds=1e9)
        return f"refuted at {verdict.refuted_at} after {verdict.pairs} pairs" if verdict.refuted else None

    return look


@cache
def court(name: str, pairs: int) -> Catcher:
    """The court, on the method's own case, in at most so many pairs of runs."""
    return Catcher(
        f"court {name}", _tried(pairs), lambda: methods.open_case(name, EPSILON, DELTA), long=name not in _COURT
    )


@cache
def court_of_votes(pairs: int) -> Catcher:
    """The court on the answers of `student`/`ensemble` where they are counts of votes."""

    def opened() -> Case:
        made = ensemble.Ensemble(ensemble.court_config(EPSILON, DELTA, "votes"), ensemble.COURT_FACTS)
        return ensemble.answers_case(made)

    return Catcher("court student/ensemble, votes", _tried(pairs), opened, long=True)


@cache
def court_of_numbers(name: str, pairs: int) -> Catcher:
    """The court on a method over shards where a number is predicted."""
    made = {"twin/sharded": sharded.case_of_numbers, "student/ensemble": ensemble.case_of_numbers}[name]
    return Catcher(f"court {name}, a number", _tried(pairs), lambda: made(EPSILON, DELTA), long=name not in _COURT)


@cache
def court_of_people(name: str, pairs: int) -> Catcher:
    """The court, on the method's case of a person with many records; it is made with the fault in place."""

    def look(prepared: object, folder: Path) -> str | None:
        return _tried(pairs)(methods.open_case(name, EPSILON, DELTA, people=True), folder)

    return Catcher(f"court {name}, people", look, long=name == "weights/gaussian")


@cache
def court_of_table(pairs: int) -> Catcher:
    """The court, on `weights`/`head` of a table; the case is made with the fault in place."""

    def look(prepared: object, folder: Path) -> str | None:
        return _tried(pairs)(table_case(EPSILON, DELTA), folder)

    return Catcher("court weights/head, table", look, long=True)


@cache
def court_of_config(net: str, pairs: int) -> Catcher:
    """The court on a configuration with a network of the user's own."""

    def look(prepared: object, folder: Path) -> str | None:
        made = f"{of_config.__name__}:{net}"
        verdict = of_config.tried("weights/gaussian", pairs, net=made, settings={"clip_norm": 0.1})
        return f"refuted at {verdict.refuted_at} after {verdict.pairs} pairs" if verdict.refuted else None

    return Catcher(f"court --config, the network {net}", look, long=True)


@cache
def one_run(name: str, people: bool = False, count: int = CANARIES) -> Catcher:
    """The court, on one whole release with canaries, which may be people."""

    def look(canaries: Canaries, folder: Path) -> str | None:
        with one_thread():
            verdict = judge_one_run(canaries, Stream.from_seed(1))
        right = verdict.looks[0].correct
        return f"refuted, {right} of {count} guesses are right" if verdict.refuted else None

    opened = partial(methods.open_canaries, name, EPSILON, DELTA, count, people)
    more = "" if count == CANARIES else f", {count} canaries"
    return Catcher(f"one run {name}{', people' if people else ''}{more}", look, opened, long=name not in _ONE_RUN)


@cache
def called(function: Callable[..., Any], *arguments: object, long: bool = False) -> Catcher:
    """A test or a check by its name; a method is called on a new object of its class."""
    inner = function.hypothesis.inner_test if is_hypothesis_test(function) else function  # type: ignore[attr-defined]
    module, owner = sys.modules[inner.__module__], inner.__qualname__.rpartition(".")[0]
    given = f"[{', '.join(map(str, arguments))}]" if arguments else ""

    def look(prepared: object, folder: Path) -> None:
        with _first_example(function):
            function(*([getattr(module, owner)()] if owner else []), *arguments)

    return Catcher(f"{inner.__module__.split('.')[-1]}.{inner.__qualname__}{given}", look, long=long)


@contextlib.contextmanager
def _first_example(function: Callable[..., Any]) -> Iterator[None]:
    """A property is content with the first example that breaks it, however large: to make it small takes minutes."""
    if not is_hypothesis_test(function):
        yield
        return
    place = "_hypothesis_internal_use_settings"
    quick = settings(getattr(function, place), phases=(Phase.explicit, Phase.generate), report_multiple_bugs=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(function, place, quick)
        yield


@cache
def sold(function: Callable[[str], None], name: str) -> Catcher:
    """A check of the sale of a method's answers, whose release was made before."""
    return replace(called(function, name), prepare=lambda: charging.released(name))


@cache
def with_folder(function: Callable[..., Any], *arguments: object) -> Catcher:
    """A test whose first argument is an empty folder."""
    name = f"{function.__module__.split('.')[-1]}.{function.__qualname__}"
    return Catcher(f"{name}[{', '.join(map(str, arguments))}]", lambda _, folder: function(folder, *arguments))


@cache
def with_graphs(function: Callable[..., Any], *arguments: object) -> Catcher:
    """A test of CUDA graphs, with a stand-in for the GPU."""

    def look(prepared: None, folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            function(test_graphs.standing_in(patch), *arguments)

    return Catcher(f"test_graphs.{function.__qualname__}", look)


RELEASED = Catcher("check_executed, in a release", lambda _, folder: checks.released("weights/gaussian") and None)
