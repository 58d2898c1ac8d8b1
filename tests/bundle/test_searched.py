"""The bundle of a search: it is planned again from its config, and whoever hides the search is found out."""

from __future__ import annotations

import json
import shutil
import tomllib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from typer.testing import CliRunner

from airlock.auditing import AuditSettings
from airlock.bundle import Card, Vault, bundle, consistency, replan
from airlock.bundle.contents import Contents, Skip
from airlock.bundle.verify import verify
from airlock.cli import app
from airlock.errors import ConfigError
from airlock.mechanisms import RepeatAndSelect
from airlock.methods import search
from airlock.pipeline import audit_bundle, make_release
from tests.methods.test_search import config, written

Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One bundle with attack figures that are paid for, and its vault beside it."""
    folder = tmp_path_factory.mktemp("searched")
    asked = config(written(folder), attack_share=0.1, split={"holdout": 0.2})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make_release(asked, folder / "bundle", vault=folder / "vault", insecure_seed=2)
    return folder / "bundle"


@pytest.fixture
def copied(searched: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(searched, tmp_path / "copied"))


def read(folder: Path) -> Card:
    return bundle.read(folder).card


def defects(folder: Path, card: Card) -> list[str]:
    """What the checks of the card's parts, its config and its plan find."""
    files = Contents(folder)
    tests = [*consistency.tests(files, card), *replan.tests(files, card, None)]
    return [said for name, _, test in tests if name in ("parts", "config", "plan") for said in test()]


def with_config(folder: Path, change: Change) -> None:
    table = tomllib.loads((folder / "config.toml").read_text())
    change(table)
    (folder / "config.toml").write_text(tomli_w.dumps(table))


def test_it_verifies_and_every_part_pays_at_most_the_stated_epsilon(searched: Path) -> None:
    found = verify(searched, Vault(searched.with_name("vault")))
    assert found.ok, found
    assert all(check.outcome == "ok" for check in found.checks if check.name in ("epsilon", "parts", "plan", "config"))
    card = read(searched)
    parts, stated = card.guarantee.parts, card.guarantee.epsilon
    assert stated is not None
    assert stated <= 3.0
    assert all((part.epsilon or 0.0) <= stated for part in (parts.private, parts.test, parts.holdout))
    assert "A search was paid for: 3 candidates" in card.words.tuning
    assert "a secret number of them" in (searched / "card.html").read_text()


def test_the_events_of_the_winner_alone_are_refused(searched: Path) -> None:
    card = read(searched)
    assert card.tuning.search is not None
    whole, attacks = card.guarantee.events["events"]
    alone = {"type": "composed", "events": [whole["event"]["events"][0], attacks]}
    hidden = card.guarantee.model_copy(update={"events": alone})
    said = defects(searched, card.model_copy(update={"guarantee": hidden}))
    assert "The events do not pay for the search on the card." in said
    assert "The guarantee's events are not what the config leads to." in said


def test_a_card_that_names_no_search_is_refused(searched: Path) -> None:
    card = read(searched)
    none = card.tuning.model_copy(update={"search": None})
    said = " ".join(defects(searched, card.model_copy(update={"tuning": none})))
    assert "its events are those of one" in said
    assert "The events of the test part" in said
    assert "not the search on the card" in said


def _fewer(table: dict[str, Any]) -> None:
    table["tune"]["search"] = table["tune"]["search"][:1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda table: table.pop("tune"), "not the search on the card"),
        (lambda table: table["tune"].update(mean=4.0), "not the search on the card"),
        (lambda table: table["tune"].update(score_epsilon=0.01), "not the search on the card"),
        (_fewer, "not the search on the card"),
    ],
)
def test_another_search_in_the_config_is_noticed(copied: Path, change: Change, words: str) -> None:
    with_config(copied, change)
    files, card = Contents(copied), read(copied)
    (test,) = [test for name, _, test in consistency.tests(files, card) if name == "config"]
    assert words in " ".join(test())


