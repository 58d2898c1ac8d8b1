"""`weights`/`shaped`: the contract, the closed forms, and that clipping and noise have one shape."""

from __future__ import annotations

from typing import Any, ClassVar

import dp_accounting as dpa
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from airlock import data, methods
from airlock.accounting import compute_epsilon, to_json
from airlock.data import Split
from airlock.errors import ConfigError, DataError
from airlock.mechanisms import Clip, Randomness, Stream
from airlock.methods import Release
from airlock.methods.weights import noise_shape, proxy
from airlock.methods.weights.gaussian import Gaussian
from airlock.methods.weights.shaped import Shaped
from airlock.nets import create
from airlock.testing import MethodContract
from airlock.training import PrivateGradients, Run
from airlock.training.per_sample import clipped_sum

PUBLIC = {"public": 0.2, "test": 0.2, "holdout": 0.1}


class TestShaped(MethodContract):
    channel, method = "weights", "shaped"
    settings: ClassVar[dict[str, Any]] = {
        "steps": 2,
        "lot_size": 5000,
    }  # no sampling: quick to calibrate

    @classmethod
    def with_public(cls, split: Split) -> Release:
        return cls.build(split=PUBLIC).release(split, Randomness.make(0, insecure_seed=1), Run())

    def test_the_event_is_that_of_gaussian_whatever_the_shape(self) -> None:
        wanted = to_json(self.build(method="gaussian").plan().guarantee.events)
        for change in ({}, {"granularity": "channel"}, {"objective": "linear"}, {"shape_from": "none"}):
            plan = self.build(settings={**self.settings, **change}).plan()
            assert to_json(plan.guarantee.events) == wanted

    def test_without_a_shape_it_is_gaussian_bit_for_bit(self, split: Split) -> None:
        plain = self.release(split, method="gaussian", settings={**self.settings, "clip_norm": 1.0})
        same = self.release(split, settings={**self.settings, "clip_norm": 1.0, "shape_from": "none"})
        for one, other in zip(plain.network.net.parameters(), same.network.net.parameters(), strict=True):
            assert torch.equal(one, other)
        assert "shape_gain" not in same.plan.details

    def test_half_the_noise_would_break_the_promise(self) -> None:
        plan = self.build().plan()
        half = dpa.GaussianDpEvent(float(plan.details["noise_multiplier"]) / 2)
        assert plan.guarantee.events == dpa.SelfComposedDpEvent(
            dpa.GaussianDpEvent(plan.details["noise_multiplier"]), 2
        )
        assert compute_epsilon(dpa.SelfComposedDpEvent(half, 2), self.delta).epsilon > 1.5 * self.epsilon

    def test_the_gain_of_a_proxy_is_in_the_plan(self) -> None:
        details = self.build().plan().details
        assert details["shape_from"] == "synthetic records"
        assert 0.5 < details["shape_gain"] < 10  # type: ignore[operator]

    def test_the_gain_on_public_records_is_on_the_release_and_not_in_the_plan(self) -> None:
        planned = self.build(split=PUBLIC).plan()
        assert "shape_gain" not in planned.details
        released = self.with_public(data.load(self.config(split=PUBLIC)))
        assert 0.5 < released.plan.details["shape_gain"] < 10  # type: ignore[operator]
        assert released.guarantee == planned.guarantee
        assert any("public records are not covered" in line for line in planned.guarantee.assumptions)

    def test_the_shape_does_not_depend_on_private_records(self, split: Split) -> None:
        channel = self.build(split=PUBLIC)
        assert isinstance(channel, Shaped)
        parts = data.load(self.config(split=PUBLIC))
        net = channel.net()
        other = Split(parts.facts, split.test, parts.public, parts.test, parts.holdout)
        first, second = (channel._scale(net, one) for one in (parts, other))
        assert all(torch.equal(first[name], second[name]) for name in first)

    def test_public_records_that_are_not_there_are_asked_for(self, split: Split) -> None:
        with pytest.raises(ConfigError, match=r"split\.public above 0"):
            self.build(settings={**self.settings, "shape_from": "public"})
        with pytest.raises(DataError, match="at least two public records"):
            self.with_public(split)  # this split has none

    def test_a_shape_without_gain_says_so(self) -> None:
        from airlock.methods.weights.shaped import Shape

        assert "gaussian" in str(Shape({}, 0.98).details["shape_helps"])
        assert Shape({}, 1.2).details["shape_helps"] == "yes"

    @pytest.mark.parametrize("objective", ["curvature", "linear"])
    def test_every_objective_trains_by_channel(self, split: Split, objective: str) -> None:
        change = {"granularity": "channel", "objective": objective}
        released = self.release(split, settings={**self.settings, **change})
        assert all(torch.isfinite(p).all() for p in released.network.net.parameters())


