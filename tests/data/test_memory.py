"""Frames and arrays in memory are read as files are: by the declaration, each record by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import tomli_w

import airlock
from airlock.config import from_table
from airlock.data import describe, load, memory
from airlock.errors import ConfigError, DataError

COLUMNS = {"age": {"min": 18, "max": 90}, "smokes": {"min": 0, "max": 1}, "ward": ["1", "2", "3"]}
CHANCE = np.random.default_rng(7)
FRAME = pd.DataFrame(
    {
        "age": CHANCE.integers(10, 100, 80),
        "ward": CHANCE.integers(1, 4, 80),
        "smokes": CHANCE.random(80) < 0.5,
        "ill": CHANCE.choice(["no", "yes"], 80),
        "who": CHANCE.integers(0, 30, 80),
    }
)


def config(**more: Any) -> airlock.ReleaseConfig:
    data = {"source": memory.SOURCE, "label": "ill", "classes": ["no", "yes"], "records": 80, "columns": COLUMNS}
    return from_table({"channel": "weights", "epsilon": 1.0, "delta": 1e-4, "data": data | more})


def read(value: object, **more: Any) -> tuple[np.ndarray, np.ndarray]:
    with memory.held(value):
        split = load(config(**more))
    parts = (split.private, split.test, split.holdout)
    rows = np.concatenate([np.column_stack([part.x, part.y]) for part in parts])
    return rows, np.array([len(part) for part in parts])


@pytest.mark.parametrize("of", [pl.from_pandas, lambda frame: pa.Table.from_pandas(frame, preserve_index=False)])
def test_every_frame_gives_what_a_file_gives(of: Callable[[pd.DataFrame], object], tmp_path: Path) -> None:
    path = tmp_path / "own.parquet"
    FRAME.to_parquet(path)
    with memory.held(of(FRAME)):
        inside = load(config())
    outside = load(config(source=str(path)))
    for part in ("private", "test", "holdout"):
        assert np.array_equal(getattr(inside, part).x, getattr(outside, part).x)
        assert np.array_equal(getattr(inside, part).y, getattr(outside, part).y)


@pytest.mark.parametrize("column", ["age", "ward", "smokes", "ill"])
@pytest.mark.parametrize("cell", [None, float("nan"), "what?", b"\xff", pd.Timestamp(0), object()])
def test_a_strange_cell_costs_its_own_record_alone(column: str, cell: object) -> None:
    """It changes the type of the whole column, and with it how numpy writes all others."""
    whole, _ = read(FRAME.iloc[:-1])
    cells = [*FRAME[column].iloc[:-1].tolist(), cell]
    for changed in (pd.Series(cells), pd.Series(cells, dtype=object)):
        found, _ = read(FRAME.assign(**{column: changed}))
        assert np.array_equal(found, whole)


def test_arrays_are_read_by_position_or_unchanged() -> None:
    x = FRAME[["age", "smokes", "ward"]].to_numpy(np.float64)
    by_name, _ = read(FRAME, columns={name: COLUMNS[name] for name in ("age", "smokes", "ward")})
    by_place, _ = read((x, FRAME["ill"].to_numpy()), columns={n: COLUMNS[n] for n in ("age", "smokes", "ward")})
    assert np.array_equal(by_name, by_place)
    unchanged, _ = read((x, FRAME["ill"].to_numpy()), columns={}, label=None)
    assert sorted(map(tuple, unchanged[:, :3])) == sorted(map(tuple, x.astype(np.float32)))


@pytest.mark.parametrize("cell", [None, "what?", "", b"\xff", object(), 10**400, 1j])
def test_a_strange_cell_in_an_array_costs_its_own_record_alone(cell: object) -> None:
    """It makes objects, or text, of all other numbers."""
    x, y = np.arange(120.0).reshape(60, 2), np.array(["no", "yes"] * 30)
    whole, _ = read((x[:-1], y[:-1]), columns={}, label=None)
    rows = [*x[:-1].tolist(), [1.0, cell]]
    found, _ = read((np.array(rows, dtype=object), y), columns={}, label=None)
    assert np.array_equal(found, whole)


def test_rows_of_different_lengths_are_no_array() -> None:
    ragged = ([[1.0, 2.0], [3.0]], ["no", "yes"])
    with pytest.raises(DataError, match="as many numbers in each row"), memory.held(ragged):
        pass


def test_people_come_with_the_frame_or_the_arrays() -> None:
    more = {"person": "who", "people": 30}
    named, sizes = read(FRAME, **more)
    x = FRAME[["age", "smokes", "ward"]].to_numpy(np.float64)
    columns = {name: COLUMNS[name] for name in ("age", "smokes", "ward")}
    placed, same = read((x, FRAME["ill"].to_numpy(), FRAME["who"].to_numpy()), columns=columns, **more)
    assert np.array_equal(named, placed)
    assert np.array_equal(sizes, same)
    with memory.held((x, FRAME["ill"].to_numpy())), pytest.raises(ConfigError, match="Pass .x, y, person."):
        describe(config(columns=columns, **more))


BIG = [2**60 + 1, 2**60 + 2, 7, 2**60 + 1]
WHOLE: dict[str, Callable[[list[Any]], Any]] = {
    "polars": lambda cells: pl.DataFrame({"who": cells}),
    "Arrow": lambda cells: pa.table({"who": cells}),
    "Arrow, a dictionary": lambda cells: pa.table({"who": pa.array(cells).dictionary_encode()}),
    "pandas, whole": lambda cells: pd.DataFrame({"who": pd.array(cells, "Int64")}),
    "pandas, Arrow": lambda cells: pd.DataFrame({"who": pd.array(cells, pd.ArrowDtype(pa.int64()))}),
    "pandas, categories": lambda cells: pd.DataFrame({"who": pd.Categorical(cells)}),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_whose_a_record_is_does_not_depend_on_a_cell_that_is_missing(kind: str) -> None:
    """To numpy, all identifiers are fractions then: two people would be one, or the record of nobody another's."""
    words = [str(one) for one in BIG]
    for cells, expected in ((BIG, words), ([*BIG, None], [*words, None])):
        column = memory.as_frame(WHOLE[kind](cells)).columns["who"]
        assert memory.text(memory.values_of(column)) == expected


