"""What `/openapi.json` adds to what FastAPI generates: bodies, answers, problems and required keys."""

from __future__ import annotations

import math
from typing import Any

from airlock.bundle.export import PREDICTION
from airlock.bundle.receiving.input_schema import InputSchema, NamedColumn, TextColumn
from airlock.methods.interface import Interface
from airlock.serve.problems import KINDS, MEDIA_TYPE
from airlock.serve.protocol import INPUT, NUMBER, column_type, output_names, predicts_number
from airlock.serve.service import ServiceLimits

BEARER = {"type": "http", "scheme": "bearer", "description": "A token from `airlock keys add`."}
_TEXT = {"type": "string"}
_SCALARS = {"type": "object", "additionalProperties": True}
PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "instance", "error"],
    "properties": dict.fromkeys(("type", "title", "detail", "instance", "error"), _TEXT)
    | {"status": {"type": "integer"}}
    | dict.fromkeys(("expected", "found", "why", "do"), _TEXT),
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Problems that a route may return, for FastAPI's `responses`."""
    titles = {status: " / ".join(title for s, title in KINDS.values() if s == status) for status in statuses}
    reference = {"$ref": "#/components/schemas/Problem"}
    return {
        status: {"description": titles[status], "content": {MEDIA_TYPE: {"schema": reference}}} for status in titles
    }


def gives(schema: dict[str, Any], description: str, media: str = "application/json") -> dict[int | str, dict[str, Any]]:
    """What a route returns on success."""
    return {200: {"description": description, "content": {media: {"schema": schema}}}}


def table(**members: dict[str, Any]) -> dict[str, Any]:
    """An object with these members."""
    return {"type": "object", "required": sorted(members), "properties": members}


def guarded(keys: bool = True) -> dict[str, Any]:
    """A route that needs a key, where the service has any."""
    return {"security": [{"key": []}]} if keys else {}


def infer(
    interface: Interface, limits: ServiceLimits, rows: InputSchema | None = None, *, keys: bool = True
) -> dict[str, Any]:
    """The request of `infer`, as precisely as JSON Schema can describe it."""
    whole, names = _encoded(interface, limits), list(output_names(interface, rows))
    columns = () if rows is None else rows.columns
    tensors: dict[str, Any] = {"type": "array", "items": whole, "minItems": 1, "maxItems": 1}
    if columns:
        own = {"type": "array", "items": {"anyOf": [_raw(one, limits) for one in columns]}}
        tensors = {"anyOf": [own | {"minItems": len(columns), "maxItems": len(columns)}, tensors]}
    if rows is not None and rows.text is not None:
        tensors = {
            "type": "array",
            "items": {"anyOf": [_texts(rows.text, limits), whole]},
            "minItems": 1,
            "maxItems": 1,
        }
    output = _object({"name": {"enum": names}, "parameters": _SCALARS}, ["name"])
    request = _object(
        {
            "id": {"type": "string", "maxLength": 255},
            "parameters": _SCALARS,
            "inputs": tensors,
            "outputs": {"type": "array", "items": output, "minItems": 1, "maxItems": len(names)},
        },
        ["inputs"],
    )
    key = {
        "name": "Idempotency-Key",
        "in": "header",
        "required": False,
        "description": "A repeated request with the same key gets the same answer, free of charge, for a day.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 255},
    }
    body = {"required": True, "content": {"application/json": {"schema": request}}}
    return guarded(keys) | {"requestBody": body, "parameters": [key]}


def _raw(column: NamedColumn, limits: ServiceLimits) -> dict[str, Any]:
    """The tensor of one raw column."""
    kind = {"type": ["number", "null"]} if column.sort == "number" else {"type": ["string", "null"]}
    rows = {"type": "integer", "minimum": 1, "maximum": limits.rows}
    said = f"{column.takes}; missing: {column.when_missing}; any other value: {column.otherwise}."
    return _object(
        {
            "name": {"const": column.name},
            "datatype": {"const": column_type(column)},
            "shape": {"type": "array", "prefixItems": [rows, {"const": 1}], "minItems": 1, "maxItems": 2},
            "data": {"type": "array", "items": kind, "description": said, "minItems": 1, "maxItems": limits.rows},
            "parameters": _SCALARS,
        },
        ["name", "datatype", "shape", "data"],
    )


