"""The model of one shard: a linear head over public features, in closed form; one vector per shard.

A shard's head is the ridge regression, on its features, of its centred one-hot labels, or of the distances of its
targets from the middle of their range. A few records are enough for it, the penalty is its only parameter, and a
thousand heads take less time than their features. Everything about a shard is computed from its own records, in tensors
of its own shape: a record in another shard does not change even a rounding. Where records say whose they are, those of
a person have weights that add up to one; where classes have weights, a record counts with its own
(`training.class_weights`).

With `dimensions`, the features are first projected onto that many random orthogonal directions, which are public.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from airlock.data import Public, Records
from airlock.data.split import Task
from airlock.errors import ConfigError
from airlock.nets.frontend import Framed
from airlock.training import ClassWeights, Run
from airlock.training.front_ends.features import compute
from airlock.training.front_ends.front import FrontEnd
from airlock.training.losses import from_the_middle
from airlock.training.public_start import ridge_regression

_SEED = 0x7F4A7C15  # the front end shares the config's seed, and the directions have another


class Heads:
    """Linear heads of all shards over one public front end.

    Args:
        front: The front end, sized and named.
        dimensions: How many directions the features are projected onto; None keeps them as they are.
        ridge: The penalty; features have norm at most 1.
        seed: Of the directions; public.
        class_weights: How much a record of each class counts; all alike if left out.
        task: What is learnt: which class a record has, or a number.
    """

    def __init__(
        self,
        front: FrontEnd,
        dimensions: int | None,
        ridge: float,
        seed: int,
        class_weights: ClassWeights | None = None,
        task: Task = "classification",
    ) -> None:
        net = front.sized()
        self.front, self.ridge, self.class_weights, self.task = front, ridge, class_weights, task
        self.name, self.features, self.outputs = front.name, net.centre.mean.numel(), front.classes
        if dimensions is not None and dimensions > self.features:
            raise ConfigError(
                f"settings.dimensions of at most {self.features}, the number of features",
                f"{dimensions}",
                do="Leave it out to use all of them.",
            )
        self.parameters = self.outputs * (self.features + 1)
        self.size = self.outputs * ((dimensions or self.features) + 1)
        self._basis = None if dimensions is None else directions(self.features, dimensions, seed ^ _SEED)

    def start(self, public: Public | None, run: Run) -> Framed:
        """The network that all shards share; its head is zero."""
        return self.front.ready(public, run)

    def vectors(self, net: nn.Module, records: Records, shards: Sequence[NDArray[np.int64]], run: Run) -> Tensor:
        """One row per shard: its head, flat; zeros where it has no records."""
        assert isinstance(net, Framed)
        rows = torch.zeros(len(shards), self.size, dtype=torch.float32)
        for i, own in enumerate(shards):
            if len(own):
                rows[i] = self._head(net, records.take(own), run).flatten().cpu()
            if run.progress:
                run.progress("shards", i + 1, len(shards))
        return rows

    def settle(self, net: nn.Module, vector: NDArray[np.float64]) -> None:
        """Put the released vector into the network."""
        assert isinstance(net, Framed)
        weight = torch.from_numpy(vector).view(self.outputs, -1)
        if self._basis is not None:
            weight = torch.cat([weight[:, :-1] @ self._basis.T, weight[:, -1:]], 1)
        with torch.no_grad():
            net.head.weight.copy_(weight)

    def _head(self, net: Framed, own: Records, run: Run) -> Tensor:
        quiet = Run(device=run.device)
        with torch.no_grad():
            found = [net.centre(block) for _, block in compute(net.front, own, quiet, "features")]
        x = torch.cat(found).double()
        if self._basis is not None:
            x = torch.cat([x[:, :-1] @ self._basis.to(x.device), x[:, -1:]], 1)
        labels = torch.from_numpy(np.ascontiguousarray(own.y)).to(x.device)
        y = self._wanted(labels)
        weights = None if own.person is None else torch.from_numpy(own.weights).to(x.device)  # everybody weighs one
        if self.class_weights is not None:
            of_classes = self.class_weights.of(labels)
            weights = of_classes if weights is None else weights * of_classes
        if weights is not None:  # squares are multiplied by the weights
            root = weights.sqrt()[:, None]
            x, y = root * x, root * y
        return ridge_regression(x, y, self.ridge)

    def _wanted(self, labels: Tensor) -> Tensor:
        """What a head should give, (records, outputs): of a classifier 1 for the label's class, centred."""
        if self.task == "regression":
            return from_the_middle(labels)
        return nn.functional.one_hot(labels, self.outputs).double() - 1.0 / self.outputs


def directions(dimensions: int, count: int, seed: int) -> Tensor:
    """Random orthogonal directions as columns, scaled to keep norms on average; a function of the seed."""
    chance = torch.Generator().manual_seed(seed)
    basis: Tensor = torch.linalg.qr(torch.randn(dimensions, count, dtype=torch.float64, generator=chance))[0]
    return basis * math.sqrt(dimensions / count)
