"""The network as files that can be inspected without executing them: safetensors for the weights, ONNX for the whole.

The ONNX file is self-contained, without external data, with input `input` (float32, a batch of records; images in
[0, 1]) and output `logits`, for any batch size. What the exporter records about the machine it ran on (source paths,
stack traces) is removed. ONNX and its runtime are imported only when a file is made or read.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import nn

from airlock.errors import NetError
from airlock.methods.contract import NetworkArtefact

BATCHES = (1, 7)
TOLERANCE = 1e-4
FEW = 64  # most numbers in a constant added by the exporter
_CHATTY = ("torch.onnx", "torch.export", "torch.fx", "onnxscript", "onnx_ir", "onnx")

Floats = NDArray[np.float32]


def to_safetensors(artefact: NetworkArtefact) -> bytes:
    """Every parameter and buffer by name, each with its own storage."""
    tensors = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in artefact.net.state_dict().items()}
    return safetensors.torch.save(tensors)


_exported: WeakKeyDictionary[nn.Module, tuple[bytes, bytes]] = WeakKeyDictionary()


def to_onnx(artefact: NetworkArtefact) -> bytes:
    """The network as one ONNX file, checked in ONNX Runtime against torch.

    The exporter takes seconds, so the file is cached as long as the network's tensors stay the same.

    Raises:
        NetError: The network cannot be exported, or the export computes something else.
    """
    mark = hashlib.sha256(to_safetensors(artefact)).digest()
    known = _exported.get(artefact.net)
    if known is None or known[0] != mark:
        known = _exported[artefact.net] = (mark, _to_onnx(artefact))
    return known[1]


def _to_onnx(artefact: NetworkArtefact) -> bytes:
    example = torch.zeros(2, *artefact.input_shape)
    try:
        with _quiet():
            program = torch.onnx.export(
                artefact.net,
                (example,),
                dynamo=True,
                input_names=["input"],
                output_names=["logits"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                external_data=False,
                optimize=False,  # keeps every weight under its own name and value; ONNX Runtime optimises on loading
                verbose=False,
            )
    except (RuntimeError, TypeError, ValueError, torch.onnx.OnnxExporterError) as error:
        raise _not_exported(artefact, "an operation that torch.onnx does not take") from error
    if program is None:
        raise _not_exported(artefact, "no program")
    content = bytes(with_plain_shapes(stripped(program.model_proto)).SerializeToString(deterministic=True))
    _check_agreement(artefact, content)
    return content


def stripped(model: Any) -> Any:
    """The model without doc strings and metadata: the exporter writes source paths and stack traces into them."""
    import onnx

    clean = onnx.ModelProto()
    clean.CopyFrom(model)
    graph = clean.graph
    clean.doc_string = graph.doc_string = ""
    del clean.metadata_props[:], graph.metadata_props[:], graph.value_info[:]
    for part in (*graph.node, *graph.input, *graph.output, *graph.initializer, *clean.functions):
        part.doc_string = ""
        del part.metadata_props[:]
    for function in clean.functions:
        for node in function.node:
            node.doc_string = ""
            del node.metadata_props[:]
    return clean


def with_plain_shapes(model: Any) -> Any:
    """The model without nodes that compute the batch size only to flatten: a reshape to (-1, ...) does the same.

    If all dimensions but one are positive constants, -1 stands for the computed one.
    """
    from onnx import numpy_helper

    graph = model.graph
    made = {name: node for node in graph.node for name in node.output}
    for node in graph.node:
        sizes = _sizes(made, node.input[1]) if node.op_type == "Reshape" else None
        if sizes is not None:
            name = f"{node.name}_shape"
            graph.initializer.append(numpy_helper.from_array(np.array(sizes, np.int64), name))
            node.input[1] = name
    while dead := [node for node in graph.node if _used(graph).isdisjoint(node.output)]:
        for node in dead:
            graph.node.remove(node)
    return model


def _sizes(made: Mapping[str, Any], name: str) -> list[int] | None:
    """A shape concatenated from positive constants and one computed size, for which -1 is returned."""
    node = made.get(name)
    if node is None or node.op_type != "Concat":
        return None
    sizes: list[int] = []
    for part in node.input:
        source = made.get(part)
        whole = source.attribute[0] if source is not None and source.op_type == "Constant" else None
        sizes += list(whole.ints) if whole is not None and whole.name == "value_ints" else [-1]
    return sizes if sizes.count(-1) == 1 and all(size > 0 for size in sizes if size != -1) else None


def _used(graph: Any) -> set[str]:
    return {name for node in graph.node for name in node.input} | {out.name for out in graph.output}


def open_onnx(content: bytes) -> Any:
    """A single-threaded ONNX Runtime session that logs nothing."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(content, sess_options=options, providers=["CPUExecutionProvider"])


