"""The bundle of a search: it is planned again from its config, and whoever hides the search is found out."""

from __future__ import annotations

import json
import shutil
import sys
import tomllib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from typer.testing import CliRunner

from airlock import pipeline, plugins
from airlock.auditing import AuditSettings
from airlock.auditing.required_attacks import CHOICE, CHOSEN_BY
from airlock.auditing.run import UNLIKE
from airlock.bundle import Card, Vault, bundle, consistency, replan
from airlock.bundle.contents import Contents, Skip
from airlock.bundle.verify import verify
from airlock.cli import app
from airlock.errors import ConfigError, Refused
from airlock.mechanisms import RepeatAndSelect
from airlock.methods import Channel, Search, search
from airlock.pipeline import Audited, audit_bundle, make_release
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
        lambda table: table["tune"]["search"][0].update(channel=["student"], method=["from-elsewhere"]),
        lambda table: table["tune"]["search"].append({"channel": ["student"], "settings.teacher": ["made-elsewhere"]}),
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


LINEAR = 3  # a seed with which the first run is of the first candidate


def audited(folder: Path, net: str | None = None, **how: Any) -> Audited:
    few = AuditSettings(shadows=4, epochs=1, queries=1, **how)
    source = {"data.source": str(folder.with_name("own.npz"))}
    return audit_bundle(folder, few, overrides=source, vault=folder.with_name("vault"), net=net)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("like", ["plain", "release"])
def test_an_audit_attacks_the_winner_as_it_was_run(searched: Path, like: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Channel] = []
    original = pipeline._open

    def opens(asked: Any, data_dir: Any) -> Any:
        seen.append(original(asked, data_dir)[0])
        return seen[0], seen[0].facts

    monkeypatch.setattr(pipeline, "_open", opens)
    done = audited(searched, like=like)
    card, (own,) = read(searched), seen
    assert len(done.dossier.audit.attacks) == 9
    assert not isinstance(own, Search)
    # A share of ε was for attacks on the card: the run had its noise without it.
    assert own.planned.details == {key: card.details[key] for key in own.planned.details}
    untested = done.dossier.audit.not_tested
    assert CHOICE in untested, "a reader would take the choice for simulated"
    assert CHOSEN_BY in untested
    assert (UNLIKE in untested) == (like == "plain")


@pytest.mark.filterwarnings("ignore")
def test_shadow_models_may_repeat_the_whole_search(searched: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    release = Search.release

    def counted(self: Search, split: Any, *told: Any) -> Any:
        seen.append(len(split.private))
        return release(self, split, *told)

    monkeypatch.setattr(Search, "release", counted)
    done = audited(searched, like="search")
    assert len(seen) == 4
    assert len({attack.name for attack in done.dossier.audit.attacks}) == 9
    untested = done.dossier.audit.not_tested
    assert CHOICE not in untested
    assert CHOSEN_BY in untested
    assert not list((searched.with_name("vault") / "checkpoints").glob("*-audit*"))
    said = done.dossier.to_json()
    assert "run-" not in said


def test_a_release_of_a_search_says_what_its_quick_attacks_leave_out(searched: Path) -> None:
    (folder,) = searched.with_name("vault").glob("*/dossier")
    first = folder / ("dossier-1.json" if (folder / "dossier-1.json").exists() else "dossier.json")  # audits came after
    assert {CHOICE, CHOSEN_BY} <= set(json.loads(first.read_text())["audit"]["not_tested"])


@pytest.mark.filterwarnings("ignore")
def test_there_is_no_search_to_repeat_where_there_was_none(tmp_path: Path) -> None:
    asked = config(written(tmp_path), net="linear", settings={"steps": 1}).model_copy(update={"tune": None})
    make_release(asked, tmp_path / "bundle", vault=tmp_path / "vault", insecure_seed=2)
    with pytest.raises(ConfigError, match="no search to repeat"):
        audited(tmp_path / "bundle", like="search")


@pytest.mark.filterwarnings("ignore")
def test_a_network_of_ones_own_among_the_candidates_is_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For an audit of the winner the losers' networks are not imported at all."""
    (tmp_path / "own_of_search.py").write_text(
        "import torch\n\ndef make(shape, classes):\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(5, classes))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    names = {"net": ["linear", "own_of_search:make"], "settings.steps": [1]}
    asked = config(written(tmp_path), tune={"search": names}, split={"holdout": 0.2})
    monkeypatch.setattr(RepeatAndSelect, "draw", lambda self, stream: 1)
    made = make_release(asked, tmp_path / "bundle", vault=tmp_path / "vault", insecure_seed=LINEAR, court_seconds=0)
    assert made.bundle.card.network is not None
    assert made.bundle.card.network.name == "linear"
    del sys.modules["own_of_search"]  # the release imported it
    assert audited(tmp_path / "bundle").dossier.audit.attacks
    with pytest.raises(Refused, match="own_of_search:make"):
        audited(tmp_path / "bundle", like="search")
    assert "own_of_search" not in sys.modules
    assert audited(tmp_path / "bundle", like="search", net="own_of_search:make").dossier.audit.attacks
    assert sys.modules.pop("own_of_search")


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


def test_a_method_of_another_package_is_a_stranger_in_whatever_channel_a_candidate_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    brought = {"student/shrunk": plugins.Plugin("elsewhere:Shrunk", "elsewhere 1.0")}
    monkeypatch.setattr(plugins, "read", lambda group: brought if group == plugins.METHODS else {})
    grid = {"channel": ["student"], "method": ["ensemble", "shrunk"]}
    found = plugins.strangers({"channel": "weights", "method": "gaussian", "tune": {"search": [grid]}})
    assert found == {"tune.search.0.method.1": "shrunk"}
    assert plugins.strangers({"channel": "weights", "tune": {"search": [{"method": ["shrunk"]}]}}) == {}
    assert plugins.strangers({"channel": ["student"], "method": {"a": "shrunk"}, "tune": [["student"]]}) != {}
