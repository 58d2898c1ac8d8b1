"""Declarations that were read off the records: the first lines say that no guarantee covers them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from airlock.bundle import Vault
from airlock.bundle.gate import weigh
from airlock.bundle.rendering.page import render_html, render_readme
from airlock.bundle.verify import verify
from airlock.config import from_table
from airlock.data import describe
from airlock.errors import ConfigError
from airlock.methods.contract import READ_OFF, SIZE, SIZES, assumed_of, in_words
from airlock.methods.weights.head import TABLE_FRONT
from airlock.pipeline import Outcome, make_release, plan_release
from tests.bundle.forging import forge
from tests.visits import config, write

pytestmark = pytest.mark.filterwarnings("ignore")
NAMES = ("classes", "columns", "records")
WORDS = "the class names, the ranges and categories of the columns and the number of records"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    folder = tmp_path_factory.mktemp("read_off")
    asked = config(
        write(folder), channel="weights", method="gaussian", net="linear", settings={"steps": 2},
        data={"read_off": ["records", "classes", "columns", "classes"], "person": None, "people": None},
    )  # fmt: skip
    return make_release(asked, folder / "bundle", vault=folder / "vault")


def test_the_first_lines_say_so_and_nothing_says_otherwise(made: Outcome) -> None:
    card = made.bundle.card
    assert card.data.read_off == NAMES
    assert f"Not covered: {WORDS}" in card.headline
    assert (card.mark, len(card.uncovered)) == ("limited", 1)
    promise = card.guarantee.assumptions
    assert promise[0] == READ_OFF.format(what=WORDS)
    assert SIZE not in promise
    assert "Network and settings were chosen without looking at the private records." in promise
    assert "read off the records" in card.data.origin
    assert "declared" not in card.data.origin
    for page in (render_html(card), render_readme(card)):
        assert page.count("read off the records before the release") >= 2
    assert WORDS in made.dossier.says


def test_it_verifies_and_the_gate_asks_whether_it_is_true(made: Outcome) -> None:
    verdict = verify(made.bundle.folder, Vault.open(made.bundle.folder.parent / "vault"))
    assert all(check.outcome == "ok" for check in verdict.checks), verdict
    found = weigh(made.bundle.card, [])
    assert any(line.startswith("Check that this is true: NOT COVERED: the class names") for line in found.caution)


@pytest.mark.parametrize(
    ("card", "own"),
    [({"data.read_off": []}, {}), ({}, {"data.read_off": []}), ({"data.read_off": []}, {"data.read_off": []})],
)
def test_whoever_takes_it_out_is_found(
    made: Outcome, tmp_path: Path, card: dict[str, object], own: dict[str, object]
) -> None:
    folder = tmp_path / "forged"
    shutil.copytree(made.bundle.folder, folder)
    found = {one.name: one.outcome for one in verify(forge(folder, card, own)).checks}
    assert "failed" in (found["plan"], found["config"]), found


def test_every_method_says_it_once(tmp_path: Path) -> None:
    path = write(tmp_path)
    for changes in ({}, {"channel": "weights", "method": "head"}, {"channel": "weights", "method": "gaussian"}):
        plan = plan_release(config(path, **changes, data={"read_off": [*NAMES, "people"]}))
        promise = plan.guarantee.assumptions
        assert sum(line.startswith("NOT COVERED: the class names") for line in promise) == 1
        assert not {SIZE, SIZES, TABLE_FRONT} & set(promise)
        assert not any("class names were chosen" in line for line in promise)
    facts = describe(config(path, data={"read_off": ["people"]}))
    twice = assumed_of(facts, assumed_of(facts, ("One.", SIZE)))
    assert twice == (READ_OFF.format(what=in_words(["people"])), "One.")


def test_what_is_known_of_a_named_source_was_read_off_nothing() -> None:
    data = {"source": "digits", "read_off": ["classes"]}
    with pytest.raises(ConfigError, match=r"data\.read_off"):
        describe(from_table({"channel": "weights", "data": data, "epsilon": 1.0, "delta": 1e-4}))
