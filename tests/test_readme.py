"""README's commands are executed as they stand, in an empty folder.

`make demo` runs the installed command in a process of its own; the others are called here, since torch takes longer to
import than most of them to run.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from airlock.cli import app

ROOT = Path(__file__).resolve().parents[1]
CITIES = ["Basel", "Bern", "Chur"]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


def commands() -> list[str]:
    lines = [line.split("#")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line]


def environment() -> dict[str, str]:
    binaries = str(Path(sys.executable).parent)
    known = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS")}  # of `make test`
    return {**known, "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = next(block for block in blocks("toml") if "# digits.toml" in block)
    (tmp_path / "digits.toml").write_text(config)
    chance = np.random.default_rng(0)
    ages, hours, cities = chance.integers(18, 90, 3000), chance.integers(0, 80, 3000), chance.choice(CITIES, 3000)
    people = zip(ages, hours, cities, strict=True)
    lines = [f"{age},{hour},{city},{'high' if age / 2 + hour > 65 else 'low'}" for age, hour, city in people]
    (tmp_path / "people.csv").write_text("\n".join(["age,hours,city,income", *lines]) + "\n")
    return tmp_path


def test_the_airlock_commands(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line for line in commands() if line.startswith("airlock ")]
    assert [line.split()[1] for line in lines] == [
        "plan", "release", "audit", "gate", "verify", "show", "datasets", "court",
        "advise", "release", "verify", "gate",
    ]  # fmt: skip
    monkeypatch.chdir(folder)
    for line in lines:
        run = CliRunner().invoke(app, shlex.split(line)[1:])
        assert run.exit_code == 0, f"{line}\n{run.output}"
    assert (folder / "bundle/card.html").exists()
    assert (folder / "my-bundle/card.html").exists()


def test_the_python(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("python")
    monkeypatch.chdir(folder)
    exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
    epsilon, accuracy = map(float, capsys.readouterr().out.split())
    assert epsilon <= 3.0
    assert accuracy >= 0.9


# One method at one ε in few steps, from the first cell to the release; that every other one can be planned as the demo
# asks is tested beside the matrix.
SMALL = """--jobs 1 --json --set 'methods=["weights/gaussian"]' --set epsilons=[3.0] --set court_seconds=0.1
    --set settings.weights/gaussian={steps=3} --set settings.baseline={epochs=1}"""


def test_make_demo(tmp_path: Path) -> None:
    """`make demo` with this very environment, so that nothing is installed again."""
    assert "make demo" in commands()
    prefix = Path(sys.prefix)
    if not (prefix / ".run").exists() or shutil.which("make") is None:
        pytest.skip("not in an environment that make has installed")
    # However new pyproject.toml is: a test must not install another checkout into an environment that others use too.
    line = ["make", "-s", "-o", f"{prefix}/.run", "demo", f"VENV={prefix}"]
    line += [f"OUT={tmp_path / 'demo'}", f"DEMO={' '.join(SMALL.split())}"]
    run = subprocess.run(line, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    found = json.loads(run.stdout)
    assert "cells to run" in run.stderr
    assert found["complete"]
    assert found["advice"]["method"] == "weights/gaussian"
    assert (tmp_path / "demo/report.html").exists()
    assert CliRunner().invoke(app, ["verify", found["bundle"]]).exit_code == 0


def test_make_test_is_what_ci_runs() -> None:
    assert "make test" in commands()
    script = (ROOT / ".ci/run").read_text()
    work = [line for line in script.splitlines() if line.strip() and not line.startswith(("#", "set ", "cd "))]
    assert work == ["AIRLOCK_REQUIRE_BROWSER=1 make test"]


def test_every_link_leads_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
