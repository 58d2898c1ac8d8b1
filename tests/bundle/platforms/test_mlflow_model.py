"""A model of MLflow, loaded by MLflow: it gives what the bundle gives."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from airlock.bundle import Bundle, Vault, verify
from airlock.bundle.platforms.mlflow_model import PyFunc, _example, _signature, write
from airlock.bundle.receiving.input_schema import InputSchema, input_schema
from airlock.bundle.receiving.model import load
from airlock.config import Column, TargetRange
from airlock.errors import AirlockWarning, ConfigError, DataError, OutputError
from tests.bundle.receiving import table

mlflow = pytest.importorskip("mlflow.pyfunc")
FRAME = pd.DataFrame([table.GOOD, {**table.GOOD, "age": None, "city": "Genf", "sex": "f", "since": "2019-01-01"}])


@pytest.fixture(scope="module")
def folder(verified: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("mlflow") / "model"
    write(made, verified)
    return made


def test_mlflow_gives_what_the_bundle_gives(folder: Path, verified: Bundle, own_vault: Vault) -> None:
    theirs, ours = mlflow.load_model(str(folder)), load(verified.folder, own_vault)
    assert theirs.predict(FRAME).tolist() == ours.predict(FRAME).tolist()
    chances = theirs.predict(FRAME, params={"gives": "predict_proba"})
    assert np.array_equal(chances, ours.predict_proba(FRAME))
    whole = FRAME.iloc[:1].astype({"age": np.int64})
    assert theirs.predict(whole).tolist() == ours.predict(whole).tolist(), "whole numbers are numbers"
    beside = FRAME.assign(name="somebody")
    assert theirs.predict(beside).tolist() == ours.predict(FRAME).tolist(), "what is not declared is not used"
    with pytest.warns(AirlockWarning, match="age"):
        theirs.predict(FRAME.assign(age=17))
    with pytest.raises(DataError, match="amount"):
        theirs.predict(FRAME.assign(amount=1e9))
    with pytest.raises(mlflow.MlflowException, match="Größe"):
        theirs.predict(FRAME.drop(columns="Größe in cm"))


def test_a_number_is_given_as_one() -> None:
    schema = input_schema([("age", Column(min=0, max=9))], (1,), (), "days", TargetRange(min=0, max=30))
    assert [one.type.name for one in _signature(schema).outputs] == ["double"]


def test_signature_example_and_metadata_follow_from_the_declared_schema(folder: Path, verified: Bundle) -> None:
    from mlflow.models import Model

    model = Model.load(str(folder))
    assert model.signature.inputs.input_names() == list(table.COLUMNS)
    assert [one.name for one in model.signature.params.params] == ["gives"]
    example = model.load_input_example(str(folder))
    assert list(example.columns) == list(table.COLUMNS)
    assert mlflow.load_model(str(folder)).predict(example)[0] in table.CLASSES
    told = model.metadata["airlock"]
    assert told["epsilon"] == verified.card.guarantee.epsilon
    assert [one["name"] for one in told["schema"]["columns"]] == list(table.COLUMNS)


def test_the_bundle_in_it_is_whole_and_nothing_of_this_folder_is_beside_it(
    folder: Path, verified: Bundle, own_vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert verify(folder / "data" / "bundle", own_vault).ok
    monkeypatch.chdir(tmp_path)
    for name in ("uv.lock", "pyproject.toml", "patients.csv"):
        Path(name).write_text("version = 1\n")
    write(tmp_path / "model", verified)
    found = {str(one.relative_to(tmp_path / "model")) for one in (tmp_path / "model").rglob("*") if one.is_file()}
    assert found == {
        "MLmodel", "python_env.yaml", "requirements.txt", "input_example.json",
        *(f"data/bundle/{name}" for name in verified.files.names),
    }  # fmt: skip
    assert str(tmp_path) not in (tmp_path / "model" / "MLmodel").read_text()
    with pytest.raises(OutputError, match="does not exist yet"):
        write(tmp_path / "model", verified)


def test_a_forged_model_is_not_loaded(folder: Path, tmp_path: Path) -> None:
    import shutil

    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    card = copy / "data" / "bundle" / "card.json"
    card.write_text(card.read_text().replace('"epsilon"', '"epsilon "', 1))
    with pytest.raises(Exception, match="bundle that verifies"):
        mlflow.load_model(str(copy))


def test_something_else_than_it_gives() -> None:
    with pytest.raises(ConfigError, match="predict_proba"):
        PyFunc(None).predict(FRAME, {"gives": "weights"})  # type: ignore[arg-type]


@pytest.mark.parametrize(("shape", "kind"), [((1, 3, 4), "uint8"), ((5,), "float64")])
def test_images_and_vectors_have_arrays_as_examples(shape: tuple[int, ...], kind: str) -> None:
    schema: InputSchema = input_schema((), shape, ("no", "yes"), None)
    example, how = _example(schema)
    assert np.array(example["inputs"]).shape == (1, *shape)
    assert how["type"] == "ndarray"
    from airlock.bundle.platforms.mlflow_model import _signature

    spec = _signature(schema).inputs.inputs[0]
    assert (str(spec.type), spec.shape) == (kind, (-1, *shape))
    assert json.loads(json.dumps(example)) == example


def test_without_the_package_the_extra_is_named(verified: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ConfigError, match=r"\[mlflow\]"):
        write(Path("nowhere"), verified)
