"""Both model files are the network, and nothing of the machine it was made on."""

from __future__ import annotations

import inspect

import numpy as np
import onnx
import onnxruntime
import pytest
import safetensors.torch
import torch
from torch import nn

from airlock.bundle import Bundle, export
from airlock.errors import NetError
from airlock.methods.contract import NetworkArtefact
from airlock.nets import build
from tests import exporting


def artefact(net: nn.Module, shape: tuple[int, ...] = (1, 8, 8)) -> NetworkArtefact:
    return NetworkArtefact(net.eval().requires_grad_(False), "tests:net", shape, tuple("0123456789"))


class Shared(nn.Module):
    """Two layers that share one weight, and normalisation layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.ReLU(), nn.Flatten())
        self.middle = nn.Linear(512, 512)
        self.again = nn.Linear(512, 512)
        self.again.weight = self.middle.weight
        self.last = nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.again(torch.tanh(self.middle(self.first(x)))))


class Idle(nn.Module):
    """Has a layer that it does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.idle = nn.Linear(64, 10), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x.flatten(1))


def test_safetensors_holds_every_tensor(original: Bundle, release):
    tensors = safetensors.torch.load_file(original.folder / "model.safetensors")
    state = release.network.net.state_dict()
    assert tensors.keys() == state.keys()
    assert all(torch.equal(tensors[name], state[name]) for name in state)


@pytest.mark.parametrize(("name", "shape"), [("digits-net", (1, 8, 8)), ("mlp", (20,)), ("linear", (20,))])
def test_a_graph_that_tests_share_is_the_one_that_would_be_exported(
    name: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
):
    calls = []
    real = inspect.unwrap(torch.onnx.export)

    def counted(*args, **options):
        calls.append(args)
        return real(*args, **options)

    torch.manual_seed(1)
    first, second, other = build(name, shape, 10), build(name, shape, 10), build(name, shape, 9)
    monkeypatch.setattr(torch.onnx, "export", exporting.once(counted))
    remembered = [export.to_onnx(artefact(net, shape)) for net in (first, second)]
    assert len(calls) == 1
    monkeypatch.setattr(torch.onnx, "export", counted)
    export._exported.clear()
    assert [export.to_onnx(artefact(net, shape)) for net in (first, second)] == remembered
    keys = [exporting.architecture(net, (torch.zeros(2, *shape),), {}) for net in (first, second, other.eval())]
    assert keys[0] == keys[1] != keys[2]
    assert exporting.architecture(first.train(), (torch.zeros(2, *shape),), {}) != keys[0]


def test_what_cannot_be_told_apart_by_plain_attributes_shares_no_graph():
    scaled = build("mlp", (20,), 10)
    scaled.scale = torch.ones(3)
    for net in (Idle(), Shared(), scaled):
        assert exporting.architecture(net, (), {}) is None


@pytest.mark.parametrize(("name", "shape"), [("digits-net", (1, 8, 8)), ("mlp", (20,))])
def test_onnx_agrees_with_torch_at_any_batch_size(name: str, shape: tuple[int, ...]):
    torch.manual_seed(1)
    net = build(name, shape, 10)
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.1)
    session = onnxruntime.InferenceSession(export.to_onnx(artefact(net, shape)))
    assert [node.name for node in session.get_inputs()] == ["input"]
    assert [node.name for node in session.get_outputs()] == ["logits"]
    for batch in (1, 2, 7):
        x = np.random.default_rng(0).random((batch, *shape), dtype=np.float32)
        given = session.run(["logits"], {"input": x})[0]
        np.testing.assert_allclose(given, net(torch.from_numpy(x)).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_shared_weights_and_normalisation_are_exported(capfd: pytest.CaptureFixture[str]):
    content = export.to_onnx(artefact(Shared()))
    assert b".py" not in content
    assert capfd.readouterr() == ("", "")
    model = onnx.load_model_from_string(content)
    assert not any(node.metadata_props or node.doc_string for node in model.graph.node)
    assert safetensors.torch.load(export.to_safetensors(artefact(Shared()))).keys() == Shared().state_dict().keys()


def test_unused_layer_is_refused():
    with pytest.raises(NetError, match=r"idle\.weight in model\.safetensors is not the same"):
        export.to_onnx(artefact(Idle()))


def test_branch_on_values_is_refused():
    class Branch(Idle):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x.flatten(1)) if x.sum() > 0 else self.idle(x.flatten(1))

    with pytest.raises(NetError, match="torch.onnx does not take"):
        export.to_onnx(artefact(Branch()))


def test_a_reshape_asks_for_no_size_that_follows_from_the_others() -> None:
    net = build("rona-digits-student", (1, 8, 8), 10).eval()
    model = onnx.load_model_from_string(
        export.to_onnx(NetworkArtefact(net, "rona-digits-student", (1, 8, 8), tuple("0123456789")))
    )
    assert not {"Shape", "Concat"} & {node.op_type for node in model.graph.node}


def test_a_network_is_exported_once_until_its_tensors_change(monkeypatch: pytest.MonkeyPatch) -> None:
    made = iter((b"first", b"second"))
    monkeypatch.setattr(export, "_to_onnx", lambda artefact: next(made))
    own = artefact(nn.Linear(3, 2), (3,))
    assert export.to_onnx(own) == export.to_onnx(own) == b"first"
    with torch.no_grad():
        own.net.get_parameter("bias").add_(1)
    assert export.to_onnx(own) == b"second"
