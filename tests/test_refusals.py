"""No record decides whether there is a release, nor what is refused, counted or written outside the vault.

Two halves: every `raise` in the rooms that see records is on a list with the reason why no record leads there; and an
adversary who watches whole releases, with a person's record and without it, learns nothing from whether they exist,
what they are called, how large they are and what they say of the data.
"""

from __future__ import annotations

import ast
import json
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from typer.testing import CliRunner

from airlock.cli import app
from airlock.data import Records, Split, add_public, describe, digest
from airlock.data.split import positions
from airlock.errors import DataError
from airlock.methods.rows import permutation
from tests.methods.test_missing_records import SETTINGS, digits

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "tests" / "refusals.txt"
ROOMS = ("data", "methods", "papers", "training", "auditing", "bundle", "mechanisms")
Key = tuple[str, str, str]


# Every raise has a reason.


def expected_text(node: ast.Raise) -> str:
    """What the error says was expected: its first text, with {} for what is filled in."""
    if node.exc is None:
        return "(again)"
    for argument in node.exc.args if isinstance(node.exc, ast.Call) else []:
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            return argument.value
        if isinstance(argument, ast.JoinedStr):
            parts = [str(part.value) if isinstance(part, ast.Constant) else "{}" for part in argument.values]
            return "".join(parts)
    return f"({ast.unparse(node.exc)})"


# Caught where they are raised: another way to compute the same is taken (`training.per_sample`).
CAUGHT = {"_NoRule", "_Stopped", "OtherPlan", "Unshown"}


def is_caught(node: ast.Raise) -> bool:
    """Whether it never reaches a user."""
    return isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name) and node.exc.func.id in CAUGHT


