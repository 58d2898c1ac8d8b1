"""Permutation alignment: units of many models brought into one order, so that a coordinate means the same in each.

Models with starts of their own learn the same features in different places, and an average over such models computes
nothing. Here the units of every model are exchanged, layer by layer, so that it comes closest to a reference (weight
matching: Ainsworth, Hayase and Srinivasa 2022); what a model computes stays the same. The reference is one of the
models, and by default then the mean of the others, again and again, which lowers the variance of every coordinate.

For each layer the inner products of all pairs of units are one product of matrices for all models, and the best
exchange is a linear assignment. The layers depend on each other, so they take turns until none changes; the inner
product with the reference grows with every change, so that this ends.

There is no privacy here: models, reference and orders all depend on the records, and none of them may be released.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from airlock.errors import TrainingError
from airlock.training.ensembles.ensemble import Ensemble
from airlock.training.ensembles.permutation_symmetry import Order, Units, by_unit, exchange, find_units
from airlock.training.gradients import Named

_SWEEPS = 100  # far more than are ever taken; the objective grows with each
_GAIN = 1e-7  # of the objective: less is rounding
_PARTS = 8  # of the models; each part is aligned to the mean of the others
_CLOSER = 1e-4  # a round that gains less is the last


@dataclass(frozen=True)
class Aligned:
    """Aligned models, and how it went.

    Args:
        ensemble: The models in a common order of their units; each computes what it did.
        orders: For every set of units (models, units): where each place's unit came from.
        closeness: The mean cosine between a model and the mean of all, before and after.
        rounds: How often the reference was the mean of the others.
    """

    ensemble: Ensemble
    orders: tuple[Order, ...]
    closeness: tuple[float, float]
    rounds: int


def align(
    ensemble: Ensemble,
    reference: int | None = None,
    *,
    units: list[Units] | None = None,
    rounds: int = 10,
    device: torch.device | None = None,
) -> Aligned:
    """Bring the units of all models into one order.

    Args:
        ensemble: The models; left as they are.
        reference: The model that stays as it is and that all are aligned to; without one, the first is where it starts,
            and then all take turns to be aligned to the mean of the others.
        units: Which may be exchanged; found by the network's structure when left out.
        rounds: At most how many turns; it ends before if the models come no closer.
        device: Where the products of matrices are computed; the assignments are always on the CPU.

    Raises:
        NetError: The network's exchangeable units cannot be told.
        TrainingError: A parameter is not finite, or there is no such model.
    """
    units = find_units(ensemble.net) if units is None else units
    if reference is not None and not 0 <= reference < len(ensemble):
        raise TrainingError(f"a reference from 0 to {len(ensemble) - 1}", f"{reference}")
    values = {name: value.to(device or value.device, copy=True) for name, value in ensemble.values.items()}
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
                "Units with such weights have no distance to others.",
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
    """Models that are brought into order, in place, and where their units came from."""

    def __init__(self, values: Named, units: list[Units]) -> None:
        self.values, self.units = values, units
        self.count = len(next(iter(values.values())))
        self.orders = [np.tile(np.arange(own.size), (self.count, 1)) for own in units]

    def greedily(self, reference: Named) -> None:
        """Layer after layer by what makes the units alone, whose inputs are in order by then; then in turns.

        A model that is the reference with its units exchanged is found exactly: by Cauchy–Schwarz no assignment of the
        first layer gains more than the true one, and then so on.
        """
        everyone = slice(0, self.count)
        for place in range(len(self.units)):
            self._turn(place, reference, everyone, incoming=True)
        for _ in range(_SWEEPS):
            if not self._sweep(reference, everyone):
                break

    def round(self) -> bool:
        """Every part of the models once to the mean of those outside it; whether any changed."""
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
        """All layers in turn, once; whether any changed."""
        turns = [self._turn(place, reference, part) for place in range(len(self.units))]
        return any(turns)

    def _turn(self, place: int, reference: Named, part: slice, incoming: bool = False) -> bool:
        """The best exchange of one layer's units, given all others; whether it is worth anything for some model."""
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
    """For every model, what unit j is worth in place i: (models, places, units)."""
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
    """The best exchange of each model, and the signs of the units where they may change."""
    worth = np.abs(gains) if units.signed else gains
    order = np.stack([_assign(own, units.blocks)[0] for own in worth])
    taken = np.take_along_axis(gains, order[:, :, None], 2)[:, :, 0]
    signs = np.where(units.signed & (taken < 0), -1.0, 1.0).astype(np.float32)
    return order, signs


def _assign(gains: NDArray[np.float64], blocks: tuple[int, ...]) -> tuple[Order, float]:
    """The best order and its worth; blocks of units stay together, and blocks within them."""
    if not blocks:
        rows, order = linear_sum_assignment(gains, maximize=True)
        return order.astype(np.int64), float(gains[rows, order].sum())
    size, count = blocks[0], len(gains) // blocks[0]
    tiles = gains.reshape(count, size, count, size).swapaxes(1, 2)
    inner = [[_assign(tile, blocks[1:]) for tile in row] for row in tiles]
    outer, worth = _assign(np.array([[found for _, found in row] for row in inner]), ())
    return np.concatenate([inner[i][j][0] + j * size for i, j in enumerate(outer)]), worth
