"""`weights`/`gaussian`: the contract, and what is its own."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import dp_accounting as dpa
import numpy as np
import pytest

from airlock import data, methods
from airlock.accounting import compute_epsilon
from airlock.auditing import judge
from airlock.config import from_table
from airlock.errors import ConfigError, NetError
from airlock.mechanisms import Randomness, Stream
from airlock.testing import MethodContract
from airlock.training import Run


class TestGaussian(MethodContract):
    channel, method = "weights", "gaussian"
    settings: ClassVar[dict[str, int]] = {"steps": 3, "lot_size": 100}

    def test_the_event_is_that_of_dp_sgd(self) -> None:
        plan = self.build().plan()
        noise = dpa.GaussianDpEvent(plan.details["noise_multiplier"])
        records = round(1797 * 0.2)
        assert plan.guarantee.events == dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(100 / records, noise), 3)

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


class TestPeople:
    """Where the data say whose a record is."""

    FACTS = data.Facts("own", (4,), ("a", "b"), 900, None, "x", people=300, records_per_person=5)
    TABLE: ClassVar[dict[str, object]] = {
        "channel": "weights", "data": "x.csv", "epsilon": 1.0, "delta": 1e-5, "net": "linear",
        "split": {"test": 0.0, "holdout": 0.0}, "settings": {"steps": 3, "lot_size": 60, "clip_norm": 0.5},
    }  # fmt: skip

    @pytest.mark.parametrize("method", ["gaussian", "shaped"])
    def test_the_promise_is_about_people(self, method: str) -> None:
        made = methods.build(from_table({**self.TABLE, "method": method}), self.FACTS)
        plan = made.planned
        noise = dpa.GaussianDpEvent(float(plan.details["noise_multiplier"]))
        assert plan.guarantee.events == dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(60 / 300, noise), 3)
        assert plan.guarantee.unit == "person"
        assert "every person enters a lot" in plan.guarantee.sampling
        assert not any("contributes one record" in line for line in plan.guarantee.assumptions)
        assert any("numbers of people" in line for line in plan.guarantee.assumptions)
        assert plan.details["records_per_person"] == 5
        private = of_people(300)
        split = data.Split(self.FACTS, private, *[private.take(np.arange(0))] * 3)
        made = methods.build(from_table({**self.TABLE, "method": method}), self.FACTS)
        release = made.release(split, Randomness.make(0, insecure_seed=1), Run())
        assert release.guarantee.unit == "person"

    def test_a_method_for_records_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="protects one record"):
            methods.build(from_table({**self.TABLE, "method": "published"}), self.FACTS)

    def test_the_case_of_a_person_stands(self) -> None:
        """Fifty records, ε = 1; clipped one by one they are refuted (tests/faults)."""
        case = methods.open_case("weights/gaussian", 1.0, 1e-5, people=True)
        assert not judge(case, Stream.from_seed(1), 100, seconds=1e9).refuted


def of_people(people: int) -> data.Records:
    """One to nine records each."""
    chance = np.random.default_rng(0)
    person = np.repeat(np.arange(people), chance.integers(1, 10, people))
    return data.Records(chance.random((len(person), 4), np.float32), person % 2, person)


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
