"""`make test` tries the same examples whatever ran before and however slowly; `make fuzz` tries more, of every test."""

from __future__ import annotations

import importlib
import os
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from airlock.mechanisms import Stream
from tests import chance, quick

TESTS = Path(__file__).parent
SLOW_WORK = {
    "serve/selling.py",
    "training/ensembles/test_ray.py",
    "training/front_ends/test_extract.py",
    "comparison/test_run.py",
}
# What a test may not say, what it says instead, and who may all the same.
UNSAFE: dict[str, tuple[str, set[str]]] = {
    r"\bsleep\(": ("wait_until of tests/waiting.py", {"waiting.py", *SLOW_WORK}),
    r"(timeout=|\.wait\(|\.join\()\d": ("LONG of tests/waiting.py", SLOW_WORK),
    r"\btime\.(monotonic|time|perf_counter)\(": ("events, or a clock of its own", {"waiting.py", *SLOW_WORK}),
    r"\bdefault_rng\(\)": ("a seed", set()),
}
SAMPLES = ("time.sleep(1)", "get(url, timeout=30)", "ready.wait(5)", "rng = default_rng()", "time.monotonic() < 3")


def unsafe(name: str, text: str) -> list[str]:
    found = []
    for pattern, (instead, allowed) in UNSAFE.items():
        if name not in allowed and (match := re.search(pattern, text)):
            found.append(f"{name}: {match[0]}; instead: {instead}")
    return found


def test_no_test_hangs_on_seconds_or_luck() -> None:
    files = [path for path in TESTS.rglob("*.py") if path != Path(__file__)]
    assert len(files) > 100
    assert [line for path in files for line in unsafe(str(path.relative_to(TESTS)), path.read_text("utf-8"))] == []
    assert all(unsafe("test_new.py", text) for text in SAMPLES)


@pytest.fixture(params=["test", "fuzz"])
def profile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(chance, "FUZZ_EXAMPLES", 10 * chance.USUAL)
    before = settings.get_current_profile_name()
    settings.load_profile(request.param)
    yield request.param
    settings.load_profile(before)


def test_every_test_has_its_share_of_the_budget(profile: str) -> None:
    """Also one with settings of its own, and a state machine."""
    times, tried = (10 if profile == "fuzz" else 1), []

    @given(st.integers())
    def usual(number: int) -> None:
        tried.append(number)

    @settings(max_examples=7, phases=[Phase.generate])
    @given(st.integers())
    def few(number: int) -> None:
        tried.append(number)

    for test, expected in ((usual, 100), (few, 7)):
        tried.clear()
        chance.settle(test)
        chance.settle(test)  # a parametrised test is collected several times
        test()
        assert len(tried) == expected * times

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            tried.append(0)

        @rule(number=st.integers())
        def step(self, number: int) -> None:
            pass

    case = Machine.TestCase
    case.settings = settings(max_examples=5, stateful_step_count=2)
    chance.settle(case("runTest").runTest, case)
    tried.clear()
    case("runTest").runTest()
    assert len(tried) == 5 * times


def test_no_clock_fails_a_test(profile: str) -> None:
    chosen = settings(max_examples=3, deadline=1, suppress_health_check=[HealthCheck.function_scoped_fixture])
    found = chance.without_clock(chosen)
    assert found.deadline is None
    assert {HealthCheck.too_slow, HealthCheck.function_scoped_fixture} == set(found.suppress_health_check)
    assert found.database is None
    assert found.print_blob
    assert found.derandomize == (profile == "test")


def drawn() -> list[object]:
    """The examples of a new test; equal ones each time in `make test`."""
    found: list[object] = []

    @given(st.tuples(st.integers(), st.floats(), st.text(), st.binary()))
    def search(values: tuple[object, ...]) -> None:
        found.append((repr(values), random.random(), np.random.rand(), torch.rand(()).item()))

    search()
    return found


def test_the_same_examples_whatever_was_imported_or_drawn_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if chance.is_fuzzing():
        pytest.skip("random examples are the point of fuzzing")
    first = drawn()
    assert len(first) == 100
    numbers = ", ".join(str(7_919 * n) for n in range(1, 500))
    (tmp_path / "another_module.py").write_text(f"NUMBERS = [{numbers}]\nWORD = 'an unusual word'\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("another_module")
    random.random()
    torch.rand(3)
    assert drawn() == first


def test_a_fixture_draws_the_same_whoever_asks_first() -> None:
    def draws() -> tuple[float, float, float]:
        return random.random(), np.random.rand(), torch.rand(()).item()

    with chance.own_chance("a fixture"):
        wanted = draws()
    chance.seed_all("a test")
    here = draws()
    chance.seed_all("a test")
    with chance.own_chance("a fixture"):
        assert draws() == wanted
    assert draws() == here != wanted


@pytest.fixture(scope="module")
def shared() -> tuple[float, bytes]:
    return torch.rand(()).item(), Stream.from_system().take_key()


def test_a_shared_fixture_has_chance_of_its_own(shared: tuple[float, bytes]) -> None:
    name = "tests/test_chance.py::shared[0]"
    with chance.own_chance(name), chance.seeded_system(name):
        assert (torch.rand(()).item(), Stream.from_system().take_key()) == shared


def keys(name: str) -> list[bytes]:
    with chance.seeded_system(name):
        return [Stream.from_system().take_key() for _ in range(3)]


def test_the_systems_randomness_is_the_tests_own_and_never_the_same_twice(request: pytest.FixtureRequest) -> None:
    assert Stream.from_system().secure
    here = [Stream.from_system().take_key() for _ in range(2)]
    assert keys(request.node.nodeid)[1:] == here
    assert len({*keys("one"), *keys("another")}) == 6


@pytest.mark.parametrize("number", [1, 2])
def test_a_module_that_a_test_writes_is_its_own(number: int, tmp_path: Path) -> None:
    (tmp_path / "a_network_of_mine.py").write_text(f"number = {number}\n")
    sys.path.insert(0, str(tmp_path))
    found = importlib.import_module("a_network_of_mine")
    assert found.number == number


def test_a_forked_process_asks_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = keys("a name")
    with chance.seeded_system("a name"):
        monkeypatch.setattr(os, "getpid", lambda: 1)
        assert Stream.from_system().take_key() not in mine


@pytest.mark.system_randomness
def test_a_test_can_ask_for_the_systems_own(request: pytest.FixtureRequest) -> None:
    assert Stream.from_system().take_key() not in keys(request.node.nodeid)


def test_both_halves_begin_with_slow_modules_and_none_is_divided() -> None:
    slow, small = sorted(quick.slow())[:4], Path("small.py")
    modules = [small] * 5 + [module for module in slow for _ in range(3)] + [small] * 9
    order = quick.slow_first(range(26), modules)
    assert sorted(order) == list(range(26))
    first, second = [modules[place] for place in order[:13]], [modules[place] for place in order[13:]]
    assert first == [slow[0]] * 3 + [slow[2]] * 3 + [small] * 7
    assert second == [slow[1]] * 3 + [slow[3]] * 3 + [small] * 7
