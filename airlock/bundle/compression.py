"""How much smaller and faster a student is than its teacher, and the smaller files that go with it.

In: a release of a student, and the public and test records. Out: the card's `Compression` and the smaller files,
made from the student and public records alone, and, for the dossier, the results of each file on test records. What a
network costs depends only on its architecture, so the teacher is rebuilt from its public name with random weights: the
one that was trained on private records is never exported.

Multiply-adds are counted for convolutions and dense layers on one record, once per use of a weight; biases,
activations, pooling and averaging are not counted. Times are measured in ONNX Runtime on one thread, one input at a
time, with all networks taking turns in every round; the median over the rounds is reported. They are CPU times of the
thread, so waiting on a busy machine does not count. Ratios within one such run are comparable; the milliseconds
themselves depend on the machine.

Smaller forms (`smaller_forms`) compute in 16-bit floats or 8-bit integers. Both are derived from `model.onnx` and
public records alone (which calibrate the 8-bit ranges), so they reveal nothing that the network does not. A form that
cannot be made, or whose outputs differ too much, is left out and the reason is given.
"""

from __future__ import annotations

import contextlib
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from airlock import nets
from airlock.bundle import export
from airlock.bundle.contents import FP16, INT8
from airlock.bundle.schema import Compression, Cost, OnnxForm, OnTest
from airlock.data import Records, Split
from airlock.errors import NetError
from airlock.methods.contract import NetworkArtefact, Release
from airlock.nets import domain
from airlock.nets.hugging_face import is_conv1d
from airlock.training.devices import to_input

# Smaller forms.

NAMES = {INT8: "8-bit integers", FP16: "16-bit floats"}
# Largest mean difference in logits from model.onnx over random inputs, relative to the largest logit.
TOLERANCES: Mapping[str, float] = {INT8: 0.1, FP16: 0.01}
_BATCH = 64

Floats = NDArray[np.float32]


class Forms(NamedTuple):
    """The smaller files by name, and one sentence for each that could not be made."""

    files: Mapping[str, bytes]
    not_made: tuple[str, ...]


def smaller_forms(content: bytes, shape: tuple[int, ...], public: Floats, vocabulary: int | None = None) -> Forms:
    """Every smaller form of a network that can be made.

    Args:
        content: The network's ONNX file.
        shape: The shape of one record.
        public: Public records as network inputs; they calibrate the 8-bit ranges.
        vocabulary: Of texts.
    """
    makers: dict[str, Callable[[], bytes]] = {INT8: lambda: to_int8(content, public), FP16: lambda: to_fp16(content)}
    files, not_made = {}, []
    for name, make in makers.items():
        try:
            made = make()
            off = difference(name, made, content, shape, vocabulary)
        except Exception as error:  # noqa: BLE001  a converter may raise anything on a user's own network
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
        made = convert_float_to_float16(onnx.load_model_from_string(content), keep_io_types=True)
        return _written(_with_whole_numbers(made))


def _with_whole_numbers(model: Any) -> Any:
    """Where the input is read as whole numbers, as those of a text are, it is read before it is rounded to 16 bits."""
    from onnx import TensorProto

    first = {node.output[0] for node in model.graph.node if node.op_type == "Cast" and node.input[0] == "input"}
    for node in model.graph.node:
        whole = any(one.name == "to" and one.i in (TensorProto.INT32, TensorProto.INT64) for one in node.attribute)
        if node.op_type == "Cast" and node.input[0] in first and whole:
            node.input[0] = "input"
    used = {name for node in model.graph.node for name in node.input}
    for node in [one for one in model.graph.node if one.output[0] in first - used]:
        model.graph.node.remove(node)
    return model


def to_int8(content: bytes, public: Floats) -> bytes:
    """The network in 8-bit integers, calibrated on public records; quantised dynamically where that fails."""
    try:
        return _static(content, public)
    except Exception:  # noqa: BLE001  as above; the fallback is tried and then checked
        return _dynamic(content)


def _static(content: bytes, public: Floats, ranges: Mapping[str, Any] | None = None) -> bytes:
    """Quantised with the ranges that these records give, or with given ones."""
    import onnx
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    with _quiet(), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "int8.onnx"
        quantize_static(
            onnx.load_model_from_string(content),
            path,
            _Public(public),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            extra_options={"TensorQuantOverrides": dict(ranges)} if ranges else None,
        )
        return _written(onnx.load(path))


def _dynamic(content: bytes) -> bytes:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with _quiet(), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "int8.onnx"
        quantize_dynamic(onnx.load_model_from_string(content), path, weight_type=QuantType.QInt8)
        return _written(onnx.load(path))


