"""A person has one place, decided by her identifier alone; her records go with her."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airlock.config import SplitConfig, from_table
from airlock.data import Facts, Records, at_most, describe, divide, load, people, shard
from airlock.data.remarks import Faults
from airlock.data.split import PLACED_BY, person_digests, positions
from airlock.errors import ConfigError, DataError

FACTS = Facts("test", (2,), ("a", "b"), 400, None, "made up", people=60, records_per_person=8)
FRACTIONS = SplitConfig(public=0.2, test=0.2, holdout=0.2)
PARTS = ("private", "public", "test", "holdout")
SEEDS = st.integers(0, 2**63 - 1)
VISITS = st.lists(st.integers(1, 50), min_size=1, max_size=25)


def visits(counts: list[int], first: int = 0) -> Records:
    """So many visits of each person, all different, those of all people mixed."""
    ids = [f"p{first + who}" for who, count in enumerate(counts) for _ in range(count)]
    x = np.random.default_rng(1).random((len(ids), 2), np.float32)
    order = np.random.default_rng(2).permutation(len(ids))
    return Records(x, np.arange(len(ids)) % 2, people.number(ids)).take(order)


def without(records: Records, person: int) -> Records:
    return records.take(np.flatnonzero(records.person != person))


def contents(records: Records) -> list[tuple[bytes, int, int]]:
    assert records.person is not None
    return [(row.tobytes(), int(y), int(who)) for row, y, who in zip(records.x, records.y, records.person, strict=True)]


def whose(records: Records) -> set[int]:
    assert records.person is not None
    return set(records.person.tolist())


# Records of people.


def test_groups_weights_and_units_are_those_of_the_people() -> None:
    records = Records(np.zeros((6, 1), np.float32), np.arange(6), np.array([7, 3, 7, 9, 3, 7]))
    groups = records.groups()
    assert groups.rows.tolist() == [0, 2, 5, 1, 4, 3]
    assert groups.starts.tolist() == [0, 3, 5, 6]
    assert records.units == 3
    np.testing.assert_allclose(records.weights, [1 / 3, 1 / 2, 1 / 3, 1, 1 / 2, 1 / 3])
    assert records.take(np.array([1, 4])).person.tolist() == [3, 3]
    plain = Records(records.x, records.y)
    assert (plain.units, plain.weights.tolist(), plain.groups().rows.tolist()) == (6, [1.0] * 6, list(range(6)))
    assert plain.groups().starts.tolist() == list(range(7))
    nobody = records.take(np.arange(0))
    assert (nobody.units, nobody.groups().starts.tolist(), len(nobody.weights)) == (0, [0], 0)


def test_expected_sizes_count_people() -> None:
    assert (FACTS.unit, FACTS.expected("private", FRACTIONS), FACTS.expected("test", FRACTIONS)) == ("person", 24, 12)
    assert FACTS.expected_records("private", FRACTIONS) == 160
    assert Facts("t", (2,), ("a", "b"), 400, None, "").unit == "record"


# Numbers.


def test_different_identifiers_have_different_numbers_also_where_their_hashes_are_equal(monkeypatch) -> None:
    ids = ["1", "01", " 1", "1.0", "a", "A", "ä", "a\0"]
    assert len(set(people.number(ids).tolist())) == len(ids)
    before = people.number(ids)
    monkeypatch.setattr(people, "placed_by", lambda identifier: 5)
    found = people.number(ids)
    assert len(set(found.tolist())) == len(ids)
    assert set((found & PLACED_BY).tolist()) == {5}
    assert (before & PLACED_BY == before).all()


@settings(max_examples=30, deadline=None)
@given(VISITS, st.data(), SEEDS)
def test_a_number_and_a_place_follow_from_the_own_identifier(counts: list[int], data: st.DataObject, seed: int) -> None:
    ids = [f"p{who}" for who in range(len(counts))]
    gone = data.draw(st.sampled_from(ids))
    rest = [one for one in ids if one != gone]
    numbers = dict(zip(ids, people.number(ids).tolist(), strict=True))
    assert [numbers[one] for one in rest] == people.number(rest).tolist()
    records = visits(counts)
    assert records.person is not None
    places = dict(zip(records.person.tolist(), positions(records, seed)[0].tolist(), strict=True))
    left = without(records, numbers[gone])
    assert left.person is not None
    assert [places[who] for who in left.person.tolist()] == positions(left, seed)[0].tolist()


# Parts.


@settings(max_examples=40, deadline=None)
@given(VISITS, SEEDS)
def test_nobody_is_in_two_parts_and_a_test_person_has_one_record(counts: list[int], seed: int) -> None:
    pool = visits(counts)
    split = divide(FACTS, pool, None, FRACTIONS, seed)
    parts = [whose(getattr(split, part)) for part in PARTS]
    assert sum(map(len, parts)) == len(set().union(*parts)) == len(counts)
    assert len(split.test) == split.test.units
    assert sum(len(getattr(split, part)) for part in PARTS if part != "test") == sum(
        pool.person.tolist().count(who)
        for who in whose(pool) - whose(split.test)  # type: ignore[union-attr]
    )


@settings(max_examples=40, deadline=None)
@given(VISITS, st.data(), SEEDS, st.booleans())
def test_a_person_less_changes_one_part_by_her_alone(
    counts: list[int], data: st.DataObject, seed: int, kept_out: bool
) -> None:
    pool = visits(counts)
    gone = data.draw(st.sampled_from(sorted(whose(pool))))
    fractions = FRACTIONS.model_copy(update={"public_without": ("b",)}) if kept_out else FRACTIONS
    whole, less = (divide(FACTS, own, None, fractions, seed) for own in (pool, without(pool, gone)))
    changed = 0
    for part in PARTS:
        before, after = (contents(getattr(split, part)) for split in (whole, less))
        assert [one for one in before if one[2] != gone] == after
        changed += before != after
    assert changed == 1


@settings(max_examples=20, deadline=None)
@given(VISITS, SEEDS)
def test_no_person_with_a_record_of_a_kept_out_class_is_public(counts: list[int], seed: int) -> None:
    pool = visits(counts)
    split = divide(FACTS, pool, None, SplitConfig(public=0.6, public_without=("b",)), seed)
    assert not whose(split.public) & whose(pool.take(np.flatnonzero(pool.y == 1)))
    assert not whose(split.public) & whose(split.private)


def test_the_part_follows_from_the_identifier_and_not_from_the_content() -> None:
    pool = visits([3] * 40)
    other = Records(pool.x + 1, 1 - pool.y, pool.person)
    for part in ("private", "public", "holdout"):
        one, two = (whose(getattr(divide(FACTS, own, None, FRACTIONS, 0), part)) for own in (pool, other))
        assert one == two


def test_with_records_as_the_unit_people_stay_together_and_are_not_told() -> None:
    facts = Facts("test", (2,), ("a", "b"), 400, None, "made up", grouped=True)
    pool = visits([5] * 60)
    split = divide(facts, pool, None, FRACTIONS, 3)
    named = divide(FACTS, pool, None, FRACTIONS, 3)
    for part in PARTS:
        assert getattr(split, part).person is None
        if part != "test":
            np.testing.assert_array_equal(getattr(split, part).x, getattr(named, part).x)
    assert len(split.test) == 5 * len(named.test)


@settings(max_examples=20, deadline=None)
@given(VISITS, st.integers(1, 60), SEEDS)
def test_at_most_so_many_records_of_a_person_by_her_own_records_alone(counts: list[int], most: int, seed: int) -> None:
    pool = visits(counts)
    found = at_most(pool, most, seed)
    assert sorted(Counter(found.person.tolist()).values()) == sorted(min(count, most) for count in counts)  # type: ignore[union-attr]
    gone = next(iter(whose(pool)))
    assert contents(without(found, gone)) == contents(at_most(without(pool, gone), most, seed))


# Shards.


@settings(max_examples=40, deadline=None)
@given(VISITS, st.integers(2, 40), st.data(), SEEDS)
def test_a_person_less_changes_one_shard_by_her_alone(counts: list[int], count: int, data: st.DataObject, seed: int):
    pool = visits(counts)
    gone = data.draw(st.sampled_from(sorted(whose(pool))))
    left = without(pool, gone)
    before = [contents(pool.take(own)) for own in shard(pool, count, seed)]
    after = [contents(left.take(own)) for own in shard(left, count, seed)]
    assert sum(map(len, before)) == len(pool)
    assert sum(one != other for one, other in zip(before, after, strict=True)) == 1
    assert [[one for one in own if one[2] != gone] for own in before] == after


def test_people_with_equal_hashes_share_a_shard_and_keep_their_order_whoever_comes(monkeypatch) -> None:
    monkeypatch.setattr(people, "placed_by", lambda identifier: identifier[0] % 3)
    ids = [name for name in ("ca", "cb", "cc", "aa", "ba", "bb") for _ in range(2)]
    x = np.arange(12, dtype=np.float32)[:, None]
    whole = Records(x, np.zeros(12, np.int64), people.number(ids))
    for gone in set(ids):
        rest = [i for i, one in enumerate(ids) if one != gone]
        less = Records(x[rest], np.zeros(10, np.int64), people.number([ids[i] for i in rest]))
        kept = [[value for value in whole.x[own, 0] if ids[int(value)] != gone] for own in shard(whole, 4, 0)]
        assert kept == [less.x[own, 0].tolist() for own in shard(less, 4, 0)]


def test_the_first_records_of_a_shard_are_those_of_different_people() -> None:
    pool = visits([1, 50, 3, 7])
    (own,) = shard(pool, 1, 0)
    assert pool.take(own[:4]).units == 4


def test_records_without_people_have_no_digest_of_a_person() -> None:
    with pytest.raises(ValueError, match="whose"):
        person_digests(Records(np.zeros((1, 1)), np.zeros(1, np.int64)), b"")


# Files.

TABLE = {
    "channel": "answers",
    "epsilon": 2.0,
    "delta": 1e-3,
    "data": {
        "label": "ill",
        "classes": ["no", "yes"],
        "columns": {"age": {"min": 0, "max": 100}, "pulse": {"min": 40, "max": 200}},
        "records": 400,
        "person": "patient",
        "people": 60,
    },
}


def config(source, **changes):
    data = {**TABLE["data"], "source": str(source), **changes.pop("data", {})}  # type: ignore[dict-item]
    return from_table({**TABLE, "data": {key: value for key, value in data.items() if value is not None}, **changes})


def rows(count: int = 60) -> list[tuple[str, int, int, str]]:
    chance = np.random.default_rng(0)
    return [
        (f"P{who:03}", int(chance.integers(18, 90)), int(chance.integers(50, 150)), ("no", "yes")[who % 2])
        for who in range(count)
        for _ in range(1 + who % 5)
    ]


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "visits.csv"
    lines = [f"{age},{who},{pulse},{ill}" for who, age, pulse, ill in rows()]
    path.write_text("\n".join(["age,patient,pulse,ill", *lines]) + "\n")
    return path


def test_a_csv_file_is_divided_by_person_and_the_column_is_no_feature(table) -> None:
    asked = config(table)
    facts = describe(asked)
    assert (facts.unit, facts.people, facts.records_per_person, facts.shape) == ("person", 60, 8, (2,))
    split = load(asked)
    assert split.private.units + split.holdout.units + split.test.units == 60
    assert not whose(split.private) & (whose(split.test) | whose(split.holdout))


def test_a_parquet_file_gives_the_same_split(table, tmp_path) -> None:
    import pyarrow.csv
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.csv.read_csv(table), tmp_path / "visits.parquet")
    one, other = load(config(table)), load(config(tmp_path / "visits.parquet"))
    for part in PARTS:
        assert contents(getattr(one, part)) == contents(getattr(other, part))


def test_an_npz_file_names_its_people_in_an_array(tmp_path) -> None:
    own = rows()
    x, y = np.array([[age / 100, pulse / 200] for _, age, pulse, _ in own]), np.array([ill == "yes" for *_, ill in own])
    path = tmp_path / "visits.npz"
    plain = {"label": None, "columns": None, "person": "person"}
    np.savez(path, x=x, y=y.astype(int), person=np.array([who for who, *_ in own]))
    split = load(config(path, data=plain))
    assert split.private.units + split.holdout.units + split.test.units == 60
    with pytest.raises(ConfigError, match=r"an array 'who'.*found none"):
        describe(config(path, data=plain | {"person": "who"}))
    np.savez(path, x=x, y=y.astype(int), person=np.arange(5))
    with pytest.raises(DataError, match="as many identifiers"):
        load(config(path, data=plain))
    np.savez(path, x_train=x, y_train=y.astype(int), x_test=x, y_test=y.astype(int), person=np.arange(len(y)))
    with pytest.raises(ConfigError, match="x_test and y_test"):
        describe(config(path, data=plain))
    assert describe(config(path, data=plain, unit="record")).grouped


def test_images_have_a_manifest_of_people(tmp_path) -> None:
    from PIL import Image

    lines = ["file,patient"]
    for who in range(40):
        for visit in range(2):
            name = f"{('no', 'yes')[who % 2]}/{who}-{visit}.png"
            (tmp_path / name).parent.mkdir(exist_ok=True)
            Image.fromarray(np.full((8, 8), 6 * who + visit, np.uint8)).save(tmp_path / name)
            lines.append(f"{name},P{who}")
    lines += [f"{lines[1].split(',')[0]},P99"]  # one image of two people
    lines.pop(5)  # and one of nobody
    (tmp_path / "people.csv").write_text("\n".join(lines))
    asked = config(tmp_path, data={"label": None, "columns": None, "shape": [1, 8, 8], "people": 40})
    split = load(asked)
    assert sum("2 records" in remark and "no identifier" in remark for remark in split.remarks) == 1
    assert split.private.units + split.holdout.units + split.test.units == 40
    (tmp_path / "people.csv").write_text("file,other\n")
    with pytest.raises(DataError, match="one column 'file' and one column 'patient'"):
        load(asked)


@pytest.mark.parametrize("missing", ["", "  ", "NaN", "NULL", "#N/A", "\u200b", "\u00a0\ufeff", "\u2003null "])
def test_records_of_nobody_are_left_out_with_a_remark(table, missing: str) -> None:
    whole = table.read_text().splitlines()
    table.write_text("\n".join([*whole, f"40,{missing},80,yes", f"41,{missing},81,no"]) + "\n")
    split = load(config(table))
    assert any("2 records" in remark and "no identifier" in remark for remark in split.remarks)
    assert split.private.units + split.holdout.units + split.test.units == 60


def test_the_holder_is_told_of_identifiers_that_look_alike_and_of_many_records(table) -> None:
    whole = table.read_text().splitlines()
    table.write_text("\n".join([*whole, *(f"{40 + i},p001 ,80,yes" for i in range(10))]) + "\n")
    told = " ".join(load(config(table)).remarks)
    assert "1 identifier differs from another only in how it is written" in told
    assert "1 person has more than 8 records" in told
    assert "p001" not in told.replace("P001", "")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("P7", "p7 "),
        ("7", "7.0"),
        ("0042", "42"),
        ("Ren\u00e9", "Rene\u0301"),
        ("P7", "P\u200b7"),
        ("P7", "\uff30\uff17"),
    ],
)
def test_two_ways_of_writing_one_identifier_are_two_people_and_told(one: str, other: str) -> None:
    assert len(set(people.number([one, other]).tolist())) == 2
    (told,) = people.about_people([one, other, "Q8", "Q9", "43", "420"], None)
    assert told.startswith("1 identifier differs from another only in how it is written")


def test_the_holder_is_told_where_long_identifiers_were_rounded() -> None:
    """As fractions they are people no more: two of them may have one number."""
    whole = [2**60 + 1000 * place + 1 for place in range(40)]
    for rounded in ([str(int(float(one))) for one in whole], [f"{one:.5E}" for one in whole]):
        (told,) = people.about_people(rounded, None)
        looks = "identifier looks" if len(set(rounded)) == 1 else "identifiers look"
        assert told.startswith(f"{len(set(rounded))} {looks} like a long number that was rounded")
    assert people.about_people([str(one) for one in whole], None) == ()
    assert people.about_people(["12E4", "5e12", str(2**60)], None) == ()


def test_the_holder_is_told_how_many_records_the_one_with_most_has() -> None:
    (told,) = people.about_people(["unknown"] * 90 + ["P1"] * 9 + ["P2"], 8)
    assert told.startswith("2 people have more than 8 records")
    assert "The one with most has 90;" in told
    assert "unknown" not in told.replace("all who are unknown", "")


def test_identifiers_are_numbers_or_text() -> None:
    faults = Faults()
    people.leave_out_nobody(people.as_ids(np.array([1.0, np.nan]), "person", None), faults)  # type: ignore[arg-type]
    assert faults.kept(2).tolist() == [True, False]
    assert people.as_ids(np.array([b"a"]), "person", None) == ["a"]  # type: ignore[arg-type]
    with pytest.raises(DataError, match="2 dimensions"):
        people.as_ids(np.zeros((2, 2)), "person", None)  # type: ignore[arg-type]


# What is declared.


def test_what_is_declared_about_people_is_checked_before_a_record_is_read(table, tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"number of people in data.people.*itself private"):
        describe(config(table, data={"people": None}))
    with pytest.raises(ConfigError, match="at most 400 people"):
        describe(config(table, data={"people": 401}))
    with pytest.raises(ConfigError, match=r'data.person for unit = "person"'):
        describe(config(table, unit="person", data={"person": None, "people": None}))
    with pytest.raises(ConfigError, match=r"data.person together with data.people"):
        describe(config(table, data={"person": None}))
    with pytest.raises(ConfigError, match="neither learnt from"):
        describe(config(table, data={"person": "age"}))
    with pytest.raises(ConfigError, match="neither learnt from"):
        describe(config(table, data={"person": "ill"}))
    with pytest.raises(ConfigError, match=r"one file.*data.test"):
        describe(config(table, data={"test": str(table)}))
    with pytest.raises(DataError, match=r"one column 'who'"):
        load(config(table, data={"person": "who"}))
    assert describe(config(table, unit="record", data={"test": str(table)})).grouped


def test_a_named_source_has_no_people() -> None:
    plain = {"channel": "answers", "epsilon": 1.0, "delta": 1e-4}
    with pytest.raises(ConfigError, match=r"data\.person"):
        describe(from_table({**plain, "data": {"source": "digits", "person": "who", "people": 5}}))
    with pytest.raises(ConfigError, match=r'data.person for unit = "person"'):
        describe(from_table({**plain, "data": "digits", "unit": "person"}))


def test_an_identifier_that_is_missing_changes_no_other(tmp_path):
    """It gives every other number in the array a decimal point."""
    assert people.as_ids(np.array([7, 12, 2**40]), "who", tmp_path) == ["7", "12", str(2**40)]
    with_a_gap = np.array([7, 12, 2**40, np.nan, 1.5])
    assert people.as_ids(with_a_gap, "who", tmp_path) == ["7", "12", str(2**40), None, "1.5"]