def raises(node: ast.AST, where: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Function and text of every raise below a node."""
    for child in ast.iter_child_nodes(node):
        named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        inside = (*where, child.name) if named else where  # type: ignore[attr-defined]
        if isinstance(child, ast.Raise) and not is_caught(child):
            yield ".".join(inside), expected_text(child)
        yield from raises(child, inside)


def found() -> Counter[Key]:
    """Every raise of the rooms that see records."""
    package = ROOT / "airlock"
    files = [*(file for room in ROOMS for file in (package / room).rglob("*.py")), package / "pipeline.py"]
    return Counter(
        (file.relative_to(package).as_posix(), *key)
        for file in files
        for key in raises(ast.parse(file.read_text(encoding="utf-8")))
    )


def listed() -> tuple[Counter[Key], dict[str, str]]:
    """The list, and the reason that stands above each of its sections."""
    keys: Counter[Key] = Counter()
    reasons, section = {}, ""
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line.startswith("#") and section:
            reasons[section] = line.removeprefix("# ")
        elif line and not line.startswith("#"):
            file, function, text = line.split(" :: ", 2)
            assert section in reasons, f"no reason above {line}"
            keys[file, function, text] += 1
    return keys, reasons


def shown(keys: Counter[Key]) -> str:
    return "\n".join(" :: ".join(key) for key in sorted(keys.elements()))


def test_every_raise_is_on_the_list_with_a_reason() -> None:
    known, reasons = listed()
    there = found()
    new, gone = there - known, known - there
    assert not new, (
        "New ways to fail in rooms that see records. Does a record decide about it? Then leave the record out, tell "
        f"the holder (data/remarks.py) and go on. If not, add the line to {TABLE.name} below its reason:\n{shown(new)}"
    )
    assert not gone, f"No longer there, remove from {TABLE.name}:\n{shown(gone)}"
    assert all(reason.endswith(".") for reason in reasons.values())


@pytest.mark.parametrize("function", ["check_records", "load", "divide", "add_public"])
def test_a_new_raise_is_noticed(function: str) -> None:
    """As where a declared class without records ended a load."""
    code = f'def {function}(records):\n    if not len(records):\n        raise DataError(f"at least one of {{name}}")'
    (key,) = raises(ast.parse(code))
    assert key == (function, "at least one of {}")
    assert not any((file, *key) in listed()[0] for file in ("data/validate.py", "data/loading.py", "data/split.py"))


# The adversary.

runner = CliRunner()
PAIRS = {"answers/per-query": 40, "answers/votes": 20, "answers/published": 20, "features/noised": 20}
NOISY = ("utility",)  # counts of test records with noise that is paid for: tests/bundle tries what they tell
OF_ITS_OWN = ("release_id", "created", "hashes")  # differ between any two releases
Table = dict[str, Any]
World = Callable[[Path, np.random.Generator, bool, Table], None]


def observed(folder: Path, config: Path) -> Table:
    """All that a release shows to whoever waits for it, apart from noise that is paid for."""
    words = ["release", str(config), "--out", str(folder / "bundle"), "--accept-unproven", "--json"]
    result = runner.invoke(app, words, env={"AIRLOCK_VAULT": str(folder / "vault")})
    seen: Table = {"rc": result.exit_code, "exists": (folder / "bundle").exists()}
    if not seen["exists"]:
        return seen
    files = sorted((folder / "bundle").iterdir())
    known = {path.name: json.loads(path.read_text()) for path in files if path.suffix == ".json"}
    card = {key: value for key, value in known["card.json"].items() if key not in (*NOISY, *OF_ITS_OWN)}
    card["words"] = {key: value for key, value in card["words"].items() if key not in NOISY}
    rows = [
        (shard["name"], shard["records"], shard["bytes"]) for shard in known.get("features.json", {}).get("shards", [])
    ]
    config_left = tomllib.loads((folder / "bundle" / "config.toml").read_text())
    return seen | {
        "files": [path.name for path in files],
        "card": card,
        "rows": rows,
        "config": config_left,
        "interface": known.get("interface.json"),
    }


def people(chance: np.random.Generator, count: int = 150) -> Records:
    """Some digits as bytes."""
    chosen = chance.choice(len(digits()), count, replace=False)
    return Records((digits().x[chosen] * 255).astype(np.uint8), digits().y[chosen])


def strangers(chance: np.random.Generator, count: int, label: int) -> Records:
    """Pictures that nobody else has."""
    return Records(chance.integers(0, 256, (count, 1, 8, 8), np.uint8), np.full(count, label))


def private_ones(records: Records, seed: int) -> Records:
    """Those who fall into the private part."""
    return records.take(np.flatnonzero(positions(records, seed)[0] > 0.5))


def joined(first: Records, second: Records, also: bool = True) -> Records:
    second = second.take(np.arange(len(second) if also else 0))
    return Records(np.concatenate([first.x, second.x]), np.concatenate([first.y, second.y]))


def save(folder: Path, records: Records, test: Records | None = None) -> None:
    both = {} if test is None else {"x_test": test.x, "y_test": test.y}
    end = "" if test is None else "_train"
    np.savez(folder / "people.npz", **{f"x{end}": records.x, f"y{end}": records.y}, **both)


def only_record_of_a_class(folder: Path, chance: np.random.Generator, there: bool, table: Table) -> None:
    person = private_ones(strangers(chance, 20, 10), table["seed"]).take(np.array([0]))
    save(folder, joined(people(chance), person, there))


def record_that_does_not_fit(folder: Path, chance: np.random.Generator, there: bool, table: Table) -> None:
    save(folder, joined(people(chance), strangers(chance, 1, 77), there))


def only_record_of_all(folder: Path, chance: np.random.Generator, there: bool, table: Table) -> None:
    person = private_ones(strangers(chance, 20, 3), table["seed"]).take(np.array([0]))
    save(folder, joined(person.take(np.arange(0)), person, there))


def pool_record_that_is_tested(folder: Path, chance: np.random.Generator, there: bool, table: Table) -> None:
    own = people(chance)
    save(folder, own, joined(people(chance, 20), own.take(np.array([5])), there))


def one_more_than_a_hundredth_is_public(folder: Path, chance: np.random.Generator, there: bool, table: Table) -> None:
    """The second private record that stands in the public set, of about a hundred private ones."""
    public = strangers(chance, 60, 3)
    beside(folder, public, table)
    known = private_ones(public, table["seed"])
    save(folder, joined(joined(people(chance, 140), known.take(np.array([0]))), known.take(np.array([1])), there))


def public_record_that_is_tested(folder: Path, chance: np.random.Generator, there: bool, table: Table) -> None:
    public = strangers(chance, 60, 3)
    beside(folder, public, table)
    save(folder, people(chance), joined(people(chance, 20), public.take(np.array([7])), there))


def beside(folder: Path, public: Records, table: Table) -> None:
    file = folder.parent / "public.npz"  # one and the same for both worlds
    np.savez(file, x=public.x, y=public.y)
    table["settings"] = {**table["settings"], "public": {"source": str(file), "classes": 10, "name": "others"}}


WORLDS: tuple[World, ...] = (
    only_record_of_a_class, record_that_does_not_fit, only_record_of_all, pool_record_that_is_tested,
)  # fmt: skip
PUBLIC: tuple[World, ...] = (one_more_than_a_hundredth_is_public, public_record_that_is_tested)


def observe(folder: Path, name: str, world: World, seed: int, there: bool) -> Table:
    place = folder / ("with" if there else "without")
    place.mkdir(parents=True)
    channel, method = name.split("/")
    data = {"source": str(place / "people.npz"), "classes": [*"0123456789", "rare"], "records": 150, "name": "people"}
    table = {"channel": channel, "method": method, "epsilon": 4.0, "delta": 1e-3, "device": "cpu", "seed": seed}
    table |= {"data": data, "settings": SETTINGS[name]}
    world(place, np.random.default_rng(seed), there, table)
    (place / "release.toml").write_text(tomli_w.dumps(table))
    return observed(place, place / "release.toml")


def guesses(tmp_path: Path, name: str, worlds: tuple[World, ...], pairs: int) -> tuple[int, int]:
    """How often whoever compares all that is to be seen names the right world, of how many trials.

    This adversary knows what a release without the person looks like, and says that she is there when it looks
    otherwise. There is none better: it guesses right whenever anything differs, and half of the time if nothing does.
    """
    right = 0
    for trial in range(pairs):
        world = worlds[trial % len(worlds)]
        with_her, without = (observe(tmp_path / str(trial), name, world, trial, there) for there in (True, False))
        right += 2 if with_her != without else 1
    return right, 2 * pairs


def test_there_are_two_hundred_trials() -> None:
    assert 2 * sum(PAIRS.values()) == 200


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)], ids=["once", "all"])
@pytest.mark.parametrize("name", PAIRS)
def test_the_refusal_adversary_does_no_better_than_chance(name: str, every: bool, tmp_path: Path) -> None:
    """In every world once, and in two hundred trials."""
    worlds = WORLDS + (PUBLIC if name == "features/noised" else ())
    right, trials = guesses(tmp_path, name, worlds, PAIRS[name] if every else len(worlds))
    assert right == trials // 2
    outcomes = {json.loads(path.read_text())["channel"] for path in tmp_path.glob("*/*/bundle/card.json")}
    assert outcomes == {name.split("/")[0]}
    assert len(list(tmp_path.glob("*/*/bundle"))) == trials  # and there is a release every time


def refuse_missing_classes(patch: pytest.MonkeyPatch) -> None:
    """As it was: a declared class without a private record ends the load."""

    def refuse(labels: Any, classes: Any) -> tuple[str, ...]:
        if len(np.unique(labels)) < len(classes):
            raise DataError("private records of every declared class", "none of some")
        return ()

    patch.setattr("airlock.data.loading.about_classes", refuse)


def count_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        "airlock.methods.features.noised.draw_rows",
        lambda records, count, choices, *more: permutation(len(records), choices.child("order")),
    )


def drop_public_test_records(patch: pytest.MonkeyPatch) -> None:
    """As it was: the public set loses what stands among the test records."""

    def add(split: Split, public: Any, data_dir: Any = None) -> Split:
        found = add_public(split, public, data_dir)
        assert found.beside is not None
        records = found.beside.records.take(np.arange(len(found.beside.records) - (len(split.test) != len(found.test))))
        return replace(found, beside=replace(found.beside, records=records, digest=digest(records)))

    patch.setattr("airlock.pipeline.data.add_public", add)


def count_records(patch: pytest.MonkeyPatch) -> None:
    """As it was for named sources: the facts are counted in the file."""

    def describe_by_count(config: Any, data_dir: Any = None) -> Any:
        count = len(np.load(config.data.source)["y"])
        return replace(describe(config, data_dir), records=max(1, count))

    patch.setattr("airlock.pipeline.data.describe", describe_by_count)


FAULTS: dict[str, tuple[str, World, Callable[[pytest.MonkeyPatch], None]]] = {
    "classes without records are refused": ("answers/per-query", only_record_of_a_class, refuse_missing_classes),
    "records are counted": ("answers/per-query", only_record_of_a_class, count_records),
    "rows are counted": ("features/noised", only_record_of_a_class, count_rows),
    "the public set loses test records": ("features/noised", public_record_that_is_tested, drop_public_test_records),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_adversary_finds_every_planted_fault(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, world, plant = FAULTS[fault]
    plant(monkeypatch)
    right, trials = guesses(tmp_path, name, (world,), 4)
    assert right == trials
