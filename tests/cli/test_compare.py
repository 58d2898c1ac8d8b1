"""`airlock compare` and `airlock advise`: what a user sees."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from airlock.cli import app
from airlock.comparison import Advice, Comparison, Need
from airlock.comparison import run as running
from airlock.comparison.page import NOTES
from airlock.comparison.run import Moment
from airlock.comparison.settings import CompareConfig
from airlock.config import TargetRange, load
from airlock.errors import Refused
from tests.comparison.example import comparison
from tests.texts import write_tokenizer

runner = CliRunner()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    place = tmp_path / "compare.toml"
    place.write_text('data = "digits"\nepsilons = [1.0, 3.0, 8.0]\ndelta = 1e-4\n', encoding="utf-8")
    return place


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """The comparison is the example, and what was asked for is kept."""
    kept: dict[str, object] = {}

    def compare(config: object, out: Path, **more: object) -> Comparison:
        kept.update(more, config=config, out=out)
        say = more["say"]
        assert callable(say)
        say(Moment(0, 20, None, None, None))
        say(Moment(20, 20, None, None, 75.0))
        return comparison()

    monkeypatch.setattr(running, "compare", compare)
    return kept


def test_a_table_best_first_with_claims_marked_and_what_is_missing(
    config: Path, asked: dict[str, object], tmp_path: Path
) -> None:
    told = runner.invoke(
        app, ["compare", str(config), "--out", str(tmp_path / "out"), "--quick", "--jobs", "2", "--minutes", "3"]
    )
    assert told.exit_code == 0
    assert (asked["quick"], asked["jobs"]) == (True, 2)
    assert getattr(asked["config"], "minutes", None) == 3
    lines = told.stdout.splitlines()
    rows = [line for line in lines if "weights/" in line and "│" in line]
    at_one = [line for line in rows if line.startswith("│ 1 ")]
    assert "weights/published" in at_one[0]
    assert "claim 1: refuted" in at_one[0]
    at_eight = [line for line in rows if line.startswith("│ 8 ") and "weights/published" in line]
    assert all("claim 8: refuted at 1" in line for line in at_eight)  # where the court tried it
    assert at_eight
    assert "weights/gaussian" in at_one[1]
    assert "0.998 proven" in at_one[1]
    text = " ".join(told.stdout.split())
    assert all(note in text for note in NOTES)
    assert comparison().advice.sentence in text
    for start in (
        "Skipped: student/ensemble: ",
        "Skipped: twin/sharded at ε = 1: ",
        "Failed: answers/per-query, seed 0: ",
    ):
        assert sum(line.startswith(start) for line in lines) == 1
    assert "Dropped: answers/per-query, trial before the court: The time was over." in lines
    assert max(map(len, (line for line in lines if "│" in line))) <= 80
    assert "20 cells to run" in told.stderr


def test_json_is_the_results(config: Path, asked: dict[str, object], tmp_path: Path) -> None:
    told = runner.invoke(app, ["compare", str(config), "--out", str(tmp_path / "out"), "--json"])
    assert Comparison.model_validate(json.loads(told.stdout)) == comparison()


def test_advise_writes_a_config_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airlock.comparison import advise as chooser

    monkeypatch.setattr(chooser, "advise", lambda config, data_dir: comparison().advice)
    place = tmp_path / "release.toml"
    words = ["advise", "--data", "digits", "--epsilon", "3", "--delta", "1e-4", "--receives", "white-box"]
    told = runner.invoke(app, [*words, "--write", str(place)])
    assert told.exit_code == 0
    assert load(place).method == "gaussian"
    assert "Not suitable: answers/per-query: Its model stays inside" in told.stdout
    again = runner.invoke(app, [*words, "--write", str(place)])
    assert again.exit_code == 2
    assert "--force" in again.stderr


def test_advise_asks_nobody_where_nobody_is() -> None:
    told = runner.invoke(app, ["advise"])
    assert told.exit_code == 2
    assert "--data" in told.stderr
    assert runner.invoke(app, ["advise", "--queries", "3"]).exit_code == 2


def test_advise_asks_who_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    from airlock.cli import advise as command
    from airlock.comparison import advise as chooser

    asked: list[CompareConfig] = []

    def choose(config: CompareConfig, data_dir: Path | None) -> Advice:
        asked.append(config)
        return comparison().advice

    monkeypatch.setattr(sys.modules[command.__module__], "_ask_for", lambda *said: True)
    monkeypatch.setattr(chooser, "advise", choose)
    told = runner.invoke(app, ["advise"], input="digits\n0.5\nn\ncloud\n40\ny\n-\n")
    assert told.exit_code == 0, told.output
    (config,) = asked
    assert (config.data.source, config.epsilons) == ("digits", (0.5,))
    assert config.need == Need(receives="black-box", runs_on="cloud", queries=40, public=True)


ANSWERS = {
    "records": "visits.csv",
    "predicted": "sick",
    "classes": "no, yes",
    "how many": "2,000",
    "whose": "who",
    "people": "500",
    "mean radius": "5_30\n5-30",  # the first answer is refused, and asked again
    "city": "Bern,Chur",
    "note": "-",
    "epsilon": "2",
    "receiver": "y",
    "where": "any",
    "queries": "0",
    "public": "n",
    "file": "taken.toml\nasked.toml",
}


def test_advise_asks_for_everything_about_a_file_and_writes_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("visits.csv").write_text('who,mean radius,city,note,sick\n"secret",never,read,x,y\n', encoding="utf-8")
    Path("taken.toml").touch()
    monkeypatch.setattr(sys.modules["airlock.cli.advise"], "interactive", lambda: True)
    told = runner.invoke(app, ["advise"], input="\n".join(ANSWERS.values()) + "\n")
    assert told.exit_code == 0, told.output
    assert "the header alone was read" in " ".join(told.stderr.split())
    assert "at least two values for the column 'mean radius'" in told.stderr
    assert "secret" not in told.output
    made = load(Path("asked.toml"))
    assert made.data.columns["mean radius"].max == 30.0
    assert made.data.columns["city"].categories == ("Bern", "Chur")
    assert set(made.data.columns) == {"mean radius", "city"}
    assert (made.data.person, made.data.people, made.data.records) == ("who", 500, 2000)
    assert (made.data.classes, made.epsilon, made.method) == (("no", "yes"), 2.0, "head")


def test_advise_asks_for_the_range_of_a_number_and_writes_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("stays.csv").write_text("age,days\n", encoding="utf-8")
    monkeypatch.setattr(sys.modules["airlock.cli.advise"], "interactive", lambda: True)
    answers = [
        "stays.csv",
        "days",
        "0..60 days in hospital",
        "2000",
        "-",
        "18..90",
        "1",
        "y",
        "any",
        "0",
        "n",
        "made.toml",
    ]
    told = runner.invoke(app, ["advise"], input="\n".join(answers) + "\n")
    assert told.exit_code == 0, told.output
    made = load(Path("made.toml"))
    assert made.task == "regression"
    assert made.data.target == TargetRange(min=0, max=60, unit="days in hospital")
    assert (made.data.classes, made.channel, made.method) == (None, "weights", "head")
    assert "compare --pay" not in told.stdout
    assert "features/noised: It cannot be made here. Expected a method for regression" in " ".join(told.stdout.split())


def test_advise_takes_records_that_are_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.csv").write_text("who,note,sick\nsecret,never,read\n", encoding="utf-8")
    tokens = ["-s", f"data.tokenizer={write_tokenizer(tmp_path)}", "-s", "data.tokens=8"]
    said = ["--data", "notes.csv", "--label", "sick", "--classes", "no,yes", "--records", "2000", *tokens]
    found: list[CompareConfig] = []

    def chosen(asked: CompareConfig, *_: object) -> None:
        found.append(asked)
        raise Refused("a choice", "none in this test")

    monkeypatch.setattr("airlock.comparison.advise.advise", chosen)
    told = runner.invoke(app, ["advise", *said, "--text", "note"])
    monkeypatch.setattr(sys.modules["airlock.cli.advise"], "interactive", lambda: True)
    asked = runner.invoke(app, ["advise", *said], input="-\n-\ntext\n")
    assert "Records are the texts in 'note'" in asked.stderr
    assert [(one.data.text, one.data.columns) for one in found] == [("note", {})] * 2, told.output + asked.output


@pytest.mark.parametrize("command", ["advise", "plan"])
def test_records_in_place_of_a_config_are_told_apart(command: str) -> None:
    told = runner.invoke(app, [command, "visits.csv"])
    assert told.exit_code == 2
    assert "found visits.csv, which holds records. To write a config for it" in told.stderr
    assert "airlock advise --data visits.csv" in told.stderr


@pytest.mark.parametrize(("text", "unit"), [("0..60", {}), ("0 - 60 days", {"unit": "days"}), ("0 to 6e1", {})])
def test_the_range_of_a_number_is_an_option_too(text: str, unit: dict[str, str]) -> None:
    from airlock.cli.advise import _classes_or_target, _target

    assert _target(text) == {"min": 0.0, "max": 60.0, **unit}
    assert _classes_or_target(text) == {"data.target": _target(text)}
    assert _classes_or_target("no,yes") == {"data.classes": ["no", "yes"]}
    refused = runner.invoke(app, ["advise", "--data", "digits", "--target", "many"])
    assert refused.exit_code == 2
    assert "the range of a number" in refused.stderr


def test_advise_asks_only_for_what_was_not_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.csv").write_text("age,sick\n", encoding="utf-8")
    monkeypatch.setattr(sys.modules["airlock.cli.advise"], "interactive", lambda: True)
    said = ["--data", "own.csv", "--label", "sick", "--classes", "no,yes", "--column", "age=0..110"]
    told = runner.invoke(app, ["advise", *said, "--json"], input="1000\n-\n")
    assert told.exit_code == 0, told.output
    answered, brace, found = told.stdout.partition("{")  # the runner echoes what is typed
    assert json.loads(brace + found)["method"] == "weights/head", answered


@pytest.mark.parametrize("column", ["age", "=0..9", "age=", "age=low..high"])
def test_a_column_is_a_name_and_what_it_may_be(column: str) -> None:
    found = runner.invoke(app, ["advise", "--data", "digits", "--column", column])
    assert found.exit_code == 2
    assert "column" in found.stderr or "two numbers" in found.stderr


@pytest.mark.parametrize(
    ("column", "what"),
    [
        ("mean radius=5-30", {"min": 5.0, "max": 30.0}),
        ("t=-5.5--1", {"min": -5.5, "max": -1.0}),
        ("t=0..1e3", {"min": 0.0, "max": 1000.0}),
        ("income=<=50K,>50K", ["<=50K", ">50K"]),
        ("city=Bern, Chur", ["Bern", "Chur"]),
    ],
)
def test_a_range_is_not_taken_for_a_category(column: str, what: object) -> None:
    from airlock.cli.advise import _column

    assert _column(column) == (column.partition("=")[0], what)


def test_a_column_of_one_value_is_a_mistake() -> None:
    found = runner.invoke(app, ["advise", "--data", "digits", "--column", "mean radius=5_30"])
    assert found.exit_code == 2
    assert "at least two values for the column 'mean radius'" in found.stderr


def test_data_of_which_too_little_is_declared_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("a,b\n1,x\n")
    found = runner.invoke(app, ["advise", "--data", str(tmp_path / "own.csv")])
    assert found.exit_code == 2
    assert "records" in found.stderr


def test_advise_takes_a_folder_of_images_by_what_is_declared(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    words = ["advise", "--data", str(tmp_path / "photos"), "--epsilon", "3", "--records", "5000"]
    missing = runner.invoke(app, words)
    assert missing.exit_code == 2
    assert "data.classes" in missing.stderr
    missing = runner.invoke(app, [*words, "--classes", "cat,dog"])
    assert missing.exit_code == 2
    assert "data.shape" in missing.stderr
    assert runner.invoke(app, [*words, "--classes", "cat,dog", "--shape", "3x32"]).exit_code == 2
    declared = [*words, "--classes", "cat,dog", "--shape", "3,32,32", "--write", str(tmp_path / "c.toml")]
    told = runner.invoke(app, declared)
    assert told.exit_code == 0, told.stderr
    written = tomllib.loads((tmp_path / "c.toml").read_text())
    assert (written["data"]["shape"], written["data"]["classes"]) == ([3, 32, 32], ["cat", "dog"])
