"""CSV and Parquet with a public schema."""

import csv
import datetime
from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airlock.config import STEPS, Column, TargetRange
from airlock.data import describe, load, tables
from airlock.data.remarks import Faults
from airlock.data.tables import csv_rows, encode, width
from airlock.errors import ConfigError, DataError, FormatError

from .writers import config

COLUMNS = {
    "age": {"min": 0, "max": 100},
    "ward": ["north", "south"],
    "blood": {"categories": ["A", "B"], "other": True},
}
ROWS = [
    {
        "id": i,
        "age": i * 1.5,
        "ward": ("north", "south")[i % 2],
        "ill": ("no", "yes")[i // 2 % 2],
        "blood": "ABO"[i % 3],
    }
    for i in range(60)
]


def write_csv(path, rows=ROWS, encoding="utf-8"):
    with path.open("w", encoding=encoding, newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_parquet(path, rows=ROWS, **types):
    table = pa.Table.from_pylist(rows)
    for name, kind in types.items():
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, table.column(name).cast(kind))
    pq.write_table(table, path)
    return path


WRITE = {"d.csv": write_csv, "d.parquet": write_parquet}
both = pytest.mark.parametrize("name", WRITE)


def own(path, **data):
    known = {"records": 60, "classes": ["no", "yes"], "label": "ill", "columns": COLUMNS}
    return config(path, **(known | data))


def told(path, **data):
    """How many records remain, and what the holder is told."""
    split = load(own(path, **data))
    return len(split.private) + len(split.test) + len(split.holdout), " ".join(split.remarks)


def changed(row, **cells):
    return [r | cells if i == row - 1 else r for i, r in enumerate(ROWS)]


@both
def test_a_table(tmp_path, name):
    cfg = own(WRITE[name](tmp_path / name))
    assert describe(cfg).shape == (6,)
    split = load(cfg)
    x = np.concatenate([part.x for part in (split.private, split.public, split.test, split.holdout)])
    y = np.concatenate([part.y for part in (split.private, split.public, split.test, split.holdout)])
    order = np.argsort(x[:, 0])
    expected = [
        [r["age"] / 100, r["ward"] == "north", r["ward"] == "south", *(r["blood"] == b for b in "ABO")] for r in ROWS
    ]
    assert np.allclose(x[order], np.array(expected, np.float32))
    assert y[order].tolist() == [r["ill"] == "yes" for r in ROWS]
    assert x.dtype == np.float32


def test_both_formats_give_the_same(tmp_path):
    one, other = (load(own(write(tmp_path / name))) for name, write in WRITE.items())
    assert np.array_equal(one.private.x, other.private.x)


def test_parquet_types(tmp_path):
    strings = pa.dictionary(pa.int32(), pa.string())
    rows = [r | {"age": i, "ill": i % 2} for i, r in enumerate(ROWS)]
    path = write_parquet(tmp_path / "d.parquet", rows, age=pa.decimal128(24, 2), ward=strings)
    assert load(own(path, classes=2)).facts.classes == ("0", "1")
    rows = [r | {"blood": i % 2 == 0, "ward": i % 4 < 2} for i, r in enumerate(ROWS)]
    path = write_parquet(tmp_path / "e.parquet", rows)
    columns = {"blood": {"min": 0, "max": 1}, "ward": ["true", "false"], "id": {"min": 0, "max": 100}}
    assert set(np.unique(load(own(path, columns=columns)).private.x[:, :3])) == {0, 1}


def test_csv_details(tmp_path):
    path = tmp_path / "d.csv"
    lines = ["age , ill,note"] + [f'"{i}", {"yes" if i % 2 else "no"},"a ""quoted"", long\nnote"' for i in range(60)]
    path.write_bytes("\r\n".join([*lines, "", ""]).encode("utf-8-sig"))
    split = load(own(path, columns={"age": {"min": 0, "max": 100}}))
    assert len(split.private) + len(split.test) + len(split.holdout) == 60
    assert split.private.x.max() <= 0.6


@both
def test_numbers_are_clamped(tmp_path, name):
    path = WRITE[name](tmp_path / name, changed(7, age=1e12))
    split = load(own(path))
    assert max(part.x[:, 0].max() for part in (split.private, split.test, split.holdout)) == 1


@both
@pytest.mark.parametrize(
    ("cells", "column"),
    [({"age": None}, "age"), ({"ward": None}, "ward"), ({"ill": None}, "ill"), ({"age": float("nan")}, "age")],
)
def test_missing_cells_leave_their_row_out(tmp_path, name, cells, column):
    left, remarks = told(WRITE[name](tmp_path / name, changed(23, **cells)))
    assert left == 59
    assert f"in column '{column}' (row 23)" in remarks


@both
def test_a_missing_category_may_be_other(tmp_path, name):
    load(own(WRITE[name](tmp_path / name, changed(23, blood=None))))


@both
@pytest.mark.parametrize("column", ["ward", "ill"])
def test_unlisted_values_are_never_shown(tmp_path, name, column):
    left, remarks = told(WRITE[name](tmp_path / name, changed(41, **{column: "HIV-positive"})))
    assert left == 59
    assert f"in column '{column}' (row 41)" in remarks
    assert "HIV" not in remarks


@pytest.mark.parametrize("cell", ["HIV", "1_000", "0x10", "1,5", "--"])
def test_text_for_a_number_is_never_shown(tmp_path, cell):
    left, remarks = told(write_csv(tmp_path / "d.csv", changed(5, age=cell)))
    assert left == 59
    assert "left out: not a number in column 'age' (row 5)" in remarks
    assert cell not in remarks.replace(str(tmp_path), "")


@pytest.mark.parametrize("other", ["unknown", None, "", "1e999"])
def test_one_word_in_a_column_of_numbers_costs_its_own_row(tmp_path, other):
    """A word makes text of a whole Parquet column; the numbers in it stay what they are."""
    numbers = pa.table({"age": pa.array([float(n) for n in range(40)]), "ill": pa.array(["no", "yes"] * 20)})
    words = [*(str(float(n)) for n in range(39)), other]
    found = []
    for place, table in enumerate((numbers, numbers.set_column(0, "age", pa.array(words, pa.string())))):
        pq.write_table(table, tmp_path / f"{place}.parquet")
        split = load(own(tmp_path / f"{place}.parquet", columns={"age": {"min": 0, "max": 100}}))
        parts = (split.private, split.test, split.holdout)
        found.append({(float(x[0]), int(y)) for part in parts for x, y in zip(part.x, part.y, strict=True)})
    assert found[1] == found[0] - {(np.float32(0.39), 1)} == {one for one in found[0] if one[0] < 0.385}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_missing_cell_puts_a_point_into_every_other_and_changes_none(tmp_path, kind):
    """Pandas writes whole numbers with a point where one of a column is missing: 3 becomes 3.0."""
    rows = [(n % 4, n % 2, 100_000_000_000_000_000 // 8 * (n // 2)) for n in range(40)]
    whole = pd.DataFrame(rows, columns=["ward", "ill", "who"])
    with_a_gap = whole.astype(float)
    with_a_gap.loc[40] = (np.nan, np.nan, np.nan)
    found = []
    for place, frame in enumerate((whole, with_a_gap)):
        path = tmp_path / f"{place}.{kind}"
        frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
        more = {"person": "who", "people": 20} if kind == "parquet" else {}
        columns = {"ward": {"categories": ["0", "1", "2", "3"]}}
        split = load(own(path, columns=columns, classes=["0", "1"], **more))
        assert "row 41" in " ".join(split.remarks) or not place
        found.append({part: _rows(getattr(split, part)) for part in ("private", "test", "holdout")})
    same = (
        (lambda one: one) if kind == "parquet" else (lambda one: sorted(row for part in one.values() for row in part))
    )
    assert same(found[0]) == same(found[1])


def _rows(records):
    return sorted((*x.tolist(), int(y)) for x, y in zip(records.x, records.y, strict=True))


def test_a_column_without_any_value_is_read(tmp_path):
    table = pa.table({"age": pa.nulls(40), "ward": pa.nulls(40), "ill": pa.array(["no", "yes"] * 20)})
    pq.write_table(table, tmp_path / "d.parquet")
    columns = {"age": {"min": 0, "max": 100}, "ward": ["a"]}
    assert told(tmp_path / "d.parquet", columns=columns)[0] == 0
    filled = {"age": {"min": 0, "max": 100, "missing": 50}, "ward": {"categories": ["a"], "missing": "a"}}
    assert told(tmp_path / "d.parquet", columns=filled)[0] == 40


@both
def test_a_column_that_is_not_there_gets_the_nearest_name(tmp_path, name):
    path = WRITE[name](tmp_path / name)
    with pytest.raises(DataError, match="Did you mean 'age'"):
        load(own(path, columns={"agee": {"min": 0, "max": 1}}))
    with pytest.raises(DataError, match="one column 'sick'"):
        load(own(path, label="sick"))


def test_what_a_config_must_say(tmp_path):
    path = write_csv(tmp_path / "d.csv")
    with pytest.raises(ConfigError, match=r"data\.columns"):
        describe(own(path, columns={}))
    with pytest.raises(ConfigError, match=r"data\.label"):
        describe(own(path, label=None))
    with pytest.raises(ConfigError, match="in both"):
        describe(own(path, label="age"))
    for columns in ({"ward": []}, {"ward": [], "age": {"min": 0, "max": 1}}):
        with pytest.raises(ConfigError, match="at least one category"):
            describe(own(path, columns=columns))


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"age;ill\n1;no\n", "semicolons"),
        (b"age,ill,age\n1,no,2\n", "two of that name"),
        (b'age,"ill\n1,no\n', r"d\.csv"),
        ("age,ill\n1,no\n".encode("utf-16"), "UTF-8"),
        (b"\xe4ge,age,ill\n1,1,no\n", "UTF-8"),
        (b"", "one column"),
    ],
)
def test_a_header_that_cannot_be_used_is_refused(tmp_path, content, match):
    (tmp_path / "d.csv").write_bytes(content)
    with pytest.raises(DataError, match=match):
        load(own(tmp_path / "d.csv", columns={"age": {"min": 0, "max": 100}}))


