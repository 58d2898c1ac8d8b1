"""Smaller forms of an exported network: weights and sums in 16-bit floats, or in 8-bit integers.

Both are made from `model.onnx` and public records alone, so that they tell nothing that the network does not: ranges
for 8 bits are those that public records give. A form that cannot be made, or that computes something else, is left
out with its reason.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from airlock.bundle import export

INT8, FP16 = "model.int8.onnx", "model.fp16.onnx"
NAMES = {INT8: "8-bit integers", FP16: "16-bit floats"}
# How far the logits of a form may lie from those of model.onnx, in the mean over random inputs, over the largest logit.
TOLERANCES: Mapping[str, float] = {INT8: 0.1, FP16: 0.01}
_BATCH = 64

Floats = NDArray[np.float32]


class Forms(NamedTuple):
    """The smaller files by name, and one sentence for each that could not be made."""

    files: Mapping[str, bytes]
    not_made: tuple[str, ...]


def smaller_forms(content: bytes, shape: tuple[int, ...], public: Floats) -> Forms:
    """Every smaller form of a network that can be made.

    Args:
        content: The network's ONNX file.
        shape: Of one record.
        public: Public records, as the network takes them; they give the ranges of 8-bit integers.
    """
    makers: dict[str, Callable[[], bytes]] = {INT8: lambda: to_int8(content, public), FP16: lambda: to_fp16(content)}
    files, not_made = {}, []
    for name, make in makers.items():
        try:
            made = make()
            off = difference(name, made, content, shape)
        except Exception as error:  # noqa: BLE001  a converter may raise anything at a network of the user's own
            not_made.append(f"{NAMES[name].capitalize()}: this network cannot be converted ({type(error).__name__}).")
            continue
        if off is None:
            files[name] = made
        else:
            not_made.append(f"{NAMES[name].capitalize()}: {off}")
    return Forms(files, tuple(not_made))


def to_fp16(content: bytes) -> bytes:
    """The network in 16-bit floats; input and output stay 32-bit."""
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    with _quiet():
        return _written(convert_float_to_float16(onnx.load_model_from_string(content), keep_io_types=True))


def to_int8(content: bytes, public: Floats) -> bytes:
    """The network in 8-bit integers, ranges from public records; ranges found while it runs where that fails."""
    import onnx
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static

    model = onnx.load_model_from_string(content)
    with _quiet(), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "int8.onnx"
        try:
            quantize_static(
                model,
                path,
                _Public(public),
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
            )
        except Exception:  # noqa: BLE001  as above; the second way is tried and then judged
            quantize_dynamic(onnx.load_model_from_string(content), path, weight_type=QuantType.QInt8)
        return _written(onnx.load(path))


def difference(name: str, small: bytes, content: bytes, shape: tuple[int, ...]) -> str | None:
    """What is wrong with a smaller form, in a sentence; None where it computes the same within its tolerance."""
    x = export.probe(_BATCH, shape)
    wanted, given = (export.open_onnx(file).run(["logits"], {"input": x})[0] for file in (content, small))
    if given.shape != wanted.shape or not np.isfinite(given).all():
        return "its outputs are not numbers of the same shape."
    off = float(np.abs(given - wanted).mean() / max(1e-6, float(np.abs(wanted).max())))
    return None if off <= TOLERANCES[name] else f"its outputs differ by {off:.1%} of the largest one."


def baggage(model: Any) -> Iterator[str]:
    """Weights that no layer uses, one sentence in all: a form has nothing to carry but the network."""
    used = {name for node in model.graph.node for name in node.input} | {out.name for out in model.graph.output}
    if any(tensor.name not in used for tensor in model.graph.initializer):
        yield "it carries numbers that no layer uses."


def _written(model: Any) -> bytes:
    import onnx

    clean = export.stripped(model)
    clean.producer_name, clean.producer_version = "", ""
    nodes = _in_order(clean.graph)
    del clean.graph.node[:]
    clean.graph.node.extend(nodes)
    onnx.checker.check_model(clean)
    return bytes(clean.SerializeToString(deterministic=True))


def _in_order(graph: Any) -> list[Any]:
    """The nodes, each after those whose outputs it takes, as ONNX asks for; converters append theirs at the end."""
    known = {"", *(tensor.name for tensor in (*graph.input, *graph.initializer))}
    rest, ordered = list(graph.node), []
    while rest:
        ready = [node for node in rest if known.issuperset(node.input)]
        if not ready:
            raise ValueError("a graph with a circle")
        ordered += ready
        known.update(name for node in ready for name in node.output)
        rest = [node for node in rest if not known.issuperset(node.output)]
    return ordered


class _Public:
    """Public records one batch after the other, as the quantiser's `CalibrationDataReader` gives them."""

    def __init__(self, public: Floats) -> None:
        self._batches = iter([public[i : i + _BATCH] for i in range(0, len(public), _BATCH)])

    def get_next(self) -> dict[str, Floats] | None:
        """The next batch, or None."""
        batch = next(self._batches, None)
        return None if batch is None else {"input": batch}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what the converters log and warn off the terminal."""
    level = logging.root.level
    logging.root.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.root.setLevel(level)
