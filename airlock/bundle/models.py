"""The two model files of a bundle: do they load, are their weights finite and equal, do they compute the same?

Nothing named in a bundle is imported: a built-in network is built by name from the fixed table; a user's own network or
one from another package is used only if the caller passes it in. Weights are compared by value in any case.

The smaller files of a student (`size_tests`) must hold the same network and nothing else, and have the sizes that the
card states. Times depend on the machine where the card was made and are not measured again.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from airlock import nets
from airlock.bundle import compression, export
from airlock.bundle.contents import ONNX, SAFETENSORS, Contents, Defects, Skip, Test
from airlock.bundle.schema import Compression, NetworkSummary
from airlock.errors import ConfigError

MAX_INPUT = 1 << 24  # numbers in one record


def tests(files: Contents, network: NetworkSummary | None, net: nn.Module | None) -> list[Test]:
    """The checks of the two model files, by name."""
    return [
        ("weights", "The weights in model.safetensors load and are finite.", lambda: _weights(files)),
        ("onnx", "The network in model.onnx loads and has the same weights.", lambda: _onnx(files)),
        ("outputs", "Both model files compute the same.", lambda: _outputs(files, network, net)),
    ]


def _tensors(files: Contents) -> dict[str, torch.Tensor]:
    return safetensors.torch.load(files.read(SAFETENSORS))


def _weights(files: Contents) -> Defects:
    tensors = _tensors(files)
    if not tensors:
        return ["model.safetensors holds no weights."]
    return [f"{name} in model.safetensors is not finite." for name, t in tensors.items() if not torch.isfinite(t).all()]


def _onnx(files: Contents) -> Defects:
    import onnx

    content = files.read(ONNX)
    model = onnx.load_model_from_string(content)
    defects = list(foreign(model))
    if defects:
        return defects
    onnx.checker.check_model(model)
    export.open_onnx(content)
    return [*notes(model), *export.differing_weights(_tensors(files), model)]


def foreign(model: Any) -> Iterator[str]:
    """What a plain network does not have: external data, and operators that are not ONNX's own."""
    import onnx

    if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in model.graph.initializer):
        yield "model.onnx keeps weights in another file."
    domains = {node.domain for node in model.graph.node} - {"", "ai.onnx"}
    if domains or model.functions:
        yield "model.onnx uses operators that are not ONNX's own."


def notes(model: Any) -> Iterator[str]:
    """One sentence if the file carries doc strings or metadata."""
    graph = model.graph
    if any(part.doc_string or part.metadata_props for part in (model, graph, *graph.node, *graph.initializer)):
        yield "model.onnx carries notes beside the network; they may say where it was made."


def _outputs(files: Contents, network: NetworkSummary | None, net: nn.Module | None) -> Defects:
    import onnx

    if network is None:
        raise Skip("There is no usable card.json that names the network.")
    if math.prod(network.input_shape) > MAX_INPUT:
        return ["The card's input shape is too large to be true."]
    model = onnx.load_model_from_string(files.read(ONNX))
    if strange := list(foreign(model)):
        return strange
    session = export.open_onnx(files.read(ONNX))
    given = session.run(["logits"], {"input": export.probe(1, network.input_shape)})[0]
    if given.shape != (1, len(network.classes)):
        return [f"model.onnx does not give one output for each of the {len(network.classes)} classes on the card."]
    difference = export.largest_difference(session, _rebuilt(files, network, net), network.input_shape)
    if difference <= export.TOLERANCE:
        return []
    return [f"The two model files disagree: their outputs differ by {difference:.1e} of the largest."]


def open_net(folder: Path, network: NetworkSummary, net: nn.Module | None = None) -> nn.Module:
    """The network of a bundle in eval mode; one that is not built in has to be passed in.

    Raises:
        ConfigError: It is not built in, and none was passed in.
    """
    try:
        return _rebuilt(Contents(folder), network, net).eval()
    except Skip as reason:
        raise ConfigError(
            "a built-in network, or one that is passed in", f"'{network.name}'", str(reason), "Give it with --net."
        ) from reason


def _rebuilt(files: Contents, network: NetworkSummary, net: nn.Module | None) -> nn.Module:
    """The card's network with the weights of model.safetensors; built on the meta device, to bound memory."""
    if net is not None:
        return export.load_weights(copy.deepcopy(net), _tensors(files))
    front = network.name in nets.front_names()
    if not front and network.name not in nets.names():
        raise Skip(f"{_stranger(network.name)}; its weights were compared by value. ONNX Runtime runs model.onnx.")
    with torch.device("meta"):
        make = nets.build_front if front else nets.build
        empty = make(network.name, network.input_shape, len(network.classes))
    return export.load_weights(empty, _tensors(files))


def _stranger(name: str) -> str:
    """Why a network that is not built in is not rebuilt."""
    if ":" in name:
        return "The network is the user's own and is not imported from a bundle"
    if name in nets.others():
        return f"The network '{name}' is another package's and is not imported because a bundle names it"
    return f"The network '{name}' is another package's, which is not installed here"


# A student's size, and its smaller files.


def size_tests(
    files: Contents, network: NetworkSummary | None, smaller: Collection[str], stated: Compression
) -> list[Test]:
    """The checks of a student's report and of its smaller files, by name.

    Args:
        files: The files of the bundle.
        network: The network on the card.
        smaller: The smaller files that the card names.
        stated: The report on the card.
    """
    return [
        ("sizes", "Sizes and counts of the student are those of its files.", lambda: _sizes(files, smaller, stated)),
        ("smaller", "The smaller files run and agree with model.onnx.", lambda: _smaller(files, network, smaller)),
    ]


def _sizes(files: Contents, smaller: Collection[str], stated: Compression) -> Defects:
    defects = []
    tensors = safetensors.torch.load(files.read(SAFETENSORS))
    if sum(t.numel() for t in tensors.values()) < stated.student.parameters:  # buffers are not parameters
        defects.append("The card counts more parameters than model.safetensors holds.")
    recorded = {form.file: form.bytes for form in stated.forms} | {SAFETENSORS: stated.student.safetensors_bytes}
    if set(recorded) - {SAFETENSORS, ONNX} != set(smaller):
        defects.append("The card measures other files than it names.")
    for name, size in recorded.items():
        if name in files.names and (files.folder / name).lstat().st_size != size:
            defects.append(f"{name} has not the size that the card states.")
    for form in stated.forms:
        if form.agrees > form.records:
            defects.append(f"{form.file} agrees more often than it was asked.")
    return defects


def _smaller(files: Contents, network: NetworkSummary | None, smaller: Collection[str]) -> Defects:
    import onnx

    assert network is not None
    shape, content = network.input_shape, files.read(ONNX)
    if math.prod(shape) > MAX_INPUT:
        return ["The card's input shape is too large to be true."]
    defects = []
    for name in smaller:
        small = files.read(name)
        model = onnx.load_model_from_string(small)
        found = [sentence.replace("model.onnx", name) for sentence in (*foreign(model), *notes(model))]
        found += [f"{name}: {sentence}" for sentence in compression.baggage(model)]
        if not found:
            onnx.checker.check_model(model)
            off = compression.difference(name, small, content, shape)
            found = [f"{name}: {off}"] if off else []
        defects += found
    return defects
