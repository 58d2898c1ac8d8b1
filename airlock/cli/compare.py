"""`airlock compare`: every method that fits, on the same records, under the same attacks; `airlock demo` on digits."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress
from rich.text import Text

from airlock.cli.terminal import (
    LABEL,
    ConfigArgument,
    DataDirOption,
    JsonOption,
    SetOption,
    VaultOption,
    err_console,
    overrides,
    print_json,
    print_table,
    print_text,
    progress_bar,
    shown,
    translate_errors,
)
from airlock.errors import visible

if TYPE_CHECKING:
    from airlock.comparison import Comparison, Row
    from airlock.comparison.run import Moment, Say

Steps = Callable[[str, int, int], None]
LEGEND = (
    "ε: the requested value. Promise: the proven ε for one record, or a paper's claim, which guarantees nothing. "
    "Refuted at: the ε at which the court showed the same theorem to be false. "
    "Accuracy: on test records, with a 95% interval. AUC: of the best attack; 0.5 is random guessing."
)


@translate_errors
def compare(
    config: Path = ConfigArgument,
    out: Path = typer.Option(..., "--out", "-o", help="Folder for finished cells, results and the page."),
    data_dir: Path | None = DataDirOption,
    quick: bool = typer.Option(False, "--quick", help="One seed and a short court, for a first impression."),
    jobs: int = typer.Option(
        1, "--jobs", "-j", help="Cells to run in parallel, each in its own process; they may share a GPU."
    ),
    minutes: float | None = typer.Option(
        None, "--minutes", help="The time limit; the last cells in line are dropped and listed.", show_default=False
    ),
    settings: list[str] = SetOption,
    as_json: bool = JsonOption,
) -> None:
    """Run every suitable method at every ε and say which is best; run it again to continue."""
    from airlock.comparison.run import compare as run_comparison
    from airlock.comparison.settings import load

    asked = load(config, overrides(settings, minutes=minutes))
    with telling() as (say, steps):
        found = run_comparison(asked, out, data_dir=data_dir, quick=quick, jobs=jobs, say=say, progress=steps)
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        print_comparison(found, out)


@contextlib.contextmanager
def telling() -> Iterator[tuple[Say, Steps]]:
    """One line per finished cell on stderr; on a terminal also progress bars for all cells and the current one."""
    columns = [LABEL, BarColumn(), MofNCompleteColumn()]
    with Progress(*columns, console=err_console(), transient=True, disable=not sys.stderr.isatty()) as bar:
        cells, inside = bar.add_task("cells", total=None), bar.add_task("", total=None, visible=False)

        def say(moment: Moment) -> None:
            left = "" if moment.seconds_left is None else f", about {duration(moment.seconds_left)} left"
            bar.update(cells, completed=moment.done, total=moment.total, description=f"cells{left}")
            bar.update(inside, visible=False)
            line = _line(moment, left)
            if line:
                bar.console.print(Text(visible(line)))

        def steps(label: str, done: int, total: int) -> None:
            bar.update(inside, description=visible(label), completed=done, total=total, visible=True)

        yield say, steps


def _line(moment: Moment, left: str) -> str:
    count = f"[{moment.done}/{moment.total}]"
    if moment.task is None or moment.found is None:
        taken = f"{moment.done} cells are already finished; " if moment.done else ""
        return f"{count} {taken}{moment.total - moment.done} cells to run{left}"
    found = moment.found
    if found.error is not None:
        said = f"failed: {found.error}"
    elif hasattr(found, "refuted"):
        said = "refuted" if found.refuted else "not refuted"
    else:
        said = f"{found.accuracy:.1%} correct"
    return f"{count} {moment.task.title}: {said}, {duration(found.seconds)}{left}"


def duration(seconds: float) -> str:
    """A duration in readable form."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5970 else f"{seconds / 3600:.1f} h"


