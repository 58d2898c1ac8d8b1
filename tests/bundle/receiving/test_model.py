"""A released network is asked with raw rows, by the declared schema, from a bundle that verifies."""

from __future__ import annotations

import datetime
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import airlock
from airlock.bundle.receiving.model import ReleasedModel
from airlock.bundle.signing.keys import SigningKey
from airlock.data import tables
from airlock.data.remarks import Faults
from airlock.errors import AirlockWarning, DataError, Refused
from tests.bundle.receiving import table
from tests.bundle.receiving.table import GOOD, rows


def expected(cells: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """The probabilities of rows given as text, by the package's own encoding and the network in torch."""
    x = tables.encode(table.CONFIG.data.columns, cells, Faults())
    with torch.no_grad():
        return torch.softmax(table.release().artefact.net(torch.from_numpy(x)).double(), 1).numpy()  # type: ignore[attr-defined]


def test_every_form_of_rows_has_the_same_answers(table_model: ReleasedModel) -> None:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    given = rows(age=20, city="Basel", since="2019-02-03", sex=None)
    wanted = expected({name: [None if row[name] is None else str(row[name]) for row in given] for name in GOOD})
    frame = pd.DataFrame(given)
    dates = frame.assign(since=pd.to_datetime(frame["since"]))
    forms = [
        given, tuple(given), frame, dates, pl.DataFrame(given), pl.LazyFrame(given), pa.Table.from_pylist(given),
        frame.to_numpy(), frame.to_numpy().tolist(), {name: list(frame[name]) for name in frame},
        frame.assign(ill="?", extra=1), frame[frame.columns[::-1]], frame.convert_dtypes(),
        frame.to_records(index=False),
        frame.assign(since=[datetime.date.fromisoformat(one) for one in frame["since"]]),
    ]  # fmt: skip
    for form in forms:
        np.testing.assert_allclose(table_model.predict_proba(form), wanted, atol=1e-6)
        assert table_model.predict(form).tolist() == [table.CLASSES[place] for place in wanted.argmax(1)]
    np.testing.assert_allclose(table_model.predict_proba(dict(GOOD)), wanted[:1], atol=1e-6)


def test_an_answer_for_a_row_does_not_depend_on_the_others(table_model: ReleasedModel) -> None:
    many = [{**GOOD, "age": age % 100} for age in range(20_000)]
    whole = table_model.answer(many)
    for start in (0, 8191, 8192, 19_999):
        one = table_model.answer(many[start : start + 1])
        np.testing.assert_array_equal(whole.probabilities[start : start + 1], one.probabilities)
    assert [note.rows[:2] for note in whole.clamped] == [(1, 2)]
    assert whole.clamped[0].rows[-1] == 20_000


def test_no_rows_have_no_answers(table_model: ReleasedModel) -> None:
    for none in ([], np.zeros((0, len(GOOD))), {name: [] for name in GOOD}):
        assert table_model.predict_proba(none).shape == (0, 2)
        assert table_model.predict(none).shape == (0,)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("age", "sixty", "not a number in column 'age'"),
        ("age", float("inf"), "NaN or infinity in column 'age'"),
        ("amount", None, "an empty cell in column 'amount'"),
        ("amount", 1e9, "a value outside the declared range in column 'amount'"),
        ("amount", -1e-9, "a value outside the declared range in column 'amount'"),
        ("since", "5.6.2004", "not a date such as 2024-01-31 in column 'since'"),
        ("group", "c", "not a declared category in column 'group'"),
        ("sex", "M", "not a declared category in column 'sex'"),
        ("code", "", "an empty cell in column 'code'"),
        ("code", object(), "not a declared category in column 'code'"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_and_the_others_are_answered(
    table_model: ReleasedModel, name: str, value: object, said: str
) -> None:
    given = [GOOD, {**GOOD, name: value}, GOOD]
    found = table_model.answer(given)
    assert [(note.what, note.rows) for note in found.refused] == [(said, (2,))]
    assert found.labels.tolist()[1] == -1
    assert np.isnan(found.probabilities[1]).all()
    assert found.names[1] is None
    assert found.names[0] == found.names[2] == table_model.predict([GOOD])[0]
    for ask in (table_model.predict, table_model.predict_proba):
        with pytest.raises(DataError, match=r"row 2\)"):
            ask(given)


@pytest.mark.parametrize(("name", "value"), [("age", 17), ("age", 1e300), ("Größe in cm", 0), ("since", "1999-12-31")])
def test_a_value_that_is_clamped_is_said_and_counts_as_the_nearest_end(
    table_model: ReleasedModel, name: str, value: object
) -> None:
    column = table.CONFIG.data.columns[name]
    near = column.high if value == 1e300 else column.min
    with pytest.warns(AirlockWarning, match=rf"outside the declared range in column '{name}' \(row 2\)"):
        found = table_model.predict_proba([GOOD, {**GOOD, name: value}])
    np.testing.assert_array_equal(found[1:], table_model.predict_proba([{**GOOD, name: near}]))


def test_every_reason_is_said_of_a_row_that_is_refused(table_model: ReleasedModel) -> None:
    found = table_model.answer([{**GOOD, "age": 5, "amount": -1, "code": "3"}])
    assert len(found.refused) == 2
    assert not found.clamped


@pytest.mark.parametrize(
    "form",
    [None, 5, "rows", [1, 2], [[1], [1, 2]], np.zeros((3, 9)), np.zeros(8), [{}], {}, [{"Age": 1}], [GOOD, None],
     {**GOOD, "age": [1, 2], "city": ["Bern"]}],
)  # fmt: skip
def test_what_is_no_table_of_these_columns_is_refused(table_model: ReleasedModel, form: object) -> None:
    with pytest.raises(DataError, match="Expected"):
        table_model.predict(form)


def test_a_misspelt_column_is_named(table_model: ReleasedModel) -> None:
    wrong = {("Age" if name == "age" else name): value for name, value in GOOD.items()}
    for form in (wrong, [wrong], [GOOD, wrong]):
        with pytest.raises(DataError, match="Did you mean 'Age'"):
            table_model.predict(form)


def test_a_model_says_what_it_takes_and_can_be_sent_to_another_process(table_model: ReleasedModel) -> None:
    assert [column.name for column in table_model.schema.columns] == list(table.COLUMNS)
    assert table_model.classes == table.CLASSES
    assert table_model.card.data.name == "people"
    again = pickle.loads(pickle.dumps(table_model))
    assert again.predict([GOOD]).tolist() == table_model.predict([GOOD]).tolist()
    assert "weights/gaussian on people" in repr(again)


def test_the_bundle_is_verified_first(table_folder: Path) -> None:
    assert airlock.load(str(table_folder)).predict([GOOD])[0] in table.CLASSES
    with pytest.raises(Refused, match="signed"):
        airlock.load(table_folder, signers=[SigningKey.generate().public])
    weights = table_folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(Refused, match="defect"):
        airlock.load(table_folder)