def problems(count: int = 3, groups: int = 6) -> Any:
    rng = np.random.default_rng(0)
    return [(rng.lognormal(0, 1.5, groups), rng.lognormal(0, 1.5, groups), rng.uniform(0.5, 3)) for _ in range(count)]


@pytest.mark.parametrize(("objective", "power"), [("linear", 1), ("curvature", 2), ("energy", 2)])
def test_closed_forms_are_the_minima(objective: noise_shape.Objective, power: int) -> None:
    for second, weight, level in problems():
        mine = noise_shape.closed_form(torch.tensor(second), torch.tensor(weight), level, objective).numpy()
        assert np.sum(second / mine**2) == pytest.approx(level)
        limit = {"type": "eq", "fun": lambda t, m=second, c=level: np.log(np.sum(m / np.exp(2 * t)) / c)}
        start = np.full(len(second), 0.5 * np.log(second.sum() / level))
        found = minimize(
            lambda t, h=weight: np.log(np.sum(h * np.exp(power * t))), start, constraints=[limit],
            options={"ftol": 1e-14, "maxiter": 500},
        )  # fmt: skip
        np.testing.assert_allclose(mine, np.exp(found.x), rtol=1e-3)


def test_known_gains() -> None:
    """For m and h log-normal with log-variance 2: e^-0.5 of the noise for h = 1, e^-1 for h free of m, 1 for h ∝ m."""
    rng = np.random.default_rng(0)
    m, h = (torch.tensor(rng.lognormal(0, 2**0.5, 400_000)) for _ in range(2))
    for weight, share, tolerance in ((torch.ones_like(m), 0.607, 0.01), (h, 0.368, 0.01), (m, 1.0, 1e-6)):
        moments = noise_shape.Moments({"a": m}, {"a": weight})
        scale = noise_shape.best_scale(moments, 1.0, "curvature")
        assert 1 / noise_shape.gain(scale, moments, "curvature") == pytest.approx(share, abs=tolerance)


@given(st.integers(0, 10**6), st.floats(0.01, 100.0))
@settings(max_examples=25)
def test_a_gain_ignores_the_size_of_the_shape_and_is_one_for_none(seed: int, size: float) -> None:
    rng = np.random.default_rng(seed)
    moments = noise_shape.Moments(*({"a": torch.tensor(rng.lognormal(size=5))} for _ in range(2)))
    flat = {"a": torch.full((5,), size, dtype=torch.float64)}
    assert noise_shape.gain(flat, moments, "energy") == pytest.approx(1.0)
    best = noise_shape.best_scale(moments, 1.0, "energy")
    assert noise_shape.gain({"a": best["a"] * size}, moments, "energy") >= 1 - 1e-6


def shaped(granularity: noise_shape.Granularity = "channel") -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    net = create("mlp", (5,), 3, 0)
    x, y = proxy.make((5,), 3, 64, 0)
    return net, noise_shape.best_scale(noise_shape.measure(net, x, y, granularity, "energy", 0), 0.1, "energy")


