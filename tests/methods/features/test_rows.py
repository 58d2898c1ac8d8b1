"""Which rows of `features`/`noised` leave: a public number, one record changes one, and their order is chance."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from airlock.config import from_table
from airlock.data import Facts, Records
from airlock.mechanisms import LocalGaussian, RandomisedResponse, Stream
from airlock.methods.features import case, noised
from airlock.methods.features.noised import Noised
from airlock.methods.features.rows import Whole, draw_rows, keep
from airlock.training.front_ends.extract import NOBODY, Ordered

Patch = pytest.MonkeyPatch
FACTS = Facts("x", (1, 8, 8), tuple("abcd"), 40, None, "made up")


def numbered(count: int, start: int = 0) -> Records:
    return Records(np.arange(start, start + count, dtype=np.float32)[:, None], np.arange(count) % 4)


def content(records: Records, order: Whole) -> Counter[tuple[float, int]]:
    """What stands in the rows, in no order."""
    shown = Ordered(records, order).block(slice(None))
    return Counter((float(x[0]), int(y)) for x, y in zip(shown.x, shown.y, strict=True))


# The properties, as functions, so that faults can be planted under them.


def as_many_as_declared() -> None:
    for count in (0, 1, 9, 10, 11, 40):
        assert len(draw_rows(numbered(count), 10, Stream.from_seed(1))) == 10, count


def one_record_changes_one_row(count: int, most: int, seed: int, where: int) -> None:
    less, more = numbered(count), numbered(count + 1)
    place = where % (count + 1)
    turned = more.take(np.roll(np.arange(count + 1), place))  # wherever the new record stands in the file
    before = content(less, draw_rows(less, most, Stream.from_seed(seed)))
    after = content(turned, draw_rows(turned, most, Stream.from_seed(seed)))
    assert sum((before - after).values()) <= 1
    assert sum((after - before).values()) <= 1


def any_order_is_as_likely() -> None:
    """Where a record stands is uniform, whatever its place in the file and whoever else is there."""
    for count, most in ((5, 5), (3, 5), (9, 5)):
        records, found = numbered(count), []
        for seed in range(1000):
            order = draw_rows(records, most, Stream.from_seed(seed))
            found += np.flatnonzero(order == 0).tolist()
        assert stats.chisquare(np.bincount(found, minlength=most)).pvalue > 1e-4, (count, most)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 25), st.integers(1, 20), st.integers(0, 2**31), st.integers(0, 25))
def test_one_record_more_changes_at_most_one_row(count: int, most: int, seed: int, where: int) -> None:
    one_record_changes_one_row(count, most, seed, where)


def test_there_are_as_many_rows_as_declared_whoever_is_there() -> None:
    as_many_as_declared()


def test_the_order_is_drawn_without_looking() -> None:
    any_order_is_as_likely()


def test_equal_records_take_a_row_each_and_one_more_changes_one() -> None:
    for count, most in ((6, 4), (3, 4), (4, 4)):
        same, other = Records(np.ones((count, 1), np.float32), np.zeros(count, np.int64)), numbered(1, 7)
        both = Records(np.concatenate([same.x, other.x]), np.concatenate([same.y, other.y]))
        for seed in range(20):
            a, b = (content(r, draw_rows(r, most, Stream.from_seed(seed))) for r in (same, both))
            assert sum((a - b).values()) <= 1


def test_who_is_left_out_depends_on_a_secret_key_and_on_nothing_public() -> None:
    records = numbered(30)
    found = {tuple(sorted(keep(records, 10, Stream.from_seed(seed).take_key()))) for seed in range(20)}
    assert len(found) == 20
    hits = np.bincount(np.concatenate([keep(records, 10, Stream.from_seed(s).take_key()) for s in range(600)]))
    assert stats.chisquare(hits).pvalue > 1e-4  # every record is kept equally often


def many_records_changed() -> None:
    for seed in range(30):
        one_record_changes_one_row(20, 10, seed, seed)


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
    monkeypatch.setattr(case, "draw_rows", lambda records, count, choices: np.arange(len(records)))
    scores = [opened.run(known, 3, Stream.from_seed(2)) for known in (True, False)]
    assert (scores[0][:, 2] == 2).all()
    assert (scores[1][:, 2] == 1).all()


def test_the_plan_says_how_many_rows_and_the_release_draws_that_many() -> None:
    assert channel().plan().details["rows"] == FACTS.expected("private", channel().config.split) == 28
    assert noised.draw_rows is draw_rows
