"""`answers`/`head`: the contract, and what is its own."""

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
from airlock.auditing.required_attacks import missing
from airlock.bundle import Vault
from airlock.bundle.gate import weigh
from airlock.bundle.verify import verify
from airlock.data import Records, Split
from airlock.errors import ConfigError
from airlock.mechanisms import Randomness, Stream
from airlock.methods.answers.head import Head
from airlock.methods.answers.linear_head import CASE_REGULARISATION, case_config, case_facts, neighbours
from airlock.nets.frontend import Framed
from airlock.pipeline import make_release
from airlock.testing import MethodContract
from airlock.training import Run
from airlock.training.front_ends.front import embed


class TestHead(MethodContract):
    channel, method = "answers", "head"
    settings: ClassVar[dict[str, Any]] = {"features": "pixels"}

    @classmethod
    def head(cls, **changes: Any) -> Head:
        found = cls.build(**changes)
        assert isinstance(found, Head)
        return found

    def test_the_event_is_one_gaussian_and_half_the_noise_would_break_the_promise(self) -> None:
        plan = self.build().plan()
        noise = float(plan.details["noise_multiplier"])
        assert plan.guarantee.events == dpa.GaussianDpEvent(noise)
        assert compute_epsilon(dpa.GaussianDpEvent(noise / 2), self.delta).epsilon > 1.5 * self.epsilon

    def test_the_regularisation_follows_from_the_noise_of_a_logit(self) -> None:
        details = self.build().plan().details
        assert details["noise_on_a_logit"] == pytest.approx(0.2)
        expected = math.sqrt(2) / (float(details["regularisation"]) * round(1797 * 0.2)) * 1.001
        assert details["sensitivity"] == pytest.approx(expected)
        fixed = self.build(settings={"regularisation": 0.25}).plan().details
        assert fixed["regularisation"] == 0.25

    def test_what_leaves_is_the_certified_head_with_the_noise_that_is_stated(self, split: Split) -> None:
        channel = self.head()
        details = channel.plan().details
        z, scale = float(details["noise_multiplier"]), float(details["noise_on_a_weight"])
        net = channel.ready()
        head = channel.solve(net, split.private, z, Run())
        found = []
        for seed in range(8):
            channel.perturb(net, head, z, Stream.from_seed(seed))
            found.append((net.head.weight.detach().double() - head).flatten())
        noise = torch.cat(found)
        assert 0.95 * scale < float(noise.std()) < 1.05 * scale
        assert abs(float(noise.mean())) < 0.1 * scale
        assert not 0.95 * scale < float((noise / 2).std()) < 1.05 * scale

    @pytest.mark.parametrize("features", ["pixels", "scattering"])
    def test_one_record_less_moves_the_head_by_at_most_the_sensitivity(self, split: Split, features: str) -> None:
        channel = self.head(settings={"features": features})
        details = channel.plan().details
        z, net = float(details["noise_multiplier"]), channel.ready()
        some = split.private.take(np.arange(300))
        whole = channel.solve(net, some, z, Run())
        for i in (0, 299):
            less = channel.solve(net, some.take(np.delete(np.arange(300), i)), z, Run())
            assert 0 < float((whole - less).norm()) <= float(details["sensitivity"])

    @pytest.mark.parametrize("features", ["pixels", "scattering"])
    def test_features_depend_on_their_own_record_and_have_norm_one(self, split: Split, features: str) -> None:
        net = self.head(settings={"features": features}).ready()
        some = split.private.take(np.arange(260))
        whole, less = (embed(net, some.take(np.arange(first, 260)), Run()) for first in (0, 1))
        assert float((whole[1:] - less).abs().max()) < 1e-13
        assert (whole.norm(dim=1) <= 1).all()

    def test_a_record_that_is_not_finite_is_harmless(self, split: Split) -> None:
        some = split.private.take(np.arange(50))
        x = np.array(some.x, dtype=np.float32)
        x[7] = np.nan
        channel = self.head()
        z = float(channel.plan().details["noise_multiplier"])
        head = channel.solve(channel.ready(), Records(x, some.y), z, Run())
        assert torch.isfinite(head).all()

    def test_a_bundle_verifies_and_its_weights_were_attacked(self, tmp_path: Path) -> None:
        made = make_release(self.config(), tmp_path / "bundle", insecure_seed=1, vault=tmp_path / "vault")
        verdict = verify(tmp_path / "bundle", Vault.open(tmp_path / "vault"))
        assert all(check.outcome == "ok" for check in verdict.checks), verdict
        assert missing("network", made.dossier.audit.attacks) == ()
        assert [line for line in weigh(made.bundle.card, (), made.dossier).reject if "fixed seed" not in line] == []

    def test_no_records_at_all_give_noise(self) -> None:
        channel = self.head()
        nobody = Records(np.zeros((0, 1, 8, 8), np.float32), np.zeros(0, np.int64))
        one = Records(np.zeros((1, 1, 8, 8), np.float32), np.zeros(1, np.int64))
        split = Split(channel.facts, nobody, nobody, one, nobody)
        net = channel.release(split, Randomness.make(0, insecure_seed=3), Run()).network.net
        assert isinstance(net, Framed)
        assert 0.16 < float(net.head.weight.std()) < 0.24

    def test_settings_that_cannot_be_kept_are_refused_before_data(self) -> None:
        with pytest.raises(ConfigError, match=r"settings\.features"):
            self.build(net="mlp")
        with pytest.raises(ConfigError, match="one of"):
            self.build(settings={"regularisation": 1.0, "logit_noise": 0.1})
        with pytest.raises(ConfigError, match="float64 can certify"):
            self.build(settings={"regularisation": 1e-12, "tolerance": 1e-6}).plan()


def test_the_default_of_the_channel_is_head() -> None:
    assert next(iter(methods.METHODS["answers"])) == "head"


def test_tables_take_the_record_itself_and_pictures_are_scattered() -> None:
    facts = data.Facts("own", (4,), ("a", "b"), 300, None, "x")
    assert methods.build(TestHead.config(data="x.csv", settings={}), facts).plan().details["net"] == "pixels-linear"
    assert TestHead.build(settings={}).plan().details["net"] == "scattering-linear"


def test_digits_at_epsilon_2_reaches_90_percent() -> None:
    """95 to 96% on average."""
    config = TestHead.config(settings={}, split={})
    channel = methods.build(config, data.describe(config))
    assert channel.release(data.load(config), Randomness.make(0), Run()).utility.accuracy >= 0.90


def test_the_record_of_the_case_moves_the_head_by_nine_tenths_of_the_sensitivity() -> None:
    settings = {"regularisation": CASE_REGULARISATION}
    channel = Head(case_config("head", 1.0, 1e-5, settings), case_facts())
    details = channel.plan().details
    z, net = float(details["noise_multiplier"]), channel.ready()
    both, others = (channel.solve(net, records, z, Run()) for records in neighbours())
    assert 0.9 < float((both - others).norm()) / float(details["sensitivity"]) <= 1