def made_again(
    name: str, small: bytes, content: bytes, shape: tuple[int, ...], vocabulary: int | None = None
) -> Iterator[bytes]:
    """What a smaller form of `content` can be: it depends on nothing else, except on the ranges of the activations.

    Public records gave those, which the bundle does not hold, so they are taken from the file: a positive number and an
    offset of 8 bits for every layer.
    """
    if name == FP16:
        yield to_fp16(content)
        return
    if ranges := _ranges(small):
        yield _static(content, export.probe(2, shape, vocabulary), ranges)
    else:
        yield _dynamic(content)


def _ranges(small: bytes) -> dict[str, Any]:
    """The ranges of the activations in a statically quantised file, as the quantiser takes them."""
    import onnx
    from onnxruntime.quantization import QuantType

    found = dict(export.numbers(onnx.load_model_from_string(small)))
    scales = {name.removesuffix("_scale"): value for name, value in found.items() if name.endswith("_scale")}
    return {
        name: [{"scale": scale, "zero_point": found[f"{name}_zero_point"], "quant_type": QuantType.QUInt8}]
        for name, scale in scales.items()
        if scale.shape == () and scale.dtype == np.float32 and scale > 0 and np.isfinite(scale)
        and f"{name}_zero_point" in found and found[f"{name}_zero_point"].dtype == np.uint8
    }  # fmt: skip


def difference(
    name: str, small: bytes, content: bytes, shape: tuple[int, ...], vocabulary: int | None = None
) -> str | None:
    """What is wrong with a smaller form, in a sentence; None if its outputs agree within the tolerance."""
    x = export.probe(_BATCH, shape, vocabulary)
    wanted, given = (export.open_onnx(file).run(["logits"], {"input": x})[0] for file in (content, small))
    if given.shape != wanted.shape or not np.isfinite(given).all():
        return "its outputs are not numbers of the same shape."
    off = float(np.abs(given - wanted).mean() / max(1e-6, float(np.abs(wanted).max())))
    return None if off <= TOLERANCES[name] else f"its outputs differ by {off:.1%} of the largest one."


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
    """The nodes in topological order, as ONNX requires; converters append theirs at the end."""
    known = {"", *(tensor.name for tensor in (*graph.input, *graph.initializer))}
    rest, ordered = list(graph.node), []
    while rest:
        ready = [node for node in rest if known.issuperset(node.input)]
        if not ready:
            raise ValueError("the graph has a cycle")
        ordered += ready
        known.update(name for node in ready for name in node.output)
        rest = [node for node in rest if not known.issuperset(node.output)]
    return ordered


class _Public:
    """Batches of public records, with the interface of the quantiser's `CalibrationDataReader`."""

    def __init__(self, public: Floats) -> None:
        self._batches = iter([public[i : i + _BATCH] for i in range(0, len(public), _BATCH)])

    def get_next(self) -> dict[str, Floats] | None:
        """The next batch, or None."""
        batch = next(self._batches, None)
        return None if batch is None else {"input": batch}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the converters' logs and warnings."""
    level = logging.root.level
    logging.root.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.root.setLevel(level)


# How much smaller and faster.

IMAGES, ROUNDS = 100, 7
CALIBRATE = 512  # public records, at most
COMPARED = 5000  # public records on which the files' predictions are compared, at most
ONNX = "model.onnx"
_BLOCK = 256
_COUNTED = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


class Compressed(NamedTuple):
    """The card's report, the smaller files by name, and, for the dossier, their results on test records."""

    report: Compression
    files: Mapping[str, bytes]
    on_test: tuple[OnTest, ...]


def compress(release: Release, split: Split, asked: str = "auto") -> Compressed | None:
    """The report for a release of a student; None for any other release.

    Also where a student predicts a number: files are compared by the classes that they name.

    Args:
        release: What leaves.
        split: The records.
        asked: The teacher that the config names, which may be a folder.
    """
    name, numbers = release.plan.details.get("teacher"), split.facts.task == "regression"
    if release.plan.channel != "student" or release.artefact.parameters is None or not isinstance(name, str) or numbers:
        return None
    student = release.network
    found = asked if nets.public_name(asked) == name else name
    make = nets.create if nets.is_foreign(found) else _teacher
    return report(make(found, student.input_shape, len(student.classes), 0), name, student, split.public, split.test)


_teacher = lru_cache(maxsize=4)(nets.create)  # the same network each time, so its export is cached


