"""Per-record gradients of one layer, from what went in (a) and what came back (b).

Every rule answers three questions about one call of a layer: the squared norm of every record's gradient, the gradients
themselves (`rows`), and their weighted sum. For a layer that is a matrix product at T positions, a record's gradient is
Σ_t b_t a_tᵀ: its norm follows from the two Gram matrices without forming it ("ghost norm", Goodfellow 2015, Li et al.
2022), which is cheaper where 2T(in + out) < in · out; elsewhere the rows are formed. Gram matrices of more than one
position are summed in float64, because their terms may cancel and a norm that is too small would void the clipping.
K copies of a record at T positions are K · T positions.
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from airlock.mechanisms.clipping import row_squares

Named = dict[str, Tensor]  # by the parameter's name in its own layer
_TRITON = importlib.util.find_spec("triton") is not None
_BYTES_AT_ONCE = {"cpu": 1 << 22, "cuda": 1 << 31}  # for copies: in the cache of a CPU, in the memory of a GPU


@dataclass
class Call:
    """One call of a layer: its inputs, and the gradient of the loss with respect to its output.

    A record may come as several copies, side by side in the batch. Its gradient is the sum over them, so that copies
    are to a rule what positions are: more terms of the same sum.
    """

    inputs: tuple[Any, ...]
    keywords: dict[str, Any]
    back: Tensor
    copies: int = 1

    @property
    def a(self) -> Tensor:
        """The first input, detached."""
        first: Tensor = self.inputs[0].detach()
        return first

    @property
    def records(self) -> int:
        """How many records the batch holds."""
        return len(self.back) // self.copies

    def added(self, rows: Tensor) -> Tensor:
        """From one row a copy to one row a record."""
        return rows if self.copies == 1 else rows.view(self.records, self.copies, *rows.shape[1:]).sum(1)

    def spread(self, factors: Tensor) -> Tensor:
        """From one number a record to one number a copy."""
        return spread(factors, self.copies)


class Rule(ABC):
    """How one kind of layer is taken apart; `names` are its trainable parameters."""

    def __init__(self, layer: nn.Module, names: tuple[str, ...]) -> None:
        self.layer: Any = layer
        self.names = names

    @abstractmethod
    def rows(self, call: Call) -> Named:
        """Every record's gradient: (records, *shape of the parameter)."""

    def squares(self, call: Call, scales: dict[str, Tensor | None]) -> Named | None:
        """Every record's squared norm without forming rows, in units of the scale; None where rows are cheaper."""
        return None

    def weighted(self, call: Call, factors: Named) -> Named:
        """Σ factor · gradient over the records."""
        return weighted_rows(self.rows(call), factors)

    def restore(self, name: str, value: Tensor) -> Tensor:
        """From the layout of `rows` (without the records) to the parameter's own."""
        return value


def weighted_rows(rows: Named, factors: Named) -> Named:
    """Σ factor · row, by parameter, in the rows' layout."""
    return {name: (factors[name] @ g.flatten(1)).view(g.shape[1:]) for name, g in rows.items()}


class Product(Rule):
    """A layer that multiplies a matrix at T positions: (records, T, in) to (records, T, out)."""

    @abstractmethod
    def sides(self, call: Call) -> tuple[Tensor, Tensor]:
        """A as (records, T, in), b as (records, T, out), in float32."""

    def sizes(self, call: Call) -> tuple[int, int, int]:
        """T, in and out."""
        a, b = self.sides(call)
        return a.shape[1], a.shape[2], b.shape[2]

    def rows(self, call: Call) -> Named:
        """Σ_t b_t a_tᵀ, and Σ_t b_t for the bias."""
        a, b = self.sides(call)
        found = {}
        if "weight" in self.names:
            found["weight"] = torch.bmm(b.transpose(1, 2), a).view(len(b), *self.layer.weight.shape)
        if "bias" in self.names:
            found["bias"] = _over_positions(b)
        return found

    def squares(self, call: Call, scales: dict[str, Tensor | None]) -> Named | None:
        """From the Gram matrices; with one position simply ‖a‖² ‖b‖²."""
        positions, into, out = self.sizes(call)
        if positions > 1 and 2 * positions * (into + out) >= into * out:
            return None
        a, b = self.sides(call)
        found = {}
        if "weight" in self.names:
            found["weight"] = _gram(a, _over(b, scales["weight"]))
        if "bias" in self.names:
            found["bias"] = row_squares(_over(_over_positions(b), scales["bias"]))
        return found

    def weighted(self, call: Call, factors: Named) -> Named:
        """One matrix product over records and positions together."""
        a, b = self.sides(call)
        found = {}
        if "weight" in self.names:
            scaled = b * factors["weight"][:, None, None]
            found["weight"] = (scaled.flatten(0, 1).t() @ a.flatten(0, 1)).view_as(self.layer.weight)
        if "bias" in self.names:
            found["bias"] = factors["bias"] @ _over_positions(b)
        return found


