"""An accountant of another package can raise a stated ε and never lower it: no foreign code makes a proof."""

from __future__ import annotations

import math
from collections.abc import Callable

import dp_accounting as dpa
import pytest

from airlock.accounting import (
    BudgetSchedule,
    FailureDpEvent,
    Guarantee,
    calibrate,
    compose,
    compute_epsilon,
    raised_by,
    repeat,
    trace,
)
from airlock.accounting.epsilon import OTHERS, register
from airlock.config import from_table
from airlock.errors import AccountingError, ConfigError
from tests.conftest import Plug

EVENT = repeat(dpa.PoissonSampledDpEvent(0.05, dpa.GaussianDpEvent(1.2)), 40)
DELTA = 1e-5


@pytest.fixture
def foreign(plug: Plug) -> Callable[[Callable[[float], float]], None]:
    """An accountant 'other' whose ε is a function of dp-accounting's."""

    def known(of: Callable[[float], float]) -> None:
        plug(OTHERS, "other", lambda event, delta: of(compute_epsilon(event, delta).epsilon))

    return known


def test_a_larger_epsilon_is_stated_and_says_whose_it_is(foreign: Callable[..., None]) -> None:
    foreign(lambda own: 1.5 * own)
    own, found = compute_epsilon(EVENT, DELTA), compute_epsilon(EVENT, DELTA, accountant="other")
    assert found.epsilon == 1.5 * own.epsilon
    assert found.accountant == own.accountant
    assert raised_by(found.version) == (own.version, "accountant 'other' of other-package 1.0")


@pytest.mark.parametrize("share", [0.0, 0.5, 0.999999, 1.0])
def test_a_smaller_epsilon_is_never_stated(foreign: Callable[..., None], share: float) -> None:
    foreign(lambda own: share * own)
    assert compute_epsilon(EVENT, DELTA, accountant="other") == compute_epsilon(EVENT, DELTA)
    promise = Guarantee("record", "add-remove", EVENT, DELTA, "proven", (), accountant="other")
    assert promise.epsilon == compute_epsilon(EVENT, DELTA).epsilon
    assert raised_by(promise.accountant_version)[1] is None


def test_it_does_not_bound_what_dp_accounting_does_not(plug: Plug) -> None:
    plug(OTHERS, "other", lambda event, delta: 0.1)
    sampled = dpa.PoissonSampledDpEvent(0.1, dpa.ZCDpEvent(0.1))
    with pytest.raises(AccountingError, match="supports"):
        compute_epsilon(sampled, DELTA, accountant="other")
    assert math.isinf(compute_epsilon(dpa.NonPrivateDpEvent(), DELTA, accountant="other").epsilon)
    lost = compose([dpa.GaussianDpEvent(1.0), FailureDpEvent(2 * DELTA)])
    assert math.isinf(compute_epsilon(lost, DELTA, accountant="other").epsilon)


def test_failures_are_taken_off_delta_before_it_is_asked(plug: Plug) -> None:
    seen = []
    plug(OTHERS, "other", lambda event, delta: seen.append((event, delta)) or 0.0)
    compute_epsilon(compose([dpa.GaussianDpEvent(1.0), FailureDpEvent(DELTA / 4)]), DELTA, accountant="other")
    assert seen == [(compose([dpa.GaussianDpEvent(1.0), dpa.NoOpDpEvent()]), 0.75 * DELTA)]


def test_noise_is_calibrated_for_both(foreign: Callable[..., None]) -> None:
    foreign(lambda own: 2.0 * own)

    def event(noise: float) -> dpa.DpEvent:
        return dpa.GaussianDpEvent(noise)

    noise = calibrate(event, 2.0, DELTA, accountant="other")
    assert 1.9 < compute_epsilon(event(noise), DELTA, accountant="other").epsilon <= 2.0
    foreign(lambda own: 4.0 * own)  # as after an update of its package
    noise = calibrate(event, 2.0, DELTA, accountant="other")
    assert compute_epsilon(event(noise), DELTA, accountant="other").epsilon <= 2.0


def test_the_curve_is_raised_all_along(foreign: Callable[..., None]) -> None:
    foreign(lambda own: 1.5 * own)
    schedule = BudgetSchedule(dpa.GaussianDpEvent(5.0), 20)
    curves = [
        trace(schedule, Guarantee("record", "add-remove", schedule.events(), DELTA, "proven", (), accountant=name))
        for name in ("auto", "other")
    ]
    pairs = list(zip(*(curve.points for curve in curves if curve), strict=True))
    assert all(own.epsilon < raised.epsilon < 1.6 * own.epsilon for own, raised in pairs)


@pytest.mark.parametrize("said", [math.nan, -1.0])
def test_what_is_no_epsilon_is_refused_by_its_name(plug: Plug, said: float) -> None:
    plug(OTHERS, "other", lambda event, delta: said)
    with pytest.raises(AccountingError, match="at least 0 from the accountant 'other' of other-package 1.0"):
        compute_epsilon(EVENT, DELTA, accountant="other")


def test_one_that_fails_is_named(plug: Plug) -> None:
    plug(OTHERS, "other", lambda event, delta: 1 / 0)
    with pytest.raises(AccountingError, match="accountant 'other' of other-package 1.0 to bound ε, found an error"):
        compute_epsilon(EVENT, DELTA, accountant="other")


def test_an_unknown_name_is_no_accountant() -> None:
    with pytest.raises(AccountingError, match="found 'pdl'"):
        compute_epsilon(EVENT, DELTA, accountant="pdl")
    asked = {"channel": "weights", "data": "digits", "epsilon": 1.0, "delta": 1e-4, "accountant": "pdl"}
    with pytest.raises(ConfigError, match="auto, pld, rdp; others come with a package"):
        from_table(asked)


def test_a_config_may_name_it_and_nobody_can_take_the_own_names(plug: Plug) -> None:
    plug(OTHERS, "other", lambda event, delta: 0.0)
    asked = {"channel": "weights", "data": "digits", "epsilon": 1.0, "delta": 1e-4, "accountant": "other"}
    assert from_table(asked).accountant == "other"
    with pytest.raises(AccountingError, match="no other accountant has"):
        register("pld")(lambda event, delta: 0.0)
    with pytest.raises(AccountingError, match="lower-case letters"):
        register("My:Own")(lambda event, delta: 0.0)
