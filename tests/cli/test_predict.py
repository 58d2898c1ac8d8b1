"""`airlock predict`: raw rows in, predictions out; what is refused or clamped is said of the user's own rows."""

from __future__ import annotations

import csv
import io
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from airlock.bundle import Bundle, write
from airlock.bundle.receiving.model import Predictions
from airlock.bundle.signing.keys import SigningKey, export
from airlock.cli import app
from airlock.cli.serve import _cells
from tests.bundle.conftest import CONFIG, FACTS, guarantee, make_release, noise
from tests.bundle.receiving import table
from tests.bundle.receiving.table import GOOD, rows


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return write(tmp_path_factory.mktemp("predict") / "bundle", table.CONFIG, table.release(), table.card())


def run(*arguments: object, stdin: bytes | None = None) -> Result:
    result = CliRunner().invoke(app, ["predict", *map(str, arguments)], input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def written(place: Path, given: list[dict[str, Any]]) -> Path:
    pd.DataFrame(given).to_csv(place, index=False)
    return place


def read(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


def test_rows_of_a_file_are_predicted(bundle: Bundle, tmp_path: Path) -> None:
    done = run(bundle.folder, written(tmp_path / "rows.csv", rows(age=30, city="Zug")))
    assert done.exit_code == 0, done.output
    lines = read(done.stdout)
    assert lines[0] == ["row", "prediction", "probability of no", "probability of yes"]
    assert [line[0] for line in lines[1:]] == ["1", "2", "3"]
    for line in lines[1:]:
        assert line[1] == table.CLASSES[float(line[3]) > float(line[2])]
        assert float(line[2]) + float(line[3]) == pytest.approx(1, abs=1e-5)
    assert not done.stderr


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_rows_that_do_not_fit_are_named_and_the_others_are_written(bundle: Bundle, tmp_path: Path, suffix: str) -> None:
    given = pd.DataFrame([GOOD, {**GOOD, "amount": -1.0}, {**GOOD, "age": 120}, {**GOOD, "group": "z"}])
    source, out = tmp_path / f"rows.{suffix}", tmp_path / f"out.{suffix}"
    getattr(given, f"to_{suffix}")(source, index=False)
    done = run(bundle.folder, source, "--out", out)
    assert done.exit_code == 1
    assert "refused: a value outside the declared range in column 'amount' (row 2)." in done.stderr
    assert "refused: not a declared category in column 'group' (row 4)." in done.stderr
    assert "clamped: a value outside the declared range in column 'age' (row 3)" in done.stderr
    assert done.stdout.strip().endswith("4 rows, 2 refused")
    found = pd.read_csv(out) if suffix == "csv" else pd.read_parquet(out)
    assert found["row"].tolist() == [1, 2, 3, 4]
    assert found["prediction"].isna().tolist() == [False, True, False, True]
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    again = run(bundle.folder, source, "--out", out)
    assert again.exit_code == 2
    assert "--force" in again.stderr
    assert run(bundle.folder, source, "--out", out, "--force").exit_code == 1


def test_rows_come_from_a_pipe(bundle: Bundle, tmp_path: Path) -> None:
    text = written(tmp_path / "rows.csv", rows(age=30)).read_bytes()
    piped = run(bundle.folder, "-", stdin=b"\xef\xbb\xbf" + text)
    assert piped.exit_code == 0, piped.output
    assert piped.stdout == run(bundle.folder, tmp_path / "rows.csv").stdout
    broken = run(bundle.folder, "-", stdin=text + b'54,"never closed\n' + text.splitlines()[1] + b"\n")
    assert broken.exit_code == 1
    assert "not 8 cells like the header (row 3)" in broken.stderr
    assert len(read(broken.stdout)) == 5


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "one column 'age' in rows.csv, found none"),
        (b"age;sex\n1;f\n", "semicolons"),
        (b"Age,sex\n1,f\n", "Did you mean 'Age'"),
        (b"\xff\xfe\x00", "UTF-8"),
    ],
)
def test_what_is_no_table_is_refused_in_one_line(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").write_bytes(content)
    done = run(bundle.folder, "rows.csv")
    assert done.exit_code == 2
    assert said in done.stderr
    assert not done.stdout


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("=HYPERLINK(1)", "'=HYPERLINK(1)"), ("@SUM(1)", "'@SUM(1)"), ("-1+cmd", "'-1+cmd"), ("\tx", "'\tx"),
        ("-1", "-1"), ("+1.5", "+1.5"), ("-2e-05", "-2e-05"), ("yes", "yes"), ("a=b", "a=b"),
    ],
)  # fmt: skip
def test_no_class_name_is_a_formula_in_a_spreadsheet(name: str, cell: str) -> None:
    """Whoever made the bundle chose it, and whoever opens the predictions would run it."""
    assert _cells(Predictions(np.array([0]), np.array([[1.0]]), (name,)), 0) == [["1", cell, "1"]]


def test_a_header_alone_has_no_predictions(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(",".join(GOOD) + "\n")
    done = run(bundle.folder, tmp_path / "rows.csv")
    assert (done.exit_code, len(read(done.stdout))) == (0, 1)


def test_mistakes_are_said_before_the_bundle_is_opened(tmp_path: Path) -> None:
    assert "nothing at" in run(tmp_path, tmp_path / "rows.csv").stderr
    (tmp_path / "rows.csv").write_text("age\n")
    assert ".parquet" in run(tmp_path, tmp_path / "rows.csv", "--out", tmp_path / "out.xlsx").stderr


def test_a_signature_can_be_required(bundle: Bundle, tmp_path: Path) -> None:
    export(SigningKey.generate().public, tmp_path / "ann.pem")
    done = run(bundle.folder, written(tmp_path / "rows.csv", [GOOD]), "--signer", tmp_path / "ann.pem")
    assert done.exit_code == 1
    assert not done.stdout


def test_images_come_as_an_array(tmp_path: Path) -> None:
    from airlock.bundle import make_card

    release = make_release(guarantee())
    folder = write(tmp_path / "b", CONFIG, release, make_card(CONFIG, FACTS, release, noise())).folder
    pixels = np.random.default_rng(0).integers(0, 256, (3, 1, 8, 8), np.uint8)
    answers = []
    for given in (pixels, pixels[:, 0], pixels.astype(np.int64), pixels / 255, pixels[:, 0, :, :, None]):
        np.save(tmp_path / "rows.npy", given)
        done = run(folder, tmp_path / "rows.npy")
        assert done.exit_code == 0, done.output
        answers.append(done.stdout)
    assert len(set(answers)) == 1
    np.save(tmp_path / "rows.npy", np.concatenate([pixels / 255, [[[[2.0] * 8] * 8]], [[[[np.nan] * 8] * 8]]]))
    assert "a number that is not from 0 to 1 (rows 4, 5)" in run(folder, tmp_path / "rows.npy").stderr
    np.save(tmp_path / "rows.npy", np.array([{"a": 1}], object), allow_pickle=True)
    for bad, said in ((tmp_path / "rows.npy", "a numpy array"), ("-", "the path of a numpy array")):
        refused = run(folder, bad, stdin=b"")
        assert refused.exit_code == 2
        assert said in refused.stderr
    np.save(tmp_path / "rows.npy", pixels[0, 0])
    assert "of shape (rows, 1, 8, 8)" in run(folder, tmp_path / "rows.npy").stderr
