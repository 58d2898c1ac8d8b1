"""Hints: layers by name, what they give, and adapters that follow from the shapes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from airlock.errors import NetError
from airlock.nets import build
from airlock.nets.hints import Guided, guided, output_at, shape_at

SHAPE = (1, 8, 8)


class Own(nn.Module):
    """A network that is no `Sequential`, with a layer in a layer, one that is used twice and one that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 6))
        self.again, self.idle, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.pair = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        inner = self.again(self.again(self.body(x)))
        self.pair((inner, inner))
        return self.head(torch.relu(inner))  # type: ignore[no-any-return]


def test_a_layers_output_is_what_the_network_computes_there_and_the_rest_is_not_computed() -> None:
    net, x = Own(), torch.rand(4, 64)
    seen: list[str] = []
    net.head.register_forward_hook(lambda *_: seen.append("head"))
    assert torch.equal(output_at(net, "body.1", x), net.body(x))
    assert torch.equal(output_at(net, "again", x), net.again(net.body(x)))  # the first time
    assert not seen
    assert torch.equal(net(x), net(x))  # the hook is gone
    assert seen


def test_gradients_reach_the_layers_below_and_none_above() -> None:
    student, teacher = build("rona-digits-student", SHAPE, 10), build("rona-digits-teacher", SHAPE, 10)
    net = guided(student, "leaky6", teacher, "pool1", SHAPE, seed=0)
    net(torch.rand(3, *SHAPE)).square().sum().backward()
    with_gradient = {name for name, p in student.named_parameters() if p.grad is not None}
    assert with_gradient == {f"conv{i}.{part}" for i in range(1, 7) for part in ("weight", "bias")}
    assert net.adapter.weight.grad is not None


def test_adapters_follow_from_the_shapes() -> None:
    student, teacher = build("rona-digits-student", SHAPE, 10), build("rona-digits-teacher", SHAPE, 10)
    maps = guided(student, "leaky6", teacher, "pool1", SHAPE, seed=0)
    assert isinstance(maps.adapter, nn.Conv2d)
    assert maps.adapter.weight.shape == (16, 12, 1, 1)
    assert maps(torch.rand(2, *SHAPE)).shape == (2, 16, 4, 4)
    vectors = guided(Own(), "body.1", teacher, "dense", SHAPE, seed=0)
    assert isinstance(vectors.adapter, nn.Linear)
    assert vectors(torch.rand(2, *SHAPE)).shape == (2, 10)
    again = guided(student, "leaky6", teacher, "pool1", SHAPE, seed=0)
    assert torch.equal(again.adapter.weight, maps.adapter.weight)  # type: ignore[arg-type]


def test_the_papers_adapter_goes_from_64_to_128_channels() -> None:
    student, teacher = (build(f"rona-cifar-{size}", (3, 32, 32), 10) for size in ("s1", "teacher"))
    assert guided(student, "leaky6", teacher, "pool1", (3, 32, 32), seed=0).adapter.weight.shape == (128, 64, 1, 1)


def test_layers_that_do_not_fit_are_refused_with_their_shapes() -> None:
    student, teacher = build("rona-digits-student", SHAPE, 10), build("rona-digits-teacher", SHAPE, 10)
    with pytest.raises(NetError, match="12 × 8 × 8|6 × 8 × 8") as error:
        guided(student, "conv3", teacher, "pool1", SHAPE, seed=0)
    assert "16 × 4 × 4" in str(error.value)
    assert "same number of poolings" in str(error.value)
    with pytest.raises(NetError, match="same kind"):
        guided(student, "dense", teacher, "pool1", SHAPE, seed=0)


@pytest.mark.parametrize(
    ("layer", "word"),
    [
        ("pool9", "Did you mean 'pool1'.*|conv1, leaky1"),
        ("zzzzz", "conv1, leaky1, conv2"),
        ("", "conv1"),
    ],
)
def test_a_layer_that_does_not_exist_is_refused_with_those_that_do(layer: str, word: str) -> None:
    with pytest.raises(NetError, match=word) as error:
        shape_at(build("rona-digits-teacher", SHAPE, 10), layer, SHAPE, "teacher")
    assert "layer of the teacher" in str(error.value)


def test_layers_that_give_nothing_to_learn_from_are_refused() -> None:
    with pytest.raises(NetError, match="never reaches"):
        shape_at(Own(), "idle", (64,), "student")
    with pytest.raises(NetError, match="one row per record"):
        shape_at(Own(), "pair", (64,), "student")
    with pytest.raises(NetError, match="layer of the student"):
        Guided(Own(), "none", nn.Identity())


def test_looking_at_shapes_leaves_the_network_in_its_mode() -> None:
    net = build("rona-mnist-teacher", (1, 28, 28), 10).train()
    assert shape_at(net, "dropout1", (1, 28, 28), "teacher") == (32, 14, 14)
    assert net.training
