"""model.table.onnx takes raw columns and encodes them as the records were, whatever they hold."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airlock.bundle import Bundle
from airlock.bundle.receiving.input_schema import NamedColumn, declared_schema
from airlock.bundle.receiving.model import ReleasedModel
from airlock.bundle.receiving.table_onnx import input_names, output_names, with_encoding
from airlock.config import Column
from airlock.data import tables
from airlock.data.remarks import Faults
from tests.bundle.receiving import table

WHITE = [chr(code) for code in range(0x3001) if chr(code).isspace()]
NAN = float("nan")


def network(width: int) -> bytes:
    """A network that gives the encoded row back: its logits are its input."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    ends = [helper.make_tensor_value_info(name, kind, ["batch", width]) for name in ("input", "logits")]
    nodes = [helper.make_node("Identity", ["input"], ["logits"], name="node/0")]
    graph = helper.make_graph(nodes, "network", ends[:1], ends[1:])
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
    return bytes(model.SerializeToString())


def encodings(columns: Mapping[str, Column], cells: Mapping[str, Any]) -> tuple[Any, Any, Any, Any]:
    """What the file makes of a row, and what the package does: features where a row is kept, and which are."""
    named = [NamedColumn(**{**dict(column), "name": name}) for name, column in columns.items()]
    width = sum(column.width for column in columns.values())
    classes = [str(place) for place in range(width)]
    content = with_encoding(network(width), named, classes)
    assert content is not None
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    feed = {
        name: np.array(cells[column.name], np.float64 if column.categories is None else object)
        for name, column in zip(input_names(named), named, strict=True)
    }
    named_out = output_names(named)
    chances, refused, clamped = session.run([named_out[n] for n in ("probabilities", "refused", "clamped")], feed)
    faults, moved = Faults(), Faults()
    ours = {name: feed[place] if columns[name].categories is None else list(feed[place])
            for place, name in zip(input_names(named), columns, strict=True)}  # fmt: skip
    x = tables.encode(columns, ours, faults, 0, moved)
    kept, still = faults.kept(len(x)), moved.kept(len(x))
    assert (np.asarray(refused) == ~kept).all()
    assert (np.asarray(clamped) == (kept & ~still)).all()
    raised = np.exp(x - x.max(1, keepdims=True), dtype=np.float64)
    return chances, raised / raised.sum(1, keepdims=True), kept, refused


NUMBERS = st.one_of(st.floats(), st.floats(-1e3, 1e3), st.sampled_from([NAN, float("inf"), -0.0, 0.0, 1e-300, 90.0]))
WORDS = st.text(st.sampled_from([*"abAB .*\\[]()^$|+?{}-,;'\"äß€😀", *WHITE]), max_size=4)


@st.composite
def column(draw: st.DrawFn) -> Column:
    if draw(st.booleans()):
        low = draw(st.floats(-1e6, 1e6))
        high = low + draw(st.floats(1e-3, 1e6))
        missing: object = draw(st.sampled_from([None, "indicator", low, high]))
        scale, outside = draw(st.sampled_from(["linear", "log"])), draw(st.sampled_from(["clamp", "refuse"]))
        return Column.model_validate({"min": low, "max": high, "scale": scale, "outside": outside, "missing": missing})
    words = draw(st.lists(WORDS, min_size=1, max_size=5, unique=True))
    missing = draw(st.sampled_from([None, "indicator", words[0]]))
    return Column.model_validate({"categories": words, "other": draw(st.booleans()), "missing": missing})


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_it_encodes_as_the_package_does(data: st.DataObject) -> None:
    one = data.draw(column())
    if one.categories is None:
        cells: Any = st.one_of(NUMBERS, st.floats(one.low, one.high), st.sampled_from([one.low, one.high]))
    else:
        padding = st.text(st.sampled_from(WHITE), max_size=2)
        declared = st.sampled_from(one.categories)
        cells = st.one_of(WORDS, declared, st.builds("{}{}{}".format, padding, declared, padding), padding)
    rows = data.draw(st.lists(cells, min_size=1, max_size=8))
    theirs, ours, kept, _ = encodings({"a": one, "b": Column(min=0, max=1)}, {"a": rows, "b": [0.5] * len(rows)})
    np.testing.assert_allclose(theirs[kept], ours[kept], rtol=2e-6)
    assert np.isnan(theirs[~kept]).all()


def test_many_categories_are_told_apart_by_few_patterns() -> None:
    """Among them one that is longer than a pattern may be, and some that begin like others."""
    words = ["", "x" * 5000, *(f"{place}" for place in range(700)), "7 ", " 7"]
    many = Column(categories=tuple(words))
    cells = [*words[::29], "  7\t", "7 ", " 7", "x" * 4999, "700", "\n69 ", " ", "6 9"]
    theirs, ours, kept, _ = encodings({"a": many}, {"a": cells})
    np.testing.assert_allclose(theirs[kept], ours[kept], rtol=2e-6)
    assert kept.sum() == len(cells) - 3
    content = with_encoding(network(many.width), [NamedColumn(name="a", categories=many.categories)], words)
    assert content is not None
    assert len(onnx.load_model_from_string(content).graph.node) < 160  # those that are whole numbers have a second set


