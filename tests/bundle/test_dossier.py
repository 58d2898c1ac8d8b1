"""The dossier: everything exact, kept in the vault, and never in a bundle."""

from __future__ import annotations

import dataclasses
import json
import stat
from importlib.resources import files
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from airlock.auditing import Audit
from airlock.bundle import Card, Dossier, Vault, dossier, dossier_schema, make_card
from airlock.bundle.dossier import CourtFinding
from airlock.bundle.rendering.page import dossier_place, keep_dossier, render_dossier
from airlock.bundle.schema import Decision
from airlock.config import ReleaseConfig
from airlock.errors import FormatError
from airlock.methods.contract import Release
from airlock.training.outcomes import Outcomes
from tests.bundle.conftest import ATTACK, AUDIT, FACTS, INSIDE, guarantee, make_release, noise

TRIAL = CourtFinding(
    what="This very configuration.", claim_epsilon=2.37, claim_delta=1e-4, refuted=True, lower_bound=3.1,
    would_show=2.9, pairs=400, seconds=12.0, sentence="Refuted: ε is above 3.10.",
)  # fmt: skip


@pytest.fixture(scope="module")
def made(card: Card, release: Release) -> Dossier:
    told = dataclasses.replace(release, inside={"teacher_accuracy": 0.98})
    return dossier.make(card, told, AUDIT, remarks=("Row 7 was left out.",), followed="the comparison of March")


def test_published_schema_is_the_generated_one(made: Dossier):
    published = files("airlock.bundle").joinpath("dossier.schema.json").read_text(encoding="utf-8")
    assert published == json.dumps(dossier_schema(), indent=2, ensure_ascii=False, sort_keys=True) + "\n"
    table = json.loads(made.to_json(), parse_constant=pytest.fail)
    jsonschema.Draft202012Validator(dossier_schema()).validate(table)
    assert Dossier.model_validate(table) == made


def test_it_has_what_the_reviewer_inside_asks_for(made: Dossier, card: Card):
    assert (made.release_id, made.says) == (card.release_id, card.headline)
    assert (made.utility.correct, made.utility.records) == (331, 360)
    accuracy = made.utility.figures.accuracy
    assert accuracy.low < accuracy.value == 331 / 360 < accuracy.high
    assert len(made.utility.figures.recalls) == 10
    assert made.utility.figures.calibration_error is not None
    assert [attack.name for attack in made.audit.attacks] == ["loss threshold", "gradient norm"]
    assert made.audit.attacks[0].per_class
    assert made.audit.attacks[0].stability is not None
    assert made.remarks == ("Row 7 was left out.",)
    assert made.inside == {"teacher_accuracy": 0.98}
    assert made.decision.decision is None


def test_the_confusion_matrix_counts_every_record_once():
    labels, named = np.array([0, 0, 1, 2, 2]), np.array([0, 2, 1, -1, 2])
    found = dossier.exact(Outcomes(labels, named), 3)
    assert found.confusion == ((1, 0, 1, 0), (0, 1, 0, 0), (0, 0, 1, 1))
    assert (found.correct, found.records) == (3, 5)
    nobody = dossier.exact(Outcomes(labels[:0], named[:0]), 3)
    assert (nobody.figures.accuracy.low, nobody.figures.accuracy.high) == (0.0, 1.0)
    strange = dossier.exact(Outcomes(np.array([7, 1]), np.array([7, 1])), 3)  # a label that is no class
    assert strange.confusion == ((0, 0, 0, 0), (0, 1, 0, 0), (0, 0, 0, 0))


def test_an_attack_that_refutes_epsilon_is_said_first(config: ReleaseConfig, release: Release):
    strong = Audit((dataclasses.replace(ATTACK, epsilon_lower_bound=2.5), INSIDE), ())
    made = dossier.make(make_card(config, FACTS, release, noise()), release, strong)
    assert made.verdict == "doubt"
    assert made.headline.startswith("IN DOUBT: an attack measured ε of at least 2.50")
    assert "In doubt" in render_dossier(made)


def test_the_court_is_added_later_and_what_it_refutes_is_said_first(made: Dossier):
    stands = TRIAL.model_copy(update={"refuted": False, "lower_bound": 0.4, "sentence": "Stands."})
    assert dossier.with_court(made, [stands]).headline == made.says
    signed = made.model_copy(update={"decision": Decision(decision="approve", name="A")})
    tried = dossier.with_court(dossier.with_court(signed, [stands]), [TRIAL])
    assert tried.court == (stands, TRIAL)
    assert tried.decision.decision is None  # it was about another dossier
    assert tried.verdict == "doubt"
    assert tried.headline.startswith("IN DOUBT: on made-up records the court measured ε of at least 3.10")
    assert "Refuted: ε is above 3.10." in render_dossier(tried)


def test_an_unproven_release_stays_unproven_whatever_the_court_says(config: ReleaseConfig):
    release = make_release(guarantee(status="empirical"))
    made = dossier.make(make_card(config, FACTS, release, noise()), release, AUDIT)
    assert dossier.with_court(made, [TRIAL]).verdict == "unproven"


def test_newer_ones_are_kept_beside_older_ones(vault: Vault, made: Dossier):
    page = keep_dossier(vault, made)
    assert page == dossier_place(vault, made.release_id)
    assert dossier.read(vault, made.release_id) == made
    second = dossier.with_audit(made, Audit((ATTACK,), ("Nothing else.",)))
    third = dossier.with_court(second, [TRIAL])
    for one in (second, third):
        keep_dossier(vault, one)
    folder = page.parent
    assert dossier.read(vault, made.release_id) == third
    older = [Dossier.model_validate_json((folder / f"dossier-{n}.json").read_text()) for n in (1, 2)]
    assert older == [made, second]
    names = {path.name for path in folder.iterdir()}
    assert names == {"index.json", *(f"dossier{n}.{kind}" for n in ("", "-1", "-2") for kind in ("json", "html"))}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in folder.iterdir())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_vault_knows_every_dossier_it_ever_held(vault: Vault, made: Dossier):
    import hashlib

    page = keep_dossier(vault, made)
    sha = hashlib.sha256(page.read_bytes()).hexdigest()
    page.unlink()
    assert sha in vault.hashes()


def test_none_in_this_vault_and_one_that_was_changed(vault: Vault, made: Dossier):
    assert dossier.find(vault, made.release_id) is None
    with pytest.raises(FormatError, match="--vault"):
        dossier.read(vault, made.release_id)
    page = keep_dossier(vault, made)
    page.with_suffix(".json").write_text('{"dossier_version": 1}')
    with pytest.raises(FormatError, match="airlock audit"):
        dossier.find(vault, made.release_id)


def test_the_page_says_first_that_it_stays_and_loads_nothing(made: Dossier, tmp_path: Path):
    page = render_dossier(made)
    body = page.split("<body", 1)[1]
    assert body.index("Stays inside") < body.index(made.headline.partition(":")[0])
    assert "<script" not in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    for words in ("Row 7 was left out.", "the comparison of March", "Teacher accuracy", "loss threshold", "331"):
        assert words in page, words
    evil = made.model_copy(update={"name": "<script>alert(1)</script>"})
    assert "<script" not in render_dossier(evil)
