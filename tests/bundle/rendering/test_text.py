"""The sentences: true for the size of ε, and the worst news first."""

from __future__ import annotations

import math

import dp_accounting as dpa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlock.accounting import Claim
from airlock.bundle import Card, make_card
from airlock.bundle.rendering.formatting import best_guess, epsilon_up, one_in, percent_up, short, times
from airlock.config import ReleaseConfig
from airlock.mechanisms import Place
from tests.bundle.conftest import FACTS, guarantee, make_release, noise

CLAIM = Claim(1.0, 1e-5, "theorem 2")


def make(config: ReleaseConfig, secure_noise: bool = True, **promise: object) -> Card:
    return make_card(config, FACTS, make_release(guarantee(**promise), secure_noise=secure_noise), noise())  # type: ignore[arg-type]


def test_strong_moderate_and_weak_are_told_apart(config: ReleaseConfig):
    cards = [make(config, noise=sigma) for sigma in (6.0, 2.0, 1.5, 0.3)]
    said = ["strong: anyone who studies this release learns little", "moderate:", "but weak:", "but very weak:"]
    for card, words in zip(cards, said, strict=True):
        assert card.headline.startswith(f"Proven, {words}")
        assert card.verdict == "proven", "how strong it is changes nothing about the proof"
    assert [card.mark for card in cards] == ["proven", "limited", "limited", "weak"]
    assert "weak or no protection" in " ".join(cards[-1].words.promise)


@pytest.mark.parametrize(
    "promise",
    [
        {"status": "claimed", "claim": CLAIM},
        {"status": "claimed"},
        {"status": "empirical"},
        {"unit": "none", "events": dpa.NonPrivateDpEvent()},
        {"unit": "model"},
    ],
)
def test_what_is_not_proven_says_so_first(config: ReleaseConfig, promise: dict[str, object]):
    card = make(config, **promise)
    assert card.headline.startswith("NOT proven")
    assert card.words.promise[0] == "Nothing is promised to the people in the data."
    assert card.verdict == "unproven"


def test_claim_is_given_as_the_papers(config: ReleaseConfig):
    card = make(config, status="claimed", claim=CLAIM)
    assert "paper claims ε = 1.00 at δ = 1e-5" in card.headline
    assert "theorem 2" in " ".join(card.words.promise)


def test_insecure_noise_comes_before_everything(config: ReleaseConfig):
    card = make(config, secure_noise=False)
    assert "does NOT hold against anyone who knows the seed" in card.headline
    assert "NOT proven" in make(config, secure_noise=False, status="empirical").headline
    assert not any("against everyone" in line for line in card.words.promise)


@pytest.mark.parametrize("secure", [True, False])
def test_the_card_says_where_the_noise_was_computed(config: ReleaseConfig, secure: bool):
    def says(*places: Place) -> str:
        release = make_release(guarantee(), secure_noise=secure, noise_made_on=places)
        return make_card(config, FACTS, release, noise()).words.noise

    assert "computed on the CPU." in says("cpu")
    assert "computed on the GPU." in says("gpu")
    assert "computed partly on the CPU and partly on the GPU." in says("cpu", "gpu")
    assert ("drawn by the operating system" in says("gpu")) == secure
    assert says() == "No privacy noise was drawn."


def test_the_card_says_where_attacks_are(config: ReleaseConfig):
    assert make(config).words.audit.startswith("What attacks found is in the dossier")


def test_large_delta_is_said(config: ReleaseConfig):
    assert "δ is not small for about 1,797 records" in " ".join(make(config, delta=1e-3).words.promise)


def test_replace_one_speaks_of_another_record(config: ReleaseConfig):
    assert "another record stood in its place" in " ".join(make(config, relation="replace-one").words.promise)


@given(st.floats(1e-6, 700), st.floats(1e-12, 0.5))
def test_figures_never_look_smaller_than_they_are(epsilon: float, delta: float):
    assert float(epsilon_up(epsilon)) >= epsilon * (1 - 1e-3 * (epsilon < 1)) - 1e-6
    exact = (math.exp(epsilon) + delta) / (1 + math.exp(epsilon))
    assert best_guess(epsilon, delta) == pytest.approx(exact)
    assert float(percent_up(exact).rstrip("%")) >= 100 * exact - 1e-5
    assert 0.5 <= best_guess(epsilon, delta) <= 1


def test_numbers_as_people_write_them():
    assert [short(value) for value in (1e-5, 1e-4, 2.5e-6, 0.01, 1.5)] == ["1e-5", "1e-4", "2.5e-6", "0.01", "1.5"]
    assert [one_in(value) for value in (1e-4, 1e-5)] == ["1 in 10,000", "1 in 100,000"]
    assert [times(value) for value in (0.0, 1.0, 3.0, 20.0)] == ["1.00", "2.72", "21", "more than a million"]
    assert [epsilon_up(value) for value in (3.0, 2.991, 0.0123, 0.0)] == ["3.00", "3.00", "0.013", "0.00"]
