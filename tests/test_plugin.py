"""A method in a package of its own: once installed it is known everywhere, and it keeps the contract."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from airlock import methods, plugins
from airlock.errors import ConfigError
from airlock.methods.weights.gaussian import Gaussian
from airlock.testing import check_method

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples/plugin"
CONFIG = 'channel = "weights"\nmethod = "class-means"\ndata = "digits"\nepsilon = 3.0\ndelta = 1e-4\n'
COMPARED = """
data = "digits"
epsilons = [3.0]
delta = 1e-4
methods = ["weights/class-means"]
court_seconds = 0.2
[settings."weights/gaussian"]
steps = 2
[settings.baseline]
epochs = 1
"""
# In one process, since torch takes longer to import than any of them to run; its tests first, while nothing is imported
# whose asserts pytest would rewrite.
COMMANDS = """
import json, sys
import pytest
told = json.load(sys.stdin)
passed = pytest.main(["-q", "-p", "no:cacheprovider", told["tests"]]) == 0
from typer.testing import CliRunner
from airlock.cli import app
runs = [CliRunner().invoke(app, line) for line in told["lines"]]
print()
print(json.dumps([passed, [[run.exit_code, run.output] for run in runs]]))
"""


def run_installed(target: Path, code: str, told: str) -> str:
    """Run Python with the example built and installed into a folder of its own."""
    uv = Path(sys.executable).with_name("uv")
    if not uv.exists():
        pytest.skip("not in an environment that make has installed")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--offline", "--python", sys.executable]
    source = shutil.copytree(EXAMPLE, target / "source")  # a build writes beside what it builds
    subprocess.run([str(uv), "pip", "install", *options, "--target", str(target / "site"), str(source)], check=True)
    path = os.pathsep.join([str(target / "site"), str(ROOT)])
    line, surroundings = [sys.executable, "-W", "ignore", "-c", code], {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(line, input=told, env=surroundings, cwd=target, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_own_tests_pass_and_every_command_knows_it(tmp_path: Path) -> None:
    (tmp_path / "means.toml").write_text(CONFIG)
    (tmp_path / "compare.toml").write_text(COMPARED)
    config, bundle = str(tmp_path / "means.toml"), str(tmp_path / "bundle")
    lines = [
        ["plan", config],
        ["release", config, "--out", bundle],
        ["verify", bundle],
        ["audit", bundle, "--shadows", "4", "--epochs", "1"],
        ["court", "weights/class-means", "--pairs", "300", "--seconds", "1e9"],
        ["compare", str(tmp_path / "compare.toml"), "--out", str(tmp_path / "compared"), "--jobs", "1"],
        ["advise", "--data", "digits", "--epsilon", "3", "--delta", "1e-4", "--json"],
    ]
    out = run_installed(tmp_path, COMMANDS, json.dumps({"tests": str(EXAMPLE / "tests"), "lines": lines}))
    passed, results = json.loads(out.splitlines()[-1])
    assert passed, out
    for line, (code, said) in zip(lines, results, strict=True):
        assert code == 0, (line, said)
    assert "class-means" in results[-1][1]
    assert "weights/class-means" in (tmp_path / "compared/results.csv").read_text()


def test_it_is_short() -> None:
    assert len((EXAMPLE / "class_means.py").read_text(encoding="utf-8").splitlines()) < 60


class Boasting(Gaussian):
    """Says that it is proven, and brings nothing to court."""

    method: ClassVar[str] = "boasting"
    title: ClassVar[str] = "a boast"
    case = methods.Channel.case


def test_a_method_may_not_call_itself_proven_without_a_case() -> None:
    with pytest.raises(ConfigError, match="a `case` for the court from 'weights/boasting'"):
        methods.register(Boasting)


def test_the_door_is_shut_to_other_forms_and_to_names_that_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"weights": {"gaussian": "here:One"}}

    class Entry:
        def __init__(self, name: str) -> None:
            self.name, self.value = name, "elsewhere:Other"

    names = ["weights/gaussian", "weights/new", "weights/", "smoke/signals", "alone", "weights/new"]
    monkeypatch.setattr(plugins, "entry_points", lambda group: [Entry(name) for name in names])
    assert plugins.methods(own) == {"weights": {"gaussian": "here:One", "new": "elsewhere:Other"}}
    assert own == {"weights": {"gaussian": "here:One"}}


def test_a_method_that_cannot_be_imported_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(methods.METHODS["weights"], "lost", "no_such_package:Lost")
    with pytest.raises(ConfigError, match="Install its package again"):
        methods.named("weights/lost")


def test_broken_promises_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Open(Gaussian):
        """Takes any setting, and says nothing of what it releases."""

        method: ClassVar[str] = "open"
        leaves: ClassVar[str] = "Something"

    monkeypatch.setitem(methods.METHODS["weights"], "open", f"{__name__}:Open")
    monkeypatch.setitem(methods._LOADED, f"{__name__}:Open", Open)
    with pytest.raises(AssertionError, match="weights/open breaks 1 promises:\n  it is in the table and named alike"):
        check_method(Open, {"steps": 2, "lot_size": 200})
