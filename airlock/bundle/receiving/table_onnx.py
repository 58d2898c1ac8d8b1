"""A table's network with its encoding inside: `model.table.onnx`, which takes raw columns by name.

In: model.onnx, and the declared columns. Out: one ONNX file around the very same nodes and weights. It is a function of
these two and of nothing else, so `airlock verify` makes it again and compares it byte by byte.

Inputs are one tensor of shape (batch,) for each column: float64 for a number, NaN where it is missing; float64 for a
date, in days since 1970-01-01; text for a category, empty where it is missing. Outputs are `label` (the class, empty
where the row is refused), `probabilities` (NaN there), `refused` and `clamped`. Where a column has the name of an
output, the output's ends in an underscore.

Agreement. A number is clamped and scaled in float64 and rounded to float32 once, by the same operations as in
`data.tables`, so linear columns agree bit for bit; a logarithm is off by a few units in the last place of float64
before it is rounded. A category is compared as it is, then without the white space around it, then without a point
and zeros behind a whole number, as there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from airlock.bundle.receiving.input_schema import NamedColumn
from airlock.config import as_number
from airlock.data import tables

OPERATORS = 20  # the first version of ONNX's operators that has RegexFullMatch
LABEL, PROBABILITIES, REFUSED, CLAMPED = "label", "probabilities", "refused", "clamped"
OUTPUTS = (LABEL, PROBABILITIES, REFUSED, CLAMPED)
_ML = "ai.onnx.ml"
_ML_VERSION = 2
_LONGEST = 4000  # signs of a pattern
_INPUT, _LOGITS = "input", "logits"
# What Python's `str.strip` removes, for RE2.
_WHITE = r"[\t-\r\x1c-\x20\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}]*"


def with_encoding(content: bytes, columns: Sequence[NamedColumn], classes: Sequence[str]) -> bytes | None:
    """The file that takes raw columns; None where the network's operators are too old for it.

    Args:
        content: model.onnx.
        columns: In the order in which they are encoded.
        classes: In the order of the outputs.
    """
    import onnx

    model = onnx.load_model_from_string(content)
    if model.opset_import[0].version < OPERATORS:
        return None
    graph = _Graph({column.name for column in columns})
    ins = input_names(columns)
    encoded = [_encode(graph, name, column) for name, column in zip(ins, columns, strict=True)]
    x = graph.add("Concat", *(part for parts, _, _ in encoded for part in parts), axis=1)
    logits = _append(graph, model.graph, x)
    refused = graph.any(*(wrong for _, wrong, _ in encoded))
    clamped = graph.any(*(outside for _, _, outside in encoded if outside))
    _answer(graph, logits, refused, clamped, classes, output_names(columns))
    return _file(graph, model.ir_version, model.opset_import[0].version, ins, columns, len(classes))


def input_names(columns: Sequence[NamedColumn]) -> list[str]:
    """The name of each column's tensor: its own, except that a column without a name is called by its place."""
    taken = {column.name for column in columns}
    return [column.name or _free(f"column {place}", taken) for place, column in enumerate(columns, 1)]


def output_names(columns: Sequence[NamedColumn]) -> dict[str, str]:
    """What each output is called."""
    taken = set(input_names(columns))
    return {name: _free(name, taken) for name in OUTPUTS}


