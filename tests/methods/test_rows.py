"""Which rows leave: a public number of them, one record changes one, and their order is chance."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from airlock.data import Records
from airlock.mechanisms import Stream
from airlock.methods.rows import Whole, draw_rows, keep
from airlock.training.front_ends.extract import Ordered


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
