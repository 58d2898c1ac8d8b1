"""What all commands share: tables or JSON on stdout, progress and messages on stderr, errors to exit codes.

Every command prints through this module (a test of the house checks it). What is printed may come from a file that
somebody else wrote, so control characters are written out (`errors.visible`), and Rich's markup is not acted on.
"""

from __future__ import annotations

import codecs
import contextlib
import functools
import io
import json
import os
import sys
import tomllib
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from airlock.errors import AirlockError, AirlockWarning, ConfigError, Refused, visible

P = ParamSpec("P")
R = TypeVar("R")

ConfigArgument = typer.Argument(
    help="A TOML file; it may name methods, data sets, networks and accountants of installed packages.",
    show_default=False,
)
JsonOption = typer.Option(False, "--json", help="Print JSON instead of a table.")
DataDirOption = typer.Option(
    None,
    "--data-dir",
    help="Folder with the named data sets (else $AIRLOCK_DATA, else ./data).",
    show_default=False,
)
SetOption = typer.Option(
    [],
    "--set",
    "-s",
    metavar="KEY=VALUE",
    help="Override a key of the config, for example -s settings.steps=100. Repeatable.",
)
EpsilonOption = typer.Option(None, "--epsilon", help="Override the target ε.", show_default=False)
DeltaOption = typer.Option(None, "--delta", help="Override δ.", show_default=False)
OutOption = typer.Option(..., "--out", "-o", help="The folder that becomes the bundle.")
ToOption = typer.Option(
    None, "--to", help="To whom it goes: about.recipient, on the card and in the register.", show_default=False
)
ComposesOption = typer.Option(
    [],
    "--composes-with",
    help="The bundle of another release from the same data; the card states the total. Repeatable.",
)
AgainOption = typer.Option(
    False, "--again", help="Begin anew although an unfinished run of the same config is in the vault; it spends again."
)
ForceOption = typer.Option(False, "--force", help="Replace an existing bundle at --out.")
InsecureSeedOption = typer.Option(
    None,
    "--insecure-seed",
    help="Seed the privacy noise, for tests: the guarantee is void against anyone who knows the seed.",
    show_default=False,
)
FollowedOption = typer.Option(
    "", "--followed", help="What the release is based on, such as a comparison; only for the dossier."
)
SeedOption = typer.Option(None, "--seed", help="Override the training seed.", show_default=False)
VaultOption = typer.Option(
    None, "--vault", help="Folder for what must not leave (else $AIRLOCK_VAULT, else the user's data folder).",
    show_default=False,
)  # fmt: skip

SignerOption: list[Path] = typer.Option(
    [], "--signer", metavar="KEY", help="Require a signature by this public key (PEM) or certificate. Repeatable."
)
ApprovalOption: list[Path] = typer.Option(
    [],
    "--require-approval",
    metavar="KEY",
    help="Require a reviewer's approval by this public key (PEM) or certificate. Repeatable.",
)
PolicyOption = typer.Option(
    None, "--policy", metavar="FILE", help="What your house lets out (TOML; `airlock policy` prints the default).",
    show_default=False,
)  # fmt: skip

_SPELT = {"ε": "epsilon", "δ": "delta", "σ": "sigma", "–": "-", "’": "'", "“": '"', "”": '"', "×": "x", "≤": "<="}


def err_console() -> Console:
    """Messages and progress go to stderr, so that stdout holds only results."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def tell(word: str, message: str, style: str = "") -> None:
    """A message on stderr, after a word in a style of its own."""
    err_console().print(Text.assemble((visible(word), style), " " if word else "", visible(message, breaks=True)))


def check_place(write: Path | None, force: bool) -> None:
    """Refuse to write over a file, before any work is done."""
    if write is not None and write.exists() and not force:
        why = "Existing files are not overwritten."
        raise ConfigError(f"no file at {write}", "one", why, "Use another name, or --force.")


def interactive() -> bool:
    """Whether somebody is there to answer questions."""
    return sys.stdin.isatty()


def print_text(line: str) -> None:
    """A line of plain text on stdout."""
    typer.echo(visible(line, breaks=True))


_KEPT = " What was finished is in the vault: the same command with --resume goes on from there."


def translate_errors(command: Callable[P, R]) -> Callable[P, R]:
    """A user's mistake becomes one message and an exit code; no traceback."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            with _shown_warnings():
                return command(*args, **kwargs)
        except AirlockError as error:
            word = "refused" if error.exit_code == 1 else "interrupted" if error.exit_code == 130 else "error"
            if not (assists() and word == "interrupted"):
                tell(f"{_process()}{word}:", str(error), "bold red")
            raise typer.Exit(error.exit_code) from None
        except typer.Abort:  # Ctrl-C at a question
            tell("interrupted:", "Ctrl-C. Nothing was written.", "bold red")
            raise typer.Exit(130) from None
        except (KeyboardInterrupt, Exception) as error:
            if not _by_ctrl_c(error):
                raise
            if not assists():
                kept = _KEPT if "resume" in kwargs else ""
                tell("interrupted:", f"Ctrl-C. Nothing was released.{kept}", "bold red")
            raise typer.Exit(130) from None

    return wrapped


def tries(command: Callable[P, R]) -> Callable[P, R]:
    """Exit codes of a command that tests a claim: 0 it stands, 1 it is refuted, 2 it could not be tested.

    Only the command itself exits with 1: neither a refusal nor a defect may look like a refutation. Ctrl-C stays 130.
    """

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except Refused as error:
            error.exit_code = 2
            raise
        except (AirlockError, typer.Exit):
            raise
        except Exception as error:
            if _by_ctrl_c(error):
                raise
            tell("", traceback.format_exc())
            raise typer.Exit(2) from None

    return wrapped


