"""The engine: equal to a loop over records for every layer, however a network uses its parameters."""

from __future__ import annotations

import copy
from collections.abc import Callable
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from airlock.mechanisms import Clip
from airlock.nets import build
from airlock.nets.wide_resnet import StandardisedConv2d
from airlock.training.per_sample import clipped_sum, engine, use_of
from airlock.training.per_sample.bookkeeping import BookKeeper
from airlock.training.per_sample.functional import FunctionalGradients
from airlock.training.per_sample.layers import AnyRule, LayerCall, rule_for
from airlock.training.per_sample.operator_rules import Axis
from airlock.training.per_sample.self_check import Engine

CLASSES, LOT = 3, 4.0


class Pooled(nn.Module):
    """Layers, then the mean over positions, then a head."""

    def __init__(self, *layers: nn.Module, width: int, last: bool = False) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.last = last
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layers(x)
        h = h.flatten(1, -2).mean(1) if self.last and h.dim() > 2 else h.flatten(2).mean(2) if h.dim() > 2 else h
        logits: Tensor = self.head(h)
        return logits


class Attention(nn.Module):
    """Multi-head attention built from Linear."""

    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        z: Tensor = self.out(y)
        return z


class Tied(nn.Module):
    """One table as embedding and as output, a layer called twice, a parameter of its own, an activation in place."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8, padding_idx=0)
        self.mix = nn.Linear(8, 8)
        self.act = nn.ReLU(inplace=True)
        self.back = nn.Linear(8, 11, bias=False)
        self.back.weight = self.table.weight
        self.shift = nn.Parameter(torch.randn(8))
        self.head = nn.Linear(11, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.table(x) + self.shift
        h = h + self.act(self.mix(h))
        h = h + self.act(self.mix(h))
        logits: Tensor = self.head(self.back(h).mean(1))
        return logits


class Lora(nn.Module):
    """A frozen layer with a trainable low-rank adapter."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(6, 8).requires_grad_(False)
        self.down, self.up = nn.Linear(6, 2, bias=False), nn.Linear(2, 8, bias=False)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.tanh(self.base(x) + self.up(self.down(x))))
        return logits


def tokens(count: int) -> Tensor:
    return torch.randint(0, 11, (count, 5))


def floats(*shape: int) -> Callable[[int], Tensor]:
    return lambda count: torch.randn(count, *shape)


