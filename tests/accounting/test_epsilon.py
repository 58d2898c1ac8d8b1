"""ε against known answers and against a second accountant."""

from __future__ import annotations

import math
import sys

import dp_accounting as dpa
import pytest
from scipy.stats import norm

from airlock.accounting import calibrate, compute_epsilon, pure, repeat
from airlock.accounting.epsilon import deltas
from airlock.errors import AccountingError


def dpsgd(noise: float, q: float = 0.01, steps: int = 6000) -> dpa.DpEvent:
    return repeat(dpa.PoissonSampledDpEvent(q, dpa.GaussianDpEvent(noise)), steps)


def test_known_answers() -> None:
    pld = compute_epsilon(dpsgd(1.1), 1e-5)
    assert pld.accountant == "PLD"
    assert pld.epsilon == pytest.approx(3.90, abs=0.01)
    rdp = compute_epsilon(dpsgd(1.1), 1e-5, accountant="rdp")
    assert rdp.accountant == "RDP"
    assert rdp.epsilon == pytest.approx(4.25, abs=0.005)
    assert compute_epsilon(dpsgd(1.0, steps=1000), 1e-5).epsilon == pytest.approx(1.8282, abs=0.001)
    assert pld.version.startswith("dp-accounting 0.6")


def test_agrees_with_a_second_accountant() -> None:
    from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

    mechanism = PoissonSubsampledGaussianMechanism(sampling_probability=0.02, noise_multiplier=1.3)
    peer = PRVAccountant(prvs=[mechanism], max_self_compositions=[800], eps_error=0.01, delta_error=1e-8)
    low, _, high = peer.compute_epsilon(delta=1e-5, num_self_compositions=[800])
    assert low - 0.01 <= compute_epsilon(dpsgd(1.3, 0.02, 800), 1e-5).epsilon <= high + 0.01


def test_one_gaussian_meets_the_exact_curve() -> None:
    """Balle and Wang 2018: δ(ε) = Φ(1/2z − εz) − e^ε Φ(−1/2z − εz)."""
    noise, delta = 2.0, 1e-5
    epsilon = compute_epsilon(dpa.GaussianDpEvent(noise), delta).epsilon

    def phi(t: float) -> float:
        return 0.5 * math.erfc(-t / math.sqrt(2))

    exact = phi(0.5 / noise - epsilon * noise) - math.exp(epsilon) * phi(-0.5 / noise - epsilon * noise)
    assert exact == pytest.approx(delta, rel=0.01)
    assert exact <= delta


def test_the_noise_multiplier_means_the_same_under_both_relations() -> None:
    """Under replace-one dp-accounting's PLD doubles the sensitivity and its RDP does not; here neither does."""
    event = repeat(dpa.GaussianDpEvent(2.0), 10)
    assert compute_epsilon(event, 1e-5, "replace-one") == compute_epsilon(event, 1e-5, "add-remove")
    assert compute_epsilon(event, 1e-5, "replace-one", "rdp").epsilon == pytest.approx(
        compute_epsilon(event, 1e-5, "replace-one").epsilon, rel=0.1
    )


def test_sampling_under_replace_one_is_refused() -> None:
    with pytest.raises(AccountingError, match="sampled"):
        compute_epsilon(dpsgd(1.0), 1e-5, "replace-one")


def test_rdp_takes_over_where_pld_cannot() -> None:
    spent = compute_epsilon(dpa.ZCDpEvent(0.1), 1e-5)
    assert spent.accountant == "RDP"
    with pytest.raises(AccountingError):
        compute_epsilon(dpa.ZCDpEvent(0.1), 1e-5, accountant="pld")


def test_no_privacy_is_infinite() -> None:
    assert compute_epsilon(dpa.NonPrivateDpEvent(), 1e-5).epsilon == math.inf


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, 2.0])
def test_delta_outside_its_range_is_refused(delta: float) -> None:
    with pytest.raises(AccountingError):
        compute_epsilon(dpsgd(1.0), delta)


@pytest.mark.parametrize(
    ("q", "steps", "epsilon"), [(0.01, 6000, 3.0), (0.05, 300, 0.3), (1.0, 40, 3.0), (0.2, 50, 20.0), (1.0, 1, 0.05)]
)
def test_calibration_is_tight_and_never_overshoots(q: float, steps: int, epsilon: float) -> None:
    noise = calibrate(lambda z: dpsgd(z, q, steps), epsilon, 1e-5)
    assert compute_epsilon(dpsgd(noise, q, steps), 1e-5).epsilon <= epsilon
    assert compute_epsilon(dpsgd(noise - 1e-3, q, steps), 1e-5).epsilon > epsilon


def test_half_the_calibrated_noise_would_not_do() -> None:
    noise = calibrate(lambda z: dpsgd(z, 0.05, 300), 0.3, 1e-5)
    assert compute_epsilon(dpsgd(noise / 2, 0.05, 300), 1e-5).epsilon > 2 * 0.3


