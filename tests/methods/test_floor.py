"""Public records alone as a floor: what decides, what it costs, and what the card says."""

from __future__ import annotations

from typing import Any

import dp_accounting as dpa
import numpy as np
import pytest
import torch

from airlock import data, methods
from airlock.accounting import compute_epsilon
from airlock.config import from_table
from airlock.data import Records
from airlock.errors import ConfigError
from airlock.mechanisms import Randomness, Stream
from airlock.methods.floor import SHARE, Floor, right
from airlock.methods.weights.gaussian import Gaussian
from airlock.training import Run

TABLE: dict[str, Any] = {
    "channel": "weights", "method": "gaussian", "data": "digits", "epsilon": 3.0, "delta": 1e-4, "net": "linear",
    "split": {"public": 0.4}, "settings": {"steps": 5, "lot_size": 200, "clip_norm": 1.0},
}  # fmt: skip


def built(**changes: Any) -> Gaussian:
    config = from_table({**TABLE, **changes})
    made = methods.build(config, data.describe(config))
    assert isinstance(made, Gaussian)
    return made


def released(channel: Gaussian, seed: int = 1) -> methods.Release:
    return channel.release(data.load(channel.config), Randomness.make(0, insecure_seed=seed), Run())


def one_record_moves_the_count_by_at_most_one() -> None:
    """The worst record: only the second model is right on it, or only the first; a person's records count as one."""
    floor = Floor(1e-9, 10)
    records = Records(np.zeros((4, 1), np.float32), np.zeros(4, np.int64), np.array([0, 0, 0, 1]))
    for person in (None, records.person):
        own = Records(records.x, records.y, person)
        without = own.take(np.arange(3, 4) if person is not None else np.arange(1, 4))
        for first, second in ((True, False), (False, True), (True, True)):
            before, after = np.full(4, first), np.full(4, second)
            gains = [
                floor.measure(before[-len(side) :], after[-len(side) :], side, Stream.from_seed(0)).count
                for side in (own, without)
            ]
            assert abs(gains[0] - gains[1]) <= 1 + 1e-6


def test_one_record_or_person_moves_the_count_by_at_most_one() -> None:
    one_record_moves_the_count_by_at_most_one()


def the_count_has_the_noise_that_is_accounted_for() -> None:
    """10,000 counts of nobody."""
    floor, nobody = Floor(3.0, 10), Records(np.zeros((0, 1), np.float32), np.zeros(0, np.int64))
    none = np.zeros(0, np.bool_)
    stream = Stream.from_seed(3)
    found = [floor.measure(none, none, nobody, stream.child(i)).count for i in range(10_000)]
    assert np.std(found) == pytest.approx(3.0, rel=0.04)
    assert floor.measure(none, none, nobody, stream.child("x")).event == dpa.GaussianDpEvent(3.0)


def test_the_count_has_the_noise_that_is_accounted_for() -> None:
    the_count_has_the_noise_that_is_accounted_for()


def test_it_is_a_small_part_of_the_budget_and_within_it() -> None:
    channel = built()
    assert channel.floor is not None
    plan = channel.planned
    assert plan.guarantee.epsilon <= 3.0
    alone = compute_epsilon(dpa.GaussianDpEvent(Floor.of(channel.config, 100).noise_multiplier), 1e-4).epsilon
    assert alone < 0.5
    assert built(settings={**TABLE["settings"], "start": "own"}).planned.figures.noise_multiplier == pytest.approx(
        plan.figures.noise_multiplier * (1 - SHARE) ** 0.5, rel=0.02
    )
    assert dpa.GaussianDpEvent(Floor.of(channel.config, 100).noise_multiplier) in plan.guarantee.events.events


def test_tuning_runs_pay_for_every_comparison() -> None:
    plan = built(tuning_runs=4).planned
    assert plan.guarantee.events.count == 4
    assert plan.guarantee.epsilon <= 3.0


