"""What DP-SGD is run with where nothing is set: a function of public facts, and near what is calibrated."""

from __future__ import annotations

import math

import pytest

from airlock import data, methods
from airlock.accounting import calibrate, gaussian_multiplier
from airlock.config import from_table
from airlock.errors import ConfigError
from airlock.methods.dp_sgd import NoisyTraining
from airlock.methods.weights import recipe

IMAGES = data.Facts("own", (3, 32, 32), tuple("abcdefghij"), 60_000, 10_000, "x")
GREY = data.Facts("own", (1, 28, 28), tuple("abcdefghij"), 60_000, 10_000, "x")


def opened(
    facts: data.Facts, epsilon: float = 3.0, net: str = "auto", runs: int = 1, **settings: object
) -> NoisyTraining:
    table = {"channel": "weights", "method": "gaussian", "data": "x.npz", "epsilon": epsilon, "delta": 1e-5}
    made = methods.build(from_table({**table, "net": net, "settings": settings, "tuning_runs": runs}), facts)
    assert isinstance(made, NoisyTraining)
    return made


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 8.0, 100.0])
def test_the_closed_form_of_one_gaussian(epsilon: float) -> None:
    import dp_accounting as dpa

    wanted = calibrate(dpa.GaussianDpEvent, epsilon, 1e-5)
    assert gaussian_multiplier(epsilon, 1e-5) == pytest.approx(wanted, abs=2e-3)


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_the_rule_knows_the_noise_well_enough(epsilon: float) -> None:
    made = opened(GREY, epsilon)
    rough = recipe.noise_multiplier(epsilon, 1e-5, made.sampling_probability, made.settings.steps)
    assert rough == pytest.approx(made.noise_multiplier(), rel=0.1)


def test_with_much_noise_the_drift_decides_and_with_little_the_reach() -> None:
    for epsilon in (0.05, 1000.0):
        settings, made = opened(GREY, epsilon).settings, opened(GREY, epsilon)
        reach = settings.learning_rate * settings.clip_norm / (1 - settings.momentum)
        noise = recipe.noise_multiplier(epsilon, 1e-5, made.sampling_probability, settings.steps)
        drift = reach * noise * math.sqrt(settings.steps) / made.expected_lot
        assert reach <= recipe.SMALL.reach * 1.001
        assert drift <= recipe.SMALL.drift * 1.001
        assert (drift if epsilon < 1 else reach) == pytest.approx(
            recipe.SMALL.drift if epsilon < 1 else recipe.SMALL.reach, rel=1e-3
        )


def test_runs_that_are_paid_for_count_as_more_noise() -> None:
    assert opened(GREY, 0.1, runs=9).settings.learning_rate < opened(GREY, 0.1).settings.learning_rate


def test_wide_networks_come_with_the_recipe_of_their_paper() -> None:
    colour, grey = opened(IMAGES, net="wrn-16-4").settings, opened(GREY, net="wrn-16-4").settings
    assert (colour.augment, grey.augment) == ("shift+flip", "shift")  # type: ignore[attr-defined]
    assert colour.augment_multiplicity == 4  # type: ignore[attr-defined]
    assert (colour.clip_norm, colour.momentum, colour.ema) == (1.0, 0.0, 0.9999)
    plain = opened(IMAGES, net="wrn-16-4", augment="none").settings
    assert plain.augment_multiplicity == 1  # type: ignore[attr-defined]


def test_what_is_set_stays_and_the_rate_follows_from_it() -> None:
    assert opened(GREY, learning_rate=0.7).settings.learning_rate == 0.7
    assert opened(GREY, clip_norm=1.0).settings.learning_rate == pytest.approx(
        opened(GREY, clip_norm=0.1).settings.learning_rate / 10, rel=1e-3
    )
    assert opened(GREY, optimiser="adam").settings.learning_rate == 1e-3


def test_a_setting_of_the_wrong_kind_is_named() -> None:
    with pytest.raises(ConfigError, match="steps"):
        opened(GREY, steps="many")


@pytest.mark.parametrize("records", [1, 300, 10**8])
@pytest.mark.parametrize("epsilon", [1e-3, 1000.0])
def test_it_works_for_any_size_and_epsilon(records: int, epsilon: float) -> None:
    facts = data.Facts("own", (3, 32, 32), ("a", "b"), records, 10, "x")
    for net in ("auto", "wrn-40-4"):
        assert 0 < opened(facts, epsilon, net).settings.learning_rate < math.inf