GOOD = [f'{i},{"yes" if i % 2 else "no"},"a ""quoted"" note{i}"' for i in range(20)]
BAD = [
    b"2",
    b"1,no,x,y",
    b'1,no,"never closed',
    b'1,"no,x',
    b'1,no,"closed"badly',
    b"\xff\xfe,no,x",
    b"1," + b"n" * 200_000 + b",x",
    b'"',
    b'1,no,"two\nlines" here',
    b",,",
]


@pytest.mark.parametrize("at", [0, 7, 20])
@pytest.mark.parametrize("bad", BAD)
def test_a_row_that_cannot_be_read_takes_no_other_along(tmp_path, bad, at):
    """Not even where a quote in it is never closed, and others have quotes."""
    path, columns = tmp_path / "d.csv", {"age": {"min": 0, "max": 100}}
    for name, lines in (("whole", GOOD), ("spoilt", [*GOOD[:at], bad, *GOOD[at:]])):
        raw = [line if isinstance(line, bytes) else line.encode() for line in ["age,ill,note", *lines]]
        path.write_bytes(b"\n".join(raw) + b"\n")
        split = load(own(path, columns=columns))
        parts = [np.sort(part.x.ravel()) for part in (split.private, split.test, split.holdout)]
        if name == "whole":
            expected = parts
    assert all(np.array_equal(a, b) for a, b in zip(expected, parts, strict=True))
    assert f"row{'s' if bad.count(bytes([10])) else ''} {at + 1}" in split.remarks[0]


