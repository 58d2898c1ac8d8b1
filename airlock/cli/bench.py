"""`airlock bench`: the benchmarks of the source checkout, as ratios in one run."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import typer

from airlock.cli.terminal import JsonOption, print_json, print_table, translate_errors
from airlock.errors import ConfigError


@translate_errors
def bench(
    name: str | None = typer.Argument(None, help="The benchmark; all of them by default.", show_default=False),
    as_json: bool = JsonOption,
) -> None:
    """Measure speed relative to a non-private run or to another library, in the same process."""
    found = _benchmarks()
    if name is not None and name not in found:
        raise ConfigError(f"a benchmark ({', '.join(found)})", f"'{name}'")
    results = {key: _run(path) for key, path in found.items() if name in (None, key)}
    if as_json:
        print_json(results)
        return
    for key, rows in results.items():
        columns = list(rows[0])
        print_table(f"Benchmark: {key}", columns, [[str(row.get(column, "")) for column in columns] for row in rows])


def _benchmarks() -> dict[str, Path]:
    folder = Path(__file__).resolve().parents[2] / "benchmarks"
    found = {path.stem: path for path in sorted(folder.glob("*.py"))}
    if not found:
        raise ConfigError("the folder benchmarks/ of a source checkout", "none", do="Run from a checkout.")
    return found


def _run(path: Path) -> list[dict[str, Any]]:
    spec = importlib.util.spec_from_file_location(f"airlock_benchmark_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ConfigError("a benchmark that can be imported", path.name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rows: list[dict[str, Any]] = module.run()
    return rows
