"""`airlock bench`: the benchmarks of the source checkout, as ratios in one run; `airlock reproduce`: the papers."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from airlock.cli.terminal import (
    DataDirOption,
    JsonOption,
    print_json,
    print_table,
    print_text,
    progress_bar,
    tell,
    translate_errors,
)
from airlock.errors import ConfigError

if TYPE_CHECKING:
    from airlock.reproduction import Reproduced


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


@translate_errors
def reproduce(
    paper: str = typer.Argument("list", help="The paper, by its channel; or list.", metavar="[list|PAPER]"),
    only: str = typer.Option("", "--only", help="Items alone, such as table-5,figure-3.", show_default=False),
    quick: bool = typer.Option(False, "--quick", help="A small version of every item, to see that it runs."),
    out: Path = typer.Option(Path("reproduced"), "--out", "-o", help="Folder of the rows and the page."),
    data_dir: Path | None = DataDirOption,
    device: str = typer.Option("auto", "--device", help="auto, cpu or cuda."),
    jobs: int = typer.Option(
        1, "--jobs", "-j", help="Trials to run in parallel, each in its own process; they may share a GPU."
    ),
    seconds: float | None = typer.Option(
        None, "--seconds", help="The time limit; what has no row by then is left to the next run.", show_default=False
    ),
    as_json: bool = JsonOption,
) -> None:
    """Run a paper's tables and figures again, beside what it prints; what has a row is not run twice."""
    from airlock.reproduction import PAPERS
    from airlock.reproduction import reproduce as run_paper
    from airlock.training import Run

    if paper == "list":
        _list_papers(as_json, PAPERS)
        return
    with progress_bar() as progress:
        names = tuple(part for part in only.split(",") if part)
        run = Run(progress=progress)
        found = run_paper(paper, out, names, quick, data_dir, device, run, lambda line: tell("", line), seconds, jobs)
    rows = [[name, shown.status, shown.words] for name, shown in found.shown.items()]
    if as_json:
        table = [dict(zip(("item", "status", "words"), row, strict=True)) for row in rows]
        places = {"page": str(found.page), "rows": str(found.rows)}
        counts = {"ran": found.ran, "left": found.left, "failed": found.failed, "waiting": found.waiting}
        print_json({**places, **counts, "items": table})
    else:
        print_table(found.paper.title, ["item", "status", ""], rows)
        print_text(f"{found.page}")
        _tell_what_is_left(found)
    if found.failed:
        raise typer.Exit(1)


def _tell_what_is_left(found: Reproduced) -> None:
    if found.left:
        tell(
            "left:",
            f"{found.left} trials need data that are not here; `airlock datasets` says how to get them.",
            "yellow",
        )
    if found.waiting:
        tell("left:", f"the time was over for {found.waiting} trials; the same command goes on with them.", "yellow")
    if found.failed:
        tell("failed:", f"{found.failed} trials, which the page names; the same command tries them again.", "red")


def _list_papers(as_json: bool, papers: dict[str, Any]) -> None:
    table = [
        {"paper": paper.name, "item": item.name, "what": item.title, "trials": len(item.trials(False))}
        for paper in papers.values()
        for item in paper.items
    ]
    if as_json:
        print_json(table)
        return
    for paper in papers.values():
        rows = [[str(row[k]) for k in ("item", "what", "trials")] for row in table if row["paper"] == paper.name]
        print_table(f"{paper.name}: {paper.title}", ["item", "what", "trials"], rows)


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
