"""The optimised additive noise of Xiang, Yang and Li 2019: budget (Eq. 12), shape (Eq. 10 and 11) and gradients.

Everything here is the paper's, mistakes included, but for one shape; `published` says which mistakes. Guarantee: none.
The shape of the noise is computed from all private records. The shape that is not the paper's is `closed`: it is from
the authors' later public code, which also has the factor that the paper's moment bound lacks, and no Eq. 12. Here it
gets the paper's budget, so it is neither the paper's algorithm nor that code's.

Shapes are given as factors u on the equal noise α/√τ, so that σ = u · α/√τ: with Δ = α·v the constraint
Σ Δ_i²/σ_i² ≤ τ becomes Σ v_i²/u_i² ≤ 1 on ‖v‖ = 1. u = 1 is the true optimum of Eq. 10 whatever w is: the worst v puts
all its weight on the smallest u. Both solvers below only meet the constraint at one v, with equality, and therefore
always have min u ≤ 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from airlock.errors import ConfigError
from airlock.mechanisms import Clip, GaussianNoise, Stream
from airlock.training import Resident
from airlock.training.per_sample import clipped_sum
from airlock.training.private import put_gradient

Batch = tuple[Tensor, Tensor]
Solver = Literal["projected", "closed"]
SensitivityFrom = Literal["all", "lot"]

_ITERATIONS = 50  # "the method takes around 50 iterations to converge"
_STEP_NOISE, _STEP_DIRECTION = 0.02, 0.01  # of u and of v in one iteration, over their own norm
_STEEPNESS = 50.0  # of the sigmoid that stands for the step function
_GROWTH = 1.1  # of the penalty μ in one iteration, from 1
_BATCH = {"cpu": 128, "cuda": 1000}  # records at a time for w


@dataclass(frozen=True)
class Budget:
    """What one iteration may spend, by the paper's composition.

    Args:
        epsilon: ε_t.
        delta: δ_t.
        tau: τ, the bound on Σ Δ_i²/σ_i².
    """

    epsilon: float
    delta: float
    tau: float

    @property
    def noise_multiplier(self) -> float:
        """1/√τ: the equal noise that meets the constraint, over the clip norm α."""
        return 1.0 / math.sqrt(self.tau)


def budget(epsilon: float, delta: float, sampling_probability: float, iterations: int, order: int | None) -> Budget:
    """Eq. 12 and τ = 2 ε_t + (2/λ) ln δ_t.

    Args:
        epsilon: The ε to be claimed.
        delta: The δ to be claimed.
        sampling_probability: q.
        iterations: k, over all runs.
        order: λ, the order of the moment in Eq. 9. The paper asks for "any positive integer" and names none; None is
            the limit of large λ, τ = 2 ε_t: the largest τ, so the least noise, that its argument allows.

    Raises:
        ConfigError: τ is not positive, so no noise meets the constraint.
    """
    per_step = epsilon / math.sqrt(16 * sampling_probability**2 * iterations * math.log(math.e + epsilon / delta))
    return one_iteration(per_step, delta / (2 * iterations), order)


def one_iteration(per_step: float, leak: float, order: int | None) -> Budget:
    """τ for ε_t and δ_t, which one iteration is claimed to have.

    Raises:
        ConfigError: τ is not positive, so no noise meets the constraint.
    """
    tau = 2 * per_step + (2 / order * math.log(leak) if order else 0.0)
    if tau <= 0:
        smallest = math.floor(-math.log(leak) / per_step) + 1
        raise ConfigError(
            f"settings.moment_order of at least {smallest}",
            f"{order}",
            "Below that, the paper's constraint has no solution.",
            "Leave it out for the limit of large orders.",
        )
    return Budget(per_step, leak, tau)


def solve(solver: Solver, w: Tensor) -> Tensor:
    """The shape u of the noise for the model sensitivity w; equal noise if w is zero."""
    largest = w.abs().max()
    if not bool(torch.isfinite(largest)) or float(largest) == 0.0:
        return torch.ones_like(w)
    return _SOLVERS[solver]((w / largest).abs())


def closed(w: Tensor) -> Tensor:
    """The authors' later code, not the paper: σ_i = (2 λ* Δ_i²/|w_i|)^{1/3} at Δ* = α w/‖w‖, λ* from the constraint.

    That is u_i ∝ |w_i|^{1/3}: coordinates that matter less get less noise, those with w_i = 0 none.
    """
    size: Tensor = w.pow(4 / 3).sum().sqrt() / w.norm()
    return w.pow(1 / 3) * size


def projected(w: Tensor) -> Tensor:
    """Eq. 11: ascent in Δ on the sphere, descent in σ, alternating, under a sigmoid penalty that grows.

    Δ is projected onto ‖Δ‖ = α and σ onto its constraint at this Δ, by scaling, which keeps the shape. The paper gives
    no step sizes: these are relative to the size of what they move, and no coordinate more than doubles or halves in
    one step. Of the shapes along the way the best is kept, each scaled to meet the constraint at its own Δ. With more
    iterations or a faster Δ the answer tends to equal noise, the exact solution.
    """
    weight = w / w.mean()
    u, v, penalty = torch.ones_like(w), w / w.norm(), 1.0
    best, lowest = u, weight.sum()
    for _ in range(_ITERATIONS):
        v = _moved(v, v / u.square(), _STEP_DIRECTION)
        v = v / v.norm()
        fall = _pull(u, v, penalty) * len(w) * v.square() / u.pow(3) - weight
        u = _moved(u, fall, _STEP_NOISE)
        size = (v / u).norm()
        cost = (weight @ u) * size
        if cost < lowest:
            best, lowest = u * size, cost
        u, penalty = u * size.clamp_min(1.0), penalty * _GROWTH
    return best


def _pull(u: Tensor, v: Tensor, penalty: float) -> Tensor:
    """2 μ s'(h - 1) for the sigmoid s and h = Σ v²/u²: how hard the constraint pulls."""
    s = torch.sigmoid(_STEEPNESS * ((v / u).square().sum() - 1.0))
    return 2.0 * penalty * _STEEPNESS * s * (1.0 - s)


