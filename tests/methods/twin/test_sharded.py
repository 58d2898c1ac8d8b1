"""`twin`/`sharded`: the contract, which `kde-sharded` keeps too, and what is its own."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

import dp_accounting as dpa
import numpy as np
import pytest
import torch

from airlock import data, methods
from airlock.accounting import compute_epsilon
from airlock.bundle import Vault
from airlock.bundle.verify import verify
from airlock.data import Records, Split, shard
from airlock.errors import AirlockWarning, ConfigError, NetError, Refused
from airlock.mechanisms import Randomness
from airlock.methods.twin.sharded import SampleAndAggregate
from airlock.nets.frontend import Framed
from airlock.pipeline import make_release
from airlock.testing import MethodContract
from airlock.training import Run
from airlock.training.public_start import ridge_regression


class ShardsContract(MethodContract):
    channel = "twin"

    def test_the_plan_says_how_large_the_noise_is_and_how_many_shards_it_would_take(self) -> None:
        channel = self.build()
        assert isinstance(channel, SampleAndAggregate)
        details = channel.plan().details
        noise, count, size = (float(details[key]) for key in ("noise_multiplier", "shards", "dimensions"))
        assert details["noise_norm_over_radius"] == pytest.approx(2 * noise * math.sqrt(size) / count)
        wished = int(details["shards_for_noise_of_0.3"])
        assert 2 * noise * math.sqrt(size) / wished <= 0.3 < 2 * noise * math.sqrt(size) / (wished - 1)
        assert details["records_per_shard"] == pytest.approx(channel.records / count)

    def test_noise_that_shows_is_said_and_noise_that_drowns_is_refused(self) -> None:
        settings = {**self.settings, "shards": 40}
        with pytest.warns(AirlockWarning, match="times the norm"):
            self.build(settings=settings, epsilon=1.0).plan()
        with pytest.raises(Refused, match=r"settings\.noise_limit"):
            self.build(settings={**self.settings, "shards": 5}, epsilon=0.5).plan()
        with pytest.warns(AirlockWarning):
            self.build(settings={**self.settings, "shards": 5, "noise_limit": 1e3}, epsilon=0.5).plan()

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"settings": {"shards": 1}}, r"settings\.shards"),
            ({"settings": {"shards": 2000}}, "as many shards as private records"),
            ({"settings": {"radius": 0.0}}, r"settings\.radius"),
            ({"settings": {"radius": -1.0}}, r"settings\.radius"),
            ({"settings": {"dimensions": 5000}}, "number of features"),
            ({"settings": {}, "net": "digits-net"}, r"net = 'digits-net'.*name a front end .* settings\.features"),
            ({"settings": {"basis": "public"}}, r"settings\.basis.*name a front end .* settings\.features"),
            ({"settings": {"steps": 3}, "net": "mlp"}, r"net = 'mlp' and settings\.steps.*settings\.features"),
            ({"settings": {"features": "scatering"}}, "scattering, pixels"),
            ({"epsilon": 0.0}, "epsilon"),
        ],
    )
    def test_bad_input_is_refused_and_nothing_written(
        self, changes: dict[str, Any], words: str, tmp_path: Path
    ) -> None:
        with pytest.raises((ConfigError, NetError), match=words):
            make_release(self.config(**changes), tmp_path / "bundle", vault=tmp_path / "vault")
        assert not list(tmp_path.iterdir())

    def test_a_bundle_verifies(self, tmp_path: Path) -> None:
        make_release(self.config(), tmp_path / "bundle", insecure_seed=1, vault=tmp_path / "vault")
        verdict = verify(tmp_path / "bundle", Vault.open(tmp_path / "vault"))
        assert all(check.outcome == "ok" for check in verdict.checks), verdict


class TestSharded(ShardsContract):
    method = "sharded"
    settings: ClassVar[dict[str, Any]] = {"shards": 250, "dimensions": 8}

    def test_it_is_the_default(self) -> None:
        assert next(iter(methods.METHODS["twin"])) == "sharded"

    def test_the_event_is_one_gaussian_and_half_the_noise_would_break_the_promise(self) -> None:
        plan = self.build().plan()
        noise = float(plan.details["noise_multiplier"])
        assert plan.guarantee.events == dpa.GaussianDpEvent(noise)
        assert compute_epsilon(dpa.GaussianDpEvent(noise / 2), self.delta).epsilon > 1.5 * self.epsilon

    def test_one_record_changes_one_vector_and_not_a_bit_of_another(self, split: Split) -> None:
        channel = self.build()
        assert isinstance(channel, SampleAndAggregate)
        net, here = channel.heads.start(None, Run()), Run()
        records = split.private.take(np.arange(300))
        whole = channel.vectors(net, records, here)
        less = channel.vectors(net, records.take(np.arange(1, 300)), here)
        assert int((whole != less).any(1).sum()) == 1

    def test_what_leaves_is_the_mean_of_the_clipped_heads_with_the_stated_noise(self, split: Split) -> None:
        settings = {"shards": 250, "radius": 0.5}
        channel = self.build(settings=settings, epsilon=8.0)
        assert isinstance(channel, SampleAndAggregate)
        net = channel.release(split, Randomness.make(0, insecure_seed=1), Run()).network.net
        noise = channel.figures.noise_multiplier
        vectors = channel.vectors(channel.heads.start(None, Run()), split.private, Run()).double()
        clipped = vectors * (0.5 / vectors.norm(dim=1, keepdim=True).clamp_min(1e-9)).clamp_max(1.0)
        assert isinstance(net, Framed)
        error = net.head.weight.double().flatten() - clipped.mean(0)
        assert float(error.std()) == pytest.approx(2 * 0.5 * noise / 250, rel=0.1)

    def test_a_shard_without_records_says_nothing(self, split: Split) -> None:
        channel = self.build()
        assert isinstance(channel, SampleAndAggregate)
        records = split.private.take(np.arange(20))
        vectors = channel.vectors(channel.heads.start(None, Run()), records, Run())
        empty = [not len(own) for own in shard(records, 250, 0)]
        assert sum(empty) > 200
        assert not vectors[empty].any()
        assert vectors[[not e for e in empty]].any(1).all()

    def test_projected_heads_are_heads_of_projected_features(self, split: Split) -> None:
        channel = self.build()
        assert isinstance(channel, SampleAndAggregate)
        heads = channel.heads
        assert heads._basis is not None
        net = heads.start(None, Run())
        vector = np.random.default_rng(0).normal(size=heads.size)
        heads.settle(net, vector)
        x = torch.from_numpy(split.test.x[:7]).float()
        features = net.centre(net.front(x)).double()
        small = torch.cat([features[:, :-1] @ heads._basis, features[:, -1:]], 1)
        wanted = small @ torch.from_numpy(vector).view(10, -1).T
        assert torch.allclose(net(x).double(), wanted, atol=1e-4)


def test_ridge_is_the_same_by_both_equations_and_minimises_its_loss() -> None:
    chance = torch.Generator().manual_seed(0)
    x, y = (torch.randn(n, d, dtype=torch.float64, generator=chance) for n, d in ((6, 6), (6, 3)))
    wide = ridge_regression(torch.cat([x, 0 * x], 1), y, 0.3)
    tall = ridge_regression(torch.cat([x, 0 * x]), torch.cat([y, 0 * y]), 0.3)
    assert torch.allclose(wide[:, :6], tall, atol=1e-9)
    gradient = (x @ tall.T - y).T @ x + 0.3 * tall
    assert gradient.abs().max() < 1e-9


def test_a_table_of_numbers_takes_the_record_itself() -> None:
    facts = data.Facts("own", (4,), ("a", "b"), 3000, None, "x")
    config = TestSharded.config(data="x.csv", settings={})
    assert methods.build(config, facts).plan().details["net"] == "pixels-linear"


def test_digits_at_epsilon_8_reaches_85_percent() -> None:
    """91% on average."""
    config = TestSharded.config(epsilon=8.0, settings={}, split={})
    channel = methods.build(config, data.describe(config))
    assert channel.release(data.load(config), Randomness.make(0), Run()).utility.accuracy >= 0.85


def test_a_record_with_nan_makes_a_zero_and_no_error() -> None:
    config = TestSharded.config(data="x.csv", settings={"shards": 4})
    facts = data.Facts("own", (2,), ("a", "b"), 300, 1, "x")
    channel = methods.build(config, facts)
    assert isinstance(channel, SampleAndAggregate)
    records = Records(np.array([[np.nan, 1.0], [1.0, 2.0]], np.float32), np.array([0, 1]))
    assert torch.isfinite(channel.vectors(channel.heads.start(None, Run()), records, Run())).all()
