"""Fisher's linear discriminability of every single channel: how well one map separates the classes.

J of a channel is the largest eigenvalue of S_w⁻¹ S_b (Fisher 1936), as in PrivyNet: with z the flattened map of one
record, S_w the sum over records of (z - mean of its class)(...)ᵀ and S_b the sum over classes of (mean of the class -
mean of all)(...)ᵀ. S_b = BᵀB with one row per class, so that J is the largest eigenvalue of the small B S_w⁻¹ Bᵀ.

This takes one pass over the records and keeps only sums. There is no privacy mechanism here: J of private records
depends on them without any noise, and a release whose channels are chosen by it has to say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from airlock.data import Records
from airlock.errors import NetError
from airlock.nets.prefix import Prefix
from airlock.training.devices import Resident
from airlock.training.loop import Run

RECORDS, _BATCH = 6400, 128  # as in PrivyNet
RIDGE = 1e-3  # relative to the mean variance, if S_w has no inverse
_SINGULAR = 1e-9  # the smallest pivot over the largest, on the scale of square roots of S_w
LIMIT = 1 << 30  # bytes of sums at a time

Batches = Callable[[], Iterable[tuple[Tensor, Tensor]]]


class Scatter:
    """Sums over records from which every channel's J follows.

    Args:
        channels: The number of channels.
        places: Entries of one flattened map.
        classes: The number of classes.
        device: Where the sums are kept.
    """

    def __init__(self, channels: int, places: int, classes: int, device: torch.device | None = None) -> None:
        self.counts = torch.zeros(classes, dtype=torch.float64, device=device)
        self.sums = torch.zeros(classes, channels, places, dtype=torch.float64, device=device)
        self.products = torch.zeros(channels, places, places, dtype=torch.float64, device=device)

    def add(self, maps: Tensor, labels: Tensor) -> None:
        """Add records (n, channels, height, width) with their labels."""
        z = maps.flatten(2).double()
        member = F.one_hot(labels.long(), len(self.counts)).double()
        self.counts += member.sum(0)
        self.sums += torch.einsum("nk,ncp->kcp", member, z)
        across = z.transpose(0, 1)
        self.products += across.transpose(1, 2) @ across

    def scores(self, ridge: float = RIDGE) -> Tensor:
        """J of every channel; 0 for a channel that never varies. Classes without a record do not count.

        Raises:
            NetError: Fewer than two classes have records.
        """
        there = self.counts > 0
        if int(there.sum()) < 2:
            raise NetError("records of at least two classes for Fisher's criterion", f"{int(there.sum())}")
        counts, sums = self.counts[there], self.sums[there]
        means = sums / counts[:, None, None]
        middle = self.sums.sum(0) / self.counts.sum()
        between = (means - middle).transpose(0, 1)  # channels, classes, places
        weighted = (sums * counts.rsqrt()[:, None, None]).transpose(0, 1)
        within = self.products - weighted.transpose(1, 2) @ weighted
        return _largest(within, between, ridge)


def _largest(within: Tensor, between: Tensor, ridge: float) -> Tensor:
    """The largest eigenvalue of B S⁻¹ Bᵀ, for all channels in one batch; with a ridge where S has no inverse."""
    places = within.shape[1]
    size = within.diagonal(dim1=1, dim2=2).mean(1)  # the mean variance
    dead = size <= torch.finfo(torch.float64).tiny
    identity = torch.eye(places, dtype=within.dtype, device=within.device)
    within = within / size.where(~dead, torch.ones_like(size))[:, None, None]
    root, problem = torch.linalg.cholesky_ex(within)
    pivots = root.diagonal(dim1=1, dim2=2)
    singular = (problem > 0) | ~(pivots.amin(1) ** 2 > _SINGULAR * pivots.amax(1) ** 2)
    damped = torch.linalg.cholesky_ex(within + torch.maximum(ridge * singular, dead * 1.0)[:, None, None] * identity)[0]
    solved = torch.linalg.solve_triangular(damped, between.transpose(1, 2), upper=False)
    small = solved.transpose(1, 2) @ solved
    found = torch.linalg.eigvalsh(small)[:, -1] / size.where(~dead, torch.ones_like(size))
    scores: Tensor = found.clamp_min(0).where(~dead, torch.zeros_like(found))
    return scores


def discriminability(batches: Batches, shape: tuple[int, ...], classes: int, limit: int = LIMIT) -> Tensor:
    """J of every channel of maps of `shape`, on the CPU.

    Args:
        batches: Returns maps and labels, from the start each time it is called.
        shape: Channels, height, width.
        classes: The number of classes.
        limit: Bytes of sums at a time; beyond that, channels are processed in groups, with one pass over the records
            each.
    """
    channels, places = shape[0], shape[1] * shape[2]
    at_once = max(1, limit // (8 * places * (places + classes)))
    found = []
    for start in range(0, channels, at_once):
        scatter: Scatter | None = None
        for maps, labels in batches():
            own = maps[:, start : start + at_once]
            scatter = scatter or Scatter(own.shape[1], places, classes, maps.device)
            scatter.add(own, labels)
        if scatter is None:
            raise NetError("records for Fisher's criterion", "none")
        found.append(scatter.scores().cpu())
    return torch.cat(found)


def usefulness(front: Prefix, records: Records, classes: int, run: Run, count: int = RECORDS) -> dict[int, float]:
    """J of every channel of a front end, from the first `count` records.

    On private records this is not protected by noise: a release whose channels are chosen by it has to say so.
    """
    count = min(count, len(records))
    data = Resident(Records(records.x[:count], records.y[:count]), run.device)
    front.to(run.device)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for start in range(0, count, _BATCH):
            x, y = data.batch(np.arange(start, min(count, start + _BATCH)))
            with torch.no_grad():
                yield front(x), y

    return dict(enumerate(discriminability(batches, front.shape, classes).tolist()))
