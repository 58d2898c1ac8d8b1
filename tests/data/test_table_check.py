"""Every problem of a messy table is found, with a remedy, and no cell is quoted."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from airlock.cli import app
from airlock.config import DataConfig
from airlock.data.table_check import Obstacle, check_table

MESSY = "\ufeffpatient_id;born;weight;income;score;mood;\ufb01le;mood\n" + "".join(
    f"p{i};{1950 + i}-03-0{i % 9 + 1};{60 + i},5;12'{i:03};{'n/a' if i == 3 else i};{'glad' if i % 2 else i};x;y\n"
    for i in range(30)
)


def written(folder: Path, text: str) -> Path:
    place = folder / "own.csv"
    place.write_text(text, encoding="utf-8")
    return place


def said(found: tuple[Obstacle, ...]) -> dict[str, str]:
    return {f"{one.where}: {one.what}": one.do for one in found}


def test_a_messy_table_has_all_of_its_problems_in_one_list(tmp_path: Path) -> None:
    found = said(check_table(written(tmp_path, MESSY + "only;three;cells\n")))
    for expected in (
        "the file: semicolons between the columns",
        "column 'mood': two columns have this name",
        "column '\ufb01le': characters that look like others",
        "row 31: not 8 cells like the header",
        "column 'patient_id': every value is another one",
        "column 'born': a date in 30 of 30 cells",
        "column 'weight': a decimal comma in 30 of 30",
        "column 'income': thousands separators in 30 of 30",
        "column 'score': a word or a sign for a missing number in 1 of 30 cells (row 4)",
        "column 'mood': text among numbers in 15 of 30",
    ):
        assert sum(line.startswith(expected) for line in found) == 1, (expected, list(found))
    assert all(found.values())
    assert "p7" not in str(found)
    assert "glad" not in str(found)


def declared(**more: object) -> DataConfig:
    table = {"source": "x", "label": "sick", "classes": ["no", "yes"], "records": 100,
             "columns": {"age": {"min": 0, "max": 110}, "city": ["Bern", "Chur"]}}  # fmt: skip
    return DataConfig.model_validate(table | more)


CLEAN = "who,age,city,sick\n" + "".join(f"w{i % 40},{20 + i / 2},Bern,{'no' if i % 2 else 'yes'}\n" for i in range(100))


def test_nothing_is_in_the_way_of_a_table_as_declared(tmp_path: Path) -> None:
    assert check_table(written(tmp_path, CLEAN), declared()) == ()
    assert check_table(written(tmp_path, CLEAN), declared(person="who", people=40)) == ()


DATED = "since,age,group,code,days\n" + "".join(
    f"200{i % 10}-03-0{i % 9 + 1},{'' if i % 5 else i},{'' if i % 6 else 'a'},{i % 3}.0,{i}\n" for i in range(60)
)


def test_nothing_is_in_the_way_of_dates_missing_values_and_numbers_to_predict(tmp_path: Path) -> None:
    """What a release reads is no obstacle, and what it leaves out or clamps is one."""
    columns = {
        "since": {"min": "2000-01-01", "max": "2009-12-31"}, "age": {"min": 0, "max": 60, "missing": 30},
        "group": {"categories": ["a"], "missing": "indicator"}, "code": ["0", "1", "2"],
    }  # fmt: skip
    table = {"source": "x", "label": "days", "target": {"min": 0, "max": 60}, "records": 60, "columns": columns}
    assert check_table(written(tmp_path, DATED), DataConfig.model_validate(table)) == ()
    columns["since"] = {"min": "2000-01-01", "max": "2004-12-31", "outside": "refuse"}
    table |= {"columns": columns, "target": {"min": 0, "max": 30}}
    lines = "\n".join(said(check_table(written(tmp_path, DATED + "x,1,a,0,1\n"), DataConfig.model_validate(table))))
    assert "column 'since': text among dates in 1 of 61 cells (row 61)" in lines
    assert "column 'since': a date outside 2000-01-01 to 2004-12-31 in 30 of 61 cells" in lines
    assert "column 'days': a number outside 0 to 30 in 29 of 61 cells" in lines


def test_whose_a_record_is_should_be_declared_where_people_repeat(tmp_path: Path) -> None:
    found = said(check_table(written(tmp_path, CLEAN.replace("who", "patient"))))
    assert 'person = "patient"' in found["column 'patient': it seems to say whose a record is, and values repeat"]


def test_what_is_far_off_the_declaration_is_told(tmp_path: Path) -> None:
    columns = {"age": {"min": 0, "max": 30}, "city": ["Basel", "Chur"], "towns": ["a", "b"]}
    found = said(check_table(written(tmp_path, CLEAN), declared(records=1000, columns=columns)))
    lines = "\n".join(found)
    assert "column 'age': a number outside 0 to 30 in 79 of 100 cells" in lines
    assert "column 'city': a value that is not declared in 100 of 100 cells" in lines
    assert "column 'towns': declared, but not in the file" in lines
    assert "There are 100 records, but 1,000 are declared" in lines
    wide = said(check_table(written(tmp_path, CLEAN), declared(columns={"age": {"min": 0, "max": 1e4}})))
    assert list(wide) == ["column 'age': less than a twentieth of its declared range is used"]


def test_a_parquet_file_is_checked_alike(tmp_path: Path) -> None:
    pq.write_table(pa.table({"age": [1.0, None, 3.0], "sick": ["no", "yes", "no"]}), tmp_path / "own.parquet")
    (found,) = check_table(tmp_path / "own.parquet")
    assert (found.where, found.what) == ("column 'age'", "nothing in 1 of 3 cells (row 2)")


def test_the_command_is_for_the_holder_and_its_exit_code_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "release.toml").write_text(
        'channel = "weights"\nepsilon = 1.0\ndelta = 1e-5\n[data]\nsource = "own.csv"\nlabel = "sick"\n'
        'classes = ["no", "yes"]\nrecords = 100\n[data.columns]\nage = {min = 0, max = 110}\n',
        encoding="utf-8",
    )
    for text, title in ((CLEAN, "Nothing is in the way"), (CLEAN.replace("20.0", ""), "column 'age'")):
        written(tmp_path, text)
        for what in ("release.toml", "own.csv"):
            told = CliRunner().invoke(app, ["check", str(tmp_path / what)])
            assert told.exit_code == 0, told.output
            assert "for your eyes alone" in " ".join(told.stdout.split())
        assert title in CliRunner().invoke(app, ["check", str(tmp_path / "release.toml")]).stdout


DATES = {"columns": {"seen": {"min": "2020-01-01", "max": "2024-12-31"}}}


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        (["2021-03-04", "2022-01-01"], None),
        (["2021-03-04", "01.02.2022"], "a date that is not written as 2024-01-31 in 15 of 30"),
        (["2021-03-04", "44561"], "a number among dates in 15 of 30"),
        (["2021-03-04", "spring"], "text among dates in 15 of 30"),
        (["2021-03-04", "n/a"], "a word or a sign for a missing number in 15 of 30"),
    ],
)
def test_a_column_of_dates_is_looked_at_as_dates(tmp_path: Path, cells: list[str], says: str | None) -> None:
    place = written(tmp_path, "seen\n" + "".join(f"{cells[i % 2]}\n" for i in range(30)))
    made = DataConfig.model_validate({"source": "x", "records": 30, **DATES})
    found = said(check_table(place, made))
    assert len(found) == (says is not None), found
    assert says is None or next(iter(found)).startswith(f"column 'seen': {says}")


def test_signs_for_missing_numbers_are_found_beside_numbers_however_they_are_written(tmp_path: Path) -> None:
    place = written(
        tmp_path, "bmi;costs\n" + "".join(f"{'n/a' if i % 3 else '25,5'};1'{i:03d}.50\n" for i in range(60))
    )
    columns = {"bmi": {"min": 15, "max": 50}, "costs": {"min": 0, "max": 50000}}
    found = said(check_table(place, DataConfig.model_validate({"source": "x", "columns": columns})))
    assert any(line.startswith("column 'bmi': a word or a sign for a missing number in 40 of 60") for line in found)
    assert not any("twentieth" in line for line in found), "nobody can tell before the numbers are read"


def test_gaps_that_are_declared_are_no_obstacle(tmp_path: Path) -> None:
    place = written(tmp_path, "age,city\n" + ",Bern\n40,\n" * 15)
    columns = {
        "age": {"min": 0, "max": 110, "missing": "indicator"},
        "city": {"categories": ["Bern"], "missing": "Bern"},
    }
    assert check_table(place, DataConfig.model_validate({"source": "x", "columns": columns})) == ()


def test_a_number_to_predict_is_held_against_its_range_and_a_gap_in_it_leaves_the_record_out(tmp_path: Path) -> None:
    place = written(tmp_path, "days\n" + '3\n""\n250\n' * 20)
    found = said(
        check_table(place, DataConfig.model_validate({"source": "x", "label": "days", "target": {"min": 0, "max": 60}}))
    )
    assert found["column 'days': nothing in 20 of 60 cells (rows 2, 5, 8, 11, 14 and 15 more)"].startswith(
        "Such records"
    )
    assert any(line.startswith("column 'days': a number outside 0 to 60 in 20 of 60") for line in found)
