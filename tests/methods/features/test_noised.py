"""The rows of `features`/`noised`: those of nobody tell nothing, the court sees how many there are, and people's."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import dp_accounting as dpa
import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.datasets import load_digits

from airlock.auditing import judge
from airlock.auditing.features import release as of_release
from airlock.config import from_table
from airlock.data import Facts, Records, Split, at_most, divide, people
from airlock.data.feature_files import load
from airlock.mechanisms import LocalGaussian, RandomisedResponse, Randomness, Stream, reconstruction
from airlock.methods import FeatureSet, Release
from airlock.methods.contract import ONE_RECORD
from airlock.methods.features import noised
from airlock.methods.features.noised import Noised
from airlock.methods.rows import draw_rows
from airlock.training import Run
from airlock.training.devices import to_input
from airlock.training.front_ends.extract import NOBODY

Patch = pytest.MonkeyPatch
FACTS = Facts("x", (1, 8, 8), tuple("abcd"), 40, None, "made up")


def channel(**more: Any) -> Noised:
    table = {"channel": "features", "method": "noised", "data": "x", "epsilon": 4.0, "delta": 1e-3, "device": "cpu"}
    own = {"front": "tests.methods.features.test_methods:own_front", "layers": 2, "project": 4, "clip": 1.0, **more}
    return Noised(from_table({**table, "settings": own}), FACTS)


def protected(made: Noised, labels: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """What is written where every record's features are as long as they may be."""
    mechanism = LocalGaussian(1.0, made.noise_multiplier)
    features = torch.tensor([1.0, 0.0, 0.0, 0.0]).repeat(len(labels), 1)
    found: tuple[np.ndarray, np.ndarray] = made.protect(mechanism)(features, labels, Stream.from_seed(seed))
    return found


def test_a_row_of_nobody_is_noise_around_zero_and_has_any_label() -> None:
    labels = np.repeat([NOBODY, 2], 20_000)
    x, y = protected(channel(), labels)
    sigma = 2 * channel().noise_multiplier
    nobody, someone = x[:20_000], x[20_000:]
    assert stats.kstest(nobody.ravel() / sigma, "norm").pvalue > 1e-4
    assert stats.kstest((someone - [1, 0, 0, 0]).ravel() / sigma, "norm").pvalue > 1e-4
    assert abs(nobody[:, 0].mean()) < 5 * sigma / np.sqrt(20_000) < 0.5 < someone[:, 0].mean()
    assert stats.chisquare(np.bincount(y[:20_000], minlength=4)).pvalue > 1e-4
    assert (y[20_000:] == 2).all()
    assert (y >= 0).all()


def test_the_label_of_nobody_goes_through_randomised_response_too() -> None:
    made = channel(label_epsilon=1.0)
    assert made.response == RandomisedResponse(4, 1.0)
    y = protected(made, np.repeat([NOBODY, 2], 20_000))[1]
    assert stats.chisquare(np.bincount(y[:20_000], minlength=4)).pvalue > 1e-4
    share = (y[20_000:] == 2).mean()
    assert abs(share - made.response.kept) < 5 * np.sqrt(0.25 / 20_000)


def test_the_front_end_never_shows_in_a_row_of_nobody() -> None:
    """A blank picture has features, which would tell rows of nobody from others; they are not what is written."""
    made, blank = channel(), torch.full((3, 4), 50.0)
    found = made.protect(LocalGaussian(1.0, 1e-9))(blank, np.full(3, NOBODY), Stream.from_seed(0))[0]
    assert np.abs(found).max() < 1e-6


def test_the_case_is_of_a_record_present_and_absent_and_sees_the_number_of_rows(monkeypatch: Patch) -> None:
    opened = Noised.case(1.0, 1e-5)
    assert "one more" in opened.pair
    scores = [opened.run(known, 3, Stream.from_seed(1)) for known in (True, False)]
    assert (scores[0][:, 2] == 1).all()
    assert (scores[1][:, 2] == 1).all()
    monkeypatch.setattr(noised, "draw_rows", lambda records, count, *more: np.arange(len(records)))
    scores = [opened.run(known, 3, Stream.from_seed(2)) for known in (True, False)]
    assert (scores[0][:, 2] == 2).all()
    assert (scores[1][:, 2] == 1).all()


def test_the_plan_says_how_many_rows_and_the_release_draws_that_many() -> None:
    assert channel().plan().details["rows"] == FACTS.expected("private", channel().config.split) == 28
    assert noised.draw_rows is draw_rows


# People.

MOST = 3
SETTINGS = {
    "front": "tests.methods.features.test_methods:own_front", "layers": 2, "project": 10, "public": "split",
    "precision": "float32",
}  # fmt: skip


def of_people(**more: Any) -> tuple[Noised, Split]:
    """Digits of 400 people with one to eight each; every fiftieth has fifty."""
    table = {"channel": "features", "method": "noised", "data": "digits", "epsilon": 8.0, "delta": 1e-3}
    asked = from_table(
        {**table, "split": {"public": 0.5, "test": 0.1, "holdout": 0.1}, "settings": {**SETTINGS, **more}}
    )
    known = load_digits()
    ids = [f"{who}" for who in range(400) for _ in range(50 if who % 50 == 7 else 1 + who % 5)][:1797]
    x = np.ascontiguousarray(known.images[: len(ids), None] * 15).astype(np.uint8)
    pool = Records(x, known.target[: len(ids)].astype(np.int64), people.number(ids))
    facts = Facts("digits", (1, 8, 8), tuple("0123456789"), 1200, None, "x", people=400, records_per_person=MOST)
    return Noised(asked, facts), divide(facts, pool, None, asked.split, asked.seed)


@pytest.fixture(scope="module")
def release() -> Release:
    made, split = of_people()
    return made.release(split, Randomness.make(0, insecure_seed=1), Run())


