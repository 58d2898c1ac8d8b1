"""Attacks on features in the dossier: figures, sentences, the contact sheet, and what the gate says about them."""

from __future__ import annotations

import base64
import dataclasses
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from airlock.auditing.features.attack import sheet
from airlock.auditing.result import AttributeResult, Audit, Findings, IdentificationResult, ReconstructionResult
from airlock.bundle import Card, Dossier, verify
from airlock.bundle.dossier import make as make_dossier
from airlock.bundle.dossier import with_audit
from airlock.bundle.gate import weigh
from airlock.bundle.rendering.page import render_dossier
from airlock.methods.contract import Release
from tests.bundle.conftest import ATTACK, AUDIT

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
SHEET = sheet(ORIGINALS, {"inversion": ORIGINALS.flip(3)}, "Drawn pictures.")
FOUND = Findings((LINEAR, INVERTED), NAMED, (TOLD,), True)
LOOKED = dataclasses.replace(ATTACK, name="look-up of features", view="front", value=1.0, low=0.99, high=1.0)


@pytest.fixture(scope="module")
def attacked(card: Card, release: Release) -> Dossier:
    return make_dossier(card, release, Audit((LOOKED,), (), FOUND, SHEET))


def test_the_sentences_say_what_comes_back_beside_the_blind_guess(attacked: Dossier) -> None:
    said = " ".join(attacked.on_features)
    assert "knows the front end and 2,000 other records rebuilds pictures at 23.1 dB" in said
    assert "guessing without the features gives 12.0 dB" in said
    assert "no better than the 12.0 dB of guessing" in said
    assert "90.0% come back at 20 dB or more (88.0% to 92.0% with 95% confidence)" in said
    assert "With 4 known records" in said
    assert "21 of the 21 channels" in said
    assert "brighter than most: right 97.0% of the time" in said
    assert "nothing hides that a record was used" in said
    assert "not on those whose features left" in said


def test_a_front_end_that_was_not_named_is_not_said_to_be(attacked: Dossier) -> None:
    none = dataclasses.replace(NAMED, net_right=(False,) * 3, right=(0, 0, 0), low=0.0)
    made = with_audit(attacked, Audit((LOOKED,), (), dataclasses.replace(FOUND, identification=none)))
    assert "names 0 of the 21 channels" in " ".join(made.on_features)


def test_dossiers_without_features_say_nothing_about_them(dossier: Dossier) -> None:
    assert dossier.on_features == ()
    assert dossier.sheet is None
    assert dossier.audit.features is None


def test_the_page_shows_figures_and_sheet(attacked: Dossier) -> None:
    page = render_dossier(attacked)
    assert attacked.sheet is not None
    assert f"data:image/png;base64,{attacked.sheet.png}" in page
    for line in attacked.on_features:
        assert line in page.replace("&#39;", "'")
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(attacked.sheet.png))))
    assert picture.shape == (18, 28)
    assert (picture[:8, :8] == (ORIGINALS[0, 0] * 255).round().byte().numpy()).all()


def test_the_gate_names_what_features_give_away(attacked: Dossier, card: Card) -> None:
    careful = " ".join(weigh(card, (), attacked).caution)
    assert "'inversion' rebuilds pictures at 23.1 dB" in careful
    assert "'best linear guess'" not in careful
    assert "its secrecy is no protection" in careful
    assert "Features tell whether the picture is brighter" in careful


def test_a_sheet_in_a_bundle_does_not_belong(folder: Path, attacked: Dossier, reseal: Callable[[Path], None]) -> None:
    assert attacked.sheet is not None
    (folder / "sheet.png").write_bytes(base64.b64decode(attacked.sheet.png))
    reseal(folder)
    found = {check.name: check.says for check in verify(folder).checks if check.outcome == "failed"}
    assert found == {"files": "sheet.png does not belong to a bundle."}


def test_another_audit_replaces_the_sheet(attacked: Dossier) -> None:
    assert with_audit(attacked, AUDIT).sheet is None
    assert with_audit(attacked, AUDIT).audit.features is None
