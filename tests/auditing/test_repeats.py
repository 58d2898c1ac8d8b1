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


@pytest.mark.parametrize("repeats", [True, pytest.param(False, marks=pytest.mark.long)])
def test_the_interval_on_the_card_covers_the_truth(repeats: bool) -> None:
    shares, odds = population(repeats)
    covered = 0
    for seed in range(SEEDS):
        split = divide(FACTS, drawn(repeats, seed), None, FRACTIONS, seed)
        labels = learned(split.private)
        truth = float(shares @ np.where(labels == 1, odds, 1 - odds))
        right = labels[split.test.x[:, 0].astype(int)] == split.test.y
        outcomes = Outcomes(np.where(right, split.test.y, 1 - split.test.y), split.test.y)
        found = evaluation.figures(evaluation.evaluate(outcomes, 2, 1.0, Stream.from_seed(seed))).accuracy
        covered += found.low <= truth <= found.high
    assert covered >= 0.93 * SEEDS


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