def test_a_release_starts_from_the_public_records_and_says_what_the_private_ones_add() -> None:
    channel = built()
    release = released(channel)
    details = release.plan.details
    assert details["starts_from"] == "the public records"
    assert details["public_records"] == len(data.load(channel.config).public)
    assert isinstance(details["gain_over_public_alone"], float)
    assert any("public part of the split" in line for line in release.guarantee.assumptions)


def test_what_is_worse_than_the_public_records_alone_does_not_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rate that destroys the network: what leaves is the public one, bit for bit."""
    monkeypatch.setattr("airlock.methods.weights.gaussian.bearable", lambda *given, **more: 1e6)
    channel = built()
    split, public = data.load(channel.config), {}

    def kept(net: torch.nn.Module, *given: Any) -> Any:
        public.update({name: value.clone() for name, value in net.state_dict().items()})
        return right(net, *given)

    monkeypatch.setattr(
        "airlock.methods.weights.gaussian.right", lambda *given: kept(*given) if not public else right(*given)
    )
    release = channel.release(split, Randomness.make(0, insecure_seed=1), Run())
    assert release.plan.details["after_the_comparison"] == "the model of the public records alone"
    assert all(torch.equal(value, public[name]) for name, value in release.network.net.state_dict().items())
    assert release.utility.accuracy > 0.8


def test_a_public_part_that_is_empty_is_no_error() -> None:
    channel = built()
    split = data.load(channel.config)
    none = data.Split(split.facts, split.private, split.public.take(np.arange(0)), split.test, split.holdout)
    assert channel.release(none, Randomness.make(0, insecure_seed=1), Run()).plan.details["public_records"] == 0


def test_without_public_records_there_is_none() -> None:
    assert built(split={"public": 0.0}).floor is None
    with pytest.raises(ConfigError, match="public part"):
        built(split={"public": 0.0}, settings={**TABLE["settings"], "start": "public"})


@pytest.mark.filterwarnings("ignore:the noise will have")
@pytest.mark.parametrize(("channel", "method"), [("weights", "head"), ("twin", "sharded")])
def test_heads_are_compared_with_that_of_the_public_records(channel: str, method: str) -> None:
    """And the worse of the two does not leave; without a public part nothing is spent on it."""
    own = {"features": "pixels"} | ({"steps": 20} if method == "head" else {"shards": 40, "noise_limit": 1e9})
    table = {**TABLE, "channel": channel, "method": method, "net": "auto", "settings": own}

    def made(**changes: Any) -> Any:
        config = from_table({**table, **changes})
        return methods.build(config, data.describe(config))

    good, bad = made(), made(epsilon=0.01)
    assert good.planned.guarantee.epsilon <= 3.0
    for one in (good, bad):
        release = one.release(data.load(one.config), Randomness.make(0, insecure_seed=1), Run())
        assert release.utility.accuracy > 0.85
        assert "gain_over_public_alone" in release.plan.details
        assert any("public part of the split" in line for line in release.guarantee.assumptions)
    for alone in (made(split={"public": 0.0}), made(settings={**own, "floor": False})):
        assert alone.floor is None
        assert "noise_multiplier_of_the_floor" not in alone.planned.details


@pytest.mark.parametrize("method", ["weights/gaussian", "weights/shaped", "weights/head", "twin/sharded"])
def test_the_court_sees_what_training_gives_and_not_what_the_comparison_lets_through(method: str) -> None:
    """Of two dozen records the comparison would keep nearly everything back, and a fault with it."""
    assert methods.named(method).small is not None
    table = {"channel": method.split("/")[0], "method": method.split("/")[1], "data": "digits", "epsilon": 3.0}
    config = from_table(
        {**table, "delta": 1e-4, "split": {"public": 0.4}, "settings": dict(methods.named(method).small or {})}
    )
    made: Any = methods.build(config, data.describe(config))
    assert made.floor is None
