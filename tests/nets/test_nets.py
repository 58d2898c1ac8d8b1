"""Built-in networks, the user's own, and the refusals."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from airlock import nets
from airlock.errors import NetError
from airlock.nets import build, check, create, default_name, names
from airlock.nets.compact import FAMILY
from airlock.nets.registry import OTHERS, seed_torch
from airlock.nets.wide_resnet import LAYOUTS as WIDE
from tests.conftest import Plug

SHAPES = {
    "mnist-net": (1, 28, 28),
    "cifar-net": (3, 32, 32),
    "digits-net": (1, 8, 8),
    "tanh-net": (1, 28, 28),
    "mlp": (446,),
    "linear": (108,),
    "scattering-linear": (1, 16, 16),
    "pixels-linear": (3, 5, 5),
    **{name: (3, 12, 12) if "-teacher" in name else (1, 8, 8) for name in FAMILY},
    **dict.fromkeys(WIDE, (1, 9, 8)),
}


def count(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def test_the_papers_nets_have_the_papers_sizes() -> None:
    assert count(build("mnist-net", (1, 28, 28), 10)) == 1_199_882
    assert count(build("cifar-net", (3, 32, 32), 10)) == 1_250_858
    assert count(build("tanh-net", (1, 28, 28), 10)) == 26_010
    assert count(build("wrn-16-4", (3, 32, 32), 10)) == 2_748_890


@pytest.mark.parametrize("name", names())
def test_every_built_in_net_can_be_trained_privately(name: str) -> None:
    net = build(name, SHAPES[name], 7)
    check(net, name, SHAPES[name], 7)
    assert net.eval()(torch.rand(5, *SHAPES[name])).shape == (5, 7)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((1, 8, 8), "digits-net"), ((1, 28, 28), "tanh-net"), ((3, 32, 32), "tanh-net"), ((446,), "mlp"), ((2, 3), "mlp")],
)
def test_the_default_follows_the_shape(shape: tuple[int, ...], expected: str) -> None:
    assert default_name(shape) == expected
    check(build(expected, shape, 2), expected, shape, 2)


def test_unknown_names_and_wrong_shapes_are_refused() -> None:
    with pytest.raises(NetError, match="Did you mean 'mnist-net'"):
        build("mnist-nett", (1, 28, 28), 10)
    with pytest.raises(NetError, match="1 × 28 × 28"):
        build("mnist-net", (3, 32, 32), 10)


def test_the_same_seed_gives_the_same_weights() -> None:
    a, b, c = (create("mlp", (4,), 2, seed) for seed in (1, 1, 2))
    assert torch.equal(a[1].weight, b[1].weight)  # type: ignore[index]
    assert not torch.equal(a[1].weight, c[1].weight)  # type: ignore[index]


def test_the_users_own_net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hospital_nets.py").write_text(
        "from torch import nn\n"
        "def small(shape, classes):\n    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], classes))\n"
        "def fixed():\n    return nn.Linear(4, 3)\n"
        "def wrong():\n    return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    check(create("hospital_nets:small", (5,), 2, 0), "x", (5,), 2)
    check(create("hospital_nets:fixed", (4,), 3, 0), "x", (4,), 3)
    with pytest.raises(NetError, match="3 logits|2 logits"):
        check(create("hospital_nets:fixed", (4,), 3, 0), "hospital_nets:fixed", (4,), 2)
    with pytest.raises(NetError, match="Module"):
        create("hospital_nets:wrong", (4,), 2, 0)
    for missing in ("hospital_nets:none", "no_such_module:f"):
        with pytest.raises(NetError, match="a function, a class or a network at"):
            create(missing, (4,), 2, 0)


class MeanOverBatch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(x - x.mean(0))
        return y


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += x.detach().sum(0)
        y: Tensor = self.head(x)
        return y


class FrozenCounter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head, self.seen = nn.Linear(4, 2), nn.Parameter(torch.zeros(4), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen.data += x.detach().sum(0)
        y: Tensor = self.head(x)
        return y


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(2, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.cells(x.reshape(-1, 2, 2))[0][:, -1])
        return y


def test_a_recurrent_network_is_taken() -> None:
    check(Recurrent(), "mine", (4,), 2)


REFUSED = {
    "BatchNorm": (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), "'1'.*mixes records.*GroupNorm"),
    "running statistics": (
        nn.Sequential(
            nn.Unflatten(1, (1, 4)), nn.InstanceNorm1d(1, track_running_stats=True), nn.Flatten(), nn.Linear(4, 2)
        ),
        "'1'.*track_running_stats",
    ),
    "lazy": (nn.Sequential(nn.LazyLinear(2)), "lazy layer '0'"),
    "frozen": (nn.Linear(4, 2).requires_grad_(False), "trainable"),
    "too many outputs": (nn.Linear(4, 3), "2 logits.*last layer 2 outputs"),
    "wrong input": (nn.Linear(5, 2), "accept records of shape 4"),
    "not a tensor": (nn.LSTMCell(4, 2), "a tensor of logits"),
    "mixes by hand": (MeanOverBatch(), "changes with the other records"),
    "keeps what it saw": (Counter(), "'seen', which a forward pass writes"),
    "keeps it in a frozen parameter": (FrozenCounter(), "'seen', which a forward pass writes"),
}


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_trained_per_record_is_refused(case: str) -> None:
    net, words = REFUSED[case]
    with pytest.raises(NetError, match=words):
        check(net, "mine", (4,), 2)


def test_weights_that_are_not_finite_are_refused() -> None:
    net = nn.Linear(4, 2)
    nn.init.constant_(net.weight, float("nan"))
    with pytest.raises(NetError, match="NaN or infinity in 'weight'"):
        check(net, "mine", (4,), 2)


def test_the_generators_are_seeded_as_torch_does_and_no_stack_is_kept() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        wanted = torch.rand(5)
        kept = [repr(torch.xpu._queued_calls), repr(torch.cuda._lazy_seed_tracker.get_calls())]
        seed_torch(8)
        seed_torch(7)
        assert torch.equal(torch.rand(5), wanted)
        if not torch.cuda.is_available():
            assert kept == [repr(torch.xpu._queued_calls), repr(torch.cuda._lazy_seed_tracker.get_calls())]


# Networks of other packages.


def wide(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 64), nn.Tanh(), nn.Linear(64, classes))


def test_a_network_of_another_package_is_known_by_its_name(plug: Plug) -> None:
    plug(OTHERS, "wide", wide)
    first, same, other = (nets.create("wide", (1, 8, 8), 10, seed) for seed in (0, 0, 1))
    assert first[1].weight.equal(same[1].weight)
    assert not first[1].weight.equal(other[1].weight)
    assert "wide" in nets.others()
    assert nets.is_foreign("wide")
    assert nets.is_foreign("a.b:c")
    assert not nets.is_foreign("mlp")


def test_what_is_built_in_is_all_that_a_bundle_can_name(plug: Plug) -> None:
    plug(OTHERS, "wide", wide)
    assert "wide" not in nets.names()
    with pytest.raises(NetError, match="wide"):
        nets.build("wide", (1, 8, 8), 10)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda shape, classes: 3, "a torch.nn.Module from 'wide', found int"),
        (lambda shape, classes: 1 / 0, "net 'wide' of other-package 1.0 to give a network .* found an error: Zero"),
    ],
)
def test_one_that_fails_is_named(plug: Plug, function: Callable[..., nn.Module], said: str) -> None:
    plug(OTHERS, "wide", function)
    with pytest.raises(NetError, match=said):
        nets.create("wide", (1, 8, 8), 10, 0)


@pytest.mark.parametrize("name", ["mlp", "auto", "scattering-white-linear"])
def test_own_names_cannot_be_taken(name: str) -> None:
    with pytest.raises(NetError, match="no other net has"):
        nets.register(name)(wide)


def test_an_unknown_network_may_be_in_a_package_that_is_not_installed() -> None:
    with pytest.raises(NetError, match="Install the package that brings it"):
        nets.create("nobody-has-this", (1, 8, 8), 10, 0)
