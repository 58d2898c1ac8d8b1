"""The Open Inference Protocol, version 2, in JSON: queries, fully validated, and answers.

One input tensor, `input`, of datatype FP32 (used unchanged) or, for images, UINT8 (0 … 255, which stand for 0 … 1). Its
shape is the number of rows followed by the shape of one; its data are nested by that shape, or flat. Parameters are
accepted and ignored, except for those of the binary extension, which is not supported.

Of a table, one tensor per declared column instead, of shape (rows,), raw: numbers, or text (BYTES) for categories and
dates, null where a value is missing. They are encoded as the records were. A row that does not fit the schema refuses
the batch, and nothing is charged; the output `clamped` says which rows have a value outside its range that counts as
the nearest end. Rows that the client has encoded itself may still come as `input`.

Where a network that has left predicts a number, there are no classes: the answer is one tensor, `prediction`, as in the
bundle's model.onnx: FP32 of shape (rows, 1), in the unit of the target and within its declared range.

A request's body is limited in size and time, and must be strict JSON.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request

from airlock._version import VERSION
from airlock.bundle.export import PREDICTION
from airlock.bundle.receiving.input_schema import InputSchema, NamedColumn
from airlock.bundle.receiving.model import OVERFLOW
from airlock.bundle.receiving.rows import RowNote, encode, encode_cells
from airlock.data.remarks import Faults
from airlock.data.tables import Cells
from airlock.data.text import Tokenizer
from airlock.ledger.chain import digest
from airlock.methods.interface import Answers, Interface
from airlock.serve.admission import BodyRoom
from airlock.serve.problems import Problem

# The body of a request.

_CLOSE = {"Connection": "close"}  # the rest of the body would be read as the next request


async def read_body(request: Request, room: BodyRoom, most_bytes: int, seconds: float) -> bytes:
    """The whole body; the room it takes is given back by the caller.

    Raises:
        Problem: It is too large, too slow, compressed, not JSON by its type, there is no room, or the client
            disconnected.
    """
    _check_type(request)
    too_large = Problem("too-large", f"at most {most_bytes:,} bytes", "more", do="Send fewer rows.", headers=_CLOSE)
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and (len(declared) > 18 or int(declared) > most_bytes):
        raise too_large
    content = bytearray()  # many small parts would take more room than they have bytes
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                if len(content) + len(part) > most_bytes:
                    raise too_large
                room.add(len(part))
                content += part
    except TimeoutError:
        raise Problem("too-slow", f"the whole body within {seconds:g} s", "only a part of it", headers=_CLOSE) from None
    except ClientDisconnect:
        raise Problem("bad-request", "a complete body", "a client that disconnected", headers=_CLOSE) from None
    return bytes(content)


def _check_type(request: Request) -> None:
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem("wrong-type", "Content-Type: application/json", "another, or none", "", "Send JSON.")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem("wrong-type", "a body that is not compressed", "one that is", "", "Send it uncompressed.")


def parse_json(content: bytes) -> Any:
    """JSON according to RFC 8259: no NaN, no duplicate names in an object, no excessive nesting.

    The fast parser keeps the last of two equal names. Every name is followed by a colon, so if there are no more colons
    than names, there are no duplicates; if there are more, the slow parser decides.

    Raises:
        Problem: It is not strict JSON.
    """
    try:
        value = from_json(content, allow_inf_nan=False, cache_strings="keys")
        if content.count(b":") != _names(value):
            json.loads(content, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        raise Problem(
            "bad-request", "strict JSON", "something else", "", "Check names, numbers and brackets."
        ) from None
    return value


def _names(value: Any, depth: int = 0) -> int:
    """Names in all objects that a request can have: no deeper than the parameters of a tensor."""
    if isinstance(value, dict):
        return len(value) + sum(_names(inner, depth + 1) for inner in value.values() if isinstance(inner, dict | list))
    if isinstance(value, list) and depth <= 4 and value and isinstance(value[0], dict):
        return sum(_names(inner, depth + 1) for inner in value)
    return 0


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a duplicate name")
    return table


# Queries and answers.

INPUT = "input"
LABEL, CLASS, VALUES, CLAMPED = "label", "class", "values", "clamped"
NUMBER = "FP32"  # the datatype of a prediction, in model.onnx too
_IMAGE_AXES = 3
_WHOLE = "A batch is answered completely or not at all. Nothing was charged."
_NUMBERS = {int, float}
_MISSING = type(None)
_RAW = ("FP64", "FP32", "INT64", "INT32", "INT16", "INT8", "UINT64", "UINT32", "UINT16", "UINT8")
_TEXT = "BYTES"
_REQUEST = {"id", "parameters", "inputs", "outputs"}
_TENSOR = {"name", "shape", "datatype", "parameters", "data"}
_OUTPUT = {"name", "parameters"}


@dataclass(frozen=True)
class Query:
    """A request that can be answered.

    Attributes:
        x: One query per row.
        outputs: Names of the requested tensors.
        id: The client's id for it, repeated in the answer.
        digest: A digest of everything that the answer depends on.
        clamped: Which rows have a value that was moved into its range.
    """

    x: NDArray[np.float32]
    outputs: tuple[str, ...]
    id: str | None
    digest: str
    clamped: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))


def output_names(interface: Interface, schema: InputSchema | None = None) -> tuple[str, ...]:
    """The available tensors."""
    clamped = (CLAMPED,) if schema is not None and schema.columns else ()
    if predicts_number(interface):
        return (PREDICTION, *clamped)
    values = () if interface.gives == "label" else (VALUES,)
    return (LABEL, CLASS, *values, *clamped)


def predicts_number(interface: Interface) -> bool:
    """Whether an answer is a number: then there are no classes."""
    return not interface.classes


def server_metadata() -> dict[str, Any]:
    """`GET /v2`."""
    return {"name": "airlock", "version": VERSION, "extensions": []}


def model_metadata(
    name: str, version: str, platform: str, interface: Interface, schema: InputSchema | None = None
) -> dict[str, Any]:
    """`GET /v2/models/{name}`."""
    shapes = {LABEL: ("INT64", [-1]), CLASS: ("BYTES", [-1]), VALUES: ("FP64", [-1, len(interface.classes)])}
    shapes |= {CLAMPED: ("BOOL", [-1]), PREDICTION: (NUMBER, [-1, 1])}
    inputs = [{"name": INPUT, "datatype": "FP32", "shape": [-1, *interface.input_shape]}]
    if schema is not None and schema.columns:
        inputs = [{"name": one.name, "datatype": column_type(one), "shape": [-1]} for one in schema.columns]
    if schema is not None and schema.text is not None:
        inputs = [{"name": schema.text.name, "datatype": _TEXT, "shape": [-1]}]
    return {
        "name": name,
        "versions": [version],
        "platform": platform,
        "inputs": inputs,
        "outputs": [
            {"name": one, "datatype": shapes[one][0], "shape": shapes[one][1]}
            for one in output_names(interface, schema)
        ],
    }


def read_query(
    body: Any,
    interface: Interface,
    most_rows: int,
    model: str,
    schema: InputSchema | None = None,
    tokenizer: Tokenizer | None = None,
) -> Query:
    """Check a parsed body as a whole.

    Args:
        body: The request.
        interface: What may be asked.
        most_rows: In one request.
        model: Its name.
        schema: What a row is, where that is known.
        tokenizer: The bundle's, where a row is a text.

    Raises:
        Problem: It is not a request of the protocol, or not one for this interface.
    """
    table = _table(body, "a request", _REQUEST, {"inputs"})
    identity = table.get("id")
    if identity is not None and not (isinstance(identity, str) and len(identity) <= 255):
        raise _bad("a text of at most 255 characters as id", "something else")
    inputs = table["inputs"]
    columns = {} if schema is None else schema.by_name
    if not (isinstance(inputs, list) and 1 <= len(inputs) <= max(1, len(columns))):
        wanted = "one tensor for each column" if columns else "one tensor"
        raise _bad(f"{wanted} in inputs", "another number of them, or not a list")
    outputs = _outputs(table.get("outputs"), output_names(interface, schema))
    tensors = [_table(one, "a tensor", _TENSOR, {"name", "shape", "datatype", "data"}) for one in inputs]
    names = [one["name"] for one in tensors]
    if schema is not None and schema.text is not None and names[0] == schema.text.name:
        x = _texts(tensors[0], schema, tokenizer, most_rows)
        clamped = np.zeros(len(x), bool)
    elif schema is not None and columns and (len(names) > 1 or names[0] in list(columns)):
        x, clamped = _columns(tensors, schema, most_rows)
    else:
        x = _tensor(tensors[0], interface, most_rows)
        clamped = np.zeros(len(x), bool)
    content = (
        json.dumps([model, outputs, x.shape]).encode() + b"\0" + x.tobytes() + clamped.tobytes() * bool(clamped.any())
    )
    return Query(x, outputs, identity, digest(content), clamped)


def write_outputs(answers: Answers, query: Query, interface: Interface) -> bytes:
    """The tensors of an answer, as JSON; a replay returns exactly this.

    Raises:
        Problem: There is no number for a row: JSON has none that would say so. It cost nothing.
    """
    labels = answers.labels.tolist()
    rows, tensors = len(labels), []
    for name in query.outputs:
        if name == LABEL:
            tensors.append(_output(LABEL, "INT64", [rows], labels))
        elif name == CLASS:
            tensors.append(_output(CLASS, "BYTES", [rows], [_class(label, interface) for label in labels]))
        elif name == CLAMPED:
            tensors.append(_output(CLAMPED, "BOOL", [rows], query.clamped.tolist()))
        elif answers.values is not None and name == PREDICTION:
            if without := [place + 1 for place, label in enumerate(labels) if label < 0]:
                raise _unfit("rows with a number as answer", str(RowNote(OVERFLOW, tuple(without))), _WHOLE)
            tensors.append(_output(PREDICTION, NUMBER, list(answers.values.shape), answers.values.ravel().tolist()))
        elif answers.values is not None:
            tensors.append(_output(VALUES, "FP64", list(answers.values.shape), answers.values.ravel().tolist()))
    return json.dumps(tensors, allow_nan=False, separators=(",", ":")).encode()


def write_answer(model: str, version: str, identity: str | None, outputs: bytes) -> bytes:
    """The whole answer around its tensors."""
    head: dict[str, Any] = {"model_name": model, "model_version": version}
    head |= {"id": identity} if identity is not None else {}
    return json.dumps(head).encode()[:-1] + b', "outputs": ' + outputs + b"}"


def _output(name: str, datatype: str, shape: Sequence[int], data: list[Any]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


def _class(label: int, interface: Interface) -> str:
    return interface.classes[label] if label >= 0 else ""


def _outputs(wanted: Any, there: tuple[str, ...]) -> tuple[str, ...]:
    if wanted is None:
        return there
    if not (isinstance(wanted, list) and 1 <= len(wanted) <= len(there)):
        raise _bad(f"outputs to be a list of {', '.join(there)}", "something else")
    names = [_table(one, "an output", _OUTPUT, {"name"})["name"] for one in wanted]
    if any(not isinstance(name, str) or name not in there for name in names) or len(set(names)) != len(names):
        raise _bad(f"outputs among {', '.join(there)}, each once", "another name, or a duplicate")
    return tuple(names)


def _table(value: Any, what: str, known: set[str], needed: set[str]) -> dict[str, Any]:
    """An object with these names and no others; an unknown name may have been meant to change the answer."""
    if not isinstance(value, dict):
        raise _bad(f"{what} as an object", "something else")
    if missing := sorted(needed - set(value)):
        raise _bad(f"{', '.join(missing)} in {what}", "nothing of that name")
    if set(value) - known:
        raise _bad(f"only {', '.join(sorted(known))} in {what}", "another name")
    parameters = value.get("parameters", {})
    if not isinstance(parameters, dict) or any(str(name).startswith("binary_data") for name in parameters):
        raise _bad("parameters as an object, without the binary extension", "something else")
    return value


def _tensor(table: dict[str, Any], interface: Interface, most_rows: int) -> NDArray[np.float32]:
    wanted = ", ".join(map(str, interface.input_shape))
    if table["name"] != INPUT:
        raise _unfit(f"the tensor '{INPUT}'", "another name")
    shape = table["shape"]
    if not (isinstance(shape, list) and all(type(n) is int for n in shape)) or shape[1:] != list(interface.input_shape):
        raise _unfit(f"the shape [rows, {wanted}]", "another")
    if not 1 <= shape[0] <= most_rows:
        raise _unfit(
            f"1 to {most_rows:,} rows", "another number of them", "A batch is answered completely or not at all."
        )
    numbers = _flat(table["data"], shape)
    if table["datatype"] == "FP32":
        return _floats(numbers, shape)
    if table["datatype"] == "UINT8" and len(interface.input_shape) == _IMAGE_AXES:
        return _pixels(numbers, shape)
    images = " or, for images, UINT8" if len(interface.input_shape) == _IMAGE_AXES else ""
    raise _unfit(f"datatype FP32{images}", "another")


def column_type(column: NamedColumn) -> str:
    """The datatype of a raw column."""
    return "FP64" if column.sort == "number" else _TEXT


def _columns(
    tensors: list[dict[str, Any]], schema: InputSchema, most_rows: int
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Raw columns as encoded rows, and which rows have a value that was moved into its range."""
    given = {tensor["name"]: tensor for tensor in tensors if isinstance(tensor["name"], str)}
    for name in schema.by_name:
        if name not in given:
            raise _unfit(f"a tensor '{name}', as for every declared column", "none of that name")
    if len(given) < len(tensors) or len(given) > len(schema.columns):
        raise _unfit("one tensor for each declared column", "others")
    rows = {_rows(tensor["shape"], most_rows) for tensor in given.values()}
    if len(rows) > 1:
        raise _unfit("as many rows in every column", "different numbers of them")
    cells = {column.name: _cells(given[column.name], column, min(rows)) for column in schema.columns}
    (block,) = encode_cells(schema, [cells], Faults())
    if block.refused:
        raise _unfit("rows that fit the model's schema", "; ".join(map(str, block.refused)), _WHOLE)
    clamped = np.zeros(len(block.x), bool)
    for note in block.clamped:
        clamped[np.array(note.rows) - 1] = True
    return block.x, clamped


