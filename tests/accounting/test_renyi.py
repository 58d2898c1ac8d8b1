"""One of several mechanisms costs what the worst of them costs, order by order; so does any pure one."""

from __future__ import annotations

import json

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting import rdp
from dp_accounting.dp_event import DiscreteLaplaceDpEvent

from airlock.accounting import ChoiceDpEvent, PrivacyFilter, choose, compute_epsilon, from_json, pure, repeat, to_json
from airlock.accounting.events import FailureDpEvent, repeat_and_select, without_failure
from airlock.accounting.renyi import RenyiAccountant, pure_divergence
from airlock.errors import AccountingError

ORDERS = np.array([1.1, 1.5, 2.0, 4.0, 16.0, 64.0, 1024.0])
# Which of the two is worse hangs on the order.
FLAT, STEEP = pure(1.0), dpa.GaussianDpEvent(2.0)


def divergence(event: dpa.DpEvent) -> list[float]:
    return list(RenyiAccountant(ORDERS).compose(event)._rdp)


def test_a_choice_is_as_bad_as_its_worst_at_every_order() -> None:
    flat, steep = divergence(FLAT), divergence(STEEP)
    assert flat[0] > steep[0]
    assert flat[-1] < steep[-1]
    assert divergence(ChoiceDpEvent([FLAT, STEEP])) == [max(pair) for pair in zip(flat, steep, strict=True)]
    assert divergence(ChoiceDpEvent([STEEP, FLAT])) == divergence(ChoiceDpEvent([FLAT, STEEP]))


def test_an_order_that_is_skipped_is_not_told_to_whoever_asks_for_a_cost(caplog: pytest.LogCaptureFixture) -> None:
    """A search costs what its runs do at every order, and small ones do not converge at this rate."""
    step = dpa.PoissonSampledDpEvent(0.4267, dpa.GaussianDpEvent(6.4723))
    search = repeat_and_select(repeat(step, 20), 3.0, 1.0)
    assert PrivacyFilter.make(10.0, 1e-3).cost([search]) > 0
    assert "converge" not in caplog.text


def test_choices_compose_and_nest() -> None:
    both = ChoiceDpEvent([FLAT, STEEP])
    thrice = divergence(dpa.ComposedDpEvent([repeat(both, 2), dpa.NoOpDpEvent(), both]))
    assert thrice == pytest.approx([3 * one for one in divergence(both)])
    assert divergence(ChoiceDpEvent([both, dpa.NoOpDpEvent()])) == divergence(both)
    assert np.isinf(divergence(ChoiceDpEvent([STEEP, dpa.NonPrivateDpEvent()]))).all()
    selected = repeat_and_select(both, 5.0, 1.0)
    for one in (FLAT, STEEP):
        alone = repeat_and_select(one, 5.0, 1.0)
        assert compute_epsilon(selected, 1e-5).epsilon >= compute_epsilon(alone, 1e-5).epsilon


def test_a_choice_is_never_accounted_for_by_pld() -> None:
    for event in (ChoiceDpEvent([FLAT, STEEP]), repeat_and_select(STEEP, 5.0, 1.0)):
        assert compute_epsilon(event, 1e-5).accountant == "RDP"
        with pytest.raises(AccountingError):
            compute_epsilon(event, 1e-5, accountant="pld")


def test_a_pure_mechanism_has_the_divergence_of_randomised_response() -> None:
    for epsilon in (1e-5, 0.1, 1.0, 20.0):
        share = 1 / (1 + np.exp(-epsilon))
        one, other = np.log([share, 1 - share]), np.log([1 - share, share])
        exact = [np.logaddexp(*(order * one + (1 - order) * other)) / (order - 1) for order in ORDERS]
        assert pure_divergence(epsilon, ORDERS) == pytest.approx(exact, rel=1e-6, abs=1e-12)
        assert (pure_divergence(epsilon, ORDERS) <= epsilon).all()
    laplace = rdp.RdpAccountant(ORDERS).compose(dpa.LaplaceDpEvent(1.0))._rdp
    assert (laplace <= pure_divergence(1.0, ORDERS)).all()
    assert divergence(DiscreteLaplaceDpEvent(0.5, 3)) == divergence(pure(1.5))


def test_pld_is_within_rdp_for_pure_events() -> None:
    event = repeat(pure(0.2), 10)
    tight, loose = (compute_epsilon(event, 1e-5, accountant=name).epsilon for name in ("pld", "rdp"))
    assert tight <= loose < 1.6 * tight


@pytest.mark.parametrize("event", [ChoiceDpEvent([FLAT, STEEP]), repeat_and_select(choose([FLAT, STEEP]), 7.5, 0.5)])
def test_json_and_back(event: dpa.DpEvent) -> None:
    assert from_json(json.loads(json.dumps(to_json(event)))) == event


@pytest.mark.parametrize(
    "change",
    [{"mean": 0.5}, {"mean": 1e7}, {"mean": float("nan")}, {"shape": -1.0}, {"shape": 101.0}, {"shape": None}],
)
def test_a_number_of_runs_that_is_none_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(AccountingError):
        from_json(to_json(repeat_and_select(STEEP, 7.5, 0.5)) | change)


def test_an_empty_choice_is_not_free() -> None:
    with pytest.raises(AccountingError, match="at least one"):
        from_json({"type": "choice", "events": []})


def test_equal_events_are_listed_once() -> None:
    assert choose([STEEP, STEEP]) == STEEP
    assert choose([STEEP, FLAT, STEEP]) == ChoiceDpEvent([STEEP, FLAT])


def test_a_failure_inside_is_refused() -> None:
    for event in (ChoiceDpEvent([STEEP, FailureDpEvent(0.1)]), repeat_and_select(FailureDpEvent(0.1), 5.0, 1.0)):
        with pytest.raises(AccountingError, match="failure"):
            without_failure(event)
