from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airlock.errors import ConfigError
from airlock.ledger import budget_in_units, cost_in_units


@given(st.floats(1e-6, 1e3), st.floats(1e-6, 1e3), st.integers(1, 1000))
def test_what_the_units_allow_never_costs_more_than_the_budget(cost: float, unit: float, queries: int) -> None:
    budget = Fraction(cost) * queries
    if budget < Fraction(unit):
        return
    affordable = budget_in_units(budget, unit) // cost_in_units(cost, unit)
    assert affordable * Fraction(cost) <= budget
    assert (cost_in_units(cost, unit) - 1) * Fraction(unit) < Fraction(cost)


def test_rounding_goes_up_for_costs_and_down_for_budgets() -> None:
    assert cost_in_units("0.1", "0.03") == 4
    assert budget_in_units("0.1", "0.03") == 3
    assert cost_in_units("0.3", "0.1") == 3
    assert cost_in_units(0.1 + 0.2, "0.1") == 4
    assert cost_in_units(1e-12, 1) == 1


@pytest.mark.parametrize("wrong", [0, -1.0, float("nan"), float("inf"), "much", "1/0"])
def test_no_free_or_endless_costs(wrong: float | str) -> None:
    with pytest.raises(ConfigError):
        cost_in_units(wrong, 1)


def test_a_budget_below_one_unit_is_refused() -> None:
    with pytest.raises(ConfigError, match="1 to"):
        budget_in_units("0.1", 1)
