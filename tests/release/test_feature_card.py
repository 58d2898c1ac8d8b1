"""Attacks on features on the card: figures, sentences, the contact sheet, and what verification says about them."""

from __future__ import annotations

import base64
import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from airlock.audit.findings import AttributeResult, Findings, IdentificationResult, ReconstructionResult
from airlock.audit.result import Audit
from airlock.audit.sheet import png, sheet
from airlock.channels.contract import Release
from airlock.config import ReleaseConfig
from airlock.release import Bundle, Card, make_card, verify, write
from airlock.release.card import with_audit
from airlock.release.dossier import make as make_dossier
from airlock.release.gate import weigh
from tests.release.conftest import ATTACK, AUDIT, FACTS

INVERTED = ReconstructionResult(
    name="inversion", question="Can it be rebuilt?", view="front", images=1000, known=2000, psnr=23.14, low=22.9,
    high=23.4, middle=23.0, best_tenth=27.0, ssim=0.71, blind="the mean picture", blind_psnr=12.02, blind_ssim=0.1,
    gain=11.1, gain_low=10.9, gain_high=11.4, smallest_effect=0.2, threshold=20.0, share=0.9, share_low=0.88,
    share_high=0.92, blind_share=0.01, confidence=0.95,
)  # fmt: skip
LINEAR = dataclasses.replace(INVERTED, name="best linear guess", view="features", psnr=12.1, gain_low=-0.1, share=0.02)
NAMED = IdentificationResult(
    candidates=12, known=(1, 2, 4), net_right=(False, True, True), right=(0, 15, 21), live=(19, 21, 21), low=0.84,
    high=1.0, chance=0.01, confidence=0.95,
)  # fmt: skip
TOLD = AttributeResult("the picture is brighter than most", 1000, 2000, 0.97, 0.96, 0.98, 0.55, 0.58, 0.95)
ORIGINALS = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
FOUND = Findings(
    (LINEAR, INVERTED), NAMED, (TOLD,), True, sheet(ORIGINALS, {"inversion": ORIGINALS.flip(3)}, "Drawn pictures.")
)
LOOKED = dataclasses.replace(ATTACK, name="look-up of features", view="front", value=1.0, low=0.99, high=1.0)


@pytest.fixture(scope="module")
def attacked(config: ReleaseConfig, release: Release) -> Card:
    return make_card(config, FACTS, release, Audit((LOOKED,), (), FOUND))


@pytest.fixture
def made(
    config: ReleaseConfig, release: Release, attacked: Card, original: Bundle, tmp_path: Path, fast_export: None
) -> Path:
    return write(tmp_path / "with-sheet", config, release, attacked).folder


def test_the_sentences_say_what_comes_back_beside_the_blind_guess(attacked: Card) -> None:
    said = " ".join(attacked.words.attacks_on_features)
    assert "knows the front end and 2,000 other records rebuilds pictures at 23.1 dB" in said
    assert "guessing without the features gives 12.0 dB" in said
    assert "no better than the 12.0 dB of guessing" in said
    assert "90.0% come back at 20 dB or more (88.0% to 92.0% with 95% confidence)" in said
    assert "With 4 known records" in said
    assert "21 of the 21 channels" in said
    assert "brighter than most: right 97.0% of the time" in said
    assert "nothing hides that a record was used" in said
    assert "not on those whose features left" in said


def test_a_front_end_that_was_not_named_is_not_said_to_be(attacked: Card) -> None:
    none = dataclasses.replace(NAMED, net_right=(False,) * 3, right=(0, 0, 0), low=0.0)
    card = with_audit(attacked, Audit((LOOKED,), (), dataclasses.replace(FOUND, identification=none)))
    assert "names 0 of the 21 channels" in " ".join(card.words.attacks_on_features)


def test_cards_without_features_say_nothing_about_them(card: Card) -> None:
    assert card.words.attacks_on_features == ()
    assert card.sheet is None
    assert card.audit.features is None


def test_page_and_readme_show_figures_and_sheet(made: Path, attacked: Card) -> None:
    page, readme = (made / "card.html").read_text(), (made / "README.md").read_text()
    assert attacked.sheet is not None
    assert f"data:image/png;base64,{attacked.sheet.png}" in page
    for line in attacked.words.attacks_on_features:
        assert line in page.replace("&#39;", "'")
    assert "![In rows, from above: original, inversion](sheet.png)" in readme
    assert "23.1 dB" in readme
    picture = np.asarray(Image.open(made / "sheet.png"))
    assert picture.shape == (18, 28)
    assert (picture[:8, :8] == (ORIGINALS[0, 0] * 255).round().byte().numpy()).all()


def test_it_verifies_and_the_gate_names_what_features_give_away(made: Path, attacked: Card, release: Release) -> None:
    checked = verify(made)
    assert [check.says for check in checked.checks if check.outcome == "failed"] == []
    assert "sheet" in {check.name for check in checked.checks}
    careful = " ".join(weigh(attacked, (), make_dossier(attacked, release, Audit((LOOKED,), (), FOUND))).caution)
    assert "'inversion' rebuilds pictures at 23.1 dB" in careful
    assert "'best linear guess'" not in careful
    assert "its secrecy is no protection" in careful
    assert "Features tell whether the picture is brighter" in careful


def failed(folder: Path) -> set[str]:
    return {check.name for check in verify(folder).checks if check.outcome == "failed"}


def test_another_sheet_is_found(made: Path, reseal: Callable[[Path], None]) -> None:
    (made / "sheet.png").write_bytes(png(1 - ORIGINALS[None]))
    reseal(made)
    assert failed(made) == {"sheet"}
    (made / "sheet.png").unlink()
    reseal(made)
    assert "sheet" in failed(made)


def test_a_sheet_without_a_card_of_it_is_found(folder: Path, made: Path, reseal: Callable[[Path], None]) -> None:
    shutil.copy(made / "sheet.png", folder / "sheet.png")
    reseal(folder)
    assert failed(folder) == {"sheet"}


@pytest.mark.parametrize("kind", ["text", "tail", "no picture"])
def test_a_sheet_that_holds_more_than_a_picture_is_found(
    kind: str, config: ReleaseConfig, release: Release, attacked: Card, tmp_path: Path, fast_export: None
) -> None:
    file = tmp_path / "x.png"
    hidden = PngInfo()
    hidden.add_text("name", "of a patient")
    Image.new("L", (4, 4)).save(file, pnginfo=hidden if kind == "text" else None)
    content = file.read_bytes() + b"tail" if kind == "tail" else file.read_bytes()
    content = b"of a patient" if kind == "no picture" else content
    assert attacked.sheet is not None
    smuggled = attacked.sheet.model_copy(update={"png": base64.b64encode(content).decode()})
    write(tmp_path / "bundle", config, release, attacked.model_copy(update={"sheet": smuggled}))
    assert failed(tmp_path / "bundle") == {"sheet"}


def test_an_audit_of_format_four_still_verifies(folder: Path, reseal: Callable[[Path], None]) -> None:
    """Older bundles lack the optional fields in card.json and audit.json."""
    for name in ("card.json", "audit.json"):
        table = json.loads((folder / name).read_text())
        (table.get("audit", table)).pop("features")
        table.pop("sheet", None)
        if name == "card.json":
            table["words"].pop("attacks_on_features")
        (folder / name).write_text(json.dumps(table, indent=2, ensure_ascii=False) + "\n")
    reseal(folder)
    assert failed(folder) == set()


def test_another_audit_replaces_the_sheet(attacked: Card) -> None:
    assert with_audit(attacked, AUDIT).sheet is None
    assert with_audit(attacked, AUDIT).audit.features is None