def in_units(total: dict[str, torch.Tensor], scale: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([(g / scale[name]).flatten() for name, g in total.items()])


@given(st.integers(0, 10**6), st.integers(0, 7))
@settings(max_examples=25)
def test_one_record_in_its_worst_direction_stays_within_the_bound(seed: int, which: int) -> None:
    """All weight on the coordinate group with the smallest noise: where isotropic clipping would break the promise."""
    net, scale = shaped()
    order = sorted(scale, key=lambda name: float(scale[name].min()))
    smallest = order[which % len(order)]
    for name, p in net.named_parameters():
        p.requires_grad_(name == smallest)
    x = 1e4 * torch.randn(1, 5, generator=torch.Generator().manual_seed(seed))
    total, _ = clipped_sum(net, x, torch.tensor([seed % 3]), Clip(1.0, scale=scale))
    assert float(in_units(total, scale).norm()) <= 1.0


def test_isotropic_clipping_would_exceed_the_bound_in_units_of_the_noise() -> None:
    net, scale = shaped()
    x, y = 1e4 * torch.randn(40, 5, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3
    worst = {"plain": 0.0, "shaped": 0.0}
    for i in range(40):
        for kind, clip in (("plain", Clip(0.1)), ("shaped", Clip(1.0, scale=scale))):
            total, _ = clipped_sum(net, x[i : i + 1], y[i : i + 1], clip)
            worst[kind] = max(worst[kind], float(in_units(total, scale).norm()))
    assert worst["shaped"] <= 1.0 < worst["plain"]


@pytest.mark.parametrize("granularity", ["tensor", "channel"])
def test_noise_has_the_shape_of_the_clipping(granularity: noise_shape.Granularity) -> None:
    net, scale = shaped(granularity)
    gradients = PrivateGradients(Clip(1.0, scale=scale), 2.0, 4.0, Stream.from_seed(1))
    empty = torch.empty(0, 5), torch.empty(0, dtype=torch.int64)
    rows = []
    for step in range(40):
        gradients(net, *empty, step)
        rows.append(torch.cat([(p.grad / scale[name]).flatten() for name, p in net.named_parameters()]) * 4.0 / 2.0)  # type: ignore[operator]
    noise = torch.stack(rows)
    assert float(noise.square().mean()) == pytest.approx(1.0, abs=0.03)  # half the noise gives 0.25
    places = torch.cat([scale[name].expand_as(p).flatten() for name, p in net.named_parameters()])
    small = places <= places.quantile(0.1)
    assert float(noise[:, small].square().mean()) == pytest.approx(1.0, abs=0.05)


def test_groups_broadcast_against_their_parameters() -> None:
    net, by_channel = shaped("channel")
    _, by_tensor = shaped("tensor")
    for name, p in net.named_parameters():
        assert by_tensor[name].shape == ()
        assert by_channel[name].shape == (p.shape[0], *[1] * (p.dim() - 1))
        assert (by_channel[name] > 0).all()


def test_as_much_is_clipped_as_with_the_plain_norm() -> None:
    net = create("mlp", (5,), 3, 0)
    x, y = proxy.make((5,), 3, 64, 0)
    moments = noise_shape.measure(net, x, y, "tensor", "energy", 0)
    scale = noise_shape.best_scale(moments, 0.1, "energy")
    level = sum(float((m / scale[name].square()).sum()) for name, m in moments.second.items())
    assert level == pytest.approx(sum(float(m.sum()) for m in moments.second.values()) / 0.1**2, rel=1e-5)


def test_second_moments_are_those_of_single_records() -> None:
    net = create("mlp", (4,), 3, 0)
    x, y = proxy.make((4,), 3, 6, 0)
    trainable = {name: p.detach() for name, p in net.named_parameters()}
    second, mean = noise_shape._accumulated(net, trainable, x, y, "tensor")
    squares = dict.fromkeys(trainable, 0.0)
    for i in range(6):
        net.zero_grad()
        torch.nn.functional.cross_entropy(net(x[i : i + 1]), y[i : i + 1]).backward()
        for name, p in net.named_parameters():
            squares[name] += float(p.grad.square().sum())  # type: ignore[union-attr]
    assert {name: float(value) for name, value in second.items()} == pytest.approx(squares, rel=1e-4)
    assert mean.keys() == second.keys()


def test_a_proxy_is_public_and_has_every_class_in_both_halves() -> None:
    x, y = proxy.make((1, 8, 8), 10, 40, 7)
    again = proxy.make((1, 8, 8), 10, 40, 7)[0]
    assert torch.equal(x, again)
    assert 0 <= float(x.min()) < float(x.max()) <= 1
    assert set(y[::2].tolist()) == set(y[1::2].tolist()) == set(range(10))


def test_it_is_gaussian_in_another_norm() -> None:
    assert issubclass(Shaped, Gaussian)
    assert next(iter(methods.METHODS["weights"])) == "gaussian"
