"""A release for people: the card counts and names people, nobody's identifier leaves, and verification agrees."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from airlock import data
from airlock.bundle import Vault
from airlock.bundle.bundle import config_text
from airlock.bundle.gate import weigh
from airlock.bundle.rendering.page import render_dossier, render_html
from airlock.bundle.reports import make
from airlock.bundle.reports.writing import to_markdown
from airlock.bundle.verify import verify
from airlock.config import from_table
from airlock.errors import ConfigError
from airlock.pipeline import Outcome, audit_bundle, make_release, plan_release
from tests.bundle.forging import forge
from tests.visits import config, identifiers, write

pytestmark = pytest.mark.filterwarnings("ignore")
COUNTED = "a person as a whole"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("visits"))


@pytest.fixture(scope="module")
def made(table: Path) -> Outcome:
    asked = config(table, attack_share=0.2, split={"holdout": 0.4})
    return make_release(asked, table.parent / "people", vault=table.parent / "vault")


@pytest.fixture(scope="module")
def of_records(table: Path) -> Outcome:
    return make_release(config(table, unit="record"), table.parent / "records", vault=table.parent / "vault")


def test_the_bundle_verifies_and_its_words_are_about_people(made: Outcome, table: Path) -> None:
    verdict = verify(made.bundle.folder, Vault.open(table.parent / "vault"))
    assert all(check.outcome == "ok" for check in verdict.checks), verdict
    card = made.bundle.card
    assert (card.guarantee.unit, card.data.people, card.data.grouped) == ("person", 300, False)
    assert "any one person's records were used" in card.headline
    said = " ".join((*card.words.promise, card.words.utility))
    assert "It covers all records of a person together" in said
    assert "test people were asked about, by one record each" in said
    assert "one record. Where" not in said
    for name in ("card.html", "README.md"):
        page = (made.bundle.folder / name).read_text()
        assert "one person, with all records" in page
        assert "any one record" not in page


def test_the_test_part_is_one_record_of_each_person(made: Outcome, table: Path) -> None:
    split = data.load(config(table, split={"holdout": 0.4}))
    assert made.release.utility.records == split.test.units == len(split.test)
    assert made.dossier.utility.records == split.test.units


def test_paid_attacks_count_people(made: Outcome) -> None:
    assert made.bundle.card.audit.attacks
    for attack in made.bundle.card.audit.attacks:
        assert max(attack.members, attack.non_members) < 300


def test_an_attack_on_people_is_said_to_tell_people_apart(made: Outcome) -> None:
    found, page = weigh(made.bundle.card, (), made.dossier), render_html(made.bundle.card)
    said = [one for one in (*found.caution, *found.release) if "one used and one not" in one]
    assert len(said) == len(made.dossier.audit.attacks) > 0
    assert all("of two people, one used and one not" in one for one in said)
    for one in (page, render_dossier(made.dossier)):
        assert "of two people, one used and one not" in one
        assert "of two records" not in one


def test_neither_identifiers_nor_the_name_of_their_column_leave(made: Outcome, of_records: Outcome) -> None:
    for outcome in (made, of_records):
        for file in outcome.bundle.folder.iterdir():
            content = file.read_bytes()
            assert b"patient_id" not in content, file
            assert not any(name.encode() in content for name in identifiers()), file
            assert b"QX-" not in content, file
    own = tomllib.loads((made.bundle.folder / "config.toml").read_text())
    assert own["data"]["person"] == "person"
    assert own["data"]["people"] == 300


def test_whose_public_records_are_leaves_under_no_name_either(pictures: Path, tmp_path: Path) -> None:
    """The public set has the same column, most likely."""
    shutil.copy(pictures, tmp_path / "others.npz")
    public = {"source": str(tmp_path / "others.npz"), "classes": 10, "person": "patient"}
    data = {"source": str(pictures), "classes": list("0123456789"), "records": 1200, "people": 400, "person": "patient"}
    table = {"channel": "features", "method": "noised", "epsilon": 8.0, "delta": 1e-3, "data": data}
    asked = from_table({**table, "settings": {"layers": 1, "public": public}})
    own = tomllib.loads(config_text(asked, plan_release(asked), "none"))
    assert own["settings"]["public"]["person"] == own["data"]["person"] == "person"


def test_a_release_for_records_of_people_says_so_first(of_records: Outcome, table: Path) -> None:
    card = of_records.bundle.card
    assert (card.guarantee.unit, card.data.people, card.data.grouped) == ("record", None, True)
    assert "It is about ONE RECORD" in card.headline
    assert COUNTED in card.guarantee.assumptions[0]
    assert any(COUNTED in line for line in weigh(card, ()).caution)
    verdict = verify(of_records.bundle.folder, Vault.open(table.parent / "vault"))
    assert all(check.outcome == "ok" for check in verdict.checks), verdict
    assert plan_release(config(table, unit="record")).guarantee.assumptions[0] == card.guarantee.assumptions[0]


@pytest.mark.parametrize(
    ("card", "own", "check"),
    [
        ({"data.people": 3000}, {}, "plan"),
        ({"data.people": 3000}, {"data.people": 3000}, "plan"),
        ({"guarantee.unit": "record"}, {}, "config"),
        ({"guarantee.unit": "record", "data.people": None}, {}, "plan"),
        ({"data.grouped": True}, {}, "config"),
        ({}, {"data.person": "patient_id"}, "config"),
        ({}, {"settings.public": {"source": "others", "person": "patient_id"}}, "config"),
    ],
)
def test_a_forged_number_of_people_or_unit_is_found(
    made: Outcome, tmp_path: Path, card: dict[str, object], own: dict[str, object], check: str
) -> None:
    """Fewer people than there are would have needed more noise, which the plan shows."""
    folder = tmp_path / "forged"
    shutil.copytree(made.bundle.folder, folder)
    (folder / "signature.json").unlink(missing_ok=True)
    found = {one.name: one.outcome for one in verify(forge(folder, card, own)).checks}
    assert found[check] == "failed", found


def test_an_audit_needs_the_column_and_attacks_people(made: Outcome, table: Path) -> None:
    vault, chosen = table.parent / "vault", {"data.source": str(table), "data.person": "patient_id"}
    from airlock.auditing import AuditSettings

    done = audit_bundle(
        made.bundle.folder, AuditSettings(shadows=4, epochs=1, queries=1), overrides=chosen, vault=vault
    )
    for attack in done.dossier.audit.attacks:
        assert attack.members + attack.non_members < 300
    assert len(done.dossier.audit.attacks) > 4
    with pytest.raises(ConfigError, match=r"--set data\.person"):
        audit_bundle(made.bundle.folder, overrides={"data.source": str(table)}, vault=vault)
    with pytest.raises(ConfigError, match="as the protected unit"):
        audit_bundle(made.bundle.folder, overrides={**chosen, "unit": "record"}, vault=vault)


# Features.


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits of 400 people with one to five each, or fifty."""
    folder, known = tmp_path_factory.mktemp("pictures"), load_digits()
    whose = [f"QX-{who:05}" for who in range(400) for _ in range(50 if who % 50 == 7 else 1 + who % 5)][:1797]
    x = (known.images[: len(whose), None] * 15).astype(np.uint8)
    np.savez(folder / "digits.npz", x=x, y=known.target[: len(whose)], patient=np.array(whose))
    return folder / "digits.npz"