def transposed(into: int, outof: int) -> nn.Module:
    """GPT-2's dense layer, with a spread that shows."""
    from transformers.pytorch_utils import Conv1D

    layer: nn.Module = Conv1D(outof, into)
    nn.init.normal_(layer.weight, std=0.5)  # type: ignore[arg-type]
    return layer


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "linear": (lambda: nn.Linear(5, CLASSES), floats(5)),
    "linear without bias": (lambda: nn.Linear(5, CLASSES, bias=False), floats(5)),
    "linear at positions, rows": (lambda: Pooled(nn.Linear(4, 4), nn.Tanh(), width=4, last=True), floats(9, 4)),
    "linear at positions, ghost": (lambda: Pooled(nn.Linear(40, 40), nn.Tanh(), width=40, last=True), floats(2, 40)),
    "linear in three dimensions": (lambda: Pooled(nn.Linear(4, 6), nn.Tanh(), width=6, last=True), floats(2, 3, 4)),
    "transposed, rows": (lambda: Pooled(transposed(4, 6), nn.Tanh(), width=6, last=True), floats(9, 4)),
    "transposed, ghost": (lambda: Pooled(transposed(40, 50), nn.Tanh(), width=50, last=True), floats(2, 40)),
    "conv2d": (lambda: Pooled(nn.Conv2d(2, 4, 3), nn.Tanh(), width=4), floats(2, 6, 6)),
    "conv2d with everything": (
        lambda: Pooled(nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2)), nn.Tanh(), width=4),
        floats(2, 7, 6),
    ),
    "conv2d, ghost": (lambda: Pooled(nn.Conv2d(16, 32, 2, stride=2), nn.Tanh(), width=32), floats(16, 4, 2)),
    "conv2d in groups": (lambda: Pooled(nn.Conv2d(4, 4, 3, groups=2), nn.Tanh(), width=4), floats(4, 5, 5)),
    "conv2d, same": (lambda: Pooled(nn.Conv2d(2, 4, 3, padding="same"), nn.Tanh(), width=4), floats(2, 5, 5)),
    "conv2d, reflect": (
        lambda: Pooled(nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"), nn.Tanh(), width=4),
        floats(2, 5, 5),
    ),
    "conv2d, standardised": (lambda: Pooled(StandardisedConv2d(2, 4, 3), nn.Tanh(), width=4), floats(2, 6, 6)),
    "conv2d, standardised, with everything": (
        lambda: Pooled(
            StandardisedConv2d(16, 32, (1, 2), stride=(2, 1), padding=(0, 1), dilation=(1, 2)), nn.Tanh(), width=32
        ),
        floats(16, 4, 3),
    ),
    "conv2d, standardised, called twice": (
        lambda: Pooled(*[StandardisedConv2d(3, 3, 3, padding=1)] * 2, nn.Tanh(), width=3),
        floats(3, 4, 4),
    ),
    "conv1d": (lambda: Pooled(nn.Conv1d(3, 4, 3, padding=1, stride=2), nn.Tanh(), width=4), floats(3, 9)),
    "embedding": (lambda: Pooled(nn.Embedding(11, 6), nn.Tanh(), width=6, last=True), tokens),
    "embedding with padding": (
        lambda: Pooled(nn.Embedding(11, 6, padding_idx=2), nn.Tanh(), width=6, last=True),
        tokens,
    ),
    "layer norm": (lambda: Pooled(nn.Linear(4, 6), nn.LayerNorm(6), nn.Tanh(), width=6, last=True), floats(3, 4)),
    "layer norm over two": (lambda: Pooled(nn.LayerNorm((3, 4)), nn.Tanh(), width=4, last=True), floats(2, 3, 4)),
    "group norm": (lambda: Pooled(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), width=4), floats(2, 5, 5)),
    "rms norm": (lambda: Pooled(nn.Linear(4, 6), nn.RMSNorm(6), nn.Tanh(), width=6, last=True), floats(3, 4)),
    "attention": (lambda: Pooled(Attention(), width=8, last=True), floats(5, 8)),
    "torch's attention": (
        lambda: Pooled(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), width=8, last=True),
        floats(5, 8),
    ),
    "an unknown layer": (lambda: Pooled(nn.PReLU(4), nn.Tanh(), width=4), floats(4, 3)),
    "tied weights": (Tied, tokens),
    "low-rank adapter": (Lora, floats(6)),
    "mnist-net": (lambda: build("mnist-net", (1, 28, 28), CLASSES), floats(1, 28, 28)),
    "cifar-net": (lambda: build("cifar-net", (3, 32, 32), CLASSES), floats(3, 32, 32)),
}


def by_loop(net: nn.Module, x: Tensor, y: Tensor, clip: Clip) -> dict[str, Tensor]:
    """The definition: one backward pass a record; clip; add."""
    total = {name: torch.zeros_like(p) for name, p in net.named_parameters() if p.requires_grad}
    for i in range(len(y)):
        net.zero_grad()
        F.cross_entropy(net(x[i : i + 1]), y[i : i + 1]).backward()
        grads = {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}
        squares = {name: clip.squares(name, g[None]) for name, g in grads.items()}
        factors = clip.factors(squares)
        for name, g in grads.items():
            total[name] += g * factors[name]
    net.zero_grad()
    return total


def engine_for(net: nn.Module, x: Tensor, copies: int = 1) -> Engine:
    """Who computes the sums of small lots of this network."""
    return use_of(net, x, copies, LOT).engine


