"""`airlock compare`: every method that fits, on the same records, under the same attacks; `airlock demo` on digits.

With `--pay` it chooses itself: a search over the methods, which ε pays for, and one model leaves.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress
from rich.text import Text

from airlock.cli.release import print_summary, summary, tell_register
from airlock.cli.terminal import (
    LABEL,
    AgainOption,
    ComposesOption,
    ConfigArgument,
    DataDirOption,
    FollowedOption,
    ForceOption,
    InsecureSeedOption,
    JsonOption,
    SetOption,
    ToOption,
    VaultOption,
    check_place,
    err_console,
    overrides,
    print_json,
    print_table,
    print_text,
    progress_bar,
    shown,
    tell,
    translate_errors,
)
from airlock.errors import ConfigError, visible

if TYPE_CHECKING:
    from airlock.comparison import Comparison, Row
    from airlock.comparison.paid import PaidComparison
    from airlock.comparison.run import Moment, Say
    from airlock.comparison.settings import CompareConfig

Steps = Callable[[str, int, int], None]
LEGEND = (
    "ε: the requested value. Promise: the proven ε for one {unit}, or a paper's claim, which guarantees nothing. "
    "Refuted at: the ε at which the court showed the same theorem to be false. "
    "Accuracy: on test records, with a 95% interval. AUC: of the best attack; 0.5 is random guessing."
)
RECALL = " Recall: the mean of the classes, each of which counts the same."
_TELLING = 0.02  # between mean recall and accuracy: then classes are unequal, and both are shown


@translate_errors
def compare(
    config: Path = ConfigArgument,
    out: Path | None = typer.Option(
        None,
        "--out",
        "-o",
        help="Folder for finished cells, results and the page; with --pay, the folder that becomes the bundle.",
        show_default=False,
    ),
    data_dir: Path | None = DataDirOption,
    quick: bool = typer.Option(False, "--quick", help="One seed and a short court, for a first impression."),
    jobs: int = typer.Option(
        1, "--jobs", "-j", help="Cells to run in parallel, each in its own process; they may share a GPU."
    ),
    minutes: float | None = typer.Option(
        None, "--minutes", help="The time limit; the last cells in line are dropped and listed.", show_default=False
    ),
    engine: str = typer.Option("local", help="Where cells run: 'local', or 'ray' for the workers of a Ray cluster."),
    gpus: float | None = typer.Option(
        None,
        help="With --engine ray: GPUs of a cell, such as 0.25; 1 by default on a GPU.",
        show_default=False,
    ),
    settings: list[str] = SetOption,
    pay: bool = typer.Option(
        False, "--pay", help="Choose by a search over the methods, which ε pays for, and release the best."
    ),
    write: Path | None = typer.Option(
        None, "--write", help="With --pay: write that search as a config here, and run nothing.", show_default=False
    ),
    to: str | None = ToOption,
    composes_with: list[Path] = ComposesOption,
    force: bool = ForceOption,
    resume: bool = typer.Option(False, "--resume", help="With --pay: continue an interrupted search."),
    again: bool = AgainOption,
    insecure_seed: int | None = InsecureSeedOption,
    followed: str = FollowedOption,
    vault: Path | None = VaultOption,
    as_json: bool = JsonOption,
) -> None:
    """Run every suitable method at every ε and say which is best; or, with --pay, choose and release."""
    from airlock.comparison.run import compare as run_comparison
    from airlock.comparison.settings import load

    how = {"composes_with": composes_with, "force": force, "resume": resume, "insecure_seed": insecure_seed}
    how |= {"again": again, "followed": followed, "vault": vault}
    unpaid = {"quick": quick, "jobs": jobs > 1, "minutes": minutes, "engine": engine != "local", "gpus": gpus}
    _check_options(pay, {"write": write, "to": to, **how}, unpaid)
    asked = load(config, overrides(settings, minutes=minutes))
    if pay:
        _compare_paid(asked, out, write, data_dir, to or "", how, as_json)
        return
    if out is None:
        raise ConfigError("a folder for the results", "none", do="Name it: --out DIR.")
    own: Any = engine  # another word is refused there
    with telling() as (say, steps):
        found = run_comparison(
            asked, out, data_dir=data_dir, quick=quick, jobs=jobs, engine=own, gpus=gpus, say=say, progress=steps
        )
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        print_comparison(found, out)


def _check_options(pay: bool, paid: Mapping[str, object], unpaid: Mapping[str, object]) -> None:
    """Refuse options of the other kind of comparison: one that is silently ignored would hide a mistake."""
    given = [name.replace("_", "-") for name, value in (unpaid if pay else paid).items() if value]
    if given:
        kind = "no" if pay else "only with --pay"
        why = "A search is not cut short, and its runs are made one after another." if pay else ""
        raise ConfigError(f"{kind} --{given[0]}{' with --pay' if pay else ''}", "it", why, "Leave it out.")


def _compare_paid(
    asked: CompareConfig, out: Path | None, write: Path | None, data_dir: Path | None, to: str,
    how: Mapping[str, Any], as_json: bool,
) -> None:  # fmt: skip
    """Say who takes part, before a record is read; then search, and release the best."""
    from airlock.comparison.paid import as_search
    from airlock.pipeline import tune_release

    made = as_search(asked, data_dir, to)
    _tell_paid(made)
    if write is not None:
        _write_search(made, write, bool(how["force"]), as_json)
        return
    if out is None:
        raise ConfigError("a folder for the bundle", "none", do="Name it: --out DIR; or use --write FILE.")
    tell_register(made.config)
    with progress_bar() as progress:
        outcome = tune_release(made.config, out, data_dir=data_dir, progress=progress, **how)
    if as_json:
        print_json({**summary(outcome, out), **_who(made)})
    else:
        print_summary(outcome, out)


def _tell_paid(made: PaidComparison) -> None:
    tell("", f"One model leaves, of {len(made.taking_part)} methods that are searched: {', '.join(made.taking_part)}.")
    for one in made.left_out:
        tell("", f"Left out: {one.method}: {one.reason}")
    for line in made.unused:
        tell("", f"Not used: {line}")


def _write_search(made: PaidComparison, place: Path, force: bool, as_json: bool) -> None:
    from airlock.bundle.files import replace_file
    from airlock.comparison.advise import as_toml

    check_place(place, force)
    replace_file(place, as_toml(made.config, "A choice between methods that ε pays for."))
    if as_json:
        print_json({"written": str(place), **_who(made)})
    else:
        print_text(f"Written: {shown(place)}\nThen: airlock plan {shown(place)}, airlock tune {shown(place)} --out DIR")


def _who(made: PaidComparison) -> dict[str, Any]:
    left = [one.model_dump(mode="json", include={"method", "reason"}) for one in made.left_out]
    return {"searched": list(made.taking_part), "left_out": left}


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
    recall = any(abs((row.balanced_accuracy or row.accuracy) - row.accuracy) > _TELLING for row in rows)
    columns = ["ε", "method", "promise", "accuracy, %", *(["recall, %"] if recall else []), "AUC"]
    cells = [
        [
            "" if row.epsilon_asked is None else f"{row.epsilon_asked:g}",
            words_for(row.method),
            promise(found, row),
            f"{100 * row.accuracy:.1f} ({100 * row.low:.1f}–{100 * row.high:.1f})",
            *([_percent(row.balanced_accuracy)] if recall else []),
            "" if row.auc is None else f"{row.auc:.3f}",
        ]
        for row in rows
    ]
    seeds = "1 run" if len(found.seeds) == 1 else f"up to {len(found.seeds)} runs"
    said = [
        LEGEND.format(unit=found.data.unit) + (RECALL if recall else ""),
        "",
        found.advice.sentence,
        "",
        *_no_better(found),
        *missing(found),
    ]
    print_table(
        f"{found.data.name}, δ = {found.delta:g}, {seeds} each, best first at every ε",
        columns,
        cells or [["", "nothing was finished in time", "", "", ""]],
        "\n".join([*said, *found.notes, "", *_places(out)]),
    )


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


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


def _no_better(found: Comparison) -> list[str]:
    said = found.no_better()
    return [said, ""] if said else []


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
            make_release(chosen, out / DEMO_BUNDLE, force=True, resume=True, vault=vault, progress=progress)
        released = True
    if as_json:
        print_json({**found.model_dump(mode="json"), "bundle": str(out / DEMO_BUNDLE) if released else None})
        return
    print_comparison(found, out)
    if released:
        print_text(
            f"\nReleased with {advice.method}: the card to read and sign is {shown(out / DEMO_BUNDLE / 'card.html')}"
        )
