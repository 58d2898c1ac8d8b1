"""The rows of `features`/`noised`: those of nobody tell nothing, and the court sees how many there are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from airlock.config import from_table
from airlock.data import Facts
from airlock.mechanisms import LocalGaussian, RandomisedResponse, Stream
from airlock.methods.features import noised
from airlock.methods.features.noised import Noised
from airlock.methods.rows import draw_rows
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
    monkeypatch.setattr(noised, "draw_rows", lambda records, count, choices: np.arange(len(records)))
    scores = [opened.run(known, 3, Stream.from_seed(2)) for known in (True, False)]
    assert (scores[0][:, 2] == 2).all()
    assert (scores[1][:, 2] == 1).all()


def test_the_plan_says_how_many_rows_and_the_release_draws_that_many() -> None:
    assert channel().plan().details["rows"] == FACTS.expected("private", channel().config.split) == 28
    assert noised.draw_rows is draw_rows
