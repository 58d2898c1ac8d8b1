"""`airlock advise`: which method to use, before any record is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from airlock.cli.terminal import (
    DataDirOption,
    JsonOption,
    SetOption,
    check_place,
    interactive,
    overrides,
    parse_shape,
    print_json,
    print_table,
    shown,
    tell,
    translate_errors,
)
from airlock.errors import AirlockError, ConfigError

if TYPE_CHECKING:
    from airlock.comparison import Advice

T = TypeVar("T")
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER})\s*(?:-|–|to)\s*({_NUMBER})")
_TARGET = re.compile(rf"({_NUMBER})\s*(?:\.\.|-|–|to)\s*({_NUMBER})(?:\s+(\S.*))?")


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
    target: str | None = typer.Option(
        None,
        "--target",
        help='For a number to predict: its range, such as 0..60 or "0..60 days".',
        show_default=False,
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
    text: str | None = typer.Option(
        None, "--text", help="For records that are texts: the column that holds them.", show_default=False
    ),
    person: str | None = typer.Option(
        None, "--person", help="For your own data: the column that says whose a record is.", show_default=False
    ),
    people: int | None = typer.Option(
        None, "--people", help="With --person: the approximate number of people; public.", show_default=False
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
    own = _declared(label, classes, target, records, column, shape, text) | _of_people(person, people)
    asks = _ask_for(config, data, need)
    if asks:
        data = typer.prompt("Which records (a name from `airlock datasets`, or your file)", default="digits", err=True)
    if config is None and data is not None and (asks or interactive()):
        own |= _ask_about(data, own)
    if asks:
        epsilon, need = _ask_need(epsilon)
        write = write or _ask_where()
    from airlock.bundle.files import replace_file
    from airlock.comparison.advise import advise as choose
    from airlock.comparison.advise import as_toml, release_for
    from airlock.comparison.settings import from_table

    check_place(write, force)
    table = _table(config, data, epsilon, delta)
    given = {f"need.{key}": value for key, value in need.items() if value is not None}
    given |= own
    asked = from_table(table, overrides(settings) | given, folder=config.parent if config else None)
    found = choose(asked, data_dir)
    if write is not None:
        replace_file(write, as_toml(release_for(asked, found, data_dir), found.sentence))
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        _print(found, write, paid=asked.data.target is None)


def _declared(
    label: str | None, classes: str | None, target: str | None, records: int | None, columns: list[str],
    shape: str | None, text: str | None,
) -> dict[str, Any]:  # fmt: skip
    """What is declared about the user's own data, as keys of a config."""
    read = dict(map(_column, columns)) or None
    known: dict[str, object] = {"data.label": label, "data.records": records, "data.columns": read, "data.text": text}
    known |= {"data.classes": _classes(classes) if classes is not None else None}
    known |= {"data.target": _target(target) if target is not None else None}
    known |= {"data.shape": parse_shape(shape) if shape is not None else None}
    return {key: value for key, value in known.items() if value is not None}


def _of_people(person: str | None, people: int | None) -> dict[str, Any]:
    """Whose the records are, as keys of a config."""
    return {} if person is None else {"data.person": person, **({} if people is None else {"data.people": people})}


def _classes(text: str) -> int | list[str]:
    """no,yes; or 10, for classes that are numbered 0 to 9."""
    return int(text) if text.strip().isdecimal() else [name.strip() for name in text.split(",")]


def _target(text: str) -> dict[str, object]:
    """0..60, 0-60 or 0..60 days: the range of the number that is predicted, and what it is measured in."""
    found = _TARGET.fullmatch(text.strip())
    if found is None:
        raise ConfigError("the range of a number, as 0..60 or 0..60 days", f"'{text}'")
    low, high, unit = found.groups()
    return {"min": float(low), "max": float(high), **({"unit": unit} if unit else {})}


def _classes_or_target(text: str) -> dict[str, object]:
    """Classes, or the range of a number, by the key that it belongs to."""
    return {"data.target": _target(text)} if _TARGET.fullmatch(text) else {"data.classes": _classes(text)}


def _column(text: str) -> tuple[str, object]:
    """age=0..110, age=0-110 or city=Bern,Chur."""
    name, equals, what = (part.strip() for part in text.partition("="))
    if not name or not equals or not what:
        raise ConfigError("a column as NAME=MIN..MAX or NAME=A,B,C", f"'{text}'")
    return name, _values(name, what)


def _values(name: str, what: str) -> object:
    """A number's range, or the values of a category.

    A single value is a mistake: a column that is always the same says nothing.
    """
    dashed = _RANGE.fullmatch(what)
    if ".." in what or dashed:
        low, high = dashed.groups() if dashed else what.split("..", 1)
        try:
            return {"min": float(low), "max": float(high)}
        except ValueError:
            raise ConfigError("two numbers in NAME=MIN..MAX", f"'{what}' for the column '{name}'") from None
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
    if not said and not interactive():
        raise ConfigError(
            "a config, or --data and what the release is for",
            "neither, and no interactive terminal",
            do="For example: airlock advise --data digits --epsilon 1 --receives white-box --runs-on phone.",
        )
    return not said


def _ask_need(epsilon: float | None) -> tuple[float, dict[str, Any]]:
    """At which ε, and what the release is for."""
    epsilon = typer.prompt("At which ε (smaller protects more)", default=epsilon or 1.0, type=float, err=True)
    itself = typer.confirm(
        "Does the receiver need the artefact itself (otherwise it may only send queries)?", default=True, err=True
    )
    runs_on = typer.prompt("Where must it run: phone, cloud or any", default="any", err=True)
    count = typer.prompt("How many queries will be sent, at least (0: unknown)", default=0, type=int, err=True)
    public = typer.confirm("Are there public records of the same kind?", default=False, err=True)
    receives = "white-box" if itself else "black-box"
    return epsilon, {"receives": receives, "runs_on": runs_on, "queries": count or None, "public": public}