def _texts(
    table: dict[str, Any], schema: InputSchema, tokenizer: Tokenizer | None, most_rows: int
) -> NDArray[np.float32]:
    """Texts as the network takes them; each by itself."""
    assert schema.text is not None
    rows, data = _rows(table["shape"], most_rows), table["data"]
    if not isinstance(data, list) or len(data) != rows or table["datatype"] != _TEXT:
        raise _unfit(f"{rows:,} texts ({_TEXT}) for '{schema.text.name}', according to the shape", "something else")
    if not set(map(type, data)) <= {str}:
        raise _unfit(f"nothing but texts in '{schema.text.name}'", "something else", _WHOLE)
    (block,) = encode(schema, data, tokenizer)
    if block.refused:
        raise _unfit("texts that the model's tokenizer can encode", "; ".join(map(str, block.refused)), _WHOLE)
    return block.x


def _rows(shape: Any, most_rows: int) -> int:
    """The number of rows of a column: of shape (rows,) or (rows, 1)."""
    if not (isinstance(shape, list) and all(type(n) is int for n in shape) and shape[1:] in ([], [1]) and shape):
        raise _unfit("the shape [rows] of a column", "another")
    if not 1 <= shape[0] <= most_rows:
        raise _unfit(f"1 to {most_rows:,} rows", "another number of them", _WHOLE)
    return int(shape[0])


