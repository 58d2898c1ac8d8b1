"""`weights`/`gaussian`: the contract, and what is its own."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import dp_accounting as dpa
import pytest

from airlock import data, methods
from airlock.accounting import compute_epsilon
from airlock.config import from_table
from airlock.errors import ConfigError, NetError
from airlock.testing import MethodContract


class TestGaussian(MethodContract):
    channel, method = "weights", "gaussian"
    settings: ClassVar[dict[str, int]] = {"steps": 3, "lot_size": 400}

    def test_the_event_is_that_of_dp_sgd(self) -> None:
        plan = self.build().plan()
        noise = dpa.GaussianDpEvent(plan.details["noise_multiplier"])
        records = round(1797 * 0.7)
        assert plan.guarantee.events == dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(400 / records, noise), 3)

    def test_a_lot_as_large_as_the_data_is_not_sampled(self) -> None:
        plan = self.build(settings={"steps": 3, "lot_size": 5000}).plan()
        assert plan.guarantee.events.event == dpa.GaussianDpEvent(plan.details["noise_multiplier"])
        assert plan.details["sampling_probability"] == 1.0

    def test_half_the_noise_would_break_the_promise(self) -> None:
        plan = self.build().plan()
        half = dpa.GaussianDpEvent(float(plan.details["noise_multiplier"]) / 2)
        event = dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(plan.details["sampling_probability"], half), 3)
        assert compute_epsilon(event, self.delta).epsilon > 1.5 * self.epsilon

    def test_tuning_runs_repeat_the_whole_event(self) -> None:
        events = self.build(tuning_runs=4).plan().guarantee.events
        assert events.count == 4
        assert events.event.count == 3

    def test_a_net_with_batchnorm_is_refused_before_data(
        self, tmp_path: object, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        with Path("normed.py").open("w") as file:
            file.write(
                "from torch import nn\n"
                "def net(shape, classes):\n"
                "    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, classes))\n"
            )
        with pytest.raises(NetError, match="BatchNorm"):
            self.build(net="normed:net").plan()

    def test_a_net_that_does_not_fit_is_refused(self) -> None:
        with pytest.raises(NetError):
            self.build(net="mnist-net").plan()


def test_the_default_method_is_taken() -> None:
    config = from_table({"channel": "weights", "data": "digits", "epsilon": 1.0, "delta": 1e-5})
    assert methods.find(config).method == "gaussian"


@pytest.mark.parametrize(
    ("change", "words"),
    [({"channel": "weight"}, "Did you mean 'weights'"), ({"method": "gausian"}, "Did you mean 'gaussian'")],
)
def test_unknown_channels_and_methods_are_named(change: dict[str, str], words: str) -> None:
    config = from_table({"channel": "weights", "data": "digits", "epsilon": 1.0, "delta": 1e-5, **change})
    with pytest.raises(ConfigError, match=words):
        methods.build(config, data.describe(config))


@pytest.mark.parametrize("records", [1, 5, 300, 10**7])
def test_defaults_work_for_data_of_any_size(records: int) -> None:
    facts = data.Facts("own", (4,), ("a", "b"), records, None, "x")
    config = from_table({"channel": "weights", "data": "x.csv", "epsilon": 1.0, "delta": 1e-9})
    plan = methods.build(config, facts).plan()
    assert 0 < plan.details["sampling_probability"] <= 1  # type: ignore[operator]