def _free(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name += "_"
    return name


class _Graph:
    """Nodes and numbers, named by their order.

    Args:
        taken: Names that are not used: those of the inputs.
    """

    def __init__(self, taken: Collection[str]) -> None:
        self.nodes: list[Any] = []
        self.numbers: list[Any] = []
        self.prefix = "encoding/"
        while any(name.startswith(self.prefix) for name in taken):
            self.prefix += "/"

    def number(self, value: Any, kind: Any = np.float64) -> str:
        """A constant."""
        from onnx import numpy_helper

        name = f"{self.prefix}number/{len(self.numbers)}"
        self.numbers.append(numpy_helper.from_array(np.asarray(value, kind), name))
        return name

    def add(self, operator: str, *inputs: str, name: str | None = None, domain: str = "", **attributes: Any) -> str:
        """A node with one output; returns the output's name."""
        from onnx import helper

        made = name or f"{self.prefix}value/{len(self.nodes)}"
        place = f"{self.prefix}node/{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [made], name=place, domain=domain, **attributes))
        return made

    def cast(self, value: str, kind: int) -> str:
        """A tensor in another type."""
        return self.add("Cast", value, to=kind)

    def as_column(self, value: str) -> str:
        """(batch,) to (batch, 1)."""
        return self.add("Unsqueeze", value, self.number([1], np.int64))

    def any(self, *values: str) -> str:
        """Where one of them is true."""
        found = values[0] if values else ""
        for value in values[1:]:
            found = self.add("Or", found, value)
        return found


def _encode(graph: _Graph, name: str, column: NamedColumn) -> tuple[list[str], str, str]:
    """One column's features, (batch, 1) or (batch, width) each; where a row is refused; and where it is clamped."""
    if column.categories is None:
        return _encode_number(graph, name, column)
    features, wrong = _encode_category(graph, name, column)
    return [features], wrong, ""


def _encode_number(graph: _Graph, x: str, column: NamedColumn) -> tuple[list[str], str, str]:
    from onnx import TensorProto

    low, high = graph.number(column.low), graph.number(column.high)
    empty, infinite = graph.add("IsNaN", x), graph.add("IsInf", x)
    fill = column.low if column.missing is None or column.flagged else as_number(column.missing)  # type: ignore[arg-type]
    value = graph.add("Where", infinite, low, x)
    value = graph.add("Where", empty, graph.number(fill), value)
    outside = graph.any(graph.add("Less", value, low), graph.add("Greater", value, high))
    above = graph.add("Sub", graph.add("Clip", value, low, high), low)
    span = column.high - column.low
    if column.scale == "log":
        scaled = graph.add("Div", _log1p(graph, above), graph.number(np.log1p(span)))
    else:
        scaled = graph.add("Div", above, graph.number(span))
    features = [graph.as_column(graph.cast(scaled, TensorProto.FLOAT))]
    if column.flagged:
        features.append(graph.as_column(graph.cast(empty, TensorProto.FLOAT)))
    wrong = [infinite, *([empty] if column.missing is None else []), *([outside] if column.outside == "refuse" else [])]
    return features, graph.any(*wrong), outside if column.outside == "clamp" else ""


def _log1p(graph: _Graph, x: str) -> str:
    """log(1 + x) to the last places, also of small x: log(u) · x / (u − 1) with u the rounded 1 + x."""
    one = graph.number(1.0)
    raised = graph.add("Add", x, one)
    more = graph.add("Sub", raised, one)
    none = graph.add("Equal", more, graph.number(0.0))
    ratio = graph.add("Div", x, graph.add("Where", none, one, more))
    return graph.add("Where", none, x, graph.add("Mul", graph.add("Log", raised), ratio))


def _encode_category(graph: _Graph, text: str, column: NamedColumn) -> tuple[str, str]:
    from onnx import TensorProto

    index, rest, none = tables.slots(column)
    place = graph.number(-1, np.int64)
    blank = graph.add("RegexFullMatch", text, pattern=_WHITE)
    for test, slot in ((graph.add("Not", blank), rest), (blank, none)):
        if slot is not None:
            place = graph.add("Where", test, graph.number(slot, np.int64), place)
    if index:
        whole = {value: slot for value, slot in index.items() if re.fullmatch("[+-]?[0-9]+", value)}
        for among, more in ((whole, r"\.0+"), (index, "")):  # 3.0 is 3, unless it is a category itself
            stripped = _stripped(graph, text, among, more)
            place = graph.add("Where", graph.add("Less", stripped, graph.number(0, np.int64)), place, stripped)
        exact = graph.add(
            "LabelEncoder", text, domain=_ML, keys_strings=list(index), values_int64s=list(index.values()),
            default_int64=-1,
        )  # fmt: skip
        known = graph.add("GreaterOrEqual", exact, graph.number(0, np.int64))
        place = graph.add("Where", known, exact, place)
    wrong = graph.add("Less", place, graph.number(0, np.int64))
    wide = graph.as_column(graph.add("Where", wrong, graph.number(0, np.int64), place))
    hot = graph.add("Equal", wide, graph.number(np.arange(column.width), np.int64))
    return graph.cast(hot, TensorProto.FLOAT), wrong


def _stripped(graph: _Graph, text: str, index: Mapping[str, int], more: str = "") -> str:
    """The slot of text without the white space around it; −1 if it is none of these categories, followed by `more`.

    A pattern for each bit of the slot, counted from 1, matches the categories that have it: a few patterns for many
    categories. At most one category matches, so that the bits are those of one slot.
    """
    from onnx import TensorProto

    found = graph.number(-1, np.int64)
    plain = {value: slot + 1 for value, slot in index.items() if value == value.strip()}
    for bit in range(max(plain.values(), default=0).bit_length()):
        own = [_quoted(value) + more for value, number in plain.items() if number >> bit & 1]
        patterns = [f"{_WHITE}(?:{'|'.join(part)}){_WHITE}" for part in _parts(own)]
        tests = [graph.add("RegexFullMatch", text, pattern=pattern) for pattern in patterns]
        if tests:
            value = graph.add("Mul", graph.cast(graph.any(*tests), TensorProto.INT64), graph.number(1 << bit, np.int64))
            found = graph.add("Add", found, value)
    return found


def _parts(patterns: Sequence[str]) -> Iterator[list[str]]:
    """Patterns in parts that are short enough for one expression; a long one has its own."""
    part: list[str] = []
    for pattern in patterns:
        if part and sum(map(len, part)) + len(pattern) > _LONGEST:
            yield part
            part = []
        part.append(pattern)
    if part:
        yield part


def _quoted(text: str) -> str:
    """Text as a pattern of RE2 that matches it alone."""
    return re.sub(r"[^0-9A-Za-z\x80-\U0010ffff]", lambda found: rf"\x{{{ord(found[0]):x}}}", text)


def _append(graph: _Graph, network: Any, x: str) -> str:
    """The network's own nodes and weights behind the encoded rows; returns the name of its logits."""
    from onnx import NodeProto, TensorProto

    inner: Callable[[str], str] = lambda name: x if name == _INPUT else f"{graph.prefix}network/{name}" if name else ""  # noqa: E731
    for number in network.initializer:
        own = TensorProto()
        own.CopyFrom(number)
        own.name = inner(number.name)
        graph.numbers.append(own)
    for node in network.node:
        copy = NodeProto()
        copy.CopyFrom(node)
        copy.name = inner(node.name)
        copy.input[:] = map(inner, node.input)
        copy.output[:] = map(inner, node.output)
        graph.nodes.append(copy)
    return inner(_LOGITS)


def _answer(
    graph: _Graph, logits: str, refused: str, clamped: str, classes: Sequence[str], names: dict[str, str]
) -> None:
    """The outputs; nothing is said of a row that is refused but that."""
    place = graph.add("ArgMax", logits, axis=1, keepdims=0)
    label = graph.add("Gather", graph.number([name.encode() for name in classes], object), place)
    graph.add("Where", refused, graph.number([b""], object), label, name=names[LABEL])
    chances = graph.add("Softmax", logits, axis=1)
    unknown = graph.number(np.nan, np.float32)
    graph.add("Where", graph.as_column(refused), unknown, chances, name=names[PROBABILITIES])
    graph.add("Identity", refused, name=names[REFUSED])
    kept = graph.add("Not", refused)
    graph.add("And", kept, clamped or graph.number([False], np.bool_), name=names[CLAMPED])


def _file(
    graph: _Graph, ir_version: int, version: int, ins: Sequence[str], columns: Sequence[NamedColumn], classes: int
) -> bytes:
    from onnx import TensorProto, helper

    names, rows = output_names(columns), "batch"
    kinds = [TensorProto.DOUBLE if column.categories is None else TensorProto.STRING for column in columns]
    outputs: dict[str, tuple[int, list[str | int | None]]] = {
        LABEL: (TensorProto.STRING, [rows]),
        PROBABILITIES: (TensorProto.FLOAT, [rows, classes]),
        REFUSED: (TensorProto.BOOL, [rows]),
        CLAMPED: (TensorProto.BOOL, [rows]),
    }
    made = helper.make_graph(
        graph.nodes,
        "table",
        [helper.make_tensor_value_info(name, kind, [rows]) for name, kind in zip(ins, kinds, strict=True)],
        [helper.make_tensor_value_info(names[name], *outputs[name]) for name in OUTPUTS],
        graph.numbers,
    )
    model = helper.make_model(
        made,
        ir_version=ir_version,
        producer_name="",
        opset_imports=[helper.make_opsetid("", version), helper.make_opsetid(_ML, _ML_VERSION)],
    )
    return bytes(model.SerializeToString(deterministic=True))
