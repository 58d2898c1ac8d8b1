"""Which rows leave: a public number, of which one record changes one and one person K; their order is chance."""

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


def of_people(sizes: list[int]) -> Records:
    """So many records of each, mixed in the file; some are equal to those of others."""
    whose = np.repeat(np.arange(len(sizes)), sizes)
    turn = np.arange(len(whose)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    x = np.where(turn % 3 == 2, -turn, 100.0 * whose + turn).astype(np.float32)[:, None]
    mixed = np.random.default_rng(0).permutation(len(whose))
    return Records(x, turn % 4, whose.astype(np.int64)).take(mixed)


def one_person_changes_k_rows(sizes: list[int], most: int, count: int, seed: int, gone: int) -> None:
    """With and without one of them."""
    every = of_people(sizes)
    less = every.take(np.flatnonzero(every.person != gone))
    rows = [content(one, draw_rows(one, count, Stream.from_seed(seed), most, 7)) for one in (every, less)]
    assert [sum(found.values()) for found in rows] == [count, count]
    changed = min(most, sizes[gone])
    assert sum((rows[0] - rows[1]).values()) <= changed
    assert sum((rows[1] - rows[0]).values()) <= changed


def a_person_of_many_records_changed() -> None:
    for seed in range(30):
        one_person_changes_k_rows([20, 1, 2, 9, 3], 3, 12, seed, seed % 5)


def nobody_has_more_rows_than_declared() -> None:
    every = of_people([20, 1, 2, 9, 3])
    for seed in range(10):
        order = draw_rows(every, 100, Stream.from_seed(seed), 3, seed)
        assert every.person is not None
        assert np.bincount(every.person[order[order >= 0]]).tolist() == [3, 1, 2, 3, 3]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=8),
    st.integers(1, 5),
    st.integers(1, 25),
    st.integers(0, 2**31),
    st.integers(0, 7),
)
def test_one_person_more_changes_at_most_k_rows(sizes: list[int], most: int, count: int, seed: int, gone: int) -> None:
    one_person_changes_k_rows(sizes, most, count, seed, gone % len(sizes))


def test_one_person_with_many_records_has_k_rows() -> None:
    nobody_has_more_rows_than_declared()


def test_which_records_of_a_person_take_part_follows_from_hers_alone() -> None:
    every = of_people([20, 9, 3, 1])
    assert every.person is not None
    whole = content(every, draw_rows(every, 50, Stream.from_seed(0), 3, 5))
    for who in range(4):
        alone = every.take(np.flatnonzero(every.person == who))
        own = content(alone, draw_rows(alone, 50, Stream.from_seed(1), 3, 5))
        own = Counter({key: count for key, count in own.items() if key[1] >= 0})
        assert not own - whole


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
