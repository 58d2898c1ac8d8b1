"""One whole release with canaries: sound methods stand and published ones fall; planted faults are in tests/faults."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
import torch

from airlock import methods
from airlock.auditing import OneRunVerdict, judge_one_run, one_run_audit
from airlock.errors import ConfigError, Refused
from airlock.mechanisms import Clip, Stream
from airlock.mechanisms.clipping import SLACK
from airlock.methods import Canaries, dp_sgd_case
from airlock.methods.contract import Channel
from airlock.methods.weights.gaussian import Gaussian
from airlock.threads import one_thread
from airlock.training.per_sample import clipped_sum
from tests.faults.plants import grid_noise_over, no_noise, noise_over, records_of_a_person_clipped_one_by_one
from tests.methods import test_cases

COUNT = 400
_SLOW = ("weights/shaped", "weights/head", "student/ensemble")
# They have a case, and no canaries.
_SHARDS = ("twin/sharded", "student/ensemble")  # where others share a canary's shard
_WITHOUT = (
    "twin/kde-sharded",
    "features/noised",
    "answers/votes",
    "answers/neighbours",
    "answers/published",
    "student/neighbours",
)
NAMES, SOUND = ([n for n in names if n not in _WITHOUT] for names in (test_cases.NAMES, test_cases.SOUND))
PEOPLE = 60  # canaries that are people, with eight records each
Patch = pytest.MonkeyPatch


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@cache
def opened(name: str, count: int = COUNT) -> Canaries:
    return methods.open_canaries(name, 1.0, 1e-5, count)


@cache
def opened_of_people(name: str, count: int = PEOPLE) -> Canaries:
    return methods.open_canaries(name, 1.0, 1e-5, count, people=True)


def tried(name: str, seed: int = 1, count: int = COUNT) -> OneRunVerdict:
    return judge_one_run(opened(name, count), Stream.from_seed(seed))


@pytest.mark.parametrize("name", NAMES)
def test_every_method_has_canaries_and_claims_what_it_runs(name: str) -> None:
    canaries = opened(name)
    assert 0.99 < canaries.claim.epsilon <= 1.0
    assert (canaries.claim.delta, canaries.count) == (1e-5, COUNT)
    assert canaries.what
    assert canaries.statistic


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_method_stands(name: str) -> None:
    verdict = tried(name)
    assert not verdict.refuted, verdict.to_dict()
    assert verdict.looks[0].correct > COUNT / 2  # canaries can be seen, a little


def test_the_published_method_is_refuted_by_one_run() -> None:
    verdict = tried("weights/published", count=1000)
    assert verdict.refuted
    assert verdict.epsilon_lower_bound > 1.0


def test_canaries_have_orthogonal_gradients_at_the_clip_norm_in_their_own_direction() -> None:
    channel = Gaussian(dp_sgd_case.canary_config("gaussian", 1.0, 1e-5, 40), dp_sgd_case.canary_facts(40))
    net, every = channel.net(), dp_sgd_case.canaries_in_pairs(40)
    x, y = torch.from_numpy(every.x), torch.from_numpy(every.y)
    rows = []
    for i in range(40):
        free, _ = clipped_sum(net, x[i : i + 1], y[i : i + 1], Clip(1e9))
        assert sum(float(g.square().sum()) for g in free.values()) ** 0.5 > 10 * channel.settings.clip_norm
        bound, _ = clipped_sum(net, x[i : i + 1], y[i : i + 1], Clip(channel.settings.clip_norm))
        rows.append(torch.cat([g.flatten().double() for g in bound.values()]))
    products = torch.stack(rows) @ torch.stack(rows).T
    wanted = channel.settings.clip_norm**2 * torch.eye(40, dtype=torch.float64)
    assert torch.allclose(products, wanted, atol=1e-4 + 2 * SLACK * channel.settings.clip_norm**2)


def test_a_run_depends_on_the_coins_and_the_stream_alone() -> None:
    coins = np.arange(10) % 2 == 0
    first, again, other = (
        opened("weights/published", 10).run(found, Stream.from_seed(3)) for found in (coins, coins, ~coins)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_without_noise_every_guess_is_right(monkeypatch: Patch) -> None:
    opened("weights/gaussian", 100)
    no_noise(monkeypatch)
    coins = Stream.from_seed(7).uniform(100) < 0.5
    scores = opened("weights/gaussian", 100).run(coins, Stream.from_seed(8))
    assert scores[coins].min() > scores[~coins].max()


def test_a_method_without_canaries_is_refused() -> None:
    bare = type("Bare", (Channel,), {"channel": "weights", "method": "bare"})
    with pytest.raises(Refused, match="canaries for the court"):
        Channel.canaries.__func__(bare, 1.0, 1e-5, 100)
    with pytest.raises(Refused, match="canaries for the court that are people"):
        Channel.canaries_of_people.__func__(bare, 1.0, 1e-5, 100)


@pytest.mark.parametrize("name", SOUND)
def test_canaries_may_be_people_wherever_people_are_protected(name: str) -> None:
    canaries = opened_of_people(name)
    assert "person" in methods.named(name).units
    assert 0.99 < canaries.claim.epsilon <= 1.0
    assert canaries.count == PEOPLE
    assert "people with 8 records each" in canaries.what
    verdict = judge_one_run(canaries, Stream.from_seed(1))
    assert not verdict.refuted, verdict.to_dict()


@pytest.mark.parametrize("name", [name for name in SOUND if name not in _SHARDS])
def test_a_person_adds_what_one_record_would(name: str) -> None:
    """The same coins, lots and noise: with eight records each, what is released is the same up to rounding."""
    coins = Stream.from_seed(7).uniform(PEOPLE) < 0.5
    records, people = (made(name, PEOPLE).run(coins, Stream.from_seed(8)) for made in (opened, opened_of_people))
    np.testing.assert_allclose(people, records, rtol=1e-3, atol=1e-3 * np.abs(records).max())


def test_records_of_a_canary_that_are_clipped_one_by_one_add_up(monkeypatch: Patch) -> None:
    coins, canaries = Stream.from_seed(7).uniform(PEOPLE) < 0.5, opened_of_people("weights/gaussian")
    no_noise(monkeypatch)
    usual = canaries.run(coins, Stream.from_seed(8))
    records_of_a_person_clipped_one_by_one(monkeypatch)
    found = canaries.run(coins, Stream.from_seed(8))
    np.testing.assert_allclose(found[coins], 8 * usual[coins], rtol=0.05)


@pytest.mark.parametrize("name", ["weights/published", "twin/published", "student/published"])
def test_a_paper_that_claims_nothing_about_people_is_not_tried_with_them(name: str) -> None:
    with pytest.raises(ConfigError, match="a method that protects people"):
        methods.open_canaries(name, 1.0, 1e-5, 100, people=True)
    with pytest.raises(ConfigError, match="a method that protects people"):
        methods.open_case(name, 1.0, 1e-5, people=True)


def test_one_run_of_the_published_student_shows_every_record() -> None:
    verdict = tried("student/published")
    assert verdict.refuted
    assert verdict.looks[0].correct > 0.98 * COUNT


def test_one_run_of_the_published_twin_shows_every_record() -> None:
    verdict = tried("twin/published")
    assert verdict.refuted
    assert verdict.looks[0].correct > 0.98 * COUNT


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.long) if name in _SLOW else name for name in SOUND],
)
def test_canaries_show_what_their_power_is_computed_from(name: str, monkeypatch: Patch) -> None:
    """With a quarter of the noise as many guesses are right as the family says."""
    family = opened(name).family
    assert family is not None
    (grid_noise_over if name == "answers/per-query" else noise_over)(4.0)(monkeypatch)
    expected = one_run_audit._accuracy(1.0, *family.at(4.0).chances)
    seen = [tried(name, seed).looks[0].correct / COUNT for seed in (1, 2)]
    assert abs(np.mean(seen) - expected) < 4 * (0.25 / (2 * COUNT)) ** 0.5
