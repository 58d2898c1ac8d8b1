"""Permutation alignment: the units of many models in one common order, so that a coordinate means the same in each.

Models with different initialisations learn the same features in different units, and the average of such models is
useless. Here the units of every model are permuted, layer by layer, to bring it as close as possible to a reference
(weight matching: Ainsworth, Hayase and Srinivasa 2022); the function that a model computes does not change. The
reference is one of the models and then, by default, repeatedly the mean of the others, which lowers the variance of
every coordinate.

For each layer the inner products of all pairs of units are one matrix product for all models, and the best permutation
is a linear assignment. The layers depend on each other, so they take turns until none changes; the inner product with
the reference grows with every change, so this terminates.

There is no privacy mechanism here: models, reference and orders all depend on the records, and none may be released.

Which units may be permuted without changing what a network computes (`find_units`)? The units of a hidden layer have no
inherent order: permute the rows of its weights, its biases and the per-channel parameters of its normalisation, and the
columns of the next layer in the same way, and the function is the same. `find_units` reads this off an `nn.Sequential`
of dense and convolutional layers and refuses any other network.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from airlock.errors import NetError, TrainingError
from airlock.training.ensembles.ensemble import Ensemble
from airlock.training.gradients import Named

# Permutation symmetry: which units may be exchanged.

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


@dataclass(frozen=True)
class UnitAxis:
    """One axis of one tensor along which units lie: unit u owns the entries u · each to (u + 1) · each.

    Args:
        name: The name of the parameter or buffer.
        axis: The axis in the tensor of a single network.
        each: Entries per unit; a channel after a `Flatten` owns height · width columns.
        incoming: Whether the tensor computes the units (their weights and biases) rather than reading them.
    """

    name: str
    axis: int
    each: int = 1
    incoming: bool = True


@dataclass(frozen=True)
class Units:
    """Units that may be permuted among each other.

    Args:
        size: The number of units.
        axes: Where their parameters are.
        blocks: Sizes of the groups that a normalisation computes over, each a multiple of the next. Blocks of one size
            may be permuted as a whole, and units within the smallest blocks.
        signed: Whether a unit may also change its sign, as between odd functions (tanh).
        site: The module whose output is these units' activations; empty if the user specified the units.
    """

    size: int
    axes: tuple[UnitAxis, ...]
    blocks: tuple[int, ...] = ()
    signed: bool = False
    site: str = ""


def by_unit(stacked: Tensor, axis: UnitAxis, size: int) -> Tensor:
    """The tensor of all models as (models, units, entries per unit); a copy if necessary."""
    value = stacked.movedim(axis.axis + 1, 1)
    return value.reshape(len(value), size, axis.each, -1).movedim(2, -1).reshape(len(value), size, -1)


def exchange(values: Named, units: Units, order: Order, signs: NDArray[np.float32] | None = None) -> None:
    """Move unit `order[m, u]` of model m to position u, times its sign, in all tensors; in place.

    Args:
        values: Tensors stacked along the first axis.
        units: The units to permute.
        order: One permutation per model: (models, units).
        signs: 1 or -1, for the new positions.
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
    """The permutable units of an `nn.Sequential`, first layer first; none if there is no hidden layer.

    Raises:
        NetError: It is not a chain of supported layers.
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
        "a network whose permutable units can be determined: an nn.Sequential of dense and convolutional layers",
        f"{found} at '{path or 'the network itself'}'",
        "Permuting the wrong units would change what the network computes.",
        "Use such a network, or start all models from the same weights so that they need no alignment.",
    )


class _Walk:
    """Walks through the layers and keeps the units that were computed last and not yet read."""

    def __init__(self) -> None:
        self.done: list[Units] = []
        self._seen: set[int] = set()
        self._size, self._each, self._flat = 0, 1, False  # size 0: the inputs, which cannot be permuted
        self._axes: list[UnitAxis] = []
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
        """Close the units that this layer reads, open those that it computes."""
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
            self._close(path, UnitAxis(f"{path}.weight".strip("."), 1, each, incoming=False))
        self._size, self._each, self._flat, self._blocks = len(weight), 1, dense, set()
        names = [name for name in ("weight", "bias") if layer._parameters.get(name) is not None]
        self._axes = [UnitAxis(f"{path}.{name}".strip("."), 0) for name in names]
        self._odd, self._site = True, path

    def _close(self, path: str, reader: UnitAxis) -> None:
        blocks = tuple(sorted(self._blocks, reverse=True))
        if any(large % small for large, small in pairwise(blocks)):
            raise _refuse(path, "normalisations over groups that do not nest before this layer,")
        self.done.append(Units(self._size, (*self._axes, reader), blocks, self._odd, self._site))

    def _flatten(self, path: str, layer: nn.Module) -> None:
        if not isinstance(layer, nn.Flatten) or (layer.start_dim, layer.end_dim) != (1, -1):
            raise _refuse(path, "a Flatten of other axes than all of a record's")
        if self._size and not self._flat:
            self._each = 0  # as many as the next dense layer has columns per channel
        self._flat = True

    def _norm(self, path: str, layer: nn.Module) -> None:
        """Per-channel parameters move with their channel; statistics over several channels tie these together."""
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
        self._axes += [
            UnitAxis(f"{path}.{name}", 0) for name, value in held.items() if value is not None and value.dim()
        ]
        self._odd = False

    def _pass(self, path: str, kind: type, layer: nn.Module) -> None:
        if self._size and self._flat and kind in (*_MEAN_POOLS, *_MAX_POOLS):
            raise _refuse(path, "a pool over units")
        self._odd = self._odd and (kind in _ODD or kind in _DROPOUTS or kind in _MEAN_POOLS)
        if kind in _SINGLE or kind in _ODD:
            self._site = path


# Alignment.


_SWEEPS = 100  # far more than are ever needed; the objective grows with each
_GAIN = 1e-7  # relative to the objective: less is rounding
_PARTS = 8  # of the models; each part is aligned to the mean of the others
_CLOSER = 1e-4  # a round that gains less is the last


@dataclass(frozen=True)
class Aligned:
    """Aligned models, and how the alignment went.

    Args:
        ensemble: The models with a common order of their units; each computes the same function as before.
        orders: For every set of units (models, units): where the unit at each position came from.
        closeness: The mean cosine between a model and the mean of all, before and after.
        rounds: How many times the reference was the mean of the others.
    """

    ensemble: Ensemble
    orders: tuple[Order, ...]
    closeness: tuple[float, float]
    rounds: int


def align(
    ensemble: Ensemble,
    reference: int | None = None,
    *,
    rounds: int = 10,
    device: torch.device | None = None,
) -> Aligned:
    """Put the units of all models in a common order.

    Args:
        ensemble: The models; they are not modified.
        reference: The model that all others are aligned to; without one, alignment starts with the first, and then all
            are aligned in turn to the mean of the others.
        rounds: The most turns; it ends earlier if the models get no closer.
        device: Where the matrix products are computed; the assignments are always on the CPU.

    Raises:
        NetError: The network's permutable units cannot be determined.
        TrainingError: A parameter is not finite, or there is no such model.
    """
    units = find_units(ensemble.net)
    if reference is not None and not 0 <= reference < len(ensemble):
        raise TrainingError(f"a reference from 0 to {len(ensemble) - 1}", f"{reference}")
    values = {name: value.to(device or value.device, copy=True) for name, value in ensemble.spread().items()}
    _check_finite(values)
    trail, before = _Trail(values, units), closeness(values)
    trail.greedily({name: value[reference or 0].clone() for name, value in values.items()})
    done, after = 0, closeness(values)
    while reference is None and done < rounds and len(ensemble) > 2 and trail.round():
        done, last, after = done + 1, after, closeness(values)
        if after < last * (1 + _CLOSER):
            break
    aligned = Ensemble(ensemble.net, {name: value.cpu() for name, value in values.items()})
    return Aligned(aligned, tuple(trail.orders), (before, after), done)


def _check_finite(values: Named) -> None:
    for name, value in values.items():
        if not torch.isfinite(value).all():
            raise TrainingError(
                "finite parameters in every model",
                f"NaN or infinity in '{name}'",
                "The distance of units with such weights to others is undefined.",
                "Leave out models whose training diverged, or lower the learning rate.",
            )


def closeness(values: Named) -> float:
    """The mean cosine between a model and the mean of all."""
    parts = [value.float().reshape(len(value), -1) for value in values.values() if value.is_floating_point()]
    means = [part.mean(0) for part in parts]
    inner = sum((part @ mean for part, mean in zip(parts, means, strict=True)), torch.zeros(()).to(parts[0]))
    squares = sum((part.square().sum(1) for part in parts), torch.zeros(()).to(parts[0]))
    whole = sum((mean.square().sum() for mean in means), torch.zeros(()).to(parts[0]))
    return float((inner / (squares * whole).sqrt().clamp_min(1e-30)).mean())


class _Trail:
    """Models that are being aligned, in place, and where their units came from."""

    def __init__(self, values: Named, units: list[Units]) -> None:
        self.values, self.units = values, units
        self.count = len(next(iter(values.values())))
        self.orders = [np.tile(np.arange(own.size), (self.count, 1)) for own in units]

    def greedily(self, reference: Named) -> None:
        """Align layer by layer by incoming weights alone, whose inputs are already aligned; then in turns.

        A permuted copy of the reference is recovered exactly: by Cauchy–Schwarz no assignment of the first layer gains
        more than the true one, and likewise for each later layer.
        """
        everyone = slice(0, self.count)
        for place in range(len(self.units)):
            self._turn(place, reference, everyone, incoming=True)
        for _ in range(_SWEEPS):
            if not self._sweep(reference, everyone):
                break

    def round(self) -> bool:
        """Align every part of the models once to the mean of those outside it; whether any changed."""
        parts, changed = min(self.count, _PARTS), False
        total = {name: value.float().sum(0) for name, value in self.values.items()}
        for start, stop in pairwise(self.count * part // parts for part in range(parts + 1)):
            for name, value in self.values.items():
                total[name] -= value[start:stop].float().sum(0)
            others = {name: value / (self.count - stop + start) for name, value in total.items()}
            changed |= self._sweep(others, slice(start, stop))
            for name, value in self.values.items():
                total[name] += value[start:stop].float().sum(0)
        return changed

    def _sweep(self, reference: Named, part: slice) -> bool:
        """Align all layers in turn, once; whether any changed."""
        turns = [self._turn(place, reference, part) for place in range(len(self.units))]
        return any(turns)

    def _turn(self, place: int, reference: Named, part: slice, incoming: bool = False) -> bool:
        """Apply the best permutation of one layer's units, given all others; whether it improves any model."""
        own, values = self.units[place], {name: value[part] for name, value in self.values.items()}
        gains = inner_products(values, reference, own, incoming)
        order, signs = assign(gains, own)
        taken = np.take_along_axis(gains, order[:, :, None], 2)[:, :, 0] * signs
        worth = taken.sum(1) - np.trace(gains, axis1=1, axis2=2)
        keep = worth <= _GAIN * own.size * np.abs(gains).max((1, 2))
        if keep.all():
            return False
        order[keep], signs[keep] = np.arange(own.size), 1.0
        exchange(values, own, order, signs if own.signed else None)
        self.orders[place][part] = np.take_along_axis(self.orders[place][part], order, 1)
        return True


