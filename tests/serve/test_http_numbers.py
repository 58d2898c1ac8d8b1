"""A network that has left and predicts a number: the service gives what `airlock.load` gives, for nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import numpy as np
import pytest
from numpy.typing import NDArray

import airlock
from airlock.bundle import Vault
from airlock.bundle.answering import NumberAnswerer, open_answerer
from airlock.bundle.receiving.model import ReleasedModel
from airlock.config import from_table
from airlock.errors import AirlockWarning
from airlock.mechanisms import Stream
from airlock.pipeline import make_release
from airlock.serve.problems import MEDIA_TYPE
from airlock.serve.service import Service
from tests.serve.selling import Priced, make, running
from tests.waiting import LONG

INFER = "/v2/models/pets/infer"
ROWS = [{"age": 60, "weight": 75.5, "sex": "m"}, {"age": 25, "weight": 62, "sex": "f"}]
# In single precision the span of this range, added to its lower end, is more than its upper end.
RANGE = {"min": 0.1, "max": 0.7, "unit": "l of <air>"}


def bundle(folder: Path) -> Path:
    chance = np.random.default_rng(0)
    age, weight, male = chance.uniform(18, 90, 400), chance.uniform(45, 110, 400), chance.integers(0, 2, 400)
    volume = 0.4 + 0.004 * (age - 54) + 0.1 * male
    lines = [f"{a:.1f},{w:.1f},{'fm'[m]},{v:.3f}" for a, w, m, v in zip(age, weight, male, volume, strict=True)]
    (folder / "own.csv").write_text("\n".join(["age,weight,sex,volume", *lines]) + "\n")
    table = {
        "channel": "weights", "method": "gaussian", "task": "regression", "epsilon": 8.0, "delta": 1e-5,
        "data": {"source": str(folder / "own.csv"), "name": "breaths", "label": "volume", "records": 400,
                 "target": RANGE,
                 "columns": {"age": {"min": 18, "max": 90}, "weight": {"min": 30, "max": 150, "outside": "refuse"},
                             "sex": ["f", "m"]}},
        "settings": {"steps": 20, "lot_size": 200, "learning_rate": 0.3, "ema": 0.0},
    }  # fmt: skip
    return make_release(from_table(table), folder / "bundle", insecure_seed=1, vault=folder / "vault").bundle.folder


@dataclass(frozen=True)
class Shop:
    """A service of numbers, whoever asks it, and the same network as `airlock.load` opens it."""

    service: Service
    web: httpx.Client
    model: ReleasedModel

    def ask(self, body: Any) -> httpx.Response:
        return self.web.post(INFER, json=body)

    def predictions(self, body: Any) -> NDArray[np.float64]:
        reply = self.ask(body)
        assert reply.status_code == 200, reply.text
        assert reply.headers["airlock-units"] == "0"
        (found,) = [one for one in reply.json()["outputs"] if one["name"] == "prediction"]
        assert (found["datatype"], found["shape"]) == ("FP32", [len(found["data"]), 1])
        return np.array(found["data"], np.float64)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("numbers")
    vault = Vault.open(folder / "vault")
    where = bundle(folder)
    card, answerer = open_answerer(where, vault)
    service = replace(make(folder, answerer, keys=False), schema=card.inputs, headline=card.headline, verdict=card.mark)
    service.ledger.set_quota("local", None)
    with service.ledger, running(service) as address, httpx.Client(base_url=address, timeout=LONG) as web:
        yield Shop(service, web, airlock.load(where))


def named(*rows: dict[str, Any]) -> dict[str, Any]:
    kinds = {"age": "FP64", "weight": "FP64", "sex": "BYTES"}
    return {
        "inputs": [
            {"name": name, "datatype": kind, "shape": [len(rows)], "data": [row[name] for row in rows]}
            for name, kind in kinds.items()
        ]
    }


def encoded(x: NDArray[np.float32]) -> dict[str, Any]:
    return {"inputs": [{"name": "input", "datatype": "FP32", "shape": list(x.shape), "data": x.tolist()}]}


def test_raw_rows_and_encoded_rows_get_what_load_predicts(shop: Shop) -> None:
    wanted = shop.model.predict(ROWS)
    assert 0.1 < wanted[1] < wanted[0] < 0.7
    np.testing.assert_array_equal(shop.predictions(named(*ROWS)), wanted)
    (block,) = shop.model.encoded(ROWS)
    np.testing.assert_array_equal(shop.predictions(encoded(block.x)), wanted)


def test_an_input_outside_its_range_counts_as_the_end_and_is_told(shop: Shop) -> None:
    with pytest.warns(AirlockWarning, match="'age'"):
        wanted = shop.model.predict([ROWS[1], {**ROWS[0], "age": 200}])
    reply = shop.ask(named(ROWS[1], {**ROWS[0], "age": 200})).json()
    found = {one["name"]: one["data"] for one in reply["outputs"]}
    assert found == {"prediction": wanted.tolist(), "clamped": [False, True]}
    alone = shop.ask(named(*ROWS) | {"outputs": [{"name": "clamped"}]}).json()["outputs"]
    assert [one["name"] for one in alone] == ["clamped"]


def test_a_prediction_never_leaves_its_range_not_even_by_a_rounding(shop: Shop) -> None:
    (block,) = shop.model.encoded(ROWS[:1])
    far = [encoded(sign * 1e6 * (block.x - 0.5)) for sign in np.array([1, -1], np.float32)]
    low, high = sorted(float(shop.predictions(body)[0]) for body in far)
    assert (low, high) == (float(np.float32(0.1)), 0.7)


class Overflowing:
    """A network whose second row overflows."""

    def run(self, names: list[str], given: dict[str, Any]) -> list[Any]:
        assert names == ["prediction"]
        return [np.array([[0.25], [np.nan], [0.70000005]], np.float32)[: len(given["input"])]]


def test_a_row_whose_outputs_overflow_refuses_its_batch_and_is_named(shop: Shop, tmp_path: Path) -> None:
    target = shop.model.schema.target
    assert target is not None
    answerer = NumberAnswerer(shop.service.answerer.interface, Overflowing(), target)
    found = answerer.answer(np.zeros((3, 4), np.float32), answerer.reserve(3), Stream.from_system())
    assert found.labels.tolist() == [0, -1, 0]
    assert found.values is not None
    np.testing.assert_array_equal(found.values, [[0.25], [0], [0.7]])
    made = replace(make(tmp_path, answerer, keys=False), schema=shop.service.schema)
    with made.ledger, running(made) as where, httpx.Client(base_url=where, timeout=LONG) as web:
        one, three = (web.post(INFER, json=encoded(np.zeros((rows, 4), np.float32))) for rows in (1, 3))
        assert one.json()["outputs"][0]["data"] == [0.25]
        problem(three, "outputs overflow (row 2)")
        assert "answered completely or not at all" in three.json()["detail"]


def problem(reply: httpx.Response, said: str, status: int = 422) -> None:
    assert (reply.status_code, reply.headers["content-type"]) == (status, MEDIA_TYPE), reply.text
    told = reply.json()
    assert told["type"] == f"urn:airlock:problem:{'wrong-inputs' if status == 422 else 'bad-request'}"
    assert said in told["detail"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"weight": 200}, "a value outside the declared range in column 'weight' (row 2)"),
        ({"age": None}, "NaN or infinity in column 'age' (row 2)"),
        ({"sex": "x"}, "not a declared category in column 'sex' (row 2)"),
        ({"sex": 1}, "text (BYTES)"),
        ({"age": "sixty"}, "numbers (FP64)"),
    ],
)
def test_a_row_that_does_not_fit_refuses_the_batch_as_for_classes(
    shop: Shop, change: dict[str, Any], said: str
) -> None:
    problem(shop.ask(named(ROWS[0], {**ROWS[1], **change})), said)


def test_what_is_no_such_request_is_a_problem(shop: Shop) -> None:
    few = named(*ROWS)["inputs"][:2]
    problem(shop.ask({"inputs": few}), "'sex'")
    problem(shop.ask(encoded(np.zeros((2, 3), np.float32))), "the shape [rows, 4]")
    problem(shop.ask(encoded(np.zeros((257, 4), np.float32))), "1 to 256 rows")
    problem(shop.ask(named(*ROWS) | {"outputs": [{"name": "label"}]}), "outputs among prediction, clamped", 400)


def test_the_metadata_name_the_output_as_the_file_does(shop: Shop) -> None:
    told = shop.web.get("/v2/models/pets").json()
    assert [one["name"] for one in told["inputs"]] == ["age", "weight", "sex"]
    assert told["outputs"] == [
        {"name": "prediction", "datatype": "FP32", "shape": [-1, 1]},
        {"name": "clamped", "datatype": "BOOL", "shape": [-1]},
    ]


def test_the_description_for_programs_fits_what_is_asked_and_answered(shop: Shop) -> None:
    infer = shop.web.get("/openapi.json").json()["paths"]["/v2/models/{name}/infer"]["post"]
    asked = jsonschema.Draft202012Validator(infer["requestBody"]["content"]["application/json"]["schema"])
    body = named(*ROWS) | {"outputs": [{"name": "prediction"}]}
    assert asked.is_valid(body)
    assert not asked.is_valid(body | {"outputs": [{"name": "values"}]})
    schema = infer["responses"]["200"]["content"]["application/json"]["schema"]
    jsonschema.Draft202012Validator.check_schema(schema)
    answered = jsonschema.Draft202012Validator(schema)
    for given in (named(*ROWS), body):
        found = shop.ask(given).json()
        assert answered.is_valid(found)
    found["outputs"][0]["data"][0] = 0.70000005
    assert not answered.is_valid(found)
    assert "volume: a number from 0.1 to 0.7, in l of <air>; one for each row." in json.dumps(schema)


def test_the_pages_say_what_is_predicted_and_ask_for_no_key(shop: Shop) -> None:
    front, docs = shop.web.get("/").text, shop.web.get("/docs").text
    assert "It answers with volume, a number from 0.1 to 0.7, in l of &lt;air&gt;." in front
    assert "answers are free" in front
    assert "No key is needed" in front
    assert "<code>prediction</code> is <strong>volume</strong>, a number from 0.1 to 0.7, in l of &lt;air&gt;" in docs
    assert "label of −1" not in docs
    for page in (front, docs):
        assert "TOKEN" not in page
        assert "You need a key" not in page
    assert 'curl -H "Content-Type: application/json"' in docs
    described = shop.web.get("/openapi.json").json()["paths"]
    assert not any("security" in call for path in described.values() for call in path.values())


def test_where_keys_are_needed_the_pages_say_so(tmp_path: Path) -> None:
    made = make(tmp_path, Priced())
    with made.ledger, running(made) as where, httpx.Client(base_url=where, timeout=LONG) as web:
        front, docs = web.get("/").text, web.get("/docs").text
        assert "You need a key" in front
        assert 'curl -H "Authorization: Bearer $TOKEN" \\\n  -H "Content-Type' in docs
        paths = web.get("/openapi.json").json()["paths"]
        assert {path for path, calls in paths.items() for call in calls.values() if "security" in call} == {
            INFER.replace("pets", "{name}"), "/budget", "/metrics"
        }  # fmt: skip