def test_a_long_note_with_lines_like_records_is_one_cell(tmp_path):
    """Larger than csv's own limit, of more lines than anybody would write: nobody puts records in by a note."""
    note = "\n".join(["7,no,x"] * 40_000)
    (tmp_path / "d.csv").write_text(f'age,ill,note\n1,yes,"{note}"\n2,no,x\n')
    before = csv.field_size_limit()
    assert told(tmp_path / "d.csv", columns={"age": {"min": 0, "max": 100}})[0] == 2
    assert csv.field_size_limit() == before


def test_bytes_that_are_no_text_in_a_column_that_is_not_used_matter_not(tmp_path):
    rows = [b"%d,no,M\xfcller" % i for i in range(60)]
    (tmp_path / "d.csv").write_bytes(b"\n".join([b"age,ill,name", *rows]))
    assert told(tmp_path / "d.csv", columns={"age": {"min": 0, "max": 100}})[0] == 60


def test_a_header_alone(tmp_path):
    (tmp_path / "d.csv").write_text("age,ill\n")
    assert told(tmp_path / "d.csv", columns={"age": {"min": 0, "max": 100}})[0] == 0
    pq.write_table(
        pa.table({"age": pa.array([], pa.int64()), "ill": pa.array([], pa.string())}), tmp_path / "d.parquet"
    )
    assert told(tmp_path / "d.parquet", columns={"age": {"min": 0, "max": 100}})[0] == 0


