"""A record lies in one shard, and one record more or less changes one shard."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from airlock.data import Records, shard
from tests.data.test_split import contents, few, numbered

SEEDS = st.integers(0, 2**63 - 1)


def of_shards(records: Records, count: int, seed: int) -> list[list[tuple[bytes, int]]]:
    return [contents(records.take(own)) for own in shard(records, count, seed)]


@settings(max_examples=50, deadline=None)
@given(few, st.integers(2, 80), SEEDS)
def test_every_record_lies_in_one_shard_and_equal_ones_in_the_same(x: np.ndarray, count: int, seed: int) -> None:
    records = Records(x, (x[:, 0] > 1).astype(np.int64))
    own = shard(records, count, seed)
    assert len(own) == count
    assert sorted(np.concatenate(own).tolist()) == list(range(len(records)))
    found = [set(part) for part in of_shards(records, count, seed)]
    assert sum(map(len, found)) == len(set().union(*found))


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 60), st.integers(0, 59), st.integers(2, 30), SEEDS)
def test_one_record_less_changes_one_shard(total: int, dropped: int, count: int, seed: int) -> None:
    records, dropped = numbered(total), dropped % total
    less = records.take(np.delete(np.arange(total), dropped))
    whole, without = of_shards(records, count, seed), of_shards(less, count, seed)
    assert sum(a != b for a, b in zip(whole, without, strict=True)) == 1
    gone = contents(records.take(np.array([dropped])))[0]
    assert [[c for c in part if c != gone] for part in whole] == without


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 60), st.integers(2, 30), SEEDS)
def test_one_record_replaced_changes_at_most_two(total: int, count: int, seed: int) -> None:
    records, other = numbered(total), numbered(total)
    other.x[0] = -1.0
    pairs = zip(of_shards(records, count, seed), of_shards(other, count, seed), strict=True)
    assert 1 <= sum(a != b for a, b in pairs) <= 2


@settings(max_examples=20, deadline=None)
@given(SEEDS)
def test_a_shard_does_not_depend_on_the_order_of_the_records(seed: int) -> None:
    records = numbered(80)
    turned = records.take(np.random.default_rng(0).permutation(80))
    assert of_shards(records, 7, seed) == of_shards(turned, 7, seed)


def test_shards_are_of_about_the_same_size_and_may_be_empty() -> None:
    sizes = [len(own) for own in shard(numbered(20_000), 100, 3)]
    assert all(abs(size - 200) < 6 * np.sqrt(200) for size in sizes)
    assert min(len(own) for own in shard(numbered(20), 100, 3)) == 0
