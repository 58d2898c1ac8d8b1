"""The card: strict JSON under a published schema, with public figures only."""

from __future__ import annotations

import dataclasses
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

from airlock.accounting import Claim, compose, compute_epsilon, from_json
from airlock.bundle import Bundle, Card, card_schema, make_card
from airlock.bundle.card import check_budget
from airlock.config import ReleaseConfig
from airlock.errors import ConfigError
from airlock.mechanisms import Stream
from airlock.methods.contract import Release
from airlock.methods.interface import Interface
from tests.bundle.conftest import DAY, FACTS, guarantee, make_release, noise


def test_published_schema_is_the_generated_one():
    published = files("airlock.bundle").joinpath("card.schema.json").read_text(encoding="utf-8")
    assert published == json.dumps(card_schema(), indent=2, ensure_ascii=False, sort_keys=True) + "\n"
    jsonschema.Draft202012Validator.check_schema(card_schema())


def test_card_is_strict_json_under_its_schema(card: Card):
    table = json.loads(card.to_json(), parse_constant=pytest.fail)
    jsonschema.Draft202012Validator(card_schema()).validate(table)
    assert Card.model_validate(table) == card


@pytest.mark.parametrize(
    "claim",
    [
        {"epsilon": -1.0, "delta": 1e-5, "theorem": "theorem 2"},
        {"epsilon": 1.0, "delta": 1.0, "theorem": "theorem 2"},
        {"epsilon": 1.0, "delta": 1e-5, "theorem": "theorem 2", "proof": "none"},
        {"epsilon": math.inf, "delta": 1e-5, "theorem": "theorem 2"},
        {"epsilon": 1.0, "delta": 1e-5},
    ],
)
def test_values_of_other_rooms_are_checked_when_a_card_is_read(card: Card, claim: dict[str, object]) -> None:
    table = card.model_dump()
    with pytest.raises(ValueError, match="guarantee.claim"):
        Card.model_validate(table | {"guarantee": table["guarantee"] | {"claim": claim}})


def test_an_interface_is_checked_when_it_is_put_on_a_card(card: Card) -> None:
    free = Interface("label", (1, 8, 8), ("0", "1"), 0, "one answer", {})
    with pytest.raises(ValueError, match="interface.units"):
        Card.model_validate(dict(card) | {"network": None, "interface": free})


def test_infinite_epsilon_is_null(config: ReleaseConfig):
    promise = guarantee(unit="none", status="empirical", events=dpa.NonPrivateDpEvent())
    assert math.isinf(promise.epsilon)
    made = make_card(config, FACTS, make_release(promise), noise())
    assert json.loads(made.to_json())["guarantee"]["epsilon"] is None


def test_card_has_what_a_reviewer_asks_for(card: Card, release: Release):
    table = json.loads(card.to_json())
    assert table["created"] == DAY.isoformat()
    parts = table["guarantee"].pop("parts")
    assert table["guarantee"] == json.loads(json.dumps(release.guarantee.to_dict()))
    assert parts["private"]["epsilon"] == table["guarantee"]["epsilon"]
    accuracy = table["utility"]["figures"]["accuracy"]
    assert accuracy["low"] < accuracy["value"] < accuracy["high"]
    assert table["audit"] == {"share": 0.0, "attacks": []}
    assert table["decision"] == {"decision": None, "name": "", "date": "", "remarks": ""}
    assert "the guarantee is about test records too" in table["words"]["utility"]
    assert "in the dossier, which stays" in table["words"]["audit"]


def test_no_part_pays_more_than_is_stated(card: Card):
    parts, stated = card.guarantee.parts, card.guarantee.epsilon
    assert stated is not None
    assert card.utility is not None
    assert parts.test.epsilon is not None
    assert 0.99 * stated < parts.test.epsilon <= stated
    assert 0.99 * stated < card.utility.counts.epsilon <= stated
    assert parts.holdout.epsilon == 0


def test_an_unproven_release_charges_test_records_what_was_asked_for(config: ReleaseConfig):
    made = make_card(config, FACTS, make_release(guarantee(status="claimed", noise=0.3)), noise())
    assert made.utility is not None
    assert 0.99 * config.epsilon < made.utility.counts.epsilon <= config.epsilon
    assert "guarantee is about test records" not in made.words.utility


def test_every_declared_run_has_its_part_of_the_test_records_budget(config: ReleaseConfig):
    many = make_card(config.model_copy(update={"tuning_runs": 5}), FACTS, make_release(guarantee()), noise())
    assert many.utility is not None
    stated = many.guarantee.epsilon
    assert stated is not None
    assert 0.19 * stated < many.utility.counts.epsilon <= 0.21 * stated
    assert many.guarantee.parts.test.events["count"] == 5


def test_the_noise_is_drawn_anew_for_every_card(config: ReleaseConfig, release: Release):
    counts = [make_card(config, FACTS, release, Stream.from_seed(seed)).utility for seed in (0, 0, 1)]
    assert counts[0] == counts[1] != counts[2]