def _moved(value: Tensor, direction: Tensor, share: float) -> Tensor:
    """A step along `direction` whose length is a share of the value's; no coordinate leaves half to double."""
    step = direction * (share * value.norm() / direction.norm().clamp_min(1e-30))
    return torch.minimum(torch.maximum(value + step, 0.5 * value), 2.0 * value)


_SOLVERS: dict[Solver, Callable[[Tensor], Tensor]] = {"projected": projected, "closed": closed}


class OptimisedGradients:
    """Clipped sum plus N(0, diag σ²) with σ = u·α/√τ, divided by the expected lot (Algorithm 1, lines 3 to 12).

    This is a source of gradients of its own because `PrivateGradients` has no noise whose shape differs from that of
    the clipping, which is what makes that one sound. The noise is that of `GaussianNoise` with the shape u: one pass,
    on the GPU if the training is there.

    The paper divides by the size of the lot that was drawn; here it is the expected size, which is public and never 0.
    A resumed run computes w again where it resumes, so with `refresh` above 1 it may end in different bits.

    Args:
        data: The whole private set, for w.
        clip_norm: α.
        noise_multiplier: 1/√τ.
        expected_lot: The public constant to divide by.
        stream: The secret stream; a step's noise is used once.
        solver: How the shape is found.
        refresh: After how many iterations w is computed again.
        noise_on: "sum", or "mean" to add σ after dividing.
        sensitivity_from: "all" records, or the "lot" of the iteration that computes w: a cheaper estimate.
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
        """Where its noise comes from; it records where that was computed."""
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
        """None: w is computed again."""
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
    """Of the loss over all records of the batches, without clipping, noise or dropout."""
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