def test_calibration_is_remembered_by_all_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    first = calibrate(lambda z: dpsgd(z, 1.0, 10), 1.0, 1e-5)
    calls: list[float] = []

    def counting(*args: object, **kwargs: object) -> object:
        calls.append(1.0)
        return compute_epsilon(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(sys.modules["airlock.accounting.calibrate"], "compute_epsilon", counting)
    assert calibrate(lambda z: dpsgd(z, 1.0, 10), 1.0, 1e-5) == first
    assert not calls
    assert calibrate(lambda z: dpsgd(z, 1.0, 11), 1.0, 1e-5) > first
    assert calls


def test_a_damaged_cache_is_ignored() -> None:
    from airlock.accounting.calibrate import _file

    first = calibrate(lambda z: dpsgd(z, 1.0, 12), 1.0, 1e-5)
    for path in _file("").parent.glob("*.json"):
        path.write_text("{")
    assert calibrate(lambda z: dpsgd(z, 1.0, 12), 1.0, 1e-5) == first


def test_an_epsilon_out_of_reach_is_refused() -> None:
    with pytest.raises(AccountingError):
        calibrate(lambda z: dpa.NonPrivateDpEvent(), 1.0, 1e-5)


def test_the_curve_of_a_gaussian_is_the_exact_one_from_above() -> None:
    """δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ) with μ = 1/z (Balle and Wang 2018)."""
    epsilons, mu = [0.0, 0.5, 1.0], 0.5
    exact = [norm.cdf(mu / 2 - e / mu) - math.exp(e) * norm.cdf(-mu / 2 - e / mu) for e in epsilons]
    found = deltas(dpa.GaussianDpEvent(1 / mu), epsilons)
    for got, wanted in zip(found, exact, strict=True):
        assert wanted - 1e-9 <= got <= wanted + 1e-3 * wanted + 1e-4 * mu


def test_the_curve_goes_through_the_stated_epsilon() -> None:
    event = dpa.PoissonSampledDpEvent(0.5, dpa.GaussianDpEvent(2.5))
    assert deltas(event, [compute_epsilon(event, 1e-5).epsilon])[0] == pytest.approx(1e-5, rel=0.01)


def test_the_curve_of_zcdp_is_by_rdp_and_above_that_of_the_gaussian_with_the_same_rho() -> None:
    """A Gaussian with noise z is 1/(2z²)-zCDP, so a bound for all mechanisms of this ρ lies above its exact curve."""
    event, epsilons = dpa.ZCDpEvent(1 / (2 * 2.5**2), 0.0), [0.0, 0.5, 1.0, 2.0]
    assert deltas(event, [compute_epsilon(event, 1e-5).epsilon])[0] == pytest.approx(1e-5, rel=0.01)
    found, gaussian = deltas(event, epsilons), deltas(dpa.GaussianDpEvent(2.5), epsilons)
    assert all(loose > tight for loose, tight in zip(found, gaussian, strict=True))
    assert all(loose < 10 * tight for loose, tight in zip(found, gaussian, strict=True))
    assert compute_epsilon(event, 1e-5).accountant == "RDP"


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 4.0])
def test_any_pure_mechanism_is_covered_alone_and_repeated(epsilon: float) -> None:
    """ε-DP alone; k times no better than the best composition (Kairouz et al.), and never worse than k·ε."""
    delta, count = 1e-6, 6
    assert epsilon * 0.99 - 2e-4 <= compute_epsilon(pure(epsilon), delta).epsilon <= epsilon + 2e-4
    up = math.exp(epsilon) / (1 + math.exp(epsilon))
    losses = [(2 * i - count) * epsilon for i in range(count + 1)]
    chances = [math.comb(count, i) * up**i * (1 - up) ** (count - i) for i in range(count + 1)]
    spent = compute_epsilon(repeat(pure(epsilon), count), delta).epsilon
    exact = sum(p * max(0.0, 1 - math.exp(spent - loss)) for p, loss in zip(chances, losses, strict=True))
    assert exact <= delta * (1 + 1e-6)
    assert spent <= count * epsilon + 2e-3


def test_a_laplace_event_would_not_cover_a_pure_mechanism() -> None:
    laplace, worst = (
        compute_epsilon(repeat(event, 20), 1e-5).epsilon for event in (dpa.LaplaceDpEvent(1.0), pure(1.0))
    )
    assert laplace < 0.97 * worst


@pytest.mark.parametrize("z", [0.7, 4.0])
def test_zcdp_costs_no_less_than_the_gaussian_that_has_it(z: float) -> None:
    gaussian, concentrated = (
        compute_epsilon(e, 1e-5) for e in (dpa.GaussianDpEvent(z), dpa.ZCDpEvent(0.5 / z**2, 0.0))
    )
    assert gaussian.epsilon < concentrated.epsilon < 1.2 * gaussian.epsilon
    assert (gaussian.accountant, concentrated.accountant) == ("PLD", "RDP")