def _cells(table: dict[str, Any], column: NamedColumn, rows: int) -> Cells:
    """One column's cells: numbers with NaN, or text with None, where a value is missing."""
    data = table["data"]
    if isinstance(data, list) and data and all(isinstance(one, list) and len(one) == 1 for one in data):
        data = [one[0] for one in data]
    if not isinstance(data, list) or len(data) != rows:
        raise _unfit(f"{rows:,} values for '{column.name}', according to the shape", "another number of them")
    kinds = set(map(type, data)) - {_MISSING}
    number = column.sort == "number"
    if not (kinds <= (_NUMBERS if number else {str}) and table["datatype"] in (_RAW if number else (_TEXT,))):
        wanted = f"numbers ({column_type(column)})" if number else f"text ({_TEXT})"
        raise _unfit(f"{wanted} or null for '{column.name}'", "something else")
    return np.array([_number(value) for value in data], np.float64) if number else data


def _number(value: int | float | None) -> float:
    try:
        return math.nan if value is None else float(value)
    except OverflowError:
        return math.inf


def _flat(nested: Any, shape: Sequence[int]) -> list[Any]:
    """The numbers in one list, from data nested by the shape or already flat; nothing but numbers."""
    if not isinstance(nested, list):
        raise _unfit("data as a list", "something else")
    data: list[Any] = nested
    count = math.prod(shape)
    if data and isinstance(data[0], list):
        for size in shape[1:]:
            if not all(isinstance(one, list) and len(one) == size for one in data):
                raise _unfit("data nested according to its shape, or flat", "another nesting")
            data = [number for one in data for number in one]
    if len(data) != count:
        raise _unfit(f"{count:,} numbers, according to the shape", "another number of them")
    if not set(map(type, data)) <= _NUMBERS:
        raise _unfit("nothing but numbers in data", "something else")
    return data


def _floats(numbers: list[Any], shape: Sequence[int]) -> NDArray[np.float32]:
    try:
        with np.errstate(over="ignore"):
            x = np.array(numbers, np.float64).astype(np.float32)
    except OverflowError:
        x = np.full(1, np.inf, np.float32)
    if not np.isfinite(x).all():
        raise _unfit("numbers that FP32 can represent", "a larger one")
    return x.reshape(shape)


def _pixels(numbers: list[Any], shape: Sequence[int]) -> NDArray[np.float32]:
    if set(map(type, numbers)) != {int} or min(numbers) < 0 or max(numbers) > 255:
        raise _unfit("whole numbers from 0 to 255 as UINT8", "others")
    return (np.array(numbers, np.float32) / np.float32(255)).reshape(shape)


def _bad(expected: str, found: str) -> Problem:
    return Problem("bad-request", expected, found, "Nothing was charged.", "See /docs.")


def _unfit(expected: str, found: str, why: str = "Nothing was charged.") -> Problem:
    return Problem("wrong-inputs", expected, found, why, "See /v2/models for the model's inputs.")