def summed(engine: Engine, x: Tensor, y: Tensor, clip: Clip, size: int = 32) -> tuple[dict[str, Tensor], Tensor]:
    """The sum of one chunk, filled up with records of zeros, and who was fit for it."""
    copies, mask = len(x) // max(1, len(y)), torch.zeros(size, device=x.device)
    mask[: len(y)] = 1
    rows = torch.cat([x, x.new_zeros((size - len(y)) * max(1, copies), *x.shape[1:])])
    total, finite = engine.masked_sum(rows, torch.cat([y, y.new_zeros(size - len(y))]), mask, clip)
    return total, finite[: len(y)]


def close(got: dict[str, Tensor], wanted: dict[str, Tensor], near: float = 1e-5) -> bool:
    size = torch.stack([g.norm() for g in wanted.values()]).norm().clamp_min(1e-9)
    return set(got) == set(wanted) and all((got[name] - g).norm() <= near * size for name, g in wanted.items())


def nearness(case: str) -> float:
    """Where rows are not formed, a little is added to the norm for what may cancel (`sums`)."""
    return 1e-3 if any(word in case for word in ("ghost", "embedding", "tied", "attention", "-net")) else 1e-5


def clips(net: nn.Module, norm: float, kind: str) -> Clip:
    if kind == "by layer":
        return Clip(norm, by_layer=True)
    if kind == "by tensor":
        return Clip(norm, scale={name: torch.rand(()) + 0.5 for name, _ in net.named_parameters()})
    if kind == "by channel":
        named = net.named_parameters()
        return Clip(norm, scale={name: torch.rand(p.shape[0], *[1] * (p.dim() - 1)) + 0.5 for name, p in named})
    return Clip(norm)


@settings(max_examples=120)
@given(
    st.sampled_from(sorted(CASES)),
    st.integers(0, 4),
    st.sampled_from([0.05, 1.0, 50.0]),
    st.sampled_from(["flat", "by layer", "by tensor", "by channel"]),
    st.integers(0, 999),
)
def test_equal_to_a_loop_over_records(case: str, records: int, norm: float, kind: str, seed: int) -> None:
    torch.manual_seed(seed)
    make, draw = CASES[case]
    net, x, y = make().eval(), draw(records), torch.randint(0, CLASSES, (records,))
    clip = clips(net, norm, kind)
    got, fit = summed(BookKeeper(net), x, y, clip)
    assert fit.all()
    assert close(got, by_loop(net, x, y, clip), nearness(case))
    assert all(p.requires_grad or "base" in name for name, p in net.named_parameters())


@pytest.mark.parametrize("case", sorted(CASES))
def test_every_case_goes_through_book_keeping(case: str) -> None:
    make, draw = CASES[case]
    net, x = make(), draw(3)
    assert isinstance(engine_for(net, x), BookKeeper)


