"""Gradients with the paper's noise: isotropic clipping, noise of another standard deviation in every coordinate.

Guarantee: none. The shape of the noise is computed from all private records. It is its own source of gradients because
`PrivateGradients` has no noise whose shape differs from that of the clipping, which is what makes that one sound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from airlock.mechanisms import Clip, GaussianNoise, Stream
from airlock.papers.weights.optimised import Solver, solve
from airlock.training import Resident
from airlock.training.per_sample import clipped_sum
from airlock.training.private import put_gradient

_BATCH = {"cpu": 128, "cuda": 1000}  # records at a time for w

Batch = tuple[Tensor, Tensor]
SensitivityFrom = Literal["all", "lot"]


class OptimisedGradients:
    """Clipped sum plus N(0, diag σ²) with σ = u·α/√τ, divided by the expected lot (Algorithm 1, lines 3 to 12).

    The noise is that of `GaussianNoise` with the shape u: one pass, on the GPU where the training is there.

    The paper divides by the size of the lot that was drawn; here it is the expected size, which is public and never 0.
    A resumed run computes w anew where it goes on, so with `refresh` above 1 it may end in other bits.

    Args:
        data: The whole private set, for w.
        clip_norm: α.
        noise_multiplier: 1/√τ.
        expected_lot: The public constant to divide by.
        stream: The secret stream; a step's noise is used once.
        solver: How the shape is found.
        refresh: After how many iterations w is computed anew.
        noise_on: "sum", or "mean" to add σ after dividing.
        sensitivity_from: "all" records, or the "lot" of the iteration that computes w: an estimate that costs less.
    """

    def __init__(
        self,
        data: Resident,
        clip_norm: float,
        noise_multiplier: float,
        expected_lot: float,
        stream: Stream,
        solver: Solver,
        refresh: int,
        noise_on: Literal["sum", "mean"],
        sensitivity_from: SensitivityFrom = "all",
    ) -> None:
        self._data, self._stream, self.clip = data, stream, Clip(clip_norm)
        self.noise, self.expected_lot = GaussianNoise(clip_norm, noise_multiplier), expected_lot
        self.solver, self.refresh, self.noise_on = solver, refresh, noise_on
        self.sensitivity_from = sensitivity_from
        self.shape: Tensor | None = None  # u
        self.smallest: list[float] = []  # min u of every shape
        self.dropped = 0

    @property
    def stream(self) -> Stream:
        """Where its noise comes from; it knows where that was computed."""
        return self._stream

    @property
    def mark(self) -> dict[str, object]:
        """Everything that decides the noise."""
        return {
            "gradients": "optimised noise",
            "clip_norm": self.clip.norm,
            "noise_multiplier": self.noise.noise_multiplier,
            "expected_lot": self.expected_lot,
            "solver": str(self.solver),
            "refresh": self.refresh,
            "noise_on": str(self.noise_on),
            "sensitivity_from": str(self.sensitivity_from),
            "secure": self._stream.secure,
        }

    def state(self) -> dict[str, Tensor]:
        """None: w is computed anew."""
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Nothing to restore."""

    def __call__(self, net: nn.Module, x: Tensor, y: Tensor, step: int) -> None:
        """One noisy gradient; an empty lot gives pure noise."""
        if self.shape is None or step % self.refresh == 0:
            w = mean_gradient(net, _pieces(x, y)) if self.sensitivity_from == "lot" else sensitivity(net, self._data)
            self.shape = solve(self.solver, w)
            self.smallest.append(float(self.shape.min()))
        total, dropped = clipped_sum(net, x, y, self.clip)
        self.dropped += dropped
        flat, divisor = torch.cat([g.flatten() for g in total.values()]), self.expected_lot
        if self.noise_on == "mean":
            flat, divisor = flat.div_(divisor), 1.0
        noisy = self.noise.add_and_divide(flat, divisor, self._stream.child("noise", step), self.shape)
        put_gradient(net, noisy)


def sensitivity(net: nn.Module, data: Resident) -> Tensor:
    """w: the gradient of the mean loss over all records."""
    size = _BATCH[data.y.device.type]
    starts = range(0, len(data), size)
    return mean_gradient(net, (data.batch(np.arange(i, min(i + size, len(data)), dtype=np.int64)) for i in starts))


def mean_gradient(net: nn.Module, batches: Iterable[Batch]) -> Tensor:
    """Of the loss over all records of the batches, neither clipped nor noised; without dropout."""
    trainable = [p for p in net.parameters() if p.requires_grad]
    total = torch.zeros(sum(p.numel() for p in trainable), device=trainable[0].device)
    records, was_training = 0, net.training
    net.eval()
    for x, y in batches:
        loss = F.cross_entropy(net(x).float(), y, reduction="sum")
        gradients = torch.autograd.grad(loss, trainable)
        total += torch.cat([g.detach().float().flatten() for g in gradients])
        records += len(y)
    net.train(was_training)
    return total / max(1, records)


def _pieces(x: Tensor, y: Tensor) -> Iterator[Batch]:
    size = _BATCH[y.device.type]
    return ((x[i : i + size], y[i : i + size]) for i in range(0, len(y), size))