def test_a_missing_word_is_no_other_word() -> None:
    table = pa.table({"ward": pa.array(["1", None, "2"]).dictionary_encode()})
    assert memory.text(memory.values_of(table["ward"])) == ["1", None, "2"]


@pytest.mark.parametrize("kind", [list, tuple, pl.Series, pa.array, lambda cells: pd.Series(pd.array(cells, "Int64"))])
def test_identifiers_beside_arrays_are_exact(kind: Callable[[list[Any]], Any]) -> None:
    x, y = np.zeros((5, 2)), [0, 1, 0, 1, 0]
    with memory.held((x, y, kind([*BIG, None]))):
        raw = memory.read(Path("."), config(columns={}, label=None, person="who", people=3).data, ("no", "yes"))
    assert raw.person == [*(str(one) for one in BIG), None]


def test_nothing_is_read_off() -> None:
    for left_out, expected in (("records", "number of records"), ("classes", "class names"), ("columns", "schema")):
        with memory.held(FRAME), pytest.raises(ConfigError, match=expected):
            describe(config(**{left_out: {} if left_out == "columns" else None}))


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(ConfigError, match="Pass them in Python"):
        describe(config())
    with pytest.raises(DataError, match="pandas or polars frame"), memory.held(3):
        pass
    with (
        memory.held(FRAME.drop(columns="age")),
        pytest.raises(DataError, match="one column 'age' in the data in memory"),
    ):
        load(config())
    with memory.held(FRAME), pytest.raises(ConfigError, match="no data.test for data in memory"):
        describe(config(test="other.csv"))
    with memory.held((np.zeros((4, 2)), np.zeros(4))), pytest.raises(DataError, match="3 columns"):
        describe(config())


