"""The notebook of the examples: every cell runs, in order, and shows what a notebook would show of its last line."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).resolve().parents[1] / "examples/table.ipynb"


def run(source: str, names: dict[str, Any]) -> object:
    """Run a cell; the value of its last line, if that is an expression."""
    cell = ast.parse(source)
    last = cell.body[-1]
    if isinstance(last, ast.Expr):
        cell.body[-1] = ast.copy_location(ast.Assign([ast.Name("_", ast.Store())], last.value), last)
    exec(compile(ast.fix_missing_locations(cell), str(NOTEBOOK), "exec"), names)
    return names.pop("_", None)


def test_every_cell_of_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    whole = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (whole["nbformat"], whole["metadata"]["kernelspec"]["name"]) == (4, "python3")
    names: dict[str, Any] = {}
    sources = ["".join(cell["source"]) for cell in whole["cells"] if cell["cell_type"] == "code"]
    shown = [run(source, names) for source in sources]
    assert not any(cell.get("outputs") for cell in whole["cells"]), "its outputs would be computed from records"
    *_, advice, epsilon, released, (verified, open_gate), predicted = shown
    assert "weights/head" in str(advice)
    assert epsilon <= 2.0
    assert "<iframe" in released._repr_html_()
    assert verified
    assert open_gate
    assert predicted.tolist() == ["yes", "no"]
    assert len(repr(released.bundle)) < 200