def test_white_space_is_what_python_strips() -> None:
    cells = [f"{white}Bern{white * 2}" for white in WHITE] + [*WHITE, "", "\u200bBern", "Be rn", "Bern\0"]
    city = Column(categories=("Bern", "Basel"), missing="Basel")
    theirs, ours, kept, _ = encodings({"city": city}, {"city": cells})
    np.testing.assert_allclose(theirs[kept], ours[kept], rtol=2e-6)
    assert kept.sum() == 2 * len(WHITE) + 1


@pytest.mark.parametrize("categories", [("3", "-4"), ("3.0", "3"), ("3", "3.0", " 5"), ("+3", "3.", "3.00")])
@pytest.mark.parametrize("other", [True, False])
def test_a_whole_number_may_have_a_point(categories: tuple[str, ...], other: bool) -> None:
    cells = ["3", "3.0", " 3.00 ", "-4.0", "+3.0", "3.", "3.01", "03.0", "5.0", " 5", " 5.0", ".0", "٣.0", "3.0.0"]
    columns = {"code": Column(categories=categories, other=other)}
    theirs, ours, kept, _ = encodings(columns, {"code": cells})
    np.testing.assert_allclose(theirs[kept], ours[kept], rtol=2e-6)
    assert kept.any()


@pytest.mark.parametrize(
    "name", ["label", "probabilities", "refused", "input", "logits", "encoding/value/0", "", "é😀\n"]
)
def test_a_column_may_have_any_name(name: str) -> None:
    columns = {name: Column(min=0, max=1), "column 1": Column(categories=("x",), other=True)}
    theirs, ours, kept, _ = encodings(columns, {name: [0.25, 7.0], "column 1": ["x", "y"]})
    np.testing.assert_allclose(theirs, ours, rtol=2e-6)
    assert kept.all()


def _day(days: float) -> str | None:
    """As a cell of a frame or a file, where a number of days is no date."""
    return None if days != days else (date(1970, 1, 1) + timedelta(days=days)).isoformat()


def test_it_answers_as_the_model_does(table_bundle: Bundle, table_model: ReleasedModel) -> None:
    """All kinds of rows at once: those that fit, barely fit, are missing something, or do not fit."""
    changes: list[dict[str, Any]] = [
        {}, {"age": NAN}, {"age": -3.0}, {"age": 90.0}, {"age": float("inf")}, {"Größe in cm": NAN}, {"amount": 1e5},
        {"amount": 1e5 + 1}, {"amount": NAN}, {"since": 0.0}, {"since": NAN}, {"city": ""}, {"city": " Chur\t"},
        {"city": "Zug"}, {"group": ""}, {"group": "x, y"}, {"group": "x,y"}, {"sex": " "}, {"sex": "?"}, {"code": ""},
    ]  # fmt: skip
    good = {**table.GOOD, "since": 12544.0}
    rows = [{**good, **change} for change in changes]
    columns = table_model.schema.columns
    feed = {c.name: np.array([row[c.name] for row in rows], object if c.categories is not None else float)
            for c in columns}  # fmt: skip
    session = onnxruntime.InferenceSession(table_bundle.folder / "model.table.onnx")
    label, chances, refused, clamped = session.run(None, feed)
    given = {c.name: feed[c.name] for c in columns} | {"since": [_day(value) for value in feed["since"].tolist()]}
    found = table_model.answer(given)
    np.testing.assert_allclose(chances, found.probabilities, atol=1e-6)
    assert [name or None for name in label] == found.names
    assert refused.tolist() == (found.labels < 0).tolist()
    assert sorted({row for note in found.clamped for row in note.rows}) == (1 + np.flatnonzero(clamped)).tolist()
    assert refused.sum() == 6
    assert clamped.sum() == 2


def test_the_published_columns_of_a_named_source_are_encoded_too() -> None:
    """All 14 columns of Adult, its categories with parentheses and ampersands among them."""
    schema = declared_schema({"source": "adult"}, (108,), ("<=50K", ">50K"))
    assert schema.columns[-1].name == "native-country"
    net = network(schema.shape[0])
    content = with_encoding(net, schema.columns, [str(i) for i in range(schema.shape[0])])
    assert content == with_encoding(net, schema.columns, [str(i) for i in range(schema.shape[0])])
    columns = dict(schema.by_name)
    cells = {name: [column.high / 3] * 3 if column.categories is None else column.categories[-3:]
             for name, column in columns.items() if name != "sex"} | {"sex": ["Male", "Female", "?"]}  # fmt: skip
    theirs, ours, kept, _ = encodings(columns, cells)
    np.testing.assert_allclose(theirs[kept], ours[kept], rtol=2e-6)
    assert kept.tolist() == [True, True, False]


def test_where_operators_are_too_old_there_is_no_such_file() -> None:
    model = onnx.load_model_from_string(network(2))
    model.opset_import[0].version = 18
    named = [NamedColumn(name="a", min=0, max=1, missing="indicator")]
    assert with_encoding(model.SerializeToString(), named, ["x", "y"]) is None