def _by_ctrl_c(error: BaseException | None) -> bool:
    """Whether Ctrl-C caused it; before Python 3.12, Ctrl-C during the creation of a class raises a RuntimeError."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__
    return error is not None


def assists() -> bool:
    """Whether this is one of several processes of `torchrun` but not the lead: it prints only errors."""
    return os.environ.get("WORLD_SIZE", "1") != "1" and os.environ.get("RANK", "0") != "0"


def _process() -> str:
    return f"process {os.environ['RANK']}: " if assists() else ""


@contextlib.contextmanager
def _shown_warnings() -> Iterator[None]:
    """Show Airlock's own warnings as one line each; those of libraries are hidden."""

    def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        if issubclass(category, AirlockWarning) and not assists():
            tell("warning:", str(message), "bold yellow")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", AirlockWarning)
        warnings.showwarning = show
        yield


def overrides(settings: Sequence[str], **options: object) -> dict[str, object]:
    """`--set` pairs and options as dotted keys; values are read as TOML, anything else as a string."""
    found: dict[str, object] = {}
    for pair in settings:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            raise ConfigError("KEY=VALUE after --set", f"'{pair}'", do="For example --set settings.steps=100.")
        found[key.strip()] = _value(text.strip())
    return found | {key: value for key, value in options.items() if value is not None}


def parse_shape(text: str) -> list[int]:
    """3,32,32 as numbers."""
    parts = text.split(",")
    if len(parts) != 3 or not all(part.strip().isdecimal() for part in parts):
        raise ConfigError("--shape as channels, height and width", f"'{text}'", do="For example --shape 3,32,32.")
    return [int(part) for part in parts]


def _value(text: str) -> object:
    from airlock.config import parse_toml

    try:
        return parse_toml(f"value = {text}", "--set")["value"]
    except ConfigError as error:
        if isinstance(error.__cause__, tomllib.TOMLDecodeError):
            return text
        raise


def print_json(value: Mapping[str, Any] | Sequence[Any]) -> None:
    """Strict JSON on stdout; characters that a terminal would act on are escaped in it."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    unseen = {c for c in text if c != "\n" and visible(c) != c}
    typer.echo(text.translate({ord(c): json.dumps(c)[1:-1] if c != "\x7f" else r"\u007f" for c in unseen}))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], footer: str = "") -> None:
    """A table on stdout."""
    console = Console(highlight=False)
    table = Table(title=_text(title, "bold"), title_justify="left", header_style="bold", show_header=any(columns))
    for column in columns:
        table.add_column(_text(column), overflow="fold")
    for row in rows:
        table.add_row(*map(_text, row))
    console.print(table)
    if footer:
        console.print(_text(footer), soft_wrap=True)


def print_lines(draw: Callable[[int, bool], str]) -> None:
    """Lines on stdout from `draw`, which receives the number of columns and whether to use only ASCII."""
    console = Console(highlight=False)
    console.print(_text(draw(console.width, console.options.ascii_only)), soft_wrap=True)


def _text(text: str, style: str = "") -> Text:
    return Text(visible(text, breaks=True), style=style)


def spell_out() -> None:
    """If stdout or stderr cannot encode a character, spell it out ("epsilon") or replace it instead of failing."""
    codecs.register_error("spelt", _spelt)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="spelt")


def _spelt(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_SPELT.get(c, "?") for c in error.object[error.start : error.end]), error.end


LABEL = TextColumn("{task.description}", markup=False)


class _Rate(ProgressColumn):
    """Steps per second."""

    def render(self, task: Task) -> Text:
        """Blank until the speed is known."""
        return Text(f"{task.speed:.1f}/s" if task.speed else "")


@contextlib.contextmanager
def progress_bar() -> Iterator[Callable[[str, int, int], None]]:
    """A bar with rate and time left on stderr; if stderr is not a terminal, a line for each tenth of the work."""
    if not sys.stderr.isatty():
        yield _progress_lines()
        return
    columns = [LABEL, BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn()]
    with Progress(*columns, console=err_console(), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def report(label: str, done: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = bar.add_task(visible(label), total=total)
            bar.update(tasks[label], completed=done)

        yield report


SEARCHING = "searching"  # the label of a search's progress


def _progress_lines() -> Callable[[str, int, int], None]:
    """Reports progress in lines, one for each tenth of a label's work: for logs.

    A bar vanishes, but a log is kept and may leave. So it has no lines about searches, how far which is follows from
    the secret number of its runs; and since some work is counted in records, it has shares alone, and all ten of them
    whatever their number.
    """
    told: dict[str, int] = {}

    def report(label: str, done: int, total: int) -> None:
        if label == SEARCHING or assists():
            return
        tenth = 10 * done // max(1, total)
        for one in range(told.get(label, 0) + 1, tenth + 1):
            tell("", f"{label}: {10 * one}%")
        told[label] = max(tenth, told.get(label, 0))

    return report


def protects(unit: str, relation: str) -> str:
    """Whom a guarantee protects, in words."""
    whom = {"none": "nothing", "person": "one person with all records"}.get(unit, f"one {unit}")
    return whom if unit == "none" else f"{whom} ({relation})"


def shown(path: Path) -> str:
    """A path as the user would type it."""
    with contextlib.suppress(ValueError):
        return str(path.resolve().relative_to(Path.cwd()))
    return str(path)
