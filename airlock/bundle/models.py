"""The model files of a bundle: do they hold this network and nothing else, and do they compute the same?

A model file has one form (`export`), so that it can be compared byte by byte with what it should be. Weights are packed
again. The network on the card is built by its name, and the file that these weights export to must be model.onnx;
a file that is another is not run. Nothing that somebody adds to a file, a note, a name, a spare field, a layer that
waits for a trigger, survives that.

Nothing named in a bundle is imported: a built-in network is built by name from the fixed table; a user's own network or
one from another package is used only if the caller passes it in. Without it, its file is still required to be in its
form, to hold the weights of model.safetensors and no other tensor, and to have no operator that draws, loops or
branches; the check says what that does not rule out.

The smaller files of a student (`size_tests`) are made again from model.onnx and compared in the same way; only the
ranges of the activations, which public records gave, are taken from the file. Their sizes are those that the card
states. Times depend on the machine where the card was made and are not measured again.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import safetensors.torch
import torch
from torch import nn

from airlock import nets
from airlock.bundle import compression, export
from airlock.bundle.contents import ONNX, SAFETENSORS, Contents, Defects, Skip, Test
from airlock.bundle.schema import Compression, NetworkSummary
from airlock.config import TargetRange
from airlock.errors import ConfigError
from airlock.methods.contract import NetworkArtefact

MAX_INPUT = 1 << 24  # numbers in one record
NEVER = re.compile(
    r"If|Loop|Scan|SequenceMap|Random\w*|Multinomial|Bernoulli"
)  # operators that no released network has
TURNS = ("Where", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal", "And", "Or", "Xor", "Not", "ArgMax",
         "ArgMin", "TopK", "IsNaN", "IsInf", "Sign", "NonZero", "Compress", "Hardmax", "OneHot")  # fmt: skip
_LAYER = re.compile(r"[A-Za-z0-9_]{1,64}(\.[A-Za-z0-9_]{1,64}){0,31}")  # the name of a parameter or buffer
_NOT_RUN = "model.onnx was not run, because it is not what this network and these weights export to."
_SHAPE = "The card's input shape is too large to be true."


@lru_cache(maxsize=32)
def graph(name: str, shape: tuple[int, ...], classes: int, target: TargetRange | None = None) -> bytes:
    """The ONNX file of a built-in network without its weights; the exporter takes seconds, so it is cached.

    Args:
        name: Of the network.
        shape: Of a record.
        classes: How many outputs it has.
        target: The range of the number that it predicts; None where it tells classes apart.

    Raises:
        NetError: There is no such network for records of this shape.
    """
    with torch.random.fork_rng(devices=[]):
        net = _empty(name, shape, classes)
    names = tuple(map(str, range(classes))) if target is None else ()
    made = NetworkArtefact(net.eval().requires_grad_(False), name, shape, names, target)
    return export.without_weights(export.traced(made), net.state_dict())


def size(name: str, shape: tuple[int, ...], classes: int) -> int:
    """The bytes of a built-in network's weights; none are allocated for this."""
    if math.prod(shape) > MAX_INPUT:
        raise ConfigError(f"at most {MAX_INPUT:,} numbers in a record", "more")
    with torch.device("meta"):
        return sum(each.nbytes for each in _empty(name, shape, classes).state_dict().values())


ask_for_graph: Callable[[str, tuple[int, ...], int, TargetRange | None], bytes] = (
    graph  # a child process asks its parent instead
)


