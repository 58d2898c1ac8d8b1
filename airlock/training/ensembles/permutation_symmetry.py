"""Which units of a network may be exchanged without changing what it computes.

The units of a hidden layer have no order of their own: permute the rows of its weights, its biases and the per-channel
parameters of its normalisation, and the columns of the layer behind it in the same way, and the function is the same.
`find_units` reads this off an `nn.Sequential` of dense and convolutional layers; for any other network it refuses, and
`given_units` takes the user's own list instead, checked by trying.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from airlock.errors import NetError
from airlock.training.ensembles.stacked import tensors
from airlock.training.gradients import Named

Order = NDArray[np.int64]

_ODD = (nn.Identity, nn.Tanh, nn.Softsign, nn.Hardtanh, nn.Tanhshrink, nn.Softshrink)  # f(-x) = -f(x)
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_SINGLE = (
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.ELU,
    nn.SELU,
    nn.CELU,
    nn.GELU,
    nn.SiLU,
    nn.Mish,
    nn.Sigmoid,
    nn.Softplus,
)
_MEAN_POOLS = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)
_MAX_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_AGREE = 1e-4


@dataclass(frozen=True)
class Axis:
    """One axis of one tensor along which units lie: unit u owns the places u · each to (u + 1) · each.

    Args:
        name: Of the parameter or buffer.
        axis: Of the tensor of a single network.
        each: Places a unit owns; a channel behind a `Flatten` owns height · width columns.
        incoming: Whether the tensor makes the units (their weights and biases), rather than reading them.
    """

    name: str
    axis: int
    each: int = 1
    incoming: bool = True


@dataclass(frozen=True)
class Units:
    """Units that may be exchanged with each other.

    Args:
        size: How many.
        axes: Where their parameters are.
        blocks: Units that a normalisation computes over together: sizes, each a multiple of the next. Blocks of one
            size may be exchanged as a whole, and units within the smallest ones.
        signed: Whether a unit may also change its sign, as between odd functions (tanh).
        site: The module whose output is these units' activations; empty where the user gave the units.
    """

    size: int
    axes: tuple[Axis, ...]
    blocks: tuple[int, ...] = ()
    signed: bool = False
    site: str = ""


def by_unit(stacked: Tensor, axis: Axis, size: int) -> Tensor:
    """The tensor of all models as (models, units, what a unit owns of it); a copy if need be."""
    value = stacked.movedim(axis.axis + 1, 1)
    return value.reshape(len(value), size, axis.each, -1).movedim(2, -1).reshape(len(value), size, -1)


def exchange(values: Named, units: Units, order: Order, signs: NDArray[np.float32] | None = None) -> None:
    """Unit `order[m, u]` of model m takes place u, times its sign, in all tensors; in place.

    Args:
        values: Stacked along the first axis.
        units: Which.
        order: A permutation a model: (models, units).
        signs: 1 or -1, of the new places.
    """
    for axis in units.axes:
        whole = values[axis.name]
        where = torch.from_numpy(order).to(whole.device)
        if axis.each > 1:
            where = (where[:, :, None] * axis.each + torch.arange(axis.each, device=whole.device)).flatten(1)
        for model, own in enumerate(where):  # row by row: no copy of all models at once
            moved = whole[model].index_select(axis.axis, own)
            if signs is not None:
                factors = torch.from_numpy(signs[model]).to(moved).repeat_interleave(axis.each)
                moved *= factors.view(-1, *[1] * (moved.dim() - axis.axis - 1))
            whole[model] = moved


def find_units(net: nn.Module) -> list[Units]:
    """The exchangeable units of an `nn.Sequential`, first layer first; none where there is no hidden layer.

    Raises:
        NetError: It is not a chain of layers that are known here.
    """
    walk = _Walk()
    for path, layer in _chain(net, ""):
        walk.take(path, layer)
    return walk.done


def _chain(net: nn.Module, path: str) -> list[tuple[str, nn.Module]]:
    """The layers of nested Sequentials, in the order in which they are applied."""
    if type(net) is not nn.Sequential:
        return [(path, net)]
    return [
        found for name, layer in net._modules.items() if layer for found in _chain(layer, f"{path}.{name}".strip("."))
    ]


def _refuse(path: str, found: str) -> NetError:
    return NetError(
        "a network whose exchangeable units can be told: an nn.Sequential of dense and convolutional layers",
        f"{found} at '{path or 'the network itself'}'",
        "Cannot tell which units may be exchanged, and exchanging others would change what the network computes.",
        "List the units yourself, or start all models alike so that they need no alignment.",
    )


class _Walk:
    """Goes through the layers and keeps the units that were made last and not yet read."""

    def __init__(self) -> None:
        self.done: list[Units] = []
        self._seen: set[int] = set()
        self._size, self._each, self._flat = 0, 1, False  # size 0: the inputs, which cannot be exchanged
        self._axes: list[Axis] = []
        self._blocks: set[int] = set()
        self._odd, self._site = True, ""

    def take(self, path: str, layer: nn.Module) -> None:
        kind = type(layer)
        if kind is nn.Linear or kind in _CONVOLUTIONS:
            self._weights(path, layer, kind is nn.Linear)
        elif kind is nn.Flatten:
            self._flatten(path, layer)
        elif kind in (*_BATCH_NORMS, nn.GroupNorm, nn.LayerNorm):
            self._norm(path, layer)
        elif kind in (*_ODD, *_SINGLE, *_DROPOUTS, *_MEAN_POOLS, *_MAX_POOLS):
            self._pass(path, kind, layer)
        else:
            raise _refuse(path, kind.__name__)

    def _weights(self, path: str, layer: nn.Module, dense: bool) -> None:
        """Close the units that this layer reads, open those that it makes."""
        weight = layer.weight
        assert isinstance(weight, Tensor)
        if id(weight) in self._seen or "weight" not in layer._parameters:
            raise _refuse(path, "a weight that is used twice or computed from others")
        self._seen.add(id(weight))
        if getattr(layer, "groups", 1) != 1 or (self._size and dense != self._flat):
            raise _refuse(path, f"a {type(layer).__name__} that does not read all of its inputs alike")
        if self._size:
            each, rest = divmod(weight.shape[1], self._size)
            if rest or self._each not in (0, each):
                raise _refuse(path, "inputs that are not the units before")
            self._close(path, Axis(f"{path}.weight".strip("."), 1, each, incoming=False))
        self._size, self._each, self._flat, self._blocks = len(weight), 1, dense, set()
        names = [name for name in ("weight", "bias") if layer._parameters.get(name) is not None]
        self._axes = [Axis(f"{path}.{name}".strip("."), 0) for name in names]
        self._odd, self._site = True, path

    def _close(self, path: str, reader: Axis) -> None:
        blocks = tuple(sorted(self._blocks, reverse=True))
        if any(large % small for large, small in pairwise(blocks)):
            raise _refuse(path, "normalisations over groups that do not nest before this layer,")
        self.done.append(Units(self._size, (*self._axes, reader), blocks, self._odd, self._site))

    def _flatten(self, path: str, layer: nn.Module) -> None:
        if not isinstance(layer, nn.Flatten) or (layer.start_dim, layer.end_dim) != (1, -1):
            raise _refuse(path, "a Flatten of other axes than all of a record's")
        if self._size and not self._flat:
            self._each = 0  # as many as the next dense layer has columns a channel
        self._flat = True

    def _norm(self, path: str, layer: nn.Module) -> None:
        """Per-channel parameters travel with the channel; what is computed over several channels ties them."""
        if not self._size:
            return
        if self._flat and self._each != 1:
            raise _refuse(path, f"a {type(layer).__name__} behind a Flatten of channels")
        if isinstance(layer, nn.LayerNorm) and (not self._flat or layer.normalized_shape != (self._size,)):
            raise _refuse(path, "a LayerNorm over other things than the units")
        if isinstance(layer, nn.GroupNorm) and 1 < layer.num_groups < self._size:
            self._blocks.add(self._size // layer.num_groups)
        if getattr(layer, "num_features", getattr(layer, "num_channels", self._size)) != self._size:
            raise _refuse(path, f"a {type(layer).__name__} over other things than the units")
        held = {**layer._parameters, **layer._buffers}
        self._axes += [Axis(f"{path}.{name}", 0) for name, value in held.items() if value is not None and value.dim()]
        self._odd = False

    def _pass(self, path: str, kind: type, layer: nn.Module) -> None:
        if self._size and self._flat and kind in (*_MEAN_POOLS, *_MAX_POOLS):
            raise _refuse(path, "a pool over units")
        self._odd = self._odd and (kind in _ODD or kind in _DROPOUTS or kind in _MEAN_POOLS)
        if kind in _SINGLE or kind in _ODD:
            self._site = path


def given_units(
    net: nn.Module, lists: Sequence[Sequence[tuple[str, int]]], shape: tuple[int, ...], seed: int = 0
) -> list[Units]:
    """The user's own units: for each exchangeable set the tensors and axes along which it lies, checked by trying.

    The shortest axis of a set says how many units there are; a longer one holds several consecutive places of each.
    A tensor's first axis counts as making the units, any other as reading them.

    Args:
        net: The network.
        lists: For every set (name of parameter or buffer, axis).
        shape: Of one record.
        seed: Of the permutations and records it is tried on; public.

    Raises:
        NetError: There is no such tensor or axis, the lengths do not fit, or the network's outputs change.
    """
    held = tensors(net)
    units = [_given(held, axes) for axes in lists]
    rng = np.random.default_rng(seed)
    moved, alone = copy.deepcopy(net).eval(), {name: value[None].clone() for name, value in held.items()}
    for own in units:
        exchange(alone, own, rng.permutation(own.size)[None])
    for name, value in tensors(moved).items():
        value.copy_(alone[name][0])
    x = torch.rand((4, *shape), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        if not torch.allclose(moved(x), copy.deepcopy(net).eval()(x), rtol=_AGREE, atol=_AGREE):
            raise NetError(
                "units that may be exchanged without changing the network's outputs",
                "units whose exchange changes them",
                "The aligned models would not be the trained ones.",
                "List every tensor that makes or reads them, with the right axis.",
            )
    return units


def _given(held: Named, axes: Sequence[tuple[str, int]]) -> Units:
    for name, axis in axes:
        if name not in held or not 0 <= axis < held[name].dim():
            raise NetError("a parameter's or buffer's name with one of its axes", f"'{name}' with axis {axis}")
    lengths = [held[name].shape[axis] for name, axis in axes]
    size = min(lengths, default=0)
    if not size or any(length % size for length in lengths):
        raise NetError("axes that hold the same units", f"the lengths {lengths}")
    found = [Axis(name, axis, n // size, axis == 0) for (name, axis), n in zip(axes, lengths, strict=True)]
    return Units(size, tuple(found))
