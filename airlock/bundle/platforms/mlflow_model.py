"""A bundle as a model of MLflow: `mlflow.pyfunc.load_model(DIR).predict(frame)` gives what the bundle gives.

    MLmodel               says that this module loads the model; signature, and the declared schema as metadata
    data/bundle/          the bundle, whole and unchanged: `airlock verify DIR/data/bundle`
    requirements.txt      MLflow and this version of Airlock; python_env.yaml points there
    input_example.json    one row that the schema takes, made from the schema

The signature names the declared columns in their order. It leaves their types open, because MLflow would refuse whole
numbers where fractions are declared; a row is checked by the bundle's own schema, which names what does not fit.

The bundle is verified when it is written here and again when MLflow loads it.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from airlock._version import VERSION
from airlock.bundle.bundle import Bundle
from airlock.bundle.platforms.layout import WHOLE, Files, files_of, write_folder
from airlock.bundle.receiving.input_schema import InputSchema
from airlock.bundle.receiving.model import ReleasedModel, load, schema_of
from airlock.config import Column
from airlock.errors import ConfigError, install_hint

GIVES = ("predict", "predict_proba")
MODEL, ENVIRONMENT, REQUIREMENTS = "MLmodel", "python_env.yaml", "requirements.txt"
EXAMPLE, DATA = "input_example.json", "data"
_QUIET = "MLFLOW_DISABLE_TELEMETRY"


class PyFunc:
    """What MLflow asks: rows in, class names or probabilities out.

    Args:
        model: The bundle's network.
    """

    def __init__(self, model: ReleasedModel) -> None:
        self.model = model

    def predict(self, model_input: object, params: Mapping[str, Any] | None = None) -> NDArray[Any]:
        """Class names; with `params={"gives": "predict_proba"}` the probability of each class.

        Raises:
            ConfigError: Something else is asked for.
            DataError: A row does not fit the schema.
        """
        gives = (params or {}).get("gives", GIVES[0])
        if gives not in GIVES:
            raise ConfigError(f"one of {', '.join(GIVES)} as `gives`", f"'{str(gives)[:40]}'")
        return self.model.predict(model_input) if gives == GIVES[0] else self.model.predict_proba(model_input)


def _load_pyfunc(path: str) -> PyFunc:
    """What MLflow calls with the folder of the bundle."""
    return PyFunc(load(Path(path)))


def write(out: Path, bundle: Bundle) -> list[Path]:
    """A new folder that MLflow loads and logs.

    Raises:
        ConfigError: MLflow is not installed.
        OutputError: There is something already, or it cannot be written.
    """
    return write_folder(out, model_files(bundle))


def model_files(bundle: Bundle) -> Files:
    """The files of the model.

    MLflow's own `save_model` is not used: it takes in files of the current folder, such as uv.lock.

    Raises:
        ConfigError: MLflow is not installed.
        Refused: The bundle was not verified.
    """
    os.environ.setdefault(_QUIET, "true")  # importing it may tell its makers
    try:
        from mlflow import pyfunc
        from mlflow.models import Model
    except ImportError as error:
        raise ConfigError("the extra 'mlflow'", "no mlflow", do=f"Install it: {install_hint('mlflow')}.") from error
    schema = schema_of(bundle)
    example, kind = _example(schema)
    model = Model(
        signature=_signature(schema),
        saved_input_example_info={"artifact_path": EXAMPLE, **kind},
        metadata={"airlock": _metadata(bundle, schema)},
    )
    pyfunc.add_to_model(model, loader_module=__name__, data=f"{DATA}/{WHOLE}", python_env=ENVIRONMENT)
    return {
        MODEL: model.to_yaml().encode(),
        ENVIRONMENT: f"python: {platform.python_version()}\ndependencies:\n- -r {REQUIREMENTS}\n".encode(),
        REQUIREMENTS: f"mlflow\nairlock-ml=={VERSION}\n".encode(),
        EXAMPLE: json.dumps(example, ensure_ascii=False, allow_nan=False).encode(),
        **{f"{DATA}/{name}": content for name, content in files_of(bundle).items()},
    }


def _metadata(bundle: Bundle, schema: InputSchema) -> dict[str, Any]:
    """What MLflow shows beside the model: the promise, and what a row is."""
    card = bundle.card
    return {
        "release_id": card.release_id,
        "headline": card.headline,
        "status": card.guarantee.status,
        "epsilon": card.guarantee.epsilon,
        "delta": card.guarantee.delta,
        "schema": schema.to_dict(),
    }


def _signature(schema: InputSchema) -> Any:
    """The declared columns by name, or the shape of an array."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema, TensorSpec
    from mlflow.types.schema import AnyType

    gives = ParamSpec("gives", DataType.string, GIVES[0])
    if schema.kind == "table":
        any_type: Any = AnyType  # which has no types of its own
        rows = Schema([ColSpec(any_type(), name) for name in schema.by_name])
    elif schema.text is not None:
        rows = Schema([ColSpec(DataType.string, schema.text.name)])
    else:
        kind = np.dtype(np.uint8 if schema.kind == "image" else np.float64)
        rows = Schema([TensorSpec(kind, (-1, *schema.shape))])
    gives_back = DataType.string if schema.classes else DataType.double
    return ModelSignature(rows, Schema([ColSpec(gives_back)]), ParamSchema([gives]))


def _example(schema: InputSchema) -> tuple[dict[str, Any], dict[str, str]]:
    """One row that the schema takes, and how MLflow is to read it; it follows from the schema alone."""
    if schema.kind == "table":
        cells = [_cell(column) for column in schema.by_name.values()]
        return {"columns": list(schema.by_name), "data": [cells]}, {"type": "dataframe", "pandas_orient": "split"}
    if schema.text is not None:
        text = {"columns": [schema.text.name], "data": [["A text of your own."]]}
        return text, {"type": "dataframe", "pandas_orient": "split"}
    row = np.zeros((1, *schema.shape), np.uint8 if schema.kind == "image" else np.float64)
    return {"inputs": row.tolist()}, {"type": "ndarray", "format": "tf-serving"}


def _cell(column: Column) -> str | float:
    """A value in the middle of the range, or the first category."""
    if column.categories is not None:
        return column.categories[0] if column.categories else "other"
    middle = (column.low + column.high) / 2
    if column.sort == "date":
        return (date(1970, 1, 1) + timedelta(days=int(middle))).isoformat()
    return middle