def test_records_that_were_declared_public_are_excepted_in_the_first_lines(config: ReleaseConfig):
    split = config.split.model_copy(update={"public": 0.25})
    some = make_card(config.model_copy(update={"split": split}), FACTS, make_release(guarantee()), noise())
    assert "It is not about the 25% of the records that the holder declared public." in some.headline
    unproven = make_release(guarantee(status="empirical"))
    assert "public" not in make_card(config.model_copy(update={"split": split}), FACTS, unproven, noise()).headline


def test_a_promise_about_replaced_records_is_refused_before_any_is_read(config: ReleaseConfig, release: Release):
    check_budget(config, release.plan)
    replaced = dataclasses.replace(release.plan, guarantee=guarantee(relation="replace-one"))
    with pytest.raises(ConfigError, match="added or removed"):
        check_budget(config, replaced)
    check_budget(config, dataclasses.replace(replaced, guarantee=guarantee(relation="replace-one", status="empirical")))
    with pytest.raises(ConfigError, match="tuning_runs"):
        check_budget(config.model_copy(update={"tuning_runs": 10**6}), release.plan)


def test_a_total_holds_for_whoever_is_private_here_and_a_test_record_there(config: ReleaseConfig):
    """Counts with pure noise cost more in a composition than a Gaussian of the same ε and δ does."""
    first = make_card(config, FACTS, make_release(guarantee(6.0)), noise())
    second = make_card(config, FACTS, make_release(guarantee(6.0)), noise(), others=(first,))
    total = second.total.epsilon
    assert total is not None
    private, test = (from_json(events) for events in (first.guarantee.events, first.guarantee.parts.test.events))
    for way in ([private, private], [private, test], [test, test]):
        assert compute_epsilon(compose(way), 1e-4).epsilon <= total + 1e-9
    assert total > compute_epsilon(compose([private, private]), 1e-4).epsilon
    many = [first.model_copy(update={"release_id": f"{number:032x}"}) for number in range(4)]
    assert (make_card(config, FACTS, make_release(guarantee(6.0)), noise(), others=many).total.epsilon or 0) > total


def test_every_card_has_its_own_id(config: ReleaseConfig, release: Release):
    ids = {make_card(config, FACTS, release, noise()).release_id for _ in range(3)}
    assert len(ids) == 3


def test_total_is_the_epsilon_of_all_events(config: ReleaseConfig, card: Card):
    promise = guarantee(2.0)
    made = make_card(config, FACTS, make_release(promise), noise(), others=(card,))
    own, other = (one.guarantee.parts for one in (made, card))
    ways = [(a.events, b.events) for a in (own.private, own.test) for b in (other.private, other.test)]
    both = max(compute_epsilon(compose([from_json(one) for one in way]), 1e-4).epsilon for way in ways)
    assert made.total.epsilon == pytest.approx(both)
    assert both > compute_epsilon(compose([promise.events, dpa.GaussianDpEvent(1.5)]), 1e-4).epsilon
    assert max(promise.epsilon, card.guarantee.epsilon or 0) < both
    assert [other.release_id for other in made.total.releases] == [card.release_id]
    assert f"{math.ceil(both * 100) / 100:.2f}" in made.words.others


def test_releases_named_by_other_cards_count_once(config: ReleaseConfig, card: Card):
    second = make_card(config, FACTS, make_release(guarantee(2.0)), noise(), others=(card,))
    third = make_card(config, FACTS, make_release(guarantee(3.0)), noise(), others=(second, card))
    assert {other.release_id for other in third.total.releases} == {card.release_id, second.release_id}


def test_another_relation_has_no_total(config: ReleaseConfig, card: Card):
    with pytest.raises(ConfigError, match="no common total"):
        make_card(config, FACTS, make_release(guarantee(relation="replace-one")), noise(), others=(card,))


def test_a_release_without_a_bound_leaves_no_total(config: ReleaseConfig):
    bare = make_card(config, FACTS, make_release(guarantee(unit="none", status="empirical")), noise())
    made = make_card(config, FACTS, make_release(guarantee()), noise(), others=(bare,))
    assert made.total.epsilon is None
    assert "no total" in made.words.others


def test_unproven_others_make_the_total_unproven(config: ReleaseConfig):
    claim = Claim(1.0, 1e-5, "theorem 2")
    claimed = make_card(config, FACTS, make_release(guarantee(status="claimed", claim=claim)), noise())
    made = make_card(config, FACTS, make_release(guarantee()), noise(), others=(claimed,))
    assert "not proven either" in made.words.others


def test_runs_that_were_paid_for_are_named(config: ReleaseConfig, card: Card):
    many = config.model_copy(update={"tuning_runs": 5})
    assert "5 runs" in make_card(many, FACTS, make_release(guarantee()), noise()).words.tuning
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
    text = make_card(config, FACTS, release, noise()).to_json()
    assert "ward-7" not in text
    assert "doctor-who" not in text