def test_a_release_from_memory_says_so(tmp_path: Path) -> None:
    declared = {"label": "ill", "classes": ["no", "yes"], "records": 80, "columns": COLUMNS}
    keys: dict[str, Any] = {
        "channel": "weights",
        "epsilon": 3.0,
        "delta": 1e-3,
        "net": "linear",
        "settings": {"steps": 2},
    }
    vault = tmp_path / "vault"
    made = airlock.release(data=FRAME, out=tmp_path / "one", vault=vault, **keys, **declared)
    assert 'source = ":memory:"' in (made.bundle.folder / "config.toml").read_text()
    assert made.bundle.card.data.origin.startswith("The owner's table in memory; the number of records is declared")
    assert airlock.verify_bundle(made.bundle.folder).ok
    table = {**keys, "data": {"source": pl.from_pandas(FRAME), **declared}}
    again = airlock.release(table, tmp_path / "two", vault=vault)
    assert again.bundle.card.data == made.bundle.card.data
    found = airlock.audit(made, data=FRAME, vault=vault, shadows=4, epochs=1, most=200)
    assert found.dossier.audit is not None


HUGE = pytest.param(10**5000, id="of 5,001 digits")
DATED = {"columns": {"since": {"min": "2000-01-01", "max": "2030-01-01"}, "age": COLUMNS["age"]}}


@pytest.mark.parametrize("cell", [None, float("nan"), "what?", 3 + 0j, 1j, HUGE, pd.Timestamp(0)])
def test_dates_and_labels_keep_their_meaning_beside_a_strange_cell(cell: object) -> None:
    """A date written as a whole number is one in every type, and no number is too large to be read past."""
    frame = FRAME.assign(since=20_100_101 + FRAME["age"] % 28, ill=np.arange(80) % 2)
    declared = {**DATED, "classes": ["0", "1"]}
    whole, _ = read(frame.iloc[:-1], **declared)
    assert len(whole) == 79
    for column in ("since", "age", "ill"):
        cells = [*frame[column].iloc[:-1].tolist(), cell]
        for changed in (pd.Series(cells), pd.Series(cells, dtype=object)):
            found, _ = read(frame.assign(**{column: changed}), **declared)
            others = np.array([row for row in found.tolist() if row in whole.tolist()])
            assert len(others) == 79, (column, cell)
            assert len(found) - 79 in (0, 1)


@pytest.mark.parametrize("cell", ["x", 2, 2.5, None, True, b"\xff", 1j, [1], HUGE])
def test_a_cell_of_a_list_does_not_change_the_type_of_the_others(cell: object) -> None:
    """Numpy has one type for a list: beside 2, true is 1; beside text, 1.0 is '1.0'."""
    x = np.arange(120.0).reshape(60, 2)
    for classes, labels in ((["false", "true"], [False, True] * 30), (["0", "1"], [0.0, 1.0] * 30)):
        own = {"columns": {}, "label": None, "classes": classes}
        whole, _ = read((x[:-1].tolist(), labels[:-1]), **own)
        found, _ = read((x.tolist(), [*labels[:-1], cell]), **own)
        kept = [row for row in found.tolist() if row[0] != x[-1, 0]]
        assert np.array_equal(np.array(kept), whole)
        assert len(whole) == 59


def test_an_identifier_that_a_fraction_does_not_hold_is_none_in_any_type() -> None:
    """Otherwise a missing one, which makes fractions of all, would make one person of two."""
    near = np.array([2**60 + place % 30 for place in range(80)])
    more = {"person": "who", "people": 30}
    for who in (pd.Series(near), pd.Series([*near[:-1], None]), pd.Series([*near[:-1], "x"], dtype=object)):
        found, _ = read(FRAME.assign(who=who), **more)
        assert len(found) == (1 if who.dtype == object else 0)
    found, _ = read(FRAME.assign(who=near.astype(str)), **more)
    assert len(found) > 60


