"""How strong a guarantee is: one table, by what an attacker gains, used wherever strength is told."""

from __future__ import annotations

import dataclasses
import math
from typing import get_args

import pytest

from airlock.bundle import Card, Dossier, weigh
from airlock.bundle.card import headline
from airlock.bundle.policy import Policy
from airlock.bundle.rendering.formatting import best_guess
from airlock.bundle.rendering.page import MARKS, render_dossier, render_html, render_readme
from airlock.bundle.rendering.strength import LEVELS, STRENGTHS, Level, step, strength
from airlock.bundle.rendering.text import CLEAR_LABELS, SAYS, mark, uncovered
from airlock.config import ReleaseConfig
from tests.bundle.rendering.test_text import make


@pytest.mark.parametrize(
    ("epsilon", "delta", "level"),
    [
        (0.1, 1e-5, "strong"), (1.0, 1e-5, "strong"), (2.0, 1e-5, "moderate"), (3.0, 1e-5, "weak"),
        (4.5, 1e-5, "weak"), (8.0, 1e-5, "very-weak"), (100.0, 1e-5, "very-weak"), (math.inf, 1e-5, "very-weak"),
        (0.1, 0.6, "moderate"), (0.1, 0.999, "very-weak"),
    ],
)  # fmt: skip
def test_strength_is_what_an_attacker_gains_delta_included(epsilon: float, delta: float, level: Level) -> None:
    found = strength(epsilon, delta)
    assert found.level == level
    assert best_guess(epsilon, delta) <= found.guess


def test_the_table_goes_from_strong_to_weak_and_every_list_has_its_levels() -> None:
    assert [one.guess for one in STRENGTHS] == sorted({one.guess for one in STRENGTHS})
    assert STRENGTHS[-1].guess == 1.0
    assert get_args(Level) == LEVELS == tuple(SAYS)
    assert [step(level) for level in LEVELS] == [1, 2, 3, 4]
    assert [one.tone for one in STRENGTHS].count("good") == 1


@pytest.fixture
def at_eight(config: ReleaseConfig) -> Card:
    """A flawless proof of very little."""
    card = make(config, noise=0.55)
    assert 7 < (card.guarantee.epsilon or 0) < 9
    return card


def test_a_proof_of_little_is_proved_and_not_green(at_eight: Card) -> None:
    assert (at_eight.verdict, at_eight.mark) == ("proven", "weak")
    page = render_html(at_eight)
    assert '<body class="weak">' in page
    assert "<strong>Yes</strong>: it holds against every attack" in page
    assert "<strong>Very weak</strong>" in page
    for told in (page, render_readme(at_eight)):
        assert "moderate:" not in told
        assert "Is it proved?" in told
        assert "How strong is it?" in told
        assert "the best guess is practically certain" in told
    found = weigh(at_eight, ())
    assert any("the protection is very weak" in one for one in found.caution)
    assert not any("strong" in one for one in found.release)


def test_a_policy_asks_for_strength_by_the_same_table(at_eight: Card, config: ReleaseConfig) -> None:
    limits = Policy.model_validate({"privacy_parameters": {"strength": "moderate"}})
    (finding,) = [one for one in weigh(at_eight, (), policy=limits).findings if one.rule.endswith(".strength")]
    assert (finding.found, finding.allowed) == ("very weak", "moderate or stronger")
    assert "right 99." in finding.why
    kept = weigh(make(config, noise=6.0), (), policy=limits).findings
    assert not any(one.rule.endswith(".strength") for one in kept)


def test_what_is_not_proven_has_no_strength(config: ReleaseConfig) -> None:
    for card in (make(config, secure_noise=False, noise=6.0), make(config, status="claimed", noise=6.0)):
        assert card.strength is None
        assert card.mark == card.verdict != "proven"
        assert "<strong>Nothing to weigh</strong>" in render_html(card)


def test_people_with_several_records_keep_a_strong_card_from_green(config: ReleaseConfig) -> None:
    card = make(config, noise=6.0)
    grouped = card.model_copy(update={"data": card.data.model_copy(update={"grouped": True})})
    assert (card.mark, grouped.mark) == ("proven", "limited")
    assert "What is left out?" in render_html(grouped)
    assert headline(grouped) != headline(card)


def test_every_mark_has_words_and_a_colour() -> None:
    for one in (*STRENGTHS, None):
        for limits in ((), (CLEAR_LABELS,)):
            found = mark("proven" if one else "unproven", one, limits)
            assert found in MARKS
            assert (found == "proven") == (one is STRENGTHS[0] and not limits)


def test_the_dossier_asks_the_same_two_questions(dossier: Dossier, card: Card) -> None:
    assert (dossier.mark, dossier.uncovered) == (card.mark, uncovered(card.data, card.features))
    page = render_dossier(dossier)
    assert "Is it proved?" in page
    refuting = dataclasses.replace(dossier.audit.attacks[0], epsilon_lower_bound=50.0)
    doubted = dossier.model_copy(update={"audit": dataclasses.replace(dossier.audit, attacks=(refuting,))})
    assert (doubted.mark, doubted.strength) == ("doubt", None)
