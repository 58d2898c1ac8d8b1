"""`airlock advise`: which method to use, before any record is read."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from airlock.cli.terminal import (
    DataDirOption,
    JsonOption,
    SetOption,
    check_place,
    overrides,
    parse_shape,
    print_json,
    print_table,
    shown,
    translate_errors,
)
from airlock.errors import ConfigError

if TYPE_CHECKING:
    from airlock.comparison import Advice


_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\s*(?:-|–|to)\s*({_NUMBER})")


@translate_errors
def advise(
    config: Path | None = typer.Argument(
        None, metavar="[CONFIG]", help="A TOML file as for compare; its data section is used.", show_default=False
    ),
    data: str | None = typer.Option(None, "--data", help="A named data set, or your own file.", show_default=False),
    data_dir: Path | None = DataDirOption,
    label: str | None = typer.Option(None, "--label", help="For a table: the column to predict.", show_default=False),
    classes: str | None = typer.Option(
        None, "--classes", help="For your own data: the class names, such as no,yes.", show_default=False
    ),
    records: int | None = typer.Option(
        None, "--records", help="For your own data: the approximate number of records; public.", show_default=False
    ),
    shape: str | None = typer.Option(
        None, "--shape", help="For a folder of images: channels, height, width, such as 3,32,32.", show_default=False
    ),
    column: list[str] = typer.Option(
        [],
        "--column",
        metavar="NAME=WHAT",
        help="For a table: a column and its values, age=0..110 or city=Bern,Chur. Repeatable; others are not read.",
        show_default=False,
    ),
    epsilon: float | None = typer.Option(
        None, "--epsilon", help="The ε of the release; default 1.", show_default=False
    ),
    delta: float | None = typer.Option(None, "--delta", help="Its δ; default 1e-5.", show_default=False),
    receives: str | None = typer.Option(
        None,
        "--receives",
        help="white-box: the receiver gets the artefact itself; black-box: it may only send queries.",
        show_default=False,
    ),
    runs_on: str | None = typer.Option(None, "--runs-on", help="phone, cloud or any.", show_default=False),
    queries: int | None = typer.Option(None, "--queries", help="The least number of queries.", show_default=False),
    public: bool | None = typer.Option(
        None, "--public/--no-public", help="Whether there are public records of the same kind.", show_default=False
    ),
    settings: list[str] = SetOption,
    write: Path | None = typer.Option(
        None, "--write", help="Write the config of the first choice here.", show_default=False
    ),
    force: bool = typer.Option(False, "--force", help="Replace an existing file at --write."),
    as_json: bool = JsonOption,
) -> None:
    """Rank all methods for a need, before any record is read, and write the config of the first."""
    need = {"receives": receives, "runs_on": runs_on, "queries": queries, "public": public}
    if _ask_for(config, data, need):
        data, epsilon, need = _questions(data, epsilon)
    from airlock.bundle.files import replace_file
    from airlock.comparison.advise import advise as choose
    from airlock.comparison.advise import as_toml, release_for
    from airlock.comparison.settings import from_table

    check_place(write, force)
    table = _table(config, data, epsilon, delta)
    given = {f"need.{key}": value for key, value in need.items() if value is not None}
    given |= _declared(label, classes, records, column, shape)
    asked = from_table(table, overrides(settings) | given, folder=config.parent if config else None)
    found = choose(asked, data_dir)
    text = as_toml(release_for(asked, found, data_dir), found.sentence) if write is not None else ""
    if write is not None:
        replace_file(write, text)
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        _print(found, write)


def _declared(
    label: str | None, classes: str | None, records: int | None, columns: list[str], shape: str | None
) -> dict[str, Any]:
    """What is declared about the user's own data, as keys of a config."""
    names = classes.split(",") if classes is not None else None
    read = dict(map(_column, columns)) or None
    known: dict[str, object] = {"data.label": label, "data.classes": names, "data.records": records}
    known |= {"data.columns": read, "data.shape": parse_shape(shape) if shape is not None else None}
    return {key: value for key, value in known.items() if value is not None}