def _over_positions(b: Tensor) -> Tensor:
    return b[:, 0] if b.shape[1] == 1 else b.sum(1)


def _over(b: Tensor, scale: Tensor | None) -> Tensor:
    """B in units of a scale that is one number, or one number an output."""
    return b if scale is None else b / scale.flatten()


def _gram(a: Tensor, b: Tensor) -> Tensor:
    """‖Σ_t b_t a_tᵀ‖² of every record, a few records at a time."""
    if a.shape[1] == 1:
        return row_squares(a) * row_squares(b)
    step = _at_once(a, 2 * a[0].numel() + 2 * b[0].numel())
    parts = zip(torch.split(a, step), torch.split(b, step), strict=True)
    return torch.cat([_gram_at_once(one.double(), other.double()) for one, other in parts])


def _gram_at_once(a: Tensor, b: Tensor) -> Tensor:
    both = torch.bmm(a, a.transpose(1, 2)).mul_(torch.bmm(b, b.transpose(1, 2)))
    return both.flatten(1).sum(1).clamp_min_(0).float()


def _at_once(like: Tensor, numbers: int) -> int:
    """How many records to take at a time if each needs this many float32 numbers of memory."""
    return max(1, _BYTES_AT_ONCE[like.device.type] // (4 * numbers))


class LinearRule(Product):
    """nn.Linear on any number of positions."""

    def sides(self, call: Call) -> tuple[Tensor, Tensor]:
        """All dimensions between the first and the last are positions."""
        a, b = call.a, call.back
        count = call.records
        return a.reshape(count, -1, a.shape[-1]).float(), b.reshape(count, -1, b.shape[-1]).float()


class ConvRule(Product):
    """nn.Conv1d and nn.Conv2d with one group: a matrix product on patches."""

    def sides(self, call: Call) -> tuple[Tensor, Tensor]:
        """Patches as positions."""
        a, b = self._patches(call.a.float()).transpose(1, 2), call.back.float().flatten(2).transpose(1, 2)
        return a.reshape(call.records, -1, a.shape[2]), b.reshape(call.records, -1, b.shape[2])

    def sizes(self, call: Call) -> tuple[int, int, int]:
        """Without cutting patches."""
        return call.copies * call.back[0, 0].numel(), self.layer.weight[0].numel(), self.layer.weight.shape[0]

    def rows(self, call: Call) -> Named:
        """Every record's own weight gradient, and the sum over positions for the bias."""
        found = {}
        if "weight" in self.names:
            found["weight"] = self._weight_rows(call.a.float(), call.back.float(), call)
        if "bias" in self.names:
            found["bias"] = call.added(call.back.float().flatten(2).sum(2))
        return found

    def _weight_rows(self, a: Tensor, back: Tensor, call: Call) -> Tensor:
        """By a kernel on a GPU, or from patches there without Triton; on a CPU as one convolution of many groups."""
        weight = self.layer.weight
        if not self._last(a):
            a, back = (_beside(value, call.copies) for value in (a, back))
            return self._weight_gradient(a, back, groups=call.records).view(call.records, *weight.shape)
        if max(weight.shape[2:]) > 1 and _TRITON:
            from airlock.training.conv_kernel import conv_rows

            return call.added(conv_rows(a, back, self.layer, _padding(self.layer)))
        positions, into, out = back[0, 0].numel(), weight[0].numel(), len(weight)
        step = _at_once(a, positions * into)
        g = back.new_empty(len(a), out, into)
        back = back.flatten(2)
        for start in range(0, len(a), step):
            part = slice(start, start + step)
            torch.bmm(back[part], self._patches_last(a[part]), out=g[part])
        return call.added(g.view(len(a), out, *weight.shape[2:], weight.shape[1]))

    def _last(self, a: Tensor) -> bool:
        """Whether rows have the input channels last: on a GPU, where patches are then copied in whole runs."""
        return a.is_cuda and self.layer.weight.dim() == 4 and tuple(self.layer.dilation) == (1, 1)

    def restore(self, name: str, value: Tensor) -> Tensor:
        """Input channels before the kernel again."""
        return value.permute(0, 3, 1, 2) if name == "weight" and self._last(value) else value

    def _patches_last(self, a: Tensor) -> Tensor:
        """(records, positions, kernel · in), by a strided view and one copy; F.unfold loops over records on CUDA."""
        (high, wide), (down, right), padding = self.layer.kernel_size, self.layer.stride, _padding(self.layer)
        if any(padding):
            a = F.pad(a, (padding[1], padding[1], padding[0], padding[0]))
        a = a.permute(0, 2, 3, 1)
        view = a.unfold(1, high, down).unfold(2, wide, right).permute(0, 1, 2, 4, 5, 3)
        return view.reshape(len(a), view.shape[1] * view.shape[2], -1)

    def weighted(self, call: Call, factors: Named) -> Named:
        """The convolution's own weight gradient, of outputs that carry the factors."""
        found = {}
        if "weight" in self.names:
            shape = (-1, *[1] * (call.back.dim() - 1))
            scaled = call.back.float() * call.spread(factors["weight"]).view(shape)
            found["weight"] = self._weight_gradient(call.a.float(), scaled)
        if "bias" in self.names:
            found["bias"] = call.spread(factors["bias"]) @ call.back.float().flatten(2).sum(2)
        return found

    def _weight_gradient(self, a: Tensor, b: Tensor, groups: int = 1) -> Tensor:
        """The weight's gradient; with groups, of as many weights on top of each other as there are groups."""
        layer, own = (
            self.layer,
            self.layer.weight.detach(),
        )  # its size is needed; with a graph, the gradient had one too
        padding = _padding(layer)
        weight = own if groups == 1 else own.new_empty(groups * len(own), *own[0].shape)
        gradient: Tensor = torch.ops.aten.convolution_backward(
            b, a, weight, None, layer.stride, padding, layer.dilation, False, [0] * len(padding), groups,
            [False, True, False],
        )[1]  # fmt: skip
        return gradient

    def _patches(self, a: Tensor) -> Tensor:
        """(records, in · kernel, positions)."""
        layer = self.layer
        kernel, stride, dilation, padding = layer.kernel_size, layer.stride, layer.dilation, _padding(layer)
        if a.dim() == 3:
            a = a[:, :, None]
            kernel, stride, dilation, padding = (1, *kernel), (1, *stride), (1, *dilation), [0, *padding]
        return F.unfold(a, kernel, dilation, tuple(padding), stride)


def _beside(value: Tensor, copies: int) -> Tensor:
    """Records side by side as groups of channels, their copies as the batch: (copies, records · channels, ...)."""
    by_record = value.reshape(-1, copies, *value.shape[1:])
    return by_record.transpose(0, 1).reshape(copies, -1, *value.shape[2:])


def _padding(layer: Any) -> list[int]:
    if layer.padding == "valid":
        return [0] * len(layer.kernel_size)
    return list(layer.padding)


class EmbeddingRule(Rule):
    """nn.Embedding: position t adds b_t to row number a_t."""

    def _sides(self, call: Call) -> tuple[Tensor, Tensor]:
        ids = call.a.reshape(call.records, -1)
        b = call.back.float().reshape(*ids.shape, -1)
        if self.layer.padding_idx is not None:
            b = b * (ids != self.layer.padding_idx)[:, :, None]
        return ids, b

    def rows(self, call: Call) -> Named:
        """Every record's whole table; only where a table is shared or used twice."""
        ids, b = self._sides(call)
        table = b.new_zeros(len(ids), *self.layer.weight.shape)
        return {"weight": table.scatter_add_(1, ids[:, :, None].expand_as(b), b)}

    def squares(self, call: Call, scales: dict[str, Tensor | None]) -> Named:
        """Positions with the same number add up; all others are orthogonal."""
        ids, b = self._sides(call)
        scale = scales["weight"]
        if scale is not None:
            b = b / (scale if scale.numel() == 1 else scale.flatten()[ids][:, :, None])
        b = b.double()
        same = ids[:, :, None] == ids[:, None, :]
        gram = torch.bmm(b, b.transpose(1, 2)).mul_(same)
        return {"weight": gram.flatten(1).sum(1).clamp_min_(0).float()}

    def weighted(self, call: Call, factors: Named) -> Named:
        """One scatter over all records."""
        ids, b = self._sides(call)
        table = torch.zeros_like(self.layer.weight, dtype=torch.float32)
        scaled = b * factors["weight"][:, None, None]
        return {"weight": table.index_add_(0, ids.flatten(), scaled.flatten(0, 1))}


class NormRule(Rule):
    """LayerNorm, GroupNorm and RMSNorm: the gradient of the gain is b times the normalised input."""

    def rows(self, call: Call) -> Named:
        """Small: one number a gain."""
        b = call.back.float()
        found = {}
        if "weight" in self.names:
            found["weight"] = call.added(self._gather(b * self._normalised(call.a.float())))
        if "bias" in self.names:
            found["bias"] = call.added(self._gather(b))
        return found

    def _normalised(self, a: Tensor) -> Tensor:
        layer = self.layer
        if isinstance(layer, nn.GroupNorm):
            return F.group_norm(a, layer.num_groups, eps=layer.eps)
        if isinstance(layer, nn.RMSNorm):
            return F.rms_norm(a, list(layer.normalized_shape), eps=layer.eps)
        return F.layer_norm(a, layer.normalized_shape, eps=layer.eps)

    def _gather(self, b: Tensor) -> Tensor:
        """Sum over everything but the record and the gain's own dimensions."""
        if isinstance(self.layer, nn.GroupNorm):
            return b.flatten(2).sum(2) if b.dim() > 2 else b
        own = len(self.layer.normalized_shape)
        return b.flatten(1, b.dim() - own - 1).sum(1) if b.dim() - own > 1 else b


class AnyRule(Rule):
    """Any other layer with parameters of its own: torch.func on that layer alone."""

    def rows(self, call: Call) -> Named:
        """One vector-Jacobian product a record."""
        rest = {name: p.detach() for name, p in self.layer.named_parameters() if name not in self.names}
        rest |= dict(self.layer.named_buffers())
        own = {name: self.layer.get_parameter(name).detach() for name in self.names}
        count = len(call.back)

        def one(back: Tensor, *inputs: Any) -> Named:
            whole = tuple(i[None] if b else i for i, b in zip(inputs, batched, strict=True))
            pull = vjp(lambda p: functional_call(self.layer, {**rest, **p}, whole, call.keywords), own)[1]
            found: Named = pull(back[None])[0]
            return found

        batched = [isinstance(i, Tensor) and i.dim() > 0 and len(i) == count for i in call.inputs]
        inputs = [i.detach() if isinstance(i, Tensor) else i for i in call.inputs]
        dims = (0, *(0 if b else None for b in batched))
        rows = vmap(one, in_dims=dims, randomness="different")(call.back, *inputs)
        return {name: call.added(g) for name, g in rows.items()}


def spread(values: Tensor, copies: int) -> Tensor:
    """Every value as often as its record has copies, side by side."""
    return values if copies == 1 else values[:, None].expand(-1, copies).reshape(-1)


def copies_in(x: Tensor, y: Tensor) -> int:
    """How many rows of x are one record: a label is a record, and its copies stand side by side."""
    copies = len(x) // max(1, len(y))
    if copies * len(y) != len(x) or (len(y) and not copies):
        raise ValueError(f"{len(x)} rows cannot be equally many copies of {len(y)} records")
    return max(1, copies)


def rule_for(layer: nn.Module, names: tuple[str, ...]) -> Rule:
    """The cheapest rule that is right for this layer."""
    if isinstance(layer, nn.Linear):
        return LinearRule(layer, names)
    plain = isinstance(layer, nn.Conv1d | nn.Conv2d) and layer.groups == 1 and layer.padding_mode == "zeros"
    if plain and layer.padding != "same":
        return ConvRule(layer, names)
    if isinstance(layer, nn.Embedding) and layer.max_norm is None and not layer.scale_grad_by_freq:
        return EmbeddingRule(layer, names)
    if isinstance(layer, nn.LayerNorm | nn.GroupNorm | nn.RMSNorm):
        return NormRule(layer, names)
    return AnyRule(layer, names)