def test_parquet_text_that_is_no_utf8_leaves_its_row_out(tmp_path):
    ill = pa.array([b"no", b"yes", b"\xff\xfe", b"no"] * 10)
    table = pa.table({"age": pa.array(range(40)), "ill": pa.Array.from_buffers(pa.string(), 40, ill.buffers())})
    pq.write_table(table, tmp_path / "d.parquet")
    left, remarks = told(tmp_path / "d.parquet", columns={"age": {"min": 0, "max": 100}})
    assert left == 30
    assert "not a declared class in column 'ill' (rows 3, 7, 11, 15, 19 and 5 more)" in remarks


def test_a_parquet_column_of_another_type_is_refused_by_its_schema(tmp_path):
    table = pa.table({"age": pa.array(range(4)), "ill": pa.array([["no"]] * 4)})
    pq.write_table(table, tmp_path / "d.parquet")
    with pytest.raises(DataError, match="text or numbers in column 'ill'"):
        load(own(tmp_path / "d.parquet", columns={"age": {"min": 0, "max": 100}}))


def test_parquet_that_cannot_be_read(tmp_path):
    path = write_parquet(tmp_path / "d.parquet")
    whole = path.read_bytes()
    for content in (b"", b"PAR1", whole[:-5], b"PAR1" + bytes(len(whole) - 8) + whole[-4:]):
        path.write_bytes(content)
        with pytest.raises(FormatError, match=r"d\.parquet"):
            load(own(path))


def test_parquet_that_grows_too_large(tmp_path, monkeypatch):
    rows = pa.table({"ward": pa.array(["north"] * 100_000), "ill": pa.array(["no"] * 100_000)})
    pq.write_table(rows, tmp_path / "d.parquet")
    assert (tmp_path / "d.parquet").stat().st_size < 10_000
    monkeypatch.setenv("AIRLOCK_MAX_BYTES", "50000")
    with pytest.raises(DataError, match="at most 50000 bytes"):
        load(own(tmp_path / "d.parquet", columns={"ward": ["north", "south"]}))


def test_rows_are_numbered_across_blocks(tmp_path):
    rows = [dict(ROWS[i % 60]) for i in range(20_000)]
    rows[17_000]["ward"] = ""
    assert "(row 17001)" in told(write_csv(tmp_path / "d.csv", rows))[1]
    rows[17_000]["ward"] = None
    assert "(row 17001)" in told(write_parquet(tmp_path / "d.parquet", rows))[1]


@both
def test_a_separate_test_file(tmp_path, name):
    path = WRITE[name](tmp_path / name)
    test = WRITE[name](tmp_path / f"test_{name}", [r | {"age": r["age"] + 0.1} for r in ROWS[:9]])
    split = load(own(path, test=str(test)))
    assert len(split.test) == 9
    assert split.facts.test_records == 12


finite = st.floats(-1e12, 1e12)


@given(
    st.lists(st.tuples(finite, st.sampled_from(["a", "b", "?", ""])), min_size=1, max_size=8),
    finite,
    st.floats(0.1, 1e6),
)
@settings(max_examples=80, deadline=None)
def test_one_row_is_encoded_the_same_whatever_the_others_are(rows, low, span):
    columns = {"n": Column(min=low, max=low + span), "c": Column(categories=("a", "b"), other=True)}
    together = encode(columns, {"n": [repr(n) for n, _ in rows], "c": [c for _, c in rows]}, Faults())
    alone = [encode(columns, {"n": [repr(n)], "c": [c]}, Faults())[0] for n, c in rows]
    assert together.shape == (len(rows), width(columns))
    assert np.array_equal(together, alone)
    assert ((together >= 0) & (together <= 1)).all()
    assert (together[:, 1:].sum(axis=1) == 1).all()


