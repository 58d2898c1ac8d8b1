"""A release for people: the card counts and names people, nobody's identifier leaves, and verification agrees."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest

from airlock import data
from airlock.bundle import Vault
from airlock.bundle.gate import weigh
from airlock.bundle.verify import verify
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
