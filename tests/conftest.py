"""Shared by all tests: a cache and a vault of their own, one thread, and small real data."""

from __future__ import annotations

import contextlib
import os
import sys
import zlib
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import is_hypothesis_test

from airlock import isolation
from airlock.plugins import Plugin, Registry
from tests import chance, isolating, quick

pytest.register_assert_rewrite("airlock.testing")

# The order of a sum, and with it the last bits of a training, hang on the number of threads: one, here and in children.
os.environ["OMP_NUM_THREADS"] = "1"
chance.register()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="leave out the modules on tests/slow.txt")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return True if config.getoption("--quick") and collection_path in quick.slow() else None


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    if not chance.is_fuzzing():
        chance.forget_local_constants()


@pytest.hookimpl(trylast=True)  # when those that do not run are gone
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        test = getattr(item, "obj", None)
        if is_hypothesis_test(test):
            chance.settle(test, getattr(item, "cls", None))
    items[:] = quick.slow_first(items, [item.path for item in items])


@cache
def compute_on_one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def pytest_collectstart(collector: pytest.Collector) -> None:
    """What a module draws while it is imported does not hang on what was imported before it."""
    compute_on_one_thread()
    chance.seed_all(collector.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Nor does what a fixture draws that tests share hang on which of them asks for it first."""
    if fixturedef.scope == "function":
        return (yield)
    name = f"{fixturedef.baseid}::{fixturedef.argname}[{getattr(request, 'param_index', 0)}]"
    with chance.own_chance(name), chance.seeded_system(name):
        return (yield)


@pytest.fixture(autouse=True)
def _own_chance(request: pytest.FixtureRequest) -> None:
    """What a test draws from the global generators does not hang on which tests ran before it in the same process."""
    chance.seed_all(request.node.nodeid)


@pytest.fixture(autouse=True)
def _own_system(request: pytest.FixtureRequest) -> Iterator[None]:
    """Nor is what it releases, with noise keyed by the system, a matter of luck."""
    if request.node.get_closest_marker("system_randomness"):
        yield
        return
    with chance.seeded_system(request.node.nodeid):
        yield


# What the tests themselves are told; all else that the user's environment says to Airlock, terminals or clusters goes.
TOLD = {"AIRLOCK_REQUIRE_BROWSER", "AIRLOCK_FUZZ_EXAMPLES"}
GOES = ("AIRLOCK_", "RAY_", "COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "CLICOLOR", "RANK", "WORLD_SIZE")


@pytest.fixture(scope="session", autouse=True)
def _own_surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test or fixture meets the user's settings, cache, vault or data folder; all workers share a new cache."""
    root = tmp_path_factory.getbasetemp()
    whole = root.parent if os.environ.get("PYTEST_XDIST_WORKER") else root
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(GOES) and name not in TOLD]:
            patch.delenv(name)
        patch.setenv("XDG_CACHE_HOME", str(whole / "cache"))
        patch.setenv("AIRLOCK_VAULT", str(root / "vault"))
        patch.setenv("XDG_CONFIG_HOME", str(root / "config"))
        patch.setattr("airlock.data.sources._DEBIAN_FASHION", root / "no-debian-package")
        yield


@pytest.fixture(autouse=True)
def _own_vault(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one test keeps in the vault is not there for the next."""
    vaults = tmp_path_factory.getbasetemp() / "vaults"
    monkeypatch.setenv("AIRLOCK_VAULT", str(vaults / f"{zlib.crc32(request.node.nodeid.encode()):08x}"))


@pytest.fixture(autouse=True)
def _own_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A network that one test writes to a file is not imported by another that writes one of the same name."""
    root, path, before = str(tmp_path_factory.getbasetemp()), list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__dict__", {}).get("__file__")).startswith(root):
            del sys.modules[name]


@pytest.fixture(scope="session", autouse=True)
def _exporter_with_a_memory() -> Iterator[None]:
    """torch.onnx reads its table of operators anew for every export, half of the time of one; here once a session.

    Nor is the graph of one network made again for another that differs in its weights alone: `tests/exporting.py`.
    """
    import torch

    from tests import exporting

    with pytest.MonkeyPatch.context() as patch:
        with contextlib.suppress(ImportError):  # it lies elsewhere in other releases of torch
            from torch.onnx._internal.exporter._registration import ONNXRegistry

            patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(cache(ONNXRegistry.from_torchlib)))
        patch.setattr(torch.onnx, "export", exporting.once(torch.onnx.export))
        yield


@pytest.fixture(scope="session", autouse=True)
def _disks_that_do_not_wait() -> Iterator[None]:
    """No test survives a power failure: files are written and renamed as always, and nobody waits for the disk.

    Killed processes lose nothing by it, and databases do their own waiting.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _checks_in_this_process() -> Iterator[pytest.MonkeyPatch]:
    """A child for every verification takes a third of a second; here they are made in this process, as a child would.

    `@pytest.mark.isolated` is for tests of the children themselves.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(isolation, "run", isolating.run)
        patch.setattr(isolation, "start", lambda: None)
        yield patch


@pytest.fixture(autouse=True)
def _checks_in_a_child(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.get_closest_marker("isolated"):
        monkeypatch.setattr(isolation, "run", isolating.in_a_child)


Plug = Callable[[Registry[Any], str, object], None]


@pytest.fixture
def plug(monkeypatch: pytest.MonkeyPatch) -> Plug:
    """Make something known as if a package had brought it, for one test."""

    def known(registry: Registry[Any], name: str, thing: object) -> None:
        monkeypatch.setitem(registry._table, name, Plugin(f"other.place:{name}", "other-package 1.0"))
        monkeypatch.setitem(registry._loaded, name, registry._check(thing, name))

    return known


@pytest.fixture
def digits_config(tmp_path: Path) -> Path:
    """The five lines that are a complete config, with few steps."""
    path = tmp_path / "digits.toml"
    path.write_text(
        'channel = "weights"\nmethod = "gaussian"\ndata = "digits"\nepsilon = 3.0\ndelta = 1e-4\n'
        "[settings]\nsteps = 3\n"
    )
    return path
