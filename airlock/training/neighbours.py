"""Private records vote for the nearest public inputs, and votes travel along the graph of public inputs.

Public inputs need no labels. In the space of a public front end, whitened by their own covariance, each of them has a
cell: the records that are nearer to it than to any other. `tally` counts, cell by cell and class by class, the private
records: that is all that is ever taken from them. What is public is a graph that joins each public input to its nearest
ones, and how easily a random walk along it comes from one input to another (Zhu, Ghahramani and Lafferty 2003). Two
images of one digit, written in different ways, are far apart and yet joined by others in between: such a neighbourhood
holds far more records of the right class than a ball does, and so it bears far more noise.

Guarantee of `tally`. The cell of a record follows from its own features and public tensors, bit for bit wherever it
stands (`cells`), so a record adds its weight, at most 1, to one count, and nothing to any other. A person's records
weigh at most 1 together. So one record or one person more or less moves the table by at most 1, in L1 and so in L2.
Weights are whole multiples of 1/UNIT, rounded down, and sums are those of integers: there is no rounding to account
for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor, nn

from airlock.data import Records
from airlock.nets.frontend import whitening
from airlock.training.per_sample import outputs

UNIT = 2**16  # votes are counted in so many parts of one
LARGEST = 20_000  # public inputs in a graph: the nearest of each are found by comparing all with all
_JOINED = 10  # edges of each
_SCALE = 7  # which neighbour's distance is the scale of a point's surroundings
_AXES, _PER_AXIS = 100, 10  # directions of the space at most, and public inputs for each
_POWER, _DAMPING = 0.5, 1e-3  # of the whitening
_TINY = 1e-12
_BLOCK = 1000  # points whose distances are held at once
_STAYS = 0.9  # chance that a walk from a question goes on after each step
_STEPS = 20
_PROBES = 8

Whole = NDArray[np.int64]
Floats = NDArray[np.float64]
A = TypeVar("A", NDArray[np.float32], Floats)


@dataclass(frozen=True)
class PublicGraph:
    """Public inputs in their space, each joined to its nearest ones; no record has any part in it.

    Args:
        weight: From features to the space, (axes, dimensions).
        bias: Of the same map.
        points: The public inputs there, of norm 1.
        scale: The distance of a near neighbour of each.
        joined: Positions of the nearest of each, (points, edges).
        strength: How close they are, from 0 to 1.
    """

    weight: Tensor
    bias: Tensor
    points: Tensor
    scale: Tensor
    joined: Tensor
    strength: Tensor

    @classmethod
    def of(cls, features: Tensor, seed: int) -> PublicGraph:
        """The graph of public inputs with these features, or of `LARGEST` of them drawn by a public seed."""
        if len(features) > LARGEST:
            chosen = torch.randperm(len(features), generator=torch.Generator().manual_seed(seed))[:LARGEST]
            features = features[chosen.sort().values.to(features.device)]
        mean = features.double().mean(0)
        covariance = torch.cov(features.double().T, correction=0).reshape(len(mean), len(mean))
        weight, bias = whitening(mean, covariance, _POWER, _DAMPING)
        axes = max(1, min(_AXES, len(features) // _PER_AXIS, len(mean)))
        weight, bias = weight[-axes:], bias[-axes:]  # eigenvalues ascend
        points = _placed(features, weight, bias)
        distance, joined = _nearest(points, points, min(_JOINED, len(points) - 1), itself=True)
        scale = distance[:, : _SCALE + 1].amax(1) if joined.shape[1] else torch.zeros(len(points))
        strength = torch.exp(-distance.square() / (scale[:, None] * scale[joined] + _TINY))
        return cls(weight.cpu(), bias.cpu(), points.cpu(), scale, joined, strength)

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[np.generic]]) -> PublicGraph:
        """From `arrays`."""
        return cls(**{name: torch.from_numpy(np.asarray(value)) for name, value in arrays.items()})

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Its tensors, by name."""
        return {field.name: getattr(self, field.name).numpy() for field in fields(self)}

    def cells(self, features: Tensor) -> Whole:
        """The nearest public input of each row of features, by that row alone: bits do not depend on its place."""
        likeness = _Likeness(self).to(features.device).eval()
        found = [outputs(likeness, block).argmax(1).cpu() for block in torch.split(features, _BLOCK)]
        return np.asarray(torch.cat([torch.zeros(0, dtype=torch.int64), *found]).numpy())

    def reached(self, features: Tensor) -> NDArray[np.float32]:
        """How easily walks from inputs with these features come to each public input: (inputs, points).

        A walk begins at one of the nearest points, and goes on after each step with a chance of 0.9.
        """
        own = _placed(features, self.weight, self.bias)
        distance, near = _nearest(own, self.points.to(own.device), min(_JOINED, len(self.points)))
        scale = distance[:, : _SCALE + 1].amax(1)
        start = torch.exp(-distance.square() / (scale[:, None] * self.scale[near] + _TINY)).clamp_min(_TINY)
        walk = np.zeros((len(self.points), len(own)), np.float32)
        np.put_along_axis(walk, near.numpy().T, (start / start.sum(1, keepdim=True)).float().numpy().T, 0)
        return _walked(walk, _STAYS, _STEPS, self.steps.T.tocsr()).T

    def smoothed(self, values: Floats, stays: float) -> Floats:
        """For each point the sum of the values that a walk from it comes by, (points, columns)."""
        return _walked(values, stays, round(4 / (1 - stays)), self.steps)

    def reach(self, stays: float) -> float:
        """How many points a smoothed value is the mean of: the median of (Σ w)² / Σ w² over the weights of a point."""
        signs = np.random.default_rng(0).choice([-1.0, 1.0], (len(self.points), _PROBES))
        squares = np.square(self.smoothed(signs, stays)).mean(1)  # of which each has the expectation Σ w²
        whole = self.smoothed(np.ones((len(self.points), 1)), stays)[:, 0]
        return float(np.median(whole**2 / (squares + _TINY)))

    @cached_property
    def steps(self) -> sparse.csr_array:
        """The chances of a step from each point (row) to each other."""
        count, edges = self.joined.shape
        rows, columns = np.repeat(np.arange(count), edges), self.joined.numpy().ravel()
        one_way = sparse.csr_array((self.strength.double().numpy().ravel(), (rows, columns)), shape=(count, count))
        both = one_way.maximum(one_way.T).tocsr()
        return sparse.csr_array(sparse.diags_array(1 / (both.sum(1) + _TINY)) @ both)