def test_half_a_pair_of_utf_16_is_nobody() -> None:
    who = FRAME["who"].astype(str).to_list()
    found, _ = read(FRAME.assign(who=pd.Series(["\ud800", *who[1:]], dtype=object)), person="who", people=30)
    whole, _ = read(FRAME.assign(who=pd.Series([None, *who[1:]], dtype=object)), person="who", people=30)
    assert len(found) > 60
    assert np.array_equal(found, whole)


def test_zero_has_no_sign_beside_a_strange_cell() -> None:
    """Text has none, and the part of a record follows from every bit of it."""
    frame = FRAME.assign(smokes=np.where(FRAME["smokes"], 1.0, -0.0))
    whole, sizes = read(frame.iloc[:-1])
    found, same = read(frame.assign(smokes=pd.Series([*frame["smokes"].iloc[:-1], "what?"], dtype=object)))
    assert whole.tobytes() == found.tobytes()
    assert np.array_equal(sizes, same)


def test_a_column_that_no_array_can_hold_is_read_cell_by_cell() -> None:
    """Polars gives a column 128 bits where one number of it has more than 64, and numpy has no such type."""
    plain = pl.from_pandas(FRAME)
    whole, _ = read(plain[:-1])
    ages = pl.Series("age", [*plain["age"].to_list()[:-1], -(2**100)], dtype=pl.Int128)
    found, _ = read(plain.with_columns(ages))
    assert not Counter(map(tuple, whole.tolist())) - Counter(map(tuple, found.tolist()))
    assert (len(whole), len(found)) == (79, 80)  # it is clamped


@pytest.mark.parametrize("source", [None, "elsewhere.csv"])
def test_a_frame_takes_the_place_of_a_file_in_a_mapping_as_in_a_toml_file(tmp_path: Path, source: str | None) -> None:
    data = {"label": "ill", "classes": ["no", "yes"], "records": 80, "columns": COLUMNS, "name": "own"}
    table = {"channel": "weights", "epsilon": 3.0, "delta": 1e-3, "data": data | ({"source": source} if source else {})}
    file = tmp_path / "own.toml"
    file.write_text(tomli_w.dumps(table))
    for given in (table, file):
        assert airlock.plan(given, data=FRAME).guarantee.epsilon <= 3.0
    assert airlock.plan(table, data=FRAME, label="smokes", columns={"age": COLUMNS["age"]}).guarantee.epsilon <= 3.0


@pytest.mark.parametrize("of", [lambda frame: frame, pl.from_pandas, pa.Table.from_pandas, "csv", "parquet"])
def test_a_day_is_that_of_utc_wherever_it_comes_from(of: Any, tmp_path: Path) -> None:
    since = pd.date_range("2010-01-01 00:30", periods=80, tz="Europe/Berlin")  # in UTC, the day before
    frame, expected = FRAME.assign(since=since), (np.arange(80) - 1.0) / (30 * 365.25 - 0.5)
    if isinstance(of, str):
        path = tmp_path / f"own.{of}"
        getattr(frame, f"to_{of}")(path, index=False)
        split = load(config(source=str(path), columns={"since": {"min": "2010-01-01", "max": "2039-12-31"}}))
        found = np.concatenate([part.x for part in (split.private, split.test, split.holdout)])
    else:
        found, _ = read(of(frame), columns={"since": {"min": "2010-01-01", "max": "2039-12-31"}})
    assert np.allclose(np.sort(found[:, 0]), np.maximum(expected, 0.0), atol=1e-3)
    assert np.sort(found[:, 0])[1] == 0.0


def test_the_first_and_the_last_day_have_no_other_in_utc() -> None:
    cells = ["0001-01-01 00:00+05:00", "9999-12-31 23:00-05:00", *["2005-01-01"] * 78]
    found, _ = read(FRAME.assign(since=pd.Series(cells, dtype=object)), columns=DATED["columns"])
    assert len(found) == 78
