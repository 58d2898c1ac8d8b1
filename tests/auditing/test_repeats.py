"""Tables in which rows repeat: what a card says of them holds as it does for other tables."""

from __future__ import annotations

import numpy as np
import pytest

from airlock.auditing import evaluation
from airlock.auditing.members import draw
from airlock.auditing.metrics import measure
from airlock.auditing.result import Scores
from airlock.config import SplitConfig
from airlock.data import Facts, Records, divide
from airlock.mechanisms import Stream
from airlock.training.outcomes import Outcomes

ROWS, RECORDS, SEEDS = 96, 2000, 200
FACTS = Facts("test", (3,), ("no", "yes"), RECORDS, None, "made up")
FRACTIONS = SplitConfig()


def population(repeats: bool) -> tuple[np.ndarray, np.ndarray]:
    """The share of each possible row, and the probability that its label is 1."""
    rng = np.random.default_rng(0 if repeats else 1)
    return rng.dirichlet(np.ones(ROWS)), rng.beta(0.8, 0.8, ROWS)


def drawn(repeats: bool, seed: int) -> Records:
    """Records of the population; without repeats each has a column of its own number."""
    shares, odds = population(repeats)
    rng = np.random.default_rng([seed, repeats])
    rows = rng.choice(ROWS, RECORDS, p=shares)
    x = np.stack([rows, rows % 4, np.zeros(RECORDS) if repeats else rng.random(RECORDS)], 1).astype(np.float32)
    return Records(x, (rng.random(RECORDS) < odds[rows]).astype(np.int64))


def learned(private: Records) -> np.ndarray:
    """The more frequent label of each row, as a model without privacy would find it."""
    rows = private.x[:, 0].astype(int)
    ones, counts = np.bincount(rows, private.y, ROWS), np.bincount(rows, minlength=ROWS)
    return (2 * ones > counts).astype(np.int64)


def truths(labels: np.ndarray, scores: np.ndarray, repeats: bool) -> dict[str, float]:
    """Every figure of the card for the whole population: of a model's label for each row, and its score in ten bins."""
    shares, odds = population(repeats)
    zeros, ones = shares * (1 - odds), shares * odds
    recalls = zeros[labels == 0].sum() / zeros.sum(), ones[labels == 1].sum() / ones.sum()
    bins = np.minimum((scores * evaluation.BINS).astype(int), evaluation.BINS - 1)
    low, high = (np.bincount(bins, side, evaluation.BINS) for side in (zeros, ones))
    below = (np.cumsum(low) - low / 2) / low.sum()
    return {
        "accuracy": float(zeros[labels == 0].sum() + ones[labels == 1].sum()),
        "majority": float(max(zeros.sum(), ones.sum())),
        "recall of 0": float(recalls[0]),
        "recall of 1": float(recalls[1]),
        "balanced_accuracy": float(np.mean(recalls)),
        "auc": float(high @ below / high.sum()),
        "calibration_error": float(np.abs(high * (1 - evaluation.MIDDLES) - low * evaluation.MIDDLES).sum()),
    }


def figures_of(found: evaluation.Figures) -> dict[str, evaluation.Figure | None]:
    whole = {name: getattr(found, name) for name in ("accuracy", "majority", "balanced_accuracy", "auc")}
    recalls = {f"recall of {label}": one for label, one in enumerate(found.recalls)}
    return {**whole, **recalls, "calibration_error": found.calibration_error}


@pytest.mark.parametrize("repeats", [True, pytest.param(False, marks=pytest.mark.long)])
def test_every_interval_on_the_card_covers_the_truth(repeats: bool) -> None:
    odds = population(repeats)[1]
    covered: dict[str, int] = {}
    for seed in range(SEEDS):
        split = divide(FACTS, drawn(repeats, seed), None, FRACTIONS, seed)
        labels = learned(split.private)
        scores = np.clip(odds + 0.3 * np.random.default_rng(5).normal(size=ROWS), 0, 1)
        rows = split.test.x[:, 0].astype(int)
        outcomes = Outcomes(split.test.y, labels[rows], scores[rows])
        found = evaluation.figures(evaluation.evaluate(outcomes, 2, 1.0, Stream.from_seed(seed)))
        told, truth = figures_of(found), truths(labels, scores, repeats)
        for name, value in truth.items():
            one = told[name]
            assert one is not None
            covered[name] = covered.get(name, 0) + (one.low <= value <= one.high)
    assert min(covered.values()) >= 0.93 * SEEDS, covered


def test_members_of_a_table_with_repeats_are_not_told_apart_by_their_rows() -> None:
    """A score that depends on the row alone, and on no model: the attack finds nothing, and states no ε."""
    score, beaten, largest = np.random.default_rng(3).random(ROWS), 0, 0.0
    for seed in range(SEEDS):
        split = divide(FACTS, drawn(True, seed), None, FRACTIONS, seed)
        there = draw(split, FRACTIONS, seed, 2000)
        assert there is not None
        sides = [score[side.x[:, 0].astype(int)] for side in (there.members, there.others)]
        scores = Scores("row", "?", "black-box", *sides, there.members.y, there.others.y)
        found = measure(scores, 1e-5, game=there.game)
        beaten += found.low > 0.5 or found.high < 0.5
        largest = max(largest, found.epsilon_lower_bound)
    assert beaten <= 0.1 * SEEDS
    assert largest < 0.5
