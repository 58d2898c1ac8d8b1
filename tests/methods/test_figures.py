"""What a method executes is read from the figures of its plan; the details of the plan are for people alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airlock import methods
from airlock.accounting import to_json
from airlock.data import divide
from airlock.errors import Refused
from airlock.mechanisms import Randomness
from airlock.methods import Channel, Release
from airlock.training import Run
from tests.methods.test_missing_records import FACTS, config, digits

NOISY = ["weights/gaussian", "weights/shaped", "weights/head", "student/private-teacher"]
OTHERS = ["weights/published", "student/ensemble", "student/published"]


def built(name: str) -> Channel:
    return methods.build(config(name), FACTS)


def released(channel: Channel) -> Release:
    split = divide(FACTS, digits(), None, channel.config.split, channel.config.seed)
    return channel.release(split, Randomness.make(0, insecure_seed=1), Run())


@pytest.mark.filterwarnings("ignore::airlock.errors.AirlockWarning")
@pytest.mark.parametrize("name", NOISY + OTHERS)
def test_a_release_reads_no_details(name: str) -> None:
    channel = built(name)
    plan = channel.planned
    channel.planned = replace(plan, details={})
    assert to_json(released(channel).guarantee.events) == to_json(plan.guarantee.events)


@pytest.mark.parametrize("name", NOISY)
def test_the_noise_is_that_of_the_planned_figures(name: str) -> None:
    """With half of it in the figures half of it is executed, which is not what was promised."""
    channel = built(name)
    plan = channel.planned
    channel.planned = replace(plan, figures=replace(plan.figures, noise_multiplier=plan.figures.noise_multiplier / 2))
    with pytest.raises(Refused, match="the executed events to equal the planned ones"):
        released(channel)


@pytest.mark.filterwarnings("ignore::airlock.errors.AirlockWarning")
def test_answers_are_released_as_planned() -> None:
    channel = built("student/ensemble")
    assert channel.plan().figures is channel.answering  # type: ignore[attr-defined]
