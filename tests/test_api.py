"""The verbs of a notebook: as docs/python.md and the docstrings show them."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

import airlock
from airlock import api
from airlock.bundle.rendering.page import in_notebook
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


def test_the_docstrings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = doctest.testmod(api)
    assert found.attempted >= 5
    assert found.failed == 0


@pytest.mark.parametrize("name", ["release", "audit", "compare"])
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