def _empty(name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """A built-in network, freshly initialised."""
    return (nets.build_front if nets.is_front(name) else nets.build)(name, shape, classes)


def tests(files: Contents, network: NetworkSummary | None, net: nn.Module | None) -> list[Test]:
    """The checks of the two model files, by name."""
    pair = Pair(files, network, net)
    return [
        ("weights", "model.safetensors holds finite weights and nothing else.", pair.weights),
        ("onnx", "model.onnx holds this network with the same weights and nothing else.", pair.onnx),
        ("outputs", "Both model files compute the same.", pair.outputs),
    ]


@dataclass
class Pair:
    """The two files of one network, each read once.

    Args:
        files: The files of the bundle.
        network: The network on the card, if there is a usable one.
        net: The user's own network, if it was passed in.
    """

    files: Contents
    network: NetworkSummary | None
    net: nn.Module | None

    @cached_property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The weights by name."""
        return safetensors.torch.load(self.files.read(SAFETENSORS))

    @cached_property
    def content(self) -> bytes:
        """The ONNX file."""
        return self.files.read(ONNX)

    @cached_property
    def expected(self) -> bytes | None:
        """What the ONNX file has to be; None if the network is not at hand, empty if these are not its weights."""
        network = self.network
        if network is None or (self.net is None and not _is_built_in(network.name)):
            return None
        if math.prod(network.input_shape) > MAX_INPUT or not _fits(network, self.net, self.tensors):
            return b""
        if self.net is None:
            known = ask_for_graph(network.name, network.input_shape, network.outputs, network.target)
            return export.with_weights(known, self.tensors) if known else b""
        own = export.load_weights(copy.deepcopy(self.net), self.tensors)
        named = NetworkArtefact(own, network.name, network.input_shape, network.classes, network.target)
        return export.traced(named)

    @cached_property
    def may_be_run(self) -> bool:
        """Whether model.onnx is what it should be, or, where that is not known, at least a plain network."""
        import onnx

        if self.expected is not None:
            return self.expected == self.content
        model = onnx.load_model_from_string(self.content)
        return not (list(foreign(model)) or list(beside(self.content, model, self.tensors)))

    def weights(self) -> Defects:
        """Whether model.safetensors is the one file of these tensors, and they are finite."""
        if not self.tensors:
            return ["model.safetensors holds no weights."]
        defects = [f"{name} in model.safetensors is not finite." for name, t in self.tensors.items() if not _finite(t)]
        if not all(map(_LAYER.fullmatch, self.tensors)):
            defects.append("A name in model.safetensors is not one of a layer.")
        if export.packed(self.tensors) != self.files.read(SAFETENSORS):
            defects.append("model.safetensors holds something beside its tensors, such as metadata or spare bytes.")
        return defects

    def onnx(self) -> Defects:
        """Whether model.onnx is the one file of this network with these weights."""
        import onnx

        if self.expected == self.content:
            return []
        model = onnx.load_model_from_string(self.content)
        defects = [*foreign(model), *notes(model)]
        if defects:
            return defects
        defects += export.differing_weights(self.tensors, model)
        if self.expected is not None:
            return defects or [_not_its_file(self.network)]
        defects += beside(self.content, model, self.tensors)
        if not defects:
            onnx.checker.check_model(model)
            export.open_onnx(self.content)
        return defects

    def outputs(self) -> Defects:
        """Whether ONNX Runtime and torch compute the same; a file that is not what it should be is not run."""
        network = self.network
        if network is None:
            raise Skip("There is no usable card.json that names the network.")
        if math.prod(network.input_shape) > MAX_INPUT:
            return [_SHAPE]
        if not self.may_be_run:
            return [_NOT_RUN]
        if self.expected is None:
            return self._own(network)
        session = export.open_onnx(self.content)
        own = _rebuilt(self.tensors, network, self.net)
        difference = export.largest_difference(session, own, network.input_shape, network.target)
        if difference <= export.TOLERANCE:
            return []
        return [f"The two model files disagree: their outputs differ by {difference:.1e} of the largest."]

    def _own(self, network: NetworkSummary) -> Defects:
        """What can be said about a network that is not at hand."""
        import onnx

        model = onnx.load_model_from_string(self.content)
        session, x = export.open_onnx(self.content), export.probe(1, network.input_shape)
        given = session.run([export.output_of(network)], {"input": x})[0]
        if not network.outputs:
            if given.ndim != 3 or given.shape[:2] != (1, network.input_shape[0]):
                return ["model.onnx does not say what comes next at each place of a text."]
        elif given.shape != (1, network.outputs):
            return [f"model.onnx does not give the {network.outputs} outputs that the card leads to."]
        turns = sorted({node.op_type for node in model.graph.node} & set(TURNS))
        raise Skip(_not_at_hand(network.name, turns))


def _not_at_hand(name: str, turns: list[str]) -> str:
    can = f": it uses {', '.join(turns)}, with which a network can react to a chosen input" if turns else ""
    how = "in Python: airlock.verify(BUNDLE, net=MODULE)" if name == nets.MEMORY else "with --net to compare them"
    return (
        f"{_stranger(name)}; its weights were compared by value, and nothing else is in its files. Whether its layers "
        f"are those that were trained was not checked{can}. Give the network {how}."
    )


def _finite(tensor: torch.Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())


def _is_built_in(name: str) -> bool:
    return nets.is_front(name) or nets.is_built_in(name)


def _fits(network: NetworkSummary, net: nn.Module | None, tensors: dict[str, torch.Tensor]) -> bool:
    """Whether these are tensors of this network; a built-in one is made on the meta device, to bound memory."""
    if net is None:
        with torch.device("meta"):
            net = _empty(network.name, network.input_shape, network.outputs)
    own = net.state_dict()
    same = [tensors[name].shape == each.shape and tensors[name].dtype == each.dtype for name, each in own.items()
            if name in tensors]  # fmt: skip
    return own.keys() == tensors.keys() and all(same)


def _not_its_file(network: NetworkSummary | None) -> str:
    name = network.name if network else ""
    return (
        f"model.onnx is not what the network '{name}' and these weights export to: it was edited, or another version "
        f"of torch than {torch.__version__} exported it."
    )


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


def beside(content: bytes, model: Any, tensors: Collection[str]) -> Iterator[str]:
    """What a file holds beside a network with these weights, judged without the network."""
    if any(NEVER.fullmatch(node.op_type) for node in model.graph.node):
        yield "model.onnx draws, loops or branches, which no released network does."
    try:
        if export.canonical(model, tensors) != content:
            yield "model.onnx holds something beside the network: a name, a number that no layer uses, a spare field."
    except export.NotCanonical as reason:
        yield f"model.onnx holds something beside a network: {reason}."


def open_net(files: Contents, network: NetworkSummary, net: nn.Module | None = None) -> nn.Module:
    """The network of a bundle in eval mode; one that is not built in has to be passed in.

    Raises:
        ConfigError: It is not built in, and none was passed in.
    """
    try:
        return _rebuilt(Pair(files, network, net).tensors, network, net).eval()
    except Skip as reason:
        raise ConfigError(
            "a built-in network, or one that is passed in", f"'{network.name}'", str(reason), "Give it with --net."
        ) from reason


def _rebuilt(tensors: dict[str, torch.Tensor], network: NetworkSummary, net: nn.Module | None) -> nn.Module:
    """The card's network with the weights of model.safetensors; built on the meta device, to bound memory."""
    if net is not None:
        return export.load_weights(copy.deepcopy(net), tensors)
    if not _is_built_in(network.name):
        raise Skip(f"{_stranger(network.name)}.")
    with torch.device("meta"):
        empty = _empty(network.name, network.input_shape, network.outputs)
    return export.load_weights(empty, tensors)


def _stranger(name: str) -> str:
    """Why a network that is not built in is not rebuilt."""
    if ":" in name:
        return "The network is the user's own and is not imported from a bundle"
    if name in nets.others():
        return f"The network '{name}' is another package's and is not imported because a bundle names it"
    return f"The network '{name}' is another package's, which is not installed here"


# A student's size, and its smaller files.


def size_tests(
    files: Contents,
    network: NetworkSummary | None,
    smaller: Collection[str],
    stated: Compression,
    vocabulary: int | None = None,
) -> list[Test]:
    """The checks of a student's report and of its smaller files, by name.

    Args:
        files: The files of the bundle.
        network: The network on the card.
        smaller: The smaller files that the card names.
        stated: The report on the card.
        vocabulary: Of texts, as the card says.
    """
    says = "The smaller files run and agree with model.onnx."
    return [
        ("sizes", "Sizes and counts of the student are those of its files.", lambda: _sizes(files, smaller, stated)),
        ("smaller", says, lambda: _smaller(files, network, smaller, vocabulary)),
    ]


def _sizes(files: Contents, smaller: Collection[str], stated: Compression) -> Defects:
    defects = []
    tensors = Pair(files, None, None).tensors
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


def _smaller(
    files: Contents, network: NetworkSummary | None, smaller: Collection[str], vocabulary: int | None
) -> Defects:
    assert network is not None
    pair = Pair(files, network, None)
    shape, content = network.input_shape, pair.content
    if math.prod(shape) > MAX_INPUT:
        return [_SHAPE]
    if not pair.may_be_run:
        return [_NOT_RUN]
    defects = []
    for name in smaller:
        small = files.read(name)
        if small not in compression.made_again(name, small, content, shape, vocabulary):
            defects.append(f"{name} is not what model.onnx is converted to: it was edited, or by another onnxruntime.")
        elif off := compression.difference(name, small, content, shape, vocabulary):
            defects.append(f"{name}: {off}")
    return defects
