"""A record has one place, whatever the others are."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from airlock.config import SplitConfig, from_table
from airlock.data import Facts, Records, describe, divide, shard
from airlock.errors import ConfigError

FACTS = Facts("test", (3,), ("a", "b"), 100, None, "made up")
FRACTIONS = SplitConfig(public=0.2, test=0.2, holdout=0.2)
TABLE = {"channel": "student", "data": "digits", "epsilon": 1.0, "delta": 1e-4}
PARTS = ("private", "public", "test", "holdout")


def numbered(count, start=0):
    x = np.arange(start, start + count, dtype=np.float32)[:, None] * np.ones(3, np.float32)
    return Records(x, np.arange(count) % 2)


def contents(records):
    return [(row.tobytes(), int(label)) for row, label in zip(records.x, records.y, strict=True)]


few = arrays(np.float32, st.tuples(st.integers(20, 60), st.just(3)), elements=st.integers(0, 4).map(float))


@settings(max_examples=50, deadline=None)
@given(few, st.integers(0, 2**63 - 1))
def test_every_record_is_in_one_part(x, seed):
    pool = Records(x, (x[:, 0] > 1).astype(np.int64))
    split = divide(FACTS, pool, None, FRACTIONS, seed)
    found = Counter(one for part in PARTS for one in contents(getattr(split, part)))
    assert found == Counter(contents(pool))


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 60), st.data(), st.booleans(), st.integers(0, 2**63 - 1))
def test_adding_a_record_changes_one_part_by_it_alone(count, data, official, seed):
    """Also where the record stands in the test file too, and where parts are empty."""
    pool, dropped = numbered(count), data.draw(st.integers(0, count - 1))
    test = numbered(10, start=data.draw(st.integers(0, count))) if official else None
    whole = divide(FACTS, pool, test, FRACTIONS, seed)
    without = divide(FACTS, pool.take(np.delete(np.arange(count), dropped)), test, FRACTIONS, seed)
    gone, changed = contents(pool.take(np.array([dropped])))[0], 0
    for part in PARTS:
        before, after = (contents(getattr(split, part)) for split in (whole, without))
        if before != after:
            assert gone in before
            before.remove(gone)
            changed += 1
        assert before == after
    assert changed == 1


@settings(max_examples=100, deadline=None)
@given(few, st.data(), st.integers(0, 2**63 - 1))
def test_adding_one_of_several_equal_records_changes_one_part_by_it_alone(x, data, seed):
    """Wherever in the file it is put, and including the order of all parts."""
    pool = Records(x, (x[:, 0] > 1).astype(np.int64))
    extra, place = data.draw(st.integers(0, len(pool) - 1)), data.draw(st.integers(0, len(pool)))
    more = pool.take(np.insert(np.arange(len(pool)), place, extra))
    before, after = (divide(FACTS, records, None, FRACTIONS, seed) for records in (pool, more))
    own, changed = contents(pool)[extra], 0
    for part in PARTS:
        one, other = contents(getattr(before, part)), contents(getattr(after, part))
        if one != other:
            assert len(other) == len(one) + 1
            assert any(other[:i] + other[i + 1 :] == one for i, each in enumerate(other) if each == own)
            changed += 1
    assert changed == 1


def test_equal_records_fall_into_parts_like_different_ones():
    """2,000 records of which 12 are different: every part has its share of each of them."""
    rows = np.random.default_rng(0).integers(0, 12, 2000)
    pool = Records(rows[:, None].astype(np.float32) * np.ones(3, np.float32), rows % 2)
    split = divide(FACTS, pool, None, SplitConfig(test=0.3, holdout=0.3), 5)
    there = [np.bincount(getattr(split, part).x[:, 0].astype(int), minlength=12) for part in PARTS]
    for counts, share in zip(there, (0.4, 0.0, 0.3, 0.3), strict=True):
        expected = share * np.bincount(rows, minlength=12)
        assert (np.abs(counts - expected) <= 4 * np.sqrt(expected * (1 - share) + 1e-9)).all()


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 30), st.data(), st.integers(0, 2**63 - 1))
def test_a_test_record_more_changes_the_test_part_alone(count, data, seed):
    pool, test, dropped = numbered(40), numbered(count, start=20), data.draw(st.integers(0, count - 1))
    whole = divide(FACTS, pool, test, FRACTIONS, seed)
    without = divide(FACTS, pool, test.take(np.delete(np.arange(count), dropped)), FRACTIONS, seed)
    assert len(without.test) == len(whole.test) - 1
    for part in ("private", "public", "holdout"):
        assert contents(getattr(whole, part)) == contents(getattr(without, part))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**63 - 1))
def test_order_does_not_matter(seed):
    pool = numbered(150)
    turned = pool.take(np.random.default_rng(0).permutation(150))
    for part in PARTS:
        one, other = (getattr(divide(FACTS, p, None, FRACTIONS, seed), part) for p in (pool, turned))
        assert sorted(contents(one)) == sorted(contents(other))


def test_fractions_are_met_up_to_chance():
    split = divide(FACTS, numbered(20_000), None, SplitConfig(public=0.3, test=0.1, holdout=0.05), 7)
    sizes = {part: len(getattr(split, part)) / 20_000 for part in PARTS}
    for part, share in (("private", 0.55), ("public", 0.3), ("test", 0.1), ("holdout", 0.05)):
        assert abs(sizes[part] - share) < 5 * np.sqrt(share * (1 - share) / 20_000)


def test_seed_changes_the_places():
    first, second = (divide(FACTS, numbered(500), None, FRACTIONS, seed) for seed in (0, 1))
    assert contents(first.private) != contents(second.private)


def test_pool_records_of_the_test_set_stay_in_both():
    pool, test = numbered(200), numbered(50, start=150)
    split = divide(FACTS, pool, test, FRACTIONS, 0)
    assert contents(split.test) == contents(test)
    assert sum(len(getattr(split, part)) for part in ("private", "public", "holdout")) == 200


@pytest.mark.parametrize("count", [0, 1, 200])
def test_a_part_may_be_empty(count):
    split = divide(FACTS, numbered(count), None, SplitConfig(test=0.0, holdout=0.0), 0)
    assert [len(getattr(split, part)) for part in PARTS] == [count, 0, 0, 0]


def test_expected_sizes_are_public_figures():
    assert FACTS.expected("private", FRACTIONS) == 40
    assert FACTS.expected("test", FRACTIONS) == 20
    assert Facts("t", (3,), ("a", "b"), 100, 7, "").expected("test", FRACTIONS) == 7
    assert Facts("t", (3,), ("a", "b"), 1, 7, "").expected("private", FRACTIONS) == 1


def test_records_are_not_shown():
    assert repr(numbered(3)) == "Records(not shown)"


def test_a_count_in_a_release_config_is_refused_with_the_reason():
    with pytest.raises(ConfigError, match=r"split.test.*one extra record would move another"):
        from_table({"channel": "weights", "data": "digits", "epsilon": 1, "delta": 1e-5, "split": {"test": 1200}})


LETTERS = Facts("test", (3,), tuple("abcde"), 100, None, "made up")
MASKED = SplitConfig(public=0.4, test=0.2, holdout=0.1, public_without=("b", "d"))


@settings(max_examples=25, deadline=None)
@given(few, st.integers(0, 2**63 - 1))
def test_kept_out_classes_are_private_where_they_would_be_public_and_nothing_else_moves(x, seed):
    pool = Records(x, x[:, 0].astype(np.int64))
    plain = SplitConfig(public=0.4, test=0.2, holdout=0.1)
    usual, masked = (divide(LETTERS, pool, None, fractions, seed) for fractions in (plain, MASKED))
    kept_out = {1, 3}
    assert contents(masked.public) == [c for c in contents(usual.public) if c[1] not in kept_out]
    more = [c for c in contents(usual.public) if c[1] in kept_out]
    assert Counter(contents(masked.private)) == Counter(contents(usual.private) + more)
    assert contents(masked.test) == contents(usual.test)
    assert contents(masked.holdout) == contents(usual.holdout)


def test_with_classes_kept_out_one_record_less_moves_no_other():
    pool = Records(numbered(100).x, np.arange(100) % 5)
    for dropped in (1, 3, 50, 99):
        whole = divide(LETTERS, pool, None, MASKED, 7)
        without = divide(LETTERS, pool.take(np.delete(np.arange(100), dropped)), None, MASKED, 7)
        gone = contents(pool.take(np.array([dropped])))[0]
        for part in PARTS:
            assert [c for c in contents(getattr(whole, part)) if c != gone] == contents(getattr(without, part))


def test_expected_sizes_with_classes_kept_out_are_those_of_even_classes():
    assert [LETTERS.expected(part, MASKED) for part in PARTS] == [46, 24, 20, 10]
    assert LETTERS.without(MASKED) == (1, 3)


@pytest.mark.parametrize(
    ("names", "word"),
    [
        (["f"], "Known classes: a, b, c, d, e"),
        ([6], "'6'"),
        (["a", "b", "c", "d", "e"], "all of them"),
        (["a", "a"], "twice"),
    ],
)
def test_classes_that_cannot_be_kept_out_are_refused(names, word):
    table = {**TABLE, "split": {"public": 0.4, "public_without": names}}
    with pytest.raises(ConfigError, match=word):
        LETTERS.without(from_table(table).split)


def test_classes_are_kept_out_of_a_public_part_or_the_key_is_refused_and_digits_are_told():
    with pytest.raises(ConfigError, match=r"split\.public = 0"):
        from_table({**TABLE, "split": {"public_without": [6]}})
    config = from_table({**TABLE, "split": {"public": 0.4, "public_without": [6, "9"]}})
    assert describe(config).origin.endswith("No record of these classes is public: 6, 9.")
    with pytest.raises(ConfigError, match="names of classes"):
        describe(from_table({**TABLE, "split": {"public": 0.4, "public_without": ["ten"]}}))


# Shards.

SEEDS = st.integers(0, 2**63 - 1)


def of_shards(records: Records, count: int, seed: int) -> list[list[tuple[bytes, int]]]:
    return [contents(records.take(own)) for own in shard(records, count, seed)]


@settings(max_examples=50, deadline=None)
@given(few, st.data(), st.integers(2, 30), SEEDS)
def test_one_of_several_equal_records_more_changes_one_shard_by_it_alone(x, data, count, seed) -> None:
    records = Records(x, (x[:, 0] > 1).astype(np.int64))
    extra, place = data.draw(st.integers(0, len(records) - 1)), data.draw(st.integers(0, len(records)))
    more = records.take(np.insert(np.arange(len(records)), place, extra))
    pairs = zip(of_shards(records, count, seed), of_shards(more, count, seed), strict=True)
    changed = [(one, other) for one, other in pairs if one != other]
    assert len(changed) == 1
    one, other = changed[0]
    gone = contents(records)[extra]
    assert any(other[:i] + other[i + 1 :] == one for i, each in enumerate(other) if each == gone)


@settings(max_examples=50, deadline=None)
@given(few, st.integers(2, 80), SEEDS)
def test_every_record_lies_in_one_shard(x: np.ndarray, count: int, seed: int) -> None:
    records = Records(x, (x[:, 0] > 1).astype(np.int64))
    own = shard(records, count, seed)
    assert len(own) == count
    assert sorted(np.concatenate(own).tolist()) == list(range(len(records)))


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


@given(st.lists(st.integers(0, 5), max_size=30))
def test_groups_hold_every_record_once_and_people_in_the_order_of_appearance(people):
    own = Records(np.zeros((len(people), 3), np.float32), np.zeros(len(people), np.int64), np.array(people, np.int64))
    groups, met = own.groups(), list(dict.fromkeys(people))
    assert own.units == len(met) == len(groups.starts) - 1
    for i, one in enumerate(met):
        rows = groups.rows[groups.starts[i] : groups.starts[i + 1]]
        assert rows.tolist() == [place for place, person in enumerate(people) if person == one]
        assert own.weights[rows].tolist() == [1 / len(rows)] * len(rows)


def test_without_people_every_record_is_a_unit_of_its_own():
    own = numbered(4)
    assert own.units == 4
    assert own.weights.tolist() == [1.0] * 4
    assert own.groups().rows.tolist() == [0, 1, 2, 3]
    assert own.groups().starts.tolist() == [0, 1, 2, 3, 4]
    assert own.take(np.arange(2)).person is None


def test_the_expected_size_counts_people_where_they_are_declared():
    people = Facts("test", (3,), ("a", "b"), 1000, None, "made up", people=100, records_per_person=20)
    assert (people.unit, FACTS.unit) == ("person", "record")
    assert people.expected("private", FRACTIONS) == FACTS.expected("private", FRACTIONS) == 40
