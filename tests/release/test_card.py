"""The card: strict JSON under a published schema, with public figures only."""

from __future__ import annotations

import getpass
import json
import math
import platform
import socket
from importlib.resources import files
from pathlib import Path

import dp_accounting as dpa
import jsonschema
import pytest

from airlock.accounting import Claim, compose, spend
from airlock.channels.contract import Release
from airlock.config import ReleaseConfig
from airlock.errors import ConfigError
from airlock.release import Bundle, Card, card_schema, make_card
from airlock.release.card import schema_text
from tests.release.conftest import AUDIT, DAY, FACTS, guarantee, make_release


def test_published_schema_is_the_generated_one():
    published = files("airlock.release").joinpath("card.schema.json").read_text(encoding="utf-8")
    assert published == schema_text()
    jsonschema.Draft202012Validator.check_schema(card_schema())


def test_card_is_strict_json_under_its_schema(card: Card):
    table = json.loads(card.to_json(), parse_constant=pytest.fail)
    jsonschema.Draft202012Validator(card_schema()).validate(table)
    assert Card.model_validate(table) == card


def test_infinite_epsilon_is_null(config: ReleaseConfig):
    promise = guarantee(unit="none", status="empirical", events=dpa.NonPrivateDpEvent())
    assert math.isinf(promise.epsilon)
    made = make_card(config, FACTS, make_release(promise), AUDIT)
    assert json.loads(made.to_json())["guarantee"]["epsilon"] is None


def test_card_has_what_a_reviewer_asks_for(card: Card, release: Release):
    table = json.loads(card.to_json())
    assert table["created"] == DAY.isoformat()
    assert table["guarantee"] == json.loads(json.dumps(release.guarantee.to_dict()))
    assert table["utility"]["low"] < table["utility"]["accuracy"] < table["utility"]["high"]
    assert table["audit"] == AUDIT.to_dict()
    assert table["decision"] == {"decision": None, "name": "", "date": "", "remarks": ""}
    assert "not covered by the guarantee" in table["words"]["utility"]
    assert "not covered by the guarantee" in table["words"]["audit"]


def test_every_card_has_its_own_id(config: ReleaseConfig, release: Release):
    ids = {make_card(config, FACTS, release, AUDIT).release_id for _ in range(3)}
    assert len(ids) == 3


def test_total_is_the_epsilon_of_all_events(config: ReleaseConfig, card: Card):
    promise = guarantee(2.0)
    made = make_card(config, FACTS, make_release(promise), AUDIT, others=(card,))
    both = spend(compose([promise.events, dpa.GaussianDpEvent(1.5)]), 1e-4).epsilon
    assert made.total.epsilon == pytest.approx(both)
    assert max(promise.epsilon, card.guarantee.epsilon or 0) < both
    assert [other.release_id for other in made.total.releases] == [card.release_id]
    assert f"{math.ceil(both * 100) / 100:.2f}" in made.words.others


def test_releases_named_by_other_cards_count_once(config: ReleaseConfig, card: Card):
    second = make_card(config, FACTS, make_release(guarantee(2.0)), AUDIT, others=(card,))
    third = make_card(config, FACTS, make_release(guarantee(3.0)), AUDIT, others=(second, card))
    assert {other.release_id for other in third.total.releases} == {card.release_id, second.release_id}


def test_another_relation_has_no_total(config: ReleaseConfig, card: Card):
    with pytest.raises(ConfigError, match="no common total"):
        make_card(config, FACTS, make_release(guarantee(relation="replace-one")), AUDIT, others=(card,))


def test_a_release_without_a_bound_leaves_no_total(config: ReleaseConfig):
    bare = make_card(config, FACTS, make_release(guarantee(unit="none", status="empirical")), AUDIT)
    made = make_card(config, FACTS, make_release(guarantee()), AUDIT, others=(bare,))
    assert made.total.epsilon is None
    assert "no total" in made.words.others


def test_unproven_others_make_the_total_unproven(config: ReleaseConfig):
    claim = Claim(1.0, 1e-5, "theorem 2")
    claimed = make_card(config, FACTS, make_release(guarantee(status="claimed", claim=claim)), AUDIT)
    made = make_card(config, FACTS, make_release(guarantee()), AUDIT, others=(claimed,))
    assert "not proven either" in made.words.others


def test_runs_that_were_paid_for_are_named(config: ReleaseConfig, card: Card):
    many = config.model_copy(update={"tuning_runs": 5})
    assert "5 runs" in make_card(many, FACTS, make_release(guarantee()), AUDIT).words.tuning
    assert "no choice among repeated runs" in card.words.tuning


def test_bundle_names_no_path_host_or_user(
    original: Bundle, config: ReleaseConfig, release: Release, monkeypatch: pytest.MonkeyPatch
):
    places = {str(Path.home()), str(Path.cwd()), str(original.folder), str(original.folder.parent)} - {"/"}
    for file in original.folder.iterdir():
        content = file.read_bytes()
        for place in places:
            assert place.encode() not in content, f"{place} in {file.name}"
        assert b"site-packages" not in content
        assert b'.py"' not in content
    for module, name in ((socket, "gethostname"), (platform, "node")):  # the machine's own may be an ordinary word
        monkeypatch.setattr(module, name, lambda: "ward-7-workstation")
    for name in ("LOGNAME", "USER", "HOSTNAME"):
        monkeypatch.setenv(name, "doctor-who-makes-it")
    assert getpass.getuser() == "doctor-who-makes-it"
    text = make_card(config, FACTS, release, AUDIT).to_json()
    assert "ward-7" not in text
    assert "doctor-who" not in text