def print_comparison(found: Comparison, out: Path) -> None:
    """The results: a table, best first at every ε, then the choice, what is missing, and required notes."""
    from airlock.comparison.values import words_for

    rows = sorted(found.rows(), key=lambda row: (row.epsilon_asked or 0.0, -row.accuracy))
    cells = [
        [
            "" if row.epsilon_asked is None else f"{row.epsilon_asked:g}",
            words_for(row.method),
            promise(found, row),
            f"{100 * row.accuracy:.1f} ({100 * row.low:.1f}–{100 * row.high:.1f})",
            "" if row.auc is None else f"{row.auc:.3f}",
        ]
        for row in rows
    ]
    seeds = "1 run" if len(found.seeds) == 1 else f"up to {len(found.seeds)} runs"
    print_table(
        f"{found.data.name}, δ = {found.delta:g}, {seeds} each, best first at every ε",
        ["ε", "method", "promise", "accuracy, %", "AUC"],
        cells or [["", "nothing was finished in time", "", "", ""]],
        "\n".join([LEGEND, "", found.advice.sentence, "", *missing(found), *found.notes, "", *_places(out)]),
    )


def promise(found: Comparison, row: Row) -> str:
    """The proven ε; a claim is marked as one."""
    standing = found.standing(row)
    if row.epsilon is not None:
        return f"{row.epsilon:.3g} {'IN DOUBT' if standing == 'refuted' else 'proven'}"
    if row.claim_epsilon is not None:
        return f"claim {row.claim_epsilon:.3g}: {_refuted(found, row) if standing == 'refuted' else 'unproven'}"
    return "none"


def _refuted(found: Comparison, row: Row) -> str:
    """The court tries a method at one ε: for another claim of the same theorem, that ε is stated."""
    verdict, claim = found.verdict(row.method), row.claim_epsilon
    if verdict is None or claim is None or not verdict.refuted or math.isclose(verdict.claim_epsilon, claim):
        return "refuted"
    return f"refuted at {verdict.claim_epsilon:.3g}"


def missing(found: Comparison) -> list[str]:
    """What was skipped, failed or dropped, one line per method."""
    from airlock.comparison.values import words_for

    lines = []
    for skipped in found.skipped:
        lines.append(f"Skipped: {words_for(skipped.method, skipped.epsilons)}: {skipped.reason}")
    failed = [cell for cell in found.cells if cell.error is not None]
    lines += [f"Failed: {cell.method}, seed {cell.seed}: {cell.error}" for cell in failed]
    lines += [f"Failed: court of {verdict.method}: {verdict.error}" for verdict in found.court if verdict.error]
    lines += [f"Dropped: {what}: {reason}" for what, reason in found.left_out()]
    if found.dropped:
        lines.append("Dropped cells are run when the same command is repeated with more time.")
    return [*lines, ""] if lines else lines


def _places(out: Path) -> list[str]:
    names = ("report.html", "results.json", "results.csv")
    there = [shown(out / name) for name in names if (out / name).exists()]
    return [f"Readable by you alone: {', '.join(there)}"]


# `airlock demo`: the whole workflow on built-in data.

DEMO_BUNDLE = "bundle"


@translate_errors
def demo(
    out: Path = typer.Option(Path("airlock-demo"), "--out", "-o", help="Folder for the page and for one release."),
    jobs: int = typer.Option(2, "--jobs", "-j", help="Cells to run in parallel, each in its own process."),
    minutes: float | None = typer.Option(
        None, "--minutes", help="The time limit; the last cells in line are dropped and listed.", show_default=False
    ),
    settings: list[str] = SetOption,
    vault: Path | None = VaultOption,
    as_json: bool = JsonOption,
) -> None:
    """Compare all five channels on handwritten digits, and release with the recommended method."""
    from airlock.comparison.run import compare
    from airlock.comparison.settings import load
    from airlock.pipeline import make_release

    with as_file(files("airlock.comparison").joinpath("demo.toml")) as file:
        asked = load(file, overrides(settings, minutes=minutes))
    with telling() as (say, steps):
        found = compare(asked, out, quick=True, jobs=jobs, say=say, progress=steps)
    advice, released = found.advice, False
    if advice.method is not None and advice.epsilon is not None:
        with progress_bar() as progress:
            chosen = asked.release(advice.method, advice.epsilon, asked.seeds[0])
            make_release(chosen, out / DEMO_BUNDLE, force=True, vault=vault, progress=progress)
        released = True
    if as_json:
        print_json({**found.model_dump(mode="json"), "bundle": str(out / DEMO_BUNDLE) if released else None})
        return
    print_comparison(found, out)
    if released:
        print_text(
            f"\nReleased with {advice.method}: the card to read and sign is {shown(out / DEMO_BUNDLE / 'card.html')}"
        )
