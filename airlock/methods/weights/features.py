"""Private records as features that are computed once.

Every feature vector depends on its own record and on public tensors alone, so computing it costs no privacy.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from airlock.data import Records
from airlock.nets.frontend import Framed
from airlock.training import Resident, Run
from airlock.training.front_ends.features import BLOCK, compute


class _Trained(nn.Module):
    """What the loop trains: the head. The mean travels along, so that a checkpoint holds it too."""

    mean: Tensor

    def __init__(self, net: Framed) -> None:
        super().__init__()
        self.head = net.head
        self.register_buffer("mean", net.centre.mean)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(x)
        return logits


class Features(Resident):
    """Features of all private records on the device, centred when the first batch is drawn.

    A resumed run restores the released mean from its checkpoint before that: the noisy mean is used once, whatever
    happens. `trained` is the module to train on the batches.
    """

    def __init__(self, net: Framed, records: Records, run: Run) -> None:
        self.net = net.to(run.device)
        self.trained = _Trained(net)
        self.y = torch.from_numpy(np.ascontiguousarray(records.y)).to(run.device)
        self.x = torch.empty(len(records), net.centre.mean.numel(), device=run.device)
        self._centred: Tensor | None = None
        for place, features in compute(net.front, records, run, "features"):
            self.x[place] = features

    def total(self) -> NDArray[np.float64]:
        """The sum of all features: one record moves it by at most 1 in L2."""
        return self.x.double().sum(0).cpu().numpy()

    def batch(self, index: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """The records at these positions; all of them are not copied."""
        if self._centred is None:
            with torch.no_grad():
                self._centred = torch.cat([self.net.centre(block) for block in torch.split(self.x, BLOCK)])
            self.x = self._centred
        if len(index) == len(self.y):
            return self._centred, self.y
        where = torch.from_numpy(index).to(self.y.device)
        return self._centred.index_select(0, where), self.y.index_select(0, where)