def _walked(start: A, stays: float, count: int, steps: sparse.csr_array) -> A:
    """The sum of so many steps, each of which goes on with this chance."""
    steps, total, now = steps.astype(start.dtype), start.copy(), start
    for _ in range(count):
        now = steps @ now
        now *= stays
        total += now
    return total


class _Likeness(nn.Module):
    """The cosines between features, in the graph's space, and all of its points.

    Two public inputs may be the same, and then rounding decides which of them is nearer. `outputs` sees to it that it
    decides alike wherever a record stands: otherwise one record more would move others to other cells.
    """

    weight: Tensor
    bias: Tensor
    points: Tensor

    def __init__(self, graph: PublicGraph) -> None:
        super().__init__()
        for name in ("weight", "bias", "points"):
            self.register_buffer(name, getattr(graph, name).double())

    def forward(self, x: Tensor) -> Tensor:
        """(records, dimensions) to (records, points)."""
        return _placed(x, self.weight, self.bias) @ self.points.T


def at_least_one(public: Records) -> Records:
    """The public inputs; one of zeros where that part turned out to be empty, in whose cell all records are then."""
    return public if len(public) else Records(np.zeros((1, *public.x.shape[1:]), public.x.dtype), np.zeros(1, np.int64))


def tally(cells: Whole, labels: Whole, weights: Floats, points: int, classes: int) -> Whole:
    """How many records of each class lie in each cell, in parts of `UNIT`: (points, classes). It may not leave.

    Args:
        cells: Of each record.
        labels: Of each record, from 0 to `classes` − 1.
        weights: Of each record, from 0 to 1; those of a person add up to at most 1.
        points: How many cells there are.
        classes: How many classes.
    """
    found = np.zeros((points, classes), np.int64)
    np.add.at(found, (cells, labels), np.floor(np.clip(weights, 0.0, 1.0) * UNIT).astype(np.int64))
    return found


def _placed(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Whitened, and of norm 1."""
    own = features.double() @ weight.double().to(features.device).T + bias.double().to(features.device)
    unit: Tensor = own / (own.norm(dim=1, keepdim=True) + _TINY)
    return unit


def _nearest(rows: Tensor, points: Tensor, count: int, itself: bool = False) -> tuple[Tensor, Tensor]:
    """Distances and positions of the nearest points of each row, on the CPU; `itself`: rows are the points."""
    distances, places = [rows.new_zeros(0, count).cpu()], [torch.zeros(0, count, dtype=torch.long)]
    for start in range(0, len(rows), _BLOCK):
        alike = rows[start : start + _BLOCK] @ points.double().T  # cosines
        if itself:
            own = torch.arange(len(alike), device=alike.device)
            alike[own, own + start] = -torch.inf
        best = alike.topk(count, dim=1)
        distances.append((2 - 2 * best.values).clamp_min(0).sqrt().cpu())
        places.append(best.indices.cpu())
    return torch.cat(distances), torch.cat(places)