def inner_products(values: Named, reference: Named, units: Units, incoming: bool = False) -> NDArray[np.float64]:
    """For every model, the gain from unit j at position i: (models, positions, units)."""
    found: Tensor | None = None
    for axis in units.axes:
        if incoming and not axis.incoming:
            continue
        exact = torch.float64 if reference[axis.name].is_cuda else torch.float32  # TF32 would blur near ties
        own = by_unit(values[axis.name].to(exact), axis, units.size)
        fixed = by_unit(reference[axis.name].to(exact)[None], axis, units.size)[0]
        part = torch.einsum("ir,mjr->mij", fixed, own)
        found = part if found is None else found + part
    assert found is not None
    return found.double().cpu().numpy()


def assign(gains: NDArray[np.float64], units: Units) -> tuple[Order, NDArray[np.float32]]:
    """The best permutation of each model, and the signs of the units if they may change."""
    worth = np.abs(gains) if units.signed else gains
    order = np.stack([_assign(own, units.blocks)[0] for own in worth])
    taken = np.take_along_axis(gains, order[:, :, None], 2)[:, :, 0]
    signs = np.where(units.signed & (taken < 0), -1.0, 1.0).astype(np.float32)
    return order, signs


def _assign(gains: NDArray[np.float64], blocks: tuple[int, ...]) -> tuple[Order, float]:
    """The best order and its gain; blocks of units stay together, and so do blocks within them."""
    if not blocks:
        rows, order = linear_sum_assignment(gains, maximize=True)
        return order.astype(np.int64), float(gains[rows, order].sum())
    size, count = blocks[0], len(gains) // blocks[0]
    tiles = gains.reshape(count, size, count, size).swapaxes(1, 2)
    inner = [[_assign(tile, blocks[1:]) for tile in row] for row in tiles]
    outer, worth = _assign(np.array([[found for _, found in row] for row in inner]), ())
    return np.concatenate([inner[i][j][0] + j * size for i, j in enumerate(outer)]), worth
