"""What the holder declares about data and release is on the card as it is, and nothing else can be put there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import airlock
from airlock.bundle.policy import Evidence, Policy, judge
from airlock.bundle.reports import dpia
from airlock.config import from_table
from airlock.errors import ConfigError
from airlock.pipeline import Outcome

KEYS: dict[str, Any] = {
    "channel": "weights",
    "method": "gaussian",
    "data": "digits",
    "epsilon": 3.0,
    "delta": 1e-5,
    "net": "linear",
    "settings": {"steps": 2},
}
ABOUT = {"whose": "patients of <b>one</b> ward", "purpose": "triage", "recipient": "Ann | Co."}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    folder = tmp_path_factory.mktemp("about")
    return airlock.release(KEYS, folder / "one", vault=folder / "vault", about=ABOUT)


def test_what_is_declared_is_on_the_card_and_what_is_not_is_said(made: Outcome) -> None:
    card, folder = made.bundle.card, made.bundle.folder
    assert card.about.purpose == "triage"
    assert card.about.missing == ("fields", "controller", "retention")
    page, readme = (folder / "card.html").read_text(), (folder / "README.md").read_text()
    assert "patients of &lt;b&gt;one&lt;/b&gt; ward" in page
    assert "not declared" in page
    assert "triage" in readme
    assert airlock.verify_bundle(folder).ok
    assert made.dossier.about == card.about


def test_a_changed_declaration_does_not_verify(made: Outcome, tmp_path: Path) -> None:
    import shutil

    for name, changed in (("config.toml", "triage"), ("card.json", "triage")):
        folder = Path(shutil.copytree(made.bundle.folder, tmp_path / name))
        text = (folder / name).read_text()
        assert changed in text
        (folder / name).write_text(text.replace(changed, "insurance"))
        assert not airlock.verify_bundle(folder).ok


def test_a_policy_may_require_declarations(made: Outcome) -> None:
    rules = {"data_collection_exposure": {"declared": ["purpose", "controller"]}}
    found = judge(Evidence(made.bundle.card, None), Policy.model_validate(rules))
    (one,) = [finding for finding in found if finding.rule == "data_collection_exposure.declared"]
    assert "who answers for the data" in one.why


def test_an_assessment_quotes_it(made: Outcome) -> None:
    report = json.dumps([str(chapter) for chapter in dpia.make(made.bundle.card).chapters])
    assert "triage" in report
    assert "Ann | Co." in report


@pytest.mark.parametrize("text", ["two\nlines", "right\u202eleft", "a\u0000b", "x" * 501])
def test_only_a_line_of_plain_text_is_taken(text: str) -> None:
    with pytest.raises(ConfigError, match="about"):
        from_table({**KEYS, "about": {"purpose": text}})


def test_there_is_one_recipient() -> None:
    with pytest.raises(ConfigError, match="two recipients"):
        from_table({**KEYS, "recipient": "Bob", "about": {"recipient": "Ann"}})
    assert from_table({**KEYS, "recipient": "Bob"}).receiver == "Bob"
    assert from_table({**KEYS, "about": {"recipient": "Ann"}}).receiver == "Ann"