class BehindItsBack(nn.Module):
    """Uses a layer's weight without calling the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(5, 5), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.tanh(F.linear(self.layer(x), self.layer.weight)))
        return logits


LEFT_ALONE: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "uses a weight behind the layer's back": (BehindItsBack, floats(5)),
}


@pytest.mark.parametrize("case", LEFT_ALONE)
def test_a_net_that_book_keeping_gets_wrong_is_left_to_torch_func(case: str) -> None:
    make, draw = LEFT_ALONE[case]
    net, x, y = make(), draw(4), torch.tensor([0, 1, 2, 0])
    assert isinstance(engine_for(net, x), FunctionalGradients)
    clip = Clip(0.3)
    assert close(clipped_sum(net, x, y, clip)[0], by_loop(net, x, y, clip))


def test_the_choice_follows_when_a_layer_is_frozen() -> None:
    net, x, y = CASES["conv2d"][0](), torch.randn(4, 2, 6, 6), torch.tensor([0, 1, 2, 0])
    assert "layers.0.weight" in clipped_sum(net, x, y, Clip(1.0))[0]
    net.layers.requires_grad_(False)  # type: ignore[union-attr]
    assert set(clipped_sum(net, x, y, Clip(1.0))[0]) == {"head.weight", "head.bias"}


def test_trying_leaves_the_net_as_it_was() -> None:
    net = nn.Sequential(nn.Linear(5, 5), nn.Dropout(0.5), nn.ReLU(inplace=True), nn.Linear(5, CLASSES)).train()
    net[1].eval()
    state = {name: value.clone() for name, value in net.state_dict().items()}
    engine_for(net, torch.randn(3, 5))
    assert [m.training for m in net] == [True, False, True, True]
    assert net[2].inplace is True
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    assert not net[0]._forward_hooks


def test_dropout_differs_between_records_and_follows_the_seed() -> None:
    net = nn.Sequential(nn.Linear(5, 50), nn.Dropout(0.5), nn.Linear(50, CLASSES)).train()
    x, y = torch.randn(1, 5).expand(6, 5), torch.zeros(6, dtype=torch.int64)
    sums = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        sums.append(clipped_sum(net, x, y, Clip(100.0))[0]["2.weight"])
    assert torch.equal(sums[0], sums[1])
    assert not torch.equal(sums[0], sums[2])


@pytest.mark.parametrize("case", ["conv2d", "tied weights", "mnist-net"])
def test_a_lot_larger_than_memory_is_the_sum_of_its_chunks(case: str) -> None:
    make, draw = CASES[case]
    torch.manual_seed(0)
    net, x, y = make().eval(), draw(7), torch.randint(0, CLASSES, (7,))
    whole, _ = clipped_sum(net, x, y, Clip(0.3))
    with patch.dict(engine._CHUNK_BYTES, {"cpu": (3 * engine_for(net, x).bytes_per_record,) * 2}):
        again = copy.deepcopy(net)
        assert use_of(again, x, 1, 7, sampled=False).size == 3
        assert close(clipped_sum(again, x, y, Clip(0.3))[0], whole)


def test_a_bad_record_is_dropped_by_both_engines() -> None:
    net, x, y = CASES["conv2d"][0](), torch.randn(4, 2, 6, 6), torch.tensor([0, 1, 2, 0])
    x[1] = float("inf")
    keep = torch.tensor([0, 2, 3])
    assert [summed(one, x, y, Clip(0.3))[1].tolist() for one in (BookKeeper(net), FunctionalGradients(net))] == [
        [True, False, True, True]
    ] * 2
    got, dropped = clipped_sum(net, x, y, Clip(0.3))
    assert dropped == 1
    assert close(got, clipped_sum(net, x[keep], y[keep], Clip(0.3))[0])


def test_cancelling_positions_do_not_hide_from_the_ghost_norm() -> None:
    """Large contributions that nearly cancel: in float32 the Gram matrices would give a norm that is far too small."""
    layer = nn.Linear(40, 40, bias=False)
    a = torch.randn(1, 2, 40) * 1e3
    back = torch.randn(1, 1, 40) * 1e3
    a[:, 1] = a[:, 0] * (1 + 1e-6)
    call = LayerCall(1, [a], tree_flatten(((a,), {}))[1], [Axis(0)], [torch.cat([back, -back], 1)[:, None]])
    rule = rule_for(layer, ("weight",))
    ghost, counted = rule.squares(call, {"weight": None}, exact=True), rule.squares(call, {"weight": None})
    assert ghost is not None
    assert counted is not None
    exact = torch.bmm(call.back[:, 0].double().transpose(1, 2), a.double()).square().sum()
    assert ghost["weight"].item() == pytest.approx(exact.item(), rel=1e-3)
    size = float(a.double().norm() * call.back.double().norm())
    assert float(counted["weight"].sqrt()) >= 0.9999 * size / 2**8  # what cancels is counted before it is summed


def test_unknown_layers_are_taken_apart_alone() -> None:
    assert isinstance(rule_for(nn.PReLU(3), ("weight",)), AnyRule)
    assert isinstance(rule_for(nn.Conv2d(4, 4, 3, groups=2), ("weight",)), AnyRule)