@pytest.fixture(scope="module")
def features(pictures: Path) -> Outcome:
    data = {"source": str(pictures), "name": "pictures", "classes": list("0123456789"), "records": 1200, "people": 400}
    settings, parts = {"layers": 1, "project": 10, "format": "npz"}, {"public": 0.3, "holdout": 0.3}
    table = {"channel": "features", "method": "noised", "epsilon": 8.0, "delta": 1e-3, "split": parts}
    asked = from_table({**table, "data": {**data, "person": "patient", "records_per_person": 2}, "settings": settings})
    return make_release(asked, pictures.parent / "bundle", vault=pictures.parent / "vault")


def test_features_of_people_verify_and_their_card_is_about_people(features: Outcome, pictures: Path) -> None:
    verdict = verify(features.bundle.folder, Vault.open(pictures.parent / "vault"))
    assert all(check.outcome in ("ok", "skipped") for check in verdict.checks), verdict
    card = features.bundle.card
    assert (card.guarantee.unit, card.data.people) == ("person", 400)
    assert card.features is not None
    assert card.features.records == 2 * 80  # two rows of each of a fifth of 400
    said = " ".join((card.headline, *card.words.promise))
    assert "It is about all of a person's records but their labels" in said
    assert "It covers all records of a person together" in said
    assert "At most 2 of these rows are one person's" in " ".join(card.guarantee.assumptions)
    for file in features.bundle.folder.iterdir():
        assert b"QX-" not in file.read_bytes(), file
        assert b"patient" not in file.read_bytes(), file


def test_attacks_on_features_of_people_are_on_people(features: Outcome, pictures: Path) -> None:
    chosen = {"data.source": str(pictures), "data.person": "patient"}
    done = audit_bundle(features.bundle.folder, overrides=chosen, vault=pictures.parent / "vault", seed=3)
    (looked,) = done.dossier.audit.attacks
    found = done.dossier.audit.features
    assert found is not None
    assert looked.members == looked.non_members == found.attributes[0].records < 120
    assert {one.images for one in found.reconstructions} == {looked.members}


def test_reports_count_people_where_people_are_protected(made: Outcome, of_records: Outcome) -> None:
    for kind in ("dpia", "nist"):
        said = to_markdown(make(kind, made.bundle.card))
        assert "About 300 people, with about 1,000 records in all." in said
        assert "card:data.people" in said
        assert "About 1,000 records." not in said
        of_one = to_markdown(make(kind, of_records.bundle.card))
        assert "About 1,000 records, of which one person may have several." in of_one
    assert "whether a person's records were used" in to_markdown(make("dpia", made.bundle.card))
    sheet = to_markdown(make("nist", made.bundle.card))
    assert f"δ times the number of people is {300 * made.bundle.card.guarantee.delta:.3g}" in sheet
    assert "0.0% of the people were declared public" in sheet
    assert "δ times the number of records" in to_markdown(make("nist", of_records.bundle.card))