def test_another_winner_is_noticed(copied: Path) -> None:
    card = read(copied)
    assert card.tuning.search is not None
    other = (card.tuning.search.won + 1) % 3
    with_config(copied, lambda table: table["tune"].update(won=other))
    moved = card.tuning.search.model_copy(update={"won": other})
    forged = card.model_copy(update={"tuning": card.tuning.model_copy(update={"search": moved})})
    with pytest.raises(ConfigError, match="candidate that won"):
        defects(copied, forged)


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table["tune"]["search"][0].update(net=["canary_of_search:make"]),
        lambda table: table["tune"]["search"][0].update(method=["from-elsewhere"]),
        lambda table: table["tune"]["base"].update(net="canary_of_search:make"),
        lambda table: table["tune"]["search"][1].update({"settings.features": ["canary_of_search:make"]}),
        lambda table: table["tune"]["search"][1].update({"settings.public": ["(a path, removed)"]}),
    ],
)
def test_nothing_is_imported_because_a_search_names_it(
    copied: Path, change: Change, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "canary_of_search.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with_config(copied, change)
    ((_, _, test),) = replan.tests(Contents(copied), read(copied), None)
    with pytest.raises(Skip, match=r"not imported|path"):
        test()


@pytest.mark.parametrize("value", ["canary_of_search:make", "(a path, removed)"])
def test_a_name_where_none_can_be_does_not_switch_the_check_off(copied: Path, value: str) -> None:
    with_config(copied, lambda table: table["tune"]["search"][0].update({"settings.steps": [value]}))
    ((_, _, test),) = replan.tests(Contents(copied), read(copied), None)
    with pytest.raises(ConfigError, match="It cannot be either"):
        test()


@pytest.mark.filterwarnings("ignore")
def test_an_audit_attacks_the_winner_as_it_was_run(searched: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    opens = "airlock.pipeline._open"
    original = __import__("airlock.pipeline", fromlist=["_open"])._open
    monkeypatch.setattr(opens, lambda asked, data_dir: seen.append(asked) or original(asked, data_dir))
    few = AuditSettings(shadows=4, epochs=1, queries=1)
    source = {"data.source": str(searched.with_name("own.npz"))}
    done = audit_bundle(searched, few, overrides=source, vault=searched.with_name("vault"))
    assert done.dossier.audit.attacks
    card = read(searched)
    assert card.tuning.search is not None
    assert (seen[0].tune, seen[0].method, seen[0].epsilon) == (None, card.method, card.tuning.search.run_epsilon)


@pytest.mark.filterwarnings("ignore")
def test_the_commands_print_no_number_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = config(written(tmp_path), tune={"search": {"method": ["head"], "settings.features": ["pixels"]}})
    file = tmp_path / "search.toml"
    file.write_text(tomli_w.dumps(asked.model_dump(mode="json", exclude_none=True)))
    planned = CliRunner().invoke(app, ["plan", str(file), "--json"])
    assert planned.exit_code == 0, planned.output
    costs = json.loads(planned.stdout)["search"]["costs"]
    assert costs["unpaid"] < costs["search"] <= 3.0
    shown = CliRunner().invoke(app, ["plan", str(file)])
    assert "which is false" in shown.stdout
    said = [_tuned(file, tmp_path / str(runs), runs, monkeypatch) for runs in (3, 7)]
    assert said[0] == said[1]
    assert said[0]["guarantee"]["events"]["type"] == "repeat-and-select"
    refused = CliRunner().invoke(app, ["tune", str(file), "--out", str(tmp_path / "no"), "--set", "tune.search={}"])
    assert refused.exit_code == 2


def _tuned(file: Path, folder: Path, runs: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the command prints after so many runs, the first of which is the best; without what names the release."""
    scores = iter([1, *[0] * runs])
    monkeypatch.setattr(RepeatAndSelect, "draw", lambda self, stream: runs)
    monkeypatch.setattr(search, "scored", lambda *told: next(scores))
    line = ["tune", str(file), "--out", str(folder / "out"), "--vault", str(folder / "vault"), "--insecure-seed", "5"]
    made = CliRunner().invoke(app, [*line, "--json"])
    assert made.exit_code == 0, made.output
    assert made.output == made.stdout
    return {key: value for key, value in json.loads(made.stdout).items() if key in ("utility", "guarantee", "inside")}
