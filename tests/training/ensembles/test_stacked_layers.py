"""Stand-ins for layers of many networks: which layers they take, and what they do outside of vmap.

The kernels themselves are tested on a GPU (tests/test_gpu.py).
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from airlock.nets import build
from airlock.training.ensembles import stacked_layers
from airlock.training.ensembles.stacked_layers import Conv, ReluPool, fuse


@pytest.mark.parametrize(("name", "shape"), [("mnist-net", (1, 28, 28)), ("cifar-net", (3, 32, 32))])
def test_a_fused_network_gives_what_it_gave(name: str, shape: tuple[int, ...]) -> None:
    net = build(name, shape, 10).eval()
    fused = copy.deepcopy(net)
    assert fuse(fused)
    x = torch.randn(3, *shape)
    assert torch.allclose(fused(x), net(x), atol=1e-6)
    assert [n for n, _ in fused.named_parameters()] == [n for n, _ in net.named_parameters()]


def test_relu_and_pool_go_along_with_a_convolution() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.ReLU())
    fuse(net)
    assert isinstance(net[0], Conv)
    assert net[0].relu
    assert isinstance(net[2], Conv)
    assert not net[2].relu
    assert [type(layer) for layer in net] == [Conv, nn.Identity, Conv, nn.Identity, ReluPool, nn.ReLU]


def test_outside_of_a_sequential_nothing_is_joined() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.act, self.pool = nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2)

    net = Net()
    assert fuse(net)
    assert isinstance(net.conv, Conv)
    assert not net.conv.relu
    assert type(net.act) is nn.ReLU
    assert type(net.pool) is nn.MaxPool2d


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(2, 2, 3, stride=2),
        nn.Conv2d(2, 2, 3, dilation=2),
        nn.Conv2d(2, 2, 3, groups=2),
        nn.Conv2d(2, 2, 3, padding="same"),
        nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(2, 2, 1, padding=1),
        nn.Conv2d(2, 2, 3).double(),
        nn.Conv1d(2, 2, 3),
        nn.Linear(2, 2),
    ],
)
def test_other_layers_are_left_alone(layer: nn.Module) -> None:
    net = nn.Sequential(layer, nn.ReLU())
    assert not fuse(net)
    assert net[0] is layer
    assert type(net[1]) is nn.ReLU


@pytest.mark.parametrize(
    "pool", [nn.MaxPool2d(3), nn.MaxPool2d(2, stride=1), nn.MaxPool2d(2, padding=1), nn.MaxPool2d(2, ceil_mode=True)]
)
def test_other_pools_are_left_alone(pool: nn.Module) -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), pool)
    fuse(net)
    assert net[2] is pool
    assert isinstance(net[0], Conv)
    assert net[0].relu


def test_a_cpu_has_no_kernels() -> None:
    assert not stacked_layers.available(torch.device("cpu"))
