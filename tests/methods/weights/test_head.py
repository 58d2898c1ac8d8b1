"""`weights`/`head`: the contract, and what is its own."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, ClassVar

import dp_accounting as dpa
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from airlock import data, methods
from airlock.accounting import compute_epsilon
from airlock.auditing import judge
from airlock.bundle import Vault
from airlock.bundle.verify import verify
from airlock.config import from_table
from airlock.data import Records, Split
from airlock.errors import ConfigError, Interrupted, NetError
from airlock.mechanisms import Randomness, Stream
from airlock.methods.weights.head import PUBLIC_FRONT, Features, Head
from airlock.nets.frontend import Framed
from airlock.pipeline import make_release
from airlock.testing import MethodContract
from airlock.training import Run

MODULE = """
import torch
from torch import nn

class Mixing(nn.Module):
    def forward(self, x):
        return x.flatten(1) - x.flatten(1).mean(0)

def normed(shape):
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())

def mixing():
    return Mixing()

def narrow():
    return nn.Linear(5, 3)

def broken():
    return nn.Sequential(nn.Flatten(), nn.Threshold(9.0, float("nan")))
"""


class TestHead(MethodContract):
    channel, method = "weights", "head"
    settings: ClassVar[dict[str, Any]] = {"steps": 3}

    @pytest.fixture
    def own(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        """The name of a module with front ends of the user's; a new name a test, because imports are remembered."""
        monkeypatch.chdir(tmp_path)
        name = f"fronts_{abs(hash(str(tmp_path)))}"
        (tmp_path / f"{name}.py").write_text(MODULE)
        return name

    def test_the_event_is_the_mean_and_every_step(self) -> None:
        plan = self.build().plan()
        mean = dpa.GaussianDpEvent(plan.details["noise_multiplier_of_the_mean"])
        step = dpa.GaussianDpEvent(plan.details["noise_multiplier"])
        assert plan.guarantee.events == dpa.ComposedDpEvent([mean, dpa.SelfComposedDpEvent(step, 3)])
        assert PUBLIC_FRONT in plan.guarantee.assumptions

    def test_the_curve_begins_with_the_mean(self) -> None:
        plan = self.build().plan()
        curve = plan.curve()
        assert curve is not None
        assert (curve.unit, [p.steps for p in curve.points]) == ("steps", [0, 1, 2, 3])
        mean = dpa.GaussianDpEvent(plan.details["noise_multiplier_of_the_mean"])
        assert curve.points[0].epsilon == pytest.approx(compute_epsilon(mean, self.delta).epsilon, rel=5e-3)

    def test_the_mean_takes_its_share_of_the_budget(self) -> None:
        details = self.build(settings={"steps": 3, "centre_share": 0.2}).plan().details
        mean = float(details["noise_multiplier_of_the_mean"]) ** -2
        steps = 3 * float(details["noise_multiplier"]) ** -2
        assert mean / (mean + steps) == pytest.approx(0.2)

    def test_without_a_centre_it_is_dp_sgd(self) -> None:
        channel = self.build(settings={"steps": 3, "centre_share": 0.0, "lot_size": 100})
        assert isinstance(channel, Head)
        sampled = dpa.PoissonSampledDpEvent(100 / round(1797 * 0.2), dpa.GaussianDpEvent(5.0))
        assert channel._schedule(5.0).events() == dpa.SelfComposedDpEvent(sampled, 3)

    def test_half_the_noise_would_break_the_promise(self) -> None:
        details = self.build().plan().details
        halves = [
            dpa.GaussianDpEvent(float(details[key]) / 2) for key in ("noise_multiplier", "noise_multiplier_of_the_mean")
        ]
        events = dpa.ComposedDpEvent([dpa.SelfComposedDpEvent(halves[0], 3), halves[1]])
        assert compute_epsilon(events, self.delta).epsilon > 1.5 * self.epsilon

    def test_the_learning_rate_makes_the_noise_of_a_weight_one(self) -> None:
        """A run on no signal at all: the head's weights are then the accumulated noise."""
        settings = {"steps": 100, "momentum": 0.5, "centre_share": 0.0}
        channel = self.build(settings=settings, epsilon=0.05)
        empty = Records(np.zeros((1, 1, 8, 8), np.float32), np.zeros(1, np.int64))
        nothing = Split(channel.facts, empty, empty, empty, empty)
        net = channel.release(nothing, Randomness.make(0, insecure_seed=3), Run()).network.net
        assert isinstance(net, Framed)
        assert 0.8 < float(net.head.weight.std()) < 1.2
        assert not net.centre.mean.any()

    def test_one_record_moves_the_sum_of_features_by_at_most_one(self, split: Split) -> None:
        channel = self.build()
        assert isinstance(channel, Head)
        net = channel.front.ready(None, Run())
        whole = Features(net, split.private.take(np.arange(40)), Run())
        less = Features(net, split.private.take(np.arange(1, 40)), Run())
        assert np.linalg.norm(whole.total() - less.total()) <= 1.0
        assert torch.allclose(whole.x[1:], less.x, atol=1e-5)
        x, y = whole.batch(np.arange(40))
        assert (x.double().norm(dim=1) <= 1).all()
        assert torch.equal(whole.batch(np.array([3, 5]))[0], x[[3, 5]])
        assert y.tolist() == split.private.y[:40].tolist()

    def test_the_released_mean_is_the_mean_with_noise(self, split: Split) -> None:
        channel = self.build()
        assert isinstance(channel, Head)
        net = channel.release(split, Randomness.make(0, insecure_seed=1), Run()).network.net
        assert isinstance(net, Framed)
        total = Features(channel.front.ready(None, Run()), split.private, Run()).total() / channel.records
        error = np.linalg.norm(net.centre.mean.numpy() - total)
        noise = float(channel.plan().details["noise_multiplier_of_the_mean"]) / channel.records
        assert 0.7 * noise * 12 < error < 1.3 * noise * 12  # 144 features

    @pytest.mark.parametrize("features", ["pixels", "scattering"])
    def test_a_bundle_verifies(self, features: str, tmp_path: Path) -> None:
        asked = self.config(settings={"steps": 3, "features": features})
        make_release(asked, tmp_path / "bundle", insecure_seed=1, vault=tmp_path / "vault")
        verdict = verify(tmp_path / "bundle", Vault.open(tmp_path / "vault"))
        assert all(check.outcome == "ok" for check in verdict.checks), verdict

    def test_a_users_frozen_front_end_may_hold_batchnorm(self, own: str, tmp_path: Path) -> None:
        asked = self.config(settings={"steps": 2, "features": f"{own}:normed"})
        outcome = make_release(asked, tmp_path / "bundle", insecure_seed=1, vault=tmp_path / "vault")
        assert outcome.release.network.net_name == f"{own}:normed"
        assert verify(tmp_path / "bundle").ok

    @pytest.mark.parametrize(
        ("function", "words"),
        [("mixing", "depend on their own record"), ("narrow", "to accept records"), ("broken", "finite features")],
    )
    def test_a_front_end_that_cannot_be_used_is_refused_before_data(self, own: str, function: str, words: str) -> None:
        with pytest.raises(NetError, match=words):
            self.build(settings={"features": f"{own}:{function}"}).plan()

    def test_unknown_features_and_a_net_are_refused(self) -> None:
        with pytest.raises(NetError, match="scattering, pixels"):
            self.build(settings={"features": "scatering"})
        with pytest.raises(ConfigError, match=r"settings\.features"):
            self.build(net="mlp")

    def test_a_resumed_run_keeps_the_released_mean(self, split: Split, tmp_path: Path) -> None:
        """With the operating system's noise a second mean would be a second release: the checkpoint's is taken."""

        def press(label: str, done: int, total: int) -> None:
            if label == "training" and done == 2:
                os.kill(os.getpid(), signal.SIGINT)

        channel = self.build(settings={"steps": 4})
        with pytest.raises(Interrupted):
            channel.release(split, Randomness.make(0), Run(checkpoint=tmp_path, progress=press))
        released = load_file(tmp_path / "checkpoint.safetensors")["net/released"]
        net = channel.release(split, Randomness.make(0), Run(checkpoint=tmp_path, resume=True)).network.net
        assert isinstance(net, Framed)
        assert torch.equal(net.centre.mean, released)


