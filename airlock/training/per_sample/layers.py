"""Per-record gradients of one layer, from its inputs (a) and its output gradients (b).

Every rule gives three things for one call of a layer: the squared norm of every record's gradient, the gradients
themselves (`rows`), and their weighted sum. For a layer that is a matrix product at T positions, a record's gradient is
Σ_t b_t a_tᵀ: its norm follows from the two Gram matrices without forming it ("ghost norm", Goodfellow 2015, Li et al.
2022), which is cheaper if 2T(in + out) < in · out; otherwise the rows are formed. Norms and sums are those of `sums`,
in float64 and outside any autocast.

What belongs to which record is not guessed from shapes: every tensor of a call comes with its `Axis` (`record_axis`). A
rule sees it as (records, *shape of one record's slice): one slice may hold several rows of the batch (copies of the
record, views of it) or several positions of a sequence, which are all terms of the same sum.

Where people are protected, a "record" is a row, and a call has `people`: squares are then those of the sum over a
person's rows, at her first row. Rows that a rule forms are added up by its caller, unless the rule keeps them.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from airlock.mechanisms.clipping import row_squares
from airlock.nets.hugging_face import is_conv1d, is_dense
from airlock.nets.wide_resnet import StandardisedConv2d
from airlock.training.gradients import Named
from airlock.training.per_sample.operator_rules import Axis, Unshown
from airlock.training.per_sample.people import TRITON, People
from airlock.training.per_sample.sums import (
    FLOOR,
    at_once,
    formed_in_kernels,
    product_squares,
    product_squares_by_person,
    weighted_product,
    weighted_sum,
)

Scales = Mapping[str, Tensor | None]  # by parameter name
_MANY_PLACES = 192  # from this many on, it is cheaper on a GPU to keep a gradient than to form it twice


@dataclass
class LayerCall:
    """One call of a layer.

    Args:
        records: R.
        leaves: All inputs, with tensors detached.
        structure: How they were passed.
        axes: Where the records are in each of the leaves; None if there are none.
        backs: The gradients of the losses with respect to each output tensor, as slices of the records, that is
            (records, *shape of one record's slice); None if there is none.
        people: Who owns the records; None if each is protected by itself.
        kept: What was computed for the norms and is used again for the sum.
    """

    records: int
    leaves: list[Any]
    structure: TreeSpec
    axes: list[Axis | None]
    backs: list[Tensor | None]
    people: People | None = None
    kept: dict[str, Tensor] = field(default_factory=dict)

    @property
    def a(self) -> Tensor:
        """The first input, as slices of the records."""
        return apart(self.leaves[0], self.axes[0], self.records)

    @property
    def back(self) -> Tensor:
        """The output gradient."""
        assert self.backs[0] is not None
        return self.backs[0]

    def spread(self, factors: Tensor) -> Tensor:
        """The factor of every record, from those of people if they are protected."""
        return factors if self.people is None else self.people.spread(factors)

    @property
    def numbers(self) -> int:
        """Roughly how many numbers the call holds."""
        inputs = self.leaves[0].numel() if self.leaves and isinstance(self.leaves[0], Tensor) else 0
        return inputs + 2 * sum(back.numel() for back in self.backs if back is not None)


def apart(value: Tensor, axis: Axis | None, records: int) -> Tensor:
    """(records, *shape of one record's slice); a tensor without records is shared by all."""
    if axis is None:
        return value[None].expand(records, *value.shape)
    before, after = value.shape[: axis.dim], value.shape[axis.dim + 1 :]
    shares = value.reshape(*before, -1, records, axis.inner, *after).movedim(axis.dim + 1, 0)
    return shares.flatten(axis.dim + 1, axis.dim + 2)


class Rule(ABC):
    """Per-record gradients for one kind of layer; `names` are its trainable parameters.

    `reads_parameters` says whether `rows` needs their numbers, and not only their sizes.
    """

    reads_parameters = False

    def __init__(self, layer: nn.Module, names: tuple[str, ...]) -> None:
        self.layer: Any = layer
        self.names = names

    @abstractmethod
    def rows(self, call: LayerCall) -> Named:
        """Every record's gradient: (records, *shape of the parameter)."""

    def squares(self, call: LayerCall, scales: Scales | None, exact: bool = False) -> Named | None:
        """Every record's squared norm without forming rows, in units of the scales; None if rows are cheaper.

        With `exact`, the norm alone; otherwise with the margin for rounding (`sums`).
        """
        return None

    def weighted(self, call: LayerCall, factors: Named, scaled: bool = False) -> Named:
        """Σ factor · gradient over the records, in float64, of the same numbers that `squares` measured."""
        return weighted_rows(self.rows(call), factors)

    def restore(self, name: str, value: Tensor) -> Tensor:
        """From the layout of `rows` (without the records) to the parameter's own."""
        return value

    def places(self, call: LayerCall) -> int:
        """T, if rows are not formed."""
        return 1

    def used(self, call: LayerCall) -> list[Tensor]:
        """What follows from a record and its gradient follows from: (records, ...) each."""
        return [call.a, call.back]


def weighted_rows(rows: Named, factors: Named) -> Named:
    """Σ factor · row in float64, by parameter, in the rows' layout."""
    return {name: weighted_sum(factors[name], g) for name, g in rows.items()}


class Product(Rule):
    """A layer that multiplies by a matrix at T positions: (records, T, in) to (records, T, out)."""

    @abstractmethod
    def sides(self, call: LayerCall) -> tuple[Tensor, Tensor]:
        """A as (records, T, in), b as (records, T, out), in float32."""

    @abstractmethod
    def sizes(self, call: LayerCall) -> tuple[int, int, int]:
        """T, in and out."""

    def factors(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """The two sides in the order (columns, rows) of the weight, which has a row for each output."""
        return a, b

    def ghost(self, call: LayerCall) -> bool:
        """Whether norms are computed without forming rows."""
        positions, into, out = self.sizes(call)
        most = 1 if call.people is None else call.people.most
        return positions == 1 or 2 * positions * most * (into + out) < into * out

    def places(self, call: LayerCall) -> int:
        """T, if rows are not formed."""
        return self.sizes(call)[0] if self.ghost(call) else 1

    def rows(self, call: LayerCall) -> Named:
        """Σ_t b_t a_tᵀ, and Σ_t b_t for the bias."""
        a, b = self.sides(call)
        found = {}
        if "weight" in self.names:
            columns, rows = self.factors(a, b)
            found["weight"] = torch.bmm(rows.transpose(1, 2), columns).view(len(b), *self.layer.weight.shape)
        if "bias" in self.names:
            found["bias"] = _over_places(b)
        return found

    def squares(self, call: LayerCall, scales: Scales | None, exact: bool = False) -> Named | None:
        """From the Gram matrices; with one position simply ‖a‖² ‖b‖²."""
        if not self.ghost(call):
            return None
        a, b = self.sides(call)
        found = {}
        if "weight" in self.names:
            columns, rows = self.factors(a, b)
            scaled = rows if scales is None else _over(rows, scales["weight"])
            if call.people is None:
                found["weight"] = product_squares(columns, scaled, scales is None, exact)
            else:
                found["weight"] = product_squares_by_person(columns, scaled, call.people, scales is None, exact)
        if "bias" in self.names:
            summed = _over_places(b)
            if call.people is not None:
                summed = call.people.add_up(summed.clone())
            call.kept["bias"] = summed
            found["bias"] = row_squares(summed if scales is None else _over(summed, scales["bias"]))
        return found

    def weighted(self, call: LayerCall, factors: Named, scaled: bool = False) -> Named:
        """One matrix product over records and positions together."""
        a, b = self.sides(call)
        found = {}
        if "weight" in self.names:
            total = weighted_product(factors["weight"], *self.factors(a, b), not scaled, call.people)
            found["weight"] = total.view_as(self.layer.weight)
        if "bias" in self.names:
            found["bias"] = weighted_sum(factors["bias"], call.kept["bias"])
        return found


def _over_places(b: Tensor) -> Tensor:
    return b[:, 0] if b.shape[1] == 1 else b.sum(1)


def _over(b: Tensor, scale: Tensor | None) -> Tensor:
    """B in units of a scale that is one number, or one number per output."""
    return b if scale is None else b / scale.flatten()


class LinearRule(Product):
    """nn.Linear at any number of positions; records may be along any dimension but the last."""

    def sides(self, call: LayerCall) -> tuple[Tensor, Tensor]:
        """All dimensions of a slice but the last are positions."""
        a, b = call.a, call.back
        return a.flatten(1, -2).float(), b.flatten(1, -2).float()

    def ghost(self, call: LayerCall) -> bool:
        """On a GPU, kernels form gradients twice rather than keep them, unless there are many positions."""
        positions = self.sizes(call)[0]
        kept = call.people is not None and not call.people.fixed
        by_kernels = not kept and formed_in_kernels(call.back.device.type, positions)
        return super().ghost(call) or (by_kernels and positions < _MANY_PLACES)

    def sizes(self, call: LayerCall) -> tuple[int, int, int]:
        """From the shape of a slice."""
        a, b = call.a, call.back
        return a[0, ..., 0].numel(), a.shape[-1], b.shape[-1]


class TransposedRule(LinearRule):
    """Conv1D of GPT-2: a dense layer whose weight has a row for each input."""

    def factors(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """The other way round."""
        return b, a


class AdapterRule(Rule):
    """A dense layer with a low-rank adapter beside it (`adapted`), computed as the one matrix product that it is.

    With y = (W + s B A) x, the gradient of A is that of a dense layer from x to Bᵀb · s, and the gradient of B that of
    one from A x to b · s.
    """

    def __init__(self, layer: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__(layer, names)
        first, second, self.scale = adapter_of(layer)
        self.inner = {name: LinearRule(layer.get_submodule(name.rpartition(".")[0]), ("weight",)) for name in names}
        self.first, self.second = first, second

    def rows(self, call: LayerCall) -> Named:
        """Of both matrices."""
        return {name: self.inner[name].rows(own)["weight"] for name, own in self._calls(call).items()}

    def squares(self, call: LayerCall, scales: Scales | None, exact: bool = False) -> Named | None:
        """As for two dense layers; rows are formed for both or for none."""
        found = {}
        for name, own in self._calls(call).items():
            one = self.inner[name].squares(own, None if scales is None else {"weight": scales[name]}, exact)
            if one is None:
                return None
            found[name] = one["weight"]
        return found

    def weighted(self, call: LayerCall, factors: Named, scaled: bool = False) -> Named:
        """As for two dense layers."""
        calls = self._calls(call).items()
        return {
            name: self.inner[name].weighted(own, {"weight": factors[name]}, scaled)["weight"] for name, own in calls
        }

    def places(self, call: LayerCall) -> int:
        """The larger number of both."""
        return max(self.inner[name].places(own) for name, own in self._calls(call).items())

    def used(self, call: LayerCall) -> list[Tensor]:
        """Also what is between the two matrices: it is computed for all records at once."""
        return [*super().used(call), *self._between(call)]

    def _between(self, call: LayerCall) -> tuple[Tensor, Tensor]:
        """A x, and Bᵀb · s, in float32."""
        if "between" not in call.kept:
            call.kept["between"] = F.linear(call.a.float(), self.first.weight.detach())
            call.kept["back"] = (call.back.float() @ self.second.weight.detach()).mul_(self.scale)
        return call.kept["between"], call.kept["back"]

    def _calls(self, call: LayerCall) -> dict[str, LayerCall]:
        """The two dense layers' calls, by the name of their weight."""
        between, back = self._between(call)
        sides = {self.first: (call.a, back), self.second: (between, call.back)}
        found = {}
        for name, rule in self.inner.items():
            a, b = sides[rule.layer]
            if rule.layer is self.second and self.scale != 1.0:
                b = b * self.scale
            found[name] = replace(call, leaves=[a], axes=[Axis(0)], backs=[b], kept={})
        return found


class ConvRule(Product):
    """nn.Conv1d and nn.Conv2d with one group: a matrix product on patches; records are the first dimension."""

    def sides(self, call: LayerCall) -> tuple[Tensor, Tensor]:
        """Patches as positions."""
        a, back, rows = self._batches(call)
        patches, given = self._patches(a).transpose(1, 2), back.flatten(2).transpose(1, 2)
        one, other = (t.reshape(call.records, rows * t.shape[1], t.shape[2]) for t in (patches, given))
        return one, other

    def _batches(self, call: LayerCall) -> tuple[Tensor, Tensor, int]:
        """A and b as batches of images, those of one record adjacent, and the number per record."""
        a, back = call.a, call.back
        return a.flatten(0, 1).float(), back.flatten(0, 1).float(), back.shape[1]

    def sizes(self, call: LayerCall) -> tuple[int, int, int]:
        """Without cutting patches."""
        back, weight = call.back, self.layer.weight
        return back.shape[1] * back[0, 0, 0].numel(), weight.shape[1:].numel(), weight.shape[0]

    def rows(self, call: LayerCall) -> Named:
        """Every record's own weight gradient, and the sum over positions for the bias."""
        a, back, rows = self._batches(call)
        found = {}
        if "weight" in self.names:
            found["weight"] = self._weight_rows(a, back, call.records, rows)
        if "bias" in self.names:
            found["bias"] = _added(back.flatten(2).sum(2), rows)
        return found

    def _weight_rows(self, a: Tensor, back: Tensor, records: int, rows: int) -> Tensor:
        """On a GPU by a kernel, or from patches without Triton; on a CPU as one convolution with many groups."""
        weight = self.layer.weight
        if not self._last(a):
            a, back = (_side_by_side(value, rows) for value in (a, back))
            return self._weight_gradient(a, back, groups=records).view(records, *weight.shape)
        if max(weight.shape[2:]) > 1 and TRITON:
            from airlock.training.per_sample.conv_kernel import conv_rows

            return _added(conv_rows(a, back, self.layer, _padding(self.layer)), rows)
        positions, into, out = back[0, 0].numel(), weight.shape[1:].numel(), len(weight)
        step = at_once(a, positions * into)
        g = back.new_empty(len(a), out, into)
        back = back.flatten(2)
        for start in range(0, len(a), step):
            part = slice(start, start + step)
            torch.bmm(back[part], self._patches_last(a[part]), out=g[part])
        return _added(g.view(len(a), out, *weight.shape[2:], weight.shape[1]), rows)

    def _last(self, a: Tensor) -> bool:
        """Whether rows have the input channels last: on a GPU, where patches are then copied contiguously."""
        return a.is_cuda and self.layer.weight.dim() == 4 and tuple(self.layer.dilation) == (1, 1)

    def restore(self, name: str, value: Tensor) -> Tensor:
        """Move the input channels back in front of the kernel."""
        return value.permute(0, 3, 1, 2) if name == "weight" and self._last(value) else value

    def _patches_last(self, a: Tensor) -> Tensor:
        """(rows, positions, kernel · in), by a strided view and one copy; F.unfold loops over rows on CUDA."""
        (high, wide), (down, right), padding = self.layer.kernel_size, self.layer.stride, _padding(self.layer)
        if any(padding):
            a = F.pad(a, (padding[1], padding[1], padding[0], padding[0]))
        a = a.permute(0, 2, 3, 1)
        view = a.unfold(1, high, down).unfold(2, wide, right).permute(0, 1, 2, 4, 5, 3)
        return view.reshape(len(a), view.shape[1] * view.shape[2], -1)

    def _weight_gradient(self, a: Tensor, b: Tensor, groups: int) -> Tensor:
        """One gradient of the weight per group, stacked."""
        layer, own = self.layer, self.layer.weight.detach()  # only its size is needed; else the gradient had a graph
        padding, weight = _padding(layer), own.new_empty(groups * len(own), *own.shape[1:], dtype=torch.float32)
        gradient: Tensor = torch.ops.aten.convolution_backward(
            b, a, weight, None, layer.stride, padding, layer.dilation, False, [0] * len(padding), groups,
            [False, True, False],
        )[1]  # fmt: skip
        return gradient

    def _patches(self, a: Tensor) -> Tensor:
        """(rows, in · kernel, positions)."""
        layer = self.layer
        kernel, stride, dilation, padding = layer.kernel_size, layer.stride, layer.dilation, _padding(layer)
        if a.dim() == 3:
            a = a[:, :, None]
            kernel, stride, dilation, padding = (1, *kernel), (1, *stride), (1, *dilation), [0, *padding]
        return F.unfold(a, kernel, dilation, tuple(padding), stride)


def _added(rows: Tensor, each: int) -> Tensor:
    """Add up the rows of the batch that belong to one record, of which there are `each`, adjacent."""
    return rows if each == 1 else rows.reshape(-1, each, *rows.shape[1:]).sum(1)


def _side_by_side(value: Tensor, each: int) -> Tensor:
    """Records as groups of channels, their rows as the batch: (each, records · channels, ...)."""
    by_record = value.reshape(-1, each, *value.shape[1:])
    return by_record.transpose(0, 1).flatten(1, 2)


def _padding(layer: Any) -> list[int]:
    if layer.padding == "valid":
        return [0] * len(layer.kernel_size)
    return list(layer.padding)


class StandardisedConvRule(ConvRule):
    """A convolution with standardised filters: rows of what is used, mapped back to rows of what is trained.

    The map is linear in a record's row and follows from the weight alone (`StandardisedConv2d.pull_back`), so that a
    row still depends on its own record only. It comes before any norm is taken: what is clipped is the gradient of the
    parameter. It changes norms, so that none is taken from Gram matrices.
    """

    reads_parameters = True

    def ghost(self, call: LayerCall) -> bool:
        """Never."""
        return False

    def rows(self, call: LayerCall) -> Named:
        """As of a convolution, then mapped back."""
        found = super().rows(call)
        if "weight" in found:
            rows, weight = found["weight"], self.layer.weight.detach().float()
            weight = weight.permute(0, 2, 3, 1) if self._last(rows) else weight
            found["weight"] = self.layer.pull_back(rows.flatten(2), weight.flatten(1)).view(rows.shape)
        return found


class EmbeddingRule(Rule):
    """nn.Embedding: position t adds b_t to row number a_t."""

    def _sides(self, call: LayerCall) -> tuple[Tensor, Tensor]:
        ids = call.a.flatten(1)
        b = call.back.flatten(1, -2).float()
        if self.layer.padding_idx is not None:
            b = b * (ids != self.layer.padding_idx)[:, :, None]
        return ids, b

    def places(self, call: LayerCall) -> int:
        """T."""
        return call.a[0].numel()

    def rows(self, call: LayerCall) -> Named:
        """Every record's whole table; only if a table is shared or used twice."""
        ids, b = self._sides(call)
        table = b.new_zeros(len(ids), *self.layer.weight.shape)
        return {"weight": table.scatter_add_(1, ids[:, :, None].expand_as(b), b)}

    def squares(self, call: LayerCall, scales: Scales | None, exact: bool = False) -> Named:
        """Positions with the same index add up, all others are orthogonal; cancellation is treated as in `sums`."""
        ids, b = self._sides(call)
        scale = None if scales is None else scales["weight"]
        if scale is not None:
            b = b / (scale if scale.numel() == 1 else scale.flatten()[ids][:, :, None])
        wide = b.double()
        gram, sizes = _same_places(ids, ids, wide, wide).clamp_min_(0), torch.linalg.vector_norm(wide, dim=2).sum(1)
        floor = 0.0 if exact else FLOOR
        if call.people is None:
            return {"weight": gram + floor * sizes.square()}

        def products(one: list[Tensor], other: list[Tensor]) -> Tensor:
            return _same_places(one[0], other[0], one[1], other[1])

        people = call.people
        return {
            "weight": people.squares(gram, sizes, lambda: people.cross_terms((ids, b), products), floor, alone=True)
        }

    def weighted(self, call: LayerCall, factors: Named, scaled: bool = False) -> Named:
        """One scatter over all records."""
        ids, b = self._sides(call)
        table = torch.zeros_like(self.layer.weight, dtype=torch.float64)
        weighted = b.double().mul_(call.spread(factors["weight"])[:, None, None])
        return {"weight": table.index_add_(0, ids.flatten(), weighted.flatten(0, 1))}


def _same_places(ids: Tensor, others: Tensor, b: Tensor, other_b: Tensor) -> Tensor:
    """Σ ⟨b_t, b_s⟩ over the positions with the same index, for every pair of records."""
    same = ids[:, :, None] == others[:, None, :]
    return torch.bmm(b, other_b.transpose(1, 2)).mul_(same).flatten(1).sum(1)


class NormRule(Rule):
    """LayerNorm, GroupNorm and RMSNorm: the gradient of the gain is b times the normalised input."""

    def rows(self, call: LayerCall) -> Named:
        """Small: one number per gain."""
        a, b = call.a, call.back.float()
        found = {}
        if "weight" in self.names:
            found["weight"] = self._gather(b * self._normalised(a.float()))
        if "bias" in self.names:
            found["bias"] = self._gather(b)
        return found

    def _normalised(self, a: Tensor) -> Tensor:
        layer = self.layer
        if isinstance(layer, nn.GroupNorm):
            return F.group_norm(a.flatten(0, 1), layer.num_groups, eps=layer.eps).view_as(a)
        if isinstance(layer, nn.RMSNorm):
            return F.rms_norm(a, list(layer.normalized_shape), eps=layer.eps)
        return F.layer_norm(a, layer.normalized_shape, eps=layer.eps)

    def _gather(self, b: Tensor) -> Tensor:
        """Sum over everything but the record and the gain's own dimensions."""
        if isinstance(self.layer, nn.GroupNorm):
            return b.flatten(3).sum(3).sum(1) if b.dim() > 3 else b.sum(1)
        own = len(self.layer.normalized_shape)
        return b.flatten(1, b.dim() - own - 1).sum(1) if b.dim() - own > 1 else b


class AnyRule(Rule):
    """Any other layer with parameters: torch.func on that layer alone, one record's slice at a time."""

    reads_parameters = True

    def rows(self, call: LayerCall) -> Named:
        """One vector-Jacobian product per record."""
        rest = {name: p.detach() for name, p in self.layer.named_parameters() if name not in self.names}
        rest |= dict(self.layer.named_buffers())
        own = {name: self.layer.get_parameter(name).detach() for name in self.names}
        given = [
            apart(leaf, axis, call.records) if axis is not None else leaf
            for leaf, axis in zip(call.leaves, call.axes, strict=True)
        ]
        wanted = [place for place, back in enumerate(call.backs) if back is not None]
        given_back = [back for back in call.backs if back is not None]

        def one(backs: Sequence[Tensor], *leaves: Any) -> Named:
            inputs, keywords = tree_unflatten(list(leaves), call.structure)

            def run(values: Named) -> tuple[Tensor, ...]:
                out = tree_flatten(called_with(self.layer, {**rest, **values}, inputs, keywords))[0]
                floats = [t for t in out if isinstance(t, Tensor) and t.is_floating_point()]
                return tuple(floats[place] for place in wanted)

            outputs, pull, *_ = vjp(run, own)
            found: Named = pull(tuple(b.to(o.dtype) for b, o in zip(backs, outputs, strict=True)))[0]
            return found

        dims = (0, *(None if axis is None else 0 for axis in call.axes))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")  # an operation without a batching rule
            rows = vmap(one, in_dims=dims, randomness="different")(given_back, *given)
        return {name: g.float() for name, g in rows.items()}


def called_with(net: nn.Module, values: Named, inputs: Any, keywords: Any = None) -> Any:
    """What a network gives with these tensors wherever its own of that name are; its own are back on return.

    Buffers that it replaced are replaced in `values`. `functional_call` with tied weights leaves a replacement behind
    in a module that has two names: it takes and puts back under each, and what it takes under the second is the
    replacement. Here every module goes by one name.
    """
    whole = {**dict(net.named_parameters(remove_duplicate=False)), **dict(net.named_buffers(remove_duplicate=False))}
    named = {id(whole[name]): name for name in values if name in whole}
    standing = {
        f"{prefix}.{name}" if prefix else name: named[id(tensor)]
        for prefix, module in net.named_modules()
        for kind in (module.named_parameters, module.named_buffers)
        for name, tensor in kind(recurse=False, remove_duplicate=False)
        if id(tensor) in named
    }
    instead = {place: values[name] for place, name in standing.items()}
    found = functional_call(net, instead, inputs, keywords, tie_weights=False)
    values.update({name: instead[place] for place, name in standing.items()})
    return found


def rule_for(layer: nn.Module, names: tuple[str, ...]) -> Rule:
    """The cheapest rule that is correct for this layer."""
    plain = set(names) <= {"weight", "bias"}
    if any("." in name for name in names) and adapted(layer):
        return AdapterRule(layer, names)
    if plain and _acts_as(layer, nn.Linear):
        return LinearRule(layer, names)
    if plain and is_conv1d(layer):
        return TransposedRule(layer, names)
    if plain and _acts_as(layer, nn.Conv1d, nn.Conv2d) and _one_group(layer):
        return ConvRule(layer, names)
    if plain and _acts_as(layer, StandardisedConv2d) and _one_group(layer):
        return StandardisedConvRule(layer, names)
    if plain and _acts_as(layer, nn.Embedding) and _plain_table(layer):
        return EmbeddingRule(layer, names)
    if plain and _acts_as(layer, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm):
        return NormRule(layer, names)
    return AnyRule(layer, names)


def adapted(layer: Any) -> bool:
    """Whether it is a dense layer of peft with one plain adapter, so that it is one matrix product, and that is all."""
    kind = type(layer)
    if (kind.__module__, kind.__qualname__) != ("peft.tuners.lora.layer", "Linear"):
        return False
    active = list(layer.active_adapters)
    if len(active) != 1 or active[0] not in layer.lora_A or layer.merged or layer.disable_adapters:
        return False
    dropout, pair = layer.lora_dropout[active[0]], (layer.lora_A[active[0]], layer.lora_B[active[0]])
    return (
        not layer.lora_variant
        and (isinstance(dropout, nn.Identity) or not dropout.p)
        and all(type(one) is nn.Linear and one.bias is None for one in pair)
        and is_dense(layer.base_layer)
        and "forward" not in vars(layer)
    )


def adapter_of(layer: Any) -> tuple[Any, Any, float]:
    """The two narrow matrices of such a layer, A before B, and what their product is multiplied by."""
    name = next(iter(layer.active_adapters))
    return layer.lora_A[name], layer.lora_B[name], float(layer.scaling[name])


def as_one_product(layer: Any, x: Tensor) -> Tensor:
    """What such a layer computes, as one matrix product: (W + s B A) x."""
    first, second, scale = adapter_of(layer)
    base: Any = layer.base_layer
    turned = is_conv1d(base)
    with torch.autocast(x.device.type, enabled=False):
        added = second.weight @ first.weight
        whole = torch.add(base.weight.t() if turned else base.weight, added, alpha=scale)
    return F.linear(x, whole, base.bias)


def _acts_as(layer: Any, *kinds: Any) -> bool:
    """Whether it is one of these, and does not override what they compute."""
    return any(isinstance(layer, kind) and type(layer).forward is kind.forward for kind in kinds)


def _plain_table(layer: Any) -> bool:
    return layer.max_norm is None and not layer.scale_grad_by_freq


def _one_group(layer: Any) -> bool:
    return bool(layer.groups == 1 and layer.padding_mode == "zeros" and layer.padding != "same")


def check_axis(rule: Rule, dims: int, before: Axis | None, after: Axis, spread: str) -> None:
    """Check that the records are where this rule can separate them.

    Args:
        rule: The rule of a layer with one input and one output.
        dims: The number of dimensions of the output.
        before: Where the records are in the input; None if there are none.
        after: Where they are in the output.
        spread: "own" unless the output was the same for all records and was expanded for each.

    Raises:
        Unshown: They are elsewhere.
    """
    front = dims - 1
    if isinstance(rule, ConvRule | NormRule):
        front = dims - len(getattr(rule.layer, "normalized_shape", range(dims - 1)))
    if after.dim >= front or (before != after and not (before is None and spread != "own")):
        raise Unshown(f"the records are not in front of the dimensions that {type(rule.layer).__name__} works on")
