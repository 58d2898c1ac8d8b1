"""Whoever holds a bundle and knows everybody else learns no more about one person than the stated ε allows.

The adversary is strong enough to be worth asking: he sees through exact figures every time, and through little noise.
"""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

import pytest

from airlock.bundle import export
from tests.bundle.adversary import (
    METHODS,
    PARTS,
    Maker,
    World,
    allowed,
    by_pipeline,
    guesses,
    with_a_count,
    with_exact_figures,
    with_paid_counts,
)

pytestmark = pytest.mark.filterwarnings("ignore::airlock.errors.AirlockWarning")  # of so much noise
EPSILON = 0.1
TRIALS = {"private": 23, "test": 23, "holdout": 22}  # of each method, in `make test-full`
FEWER = {"private": 7, "test": 7, "holdout": 6}


@pytest.fixture(autouse=True)
def _exported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An export takes longer than the rest of a small release; one file stands for all, and nobody reads it."""
    monkeypatch.setattr(export, "to_onnx", lambda artefact: once())


@cache
def once() -> bytes:
    return b"the network in another form"


def tried(maker: Maker, method: str, folder: Path, trials: dict[str, int], epsilon: float = EPSILON) -> dict[str, int]:
    """How often the adversary is right, for each part that the person falls into."""
    found = {}
    for part in PARTS:
        place = folder / part
        place.mkdir()
        found[part] = guesses(World(method, part, epsilon, place), maker, trials.get(part, 0))
    return found


def test_there_are_two_hundred_trials() -> None:
    assert len(METHODS) * sum(TRIALS.values()) >= 200


@pytest.mark.parametrize(
    ("of_each", "error"),
    [pytest.param(FEWER, 1e-3, id="fewer"), pytest.param(TRIALS, 1e-6, id="all", marks=pytest.mark.long)],
)
@pytest.mark.parametrize("method", METHODS)
def test_the_adversary_is_right_no_more_often_than_is_stated(
    method: str, of_each: dict[str, int], error: float, tmp_path: Path
) -> None:
    """Nor wrong more often: then he would be right by saying the opposite."""
    right, trials = tried(by_pipeline, method, tmp_path, of_each), sum(of_each.values())
    most = allowed(trials, EPSILON, error)
    assert most < trials
    assert trials - most <= sum(right.values()) <= most, right


@pytest.mark.parametrize(
    "method", ["weights/gaussian", "answers/head", pytest.param("twin/sharded", marks=pytest.mark.long)]
)
def test_a_card_with_exact_figures_gives_everybody_away(method: str, tmp_path: Path) -> None:
    """As it was: right every time, at a stated ε that allows 52.5%."""
    trials = dict.fromkeys(PARTS, 2)
    assert tried(with_exact_figures, method, tmp_path, trials) == trials


def test_little_noise_on_the_weights_or_on_the_counts_is_seen_through(tmp_path: Path) -> None:
    """At ε = 100 he names her from the weights alone, and from the counts alone."""
    method, trials = "weights/gaussian", {"private": 8, "test": 8}
    assert tried(with_paid_counts, method, tmp_path, trials, 100.0) == {**trials, "holdout": 0}


def test_counts_with_too_little_noise_are_noticed(tmp_path: Path) -> None:
    """A fault: ε is stated, and the noise is that of 300 ε."""
    maker = partial(with_paid_counts, fault=300.0)
    right = tried(maker, "answers/head", tmp_path, {"test": 20})["test"]
    assert right > allowed(20, EPSILON, 1e-3)


def test_a_count_among_the_details_is_noticed(tmp_path: Path) -> None:
    trials = {"private": 6}
    assert tried(with_a_count, "twin/sharded", tmp_path, trials)["private"] == 6
