"""The rules for operators: whatever a rule says belongs to a record changes with that record and with no other one.

Every expression below is run under `RecordAxis`. Where it claims an axis, each record in turn is replaced by another
one: places of other records must keep their bits. The same records in another order must give the same results in that
order, because a rule may not let a record's place matter either. Expressions that mix records must not get an axis.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from airlock.training.per_sample.layers import apart
from airlock.training.per_sample.operator_rules import CONSTANT, Axis, Kind, Mixed, Unshown
from airlock.training.per_sample.record_axis import RecordAxis

R = 32
Expression = Callable[[Tensor], Any]
W = torch.rand(5, 7, generator=torch.Generator().manual_seed(0))
SQUARE = torch.rand(R, R, generator=torch.Generator().manual_seed(1))
LABELS = torch.arange(R) % 4
DIFFERENT = torch.arange(R, dtype=torch.float32)
CONSTANTS = (W, SQUARE, LABELS, DIFFERENT)


def rows(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


# name -> shape of the input (records in front), the expression; the input needs a gradient where it is taken.
APART: dict[str, tuple[tuple[int, ...], Expression]] = {
    "add a constant": ((R, 5), lambda x: x + W[:, 0]),
    "add itself turned": ((R, 5, 5), lambda x: x + x.transpose(1, 2)),
    "a mask of the shape of the batch": ((R, R), lambda x: x * SQUARE[0]),
    "where": ((R, 5), lambda x: torch.where(x > 0.5, x, -x)),
    "softmax": ((R, 5, 4), lambda x: x.softmax(-1)),
    "log softmax in the middle": ((R, 5, 4), lambda x: x.log_softmax(1)),
    "mean over places": ((R, 5, 4), lambda x: x.mean(1)),
    "variance": ((R, 5, 4), lambda x: x.var((1, 2))),
    "largest": ((R, 5, 4), lambda x: x.max(2).values + x.amax(2)),
    "sorted": ((R, 9), lambda x: x.sort(1).values),
    "top": ((R, 9), lambda x: x.topk(3, 1).values),
    "running sum": ((R, 5), lambda x: x.cumsum(1)),
    "matrix product": ((R, 5), lambda x: x @ W),
    "from the right": ((R, 7), lambda x: W @ x.t()),
    "with a bias": ((R, 5), lambda x: F.linear(x, W.t(), W[0])),
    "at places": ((R, 3, 5), lambda x: x @ W),
    "batched product": ((R, 3, 5), lambda x: x @ x.transpose(1, 2)),
    "einsum": ((R, 3, 5), lambda x: torch.einsum("bte,eo->bto", x, W)),
    "merged": ((R, 3, 5), lambda x: x.reshape(-1, 5) @ W),
    "merged and back": ((R, 3, 5), lambda x: (x.reshape(-1, 5) @ W).view(R, 3, 7).mean(1)),
    "time first": ((R, 3, 5), lambda x: x.transpose(0, 1) @ W),
    "time first, merged": ((R, 3, 5), lambda x: x.transpose(0, 1).reshape(-1, 5) @ W),
    "views after each other": ((R, 5), lambda x: torch.cat([x, 2 * x, 3 * x])),
    "views, one of them": ((R, 5), lambda x: torch.cat([x, 2 * x]).chunk(2)[1]),
    "copies side by side": ((R, 5), lambda x: x.repeat_interleave(3, 0)),
    "copies, every third": ((R, 5), lambda x: x.repeat_interleave(3, 0)[1::3]),
    "tiled": ((R, 5), lambda x: x.repeat(2, 3)),
    "stacked": ((R, 5), lambda x: torch.stack([x, x * 2], 1)),
    "stacked in front": ((R, 5), lambda x: torch.stack([x, x * 2])),
    "joined with a constant": ((R, 5), lambda x: torch.cat([x, W[0].expand(R, 7)], 1)),
    "convolution": ((R, 2, 6, 6), lambda x: F.conv2d(x, rows((3, 2, 3, 3), 7))),
    "convolution with a stride": ((R, 2, 7), lambda x: F.conv1d(x, rows((3, 2, 3), 7), stride=2)),
    "transposed convolution": ((R, 2, 4, 4), lambda x: F.conv_transpose2d(x, rows((2, 3, 2, 2), 7))),
    "largest of a window": ((R, 2, 6, 6), lambda x: F.max_pool2d(x, 2)),
    "mean of a window": ((R, 2, 6, 6), lambda x: F.avg_pool2d(x, 2)),
    "mean of all": ((R, 2, 6, 6), lambda x: F.adaptive_avg_pool2d(x, 2)),
    "padded": ((R, 2, 6, 6), lambda x: F.pad(x, (1, 1, 2, 0))),
    "reflected": ((R, 2, 6, 6), lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect")),
    "enlarged": ((R, 2, 3, 3), lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")),
    "windows": ((R, 2, 6, 6), lambda x: x.unfold(2, 3, 1).unfold(3, 3, 1).flatten(4)),
    "patches": ((R, 2, 6, 6), lambda x: F.unfold(x, 3)),
    "layer norm": ((R, 3, 5), lambda x: F.layer_norm(x, (5,))),
    "group norm": ((R, 4, 3), lambda x: F.group_norm(x, 2)),
    "rms norm": ((R, 3, 5), lambda x: F.rms_norm(x, [5])),
    "instance norm": ((R, 4, 6), lambda x: F.instance_norm(x, use_input_stats=True)),
    "fixed batch norm": ((R, 4, 6), lambda x: F.batch_norm(x, W[0, :4], W[1, :4] + 1)),
    "attention": ((R, 2, 5, 4), lambda x: F.scaled_dot_product_attention(x, x, x)),
    "attention with a mask": ((R, 2, 7, 4), lambda x: F.scaled_dot_product_attention(x, x, x, W[:1].expand(7, 7))),
    "rolled elsewhere": ((R, 5), lambda x: x.roll(1, 1)),
    "turned elsewhere": ((R, 5), lambda x: x.flip(1)),
    "picked by a constant": ((R, 5), lambda x: x[:, torch.tensor([0, 2, 2])]),
    "picked at every record's own place": ((R, 5), lambda x: x[torch.arange(R), x.argmax(1)]),
    "gathered": ((R, 5), lambda x: x.gather(1, x.argsort(1))),
    "looked up": ((R, 5), lambda x: F.embedding((x * 4).long(), W)),
    "looked up by index": ((R,), lambda x: W[(x * 4).long()]),
    "activations": ((R, 5), lambda x: F.gelu(x) + F.silu(x) + F.elu(x) + F.softplus(x) + x.tanh() + F.hardswish(x)),
    "gated": ((R, 6), lambda x: F.glu(x, 1)),
    "angle": ((R, 5), lambda x: F.normalize(x, dim=1)),
    "spectrum": ((R, 8), lambda x: torch.fft.rfft(x, dim=1).abs()),
    "lower triangle": ((R, 4, 4), lambda x: x.tril()),
    "written over in place": ((R, 5), lambda x: x.clone().mul_(2).relu_()),
    "a place is zeroed": ((R, 5), lambda x: _zeroed(x.clone())),
    "loss": ((R, 4), lambda x: F.cross_entropy(x, LABELS * 0 + 1, reduction="none")),
}
MIXED: dict[str, tuple[tuple[int, ...], Expression]] = {
    "mean over records": ((R, 5), lambda x: x - x.mean(0)),
    "sum over all": ((R, 5), lambda x: x * x.sum()),
    "softmax over records": ((R, 5), lambda x: x.softmax(0)),
    "sorted records": ((R, 5), lambda x: x.sort(0).values),
    "running sum over records": ((R, 5), lambda x: x.cumsum(0)),
    "product of records": ((R, 5), lambda x: x @ x.t()),
    "mixed by a matrix": ((R, 5), lambda x: SQUARE @ x),
    "two records side by side": ((R, 5), lambda x: x.view(R // 2, 10)),
    "torn apart": ((R, 4), lambda x: x.view(R // 2, 2, 4).sum(1)),
    "the other records": ((R, 5), lambda x: x + x.flip(0)),
    "rolled records": ((R, 5), lambda x: x + x.roll(1, 0)),
    "shuffled": ((R, 5), lambda x: x[torch.randperm(R)]),
    "sorted by a random number": ((R, 5), lambda x: x[torch.rand(R).argsort()]),
    "half of the records": ((R, 5), lambda x: x[: R // 2]),
    "the first record": ((R, 5), lambda x: x - x[0]),
    "by place": ((R, 5), lambda x: x * DIFFERENT[:, None]),
    "a mask for the batch": ((R, R), lambda x: x * SQUARE),
    "looked up among records": ((R, 5), lambda x: x[(x[:, 0] * R).long() % R]),
    "turned round": ((R, R), lambda x: x + x.t()),
    "batch norm": ((R, 4, 6), lambda x: F.batch_norm(x, None, None, training=True)),
    "norm over records": ((R, 5), lambda x: F.layer_norm(x, (R, 5))),
    "attention over records": ((R, 8, 4), lambda x: F.scaled_dot_product_attention(*[x.transpose(0, 1)[None]] * 3)),
    "records as channels": ((R, 6, 6), lambda x: F.conv2d(x[None], rows((2, R, 3, 3), 7))),
    "filled by records": ((R, 5), lambda x: torch.zeros(R, 5).index_copy(0, torch.randperm(R), x)),
    "unwritten memory": ((R, 5), lambda x: x + torch.empty(R, 5)),
    "mean loss": ((R, 4), lambda x: F.cross_entropy(x, LABELS * 0).expand(R)),
}
TOLD: dict[str, tuple[tuple[int, ...], Expression]] = {
    "item": ((R, 5), lambda x: x * x.sum().item()),
    "list": ((R, 5), lambda x: torch.tensor(x.tolist())),
    "numpy": ((R, 5), lambda x: torch.from_numpy(x.detach().numpy()) * 2),
    "tensor of a tensor": ((R, 5), lambda x: torch.tensor(x) * 2),
    "shape of what is large": ((R, 5), lambda x: x * (x > 0.5).nonzero().shape[0]),
    "picked by a mask": ((R, 5), lambda x: x * x[x > 0.5].shape[0]),
    "different values": ((R, 5), lambda x: x * len(x.unique())),
    "equal": ((R, 5), lambda x: x if torch.equal(x[0], x[1]) else -x),
    "a number as an index": ((R, 5), lambda x: W[int(x[0, 0] * 3)] + x[:, :1]),
    "written outside": ((R, 5), lambda x: x + SQUARE.narrow(1, 0, 5).mul_(x.mean())),
}


def _zeroed(x: Tensor) -> Tensor:
    x[:, 2] = 0
    return x


def followed(expression: Expression, x: Tensor) -> tuple[Tensor, Any]:
    """The result and what is known about it."""
    watch = RecordAxis(R, CONSTANTS)
    watch.note(x, Axis(0))
    with watch:
        out = expression(x)
    return out, watch.state(out)


@pytest.mark.parametrize("name", sorted(APART))
def test_what_is_kept_apart_is(name: str) -> None:
    shape, expression = APART[name]
    x = rows(shape, 3)
    out, axis = followed(expression, x)
    assert isinstance(axis, Axis), axis
    shares = apart(out, axis, R)
    for record in (0, 5, R - 1):
        other = x.clone()
        other[record] = rows(shape[1:], 4)
        changed = (apart(expression(other), axis, R) != shares).flatten(1).any(1)
        assert changed.nonzero().flatten().tolist() in ([record], [])
    order = torch.randperm(R, generator=torch.Generator().manual_seed(5))
    assert torch.allclose(apart(expression(x[order]), axis, R), shares[order], rtol=1e-5, atol=1e-6)


# Looking up has no gradient; the gradients of the others write into parts of tensors, which is left to slower engines.
WITHOUT = {"looked up", "looked up by index", "a place is zeroed", "spectrum"}


@pytest.mark.parametrize("name", sorted(set(APART) - WITHOUT))
def test_gradients_are_kept_apart_too(name: str) -> None:
    shape, expression = APART[name]
    x = rows(shape, 3).requires_grad_()
    watch = RecordAxis(R, CONSTANTS)
    watch.note(x, Axis(0))
    with watch:
        out = expression(x)
        axis = watch.state(out)
        (gradient,) = torch.autograd.grad(out, x, out.detach())
    assert isinstance(axis, Axis)
    assert watch.state(gradient) == Axis(0), watch.state(gradient)


@pytest.mark.parametrize("name", sorted(MIXED))
def test_what_is_mixed_is_seen(name: str) -> None:
    shape, expression = MIXED[name]
    assert isinstance(followed(expression, rows(shape, 3))[1], Mixed)


@pytest.mark.parametrize("name", sorted(TOLD))
def test_what_would_leave_torch_ends_the_claim(name: str) -> None:
    shape, expression = TOLD[name]
    with pytest.raises(Unshown):
        followed(expression, rows(shape, 3))


def test_a_decision_is_answered_by_a_public_value() -> None:
    def decides(x: Tensor) -> Tensor:
        return x if bool((x > 0.99).any()) else -x

    x = rows((R, 5), 3)
    watch = RecordAxis(R)
    watch.note(x, Axis(0))
    with watch:
        decides(x)
    assert watch.decided == [bool((x > 0.99).any())]
    for fixed in (True, False):
        watch = RecordAxis(R, decisions=[fixed])
        watch.note(x, Axis(0))
        with watch:
            out = decides(x)
        assert torch.equal(out, x if fixed else -x)
        assert watch.state(out) == Axis(0)
    watch = RecordAxis(R, decisions=[])
    watch.note(x, Axis(0))
    with watch, pytest.raises(Unshown, match="more often"):
        decides(x)


def test_a_tensor_from_elsewhere_is_not_taken_for_a_constant() -> None:
    memory, x = torch.rand(5), rows((R, 5), 3)
    watch = RecordAxis(R)
    watch.note(x, Axis(0))
    with watch:
        out = x + memory
    assert isinstance(watch.state(out), Mixed)


def test_random_numbers_do_not_mix_records() -> None:
    x = rows((R, 5), 3)
    watch = RecordAxis(R)
    watch.note(x, Axis(0))
    drop = nn.Dropout(0.5).train()
    with watch:
        out = drop(x) + torch.rand(R, 1) + x.new_empty(R, 1).bernoulli_(0.5) + torch.randn_like(x)
        number = torch.rand(())
        drawn = float(number)
    assert watch.state(out) == Axis(0)
    assert isinstance(watch.state(number), Kind)
    assert 0 <= drawn < 1


def test_constants_may_be_computed_with() -> None:
    x = rows((R, 5), 3)
    watch = RecordAxis(R, CONSTANTS)
    watch.note(x, Axis(0))
    with watch:
        mask = torch.ones(5, 5).tril()
        out = x @ mask.t() + torch.arange(5) + torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
        value = W.sum().item()
    assert watch.state(mask) == CONSTANT
    assert watch.state(out) == Axis(0)
    assert value == pytest.approx(float(W.sum()))
