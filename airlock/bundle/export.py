"""The network as files that can be inspected without executing them: safetensors for the weights, ONNX for the whole.

The ONNX file is self-contained, without external data, with input `input` (float32, a batch of records; images in [0,
1]) and output `logits`, for any batch size. Where a number is predicted, its output is `prediction`, in the unit of the
target and within its declared range: what the network says of the range is converted in the file. A language model's
output is `next_token`: at each place, the log-probability of every token after it. ONNX and its runtime are imported
only when a file is made or read.

Both files hold the network and nothing else, in one form each: the same network and the same weights always give the
same bytes (`to_safetensors`, `canonical`), whatever the exporter calls its nodes and whatever it records about the
machine it ran on. So a file can be compared with what it should be, byte by byte, and no name, note, order or spare
field can carry anything.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import logging
import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import nn

from airlock.config import TargetRange
from airlock.errors import NetError
from airlock.methods.contract import NetworkArtefact
from airlock.nets import domain
from airlock.nets.hugging_face import LanguageModel, asked_for_tokens
from airlock.training.losses import MIDDLE

PREDICTION, NEXT = "prediction", "next_token"
OUTPUTS = ("logits", PREDICTION, NEXT)
BATCHES = (1, 7)
TOLERANCE = 1e-4
FEW = 64  # most numbers in a constant added by the exporter
_MANY = 100_000  # inputs of layers that wait to be written
_PLAIN = (1, 2, 3, 6, 7, 8)  # kinds of attributes: numbers, text, and lists of them
_CHATTY = ("torch.onnx", "torch.export", "torch.fx", "onnxscript", "onnx_ir", "onnx")

Floats = NDArray[np.float32]


class Told(Protocol):
    """What says what a network's outputs are: an artefact, or what a card says of it."""

    @property
    def target(self) -> TargetRange | None:
        """The range of a number."""

    @property
    def outputs(self) -> int:
        """How many there are; 0 for a language model."""


def to_safetensors(artefact: NetworkArtefact) -> bytes:
    """Every parameter and buffer by name, each with its own storage."""
    return packed(artefact.net.state_dict())