def _texts(column: TextColumn, limits: ServiceLimits) -> dict[str, Any]:
    """The tensor of texts."""
    rows = {"type": "integer", "minimum": 1, "maximum": limits.rows}
    said = f"texts, of which {column.tokens:,} tokens are read"
    return _object(
        {
            "name": {"const": column.name},
            "datatype": {"const": "BYTES"},
            "shape": {"type": "array", "prefixItems": [rows, {"const": 1}], "minItems": 1, "maxItems": 2},
            "data": {"type": "array", "items": _TEXT, "description": said, "minItems": 1, "maxItems": limits.rows},
            "parameters": _SCALARS,
        },
        ["name", "datatype", "shape", "data"],
    )


def _encoded(interface: Interface, limits: ServiceLimits) -> dict[str, Any]:
    """The tensor of rows as the network takes them."""
    count = math.prod(interface.input_shape)
    images = len(interface.input_shape) == 3
    return _object(
        {
            "name": {"const": INPUT},
            "datatype": {"enum": ["FP32", "UINT8"] if images else ["FP32"]},
            "shape": {
                "type": "array",
                "prefixItems": [
                    {"type": "integer", "minimum": 1, "maximum": limits.rows},
                    *({"const": n} for n in interface.input_shape),
                ],
                "minItems": 1 + len(interface.input_shape),
                "maxItems": 1 + len(interface.input_shape),
            },
            "data": {
                "type": "array",
                "description": f"{count:,} numbers per row, nested by the shape or in one list.",
                "minItems": 1,
                "maxItems": count * limits.rows,
            },
            "parameters": _SCALARS,
        },
        ["name", "datatype", "shape", "data"],
    )


def answer(interface: Interface, rows: InputSchema | None = None) -> dict[str, Any]:
    """The response of `infer`."""
    names = list(output_names(interface, rows))
    tensor: dict[str, Any] = _output({"enum": names}, _TEXT, _list("integer"), {"type": "array"})
    if predicts_number(interface):
        others = [name for name in names if name != PREDICTION]
        more = [_output({"enum": others}, _TEXT, _list("integer"), {"type": "array"})] if others else []
        tensor = {"anyOf": [_number(rows), *more]}
    return table(model_name=_TEXT, model_version=_TEXT, outputs={"type": "array", "items": tensor})


def _number(rows: InputSchema | None) -> dict[str, Any]:
    """The tensor of the numbers that are predicted, with their range and unit where they are known."""
    number: dict[str, Any] = {"type": "number"}
    said = {}
    if rows is not None and rows.target is not None:
        number |= {"minimum": rows.target.min, "maximum": rows.target.max}
        said = {"description": f"{rows.label or PREDICTION}: {rows.gives}; one for each row."}
    shape = {"type": "array", "prefixItems": [{"type": "integer"}, {"const": 1}], "minItems": 2, "maxItems": 2}
    return _output({"const": PREDICTION}, {"const": NUMBER}, shape, {"type": "array", "items": number} | said)


def _output(name: Any, datatype: Any, shape: Any, data: Any) -> dict[str, Any]:
    return table(name=name, datatype=datatype, shape=shape, data=data)


def metadata() -> dict[str, Any]:
    """The response of `GET /v2/models/{name}`."""
    tensors = {"type": "array", "items": table(name=_TEXT, datatype=_TEXT, shape=_list("integer"))}
    return table(name=_TEXT, versions=_list("string"), platform=_TEXT, inputs=tensors, outputs=tensors)


def budget() -> dict[str, Any]:
    """The response of `GET /budget` for programs."""
    number = {"type": ["integer", "null"]}
    return table(
        model=_TEXT,
        release=_TEXT,
        client={"type": ["string", "null"]},
        unit=_TEXT,
        limit=number,
        spent=number,
        left=number,
    )


def _object(members: dict[str, Any], needed: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": members, "required": needed, "additionalProperties": False}


def _list(kind: str) -> dict[str, Any]:
    return {"type": "array", "items": {"type": kind}}
