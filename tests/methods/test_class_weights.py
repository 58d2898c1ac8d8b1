"""`class_weights` in releases: a rare class is found where it was not, at the same ε; refused where they do nothing."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import airlock
from airlock import data, methods
from airlock.config import ReleaseConfig, from_table
from airlock.data import Split
from airlock.data.memory import held
from airlock.errors import AirlockWarning, ConfigError
from airlock.mechanisms import Randomness, Stream
from airlock.methods.answers.linear_head import (
    CASE_REGULARISATION,
    CertifiedHead,
    case_config,
    case_facts,
    neighbours,
)
from airlock.methods.contract import Release
from airlock.training import Run

PATIENTS, DEATHS = 1500, 54
METHODS = {
    "weights/head": {},
    "weights/gaussian": {"net": "linear", "settings": {"steps": 60, "lot_size": 1000, "learning_rate": 80.0}},
    "answers/head": {},
    "answers/per-query": {"settings": {"queries": 20}},
}


def patients() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Age, lactate, blood pressure; 54 of 1,500 die."""
    rng = np.random.default_rng(0)
    dies = np.zeros(PATIENTS, np.int64)
    dies[rng.permutation(PATIENTS)[:DEATHS]] = 1
    age, lactate = rng.normal(60 + 14 * dies, 10), rng.normal(2 + 2.2 * dies, 1.0)
    return np.stack([age, lactate, rng.normal(120 - 20 * dies, 15)], 1), np.array(["lives", "dies"])[dies]


def asked(name: str, **changes: object) -> ReleaseConfig:
    channel, method = name.split("/")
    table: dict[str, object] = {
        "channel": channel,
        "method": method,
        "epsilon": 3,
        "delta": 1e-5,
        "device": "cpu",
        "split": {"test": 0.3, "holdout": 0.0},
        "data": {
            "source": ":memory:",
            "label": "label",
            "classes": ["lives", "dies"],
            "records": PATIENTS,
            "columns": {
                "age": {"min": 0, "max": 110},
                "lactate": {"min": 0, "max": 20},
                "pressure": {"min": 40, "max": 200},
            },
        },
    }
    return from_table({**table, **METHODS.get(name, {}), **changes})


@pytest.fixture(scope="module")
def split() -> Split:
    with held(patients()):
        return data.load(asked("weights/head"))


def released(name: str, split: Split, weights: object) -> Release:
    config = asked(name, class_weights=weights)
    with held(patients()):
        facts = data.describe(config)
    return methods.build(config, facts).release(split, Randomness(0, Stream.from_seed(1)), Run())


def test_the_card_shows_it(tmp_path: Path) -> None:
    """Recall of the rare class, with the noise that a card's counts have."""
    found = []
    for weights in (None, {"dies": 25}):
        config = asked("weights/gaussian", class_weights=weights)
        made = airlock.release(
            config, tmp_path / f"bundle{len(found)}", data=patients(), insecure_seed=1, vault=tmp_path / "vault"
        )
        figures = made.bundle.card.utility
        assert figures is not None
        found.append(figures.figures.recalls[1].value)
    assert found[0] == 0
    assert found[1] > 0.3


def recall(made: Release, label: int) -> float:
    found = made.utility
    return float((found.predicted[found.labels == label] == label).mean())


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_rare_class_is_found_at_the_same_price(name: str, split: Split) -> None:
    without, with_them = released(name, split, None), released(name, split, {"dies": 25})
    assert recall(without, 1) <= (0.25 if name == "weights/head" else 0)
    assert recall(with_them, 1) > 0.3, "no death is predicted"
    assert recall(with_them, 1) > recall(without, 1)
    assert with_them.guarantee.events == without.guarantee.events
    assert with_them.guarantee.epsilon == without.guarantee.epsilon
    assert with_them.plan.details["class_weights"] == "lives 0.04, dies 1"
    assert "class_weights" not in without.plan.details


@pytest.mark.parametrize("name", ["features/noised", "weights/published", "answers/published"])
def test_a_method_that_would_ignore_them_says_so(name: str) -> None:
    config = asked(name, class_weights={"dies": 10})
    with held(patients()):
        facts = data.describe(config)
    with pytest.raises(ConfigError, match="does not weigh records by their class"):
        methods.build(config, facts)


def test_a_free_choice_takes_a_method_that_weighs() -> None:
    config = asked("weights/head", class_weights=[1, 10]).model_copy(update={"method": None})
    with held(patients()):
        made = methods.build(config, data.describe(config))
    assert made.weighs_classes
    assert made.class_weights is not None


@pytest.mark.parametrize(
    "bad",
    [
        {"dies": 10**400},
        b"12",
        {"dies": 0},
        {"dies": -1},
        {"dies": "ten"},
        {"dies": True},
        [1, None],
        "dies",
        3,
        {"dies": float("inf")},
    ],
)
def test_weights_that_are_none(bad: object) -> None:
    with pytest.raises(ConfigError, match="class_weights"):
        asked("weights/head", class_weights=bad)


@pytest.mark.parametrize("name", ["twin/sharded", "answers/votes"])
def test_shards_weigh_too(name: str, split: Split) -> None:
    """Few of their records are of the rare class, so that little changes; but something does."""
    settings = {"shards": 10} if name == "twin/sharded" else {"queries": 20}
    found = []
    for weights in (None, {"dies": 25}):
        config = asked(name, class_weights=weights, settings=settings)
        with held(patients()), warnings.catch_warnings():
            warnings.simplefilter("ignore", AirlockWarning)
            channel = methods.build(config, data.describe(config))
            found.append(channel.release(split, Randomness(0, Stream.from_seed(1)), Run()))
    assert found[0].guarantee.events == found[1].guarantee.events
    kept = [made.secrets["heads"]["weight"] if made.secrets else _weights(made) for made in found]
    assert not np.array_equal(kept[0], kept[1])


def _weights(made: Release) -> np.ndarray[Any, Any]:
    return np.concatenate([p.detach().numpy().ravel() for p in made.network.net.parameters()])


def a_heavy_record_moves_the_head_by_no_more_than_its_sensitivity() -> None:
    """The record that differs is of the class that counts most, and of the one that counts least."""
    for weights in ([10.0, 1.0], [1.0, 10.0]):
        config = case_config("head", 1.0, 1e-5, {"regularisation": CASE_REGULARISATION})
        channel = methods.build(config.model_copy(update={"class_weights": tuple(weights)}), case_facts())
        assert isinstance(channel, CertifiedHead)
        both, others = (channel.solve(channel.ready(), side, 1.0, Run()) for side in neighbours())
        reach = float((both - others).norm()) / channel.objective(1.0).sensitivity()
        assert reach <= 1, f"a record of weight {weights[0]:g} moves the head by {reach:.3g} times the sensitivity"
        if weights[0] > weights[1]:
            assert reach > 0.5, "the record hardly counts"


def test_a_heavy_record_moves_the_head_by_no_more_than_its_sensitivity() -> None:
    a_heavy_record_moves_the_head_by_no_more_than_its_sensitivity()
