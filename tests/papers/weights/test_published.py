"""`weights`/`published`: what of the contract a claim can keep, the paper's equations, and what is wrong with them."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import dp_accounting as dpa
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from airlock import methods
from airlock.accounting import compute_epsilon, repeat
from airlock.data import Records, Split
from airlock.errors import ConfigError
from airlock.mechanisms import Clip, Stream, gaussian
from airlock.methods import Release
from airlock.nets import create
from airlock.papers.weights import optimised
from airlock.papers.weights.optimised_gradients import OptimisedGradients, sensitivity
from airlock.papers.weights.published import Published
from airlock.testing import ClaimContract
from airlock.training import Resident
from airlock.training.per_sample import clipped_sum

Q, K, DELTA = 1000 / 55000, 1650, 1e-5  # the paper's MNIST setting


class TestPublished(ClaimContract):
    channel, method = "weights", "published"
    settings: ClassVar[dict[str, Any]] = {"steps": 2, "lot_size": 5000, "solver": "closed"}

    # A claim promises nothing, so the contract's tests of ε are kept for the claim and against the promise.

    def test_a_smaller_epsilon_means_a_smaller_epsilon(self) -> None:
        less, more = (self.build(epsilon=e).plan() for e in (0.5, self.epsilon))
        assert less.guarantee.claim.epsilon == 0.5  # type: ignore[union-attr]
        assert less.details["noise_multiplier"] > more.details["noise_multiplier"]  # type: ignore[operator]
        assert less.details["equal_noise_epsilon"] < more.details["equal_noise_epsilon"]  # type: ignore[operator]

    def test_repeated_runs_are_paid_for(self) -> None:
        once, often = (self.build(tuning_runs=runs).plan() for runs in (1, 5))
        assert often.details["noise_multiplier"] > once.details["noise_multiplier"]  # type: ignore[operator]

    def test_nothing_is_promised_and_the_claim_says_why(self) -> None:
        plan = self.build().plan()
        assert (plan.guarantee.status, plan.guarantee.unit) == ("claimed", "none")
        assert math.isinf(plan.guarantee.epsilon)
        assert plan.guarantee.events == dpa.SelfComposedDpEvent(dpa.NonPrivateDpEvent(), 2)
        claim = plan.guarantee.claim
        assert claim is not None
        assert (claim.epsilon, claim.delta) == (self.epsilon, self.delta)
        assert "does not hold" in claim.theorem
        assert f"{plan.details['equal_noise_epsilon']:.3g}" in claim.theorem
        assert methods.find(self.config()).sound_method == "shaped"

    def test_the_smallest_noise_is_marked_as_unprotected_and_is_in_no_plan(self, released: Release) -> None:
        assert "smallest_noise_epsilon" not in self.build().plan().details
        assert "smallest_noise_epsilon" not in released.plan.details
        assert str(released.inside["smallest_noise_epsilon"])
        assert len(released.secrets["noise"]["smallest_factor"]) == 2  # one shape a step

    @pytest.mark.parametrize("change", [{"solver": "projected", "refresh": 2}, {"noise_on": "mean"}])
    def test_every_setting_trains(self, split: Split, change: dict[str, Any]) -> None:
        released = self.release(split, settings={**self.settings, **change})
        assert all(torch.isfinite(p).all() for p in released.network.net.parameters())
        assert len(released.secrets["noise"]["smallest_factor"]) == (1 if "refresh" in change else 2)

    def test_an_order_that_leaves_no_noise_to_choose_is_refused_with_the_least_that_does(self) -> None:
        with pytest.raises(ConfigError, match="moment_order of at least (\\d+)") as error:
            self.build(settings={**self.settings, "moment_order": 1})
        least = int(error.value.expected.rsplit(" ", 1)[1])
        self.build(settings={**self.settings, "moment_order": least})
        with pytest.raises(ConfigError):
            self.build(settings={**self.settings, "moment_order": least - 1})

    def test_the_papers_settings_are_the_defaults_on_its_data(self) -> None:
        from airlock.data import Facts

        facts = Facts("mnist", (1, 28, 28), tuple("0123456789"), 60000, 10000, "x")
        made = Published(self.config(settings={}), facts)
        assert (made.settings.lot_size, made.settings.clip_norm, made.settings.refresh) == (1000, 4.0, 1)


def test_one_release_at_epsilon_one_has_a_true_epsilon_of_more_than_six() -> None:
    """ε_t = 1 gives τ = 2 in the limit of large orders: noise of α/√2."""
    one = optimised.Budget(1.0, 1e-5, 2.0)
    assert compute_epsilon(dpa.GaussianDpEvent(one.noise_multiplier), 1e-5).epsilon == pytest.approx(6.57, abs=0.005)


@pytest.mark.parametrize(("claimed", "true"), [(1.0, 1.359), (0.3, 0.689), (0.05, 0.268), (0.01, 0.117)])
def test_the_whole_run_costs_more_than_claimed_even_with_equal_noise(claimed: float, true: float) -> None:
    noise = optimised.budget(claimed, DELTA, Q, K, None).noise_multiplier
    event = repeat(dpa.PoissonSampledDpEvent(Q, dpa.GaussianDpEvent(noise)), K)
    assert compute_epsilon(event, DELTA).epsilon == pytest.approx(true, abs=0.001)


def test_the_budget_is_equation_12() -> None:
    made = optimised.budget(1.0, DELTA, Q, K, 400)
    per_step = 1.0 / math.sqrt(16 * Q**2 * K * math.log(math.e + 1e5))
    assert made.epsilon == pytest.approx(per_step)
    assert made.delta == DELTA / (2 * K)
    assert made.tau == pytest.approx(2 * per_step + 2 / 400 * math.log(DELTA / (2 * K)))


SENSITIVITIES = st.lists(st.floats(-1.0, 1.0), min_size=2, max_size=40).filter(lambda w: any(abs(v) > 1e-3 for v in w))


@given(SENSITIVITIES, st.sampled_from(["closed", "projected"]))
@settings(max_examples=40)
def test_no_shape_has_more_than_equal_noise_everywhere(values: list[float], solver: optimised.Solver) -> None:
    """So the ε of equal noise is the least that any shape can have, and the smallest noise decides."""
    w = torch.tensor(values, dtype=torch.float64)
    u = optimised.solve(solver, w)
    assert torch.isfinite(u).all()
    assert float(u.min()) <= 1 + 1e-9
    assert float(w.abs() @ u) <= float(w.abs().sum()) * (1 + 1e-9)  # by the paper's own measure it helps
    counts = u[w.abs() > 1e-3 * w.abs().max()]  # where w is zero more noise costs the shape nothing
    if float(counts.max() - counts.min()) > 1e-3:
        assert float(u.min()) < 1  # so Δ along the smallest noise breaks Eq. 10b


def test_one_coordinate_that_matters_alone_gets_equal_noise() -> None:
    w = torch.tensor([0.0] * 6 + [1.0], dtype=torch.float64)
    assert float(optimised.solve("projected", w)[-1]) == pytest.approx(1.0)


def test_the_closed_form_is_the_minimum_at_its_own_direction() -> None:
    rng = np.random.default_rng(0)
    for _ in range(3):
        w = np.abs(rng.normal(size=6)) + 0.05
        v = w / np.linalg.norm(w)
        limits = {"type": "ineq", "fun": lambda u, v=v: 1 - np.sum((v / u) ** 2)}
        found = minimize(
            lambda u, w=w: w @ u, np.ones(6), constraints=[limits], bounds=[(1e-2, None)] * 6, options={"ftol": 1e-12}
        )
        mine = optimised.solve("closed", torch.tensor(w)).numpy()
        np.testing.assert_allclose(mine, found.x, rtol=1e-3)
        assert np.sum((v / mine) ** 2) == pytest.approx(1.0)


def test_closed_form_gives_no_noise_where_the_mean_gradient_is_zero() -> None:
    u = optimised.solve("closed", torch.tensor([0.0, 0.1, 0.2]))
    assert u[0] == 0
    assert u[1] < u[2]
    assert torch.equal(optimised.solve("closed", torch.zeros(3)), torch.ones(3))


def small() -> tuple[torch.nn.Module, Resident]:
    rng = np.random.default_rng(1)
    records = Records(rng.random((30, 5), np.float32), rng.integers(0, 3, 30))
    return create("mlp", (5,), 3, 0), Resident(records, torch.device("cpu"))


def source(data: Resident, noise_on: Any = "sum", noise: float = 2.0) -> OptimisedGradients:
    return OptimisedGradients(data, 0.5, noise, 10.0, Stream.from_seed(3), "closed", 5, noise_on)


def flat(net: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in net.parameters()])  # type: ignore[union-attr]


@pytest.mark.parametrize(("noise_on", "divisor"), [("sum", 10.0), ("mean", 1.0)])
def test_noise_has_the_standard_deviation_of_its_coordinate(noise_on: str, divisor: float) -> None:
    net, data = small()
    x, y = data.batch(np.arange(30))
    gradients = source(data, noise_on)
    total = torch.cat([g.flatten() for g in clipped_sum(net, x, y, Clip(0.5))[0].values()]) / 10.0
    scores = []
    for step in range(20):
        gradients(net, x, y, step)
        assert gradients.shape is not None
        sigma = gradients.shape * 0.5 * 2.0
        scores.append((flat(net) - total) / (sigma / divisor).clamp_min(1e-12))
    spread = torch.stack(scores).square().mean()
    assert float(spread) == pytest.approx(1.0, abs=0.03)  # half the noise gives 0.25
    assert float(torch.stack(scores).mean()) == pytest.approx(0.0, abs=0.03)


def test_the_sensitivity_is_the_plain_mean_gradient_of_all_records() -> None:
    net, data = small()
    torch.nn.functional.cross_entropy(net(data.x), data.y).backward()
    torch.testing.assert_close(sensitivity(net, data), flat(net))


def test_from_a_lot_the_sensitivity_is_that_of_its_records() -> None:
    net, data = small()
    x, y = data.batch(np.arange(12))
    wanted = optimised.solve("closed", sensitivity(net, Resident(Records(x.numpy(), y.numpy()), torch.device("cpu"))))
    gradients = OptimisedGradients(data, 0.5, 2.0, 10.0, Stream.from_seed(3), "closed", 5, "sum", "lot")
    gradients(net, x, y, 0)
    assert gradients.shape is not None
    torch.testing.assert_close(gradients.shape, wanted)
    gradients(net, x[:0], y[:0], 5)
    assert torch.equal(gradients.shape, torch.ones_like(wanted))  # nobody in the lot: equal noise
    assert gradients.mark != source(data).mark


def test_the_noise_is_made_where_the_gradients_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a kernel there is no noise from the CPU: it gets the whole shape in one call."""
    seen: list[torch.Tensor] = []

    def kernel(value: torch.Tensor, key: bytes, scale: float, grid: float, divisor: float, shape: Any) -> torch.Tensor:
        seen.append(shape)
        return value / divisor

    monkeypatch.setattr(gaussian, "gpu_takes", lambda value: True)
    monkeypatch.setattr(gaussian, "gpu_add_noise", kernel)
    net, data = small()
    gradients = source(data)
    gradients(net, *data.batch(np.arange(9)), 0)
    assert gradients.stream.drawn_on == ("gpu",)
    assert gradients.shape is not None
    assert seen[0] is gradients.shape


def test_the_shape_is_kept_between_refreshes() -> None:
    net, data = small()
    gradients = source(data)
    seen = []
    for step in range(7):
        gradients(net, *data.batch(np.arange(9)), step)
        seen.append(gradients.shape)
    assert all(one is seen[0] for one in seen[:5])
    assert seen[5] is not seen[0]
    assert len(gradients.smallest) == 2