def test_tables_without_a_spatial_shape_take_the_record_itself() -> None:
    facts = data.Facts("own", (4,), ("a", "b"), 300, None, "x")
    config = TestHead.config(data="x.csv")
    assert methods.build(config, facts).plan().details["net"] == "pixels-linear"


def test_digits_at_epsilon_1_reaches_90_percent() -> None:
    """96% on average."""
    config = TestHead.config(epsilon=1.0, settings={}, split={})
    channel = methods.build(config, data.describe(config))
    assert channel.release(data.load(config), Randomness.make(0), Run()).utility.accuracy >= 0.90


class TestPeople:
    """One to nine records each, and one person of fifty."""

    FACTS = data.Facts("people", (4,), ("no", "yes"), 1500, None, "Made up.", people=300, records_per_person=5)
    CONFIG = from_table(
        {
            "channel": "weights", "method": "head", "data": "x.csv", "epsilon": 1.0, "delta": 1e-5,
            "split": {"test": 0.0, "holdout": 0.0}, "settings": {"steps": 3},
        }
    )  # fmt: skip

    @pytest.fixture
    def private(self) -> Records:
        chance = np.random.default_rng(0)
        person = np.repeat(np.arange(300), [*chance.integers(1, 10, 299), 50])
        return Records(chance.random((len(person), 4), np.float32), person % 2, person)

    def test_a_release_is_for_people(self, private: Records) -> None:
        split = Split(self.FACTS, private, *[private.take(np.arange(0))] * 3)
        made = Head(self.CONFIG, self.FACTS).release(split, Randomness.make(0, insecure_seed=1), Run())
        assert made.guarantee.unit == "person"
        assert made.plan.details["records_per_person"] == 5
        assert made.plan.details["expected_lot_size"] == 300

    def test_whoever_is_taken_away_moves_the_sum_of_features_by_one_at_most(self, private: Records) -> None:
        channel = Head(self.CONFIG, self.FACTS)

        def total(records: Records) -> Any:
            return Features(channel.front.ready(None, Run()), records, Run(), self.FACTS.most).total()

        whole = total(private)
        for one in (0, 17, 299):
            less = total(private.take(np.flatnonzero(private.person != one)))
            assert 0.5 < np.linalg.norm(whole - less) <= 1 + 1e-6

    def test_a_lot_of_everybody_has_the_rows_of_their_owners(self, private: Records) -> None:
        """The records of all people are in another order than those of the file."""
        mixed = private.take(np.random.default_rng(1).permutation(len(private)))
        data = Features(Head(self.CONFIG, self.FACTS).front.ready(None, Run()), mixed, Run(), 50)
        _, y, owners = data.lot(np.arange(300), lambda count: np.zeros(count))
        assert owners is not None
        names = mixed.person[mixed.groups().rows] % 2  # type: ignore[index]
        assert y.tolist() == names.tolist()

    def test_the_case_of_a_person_stands(self) -> None:
        case = methods.open_case("weights/head", 1.0, 1e-5, people=True)
        assert not judge(case, Stream.from_seed(1), 200, seconds=1e9).refuted