def largest_difference(session: Any, net: nn.Module, shape: tuple[int, ...]) -> float:
    """The largest difference of logits between ONNX Runtime and torch on random batches, relative to their size."""
    worst = 0.0
    for batch in BATCHES:
        x = probe(batch, shape)
        with torch.no_grad():
            wanted = net(torch.from_numpy(x)).numpy()
        given = session.run(["logits"], {"input": x})[0]
        if given.shape != wanted.shape or not (np.isfinite(given).all() and np.isfinite(wanted).all()):
            return float("inf")
        worst = max(worst, float(np.abs(given - wanted).max() / max(1.0, np.abs(wanted).max())))
    return worst


def probe(batch: int, shape: tuple[int, ...]) -> Floats:
    """A fixed random batch in [0, 1]."""
    return np.random.default_rng(batch).random((batch, *shape), dtype=np.float32)


def _check_agreement(artefact: NetworkArtefact, content: bytes) -> None:
    import onnx

    difference = largest_difference(open_onnx(content), artefact.net, artefact.input_shape)
    if difference > TOLERANCE:
        raise _not_exported(artefact, f"an export whose outputs differ by {difference:.1e}")
    for defect in differing_weights(artefact.net.state_dict(), onnx.load_model_from_string(content)):
        raise _not_exported(artefact, f"this: {defect.rstrip('.')}")


def differing_weights(tensors: Mapping[str, torch.Tensor], model: Any) -> Iterator[str]:
    """Compare tensors with the ONNX file's by value; one sentence for each that is in only one of them.

    A tensor shared by two layers is stored in the ONNX file once, under either name. Constants that the exporter adds,
    such as shapes, are small.
    """
    arrays = {name: array for name, array in _arrays(model) if np.issubdtype(array.dtype, np.floating)}
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.numel():
            wanted = tensor.detach().cpu().float().numpy()
            candidates = [arrays[name]] if name in arrays else list(arrays.values())
            if not any(a.shape == wanted.shape and np.array_equal(a.astype(np.float32), wanted) for a in candidates):
                yield f"{name} in model.safetensors is not the same in model.onnx."
    for name, array in arrays.items():
        if name not in tensors and array.size > FEW:
            yield f"{name} in model.onnx is not in model.safetensors."


def _arrays(model: Any) -> Iterator[tuple[str, NDArray[Any]]]:
    """Initialisers and constants by name."""
    import onnx
    from onnx import numpy_helper

    for tensor in model.graph.initializer:
        yield tensor.name, numpy_helper.to_array(tensor)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield f"{node.name}.{attribute.name}", numpy_helper.to_array(attribute.t)


def _not_exported(artefact: NetworkArtefact, found: str) -> NetError:
    return NetError(
        f"net '{artefact.net_name}' to be the same in ONNX as in torch",
        found,
        "A release holds both files, and the recipient may use either.",
        "Build the net from standard layers, without unused layers or branches on the input's values.",
    )


def load_weights(net: nn.Module, tensors: Mapping[str, torch.Tensor]) -> nn.Module:
    """Load these tensors into the net and return it in eval mode; every name and shape must match."""
    net.load_state_dict(dict(tensors), strict=True, assign=True)
    return net.eval()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's progress, warnings and logs."""
    loggers = [logging.getLogger(name) for name in _CHATTY]
    loggers += [logging.getLogger(n) for n in logging.root.manager.loggerDict if n.startswith(_CHATTY)]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