OWN = (
    "Your own data. What you answer is public: it goes into the config, and with it into the bundle. Answer from what "
    "is known about such data, not by looking at the records: Airlock does not look at them either."
)
HEADER = "Of {file} the header alone was read. These column names count as public: {names}."
NONE, TEXT = "-", "text"
CLASSES_OR_RANGE = (
    "Its classes, such as no,yes (10: they are numbered 0 to 9), or the range of a number to predict, such as 0..60 "
    "days"
)


def _ask_about(source: str, known: dict[str, Any]) -> dict[str, Any]:
    """Everything that must be declared about a file or a folder of the user's own and is not; {} for a named source."""
    from airlock.data.tables import column_names

    path = Path(source)
    table = path.suffix.lower() in (".csv", ".parquet", ".pq")
    learnt = ["data.classes"] if "data.target" not in known else []
    needed = (
        ["data.label"] * table + learnt + ["data.records"] + ["data.columns"] * (table and "data.text" not in known)
    )
    needed += ["data.shape"] * path.is_dir()
    missing = [key for key in needed if key not in known]
    if not path.exists() or not missing:
        return {}
    names = column_names(path) if table else ()
    tell("", OWN)
    if names:
        tell("", HEADER.format(file=shown(path), names=", ".join(names)))
    asked: dict[str, Any] = {}
    for key in missing:
        if key == "data.classes" and table:
            asked |= _ask(CLASSES_OR_RANGE, _classes_or_target)
        elif key != "data.columns":
            asked[key] = _ASKED[key](names)
    if table and "data.person" not in known:
        asked |= _ask_whose([name for name in names if name != asked.get("data.label", known.get("data.label"))])
    if "data.columns" in missing:
        said = {**known, **asked}
        asked |= _ask_columns([n for n in names if n not in (said["data.label"], said.get("data.person"))])
    return asked


def _ask(question: str, read: Callable[[str], T], default: str | None = None) -> T:
    """An answer; a wrong one is explained, and the question asked again."""

    def checked(text: str) -> T:
        try:
            return read(text.strip())
        except AirlockError as error:
            raise typer.BadParameter(str(error)) from None

    found: T = typer.prompt(question, default=default, value_proc=checked, err=True)
    return found


def _one_of(names: Sequence[str]) -> Callable[[str], str]:
    """Reads the name of a column."""

    def read(text: str) -> str:
        if text not in names:
            raise ConfigError("one of the columns", f"'{text}'", do=f"They are {', '.join(names)}.")
        return text

    return read


def _count(text: str) -> int:
    """2000, or 2,000."""
    digits = re.sub(r"[,'_ ]", "", text)
    if not digits.isdecimal() or int(digits) < 1:
        raise ConfigError("a whole number of at least 1", f"'{text}'")
    return int(digits)


_ASKED: dict[str, Callable[[Sequence[str]], Any]] = {
    "data.label": lambda names: _ask("Which column is to be predicted", _one_of(names)),
    "data.classes": lambda _: _ask("Its classes, such as no,yes (10: they are numbered 0 to 9)", _classes),
    "data.records": lambda _: _ask("About how many records there are (a round public figure)", _count),
    "data.shape": lambda _: _ask("The shape of an image: channels, height, width, such as 3,32,32", parse_shape),
}


def _ask_whose(names: Sequence[str]) -> dict[str, Any]:
    """Whether a person may have several records, and about how many people there are."""
    question = f"Which column says whose a record is ({NONE}: nobody has more than one)"
    person = _ask(question, _one_of([*names, NONE]), NONE)
    if person == NONE:
        return {}
    return _of_people(person, _ask("About how many people there are (a round public figure)", _count))


def _ask_columns(names: Sequence[str]) -> dict[str, object]:
    """What each column may hold, or which one holds the texts; those that are left out are never read."""
    tell("", f"Each column: its range as 0..110, its values as A,B,C, {TEXT} for free text, or {NONE} to leave it out.")
    found: dict[str, object] = {}
    for name in names:
        what = _ask(name, lambda said, name=name: said if said in (NONE, TEXT) else _values(name, said))  # type: ignore[misc]
        if what == TEXT:
            tell("", f"Records are the texts in '{name}': no other column is read.")
            return {"data.text": name}
        if what != NONE:
            found[name] = what
    return {"data.columns": found}


def _ask_where() -> Path | None:
    """The file for the config; one that exists is asked for again."""

    def read(text: str) -> Path | None:
        if text == NONE:
            return None
        check_place(Path(text), force=False)
        return Path(text)

    return _ask(f"Where to write the config ({NONE}: nowhere)", read, "release.toml")


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


def _print(found: Advice, write: Path | None, paid: bool) -> None:
    """The ranking; `paid` says whether a choice by results can be paid for."""
    rows = [[one.method, one.reason] for one in found.ranking if one.recommended]
    footer = [f"Not suitable: {one.method}: {one.reason}" for one in found.ranking if not one.recommended]
    footer += ["", found.sentence, *([PAID_CHOICE] if paid else [])]
    if write is not None:
        footer += ["", f"Written: {shown(write)}", f"Then: airlock plan {shown(write)}"]
    print_table("What fits, best first", ["method", "why"], rows, "\n".join(footer))
