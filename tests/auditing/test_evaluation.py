"""Figures of test records that are paid for: what one record moves, what the figures say, how often intervals hold."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from airlock.accounting import compute_epsilon
from airlock.auditing.evaluation import (
    BINS,
    MOST,
    SHARES,
    SHARES_OF_LABELS,
    Evaluation,
    Figure,
    budget,
    evaluate,
    event,
    exact,
    far,
    figures,
    tables,
)
from airlock.errors import ConfigError
from airlock.mechanisms import Stream
from airlock.training.outcomes import Outcomes


def world(count: int, classes: int, seed: int, sharpness: float = 2.0) -> Outcomes:
    """Records of equal classes, and a model that is right more often than not and too sure of itself."""
    chance = np.random.default_rng(seed)
    labels = chance.integers(0, classes, count)
    logits = sharpness * (chance.normal(size=(count, classes)) + 1.5 * np.eye(classes)[labels])
    return Outcomes.of_logits(logits, labels)


def without(outcomes: Outcomes, place: int) -> Outcomes:
    return Outcomes.of_arrays({name: np.delete(value, place) for name, value in outcomes.arrays().items()})


def labels_only(outcomes: Outcomes) -> Outcomes:
    return Outcomes(outcomes.labels, outcomes.predicted)


@given(st.integers(1, 60), st.integers(2, 12), st.integers(0, 2**32), st.data())
def test_one_record_moves_one_cell_of_each_table_by_one(
    count: int, classes: int, seed: int, data: st.DataObject
) -> None:
    outcomes = world(count, classes, seed)
    place = data.draw(st.integers(0, count - 1))
    both = zip(tables(outcomes, classes), tables(without(outcomes, place), classes), strict=True)
    for table, fewer in both:
        assert table.sum() == count
        assert np.abs(table - fewer).sum() == 1


def test_odd_records_are_in_one_cell_at_most() -> None:
    """Whatever stands there, nothing is refused and nothing is warned of."""
    odd = Outcomes(np.array([0, 5, -3, 1]), np.array([0, 5, 1, 0]), np.array([np.nan, np.inf, -np.inf, 1.0]))
    for classes in (2, 3):
        found = tables(odd, classes)
        assert [int(table.sum()) for table in found] == [4, 2, 2]
    nothing = Outcomes.of_logits(np.full((3, 2), np.nan), np.array([0, 1, 1]))
    assert tables(nothing, 2)[2][:, 0].sum() == 3


def test_the_tables_are_what_they_are_called() -> None:
    outcomes = Outcomes(np.array([0, 0, 1, 1, 1]), np.array([0, 1, 1, 1, 0]), np.array([0.0, 0.5, 1.0, 0.99, 0.49]))
    right, by_class, bins = tables(outcomes, 2)
    assert right.tolist() == [3, 2]
    assert by_class.tolist() == [[1, 1], [2, 1]]
    assert bins[0].nonzero()[0].tolist() == [0, 5]
    assert bins[1].tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 0, 2]
    of_three = tables(outcomes, 3)[2]
    assert of_three.sum(1).tolist() == [3, 2]  # right ones, wrong ones


def test_the_edge_at_one_half_parts_what_is_said() -> None:
    outcomes = world(500, 2, 1)
    _, by_class, bins = tables(outcomes, 2)
    assert bins[1, BINS // 2 :].sum() == by_class[1, 0]
    assert bins[0, : BINS // 2].sum() == by_class[0, 0]


@pytest.mark.parametrize("with_scores", [True, False])
def test_shares_add_up_and_the_event_is_theirs(with_scores: bool) -> None:
    shares = SHARES if with_scores else SHARES_OF_LABELS
    assert sum(shares) == 1.0
    outcomes = world(100, 3, 2)
    made = evaluate(outcomes if with_scores else labels_only(outcomes), 3, 1.5, Stream.from_seed(1))
    assert made.shares == shares
    assert sum(noise.epsilon for noise in made.noises) == pytest.approx(1.5)
    assert compute_epsilon(event(1.5, with_scores), 1e-9).epsilon == pytest.approx(1.5, rel=1e-3)


@pytest.mark.parametrize("runs", [1, 2, 7])
@pytest.mark.parametrize("epsilon", [0.1, 0.99953, 3.1234567, 8.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_the_test_part_never_costs_more_than_is_stated(epsilon: float, delta: float, runs: int) -> None:
    each = budget(epsilon, delta, True, runs)
    assert compute_epsilon(event(each, True, runs), delta).epsilon <= epsilon
    assert each == pytest.approx(epsilon / runs, rel=1e-3)


def test_budgets_that_are_too_small_or_too_large() -> None:
    assert budget(1e6, 1e-5, True) == MOST
    with pytest.raises(ConfigError, match="declared runs"):
        budget(0.1, 1e-5, True, 10_000)


def test_an_evaluation_is_json_and_refuses_what_does_not_fit() -> None:
    made = evaluate(world(200, 3, 1), 3, 1.0, Stream.from_seed(1))
    table = json.loads(made.model_dump_json())
    assert Evaluation.model_validate(table) == made
    for wrong in (
        {"by_class": table["by_class"][:2]},
        {"shares": [0.5, 0.25, 0.25]},
        {"bins": None},
        {"right": [10**10, 0]},
        {"epsilon": 0.0},
        {"epsilon": math.inf},
        {"exact": True},
    ):
        with pytest.raises(ValidationError):
            Evaluation.model_validate({**table, **wrong})


def test_figures_come_from_what_left_alone_and_are_the_exact_ones_without_noise() -> None:
    outcomes = world(4000, 2, 3)
    made, known = figures(evaluate(outcomes, 2, MOST, Stream.from_seed(1))), exact(outcomes, 2)
    assert made.records == known.records == 4000
    for name in ("accuracy", "majority", "balanced_accuracy"):
        mine, theirs = getattr(made, name), getattr(known, name)
        assert mine.value == theirs.value
        assert mine.low == pytest.approx(theirs.low, abs=0.003)
        assert mine.high == pytest.approx(theirs.high, abs=0.003)
    assert made.auc is not None
    assert known.auc is not None
    assert made.auc.value == pytest.approx(known.auc.value, abs=0.02)
    assert made.calibration_error is not None
    assert known.calibration_error is not None
    assert made.calibration_error.value == pytest.approx(known.calibration_error.value, abs=0.05)


def test_nobody_is_there() -> None:
    empty = Outcomes.of_logits(np.empty((0, 3)), np.empty(0, np.int64))
    known = exact(empty, 3)
    assert known.accuracy == Figure(value=0.0, low=0.0, high=1.0)
    made = figures(evaluate(empty, 3, 1.0, Stream.from_seed(2)))
    assert made.accuracy.low <= 0.5 <= made.accuracy.high
    assert all(one.low == 0.0 for one in made.recalls)


Mean = Callable[[Outcomes], float]


@pytest.mark.parametrize(("epsilon", "most"), [(1.0, 0.005), (8.0, 0.001)])
def test_accuracy_of_350_records_is_off_by_less_than_half_a_point(epsilon: float, most: float) -> None:
    outcomes = world(350, 2, 4)
    errors = [
        abs(figures_accuracy(evaluate(outcomes, 2, epsilon, Stream.from_seed(seed))) - outcomes.accuracy)
        for seed in range(300)
    ]
    assert np.mean(errors) < most


def figures_accuracy(made: Evaluation) -> float:
    return made.right[0] / sum(made.right)


def test_figures_lie_within_their_intervals_whatever_the_counts_are() -> None:
    chance = np.random.default_rng(5)
    for epsilon in (0.05, 1.0, 20.0):
        counts = chance.integers(-30, 60, (4, 26))
        for row in counts.tolist():
            pairs = tuple((row[2 * place], row[2 * place + 1]) for place in range(3))
            bins = tuple(row[6:16]), tuple(row[16:26])
            made = Evaluation(epsilon=epsilon, classes=2, shares=SHARES, right=pairs[0], by_class=pairs[1:], bins=bins)
            found = figures(made)
            for one in (found.accuracy, *found.recalls, found.majority, found.balanced_accuracy, found.auc):
                assert one is not None
                assert one.low <= one.value <= one.high
            assert found.calibration_error is not None
            assert found.calibration_error.low <= found.calibration_error.value <= found.calibration_error.high


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.floats(0.05, 8.0))
def test_noise_of_the_stated_size_is_believed(seed: int, epsilon: float) -> None:
    outcomes = world(200, 3, 1)
    assert far(evaluate(outcomes, 3, epsilon, Stream.from_seed(seed)), outcomes) > 1e-6


def test_counts_too_far_or_too_near_are_not_believed() -> None:
    outcomes = world(200, 3, 1)
    made = evaluate(outcomes, 3, 1.0, Stream.from_seed(1))
    right, by_class, bins = (table.tolist() for table in tables(outcomes, 3))
    bare = made.model_copy(update={"right": right, "by_class": by_class, "bins": bins})
    assert far(bare, outcomes) < 1e-9  # no noise at all
    assert far(made.model_copy(update={"right": (made.right[0] + 60, made.right[1])}), outcomes) < 1e-9
    assert far(made.model_copy(update={"epsilon": 20.0}), outcomes) < 1e-9  # noise of another ε
    assert far(made, world(400, 3, 2)) < 1e-9  # of other records
    assert far(made, labels_only(outcomes)) == 0.0


@pytest.mark.parametrize("stated", [7.991650157889394, 0.1, 0.99999, 3.0000001, 12.3456789])
@pytest.mark.parametrize("runs", [1, 7])
def test_the_budget_is_never_exceeded_however_the_accountant_rounds(stated: float, runs: int) -> None:
    """At the first of these the accountant's grid swallowed steps that were as small as what was too much."""
    each = budget(stated, 1e-4, True, runs)
    spent = compute_epsilon(event(each, True, runs), 1e-4).epsilon
    assert 0.998 * stated < spent <= stated or each * runs > 0.998 * stated
    assert spent <= stated