def _column(text: str) -> tuple[str, object]:
    """age=0..110, age=0-110 or city=Bern,Chur."""
    name, equals, what = (part.strip() for part in text.partition("="))
    if not name or not equals or not what:
        raise ConfigError("a column as NAME=MIN..MAX or NAME=A,B,C", f"'{text}'")
    if ".." not in what and not _RANGE.fullmatch(what):
        return name, _values(name, what)
    low, high = what.split("..", 1) if ".." in what else _RANGE.fullmatch(what).groups()  # type: ignore[union-attr]
    try:
        return name, {"min": float(low), "max": float(high)}
    except ValueError:
        raise ConfigError("two numbers in NAME=MIN..MAX", f"'{text}'") from None


def _values(name: str, what: str) -> list[str]:
    """The values of a category; a single one is a mistake, for a column that is always the same says nothing."""
    values = [value.strip() for value in what.split(",")]
    if len(values) < 2:
        raise ConfigError(
            f"a range or at least two values for the column '{name}'",
            f"'{what}'",
            "A column with one declared value says nothing, and every record with another one is left out.",
            f"Write {name}=0..100 for a number, {name}=A,B for a category.",
        )
    return values


def _ask_for(config: Path | None, data: str | None, need: dict[str, Any]) -> bool:
    """Whether to ask questions: no options were given and the terminal is interactive."""
    said = config is not None or any(value is not None for value in (data, *need.values()))
    if not said and not sys.stdin.isatty():
        raise ConfigError(
            "a config, or --data and what the release is for",
            "neither, and no interactive terminal",
            do="For example: airlock advise --data digits --epsilon 1 --receives white-box --runs-on phone.",
        )
    return not said


def _questions(data: str | None, epsilon: float | None) -> tuple[str, float, dict[str, Any]]:
    data = typer.prompt("Which records (a name from `airlock datasets`, or your file)", default=data or "digits")
    epsilon = typer.prompt("At which ε (smaller protects more)", default=epsilon or 1.0, type=float)
    itself = typer.confirm(
        "Does the receiver need the artefact itself (otherwise it may only send queries)?", default=True
    )
    runs_on = typer.prompt("Where must it run: phone, cloud or any", default="any")
    count = typer.prompt("How many queries will be sent, at least (0: unknown)", default=0, type=int)
    public = typer.confirm("Are there public records of the same kind?", default=False)
    receives = "white-box" if itself else "black-box"
    return data, epsilon, {"receives": receives, "runs_on": runs_on, "queries": count or None, "public": public}


def _table(config: Path | None, data: str | None, epsilon: float | None, delta: float | None) -> dict[str, object]:
    from airlock.config import read_table

    table = read_table(config) if config is not None else {}
    if data is not None:
        table["data"] = data
    if epsilon is not None:
        table["epsilons"] = [epsilon]
        table["need"] = {key: value for key, value in dict(table.get("need") or {}).items() if key != "epsilon"}  # type: ignore[call-overload]
    if delta is not None:
        table["delta"] = delta
    if "data" not in table:
        raise ConfigError("records to advise on", "none", do="Name them with --data, or pass a config.")
    return {"epsilons": [1.0], "delta": 1e-5} | table


PAID_CHOICE = (
    "To choose between methods by their results, and pay for it: airlock compare --pay; also between their settings: "
    "airlock tune."
)


def _print(found: Advice, write: Path | None) -> None:
    rows = [[one.method, one.reason] for one in found.ranking if one.recommended]
    footer = [f"Not suitable: {one.method}: {one.reason}" for one in found.ranking if not one.recommended]
    footer += ["", found.sentence, PAID_CHOICE]
    if write is not None:
        footer += ["", f"Written: {shown(write)}", f"Then: airlock plan {shown(write)}"]
    print_table("What fits, best first", ["method", "why"], rows, "\n".join(footer))
