"""Figures about a regression: one record moves each table by a bounded amount, and the intervals hold."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError

from airlock.auditing.regression_errors import (
    CAP,
    KNOTS,
    ErrorCounts,
    compare_with_constant,
    evaluate,
    exact,
    far,
    figures,
    rows,
    tables,
)
from airlock.auditing.two_tables import UNIT
from airlock.config import STEPS, TargetRange
from airlock.mechanisms import Stream
from airlock.training.outcomes import Outcomes
from tests.auditing.two_tables import (
    intervals_cover,
    noise_has_the_accounted_scale,
    one_record_moves_each_by_one_unit,
)

DAYS = TargetRange(min=0, max=100, unit="days")
Floats = NDArray[np.float64]


def outcomes(targets: object, predictions: object) -> Outcomes:
    """From shares of the range."""
    found = (np.rint(STEPS * np.asarray(side, np.float64)).astype(np.int64) for side in (targets, predictions))
    return Outcomes(*found)


def stays(count: int, seed: int, noise: float = 0.08) -> Outcomes:
    chance = np.random.default_rng(seed)
    targets = np.clip(0.4 + 0.15 * chance.normal(size=count), 0, 1)
    return outcomes(targets, np.clip(targets + noise * chance.normal(size=count), 0, 1))


steps = st.integers(-5 * STEPS, 5 * STEPS)


@given(st.lists(st.tuples(steps, steps), min_size=1, max_size=20), st.integers(0, 19))
@example([(0, STEPS)], 0)
@example([(0, 0), (-3 * STEPS, 5 * STEPS)], 1)
def test_one_record_moves_each_table_by_one_unit_whatever_its_target_is(pairs: list[tuple[int, int]], i: int) -> None:
    one_record_moves_each_by_one_unit(tables, pairs, i)


def test_squares_are_kept_and_a_large_error_counts_as_half_of_the_range() -> None:
    off = np.linspace(-1, 1, 401)
    for one in off:
        table, _ = tables(outcomes([max(0.0, -one)], [max(0.0, one)]))
        rounding = (KNOTS[-1] ** 2 - KNOTS[-2] ** 2) / UNIT
        assert table @ KNOTS**2 / UNIT == pytest.approx(min(abs(one), CAP) ** 2, abs=rounding)
        assert np.sign(table @ KNOTS) in (np.sign(one), 0)


def test_noise_has_the_scale_that_is_accounted_for() -> None:
    noise_has_the_accounted_scale(tables, evaluate, ("errors", "targets"), stays(50, 1))


def test_counts_of_other_records_and_counts_without_noise_are_noticed() -> None:
    given = stays(300, 2)
    made = evaluate(given, 1.0, Stream.from_seed(3))
    assert far(made, given) > 1e-3
    assert far(made, stays(300, 3, noise=0.3)) < 1e-6
    errors, targets = (tuple(table.tolist()) for table in tables(given))
    assert far(ErrorCounts(epsilon=1.0, errors=errors, targets=targets), given) < 1e-6


def test_exact_figures_are_those_of_the_errors_themselves() -> None:
    given = stays(500, 4)
    targets, off = given.labels / STEPS, (given.predicted - given.labels) / STEPS
    found = exact(given, DAYS)
    assert found.records == 500
    assert found.mean_absolute.value == pytest.approx(100 * np.abs(off).mean())
    assert found.root_mean_square.value == pytest.approx(100 * np.sqrt((off**2).mean()))
    assert found.blind.value == pytest.approx(100 * targets.std())
    assert found.explained.value == pytest.approx(1 - (off**2).mean() / targets.var())


def discrete(count: int, seed: int) -> Outcomes:
    chance = np.random.default_rng(seed)
    targets = chance.choice([0, 0.25, 0.5, 0.75, 1.0], count, p=[0.1, 0.3, 0.3, 0.2, 0.1])
    return outcomes(targets, 0.5 + 0.1 * (targets > 0.5))


@pytest.mark.parametrize("world", [stays, discrete])
def test_intervals_on_the_card_cover_the_truth(world: Callable[[int, int], Outcomes]) -> None:
    truth = exact(world(200_000, 99), DAYS)
    names = ("mean_absolute", "root_mean_square", "explained", "blind")
    intervals_cover(lambda seed: figures(evaluate(world(400, seed), 1.0, Stream.from_seed(seed)), DAYS), truth, names)


@pytest.mark.parametrize(
    ("predicted", "epsilon", "state"),
    [(None, 8.0, "better"), (0.4, 8.0, "useless"), (0.9, 8.0, "useless"), (None, 0.01, "unknown")],
)
def test_what_is_no_better_than_a_constant_is_of_no_use(predicted: float | None, epsilon: float, state: str) -> None:
    given = stays(2000, 5)
    if predicted is not None:
        given = Outcomes(given.labels, np.full(2000, round(STEPS * predicted)))
    found = figures(evaluate(given, epsilon, Stream.from_seed(1)), DAYS)
    use = compare_with_constant(found, DAYS)
    assert use.state == state
    assert use.rejected is (state == "useless")
    assert "days" in use.sentence


def test_nothing_and_next_to_nothing_are_no_error() -> None:
    for count in (0, 1, 2):
        given = outcomes([0.5] * count, [0.25] * count)
        for found in (exact(given, DAYS), figures(evaluate(given, 1.0, Stream.from_seed(1)), DAYS)):
            assert found.explained.low <= found.explained.value <= found.explained.high
            assert len(rows(found, DAYS)) == 4
            json.dumps(found.model_dump(mode="json"), allow_nan=False)


def test_counts_are_json_and_refuse_what_does_not_fit() -> None:
    made = evaluate(stays(100, 1), 1.0, Stream.from_seed(1))
    table = json.loads(made.model_dump_json())
    assert ErrorCounts.model_validate(table) == made
    assert figures(ErrorCounts.model_validate(table), DAYS) == figures(made, DAYS)
    for wrong in ({"errors": table["errors"][:-1]}, {"targets": [10**10] * 17}, {"epsilon": 0.0}, {"exact": True}):
        with pytest.raises(ValidationError):
            ErrorCounts.model_validate(table | wrong)


def test_a_constant_whose_error_the_noise_hides_is_not_said_to_be_without_error() -> None:
    few = outcomes([0.5] * 30, [0.25] * 30)
    said = compare_with_constant(figures(evaluate(few, 0.05, Stream.from_seed(1)), DAYS), DAYS).sentence
    assert "the constant is off by at most" in said
    many = outcomes(np.linspace(0, 1, 2000).tolist(), [0.5] * 2000)
    said = compare_with_constant(figures(evaluate(many, 8.0, Stream.from_seed(1)), DAYS), DAYS).sentence
    assert "the constant is off by 28" in said or "the constant is off by 29" in said
