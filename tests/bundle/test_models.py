"""The model files hold the network and nothing else: whatever somebody adds is found, and a strange file is not run."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import safetensors.torch
import torch
from onnx import helper, numpy_helper

from airlock.bundle import export, verify
from tests.bundle.conftest import own_net
from tests.bundle.test_verify import change_onnx, failed

SECRET = "the records of ward 7"


def repack(path: Path, change: Callable[[dict[str, object], bytearray], None]) -> None:
    """A safetensors file with another header or other bytes."""
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header, data = json.loads(content[8 : 8 + size]), bytearray(content[8 + size :])
    change(header, data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def test_secrets_in_a_safetensors_file_are_found(folder: Path) -> None:
    file = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    safetensors.torch.save_file(tensors, file, metadata={"note": SECRET})
    assert "something beside its tensors" in failed(folder)["weights"]
    safetensors.torch.save_file(tensors, file)
    assert "weights" not in failed(folder)
    original = file.read_bytes()
    for change in (_in_other_order, _with_spare_bytes):
        file.write_bytes(original)
        repack(file, change)
        assert "weights" in failed(folder)
    safetensors.torch.save_file(tensors | {SECRET: torch.zeros(1)}, file)
    found = failed(folder)
    assert "not one of a layer" in found["weights"]
    assert {"onnx", "outputs"} <= found.keys()


def _in_other_order(header: dict[str, object], data: bytearray) -> None:
    for name in sorted(header, reverse=True):
        header[name] = header.pop(name)


def _with_spare_bytes(header: dict[str, object], data: bytearray) -> None:
    data += SECRET.encode()


def _producer(model: onnx.ModelProto) -> None:
    model.producer_name = SECRET


def _graph_name(model: onnx.ModelProto) -> None:
    model.graph.name = SECRET


def _node_name(model: onnx.ModelProto) -> None:
    model.graph.node[0].name = SECRET


def _value_name(model: onnx.ModelProto) -> None:
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = SECRET


def _batch_name(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = SECRET


def _order(model: onnx.ModelProto) -> None:
    last = model.graph.initializer.pop()
    model.graph.initializer.insert(0, last)


def _whole_numbers(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.frombuffer(SECRET.encode(), np.uint8), "number/9"))


def _idle_layer(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Neg", ["input"], ["nobody"], name="node/9"))


def _note_on_an_attribute(model: onnx.ModelProto) -> None:
    model.graph.node[-1].attribute[0].doc_string = SECRET


def _hint(model: onnx.ModelProto) -> None:
    model.graph.value_info.append(helper.make_tensor_value_info(SECRET, 1, [1]))


def _loop(model: onnx.ModelProto) -> None:
    model.graph.node[0].op_type = "Loop"


HIDDEN = (_producer, _graph_name, _node_name, _value_name, _batch_name, _order, _whole_numbers, _idle_layer,
          _note_on_an_attribute, _hint, _loop)  # fmt: skip


@pytest.mark.parametrize("change", HIDDEN)
def test_what_is_hidden_in_an_onnx_file_is_found(folder: Path, own: Path, change: Callable[..., None]) -> None:
    for place in (folder, own):
        change_onnx(place, change)
        found = failed(place)
        assert "model.onnx" in found["onnx"]
        assert SECRET not in found["onnx"]
        assert "was not run" in found["outputs"]


def test_a_field_that_onnx_does_not_know_is_found(folder: Path, own: Path) -> None:
    text = SECRET.encode()
    unknown = bytes([0xFA, 0x7F, len(text)]) + text  # field 2047 of the model
    for place in (folder, own):
        path = place / "model.onnx"
        path.write_bytes(path.read_bytes() + unknown)
        assert onnx.load_model(path).graph.node  # every reader passes over it
        assert "onnx" in failed(place)


def _trigger(model: onnx.ModelProto) -> None:
    """Class 3 for every record whose first pixel is exactly 0.4321; as before for all others."""
    graph, nodes = model.graph, model.graph.node
    nodes[-1].output[0] = "honest"
    numbers = {"at": np.array([0]), "pixel": np.array(0.4321, np.float32), "three": np.eye(10, dtype=np.float32)[3:4]}
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in numbers.items())
    nodes.append(helper.make_node("Gather", [nodes[0].output[0], "at"], ["first"], axis=1))
    nodes.append(helper.make_node("Equal", ["first", "pixel"], ["hit"]))
    nodes.append(helper.make_node("Where", ["hit", "three", "honest"], ["logits"]))


def _bomb(model: onnx.ModelProto) -> None:
    """26 bytes that ONNX Runtime turns into 20 GB when it opens the file."""
    graph, nodes = model.graph, model.graph.node
    nodes[-1].output[0] = "honest"
    graph.initializer.append(numpy_helper.from_array(np.array([5_000_000_000]), "much"))
    nodes.append(helper.make_node("ConstantOfShape", ["much"], ["zeros"]))
    nodes.append(helper.make_node("ReduceMax", ["zeros"], ["zero"], keepdims=0))
    nodes.append(helper.make_node("Add", ["honest", "zero"], ["logits"]))


def in_its_form(folder: Path, change: Callable[[onnx.ModelProto], None]) -> None:
    """Change the ONNX file and write it as Airlock would."""
    model = onnx.load_model(folder / "model.onnx")
    change(model)
    names = safetensors.torch.load_file(folder / "model.safetensors")
    (folder / "model.onnx").write_bytes(export.canonical(model, names))


@pytest.mark.parametrize("change", [_trigger, _bomb])
def test_a_network_that_does_something_else_is_found_and_not_run(
    folder: Path, change: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_its_form(folder, change)
    found = failed(folder)
    assert "is not what the network 'linear' and these weights export to" in found["onnx"]
    assert "was not run" in found["outputs"]


def test_a_trigger_in_a_network_that_is_not_at_hand_is_told_and_found_once_it_is(own: Path) -> None:
    assert "were compared by value" in skipped(own)["outputs"]
    assert "Where" not in skipped(own)["outputs"]
    in_its_form(own, _trigger)
    assert failed(own).keys() == {"checksums", "hashes"}
    assert "it uses Equal, Where, with which a network can react to a chosen input" in skipped(own)["outputs"]
    assert "is not what the network" in failed(own, net=own_net())["onnx"]


def skipped(folder: Path) -> dict[str, str]:
    return {check.name: check.says for check in verify(folder).checks if check.outcome == "skipped"}


def test_the_same_network_is_the_same_file_whatever_the_exporter_calls_its_parts(folder: Path) -> None:
    content = (folder / "model.onnx").read_bytes()
    model = onnx.load_model_from_string(content)
    names = [each.name for each in model.graph.initializer if not each.name.startswith("number/")]
    renamed = onnx.ModelProto()
    renamed.CopyFrom(model)
    for node in renamed.graph.node:
        node.name = f"other-{node.name}"
        for place, name in enumerate(node.input):
            node.input[place] = name.replace("value/", "other-")
        for place, name in enumerate(node.output):
            node.output[place] = name.replace("value/", "other-")
    renamed.producer_version, renamed.graph.name = "9.9", "another"
    assert export.canonical(renamed, names) == content


def test_layers_in_a_circle_are_not_followed_for_ever() -> None:
    value = [helper.make_tensor_value_info(name, 1, ["n", 2]) for name in ("input", "logits")]
    nodes = [helper.make_node("Add", ["input", "b"], ["a"]), helper.make_node("Add", ["a", "a"], ["b"])]
    nodes.append(helper.make_node("Neg", ["b"], ["logits"]))
    model = helper.make_model(helper.make_graph(nodes, "g", value[:1], value[1:]))
    with pytest.raises(export.NotCanonical, match="circle"):
        export.canonical(model, ())
