"""The verbs of a notebook: as docs/python.md and the docstrings show them."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import get_type_hints

import pytest
from typer.main import get_command

import airlock
from airlock import api, estimator, private_training
from airlock.bundle.rendering.page import in_notebook
from airlock.cli import app
from airlock.errors import ConfigError
from tests.comparison.example import comparison

PAGE = (Path(__file__).resolve().parents[1] / "docs/python.md").read_text(encoding="utf-8")


def test_the_tour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Every block of docs/python.md in one go, and what the values show of themselves."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        exec(compile(block, "docs/python.md", "exec"), names)
    said = capsys.readouterr().out
    assert "Proven, but weak" in said
    assert "Expected a proven guarantee" in said
    assert (tmp_path / "python-comparison/results.json").exists()
    for value, word in ((names["made"], "weights/gaussian on digits: Proven"), (names["seen"], "no ε covers")):
        assert word in repr(value)
        shown = value._repr_html_()  # type: ignore[attr-defined]
        assert shown.startswith("<p>")
        assert "<iframe" in shown
        assert "&lt;!doctype html&gt;" in shown


def test_the_page_for_who_comes_from_opacus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Airlock's half runs; the other half is at least Python, and both train what was made above."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(airlock.train_private.__kwdefaults__, "court_seconds", 1.0)  # type: ignore[arg-type]
    names: dict[str, object] = {}
    page = (Path(__file__).resolve().parents[1] / "docs/migrate-from-opacus.md").read_text(encoding="utf-8")
    theirs = 0
    for block in re.findall(r"```python\n(.*?)```", page, re.S):
        code = compile(block, "docs/migrate-from-opacus.md", "exec")
        if block.startswith("# Opacus\n"):
            theirs += 1
        else:
            exec(code, names)
    assert theirs == 1
    said = capsys.readouterr().out
    assert said.rstrip().endswith("['plan', 'outputs']\nTrue"), said
    assert names["trained"].card.utility.figures.accuracy.value > 0.5  # type: ignore[attr-defined]


@pytest.mark.parametrize(("module", "examples"), [(api, 18), (estimator, 6), (private_training, 6)])
def test_the_docstrings(module: ModuleType, examples: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From top to bottom, as they are read: a bundle that one makes is what the next ones look at."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(airlock.train_private.__kwdefaults__, "court_seconds", 1.0)  # type: ignore[arg-type]
    runner = doctest.DocTestRunner()
    for one in sorted(doctest.DocTestFinder().find(module), key=lambda found: found.lineno or 0):
        runner.run(one)
    assert runner.tries >= examples
    assert runner.failures == 0


# Commands without a name of their own in Python, why, and what to call instead.
NO_VERBS = {
    "approve": ("a person does it, with a key", "airlock.bundle.signing.approval:approve"),
    "bench": ("for whoever works on Airlock itself", "airlock.cli.bench:bench"),
    "check": ("about a file; records in memory are a frame to look at", "airlock.data.table_check:check_table"),
    "datasets": ("a list of what is in a folder", "airlock.data:find_all"),
    "demo": ("compare, with a config that comes along", "airlock.api:compare"),
    "export": ("writes papers for an office", "airlock.bundle.reports:write"),
    "features": ("several commands", "airlock.bundle.receive:train_on"),
    "keys": ("several commands", "airlock.bundle.signing.keys:read_public"),
    "ledger": ("several commands", "airlock.ledger:Ledger"),
    "policy": ("several commands", "airlock.bundle:load_policy"),
    "predict": ("two lines: load, then predict", "airlock.api:load"),
    "pretrain": ("reads no private record, and fills a cache", "airlock.training.front_ends.pretrain:front_weights"),
    "register": ("several commands", "airlock.ledger:Register"),
    "reproduce": ("reads benchmarks alone, and releases nothing", "airlock.reproduction:reproduce"),
    "serve": ("a process of its own", "airlock.serve.run:serve"),
}


def test_every_command_has_its_name_in_python() -> None:
    """Or is on the list above, with the reason and a name that is there; docs/python.md lists the verbs."""
    commands = set(get_command(app).commands)  # type: ignore[attr-defined]
    verbs = {name for name in commands if getattr(airlock, name, None) is getattr(api, name, airlock)}
    assert verbs >= {"plan", "release", "verify", "gate", "show", "audit", "court", "compare", "advise", "tune"}
    assert commands - verbs == commands & set(NO_VERBS)
    assert verbs.isdisjoint(NO_VERBS)
    for _, place in NO_VERBS.values():
        module, _, name = place.partition(":")
        found = importlib.import_module(module)
        assert hasattr(found, name), place
    table = re.findall(r"^\| `airlock\.(\w+)`", PAGE, re.M)
    assert sorted(table) == sorted(verbs | {"load", "compare_paid"})
    hints = {name: get_type_hints(getattr(api, name)) for name in verbs}
    assert all("return" in hint for hint in hints.values())


@pytest.mark.parametrize("name", ["release", "audit", "compare", "plan", "verify", "gate", "show", "court", "advise"])
def test_the_verbs_are_functions(name: str) -> None:
    """And no package has the name of one: whatever is imported first, it stays one."""
    assert getattr(airlock, name) is getattr(api, name)
    assert not (Path(airlock.__file__).parent / name / "__init__.py").exists()
    importlib.import_module("airlock.cli")
    assert inspect.isfunction(getattr(airlock, name))


def test_a_config_may_be_a_file_a_table_or_keys(tmp_path: Path) -> None:
    table = {"channel": "weights", "data": "digits", "epsilon": 3.0, "delta": 1e-4}
    path = tmp_path / "a.toml"
    path.write_text('channel = "weights"\ndata = "digits"\nepsilon = 3.0\ndelta = 1e-4\n')
    whole = airlock.make_config(table)

    def made(given: object, keys: Mapping[str, object]) -> airlock.ReleaseConfig:
        from airlock import config

        return api._config(airlock.ReleaseConfig, given, keys, config.load, config.from_table)  # type: ignore

    for given, keys in ((table, {}), (str(path), {}), (path, {}), (whole, {}), (None, table)):
        assert made(given, keys) == whole
    for given in (table, path, whole):
        changed = made(given, {"epsilon": 1.0, "settings": {"steps": 2}})
        assert (changed.epsilon, changed.delta, dict(changed.settings)) == (1.0, 1e-4, {"steps": 2})
    with pytest.raises(ConfigError, match="epsilom"):
        made(table, {"epsilom": 1.0})


def test_a_page_in_a_notebook_stays_in_its_frame() -> None:
    shown = in_notebook('<b>"said"</b>', '<script>alert("x")</script>')
    assert "<script" not in shown
    assert "<b>" not in shown
    assert shown.count('sandbox="allow-scripts"') == 1
    assert comparison().advice.sentence in repr(comparison())
