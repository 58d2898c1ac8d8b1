"""A comparison whose choice is paid for: it is one search, over whoever can take part, and tells no number of runs."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from typer.testing import CliRunner

import airlock
from airlock import data
from airlock.accounting import Guarantee
from airlock.bundle import Vault, bundle, register
from airlock.bundle.register import RegisterPlace, account
from airlock.bundle.verify import verify
from airlock.cli import app
from airlock.comparison.paid import PaidComparison, as_search
from airlock.comparison.settings import CompareConfig, from_table
from airlock.config import load
from airlock.errors import AccountingError, ConfigError, Refused
from airlock.mechanisms import RepeatAndSelect
from airlock.methods import Channel, named, search
from airlock.pipeline import plan_release
from tests.methods.test_search import ROWS, written
from tests.visits import config as of_visits
from tests.visits import write as write_visits

runner = CliRunner()
DIGITS = {"data": "digits", "epsilons": [3.0], "delta": 1e-4}
PROVEN_NETWORKS = {"weights/gaussian", "weights/shaped", "weights/head", "twin/sharded", "answers/head"}
STUDENTS = {"student/ensemble", "student/private-teacher", "student/neighbours"}
TWO = {
    "methods": ["weights/gaussian", "answers/head"],
    "nets": {"weights/gaussian": "linear"},
    "settings": {"weights/gaussian": {"steps": 2, "lot_size": 10_000}, "answers/head": {"features": "pixels"}},
}


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """No record may be read."""
    monkeypatch.setattr(data, "load", None)


def digits(**changes: Any) -> CompareConfig:
    return from_table(DIGITS | changes)


def small(folder: Path, **changes: Any) -> dict[str, Any]:
    """Two methods of two channels on a small table."""
    own = {"source": str(written(folder)), "name": "a table", "classes": 2, "records": ROWS}
    return {"data": own, "epsilons": [3.0], "delta": 1e-4, "pay": {"mean": 3.0}, **TWO, **changes}


def reasons(made: PaidComparison) -> dict[str, str]:
    return {one.method: one.reason for one in made.left_out}


# Who takes part.


@pytest.mark.usefixtures("unread")
@pytest.mark.filterwarnings("ignore")
def test_every_proven_method_that_releases_a_network_takes_part_and_the_others_are_named() -> None:
    made = as_search(digits(split={"public": 0.2}))
    assert set(made.taking_part) == PROVEN_NETWORKS | STUDENTS
    told = reasons(made)
    assert told["weights/published"].startswith("Not proven.")
    for name in ("features/noised", "answers/votes", "answers/per-query", "answers/neighbours"):
        assert told[name].startswith("No network leaves")
    assert "twin/kde-sharded" not in (*made.taking_part, *told), "not listed, and not named"
    plan = plan_release(made.config)
    assert plan.guarantee.status == "proven"
    assert 0.98 * 3.0 < plan.guarantee.epsilon <= 3.0
    assert {f"{one['channel']}/{one['method']}" for one in plan.figures.candidates} == set(made.taking_part)


@pytest.mark.usefixtures("unread")
def test_what_cannot_be_made_or_does_not_suit_the_need_is_left_out_with_the_reason() -> None:
    told = reasons(as_search(digits()))
    assert all("public" in told[name] for name in STUDENTS)
    told = reasons(as_search(digits(split={"public": 0.2}, need={"public": False})))
    assert told["student/ensemble"] == "A student learns from public records, and there are none."


@pytest.mark.usefixtures("unread")
def test_only_the_methods_that_are_named_take_part_each_with_its_own_settings() -> None:
    made = as_search(digits(**TWO, pay={"mean": 4.0, "shape": 0.0}))
    assert made.taking_part == ("weights/gaussian", "answers/head")
    assert made.left_out == ()
    assert made.config.tune is not None
    assert (made.config.tune.mean, made.config.tune.shape) == (4.0, 0.0)
    assert made.config.tune.candidates == (
        {
            "channel": "weights",
            "method": "gaussian",
            "net": "linear",
            "settings.steps": 2,
            "settings.lot_size": 10_000,
        },
        {"channel": "answers", "method": "head", "settings.features": "pixels"},
    )


@pytest.mark.usefixtures("unread")
def test_a_method_without_renyi_divergences_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    promised = search._promised

    def refusing(one: Channel) -> Guarantee:
        if one.channel == "answers":
            raise AccountingError("an event with a Rényi divergence", "one without")
        return promised(one)

    monkeypatch.setattr(search, "_promised", refusing)
    methods = ["weights/gaussian", "weights/shaped", "answers/head"]
    made = as_search(digits(methods=methods))
    assert made.taking_part == ("weights/gaussian", "weights/shaped")
    assert "Rényi divergence" in reasons(made)["answers/head"]


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"epsilons": [1.0, 3.0]}, ConfigError, "one ε, for a choice that is paid for, found 2"),
        ({"methods": ["weights/published", "weights/gaussian"]}, Refused, "1 that can take part .weights/gaussian"),
        ({"methods": ["features"]}, Refused, "0 that can take part.*No network leaves"),
        ({"accountant": "pld"}, ConfigError, "Only RDP"),
        ({"pay": {"mean": 1.0}}, ConfigError, "greater than 1"),
        ({"epsilons": [1e-3]}, Refused, "0 that can take part"),
    ],
)
def test_what_cannot_be_paid_for_is_refused_before_a_record_is_read(
    changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        as_search(digits(**changes))


def test_one_epsilon_of_several_is_named_by_the_need_and_what_has_no_use_is_told() -> None:
    asked = digits(epsilons=[1.0, 8.0], need={"epsilon": 8.0}, minutes=3, court_seconds=0, **TWO)
    made = as_search(asked)
    assert made.config.epsilon == 8.0
    assert [line.partition(":")[0] for line in made.unused] == ["epsilons", "seeds", "minutes", "court_seconds"]
    assert as_search(digits(seeds=[7], **TWO)).config.seed == 7
    assert as_search(digits(seeds=[7], **TWO)).unused == ()


@pytest.mark.filterwarnings("ignore")
def test_people_are_protected_as_people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = of_visits(write_visits(tmp_path), epsilon=8.0)
    shared = {key: asked.model_dump()[key] for key in ("data", "delta", "split", "unit")}
    given = {"answers/head": {"features": "pixels"}, "weights/gaussian": {"steps": 2}}
    methods = ["answers/head", "weights/gaussian", "twin/kde-sharded"]
    monkeypatch.setattr(named("twin/kde-sharded"), "units", frozenset({"record"}))  # as a plugin's method may be
    table = {**shared, "epsilons": [8.0], "methods": methods, "settings": given, "net": "linear", "pay": {"mean": 2.0}}
    made = as_search(from_table(table))
    assert "protects one record" in reasons(made)["twin/kde-sharded"]
    done = airlock.compare_paid(table, tmp_path / "bundle", vault=tmp_path / "vault", insecure_seed=1)
    assert done.bundle.card.guarantee.unit == "person"
    assert verify(tmp_path / "bundle", Vault(tmp_path / "vault")).ok


# What leaves, and what it tells.


@pytest.mark.filterwarnings("ignore")
def test_the_bundle_is_that_of_the_same_search(tmp_path: Path) -> None:
    """`compare --pay` is no mechanism of its own: the written search makes the same bundle, bit for bit."""
    made = airlock.compare_paid(small(tmp_path), tmp_path / "one", vault=tmp_path / "a", insecure_seed=3)
    file, place = tmp_path / "compare.toml", tmp_path / "search.toml"
    file.write_text(tomli_w.dumps(small(tmp_path)))
    assert runner.invoke(app, ["compare", str(file), "--pay", "--write", str(place)]).exit_code == 0
    same = airlock.tune(place, tmp_path / "two", vault=tmp_path / "b", insecure_seed=3)
    one, two = (tmp_path / name / "model.safetensors" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()
    assert made.bundle.card.tuning == same.bundle.card.tuning
    assert load(place) == as_search(from_table(small(tmp_path))).config
    again = runner.invoke(app, ["compare", str(file), "--pay", "--write", str(place)])
    assert again.exit_code == 2
    assert "--force" in again.stderr


def forced(monkeypatch: pytest.MonkeyPatch, runs: int, wins: int) -> None:
    """So many runs of a search, of which this one has the best score."""
    scores = iter([int(number == wins) for number in range(runs)])
    monkeypatch.setattr(RepeatAndSelect, "draw", lambda self, stream: runs)
    monkeypatch.setattr(search, "scored", lambda *told: next(scores))


def seen(folder: Path) -> dict[str, Any]:
    """What one who may look at the house after a paid comparison sees of it, but for the clock and random names."""
    house, vault = RegisterPlace(str(folder / "table.db"), "the config"), Vault(folder / "vault")
    card = json.loads((folder / "bundle" / "card.json").read_text())
    known = [file.relative_to(folder) for file in folder.rglob("*") if file.is_file()]
    lines = account(house, vault).charged
    return {
        "files": sorted(re.sub("[0-9a-f]{24,}", "NAME", str(file)) for file in known),
        "tuning": {**card["tuning"], "search": {**card["tuning"]["search"], "won": None}},
        "register": [(one.state, one.units, one.about) for one in lines],
    }


@pytest.mark.filterwarnings("ignore")
def test_neither_files_nor_lines_nor_the_register_tell_how_many_runs_there_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for runs in (1, 5):
        folder = tmp_path / str(runs)
        folder.mkdir()
        vault = folder / "vault"
        register.create(str(folder / "table.db"), Vault(vault), "a table", epsilon=10.0, delta=1e-4).close()
        table = small(folder, register=str(folder / "table.db"))
        table["data"]["source"] = str(written(tmp_path))
        file = folder / "compare.toml"
        file.write_text(tomli_w.dumps(table))
        forced(monkeypatch, runs, 0)
        line = ["compare", str(file), "--pay", "--out", str(folder / "bundle"), "--vault", str(vault), "--json"]
        done = runner.invoke(app, [*line, "--to", "Ann"])
        assert done.exit_code == 0, done.stderr
        said = json.loads(done.stdout)
        counted = {key: said[key] for key in ("searched", "left_out", "lifetime")}
        found.append((counted, done.stderr.replace(str(folder), ""), seen(folder)))
    assert found[0] == found[1]
    (line,) = found[0][2]["register"]
    assert (line[0], line[2]["channel"], line[2]["method"]) == ("released", "answers, weights", "search")
    assert line[2]["recipient"] == "Ann"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("wins", range(4))
def test_whichever_channel_wins_the_bundle_verifies_and_states_the_search(
    wins: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced(monkeypatch, 4, wins)
    airlock.compare_paid(small(tmp_path), tmp_path / "bundle", vault=tmp_path / "vault", insecure_seed=1)
    found = verify(tmp_path / "bundle", Vault(tmp_path / "vault"))
    assert found.ok, found
    card = bundle.read(tmp_path / "bundle").card
    assert card.tuning.search is not None
    won = card.tuning.search.candidates[card.tuning.search.won]
    table = tomllib.loads((tmp_path / "bundle" / "config.toml").read_text())
    assert (card.channel, card.method) == (won["channel"], won["method"]) == (table["channel"], table["method"])
    assert table["tune"]["base"]["channel"] == "weights"


# The command.


def test_options_of_the_other_kind_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "compare.toml"
    file.write_text(tomli_w.dumps(DIGITS | TWO))
    for more in (["--quick"], ["--jobs", "2"], ["--minutes", "3"]):
        told = runner.invoke(app, ["compare", str(file), "--out", str(tmp_path / "no"), "--pay", *more])
        assert told.exit_code == 2
        assert f"no {more[0]} with --pay" in told.stderr
    for more in (["--resume"], ["--force"], ["--to", "Ann"], ["--insecure-seed", "1"], ["--vault", "v"]):
        told = runner.invoke(app, ["compare", str(file), "--out", str(tmp_path / "no"), *more])
        assert told.exit_code == 2
        assert f"only with --pay {more[0]}" in told.stderr
    for pay in ([], ["--pay"]):
        assert runner.invoke(app, ["compare", str(file), *pay]).exit_code == 2
    assert not (tmp_path / "no").exists()


def test_the_command_says_who_takes_part_and_who_does_not(tmp_path: Path) -> None:
    file, place = tmp_path / "compare.toml", tmp_path / "search.toml"
    file.write_text(tomli_w.dumps(DIGITS | {"methods": ["weights", "answers/votes"]}))
    told = runner.invoke(app, ["compare", str(file), "--pay", "--write", str(place), "--json"])
    assert told.exit_code == 0, told.stderr
    assert json.loads(told.stdout)["searched"] == ["weights/gaussian", "weights/shaped", "weights/head"]
    assert "One model leaves, of 3 methods" in told.stderr
    assert "Left out: answers/votes: No network leaves" in told.stderr