def test_the_plan_is_about_people_and_counts_their_rows(release: Release) -> None:
    made, split = of_people()
    plan = made.plan()
    assert (plan.guarantee.unit, plan.guarantee.relation) == ("person", "add-remove")
    assert plan.details["rows"] == 3 * split.facts.expected("private", made.config.split)  # 1200 records of 400
    assert plan.details["records_per_person"] == MOST
    assert plan.details["noise_over_clip_norm"] == pytest.approx(2 * math.sqrt(3) * made.noise_multiplier)
    said = " ".join(release.guarantee.assumptions)
    assert ONE_RECORD not in release.guarantee.assumptions
    assert "At most 3 of these rows are one person's" in said
    assert "one person's pictures need not be" in said
    assert release.guarantee.events == dpa.GaussianDpEvent(made.noise_multiplier)
    few = replace(made.facts, records=600)
    assert Noised(made.config, few).rows == round(1.5 * made.facts.expected("private", made.config.split))


def test_nobody_has_more_rows_than_declared_and_the_noise_hides_all_of_them(release: Release) -> None:
    made, split = of_people()
    features, order = release.artefact, release.secrets["choices"]["order"]
    assert isinstance(features, FeatureSet)
    assert split.private.person is not None
    times = np.unique(split.private.person, return_counts=True)[1]
    own = np.unique(split.private.person[order[order >= 0]], return_counts=True)[1]
    assert times.max() == 50
    assert own.max() == MOST
    assert len(own) == len(times)
    assert features.front is not None
    assert features.clip is not None
    mechanism = LocalGaussian(features.clip, made.noise_multiplier, MOST)
    with torch.no_grad():
        numbers = features.front(to_input(torch.from_numpy(split.private.x[order])))
        numbers[order < 0] = 0.0
    noise = (load(features.folder, features.manifest).x - mechanism.clip(numbers).numpy()).ravel()
    assert features.manifest.noise == mechanism.sigma
    assert stats.kstest(noise / mechanism.sigma, "norm").pvalue > 1e-4
    assert stats.kstest(noise / (mechanism.sigma / math.sqrt(3)), "norm").pvalue < 1e-4


def test_what_leaves_has_the_same_form_with_and_without_a_person_of_fifty_records(release: Release) -> None:
    made, split = of_people()
    assert split.private.person is not None
    whose, times = np.unique(split.private.person, return_counts=True)
    rest = split.private.take(np.flatnonzero(split.private.person != whose[times.argmax()]))
    less = made.release(replace(split, private=rest), Randomness.make(0, insecure_seed=1), Run())
    known, found = (one.artefact.manifest.shards for one in (release, less))  # type: ignore[union-attr]
    assert [(one.name, one.records, one.bytes) for one in known] == [
        (one.name, one.records, one.bytes) for one in found
    ]
    assert (less.plan, less.guarantee) == (release.plan, release.guarantee)


def labels_of_a_person_are_paid_for() -> None:
    """Each of K answers has a K-th of the share, and all K are counted."""
    made, _ = of_people(label_epsilon=3.0)
    assert made.response == RandomisedResponse(10, 1.0)
    gaussian, labels = made.plan().guarantee.events.events
    assert labels == dpa.SelfComposedDpEvent(made.response.event, MOST)
    assert isinstance(gaussian, dpa.GaussianDpEvent)
    assert 7.0 < made.plan().guarantee.epsilon <= 8.0


def test_the_labels_of_a_person_are_paid_for() -> None:
    labels_of_a_person_are_paid_for()


def test_the_bound_on_reconstruction_is_that_of_a_persons_rows(release: Release) -> None:
    """From one picture of each public person, with the labels of the other rows, at the noise that hides all rows."""
    made, split = of_people()
    features = release.artefact
    assert isinstance(features, FeatureSet)
    one_each = at_most(split.public, 1, made.config.seed)
    assert len(one_each) == split.public.units < len(split.public)
    pixels, labels = to_input(torch.from_numpy(one_each.x)), torch.from_numpy(one_each.y)
    levels = list(reconstruction.LEVELS)
    blind = reconstruction.blind_guess(pixels, levels, made.config.seed, 10, labels, MOST)
    assert [row.blind for row in features.recovery] == blind
    assert [row.bound for row in features.recovery] == [reconstruction.bound(b, made.noise_multiplier) for b in blind]


def test_in_court_a_person_of_many_records_moves_her_rows_as_far_as_is_accounted_for() -> None:
    case = Noised.case_of_people(1.0, 1e-5)
    assert case.family is not None
    assert 0.99 < case.family.reach <= 1.0
    assert "300 records" in case.pair
    assert not judge(case, Stream.from_seed(1), 400, seconds=1e9).refuted
    scores = [case.run(known, 2, Stream.from_seed(1)) for known in (True, False)]
    assert all((found[:, 2] == 256).all() for found in scores)


def test_an_audit_looks_up_the_records_that_left_whatever_its_seed(release: Release, monkeypatch: Patch) -> None:
    made, split = of_people()
    features, seen = release.artefact, []
    assert isinstance(features, FeatureSet)
    monkeypatch.setattr(of_release, "attack", lambda pipeline, left, own, *more, **rest: seen.append(own.private))
    kept = Noised.kept_front_end(release.secrets)
    of_release.attack_features(features, kept, 1e-3, split, made.config.split, 5, None, None, made.config.seed)
    order = release.secrets["choices"]["order"]
    assert split.private.person is not None
    assert np.array_equal(np.sort(seen[0].person), np.sort(split.private.person[order[order >= 0]]))
    assert Counter(map(bytes, seen[0].x)) == Counter(map(bytes, split.private.x[order[order >= 0]]))
