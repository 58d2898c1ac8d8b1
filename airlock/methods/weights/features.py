"""Features of all private records for a head, and what about them is released before it is trained.

Every feature vector depends on its own record, on public tensors and on what was released first, so computing it costs
no privacy. What is released first is a sum over records (`total`); with noise it goes into one tensor of the network
(`improve`, `released`): the mean feature that is subtracted from all of them, or a table's cut points. A resumed run
restores that tensor from its checkpoint before the first batch: noise is used once, whatever happens.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from airlock.data import Records
from airlock.mechanisms import GaussianNoise
from airlock.nets.frontend import Framed
from airlock.nets.tables import steps_of
from airlock.training import Resident, Run
from airlock.training.front_ends import cut_points
from airlock.training.front_ends.features import BLOCK, compute


class TrainedHead(nn.Module):
    """What the loop trains: the head. What was released first is part of it so that a checkpoint holds it too."""

    released: Tensor

    def __init__(self, head: nn.Linear, released: Tensor) -> None:
        super().__init__()
        self.head = head
        self.register_buffer("released", released)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of features."""
        logits: Tensor = self.head(x)
        return logits


class Features(Resident):
    """Features of all private records on the device, computed once and centred when the first batch is drawn.

    `trained` is the module to train on the batches.

    Args:
        net: The network.
        records: The private records.
        run: Where to compute.
        records_per_person: Draw people, with at most so many of their records each; None draws records.
    """

    def __init__(self, net: Framed, records: Records, run: Run, records_per_person: int | None = None) -> None:
        self.net = net.to(run.device)
        self.trained = TrainedHead(net.head, self.released)
        self._start = self.released.clone()
        self.y = torch.from_numpy(np.ascontiguousarray(records.y)).to(run.device)
        self.shares: NDArray[np.float64] | None = None  # of a record in its person's mean
        if records_per_person is not None:
            self.groups, self.most = records.groups(), records_per_person
            self.shares = records.weights
        self._ready: Tensor | None = None
        self.x = self.raw = self.read(records, run)

    def read(self, records: Records, run: Run) -> Tensor:
        """The records as they are kept until the first batch: by the front end alone."""
        x = torch.empty(len(records), self.net.centre.mean.numel(), device=run.device)
        for place, features in compute(self.net.front, records, run, "features"):
            x[place] = features
        return x

    @property
    def released(self) -> Tensor:
        """The tensor of the network that holds what is released first."""
        return self.net.centre.mean

    def total(self) -> NDArray[np.float64]:
        """The sum of all features, of each person's mean where people are drawn: one moves it by at most 1 in L2."""
        wide = self.raw.double()
        shares = None if self.shares is None else torch.from_numpy(self.shares).to(wide.device)
        return (wide.sum(0) if shares is None else wide.mT @ shares).cpu().numpy()

    def improve(self, noisy: NDArray[np.float64], noise: GaussianNoise, units: int) -> None:
        """Put the mean feature into the network.

        Args:
            noisy: `total` with noise.
            noise: Which.
            units: The public number of records, or people.
        """
        with torch.no_grad():
            self.released.copy_(torch.from_numpy(noisy / units))

    def finish(self, block: Tensor) -> Tensor:
        """Kept records to the head's inputs."""
        found: Tensor = self.net.centre(block)
        return found

    def batch(self, index: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """The records at these positions; a batch of all of them, in their order, is not copied."""
        if self._ready is None:
            with torch.no_grad():
                self._ready = torch.cat([self.finish(block) for block in torch.split(self.raw, BLOCK)])
            self.x = self._ready
        if self.groups is None and len(index) == len(self.y):
            return self._ready, self.y
        where = torch.from_numpy(index).to(self.y.device)
        return self._ready.index_select(0, where), self.y.index_select(0, where)

    def reset(self) -> None:
        """Back to where it started, for many releases of the same records: nothing released, and a head of zeros."""
        self.x, self._ready = self.raw, None
        with torch.no_grad():
            self.released.copy_(self._start)
            self.net.head.weight.zero_()


class TableFeatures(Features):
    """The same for a table: what is released first are counts of its numbers' values, which place the cut points.

    Args:
        net: The network.
        records: The private records.
        run: Where to compute.
        records_per_person: Draw people, with at most so many of their records each; None draws records.
        cells: In which values are counted (`cut_points`).
    """

    def __init__(
        self, net: Framed, records: Records, run: Run, records_per_person: int | None = None, cells: int = 64
    ) -> None:
        super().__init__(net, records, run, records_per_person)
        self.cells = cells

    def read(self, records: Records, run: Run) -> Tensor:
        """The encoded records themselves: features follow when the cut points are known."""
        return torch.from_numpy(np.ascontiguousarray(records.x, dtype=np.float32)).flatten(1).to(run.device)

    @property
    def released(self) -> Tensor:
        """The cut points."""
        return steps_of(self.net).cuts

    def total(self) -> NDArray[np.float64]:
        """The counts, each person counted once: one moves them by at most √numbers in L2 (`cut_points`)."""
        numbers = self.raw.index_select(1, steps_of(self.net).numbers)
        return cut_points.count(numbers.cpu().numpy(), self.cells, self.shares)

    def improve(self, noisy: NDArray[np.float64], noise: GaussianNoise, units: int) -> None:
        """Put cut points into the network."""
        found = cut_points.cut_points(noisy, self.cells, self.released.shape[1], noise.scale(noisy.size))
        with torch.no_grad():
            self.released.copy_(torch.from_numpy(found))

    def finish(self, block: Tensor) -> Tensor:
        """Encoded records to the head's inputs."""
        found: Tensor = self.net.centre(self.net.front(block))
        return found
