"""Whether a release is better than a blind guess: what the figures allow to say, with and without noise."""

from __future__ import annotations

import numpy as np
import pytest

from airlock.auditing.evaluation import evaluate, exact, figures
from airlock.auditing.usefulness import REJECTED, compare_with_blind, missed_classes
from airlock.mechanisms import Stream
from airlock.training.outcomes import Outcomes

RARE = 0.036  # 54 of 1,500 patients


def outcomes(records: int, shares: list[float], correct: float, seed: int = 0) -> Outcomes:
    """Labels with these shares, of which a share is named correctly; the others get the next class."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(len(shares), records, p=shares)
    right = rng.random(records) < correct
    return Outcomes(labels, np.where(right, labels, (labels + 1) % len(shares)))


def never(records: int, scores: bool = False, seed: int = 0) -> Outcomes:
    """Two classes, of which the rare one is never named; its scores may tell it all the same."""
    rng = np.random.default_rng(seed)
    labels = (rng.random(records) < RARE).astype(np.int64)
    told = np.clip(0.1 + 0.3 * labels + 0.1 * rng.random(records), 0, 0.49) if scores else None
    return Outcomes(labels, np.zeros(records, np.int64), told)


def noisy(made: Outcomes, classes: int, epsilon: float, seed: int = 1):
    return figures(evaluate(made, classes, epsilon, Stream.from_seed(seed)))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("shares", "correct"), [([0.5, 0.5], 0.448), ([0.1] * 10, 0.141)])
def test_useless_releases_are_called_so(shares: list[float], correct: float, seed: int) -> None:
    """At the stated shares of right answers, on a test part of some hundred records, with noise and without."""
    labels = np.arange(400) % len(shares)
    right = np.arange(400) < round(400 * correct)
    made = Outcomes(
        labels, np.where(np.random.default_rng(seed).permutation(right), labels, (labels + 1) % len(shares))
    )
    assert compare_with_blind(exact(made, len(shares))).state in REJECTED
    assert compare_with_blind(noisy(made, len(shares), 8.0, seed)).state in REJECTED


def test_little_is_too_little_however_many_records_show_it() -> None:
    labels = np.arange(20_000) % 10
    right = np.random.default_rng(3).random(20_000) < 0.13
    found = exact(Outcomes(labels, np.where(right, labels, (labels + 1) % 10)), 10)
    assert found.accuracy.low > 0.1
    assert compare_with_blind(found).state == "hardly"
    assert compare_with_blind(found, 0.0).state == "better"


@pytest.mark.parametrize("seed", range(5))
def test_always_the_largest_class_is_useless_however_often_it_is_right(seed: int) -> None:
    found = exact(never(300, seed=seed), 2)
    assert found.accuracy.value > 0.9
    told = compare_with_blind(found)
    assert told.state == "useless"
    assert "always naming the largest class" in told.sentence
    assert "does no better than blind guessing" in told.sentence
    seen = compare_with_blind(noisy(never(300, seed=seed), 2, 1.0, seed))
    assert seen.state in ("useless", "unclear")  # at ε = 1 the share of the largest class is off by some percent


def test_scores_that_tell_a_rare_class_are_no_useless_release() -> None:
    found = exact(never(3000, scores=True), 2)
    told = compare_with_blind(found)
    assert told.state == "finds"
    assert "its scores put a record of the second class above" in told.sentence
    assert missed_classes(found, ("alive", "dead")) == ("dead",)


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_a_good_release_is_better_than_a_blind_guess(epsilon: float) -> None:
    found = noisy(outcomes(360, [0.1] * 10, 0.92), 10, epsilon)
    told = compare_with_blind(found)
    assert told.state == "better"
    assert told.gain > 0.8
    assert missed_classes(found, tuple("0123456789")) == ()


def test_noise_that_hides_everything_rejects_nothing() -> None:
    """With so much noise the largest of ten counts says nothing, and neither does accuracy."""
    states = {compare_with_blind(noisy(outcomes(100, [0.1] * 10, 0.9), 10, 0.02, seed)).state for seed in range(20)}
    assert states <= {"unknown", "unclear", "better"}
    hidden = noisy(outcomes(360, [0.1] * 10, 0.9), 10, 0.1)
    assert hidden.blind.value == pytest.approx(0.1)


def test_chance_calls_a_blind_guess_better_in_few_of_many_runs() -> None:
    """The guess that looks at nothing, 300 times; at most the stated error of them."""
    wrongly = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        labels = (rng.random(400) < 0.3).astype(np.int64)
        made = Outcomes(labels, (rng.random(400) < 0.5).astype(np.int64), rng.random(400))
        wrongly += compare_with_blind(exact(made, 2)).state in ("better", "finds")
    assert wrongly <= 0.05 * 300
