"""Alignment: what models compute stays the same, an exchange is found exactly, and averages of models become models."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from torch import Tensor, nn

from airlock.data import Records
from airlock.errors import NetError, TrainingError
from airlock.nets import create
from airlock.training import Ensemble, Recipe, Resident, Run, align, train_together
from airlock.training.ensembles.align import Units, _assign, closeness, exchange, find_units
from airlock.training.ensembles.stacked import tensors
from airlock.training.gradients import Named

NETS: dict[str, tuple[int, ...]] = {
    "mlp": (1, 8, 8),
    "linear": (1, 8, 8),
    "digits-net": (1, 8, 8),
    "tanh-net": (1, 28, 28),
    "mnist-net": (1, 28, 28),
    "cifar-net": (3, 32, 32),
}


def moved(net: nn.Module, units: list[Units], seed: int, count: int = 1) -> tuple[Named, list[list[list[int]]]]:
    """Copies of a network, stacked, with their units exchanged as far as they may be, and the orders."""
    rng = np.random.default_rng(seed)
    values = {name: value[None].repeat(count, *[1] * value.dim()) for name, value in tensors(net).items()}
    orders = []
    for own in units:
        order = np.stack([shuffled(own.size, own.blocks, rng) for _ in range(count)])
        signs = rng.choice([-1.0, 1.0], order.shape).astype(np.float32) if own.signed else None
        exchange(values, own, order, signs)
        orders.append(order.tolist())
    return values, orders


def shuffled(size: int, blocks: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """A random order that keeps blocks together."""
    if not blocks:
        return rng.permutation(size)
    inner = [shuffled(blocks[0], blocks[1:], rng) + block * blocks[0] for block in range(size // blocks[0])]
    return np.concatenate([inner[i] for i in rng.permutation(len(inner))])


def outputs(net: nn.Module, values: Named, shape: tuple[int, ...]) -> Tensor:
    """Logits of every model on random records, in double precision, so that only exchanges could change them."""
    ensemble, x = Ensemble(net, values), torch.randn(5, *shape, generator=torch.Generator().manual_seed(1)).double()
    with torch.no_grad():
        return torch.stack([ensemble.model(i).double()(x) for i in range(len(ensemble))])


def jostled(net: nn.Module) -> nn.Module:
    """No zeros or equal values that would hide a wrong exchange."""
    chance = torch.Generator().manual_seed(3)
    for value in tensors(net).values():
        if value.is_floating_point():
            value.add_(torch.rand(value.shape, generator=chance) * 0.1)
    return net.eval()


@st.composite
def random_nets(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, ...]]:
    """Convolutions with norms, pools and activations in between, then dense layers."""
    channels, side, layers = draw(st.integers(1, 3)), 8, []
    shape, width = (channels, side, side), channels
    for _ in range(draw(st.integers(0, 2))):
        found = draw(st.sampled_from([4, 6, 8]))
        layers.append(nn.Conv2d(width, found, 3, padding=1, bias=draw(st.booleans())))
        layers.append(draw(st.sampled_from([nn.Identity(), nn.BatchNorm2d(found), nn.GroupNorm(2, found)])))
        layers.append(draw(st.sampled_from([nn.ReLU(), nn.Tanh(), nn.Sequential(nn.Dropout(0.3), nn.GELU())])))
        layers.append(draw(st.sampled_from([nn.Identity(), nn.AvgPool2d(3, 1, 1), nn.MaxPool2d(3, 1, 1)])))
        width = found
    layers.append(nn.Flatten())
    width *= side * side
    for found in draw(st.lists(st.sampled_from([3, 5, 8]), max_size=3)):
        layers += [nn.Linear(width, found, bias=draw(st.booleans())), draw(st.sampled_from([nn.Tanh(), nn.ReLU()]))]
        layers.append(draw(st.sampled_from([nn.Identity(), nn.LayerNorm(found), nn.BatchNorm1d(found)])))
        width = found
    torch.manual_seed(draw(st.integers(0, 2**31)))
    for layer in layers:
        for part in layer.modules():
            getattr(part, "reset_parameters", lambda: None)()
    return jostled(nn.Sequential(*layers, nn.Linear(width, 3))), shape


@settings(max_examples=40, deadline=None)
@given(random_nets(), st.integers(0, 2**32))
def test_an_exchange_changes_no_output_and_is_found_exactly(made: tuple[nn.Module, tuple[int, ...]], seed: int) -> None:
    net, shape = made
    units = find_units(net)
    values, _ = moved(net, units, seed, 3)
    wanted = outputs(net, {name: value[None] for name, value in tensors(net).items()}, shape)
    torch.testing.assert_close(outputs(net, values, shape), wanted.expand(3, -1, -1), rtol=1e-5, atol=1e-5)
    first = {name: torch.cat([value[None], values[name]]) for name, value in tensors(net).items()}
    found = align(Ensemble(net, first), reference=0).ensemble
    for name, value in found.values.items():
        assert torch.equal(value, value[:1].expand_as(value)), name


@pytest.mark.parametrize(("name", "shape"), NETS.items())
def test_built_in_nets_are_aligned_back(name: str, shape: tuple[int, ...]) -> None:
    net = jostled(create(name, shape, 10, 0))
    units = find_units(net)
    values, orders = moved(net, units, 5)
    wanted = outputs(net, {name: value[None] for name, value in tensors(net).items()}, shape)
    torch.testing.assert_close(outputs(net, values, shape), wanted, rtol=1e-5, atol=1e-5)
    for order in orders:
        assert order[0] != sorted(order[0])
    first = {name: torch.cat([value[None], values[name]]) for name, value in tensors(net).items()}
    found = align(Ensemble(net, first), reference=0)
    assert all(torch.equal(value[0], value[1]) for value in found.ensemble.values.values())
    for was, came in zip(orders, found.orders, strict=True):
        assert [was[0][place] for place in came[1]] == sorted(was[0])


def test_which_units_the_built_in_nets_have() -> None:
    sizes = {name: [own.size for own in find_units(create(name, shape, 10, 0))] for name, shape in NETS.items()}
    assert sizes == {
        "mlp": [128],
        "linear": [],
        "digits-net": [32],
        "tanh-net": [16, 32, 32],
        "mnist-net": [32, 64, 128],
        "cifar-net": [32, 32, 64, 64, 512],
    }
    assert find_units(create("digits-net", (1, 8, 8), 10, 0))[0].blocks == (8, 4)
    assert [own.signed for own in find_units(create("tanh-net", (1, 28, 28), 10, 0))] == [False, False, True]
    assert find_units(create("mnist-net", (1, 28, 28), 10, 0))[1].axes[-1].each == 144


class Doubled(nn.Module):
    """A network of one's own: two dense layers, of which the second reads the first twice."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 6), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.one(x).relu()
        out: Tensor = self.two(torch.stack([h, h.square()], 2).flatten(1))
        return out


