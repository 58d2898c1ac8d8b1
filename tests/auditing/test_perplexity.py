"""Figures about a language model: one text moves each table by a bounded amount, and the intervals hold."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from airlock.auditing.perplexity import (
    KNOTS,
    LanguageFigures,
    LossCounts,
    compare_with_guessing,
    evaluate,
    exact,
    far,
    figures,
    rows,
    tables,
)
from airlock.auditing.two_tables import UNIT
from airlock.config import STEPS
from airlock.data.text import largest_loss
from airlock.mechanisms import Stream
from airlock.training.outcomes import Outcomes
from tests.auditing.two_tables import (
    intervals_cover,
    noise_has_the_accounted_scale,
    one_record_moves_each_by_one_unit,
)

VOCABULARY = 1001  # a thousand tokens


def texts(count: int, seed: int, better: float = 2.0) -> Outcomes:
    """Mean losses around 5 before, and so much less after."""
    chance = np.random.default_rng(seed)
    before = np.abs(5.0 + 0.8 * chance.normal(size=count))
    after = np.abs(before - better + 0.3 * chance.normal(size=count))
    return Outcomes.of_losses(torch.from_numpy(before), torch.from_numpy(after), VOCABULARY)


steps = st.integers(-5 * STEPS, 70 * STEPS)


@given(st.lists(st.tuples(steps, steps), min_size=1, max_size=20), st.integers(0, 19))
@example([(0, STEPS)], 0)
@example([(0, 0), (-3 * STEPS, 64 * STEPS)], 1)
def test_one_text_moves_each_table_by_one_unit_whatever_its_losses_are(pairs: list[tuple[int, int]], i: int) -> None:
    one_record_moves_each_by_one_unit(tables, pairs, i)


def test_a_loss_is_kept_and_one_beyond_a_guess_counts_as_a_guess() -> None:
    most = largest_loss(VOCABULARY)
    assert most == pytest.approx(math.log(1000))
    for loss in np.linspace(0, 2 * most, 301):
        made = Outcomes.of_losses(torch.tensor([loss]), torch.tensor([loss]), VOCABULARY)
        for table in tables(made):
            assert table @ KNOTS / UNIT == pytest.approx(min(1.0, loss / most), abs=0.5 / UNIT)


def test_a_loss_that_is_no_number_counts_as_a_guess() -> None:
    odd = torch.tensor([math.nan, math.inf, -math.inf])
    made = Outcomes.of_losses(odd, odd, VOCABULARY)
    assert made.predicted.tolist() == [STEPS, 64 * STEPS, 0]
    assert tables(made)[0].tolist() == [UNIT, *[0] * (len(KNOTS) - 2), 2 * UNIT]
    json.dumps(exact(made, VOCABULARY).model_dump(mode="json"), allow_nan=False)


def test_noise_has_the_scale_that_is_accounted_for() -> None:
    noise_has_the_accounted_scale(tables, evaluate, ("losses", "before"), texts(50, 1))


def test_both_tables_cost_what_the_card_says() -> None:
    for epsilon in (0.1, 1.0, 7.5):
        assert sum(noise.epsilon for noise in evaluate(texts(5, 0), epsilon, Stream.from_seed(0)).noises) == (
            pytest.approx(epsilon / UNIT)
        )


def test_counts_of_other_texts_and_counts_without_noise_are_noticed() -> None:
    known = texts(300, 2)
    made = evaluate(known, 1.0, Stream.from_seed(3))
    assert far(made, known) > 1e-3
    assert far(made, texts(300, 3, better=4.0)) < 1e-6
    losses, before = (tuple(table.tolist()) for table in tables(known))
    assert far(LossCounts(epsilon=1.0, losses=losses, before=before), known) < 1e-6


def test_exact_figures_are_those_of_the_losses_themselves() -> None:
    known = texts(500, 4)
    found, unit = exact(known, VOCABULARY), largest_loss(VOCABULARY) / STEPS
    assert found.records == 500
    assert found.perplexity.value == pytest.approx(math.exp((known.predicted * unit).mean()))
    assert found.before.value == pytest.approx(math.exp((known.labels * unit).mean()))
    assert found.guessing == 1000.0
    reach = 1.96 * (known.predicted * unit).std(ddof=1) / math.sqrt(500)
    assert math.log(found.perplexity.high / found.perplexity.value) == pytest.approx(reach, rel=1e-3)


def test_intervals_on_the_card_cover_the_truth() -> None:
    def of(seed: int) -> LanguageFigures:
        return figures(evaluate(texts(400, seed), 1.0, Stream.from_seed(seed)), VOCABULARY)

    intervals_cover(of, exact(texts(200_000, 99), VOCABULARY), ("perplexity", "before"))


@pytest.mark.parametrize(
    ("better", "epsilon", "state"), [(2.0, 8.0, "better"), (-4.0, 8.0, "useless"), (2.0, 0.002, "unknown")]
)
def test_what_is_no_better_than_guessing_is_of_no_use(better: float, epsilon: float, state: str) -> None:
    found = figures(evaluate(texts(2000, 5, better), epsilon, Stream.from_seed(1)), VOCABULARY)
    use = compare_with_guessing(found)
    assert use.state == state
    assert use.rejected is (state == "useless")
    assert "1,000" in use.sentence


def test_nothing_and_next_to_nothing_say_nothing() -> None:
    for count in (0, 1, 2):
        known = texts(count, 0)
        for found in (exact(known, VOCABULARY), figures(evaluate(known, 1.0, Stream.from_seed(1)), VOCABULARY)):
            assert found.perplexity.low <= found.perplexity.value <= found.perplexity.high
            assert len(rows(found)) == 3
            json.dumps(found.model_dump(mode="json"), allow_nan=False)
    assert exact(texts(0, 0), VOCABULARY).perplexity.high == pytest.approx(1000.0)


def test_counts_are_json_and_refuse_what_does_not_fit() -> None:
    made = evaluate(texts(100, 1), 1.0, Stream.from_seed(1))
    table = json.loads(made.model_dump_json())
    assert LossCounts.model_validate(table) == made
    assert figures(LossCounts.model_validate(table), VOCABULARY) == figures(made, VOCABULARY)
    for wrong in ({"losses": table["losses"][:-1]}, {"before": [10**10] * 9}, {"epsilon": 0.0}, {"exact": True}):
        with pytest.raises(ValidationError):
            LossCounts.model_validate(table | wrong)
    known = figures(made, VOCABULARY).model_dump()
    for wrong in ({"guessing": 1.0}, {"perplexity": {"value": 0.5, "low": 0.1, "high": 2.0}}):
        with pytest.raises(ValidationError):
            LanguageFigures.model_validate(known | wrong)