def rows_read_again(stream: Iterator[str], cells: int) -> Iterator[list[str] | None]:
    """What `csv_rows` says in its first paragraph, and no more: a row that fails is read again from its second line."""
    left = list(stream)
    while left:
        taken: list[str] = []
        try:
            row = next(csv.reader((taken.append(line) or line for line in left), strict=True), None)
        except csv.Error:
            row = None
        good = row is not None and len(row) == cells
        left = left[len(taken) if good or row == [] else 1 :]
        if row != []:
            yield row if good else None


@given(st.lists(st.text('ab,"', max_size=7), max_size=12), st.integers(1, 5), st.sampled_from(["\n", "\r\n"]))
@example(["1,", '"2', "3", '"4,"5', '"6"'], 2, "\n")
@example(['a,"b', 'c","d', 'e"', "f,g"], 3, "\n")
@example(['a,"b', 'c","d', 'e"', "f,g"], 2, "\n")
@settings(max_examples=400)
def test_stray_quotes_leave_the_rows_that_they_left_before(lines: list[str], cells: int, end: str) -> None:
    told = [line + end for line in lines]
    assert list(csv_rows(iter(told), cells)) == list(rows_read_again(iter(told), cells))


@pytest.mark.parametrize("last", ["", 'x"\n', 'x"y\n'], ids=["never closed", "closed", "closed wrongly"])
@pytest.mark.parametrize("line", ['x","y\n', '1,"2\n', '1,2,"\n', 'x","",","y\n'])
def test_no_line_is_read_more_than_a_few_times(line: str, last: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As found: each line opened a quotation that the next one closed and opened again, and was read to the end."""
    read, reader = [0], csv.reader

    def counting(lines: Iterable[str], **options: bool) -> Iterator[list[str]]:
        return reader((read.__setitem__(0, read[0] + 1) or one for one in lines), **options)

    monkeypatch.setattr("airlock.data.tables.csv.reader", counting)
    told = [line] * 3000 + [last] * bool(last)
    assert list(csv_rows(iter(told), 2)).count(None) >= 1000
    assert read[0] <= 5 * len(told)


# What is missing, dates, and values outside a range.

RICH = {
    "age": {"min": 0, "max": 100, "missing": 60, "unit": "years"},
    "dose": {"min": 0, "max": 10, "missing": "indicator", "outside": "refuse"},
    "seen": {"min": "2020-01-01", "max": "2020-12-31", "kind": "date"},
    "ward": {"categories": ["north", "south"], "missing": "south"},
    "blood": {"categories": ["A", "B"], "other": True, "missing": "indicator"},
}


def rich(**cells):
    """One row of cells, encoded; None if it is left out."""
    whole = {"age": "50", "dose": "5", "seen": "2020-01-01", "ward": "north", "blood": "A"} | cells
    columns = config("x", columns=RICH, label="y").data.columns
    faults = Faults()
    found = encode(columns, {name: [cell] for name, cell in whole.items()}, faults)
    return found[0].tolist() if faults.kept(1)[0] else None


def test_what_stands_for_a_missing_value_is_declared():
    whole = [0.5, 0.5, 0, 0, 1, 0, 1, 0, 0, 0]
    assert rich() == whole
    for empty in ("", " ", None):
        assert rich(age=empty) == pytest.approx([0.6, *whole[1:]])
        assert rich(dose=empty) == [0.5, 0, 1, *whole[3:]]
        assert rich(ward=empty) == [*whole[:4], 0, 1, *whole[6:]]
        assert rich(blood=empty) == [*whole[:6], 0, 0, 0, 1]
        assert rich(seen=empty) is None
    assert rich(age="nan") == rich(age="")
    assert rich(age="inf") is None
    assert rich(blood="O") == [*whole[:6], 0, 0, 1, 0]


def test_a_date_is_its_days_in_the_declared_range():
    assert rich(seen="2020-12-31")[3] == 1
    assert rich(seen="2020-07-02")[3] == pytest.approx(183 / 365)
    assert rich(seen="2020-07-02T23:59:59")[3] == rich(seen="2020-07-02")[3]
    assert rich(seen="1999-01-01")[3] == 0
    assert rich(seen="2.7.2020") is None
    assert rich(seen="183") is None


def test_a_value_outside_its_range_is_clamped_or_left_out_as_declared():
    assert rich(age="1000")[0] == 1
    assert rich(dose="11") is None
    columns, told = config("x", columns=RICH, label="y").data.columns, Faults()
    cells = {
        "age": ["-3", "7"],
        "dose": ["1", "1"],
        "seen": ["2020-02-01"] * 2,
        "ward": ["north"] * 2,
        "blood": ["A"] * 2,
    }
    encode(columns, cells, Faults(), clamped=told)
    assert told.kept(2).tolist() == [False, True]


@pytest.mark.parametrize(
    ("column", "why"),
    [
        ({"min": 0, "max": 10, "missing": 11}, "from min to max"),
        ({"min": 0, "max": 10, "missing": "unknown"}, "a number in the range"),
        ({"min": 0, "max": "2020-01-01"}, "two numbers or two dates"),
        ({"min": 0, "max": 10, "kind": "date"}, "a number by its other keys"),
        ({"categories": ["a"], "missing": "b"}, "a declared category"),
        ({"categories": ["a", "indicator"], "missing": "indicator"}, "ambiguous"),
        ({"categories": ["a"], "outside": "refuse"}, "no range"),
        ({"min": "2020-01-01", "max": "2021-01-01", "missing": 5}, "a date in the range"),
        ({"min": -1e308, "max": 1e308}, "between 1e-290 and 1e290"),
        ({"min": 1e-320, "max": 1e-319}, "between 1e-290 and 1e290"),
    ],
)
def test_a_column_that_contradicts_itself_is_refused(column, why):
    with pytest.raises(ConfigError, match=why):
        config("x", columns={"a": column}, label="y")


def test_a_category_that_looks_like_a_date_may_stand_for_a_missing_value():
    column = Column(categories=("2020-01-01", "later"), missing="2020-01-01")
    assert column.missing == "2020-01-01"
    assert Column(min="2000-01-01", max="2020-12-31", missing="2020-01-01").missing == datetime.date(2020, 1, 1)


def test_dates_and_missing_values_of_a_parquet_file(tmp_path):
    days = [datetime.date(2020, 1, 1) + datetime.timedelta(6 * i) for i in range(60)]
    rows = [
        row | {"seen": day, "age": None if i % 2 else row["age"]}
        for i, (row, day) in enumerate(zip(ROWS, days, strict=True))
    ]
    columns = COLUMNS | {"age": {"min": 0, "max": 100, "missing": "indicator"}, "seen": RICH["seen"]}
    found = []
    for kind in (pa.date32(), pa.timestamp("ns"), pa.timestamp("us", "UTC"), pa.string()):
        split = load(own(write_parquet(tmp_path / "d.parquet", rows, seen=kind), columns=columns))
        parts = [part.x for part in (split.private, split.public, split.test, split.holdout)]
        found.append(np.sort(np.concatenate(parts), axis=0))
        assert len(found[-1]) == 60
        assert not split.remarks or "left out" not in " ".join(split.remarks)
    for other in found[1:]:
        assert np.array_equal(found[0], other)
    assert found[0][:, 1].sum() == 30


def test_targets_are_steps_of_their_declared_range() -> None:
    declared, faults = TargetRange(min=-10, max=30, unit="days"), Faults()
    cells = ["-10", "30", "10", "1e9", "-1e9", " 0 ", "", "x", "nan", "inf"]
    found = tables.targets("days", cells, declared, faults, first=5)
    assert found[:6].tolist() == [0, STEPS, STEPS // 2, STEPS, 0, STEPS // 4]
    assert found.min() >= 0
    assert found.max() <= STEPS
    assert faults.kept(15)[5:].tolist() == [True] * 6 + [False] * 4
    strict = Faults()
    tables.targets("days", cells, declared.model_copy(update={"outside": "refuse"}), strict)
    assert strict.kept(10).tolist() == [True, True, True, False, False, True] + [False] * 4
