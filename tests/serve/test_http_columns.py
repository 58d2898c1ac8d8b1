"""A table is asked about with raw columns by name; what does not fit refuses the batch before anything is charged."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import numpy as np
import pytest
from numpy.typing import NDArray

from airlock.bundle.receiving.input_schema import InputSchema, declared_schema
from airlock.data import tables
from airlock.data.remarks import Faults
from airlock.mechanisms import Stream
from airlock.methods.interface import Answerer, Answers, Interface, Reservation
from airlock.serve.problems import Problem
from airlock.serve.protocol import model_metadata, parse_json, read_query
from airlock.serve.schema import infer
from airlock.serve.service import Service, ServiceLimits
from tests.bundle.receiving import table
from tests.bundle.receiving.table import GOOD
from tests.serve.selling import make, running

SCHEMA: InputSchema = declared_schema({"columns": table.COLUMNS, "label": "ill"}, table.facts().shape, table.CLASSES)
SIZE = SCHEMA.shape[0]


class Echo(Answerer):
    """Gives the encoded row back; one unit a row."""

    def __init__(self) -> None:
        classes = tuple(f"feature {place}" for place in range(SIZE))
        super().__init__(Interface("logits", SCHEMA.shape, classes, 100, "one answer", {}))

    def answer(self, x: NDArray[np.float32], reservation: Reservation, stream: Stream) -> Answers:
        return Answers(x.argmax(axis=1).astype(np.int64), x.astype(np.float64))


def kind(name: str) -> str:
    return "FP64" if SCHEMA.by_name[name].sort == "number" else "BYTES"


def asked(*rows: dict[str, Any]) -> dict[str, Any]:
    return {
        "inputs": [
            {"name": name, "datatype": kind(name), "shape": [len(rows)], "data": [row[name] for row in rows]}
            for name in GOOD
        ]
    }


def encoded(*rows: dict[str, Any]) -> NDArray[np.float32]:
    cells = {name: [None if row[name] is None else str(row[name]) for row in rows] for name in GOOD}
    return tables.encode(table.CONFIG.data.columns, cells, Faults())


def read(body: object, most: int = 4) -> Any:
    return read_query(parse_json(json.dumps(body).encode()), Echo().interface, most, "people", SCHEMA)


def refused(body: object) -> Problem:
    with pytest.raises(Problem) as caught:
        read(body)
    assert caught.value.status in (400, 422)
    return caught.value


OTHER = {**GOOD, "age": None, "Größe in cm": None, "since": "2010-02-03", "city": "Zug", "group": None, "sex": None}


def test_raw_columns_are_encoded_as_the_records_were() -> None:
    found = read(asked(GOOD, OTHER, {**GOOD, "age": 17}))
    np.testing.assert_array_equal(found.x, encoded(GOOD, OTHER, {**GOOD, "age": 18}))
    assert found.clamped.tolist() == [False, False, True]
    assert found.outputs == ("label", "class", "values", "clamped")


def test_columns_come_in_any_order_as_columns_of_one_and_as_whole_numbers() -> None:
    plain = read(asked(GOOD, OTHER))
    body = asked(GOOD, OTHER)
    body["inputs"].reverse()
    for tensor in body["inputs"]:
        tensor["shape"] = [2, 1]
        tensor["data"] = [[value] for value in tensor["data"]]
        tensor["datatype"] = "INT64" if tensor["datatype"] == "FP64" else "BYTES"
    again = read(body)
    np.testing.assert_array_equal(again.x, plain.x)
    assert again.digest == plain.digest


def test_what_is_asked_for_and_what_is_clamped_belongs_to_the_digest() -> None:
    top, beyond = read(asked({**GOOD, "age": 90})), read(asked({**GOOD, "age": 91}))
    np.testing.assert_array_equal(top.x, beyond.x)
    assert top.digest != beyond.digest


def test_rows_that_the_client_encoded_come_as_before() -> None:
    x = encoded(GOOD)
    body = {"inputs": [{"name": "input", "datatype": "FP32", "shape": [1, SIZE], "data": x.tolist()}]}
    found = read(body)
    np.testing.assert_array_equal(found.x, x)
    assert not found.clamped.any()
    assert found.digest == read(asked(GOOD)).digest


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"amount": None}, "NaN or infinity in column 'amount' (row 2)"),
        ({"amount": 100_001}, "a value outside the declared range in column 'amount' (row 2)"),
        ({"age": 10**400}, "NaN or infinity in column 'age' (row 2)"),
        ({"since": "yesterday"}, "not a date such as 2024-01-31 in column 'since' (row 2)"),
        ({"code": "3"}, "not a declared category in column 'code' (row 2)"),
    ],
)
def test_a_row_that_does_not_fit_refuses_the_batch_and_is_named(change: dict[str, Any], said: str) -> None:
    problem = refused(asked(GOOD, {**GOOD, **change}))
    assert said in problem.detail
    assert "Nothing was charged" in problem.detail
    assert not any(str(value) in str(vars(problem)) for value in change.values() if value is not None)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["inputs", 0, "name"], "Age"), (["inputs", 0, "name"], ["age"]), (["inputs", 0, "name"], "sex"),
        (["inputs", 0, "datatype"], "BYTES"), (["inputs", 0, "datatype"], ["FP64"]),
        (["inputs", 0, "datatype"], "FP16"),
        (["inputs", 0, "shape"], [1]), (["inputs", 0, "shape"], [2, 2]), (["inputs", 0, "shape"], 2),
        (["inputs", 0, "shape"], []), (["inputs", 0, "shape"], [True]), (["inputs", 0, "shape"], [2.0]),
        (["inputs", 0, "data"], [1]), (["inputs", 0, "data"], "12"), (["inputs", 0, "data"], [1, "2"]),
        (["inputs", 0, "data"], [1, True]), (["inputs", 0, "data"], [[1], 2]), (["inputs", 0, "data"], {}),
        (["inputs", 4, "data"], ["Bern", 3]), (["inputs", 4, "datatype"], "FP64"),
        (["inputs", 4, "data"], [["a", "b"]]),
        (["inputs"], []), (["inputs"], [{}]), (["inputs"], [[]]), (["outputs"], [{"name": "clamp"}]),
    ],
)  # fmt: skip
def test_what_are_no_such_columns_is_a_problem(path: list[Any], value: object) -> None:
    body = copy.deepcopy(asked(GOOD, OTHER))
    place: Any = body
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    refused(body)


def test_too_few_too_many_and_too_long_columns_are_refused() -> None:
    body = asked(GOOD)
    assert "'code'" in refused({"inputs": body["inputs"][:-1]}).detail
    assert "'Größe in cm'" in refused({"inputs": body["inputs"][:1]}).detail
    refused({"inputs": [*body["inputs"], body["inputs"][0]]})
    refused({"inputs": [*body["inputs"][:-1], {**body["inputs"][-1], "name": "other"}]})
    refused(asked(*[GOOD] * 5))


def test_the_published_schema_fits_what_is_read() -> None:
    about = infer(Echo().interface, ServiceLimits(rows=4), SCHEMA)
    schema = about["requestBody"]["content"]["application/json"]["schema"]
    jsonschema.Draft202012Validator.check_schema(schema)
    check = jsonschema.Draft202012Validator(schema)
    assert check.is_valid(asked(GOOD, OTHER))
    assert not check.is_valid({"inputs": asked(GOOD)["inputs"][:3]})
    named = model_metadata("people", "1", "test", Echo().interface, SCHEMA)
    assert named["inputs"][0] == {"name": "age", "datatype": "FP64", "shape": [-1]}
    assert [one["datatype"] for one in named["inputs"]] == [kind(name) for name in GOOD]
    assert named["outputs"][-1] == {"name": "clamped", "datatype": "BOOL", "shape": [-1]}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = make(tmp_path, Echo(), keys=False)
    made.ledger.set_quota("local", None)
    with made.ledger:
        yield Service(**{**vars(made), "schema": SCHEMA})


def test_a_client_asks_with_named_columns(service: Service) -> None:
    with running(service) as where, httpx.Client(base_url=where) as client:
        done = client.post("/v2/models/pets/infer", json=asked(GOOD, {**OTHER, "age": 200}))
        assert done.status_code == 200, done.text
        outputs = {one["name"]: one for one in done.json()["outputs"]}
        assert outputs["clamped"]["data"] == [False, True]
        values = np.array(outputs["values"]["data"]).reshape(2, SIZE)
        np.testing.assert_array_equal(values, encoded(GOOD, {**OTHER, "age": 90}))
        wrong = client.post("/v2/models/pets/infer", json=asked({**GOOD, "code": "9"}))
        assert wrong.status_code == 422
        assert "not a declared category in column 'code' (row 1)" in wrong.json()["detail"]
        assert client.get("/budget", headers={"accept": "application/json"}).json()["spent"] == 2
        assert client.get("/v2/models/pets").json()["inputs"][1]["name"] == "Größe in cm"
        front, docs = client.get("/").text, client.get("/docs").text
        assert "nothing has to be encoded first" in front
        for words in ("a number from 18 to 90, in years", "counts as the nearest end", "&#34;Größe in cm&#34;"):
            assert words in docs