def tied() -> nn.Module:
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(6, 2))


@pytest.mark.parametrize(
    "net",
    [
        Doubled(),
        tied(),
        nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(4, 4, 3)),
        nn.Sequential(nn.Linear(4, 4), nn.Softmax(1), nn.Linear(4, 2)),
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(2), nn.Linear(36, 2)),
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.Linear(6, 2)),
        nn.Sequential(nn.Linear(4, 4), nn.MaxPool1d(2), nn.Linear(2, 2)),
        nn.Sequential(nn.Linear(4, 5), nn.Flatten(), nn.Linear(15, 2)),
        nn.Sequential(nn.Conv2d(1, 12, 3), nn.GroupNorm(2, 12), nn.GroupNorm(3, 12), nn.Conv2d(12, 2, 3)),
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.LayerNorm(144), nn.Linear(144, 2)),
        nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), nn.ReLU(), nn.Linear(4, 2)),
    ],
)
def test_what_cannot_be_told_is_refused(net: nn.Module) -> None:
    with pytest.raises(NetError, match="permutable units can be determined"):
        find_units(net)


@given(st.integers(0, 2**32))
def test_blocks_stay_together_and_no_order_is_better(seed: int) -> None:
    """All orders of four units in two blocks are tried."""
    gains = np.random.default_rng(seed).normal(size=(4, 4))
    order, worth = _assign(gains, (2,))
    orders = [
        [a, b, c, d] for a, b, c, d in np.ndindex(4, 4, 4, 4) if {a, b, c, d} == {0, 1, 2, 3} and a // 2 == b // 2
    ]
    best = max(orders, key=lambda o: gains[range(4), o].sum())
    assert order.tolist() == best
    assert worth == pytest.approx(gains[range(4), best].sum())


def test_the_mean_of_the_others_brings_all_closer() -> None:
    nets = [jostled(create("mlp", (12,), 4, seed)) for seed in range(7)]
    values = {name: torch.stack([tensors(net)[name] for net in nets]) for name in tensors(nets[0])}
    ensemble = Ensemble(nets[0], values)
    to_first, to_all = align(ensemble, 0), align(ensemble)
    assert to_first.closeness[0] < to_first.closeness[1] < to_all.closeness[1]
    assert to_all.closeness[1] == pytest.approx(closeness(to_all.ensemble.values), rel=1e-5)
    assert to_all.rounds > 0
    torch.testing.assert_close(outputs(nets[0], to_all.ensemble.values, (12,)), outputs(nets[0], values, (12,)))
    assert all(
        torch.equal(value, before) for value, before in zip(ensemble.values.values(), values.values(), strict=True)
    )


def deep(model: int) -> nn.Module:
    """Two hidden layers, a start a model."""
    torch.manual_seed(model)
    layers = [nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 10)]
    return nn.Sequential(*layers)


def test_an_average_of_independent_models_works_only_if_they_are_aligned() -> None:
    """Real digits, own starts, full learning rate: the average is far below a single model before, near it after."""
    source = load_digits()
    x = np.zeros((1797, 1, 8, 8), np.float32)
    x[:, 0] = source.images / 16
    y = source.target.astype(np.int64)
    train, test = Records(x[:1200], y[:1200]), Resident(Records(x[1200:], y[1200:]), torch.device("cpu"))
    recipe = Recipe(steps=10 * math.ceil(1200 / 64), learning_rate=0.1)
    whole = [np.arange(1200)] * 5
    ensemble = train_together(deep, 5, Resident(train, torch.device("cpu")), whole, recipe, 3, Run())

    def average(found: Ensemble) -> float:
        mean = {name: value.mean(0, keepdim=True) for name, value in found.values.items()}
        return float(Ensemble(found.net, mean).correct(test).mean())

    single = ensemble.correct(test).mean()
    assert average(ensemble) < single - 0.1
    assert average(align(ensemble).ensemble) > single - 0.06


def test_bad_models_are_refused() -> None:
    net = create("mlp", (4,), 2, 0)
    values = {name: value[None].repeat(2, *[1] * value.dim()) for name, value in tensors(net).items()}
    with pytest.raises(TrainingError, match="a reference from 0 to 1, found 2"):
        align(Ensemble(net, values), 2)
    values["1.weight"][1, 0, 0] = math.nan
    with pytest.raises(TrainingError, match=r"NaN or infinity in '1\.weight'"):
        align(Ensemble(net, values))