def packed(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Tensors as a safetensors file: without metadata, in the library's own order, no byte between them."""
    return safetensors.torch.save({name: each.detach().cpu().clone().contiguous() for name, each in tensors.items()})


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
    content = traced(artefact)
    _check_agreement(artefact, content)
    return content


def traced(artefact: NetworkArtefact) -> bytes:
    """The network as one ONNX file, in canonical form; it has not been run yet.

    Raises:
        NetError: The network cannot be exported.
    """
    example = torch.zeros(2, *artefact.input_shape)
    try:
        with _quiet(), asked_for_tokens(artefact.net):
            program = torch.onnx.export(
                artefact.net,
                (example,),
                dynamo=True,
                input_names=["input"],
                output_names=[output_of(artefact)],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                external_data=False,
                optimize=False,  # keeps every weight under its own name and value; ONNX Runtime optimises on loading
                verbose=False,
            )
    except (RuntimeError, TypeError, ValueError, torch.onnx.OnnxExporterError) as error:
        raise _not_exported(artefact, "an operation that torch.onnx does not take") from error
    if program is None:
        raise _not_exported(artefact, "no program")
    try:
        model = with_plain_shapes(stripped(program.model_proto))
        if artefact.target is not None:
            in_unit(model, artefact.target)
        return canonical(model, artefact.net.state_dict())
    except NotCanonical as error:
        raise _not_exported(artefact, str(error)) from error


def output_of(network: Told) -> str:
    """The name of the output: of classes, of a number, or of the next token."""
    if network.target is not None:
        return PREDICTION
    return "logits" if network.outputs else NEXT


def in_unit(model: Any, target: TargetRange) -> None:
    """Let a network's file give the number itself: its place in the declared range, clamped, times span plus min."""
    from onnx import helper, numpy_helper

    graph, last = model.graph, "place"
    for node in graph.node:
        for side in (node.input, node.output):
            for place, name in enumerate(side):
                if name == PREDICTION:
                    side[place] = last
    steps = (("Add", MIDDLE), ("Max", 0.0), ("Min", 1.0), ("Mul", target.span), ("Add", target.min))
    for turn, (kind, number) in enumerate(steps):
        name, after = f"range_{turn}", PREDICTION if turn == len(steps) - 1 else f"place_{turn}"
        graph.initializer.append(numpy_helper.from_array(np.array(number, np.float32), name))
        graph.node.append(helper.make_node(kind, [last, name], [after]))
        last = after


class _InUnit(nn.Module):
    """The same in torch."""

    def __init__(self, net: nn.Module, target: TargetRange) -> None:
        super().__init__()
        self.net, self.target = net, target

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The number, in the unit of the target."""
        found: torch.Tensor = (self.net(x) + MIDDLE).clamp(0.0, 1.0) * self.target.span + self.target.min
        return found


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


# The canonical form.


class NotCanonical(ValueError):
    """Something that no network in canonical form has; the message says what."""


def canonical(model: Any, tensors: Collection[str]) -> bytes:
    """The file of a network, a function of what it computes from its weights and of nothing else.

    It is built anew from the parts that matter: the nodes that the output depends on, in the order in which it depends
    on them, their attributes by name, and the numbers that they use. Weights keep their names; everything else is
    numbered. Notes, names, the producer, unused numbers and fields that ONNX does not know are not among these parts.

    Args:
        model: An ONNX model with the input `input` and one of `OUTPUTS`.
        tensors: The names of the weights.

    Raises:
        NotCanonical: It holds something that cannot be written in this form, such as a graph within the graph.
    """
    import onnx

    graph = model.graph
    output = graph.output[0].name if len(graph.output) == 1 else ""
    if [each.name for each in graph.input] != ["input"] or output not in OUTPUTS:
        raise NotCanonical(f"other inputs or outputs than `input` and {' or '.join(OUTPUTS)}")
    clean = onnx.ModelProto(ir_version=model.ir_version)
    versions = [each.version for each in model.opset_import if each.domain in ("", "ai.onnx")]
    clean.opset_import.add(version=versions[0] if versions else 0)
    clean.graph.name = "network"
    clean.graph.input.append(_value("input", graph.input[0]))
    clean.graph.output.append(_value(output, graph.output[0]))
    names = {"": "", "input": "input", output: output}
    for node in _needed(graph, output):
        if node.op_type != "Constant":
            _add_node(clean.graph, node, names)
        else:
            _add_number(clean.graph, _constant(node), node.output[0], names, tensors)
    return bytes(clean.SerializeToString(deterministic=True))


def _value(name: str, given: Any) -> Any:
    """An input or output: float32, with any number of records."""
    from onnx import TensorProto, helper

    sizes = [dim.dim_value if dim.HasField("dim_value") else None for dim in given.type.tensor_type.shape.dim]
    if given.type.tensor_type.elem_type != TensorProto.FLOAT or None in sizes[1:]:
        raise NotCanonical(f"another type or an open shape for `{name}`")
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *sizes[1:]])


def _needed(graph: Any, output: str) -> Iterator[Any]:
    """The nodes and numbers that the output depends on, each after what it depends on itself; numbers as nodes."""
    from onnx import helper

    made = {name: node for node in graph.node for name in node.output if name}
    for tensor in graph.initializer:
        made.setdefault(tensor.name, helper.make_node("Constant", [], [tensor.name], value=tensor))
    done: set[str] = {"", "input"}
    waiting = [(output, False)]
    while waiting:
        name, follows = waiting.pop()
        if name in done:
            continue
        if name not in made:
            raise NotCanonical("a layer whose input nothing gives")
        node = made[name]
        if follows:
            done.update(node.output)
            yield node
        else:
            waiting.append((name, True))
            waiting += [(each, False) for each in reversed(node.input)]
            if len(waiting) > _MANY:
                raise NotCanonical("layers that depend on each other in a circle")


def _add_node(graph: Any, node: Any, names: dict[str, str]) -> None:
    from onnx import AttributeProto, helper

    if node.domain not in ("", "ai.onnx"):
        raise NotCanonical("operators that are not ONNX's own")
    for place, name in enumerate(node.output):
        names.setdefault(name, f"value/{len(graph.node)}/{place}")
    made = helper.make_node(node.op_type, [names[n] for n in node.input], [names[n] for n in node.output])
    made.name = f"node/{len(graph.node)}"
    for attribute in sorted(node.attribute, key=lambda each: str(each.name)):
        if attribute.type not in (AttributeProto.TENSOR, *_PLAIN) or attribute.ref_attr_name:
            raise NotCanonical("a graph within the graph")
        value = helper.get_attribute_value(attribute)
        whole = _number("", value) if attribute.type == AttributeProto.TENSOR else value
        made.attribute.append(helper.make_attribute(attribute.name, whole, attr_type=attribute.type))
    graph.node.append(made)


def _constant(node: Any) -> Any:
    """The tensor of a constant, which has many spellings."""
    from onnx import TensorProto, helper, numpy_helper

    given = node.attribute[0] if len(node.attribute) == 1 else None
    value = helper.get_attribute_value(given) if given is not None else None
    if isinstance(value, TensorProto):
        return value
    kind = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    if given is None or given.name not in kind:
        raise NotCanonical("a constant that is not a number")
    return numpy_helper.from_array(np.array(value, kind[given.name]))


def _add_number(graph: Any, tensor: Any, name: str, names: dict[str, str], tensors: Collection[str]) -> None:
    names[name] = name if name in tensors else f"number/{len(graph.initializer)}"
    graph.initializer.append(_number(names[name], tensor))


def _number(name: str, tensor: Any) -> Any:
    """A tensor with its bytes in the one field that is meant for them."""
    from onnx import TensorProto, numpy_helper

    if tensor.data_location == TensorProto.EXTERNAL or tensor.data_type == TensorProto.STRING:
        raise NotCanonical("a tensor that is text or lies in another file")
    return numpy_helper.from_array(numpy_helper.to_array(tensor), name)


def without_weights(content: bytes, tensors: Collection[str]) -> bytes:
    """An ONNX file in canonical form without the values of its weights: the graph of the network."""
    import onnx

    model = onnx.load_model_from_string(content)
    for tensor in model.graph.initializer:
        if tensor.name in tensors:
            tensor.raw_data = b""
    return bytes(model.SerializeToString(deterministic=True))


def with_weights(graph: bytes, tensors: Mapping[str, torch.Tensor]) -> bytes:
    """The file that a network of this graph with these weights is exported to.

    Raises:
        NotCanonical: A tensor has another type or shape than in the graph.
    """
    import onnx
    from onnx import numpy_helper

    model = onnx.load_model_from_string(graph)
    for tensor in model.graph.initializer:
        if tensor.name in tensors:
            own = numpy_helper.from_array(tensors[tensor.name].detach().cpu().contiguous().numpy())
            if (own.data_type, own.dims) != (tensor.data_type, tensor.dims):
                raise NotCanonical(f"{tensor.name} of another type or shape")
            tensor.raw_data = own.raw_data
    return bytes(model.SerializeToString(deterministic=True))


def open_onnx(content: bytes) -> Any:
    """A single-threaded ONNX Runtime session that logs nothing."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(content, sess_options=options, providers=["CPUExecutionProvider"])


def predicted(session: Any, x: Floats, target: TargetRange) -> NDArray[np.float64]:
    """The number that a network's file gives for each row, within its declared range; NaN where its outputs overflow.

    The file clamps too, in single precision, which may round an end of the range to a number just beyond it.
    """
    found = np.asarray(session.run([PREDICTION], {"input": x})[0], np.float64).reshape(-1)
    return np.clip(found, target.min, target.max)


def largest_difference(
    session: Any, net: nn.Module, shape: tuple[int, ...], target: TargetRange | None = None
) -> float:
    """The largest difference of outputs between ONNX Runtime and torch on random batches, relative to their size."""
    worst, vocabulary, asked = 0.0, domain.vocabulary_of(net), net if target is None else _InUnit(net, target)
    name = PREDICTION if target is not None else NEXT if isinstance(net, LanguageModel) else "logits"
    for batch in BATCHES:
        x = probe(batch, shape, vocabulary)
        with torch.no_grad(), asked_for_tokens(net):
            wanted = asked(torch.from_numpy(x)).numpy()
        given = session.run([name], {"input": x})[0]
        if given.shape != wanted.shape or not (np.isfinite(given).all() and np.isfinite(wanted).all()):
            return float("inf")
        worst = max(worst, float(np.abs(given - wanted).max() / max(1.0, np.abs(wanted).max())))
    return worst


def probe(batch: int, shape: tuple[int, ...], vocabulary: int | None = None) -> Floats:
    """A fixed random batch in [0, 1], or of texts."""
    return domain.numbers(batch, shape, vocabulary, np.random.default_rng(batch))


def _check_agreement(artefact: NetworkArtefact, content: bytes) -> None:
    import onnx

    difference = largest_difference(open_onnx(content), artefact.net, artefact.input_shape, artefact.target)
    if difference > TOLERANCE:
        raise _not_exported(artefact, f"an export whose outputs differ by {difference:.1e}")
    for defect in differing_weights(artefact.net.state_dict(), onnx.load_model_from_string(content)):
        raise _not_exported(artefact, f"this: {defect.rstrip('.')}")


def differing_weights(tensors: Mapping[str, torch.Tensor], model: Any) -> Iterator[str]:
    """Compare tensors with the ONNX file's by value; one sentence for each that is in only one of them.

    A tensor shared by two layers is stored in the ONNX file once, under either name. A buffer of whole numbers may be
    missing there: it may only count. Constants that the exporter adds, such as shapes, are small.
    """
    arrays = dict(numbers(model))
    for name, tensor in tensors.items():
        wanted = tensor.detach().cpu().numpy()
        if not wanted.size or (name not in arrays and not tensor.is_floating_point()):
            continue
        candidates = [arrays[name]] if name in arrays else list(arrays.values())
        if not any(a.dtype == wanted.dtype and np.array_equal(a, wanted) for a in candidates):
            yield f"{name} in model.safetensors is not the same in model.onnx."
    for name, array in arrays.items():
        if name not in tensors and array.size > FEW:
            yield f"{name} in model.onnx is not in model.safetensors."


def numbers(model: Any) -> Iterator[tuple[str, NDArray[Any]]]:
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
    """Load these tensors into the net and return it in eval mode; every name and shape must match.

    What was one tensor under several names, such as a table of tokens that is also the head, stays one if they agree.
    """
    shared = _shared(net)
    net.load_state_dict(dict(tensors), strict=True, assign=True)
    for first, *others in shared:
        one = net.get_parameter(first)
        for name in others:
            if torch.equal(one, net.get_parameter(name)):
                above, _, own = name.rpartition(".")
                setattr(net.get_submodule(above), own, one)
    return net.eval()


def _shared(net: nn.Module) -> list[list[str]]:
    """The names of each parameter that has several."""
    names: dict[int, list[str]] = {}
    for name, parameter in net.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [found for found in names.values() if len(found) > 1]


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