def report(teacher: nn.Module, name: str, student: NetworkArtefact, public: Records, test: Records) -> Compressed:
    """Compare a student with a teacher's architecture, and make its smaller files.

    Args:
        teacher: A network of the teacher's architecture with any weights, which have no effect here; never the
            trained teacher.
        name: The teacher's name.
        student: The network that leaves.
        public: Public records, which calibrate the 8-bit ranges.
        test: Records on which every file is evaluated for the dossier; no figure on the card depends on them.
    """
    big = NetworkArtefact(teacher.cpu().eval(), name, student.input_shape, student.classes)
    content = export.to_onnx(student)
    shape, vocabulary = student.input_shape, domain.vocabulary_of(student.net)
    forms = smaller_forms(content, shape, _inputs(public.take(np.arange(len(public))[:CALIBRATE])), vocabulary)
    files = {ONNX: content, **forms.files}
    sessions = {file: export.open_onnx(made) for file, made in files.items()}
    try:
        exported, not_made = export.to_onnx(big), forms.not_made
    except NetError as error:
        exported, not_made = None, (*forms.not_made, f"The teacher's file and time: {error.found}.")
    timed = [export.open_onnx(exported), *sessions.values()] if exported else list(sessions.values())
    spent = milliseconds(timed, shape, vocabulary=vocabulary)
    own = spent[-len(sessions) :]
    found = Compression(
        teacher=_cost(big, exported, spent[0] if exported else None),
        student=_cost(student, content, own[0]),
        images=IMAGES,
        rounds=ROUNDS,
        forms=_forms(files, sessions, own, public.take(np.arange(len(public))[:COMPARED])),
        not_made=not_made,
    )
    return Compressed(found, forms.files, _on_test(sessions, test))


def multiply_adds(net: nn.Module, shape: tuple[int, ...]) -> int:
    """Multiply-adds of convolutions and dense layers on one record."""
    total = 0

    def count(layer: nn.Module, _: Any, output: torch.Tensor) -> None:
        nonlocal total
        weight = layer.weight
        assert isinstance(weight, torch.Tensor)
        outputs = weight.shape[1 if is_conv1d(layer) else 0]
        total += output.numel() // outputs * weight.numel()  # each output uses one row of weights

    hooks = [
        layer.register_forward_hook(count) for layer in net.modules() if isinstance(layer, _COUNTED) or is_conv1d(layer)
    ]
    try:
        with torch.no_grad():
            net(torch.zeros(1, *shape, device=next(net.parameters()).device))
    finally:
        for hook in hooks:
            hook.remove()
    return total


def milliseconds(
    sessions: Sequence[Any], shape: tuple[int, ...], rounds: int = ROUNDS, vocabulary: int | None = None
) -> list[float]:
    """The median time of each network for 100 inputs, one at a time; all networks take turns in every round.

    Input and output buffers are bound once and reused, as a runtime on a phone would do.
    """
    bound = [_bound(session, export.probe(1, shape, vocabulary)) for session in sessions]
    taken: list[list[float]] = [[] for _ in sessions]
    for _ in range(rounds + 1):
        for session, places, times in zip(sessions, bound, taken, strict=True):
            start = time.thread_time()
            for _ in range(IMAGES):
                session.run_with_iobinding(places)
            times.append(1000 * (time.thread_time() - start))
    return [statistics.median(times[1:]) for times in taken]  # the first round is a warm-up


def _bound(session: Any, x: Floats) -> Any:
    """A session's input and output, bound to fixed buffers."""
    places = session.io_binding()
    places.bind_cpu_input("input", x)
    places.bind_output("logits")
    return places


def _cost(artefact: NetworkArtefact, content: bytes | None, spent: float | None) -> Cost:
    return Cost(
        name=artefact.net_name,
        parameters=sum(p.numel() for p in artefact.net.parameters()),
        multiply_adds=multiply_adds(artefact.net, artefact.input_shape),
        safetensors_bytes=len(export.to_safetensors(artefact)),
        onnx_bytes=len(content) if content is not None else None,
        milliseconds=_rounded(spent),
    )


def _forms(
    files: Mapping[str, bytes], sessions: Mapping[str, Any], spent: Sequence[float], public: Records
) -> tuple[OnnxForm, ...]:
    x = _inputs(public)
    says = {file: _classes(session, x) for file, session in sessions.items()}
    return tuple(
        OnnxForm(
            file=file,
            bytes=len(content),
            milliseconds=_rounded(took),
            agrees=int((says[file] == says[ONNX]).sum()),
            records=len(public),
        )
        for (file, content), took in zip(files.items(), spent, strict=True)
    )


def _on_test(sessions: Mapping[str, Any], test: Records) -> tuple[OnTest, ...]:
    """The results of every file on test records; these stay inside."""
    x = _inputs(test)
    says = {file: _classes(session, x) for file, session in sessions.items()}
    return tuple(
        OnTest(
            file=file,
            correct=int((own == test.y).sum()),
            agrees=int((own == says[ONNX]).sum()),
            records=len(test),
        )
        for file, own in says.items()
    )


def _classes(session: Any, x: Floats) -> NDArray[np.int64]:
    rows = [session.run(["logits"], {"input": x[i : i + _BLOCK]})[0].argmax(1) for i in range(0, len(x), _BLOCK)]
    return np.concatenate([np.empty(0, np.int64), *rows])


def _inputs(records: Records) -> Floats:
    return to_input(torch.from_numpy(np.ascontiguousarray(records.x))).numpy()


def _rounded(spent: float | None) -> Any:
    return None if spent is None else float(f"{spent:.3g}")
