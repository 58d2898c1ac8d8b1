"""Whole units: a cost is rounded up, a budget down, so that rounding never gives privacy away.

The ledger adds whole numbers and knows nothing about privacy. The cost must therefore be one that composes by addition:
the ε of pure DP, or the ρ of zero-concentrated DP; never the ε of an (ε, δ) computed for one query.
"""

from __future__ import annotations

import math
from fractions import Fraction

from airlock.errors import ConfigError

LARGEST = 2**62
Amount = int | float | str | Fraction


def cost_in_units(cost: Amount, unit: Amount) -> int:
    """The smallest number of units that pays for `cost`, at least 1.

    Numbers are taken exactly: the float 0.3 is a little less than three tenths, and 0.1 + 0.2 a little more than it,
    which then costs one unit more. Pass text ("0.3") or a Fraction where that unit matters.

    Raises:
        ConfigError: A number is not positive and finite, or the cost is more units than a ledger can count.
    """
    return _counted(math.ceil(_exact(cost, "cost") / _exact(unit, "unit")))


def budget_in_units(budget: Amount, unit: Amount) -> int:
    """The largest number of units that `budget` covers: the cap of a ledger.

    Raises:
        ConfigError: A number is not positive and finite, or the budget is less than one unit.
    """
    return _counted(math.floor(_exact(budget, "budget") / _exact(unit, "unit")))


def _exact(amount: Amount, name: str) -> Fraction:
    try:
        value = Fraction(amount)
    except (ValueError, OverflowError, ZeroDivisionError) as error:
        raise ConfigError(f"a positive number as {name}", repr(amount)[:40]) from error
    if value <= 0:
        raise ConfigError(f"a positive number as {name}", repr(amount)[:40], "Every answer costs something.")
    return value


def _counted(units: int) -> int:
    if not 1 <= units <= LARGEST:
        raise ConfigError(f"1 to {LARGEST:,} units", f"{units:,}", do="Choose another unit.")
    return units
